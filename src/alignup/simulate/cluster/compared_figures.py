"""The figures of cluster simulations as text for people, side by side."""

from collections.abc import Iterator, Sequence

from alignup.align.workload.names import CPU, MEMORY
from alignup.picture.text_format import clean, format_size, pluralize
from alignup.simulate.arrivals import format_duration
from alignup.simulate.cluster.result_documents import FleetResult


def compare_figures(results: Sequence[FleetResult]) -> Iterator[tuple[str, list[str]]]:
    """The name of each figure, and its value in each result."""
    yield "started", [f"{one.started:,}" for one in results]
    yield "failed: rejected too often", [f"{one.failed:,}" for one in results]
    yield "never started", [f"{one.pending:,}" for one in results]
    yield "rejections by kubelets", [f"{one.rejected:,}" for one in results]
    for name in ("p50", "p99", "max"):
        times = [getattr(one.waiting, name) for one in results]
        yield f"waiting, {name}", [format_duration(time) for time in times]
    for resource in results[0].use:
        shares = [one.use[resource].share for one in results]
        yield f"requested, {clean(resource)}", [f"{share:.1%}" for share in shares]
    for count, name in numa_node_counts(results).items():
        yield name, [f"{one.alignment.pods_by_numa_nodes.get(count, 0):,}" for one in results]
    yield "mean distance", [f"{one.alignment.mean_distance:.2f}" for one in results]
    yield f"stranded {CPU}s", [f"{one.stranded.cpus:,}" for one in results]
    yield f"stranded {MEMORY}", [format_size(one.stranded.memory) for one in results]
    for resource in results[0].stranded.devices:
        yield f"stranded {clean(resource)}", [f"{one.stranded.devices.get(resource, 0):,}" for one in results]


def numa_node_counts(results: Sequence[FleetResult]) -> dict[str, str]:
    """On how many NUMA nodes pods of any result are, as in its document, with a name for people."""
    counts = {count for one in results for count in one.alignment.pods_by_numa_nodes}
    return {
        count: f"pods on {pluralize(int(count), 'NUMA node')}" if int(count) else "pods with nothing to align"
        for count in sorted(counts, key=int)
    }


def rejection_reasons(results: Sequence[FleetResult]) -> tuple[str, ...]:
    """Why kubelets rejected pods, in any result."""
    return tuple(dict.fromkeys(reason for one in results for reason in one.rejections))
