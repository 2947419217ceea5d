"""What a scheduler does in a simulation, and schedulers that know nothing about NUMA nodes.

``TotalsScheduler`` compares totals of hosts, as kube-scheduler does with its default plugins: a host qualifies if the
requests of all its pods fit, and the one with the lowest or the highest share of requested CPUs and memory is best.
What its other plugins consider (spreading, affinity between pods, images) is left out, and every host is scored.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from alignup.align.decision import Decision
from alignup.align.fit import UsedResources
from alignup.align.workload import Pod
from alignup.align.workload.demand import FitRequest
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.host_index import HostIndex
from alignup.simulate.cluster.pod_classes import EqualPods

#: What kube-scheduler's scoring assumes for a pod without requests.
DEFAULT_MILLI_CPU, DEFAULT_MEMORY = 100, 200 << 20


class Scheduler(Protocol):
    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        """The host for *pod*, which counts on it from now on; ``None``: none at present."""

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        """The pod is not bound after all."""

    def admitted(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        """The kubelet has admitted the pod; *host* is as it is afterwards."""

    def rejected(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        """The kubelet has rejected the pod."""

    def ended(self, pod: Pod, host: SimulatedHost) -> None:
        """A pod has ended, and released its resources."""

    @property
    def mispredictions(self) -> int:
        """Placements that were predicted, and turned out otherwise."""


class Scoring(StrEnum):
    """Which share of requested resources is best."""

    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"


def score_totals(scoring: Scoring, request: FitRequest, used: UsedResources, host: SimulatedHost) -> float:
    """The score of kube-scheduler's NodeResourcesFit for CPUs and memory, from 0 to 100."""
    capacity = host.allocatable
    pairs = (
        (used.milli_cpu + (request.milli_cpu or DEFAULT_MILLI_CPU), capacity.milli_cpu),
        (used.memory + (request.memory or DEFAULT_MEMORY), capacity.memory),
    )
    known = [(wanted, size) for wanted, size in pairs if size]
    if scoring is Scoring.LEAST_ALLOCATED:
        scores = [max(0, size - wanted) * 100 // size for wanted, size in known]
    else:
        scores = [min(wanted, size) * 100 // size for wanted, size in known]
    return sum(scores) / len(scores) if scores else 0.0


class TotalsScheduler:
    mispredictions = 0

    def __init__(self, hosts: Sequence[SimulatedHost], scoring: Scoring) -> None:
        self.scoring = scoring
        self._reserved: dict[str, dict[str, EqualPods]] = {}  #: host → uid → class, of pods that no kubelet has yet
        self.index = HostIndex(hosts, self.rate)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        used = self.used(host)
        if not pod_class.fits(host, used):
            return None
        return score_totals(self.scoring, pod_class.request, used, host)

    def used(self, host: SimulatedHost) -> UsedResources:
        """What the pods of a host use, those on their way there included."""
        used = host.kubelet.ledger.used
        for reserved in self.reserved(host):
            used = used.plus(reserved.request)
        return used

    def reserved(self, host: SimulatedHost) -> Sequence[EqualPods]:
        """The classes of the pods that are bound and not yet admitted."""
        return tuple(self._reserved.get(host.name, {}).values())

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        best = self.index.best(pod_class)
        if best is not None:
            self._reserved.setdefault(best.name, {})[pod.uid] = pod_class
            self.index.touch(best.name)
        return best

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        self._reserved.get(host.name, {}).pop(pod.uid, None)
        self.index.touch(host.name)

    def admitted(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:  # noqa: ARG002 - of the protocol
        self.forget(pod, host)

    def rejected(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:  # noqa: ARG002
        self.forget(pod, host)

    def ended(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002
        self.index.touch(host.name)
