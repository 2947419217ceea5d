"""The result of a cluster simulation: its document, its figures as text, and a table of its pods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from alignup.align.workload.names import CPU, MEMORY
from alignup.documents.codec import Count, Document
from alignup.picture.text_format import clean, format_size, pluralize
from alignup.simulate.arrivals import PodSubmission, format_duration
from alignup.simulate.device_connections import NO_CONNECTIONS, ConnectionCounts, figures
from alignup.simulate.simulated_claims import NO_CLAIMS, ClaimCounts

POD_COLUMNS = ("created", "namespace", "name", "priority", "gang", "outcome", "node", "started", "waited", "rejections")
VERSION = 2  #: of the document; incremented when a field changes its meaning or is removed

Seconds = Annotated[float, Meta(ge=0)]


class WaitingTimes(Document, frozen=True, kw_only=True):
    """Seconds from the creation of pods to their admission, or to the last event for those that never start."""

    mean: Seconds = 0.0
    p50: Seconds = 0.0
    p90: Seconds = 0.0
    p99: Seconds = 0.0
    max: Seconds = 0.0


class ResourceUse(Document, frozen=True, kw_only=True):
    """The amount of a resource that running pods request: CPUs, bytes, or devices."""

    allocatable: float
    mean: float  #: over time, from the first creation of a pod to the last
    peak: float

    @property
    def share(self) -> float:
        return self.mean / self.allocatable if self.allocatable else 0.0

    @property
    def peak_share(self) -> float:
        return self.peak / self.allocatable if self.allocatable else 0.0


class StrandedTotals(Document, frozen=True, kw_only=True):
    """The resources that are free at peak demand, and what no pod of the workload can use of them."""

    time: Seconds  #: of peak demand, when the pods that were created and would not have ended request the most CPUs
    free_cpus: Count
    free_memory: Count  #: bytes
    free_devices: Mapping[str, Count]
    cpus: Count
    memory: Count
    devices: Mapping[str, Count]
    more: Count  #: pods of the workload that still fit

    def amounts(self, resource: str) -> tuple[int, int]:
        """Return what is stranded and what is free of *resource*."""
        if resource == CPU:
            return self.cpus, self.free_cpus
        if resource == MEMORY:
            return self.memory, self.free_memory
        return self.devices.get(resource, 0), self.free_devices.get(resource, 0)


class Alignment(Document, frozen=True, kw_only=True):
    """The NUMA nodes of the admitted pods."""

    pods_by_numa_nodes: Mapping[str, Count]  #: number of NUMA nodes → pods; "0": pods without resources on a NUMA node
    mean_distance: float  #: between the NUMA nodes of a pod, over the pods that have any; 10 is local


class HostGroupUse(Document, frozen=True, kw_only=True):
    name: str
    hosts: Count
    started: Count
    rejections: Count


class TimelinePoint(Document, frozen=True, kw_only=True):
    time: Seconds
    running: Count
    waiting: Count  #: created, and not started until then
    rejections: Count  #: by kubelets, until then
    requested: Mapping[str, float]  #: by running pods, by resource


class FleetResult(Document, frozen=True, kw_only=True):
    """One workload on the hosts of a cluster with one strategy."""

    strategy: str
    hosts: Count
    pods: Count
    started: Count  #: admitted by a kubelet
    failed: Count  #: rejected by kubelets more often than they are created again
    pending: Count  #: no host had room for them until the end
    rejections: Mapping[str, Count]  #: by kubelets, by reason, the most frequent first
    rejected_pods: Count  #: that a kubelet rejected at least once
    gangs: Count = 0
    started_gangs: Count = 0  #: whose pods all started, together
    torn_gangs: Count = 0  #: bindings of gangs of which kubelets admitted only a part
    mispredictions: Count  #: placements that the strategy predicted otherwise
    preempted: Count = 0  #: pods that ended early for others
    waiting: WaitingTimes
    use: Mapping[str, ResourceUse]  #: by resource
    stranded: StrandedTotals
    alignment: Alignment
    claims: ClaimCounts = NO_CLAIMS
    connections: ConnectionCounts = NO_CONNECTIONS
    groups: tuple[HostGroupUse, ...]
    duration: Seconds  #: from the first creation of a pod to the last event
    timeline: tuple[TimelinePoint, ...] = ()
    #: moves → pods of the shape asked about that fit at peak demand after so many; empty: none was asked about
    fitting_after_moves: Mapping[str, Count] = {}

    @property
    def rejected(self) -> int:
        """The number of rejections by kubelets."""
        return sum(self.rejections.values())

    @property
    def rank(self) -> tuple[float, ...]:
        """Less is better: the most pods started, then the fewest rejections, then the shortest waiting."""
        return -self.started, self.rejected, self.waiting.p99


class FleetReport(Document, frozen=True, kw_only=True):
    """The same workload with several strategies."""

    version: int = VERSION
    results: tuple[FleetResult, ...]


def compare_figures(results: Sequence[FleetResult]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each figure, and its value in each result as text."""
    yield "started", [f"{result.started:,}" for result in results]
    yield "failed: rejected too often", [f"{result.failed:,}" for result in results]
    yield "never started", [f"{result.pending:,}" for result in results]
    yield "rejections by kubelets", [f"{result.rejected:,}" for result in results]
    if any(result.gangs for result in results):
        yield "gangs started together", [f"{result.started_gangs:,} of {result.gangs:,}" for result in results]
        yield "gangs torn by a rejection", [f"{result.torn_gangs:,}" for result in results]
    for name in ("p50", "p99", "max"):
        yield f"waiting, {name}", [format_duration(getattr(result.waiting, name)) for result in results]
    for resource in results[0].use:
        yield f"requested, {clean(resource)}", [f"{result.use[resource].share:.1%}" for result in results]
    for count, name in numa_node_counts(results).items():
        yield name, [f"{result.alignment.pods_by_numa_nodes.get(count, 0):,}" for result in results]
    if any(result.claims != NO_CLAIMS for result in results):
        yield "claims with the CPUs beside the devices", [f"{result.claims.aligned:,}" for result in results]
        yield "claims with the CPUs elsewhere", [f"{result.claims.unaligned:,}" for result in results]
    for name, counts in figures(result.connections for result in results).items():
        yield name, [f"{count:,}" for count in counts]
    yield "mean distance", [f"{result.alignment.mean_distance:.2f}" for result in results]
    yield f"stranded {CPU}s", [f"{result.stranded.cpus:,}" for result in results]
    yield f"stranded {MEMORY}", [format_size(result.stranded.memory) for result in results]
    for resource in results[0].stranded.devices:
        yield f"stranded {clean(resource)}", [f"{result.stranded.devices.get(resource, 0):,}" for result in results]
    for moves in results[0].fitting_after_moves:
        when = f"after {pluralize(int(moves), 'move')}" if int(moves) else "at peak demand"
        yield f"pods of --shape that fit {when}", [f"{result.fitting_after_moves[moves]:,}" for result in results]


def numa_node_counts(results: Sequence[FleetResult]) -> dict[str, str]:
    """Return on how many NUMA nodes pods of any result are, as in its document, each with a name for people."""
    counts = {count for result in results for count in result.alignment.pods_by_numa_nodes}
    return {
        count: f"pods on {pluralize(int(count), 'NUMA node')}" if int(count) else "pods with nothing to align"
        for count in sorted(counts, key=int)
    }


def rejection_reasons(results: Sequence[FleetResult]) -> tuple[str, ...]:
    """Return why kubelets rejected pods, in any result."""
    return tuple(dict.fromkeys(reason for result in results for reason in result.rejections))


class PodRun(NamedTuple):
    """The outcome of one pod."""

    submission: PodSubmission
    host: str = ""  #: empty: it never started
    started: float = 0.0
    rejections: int = 0  #: by kubelets
    failed: bool = False  #: it was rejected too often


def pod_rows(runs: Iterable[PodRun]) -> Iterator[dict[str, str]]:
    """Yield one row per pod, with a text for each of ``POD_COLUMNS``."""
    for run in runs:
        submission, has_started = run.submission, bool(run.host)
        yield {
            "created": _seconds(submission.time),
            "namespace": submission.pod.namespace,
            "name": submission.pod.name,
            "priority": str(submission.priority),
            "gang": submission.gang,
            "outcome": "started" if has_started else "failed" if run.failed else "pending",
            "node": run.host,
            "started": _seconds(run.started) if has_started else "",
            "waited": _seconds(run.started - submission.time) if has_started else "",
            "rejections": str(run.rejections),
        }


def _seconds(time: float) -> str:
    return f"{time:.3f}".rstrip("0").rstrip(".")
