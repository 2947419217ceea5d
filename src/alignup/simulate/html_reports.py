"""The HTML reports of a node, a cluster and a sweep: one file each, with plots, which needs no other file.

Plots over time are made here, bars, tables and texts by the templates, which escape all text; the pictures and plots
of ``alignup.picture`` are markup and escape what they contain.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from alignup.align.workload.names import CPU, MEMORY
from alignup.picture.machine_svg import draw_parts
from alignup.picture.plots import (
    Format,
    Series,
    bar_plot,
    format_percent,
    format_plain,
    line_plot,
    stacked_plot,
)
from alignup.picture.svg_elements import Drawable, svg_inline
from alignup.picture.text_format import clean, pluralize
from alignup.simulate.arrivals import WorkloadEvent, format_duration
from alignup.simulate.cluster_result import (
    FleetReport,
    FleetResult,
    TimelinePoint,
    compare_figures,
    numa_node_counts,
    rejection_reasons,
)
from alignup.simulate.compare import Comparison
from alignup.simulate.executors import Row
from alignup.simulate.node_report import build_timeline
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.sweeps import combination_means, invalid_combinations
from alignup.simulate.usage import format_amount, format_mean
from alignup.web.pages import static_file

_MAX_VARIANTS = 40  #: combinations that are plotted

Results = Sequence[FleetResult]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("alignup.simulate"),
        autoescape=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    formats = {
        "number": "{:,}".format,
        "decimal": "{:.2f}".format,
        "duration": format_duration,
        "mean": format_mean,
        "percent": "{:.1%}".format,
        "size": partial(format_amount, MEMORY),
    }
    environment.filters |= formats
    environment.globals |= {**formats, "amount": format_amount, "bars": _bars, "partial": partial}
    return environment


def _render(template: str, title: str, **context: object) -> str:
    style = Markup(static_file("pages.css"))  # noqa: S704 - a file of this package
    return _environment().get_template(template).render(title=title, style=style, **context) + "\n"


def render_node(
    result: SimulationResult, events: Iterable[WorkloadEvent], *, title: str, comparison: Comparison | None = None
) -> str:
    """Return the report of a simulated node, and of a *comparison* of its settings."""
    timeline = build_timeline(result, events)
    over_time = [
        _line_plot(name, timeline.times, [Series("share of what is allocatable", shares, number)], y=format_percent)
        for number, (name, shares) in enumerate(timeline.held.items())
    ]
    over_time.append(_line_plot("Admitted pods that run", timeline.times, [Series("running pods", timeline.running)]))
    series = [Series(reason, numbers, style) for style, (reason, numbers) in enumerate(timeline.rejections.items())]
    shown = comparison.ranked[:_MAX_VARIANTS] if comparison else ()
    rejections = stacked_plot("Rejected pods over time", timeline.starts, series, x=format_duration)
    return _render(
        "node.html",
        title,
        result=result,
        comparison=comparison,
        max_variants=_MAX_VARIANTS,
        shown=shown,
        labels=[" ".join(ranked.variant.choices.values()) for ranked in shown],
        over_time=over_time if timeline.times else [],
        rejections=_markup(rejections, "Rejected pods over time, by reason"),
        machine=map(Markup, draw_parts(result.machine, result.peak.ledger).pictures),
    )


def render_cluster(report: FleetReport, *, title: str) -> str:
    """Return the report of a simulated cluster with one or several strategies; *report* has at least one result."""
    results = report.results
    strategies = [result.strategy for result in results]
    times = _times(results)
    over_time = []
    if len(times) > 1:
        over_time = [
            _over_time("Running pods", results, lambda _, point: point.running),
            _over_time("Waiting pods", results, lambda _, point: point.waiting),
        ]
    aligned = [
        (name[:1].upper() + name[1:], [result.alignment.pods_by_numa_nodes.get(count, 0) for result in results])
        for count, name in numa_node_counts(results).items()
    ]
    stranded = [CPU, MEMORY, *dict.fromkeys(name for result in results for name in result.stranded.devices)]
    return _render(
        "cluster.html",
        title,
        results=results,
        strategies=strategies,
        start=min([*times[:1], *(result.stranded.time for result in results)]),
        figures=[[name, *values] for name, values in compare_figures(results)],
        utilization_plots=[_requested_over_time(results, resource) for resource in results[0].use] if over_time else [],
        pod_plots=over_time,
        rejection_plots=_rejection_plots(results),
        reasons=rejection_reasons(results),
        aligned=aligned,
        stranded={resource: [result.stranded.amounts(resource) for result in results] for resource in stranded},
    )


def _times(results: Results) -> list[float]:
    """Return all times of timelines, from the first creation of a pod to the last; traces count from any time."""
    return sorted({point.time for result in results for point in result.timeline})


def _over_time(
    title: str, results: Results, value: Callable[[FleetResult, TimelinePoint], float], *, y: Format = format_plain
) -> Markup:
    """Plot a line for each strategy; timelines may have different points: a value lasts until the next point."""
    times = _times(results)
    series = []
    for number, result in enumerate(results):
        point_times = [point.time for point in result.timeline]
        values = [0.0, *(value(result, point) for point in result.timeline)]
        series.append(Series(result.strategy, [values[bisect_right(point_times, time)] for time in times], number))
    return _line_plot(title, [time - times[0] for time in times], series, y=y, name=f"{title}, over time")


def _requested_over_time(results: Results, resource: str) -> Markup:
    def share(result: FleetResult, point: TimelinePoint) -> float:
        allocatable = result.use[resource].allocatable
        return point.requested.get(resource, 0.0) / allocatable if allocatable else 0.0

    return _over_time(f"Requested {resource}, as a share of all nodes", results, share, y=format_percent)


def _rejection_plots(results: Results) -> list[Markup]:
    """Plot rejections by reason and strategy, and over time; pods that are created again count every time."""
    counts = {
        reason if len(results) == 1 else f"{reason}, {result.strategy}": result.rejections.get(reason, 0)
        for reason in rejection_reasons(results)
        for result in results
    }
    if not counts:
        return []
    plots = [_bars(list(counts), "Rejections by kubelets", list(counts.values()), "{:,}".format, style=3)]
    if len(_times(results)) > 1:
        plots.append(_over_time("Rejections until then", results, lambda _, point: point.rejections))
    return plots


def render_sweep(rows: Sequence[Row], *, title: str) -> str:
    """Return the report of a sweep: its combinations, as means over the seeds."""
    means = combination_means(rows)
    plotted = means[:_MAX_VARIANTS]
    resources = dict.fromkeys(name for combination in means for name in combination.requested)
    devices = dict.fromkeys(name for combination in means for name in combination.stranded_devices)
    # Labels have only the names in which combinations differ.
    differing = [place for place in range(3) if len({combination.names[place] for combination in plotted}) > 1] or [2]
    return _render(
        "sweep.html",
        title,
        rows=rows,
        means=means,
        seeds=pluralize(max((combination.seeds for combination in means), default=0), "seed"),
        plotted=plotted,
        labels=[", ".join(combination.names[place] for place in differing) for combination in plotted],
        requested={name: [combination.requested.get(name, 0.0) for combination in means] for name in resources},
        devices={name: [combination.stranded_devices.get(name, 0.0) for combination in means] for name in devices},
        invalid=invalid_combinations(rows),
    )


def _markup(drawn: Drawable, name: str) -> Markup:
    """Return a plot; *name* is its text for screen readers."""
    return Markup(svg_inline(drawn, clean(name)))  # noqa: S704 - pictures escape what they contain


def _bars(labels: Sequence[str], title: str, values: Iterable[float], text: Format = str, *, style: int = 0) -> Markup:
    """Plot a bar for each label; *text* formats a value for people."""
    return _markup(bar_plot(clean(title), labels, list(values), text=text, style=style), title)


def _line_plot(
    title: str, times: Sequence[float], series: Sequence[Series], *, y: Format = format_plain, name: str = ""
) -> Markup:
    plot = line_plot(clean(title), times, series, x=format_duration, y=y)
    return _markup(plot, name or f"{title} over time")
