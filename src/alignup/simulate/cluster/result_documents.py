"""The result of simulating the hosts of a cluster, and of a sweep over many such simulations."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from alignup.documents.codec import Count, Document

VERSION = 1  #: of the document; incremented when a field changes its meaning or is removed

Seconds = Annotated[float, Meta(ge=0)]


class WaitingTimes(Document, frozen=True, kw_only=True):
    """Seconds from the creation of a pod to its admission, over all pods that started."""

    mean: Seconds = 0.0
    p50: Seconds = 0.0
    p90: Seconds = 0.0
    p99: Seconds = 0.0
    max: Seconds = 0.0


class ResourceUse(Document, frozen=True, kw_only=True):
    """How much of a resource running pods request: CPUs, bytes, or devices."""

    allocatable: float
    mean: float  #: over time, from the first creation of a pod to the last
    peak: float

    @property
    def share(self) -> float:
        return self.mean / self.allocatable if self.allocatable else 0.0


class StrandedTotals(Document, frozen=True, kw_only=True):
    """What is free at peak demand, and what no pod of the workload can use of it."""

    time: Seconds  #: of peak demand, when the pods that were created and would not have ended request the most CPUs
    free_cpus: Count
    free_memory: Count  #: bytes
    free_devices: Mapping[str, Count]
    cpus: Count
    memory: Count
    devices: Mapping[str, Count]
    more: Count  #: pods of the workload that still fit


class Alignment(Document, frozen=True, kw_only=True):
    """Where the admitted pods are."""

    pods_by_numa_nodes: Mapping[str, Count]  #: number of NUMA nodes → pods; "0": nothing of theirs has a NUMA node
    mean_distance: float  #: between the NUMA nodes of a pod, over the pods that have any; 10 is local


class HostGroupUse(Document, frozen=True, kw_only=True):
    name: str
    hosts: Count
    started: Count
    rejections: Count


class TimelinePoint(Document, frozen=True, kw_only=True):
    time: Seconds
    running: Count
    waiting: Count
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
    mispredictions: Count  #: placements that the strategy predicted otherwise
    preempted: Count = 0  #: pods that ended early for others
    waiting: WaitingTimes
    use: Mapping[str, ResourceUse]  #: by resource
    stranded: StrandedTotals
    alignment: Alignment
    groups: tuple[HostGroupUse, ...]
    duration: Seconds  #: from the first creation of a pod to the last event
    timeline: tuple[TimelinePoint, ...] = ()

    @property
    def rejected(self) -> int:
        """How often kubelets rejected a pod."""
        return sum(self.rejections.values())


class FleetReport(Document, frozen=True, kw_only=True):
    """The same workload with several strategies."""

    version: int = VERSION
    results: tuple[FleetResult, ...]
