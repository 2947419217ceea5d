"""A simulation, or a comparison of settings, as one HTML file with plots, which needs nothing else."""

from collections.abc import Iterable, Iterator

from alignup.picture.machine_svg import draw_parts
from alignup.picture.plots import ComparedValue, Series, bar_plot, format_percent, line_plot, stacked_plot
from alignup.picture.svg_elements import svg_inline
from alignup.picture.text_format import clean, pluralize
from alignup.simulate.arrivals import WorkloadEvent, format_duration
from alignup.simulate.compare import Comparison
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.report_page import data_table, facts, figure, format_amount, page, section
from alignup.simulate.timeline import build_timeline
from alignup.web.pages.html import Content, Html, element, trusted

_MAX_VARIANTS = 40  #: combinations that are plotted


def render(
    result: SimulationResult, events: Iterable[WorkloadEvent], *, title: str, comparison: Comparison | None = None
) -> str:
    """The file."""
    return page(
        title,
        _summary(result),
        *([] if comparison is None else [_comparison(comparison)]),
        *_plots(result, events),
        section("Use of each NUMA node", _usage(result)),
        section("The node at peak demand", _machine(result)),
    )


def _summary(result: SimulationResult) -> Html:
    topology, pods = result.settings.topology, result.pods
    stranded = [pluralize(result.stranded.cpus, "CPU")] if result.stranded.cpus else []
    stranded += [f"{number} {clean(name)}" for name, number in result.stranded.devices.items() if number]
    pairs = [
        ("Policy", f"{topology.policy}, scope {topology.scope}"),
        ("Pods", f"{len(result.outcomes)}: {result.admitted} admitted, {result.rejected} rejected"),
        (
            "Admitted",
            f"{pods.on_one} on one NUMA node, {pods.on_several} on several, {pods.anywhere} with nothing to align",
        ),
        ("Stranded at peak demand", ", ".join(stranded) or "nothing"),
        ("Duration", format_duration(result.duration)),
    ]
    return facts(pairs)


def _plots(result: SimulationResult, events: Iterable[WorkloadEvent]) -> Iterator[Html]:
    timeline = build_timeline(result, events)
    if timeline.times and timeline.held:
        plots = []
        for number, (name, values) in enumerate(timeline.held.items()):
            line = Series("share of what is allocatable", values, number)
            drawn = line_plot(clean(name), timeline.times, [line], x=format_duration, y=format_percent)
            plots.append(trusted(svg_inline(drawn, f"Utilisation of {clean(name)} over time")))
        yield section("Utilisation over time", element("div", plots, class_="machine"))
        running = [Series("running pods", timeline.running, 0)]
        drawn = line_plot("Admitted pods that run", timeline.times, running, x=format_duration)
        yield section("Running pods", figure(drawn, "Running pods over time"))
    if result.reasons:
        counts = [ComparedValue(reason, number, str(number)) for reason, number in result.reasons.items()]
        parts = [figure(bar_plot("Rejected pods by reason", counts, style=3), "Rejected pods by reason")]
        series = [Series(reason, own, number) for number, (reason, own) in enumerate(timeline.rejections.items())]
        drawn = stacked_plot("Rejected pods over time", timeline.starts, series, x=format_duration)
        yield section("Rejections", [*parts, figure(drawn, "Rejected pods over time, by reason")])


def _comparison(comparison: Comparison) -> Html:
    shown = comparison.ranked[:_MAX_VARIANTS]
    labels = [" ".join(one.variant.choices.values()) for one in shown]
    plots: list[Content] = []
    for title, style, values in (
        ("Admitted pods", 0, [one.score.admitted for one in shown]),
        ("Pods on one NUMA node", 2, [one.score.pods.on_one for one in shown]),
        ("Stranded CPUs at peak demand", 1, [one.score.stranded.cpus for one in shown]),
    ):
        bars = [ComparedValue(label, value, str(value)) for label, value in zip(labels, values, strict=True)]
        plots.append(figure(bar_plot(title, bars, style=style), f"{title} of each combination"))
    names = list(shown[0].variant.choices) if shown else []
    heads = ["Rank", *names, "Admitted", "Rejected", "One NUMA node", "Stranded CPUs", "Stranded devices", "Reasons"]
    rows = []
    for one in shown:
        score = one.score
        reasons = ", ".join(f"{number} {reason}" for reason, number in score.reasons.items())
        numbers = (score.admitted, score.rejected, score.pods.on_one, score.stranded.cpus, score.stranded.all_devices)
        rows.append([str(one.rank), *one.variant.choices.values(), *map(str, numbers), reasons])
    more = len(comparison.ranked) - len(shown)
    note = element("p", f"and {more} more combinations", class_="empty") if more else None
    invalid = [element("li", f"{one.label}: {one.error}") for one in comparison.invalid[:_MAX_VARIANTS]]
    broken = [element("h3", "The kubelet does not start with"), element("ul", invalid)] if invalid else []
    return section("Comparison of settings", [plots, data_table(heads, rows), note, broken])


def _usage(result: SimulationResult) -> Content:
    rows = []
    for node, uses in result.nodes.items():
        for resource, use in uses.items():
            amounts = [format_amount(resource, amount) for amount in (use.total, use.mean, use.peak, use.end)]
            share = f"{100 * use.mean / use.total:.0f} %" if use.total else ""
            rows.append([f"NUMA node {node}", resource, *amounts, share])
    if not rows:
        return element("p", "No manager allocates per NUMA node with these settings.", class_="empty")
    return data_table(["", "Resource", "Allocatable", "Mean", "Peak", "End", "Mean share"], rows)


def _machine(result: SimulationResult) -> Content:
    parts = draw_parts(result.machine, result.peak.ledger)
    return element("div", map(trusted, parts.pictures), class_="machine")
