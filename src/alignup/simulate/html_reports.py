"""The HTML reports of a node, a cluster and a sweep: one file each, with plots, which needs no other file.

The templates escape all text; the pictures and plots of ``alignup.picture`` are markup and escape what they contain.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from alignup.align.workload.names import CPU, MEMORY
from alignup.picture.machine_svg import draw_parts
from alignup.picture.plots import (
    ComparedValue,
    Format,
    Series,
    bar_plot,
    format_percent,
    format_plain,
    line_plot,
    stacked_plot,
)
from alignup.picture.svg_elements import Drawable, svg_inline
from alignup.picture.text_format import clean, format_size, pluralize
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
from alignup.simulate.sweeps import CombinationMeans, combination_means, invalid_combinations
from alignup.simulate.usage import format_amount, format_mean
from alignup.web.pages import static_file

_MAX_VARIANTS = 40  #: combinations that are plotted

Results = Sequence[FleetResult]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("alignup.simulate"),
        autoescape=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )


def _render(template: str, title: str, **context: object) -> str:
    style = Markup(static_file("pages.css"))  # noqa: S704 - a file of this package
    return _environment().get_template(template).render(title=title, style=style, **context) + "\n"


def render_node(
    result: SimulationResult, events: Iterable[WorkloadEvent], *, title: str, comparison: Comparison | None = None
) -> str:
    """Return the report of a simulated node, and of a *comparison* of its settings."""
    timeline = build_timeline(result, events)
    utilization = [
        _line_plot(name, timeline.times, [Series("share of what is allocatable", shares, number)], y=format_percent)
        for number, (name, shares) in enumerate(timeline.held.items())
    ]
    rejections = []
    if result.reasons:
        counts = list(result.reasons.values())
        rejections.append(_bars("Rejected pods by reason", list(result.reasons), counts, style=3))
        series = [Series(reason, numbers, style) for style, (reason, numbers) in enumerate(timeline.rejections.items())]
        plot = stacked_plot("Rejected pods over time", timeline.starts, series, x=format_duration)
        rejections.append(_markup(plot, "Rejected pods over time, by reason"))
    running = [Series("running pods", timeline.running, 0)]
    return _render(
        "node.html",
        title,
        summary=_node_summary(result),
        comparison=comparison,
        **_comparison_context(comparison) if comparison else {},
        utilization_plots=utilization if timeline.times else [],
        running_plot=_line_plot("Admitted pods that run", timeline.times, running) if timeline.times else None,
        rejection_plots=rejections,
        usage_rows=_usage_rows(result),
        machine=map(Markup, draw_parts(result.machine, result.peak.ledger).pictures),
    )


def _node_summary(result: SimulationResult) -> list[tuple[str, str]]:
    topology, pods = result.settings.topology, result.pods
    stranded = [pluralize(result.stranded.cpus, "CPU")] if result.stranded.cpus else []
    stranded += [f"{number} {name}" for name, number in result.stranded.devices.items() if number]
    aligned = f"{pods.on_one} on one NUMA node, {pods.on_several} on several, {pods.anywhere} with nothing to align"
    return [
        ("Policy", f"{topology.policy}, scope {topology.scope}"),
        ("Pods", f"{len(result.outcomes)}: {result.admitted} admitted, {result.rejected} rejected"),
        ("Admitted", aligned),
        ("Stranded at peak demand", ", ".join(stranded) or "nothing"),
        ("Duration", format_duration(result.duration)),
    ]


def _comparison_context(comparison: Comparison) -> dict[str, object]:
    shown = comparison.ranked[:_MAX_VARIANTS]
    labels = [" ".join(ranked.variant.choices.values()) for ranked in shown]
    scores = [ranked.score for ranked in shown]
    rows = []
    for ranked in shown:
        score = ranked.score
        numbers = (score.admitted, score.rejected, score.pods.on_one, score.stranded.cpus, score.stranded.all_devices)
        reasons = ", ".join(f"{number} {reason}" for reason, number in score.reasons.items())
        rows.append([ranked.rank, *ranked.variant.choices.values(), *numbers, reasons])
    dimensions = list(shown[0].variant.choices) if shown else []
    figures = ["Admitted", "Rejected", "One NUMA node", "Stranded CPUs", "Stranded devices", "Reasons"]
    return {
        "max_variants": _MAX_VARIANTS,
        "comparison_plots": [
            _bars("Admitted pods", labels, [score.admitted for score in scores]),
            _bars("Pods on one NUMA node", labels, [score.pods.on_one for score in scores], style=2),
            _bars("Stranded CPUs at peak demand", labels, [score.stranded.cpus for score in scores], style=1),
        ],
        "comparison_heads": ["Rank", *dimensions, *figures],
        "comparison_rows": rows,
    }


def _usage_rows(result: SimulationResult) -> list[list[str]]:
    rows = []
    for node, stats in result.nodes.items():
        for resource, use in stats.items():
            amounts = [format_amount(resource, amount) for amount in (use.total, use.mean, use.peak, use.end)]
            share = f"{100 * use.mean / use.total:.0f} %" if use.total else ""
            rows.append([f"NUMA node {node}", resource, *amounts, share])
    return rows


def render_cluster(report: FleetReport, *, title: str) -> str:
    """Return the report of a simulated cluster with one or several strategies; *report* has at least one result."""
    results = report.results
    first, strategies = results[0], [result.strategy for result in results]
    times = _times(results)
    has_timeline = len(times) > 1
    start = min([*times[:1], *(result.stranded.time for result in results)])
    waiting = [result.waiting for result in results]
    group_heads = ["Group", "Nodes"]
    for strategy in strategies:
        suffix = f", {strategy}" if len(results) > 1 else ""
        group_heads += [f"Started{suffix}", f"Rejections{suffix}"]
    return _render(
        "cluster.html",
        title,
        summary=[
            ("Pods", f"{first.pods:,}"),
            ("Nodes", f"{first.hosts:,}"),
            ("Strategies" if len(results) > 1 else "Strategy", ", ".join(strategies)),
            ("Duration", format_duration(first.duration)),
        ],
        strategies=strategies,
        figures=[[name, *values] for name, values in compare_figures(results)],
        has_timeline=has_timeline,
        utilization_plots=[_requested_over_time(results, resource) for resource in first.use] if has_timeline else [],
        use_rows=[
            [resource, result.strategy, *_use_cells(resource, result)] for resource in first.use for result in results
        ],
        pod_plots=[
            _over_time("Running pods", results, lambda _, point: point.running),
            _over_time("Waiting pods", results, lambda _, point: point.waiting),
        ]
        if has_timeline
        else [],
        rejection_plots=_rejection_plots(results),
        rejection_rows=[
            *(
                [reason, *(f"{result.rejections.get(reason, 0):,}" for result in results)]
                for reason in rejection_reasons(results)
            ),
            ["rejected pods", *(f"{result.rejected_pods:,}" for result in results)],
        ],
        waiting_plots=[
            _bars("Waiting, p50", strategies, [times.p50 for times in waiting], format_duration, style=2),
            _bars("Waiting, p99", strategies, [times.p99 for times in waiting], format_duration, style=1),
        ],
        waiting_rows=[
            [strategy, *map(format_duration, (times.mean, times.p50, times.p90, times.p99, times.max))]
            for strategy, times in zip(strategies, waiting, strict=True)
        ],
        alignment_plots=_alignment_plots(results),
        **_stranded_context(results),
        peak_rows=[
            [result.strategy, f"{result.stranded.more:,}", format_duration(result.stranded.time - start)]
            for result in results
        ],
        group_heads=group_heads,
        group_rows=[_group_row(results, place) for place in range(len(first.groups))],
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


def _use_cells(resource: str, result: FleetResult) -> list[str]:
    use = result.use[resource]
    amounts = [format_amount(resource, amount) for amount in (use.allocatable, use.mean, use.peak)]
    return [*amounts, f"{use.share:.1%}"]


def _rejection_plots(results: Results) -> list[Markup]:
    """Plot rejections by reason and strategy, and over time; pods that are created again count every time."""
    counts = {
        reason if len(results) == 1 else f"{reason}, {result.strategy}": result.rejections.get(reason, 0)
        for reason in rejection_reasons(results)
        for result in results
    }
    if not counts:
        return []
    plots = [_bars("Rejections by kubelets", list(counts), list(counts.values()), "{:,}".format, style=3)]
    if len(_times(results)) > 1:
        plots.append(_over_time("Rejections until then", results, lambda _, point: point.rejections))
    return plots


def _alignment_plots(results: Results) -> list[Markup]:
    strategies = [result.strategy for result in results]
    alignments = [result.alignment for result in results]
    plots = []
    for style, (count, name) in enumerate(numa_node_counts(results).items()):
        pods = [alignment.pods_by_numa_nodes.get(count, 0) for alignment in alignments]
        plots.append(_bars(name[:1].upper() + name[1:], strategies, pods, "{:,}".format, style=style))
    title = "Mean distance between the NUMA nodes of a pod (10 is local)"
    distances = [alignment.mean_distance for alignment in alignments]
    return [*plots, _bars(title, strategies, distances, "{:.2f}".format)]


def _stranded_context(results: Results) -> dict[str, object]:
    plots, rows = [], []
    devices = dict.fromkeys(name for result in results for name in result.stranded.devices)
    strategies = [result.strategy for result in results]
    for style, resource in enumerate((CPU, MEMORY, *devices)):
        stranded = [result.stranded.amounts(resource) for result in results]
        text = partial(format_amount, resource)
        plots.append(_bars(f"Stranded {resource}", strategies, [amount for amount, _ in stranded], text, style=style))
        rows += [
            [resource, strategy, text(amount), text(free)]
            for strategy, (amount, free) in zip(strategies, stranded, strict=True)
        ]
    return {"stranded_plots": plots, "stranded_rows": rows}


def _group_row(results: Results, place: int) -> list[str]:
    group = results[0].groups[place]
    uses = [result.groups[place] for result in results]
    return [
        group.name,
        f"{group.hosts:,}",
        *(f"{number:,}" for use in uses for number in (use.started, use.rejections)),
    ]


def render_sweep(rows: Sequence[Row], *, title: str) -> str:
    """Return the report of a sweep: its combinations, as means over the seeds."""
    means = combination_means(rows)
    seeds = pluralize(max((combination.seeds for combination in means), default=0), "seed")
    columns = {"Machines": "machine", "Configurations": "configuration", "Strategies": "strategy"}
    distinct = {name: ", ".join(dict.fromkeys(row[column] for row in rows)) for name, column in columns.items()}
    resources = list(dict.fromkeys(name for combination in means for name in combination.requested))
    devices = list(dict.fromkeys(name for combination in means for name in combination.stranded_devices))
    heads = ["Machine", "Configuration", "Strategy", "Started", "Failed", "Never started", "Rejections"]
    heads += ["Waiting p50", "Waiting p99", *(f"Requested {name}" for name in resources)]
    heads += ["Mean distance", "Stranded CPUs", "Stranded memory", *(f"Stranded {name}" for name in devices)]
    return _render(
        "sweep.html",
        title,
        summary=[
            ("Simulations", f"{len(rows):,}"),
            ("Combinations", f"{len(means):,}, each the mean of {seeds}"),
            *distinct.items(),
        ],
        combination_heads=heads,
        combination_rows=[_combination_row(combination, resources, devices) for combination in means],
        **_sweep_plots(means[:_MAX_VARIANTS], resources, devices),
        invalid=invalid_combinations(rows),
    )


def _combination_row(means: CombinationMeans, resources: Sequence[str], devices: Sequence[str]) -> list[str]:
    figures = means.figures
    return [
        *means.names,
        *(format_mean(figures[name]) for name in ("started", "failed", "pending", "rejections")),
        *(format_duration(figures[name]) for name in ("waiting_p50", "waiting_p99")),
        *(f"{means.requested.get(name, 0.0):.1%}" for name in resources),
        f"{figures['mean_distance']:.2f}",
        format_mean(figures["stranded_cpus"]),
        format_size(round(figures["stranded_memory"])),
        *(format_amount(name, means.stranded_devices.get(name, 0.0)) for name in devices),
    ]


def _sweep_plots(
    means: Sequence[CombinationMeans], resources: Sequence[str], devices: Sequence[str]
) -> dict[str, object]:
    if not means:
        return {"plotted": 0}
    # Labels have only the names in which combinations differ.
    differing = [place for place in range(3) if len({combination.names[place] for combination in means}) > 1] or [2]
    labels = [", ".join(combination.names[place] for place in differing) for combination in means]

    def bars(title: str, figure: str, text: Format = format_mean, *, style: int = 0) -> Markup:
        return _bars(title, labels, [combination.figures[figure] for combination in means], text, style=style)

    utilization = [
        _bars(
            f"Requested {name}, as a share of all nodes",
            labels,
            [combination.requested.get(name, 0.0) for combination in means],
            "{:.1%}".format,
            style=style,
        )
        for style, name in enumerate(resources)
    ]
    stranded_devices = [
        _bars(
            f"Stranded {name}",
            labels,
            [combination.stranded_devices.get(name, 0.0) for combination in means],
            format_mean,
            style=style,
        )
        for style, name in enumerate(devices, 2)
    ]
    return {
        "plotted": len(means),
        "rejection_plot": bars("Rejections by kubelets", "rejections", style=3),
        "utilization_plots": utilization,
        "waiting_plot": bars("Waiting, p99", "waiting_p99", format_duration, style=1),
        "stranded_plots": [
            bars("Stranded CPUs", "stranded_cpus"),
            bars("Stranded memory", "stranded_memory", lambda size: format_size(round(size)), style=1),
            *stranded_devices,
        ],
    }


def _markup(drawn: Drawable, name: str) -> Markup:
    """Return a plot; *name* is its text for screen readers."""
    return Markup(svg_inline(drawn, clean(name)))  # noqa: S704 - pictures escape what they contain


def _bars(title: str, labels: Sequence[str], values: Sequence[float], text: Format = str, *, style: int = 0) -> Markup:
    """Plot a bar for each label; *text* formats a value for people."""
    compared = [ComparedValue(label, value, text(value)) for label, value in zip(labels, values, strict=True)]
    return _markup(bar_plot(clean(title), compared, style=style), title)


def _line_plot(
    title: str, times: Sequence[float], series: Sequence[Series], *, y: Format = format_plain, name: str = ""
) -> Markup:
    plot = line_plot(clean(title), times, series, x=format_duration, y=y)
    return _markup(plot, name or f"{title} over time")
