"""The results of a sweep as one HTML file with plots, which needs nothing else."""

from collections.abc import Iterable, Iterator, Sequence

from alignup.picture.text_format import format_size, pluralize
from alignup.simulate.arrivals import format_duration
from alignup.simulate.report_page import bars, data_table, facts, format_amount, page, section, side_by_side
from alignup.simulate.sweeps.averages import (
    CombinationMeans,
    InvalidCombination,
    combination_means,
    invalid_combinations,
)
from alignup.simulate.sweeps.tasks import Row
from alignup.web.pages.html import Content, Html, element

_MAX_BARS = 40  #: combinations that are plotted
_KEYS = ("Machine", "Configuration", "Strategy")

Means = Sequence[CombinationMeans]


def render(rows: Sequence[Row], *, title: str) -> str:
    """The file."""
    means = combination_means(rows)
    invalid = invalid_combinations(rows)
    pairs = (
        ("Simulations", f"{len(rows):,}"),
        ("Combinations", f"{len(means):,}, each the mean of {pluralize(_most_seeds(means), 'seed')}"),
        *((f"{name}s", ", ".join(_distinct(rows, name.lower()))) for name in _KEYS[:2]),
        ("Strategies", ", ".join(_distinct(rows, "strategy"))),
    )
    return page(
        title,
        facts(pairs),
        section("All combinations", _table(means)),
        *_plots(means),
        *([section("The kubelet does not start with", _invalid_table(invalid))] if invalid else []),
    )


def _most_seeds(means: Means) -> int:
    return max((one.seeds for one in means), default=0)


def _distinct(rows: Iterable[Row], column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def _labels(means: Means) -> list[str]:
    """Only the names in which combinations differ."""
    differing = [place for place in range(len(_KEYS)) if len({one.names[place] for one in means}) > 1] or [2]
    return [", ".join(one.names[place] for place in differing) for one in means]


def _table(means: Means) -> Content:
    if not means:
        return element("p", "No combination was simulated.", class_="empty")
    resources, devices = _resources(means), _devices(means)
    heads = [*_KEYS, "Started", "Failed", "Never started", "Rejections", "Waiting p50", "Waiting p99"]
    heads += [f"Requested {name}" for name in resources]
    heads += ["Mean distance", "Stranded CPUs", "Stranded memory", *(f"Stranded {name}" for name in devices)]
    rows = []
    for one in means:
        own = one.figures
        counts = [_format_mean(own[name]) for name in ("started", "failed", "pending", "rejections")]
        waiting = [format_duration(own[name]) for name in ("waiting_p50", "waiting_p99")]
        shares = [f"{one.requested.get(name, 0.0):.1%}" for name in resources]
        stranded = [f"{own['mean_distance']:.2f}", _format_mean(own["stranded_cpus"])]
        stranded += [format_size(round(own["stranded_memory"]))]
        stranded += [format_amount(name, one.stranded_devices.get(name, 0.0)) for name in devices]
        rows.append([*one.names, *counts, *waiting, *shares, *stranded])
    return data_table(heads, rows)


def _plots(means: Means) -> Iterator[Html]:
    shown = means[:_MAX_BARS]
    if not shown:
        return
    if len(means) > len(shown):
        yield element("p", f"Plots show the first {len(shown)} combinations; the table has all.", class_="empty")
    labels = _labels(shown)

    def figure(name: str) -> list[float]:
        return [one.figures[name] for one in shown]

    rejections, waiting = figure("rejections"), figure("waiting_p99")
    yield section("Rejections", bars("Rejections by kubelets", labels, rejections, _texts(rejections), style=3))
    plots = []
    for style, name in enumerate(_resources(means)):
        shares = [one.requested.get(name, 0.0) for one in shown]
        title = f"Requested {name}, as a share of all nodes"
        plots.append(bars(title, labels, shares, [f"{share:.1%}" for share in shares], style=style))
    yield section("Utilisation", side_by_side(plots))
    texts = [format_duration(time) for time in waiting]
    yield section("Waiting times", bars("Waiting, p99", labels, waiting, texts, style=1))
    cpus, memory = figure("stranded_cpus"), figure("stranded_memory")
    plots = [
        bars("Stranded CPUs", labels, cpus, _texts(cpus)),
        bars("Stranded memory", labels, memory, [format_size(round(size)) for size in memory], style=1),
    ]
    for style, name in enumerate(_devices(means), 2):
        amounts = [one.stranded_devices.get(name, 0.0) for one in shown]
        plots.append(bars(f"Stranded {name}", labels, amounts, _texts(amounts), style=style))
    yield section("Stranded resources at peak demand", side_by_side(plots))


def _invalid_table(invalid: Iterable[InvalidCombination]) -> Html:
    return data_table(
        ["Machine", "Configuration", "Error"], ([one.machine, one.configuration, one.error] for one in invalid)
    )


def _resources(means: Means) -> list[str]:
    return list(dict.fromkeys(name for one in means for name in one.requested))


def _devices(means: Means) -> list[str]:
    return list(dict.fromkeys(name for one in means for name in one.stranded_devices))


def _texts(values: Iterable[float]) -> list[str]:
    return [_format_mean(value) for value in values]


def _format_mean(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
