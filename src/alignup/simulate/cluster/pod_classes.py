"""Pods that every scheduler treats alike: equal requests, and the same hosts to choose from."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from alignup.align.fit import UsedResources
from alignup.align.workload import Pod, demand
from alignup.align.workload.demand import FitRequest
from alignup.placement.pod_shape import build_shape, shape_key
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.submissions import PodSubmission


@dataclass(frozen=True, slots=True, eq=False)
class EqualPods:
    """One class; there is one object for each, so that comparing them is fast."""

    pod: Pod  #: a pod of this class that runs nowhere
    request: FitRequest
    hosts: Mapping[str, int]  #: that it may run on → their places in the list of all hosts
    scalars: tuple[tuple[str, int], ...]  #: of the request, without zeros

    def fits(self, host: SimulatedHost, used: UsedResources | None = None) -> bool:
        """Whether *host* as a whole has room beside *used* (default: its pods), whatever its NUMA nodes have."""
        used = host.kubelet.ledger.used if used is None else used
        capacity, request = host.allocatable, self.request
        if (
            used.pods >= capacity.pods
            or used.milli_cpu + request.milli_cpu > capacity.milli_cpu
            or used.memory + request.memory > capacity.memory
        ):
            return False
        taken = used.scalars
        return not any(taken.get(name, 0) + size > capacity.scalars[name] for name, size in self.scalars)


class EqualPodsIndex:
    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self._hosts = hosts
        self._known: dict[Hashable, EqualPods] = {}
        self._eligible: dict[Hashable, Mapping[str, int]] = {}

    def find(self, submission: PodSubmission) -> EqualPods:
        selector = tuple(sorted(submission.selector.items()))
        key = (shape_key(submission.pod), selector)
        found = self._known.get(key)
        if found is None:
            request = demand.fit_request(submission.pod)
            scalars = tuple((name, size) for name, size in request.scalars.items() if size)
            hosts = self._eligible_hosts(submission, (selector, frozenset(scalars)), scalars)
            found = self._known[key] = EqualPods(build_shape(submission.pod).pod, request, hosts, scalars)
        return found

    def _eligible_hosts(
        self, submission: PodSubmission, key: Hashable, scalars: Sequence[tuple[str, int]]
    ) -> Mapping[str, int]:
        """The hosts with the labels that the pod wants and with enough of each extended resource when idle."""
        if key not in self._eligible:
            self._eligible[key] = {
                host.name: place
                for place, host in enumerate(self._hosts)
                if submission.matches(host.labels)
                and all(size <= host.allocatable.scalars.get(name, 0) for name, size in scalars)
            }
        return self._eligible[key]
