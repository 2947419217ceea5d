"""Simulations of a cluster with one or several strategies as one HTML file with plots, which needs nothing else."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from alignup.align.workload.names import CPU, MEMORY
from alignup.picture.plots import Format, Series, format_percent, format_plain, line_plot
from alignup.picture.text_format import clean
from alignup.simulate.arrivals import format_duration
from alignup.simulate.cluster.compared_figures import compare_figures, numa_node_counts, rejection_reasons
from alignup.simulate.cluster.result_documents import FleetReport, FleetResult, TimelinePoint
from alignup.simulate.report_page import bars, data_table, facts, figure, format_amount, page, section, side_by_side
from alignup.web.pages.html import Content, Html, element

Results = Sequence[FleetResult]


def render(report: FleetReport, *, title: str) -> str:
    """The file; *report* has at least one result."""
    results = report.results
    first = results[0]
    pairs = (
        ("Pods", f"{first.pods:,}"),
        ("Nodes", f"{first.hosts:,}"),
        ("Strategies" if len(results) > 1 else "Strategy", ", ".join(one.strategy for one in results)),
        ("Duration", format_duration(first.duration)),
    )
    rows = [[name, *values] for name, values in compare_figures(results)]
    return page(
        title,
        facts(pairs),
        section("Figures", data_table(["", *_names(results)], rows, row_heads=True)),
        section("Utilisation", _timelines(results), _use_table(results)),
        section("Running and waiting pods", *_pods_over_time(results)),
        section("Rejections", *_rejections(results)),
        section("Waiting times", *_waiting(results)),
        section("Alignment", _alignment(results)),
        section("Stranded resources at peak demand", *_stranded(results)),
        section("Groups of nodes", _groups(results)),
    )


def _names(results: Results) -> list[str]:
    return [one.strategy for one in results]


def _over_time(
    title: str, results: Results, value: Callable[[FleetResult, TimelinePoint], float], *, y: Format = format_plain
) -> Html:
    """A line for each strategy. Points of different times are possible: a value lasts until the next point."""
    times = _times(results)
    lines = []
    for number, one in enumerate(results):
        own = [point.time for point in one.timeline]
        values = [value(one, point) for point in one.timeline]
        places = [bisect_right(own, time) for time in times]
        lines.append(Series(one.strategy, [values[place - 1] if place else 0.0 for place in places], number))
    since_start = [time - times[0] for time in times]
    drawn = line_plot(clean(title), since_start, lines, x=format_duration, y=y)
    return figure(drawn, f"{clean(title)}, over time")


def _times(results: Results) -> list[float]:
    """From the first creation of a pod to the last; traces count from any time."""
    return sorted({point.time for one in results for point in one.timeline})


def _has_timeline(results: Results) -> bool:
    return len(_times(results)) > 1


def _timelines(results: Results) -> Content:
    if not _has_timeline(results):
        return None
    plots = []
    for resource in results[0].use:

        def share(result: FleetResult, point: TimelinePoint, resource: str = resource) -> float:
            allocatable = result.use[resource].allocatable
            return point.requested.get(resource, 0.0) / allocatable if allocatable else 0.0

        plots.append(_over_time(f"Requested {resource}, as a share of all nodes", results, share, y=format_percent))
    return [element("p", "From the first creation of a pod to the last.", class_="empty"), side_by_side(plots)]


def _use_table(results: Results) -> Html:
    rows = []
    for resource in results[0].use:
        for one in results:
            use = one.use[resource]
            amounts = [format_amount(resource, amount) for amount in (use.allocatable, use.mean, use.peak)]
            rows.append([resource, one.strategy, *amounts, f"{use.share:.1%}"])
    return data_table(["Resource", "Strategy", "Allocatable", "Mean", "Peak", "Mean share"], rows, row_heads=True)


def _pods_over_time(results: Results) -> Iterator[Html]:
    if not _has_timeline(results):
        yield element("p", "All pods are created at the same time.", class_="empty")
        return
    running = _over_time("Running pods", results, lambda _, point: point.running)
    yield side_by_side([running, _over_time("Waiting pods", results, lambda _, point: point.waiting)])


def _rejections(results: Results) -> Iterator[Html]:
    """By reason and by strategy; pods that are created again count every time."""
    reasons = rejection_reasons(results)
    if not reasons:
        yield element("p", "No kubelet rejected a pod.", class_="empty")
        return
    counts = {
        reason if len(results) == 1 else f"{reason}, {one.strategy}": one.rejections.get(reason, 0)
        for reason in reasons
        for one in results
    }
    numbers = list(counts.values())
    plots = [bars("Rejections by kubelets", list(counts), numbers, [f"{number:,}" for number in numbers], style=3)]
    if _has_timeline(results):
        plots.append(_over_time("Rejections until then", results, lambda _, point: point.rejections))
    yield side_by_side(plots)
    rows = [[reason, *(f"{one.rejections.get(reason, 0):,}" for one in results)] for reason in reasons]
    rows.append(["rejected pods", *(f"{one.rejected_pods:,}" for one in results)])
    yield data_table(["Reason", *_names(results)], rows, row_heads=True)
    yield element("p", "Pods that are created again count every time, except as rejected pods.", class_="empty")


def _waiting(results: Results) -> Iterator[Html]:
    plots = []
    for name, style in (("p50", 2), ("p99", 1)):
        times = [getattr(one.waiting, name) for one in results]
        texts = [format_duration(time) for time in times]
        plots.append(bars(f"Waiting, {name}", _names(results), times, texts, style=style))
    yield side_by_side(plots)
    rows = []
    for one in results:
        own = one.waiting
        rows.append([one.strategy, *(format_duration(time) for time in (own.mean, own.p50, own.p90, own.p99, own.max))])
    yield data_table(["Strategy", "Mean", "p50", "p90", "p99", "Longest"], rows, row_heads=True)


def _alignment(results: Results) -> Html:
    plots = []
    for number, (count, name) in enumerate(numa_node_counts(results).items()):
        pods = [one.alignment.pods_by_numa_nodes.get(count, 0) for one in results]
        title = name[:1].upper() + name[1:]
        plots.append(bars(title, _names(results), pods, [f"{each:,}" for each in pods], style=number))
    distances = [one.alignment.mean_distance for one in results]
    texts = [f"{distance:.2f}" for distance in distances]
    title = "Mean distance between the NUMA nodes of a pod (10 is local)"
    return side_by_side([*plots, bars(title, _names(results), distances, texts)])


def _stranded(results: Results) -> Iterator[Html]:
    plots, rows = [], []
    for style, resource in enumerate((CPU, MEMORY, *_devices(results))):
        pairs = [_stranded_and_free(one, resource) for one in results]
        amounts = [stranded for stranded, _ in pairs]
        texts = [format_amount(resource, amount) for amount in amounts]
        plots.append(bars(f"Stranded {resource}", _names(results), amounts, texts, style=style))
        rows += [
            [resource, one.strategy, text, format_amount(resource, free)]
            for one, text, (_, free) in zip(results, texts, pairs, strict=True)
        ]
    yield side_by_side(plots)
    yield data_table(["Resource", "Strategy", "Stranded", "Free"], rows, row_heads=True)
    start = min([*_times(results)[:1], *(one.stranded.time for one in results)])
    more = [[one.strategy, f"{one.stranded.more:,}", format_duration(one.stranded.time - start)] for one in results]
    yield data_table(["Strategy", "Pods that still fit", "Peak demand after"], more, row_heads=True)


def _devices(results: Results) -> list[str]:
    return list(dict.fromkeys(name for one in results for name in one.stranded.devices))


def _stranded_and_free(result: FleetResult, resource: str) -> tuple[int, int]:
    totals = result.stranded
    if resource == CPU:
        return totals.cpus, totals.free_cpus
    if resource == MEMORY:
        return totals.memory, totals.free_memory
    return totals.devices.get(resource, 0), totals.free_devices.get(resource, 0)


def _groups(results: Results) -> Html:
    heads = ["Group", "Nodes"]
    for one in results:
        own = f", {one.strategy}" if len(results) > 1 else ""
        heads += [f"Started{own}", f"Rejections{own}"]
    rows = []
    for place, group in enumerate(results[0].groups):
        figures = [(one.groups[place].started, one.groups[place].rejections) for one in results]
        rows.append([group.name, f"{group.hosts:,}", *(f"{number:,}" for pair in figures for number in pair)])
    return data_table(heads, rows, row_heads=True)
