"""The HTML reports of a node, a cluster and a sweep: one file each, which needs no other file and no network.

A report begins with its takeaway and a row of figures. Its sections have charts, which hold at most
``charts.MAX_POINTS`` points each, and tables. Templates escape all text; only the pictures of ``alignup.picture`` are
markup. Only the scripts of charts and of sorting run: a report's policy has their digests.
"""

import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter
from typing import Any

from markupsafe import Markup

from alignup.align.workload.names import CPU, MEMORY
from alignup.picture.machine_svg import draw_parts
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
from alignup.simulate.compared_settings import Comparison
from alignup.simulate.node_report import Timeline, build_timeline
from alignup.simulate.node_simulation import SimulationResult
from alignup.simulate.sweeps import MEAN_FIGURES, Row, combination_means, invalid_combinations
from alignup.simulate.takeaways import cluster_takeaway, comparison_takeaway, node_takeaway, sweep_takeaway
from alignup.simulate.usage import format_amount, format_mean
from alignup.web.charts import Chart, ChartLine, Unit, chart_script, chart_style
from alignup.web.pages import Pages, static_file
from alignup.web.tiles import Tile

_MAX_VARIANTS = 40  #: combinations of settings in a report
_MAX_COMBINATIONS = 200  #: of a sweep, the best first

Results = Sequence[FleetResult]


@cache
def _pages() -> Pages:
    formats = {
        "number": "{:,}".format,
        "decimal": "{:.2f}".format,
        "duration": format_duration,
        "mean": format_mean,
        "percent": "{:.1%}".format,
        "size": partial(format_amount, MEMORY),
        "amount": format_amount,
        "numeric": lambda names: [f"#{name}" for name in names],  # heads of numbers
        "partial": partial,
    }
    return Pages("alignup.simulate", links=(), functions=formats)


@cache
def _style() -> Markup:
    texts = (static_file("pages.css"), chart_style(), _static_file("report.css"))
    return Markup("\n".join(texts))  # noqa: S704 - files of this package


@cache
def _static_file(name: str) -> str:
    return (files(__package__) / "static" / name).read_text("utf-8")


def _scripts(body: str) -> list[Markup]:
    """Return the scripts that a report needs."""
    scripts = [chart_script()] if "<figure data-chart" in body else []
    scripts += [_static_file("sorting.js")] if 'class="sortable"' in body else []
    return [Markup(script) for script in scripts]  # noqa: S704 - files of this package


@cache
def _digest(script: Markup) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _render(template: str, *, title: str, subject: str, takeaway: str, tiles: Iterable[Tile], **context: Any) -> str:  # noqa: ANN401 - of templates
    pages = _pages()
    body = pages.render(template, **context)
    sections = [(id_, Markup(text)) for id_, text in re.findall(r'<h2 id="([\w-]+)-title">(.*?)</h2>', body)]  # noqa: S704 - escaped by the template
    scripts = _scripts(body)
    return pages.render(
        "report.html",
        title=clean(title),
        subject=subject,
        takeaway=takeaway,
        tiles=tiles,
        sections=sections,
        body=Markup(body),  # noqa: S704 - of a template
        style=_style(),
        scripts=scripts,
        policy=Markup(" ".join(map(_digest, scripts)) or "'none'"),  # noqa: S704 - digests
    )


def render_node(
    result: SimulationResult, events: Iterable[WorkloadEvent], *, title: str, comparison: Comparison | None = None
) -> str:
    """Return the report of a simulated node, and of a *comparison* of its settings."""
    charts = _node_charts(build_timeline(result, events)) if result.duration else {}
    topology = result.settings.topology
    return _render(
        "node.html",
        title=title,
        subject=f"policy {topology.policy}, scope {topology.scope}",
        takeaway=comparison_takeaway(result, comparison) if comparison else node_takeaway(result),
        tiles=_node_tiles(result, " as configured" if comparison else ""),
        result=result,
        comparison=comparison,
        shown=comparison.ranked[:_MAX_VARIANTS] if comparison else (),
        max_variants=_MAX_VARIANTS,
        charts_of=charts,
        machine=draw_parts(result.machine, result.peak.ledger).pictures,
    )


def _node_charts(timeline: Timeline) -> dict[str, list[Chart]]:
    """Return the charts of each section."""
    times = _since_start(timeline.times)
    # The last interval ends with the last event.
    starts = _since_start([*timeline.starts, timeline.times[-1]])
    lines = [ChartLine(reason, [*numbers, numbers[-1]]) for reason, numbers in timeline.rejections.items()]
    return {
        "utilization": [
            Chart(
                title=f"{clean(name)}, as a share of what is allocatable",
                times=times,
                series=[ChartLine(name, shares)],
                unit="share",
            )
            for name, shares in timeline.held.items()
        ],
        "running": [
            Chart(title="Admitted pods that run", times=times, series=[ChartLine("running pods", timeline.running)])
        ],
        "rejections": [Chart(title="Rejected pods in each interval", times=starts, series=lines)],
    }


def _node_tiles(result: SimulationResult, which: str) -> list[Tile]:
    total, pods, stranded = len(result.outcomes), result.pods, result.stranded
    tone = "bad" if result.rejected else "good"
    elsewhere = f"{pods.on_several:,} on several, {pods.anywhere:,} with nothing to align"
    devices = pluralize(stranded.all_devices, "device")
    return [
        Tile(f"Admitted{which}", f"{result.admitted:,}", f"of {pluralize(total, 'pod')}"),
        Tile(f"Rejected{which}", f"{result.rejected:,}", f"{result.rejected / total:.1%}" if total else "", tone),
        Tile("On one NUMA node", f"{pods.on_one:,}", elsewhere),
        Tile("Stranded at peak demand", pluralize(stranded.cpus, "CPU"), f"and {devices}"),
        Tile("Duration", format_duration(result.duration), "of workload"),
    ]


def render_cluster(report: FleetReport, *, title: str) -> str:
    """Return the report of a simulated cluster with one or several strategies; *report* has at least one result."""
    results = report.results
    first, times = results[0], _times(results)
    charts = partial(_over_time, results) if len(times) > 1 else None
    reasons = rejection_reasons(results)
    resources = [CPU, MEMORY, *dict.fromkeys(name for result in results for name in result.stranded.devices)]
    return _render(
        "cluster.html",
        title=title,
        subject=", ".join(clean(result.strategy) for result in results),
        takeaway=cluster_takeaway(results),
        tiles=_cluster_tiles(results),
        results=results,
        strategies=[result.strategy for result in results],
        start=min([*times[:1], *(result.stranded.time for result in results)]),
        figures=list(compare_figures(results)),
        utilization=[_requested_over_time(results, resource) for resource in first.use] if charts else [],
        pods=[
            charts("Running pods", lambda _, point: point.running),
            charts("Waiting pods", lambda _, point: point.waiting),
        ]
        if charts
        else [],
        rejections=[charts("Rejections until then", lambda _, point: point.rejections)] if charts and reasons else [],
        reasons=reasons,
        aligned=numa_node_counts(results),
        stranded={resource: [result.stranded.amounts(resource) for result in results] for resource in resources},
    )


def _cluster_tiles(results: Results) -> list[Tile]:
    best = min(results, key=attrgetter("rank"))
    strategy = clean(best.strategy) if len(results) > 1 else ""
    stranded = best.stranded
    return [
        Tile("Started", f"{best.started:,}", ", ".join(filter(None, (f"of {pluralize(best.pods, 'pod')}", strategy)))),
        Tile("Rejections by kubelets", f"{best.rejected:,}", strategy, "bad" if best.rejected else "good"),
        Tile("Waiting, p99", format_duration(best.waiting.p99), f"p50 {format_duration(best.waiting.p50)}"),
        Tile("Stranded at peak demand", f"{stranded.cpus:,} CPUs", f"and {format_size(stranded.memory)} of memory"),
        Tile("Nodes", f"{best.hosts:,}", f"{format_duration(best.duration)} of workload"),
    ]


def _times(results: Results) -> list[float]:
    """Return all times of timelines, from the first creation of a pod to the last event; traces count from any time."""
    return sorted({point.time for result in results for point in result.timeline})


def _since_start(times: Sequence[float]) -> list[float]:
    return [time - times[0] for time in times]


def _over_time(
    results: Results, title: str, value: Callable[[FleetResult, TimelinePoint], float], *, unit: Unit = "count"
) -> Chart:
    """Return a line for each strategy; timelines may have different points: a value lasts until the next point."""
    times = _times(results)
    series = []
    for result in results:
        point_times = [point.time for point in result.timeline]
        values = [0.0, *(value(result, point) for point in result.timeline)]
        series.append(ChartLine(result.strategy, [values[bisect_right(point_times, time)] for time in times]))
    return Chart(title=title, times=_since_start(times), series=series, unit=unit)


def _requested_over_time(results: Results, resource: str) -> Chart:
    def share(result: FleetResult, point: TimelinePoint) -> float:
        allocatable = result.use[resource].allocatable
        return point.requested.get(resource, 0.0) / allocatable if allocatable else 0.0

    return _over_time(results, f"Requested {clean(resource)}, as a share of all nodes", share, unit="share")


def render_sweep(rows: Sequence[Row], *, title: str) -> str:
    """Return the report of a sweep: its combinations, as means over the seeds, the best first."""
    means = sorted(combination_means(rows), key=lambda combination: combination.rank)
    seeds = pluralize(max((combination.seeds for combination in means), default=0), "seed")
    invalid = invalid_combinations(rows)
    devices = list(dict.fromkeys(name for combination in means for name in combination.stranded_devices))
    tiles = [
        Tile("Simulations", f"{len(rows):,}"),
        Tile("Combinations", f"{len(means):,}", f"each the mean of {seeds}"),
        *(
            Tile(
                f"{name.capitalize()}s",
                f"{len(values):,}",
                ", ".join(map(clean, values[:6])) + (" …" if values[6:] else ""),
            )
            for name in ("machine", "configuration")
            for values in [list(dict.fromkeys(row[name] for row in rows))]
        ),
        Tile("Invalid", f"{len(invalid):,}", "the kubelet does not start", "bad" if invalid else "good"),
    ]
    return _render(
        "sweep.html",
        title=title,
        subject=", ".join(clean(name) for name in dict.fromkeys(row["strategy"] for row in rows)),
        takeaway=sweep_takeaway(means),
        tiles=tiles,
        means=means[:_MAX_COMBINATIONS],
        omitted=len(means[_MAX_COMBINATIONS:]),
        highest={name: max(combination.figures[name] for combination in means) for name in MEAN_FIGURES if means},
        highest_devices={
            name: max(combination.stranded_devices.get(name, 0.0) for combination in means) for name in devices
        },
        resources=list(dict.fromkeys(name for combination in means for name in combination.requested)),
        devices=devices,
        invalid=invalid,
    )
