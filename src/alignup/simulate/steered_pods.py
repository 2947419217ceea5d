"""Markers of NUMA nodes on simulated hosts, and the pods that request them, for strategies that steer.

As the webhook of the service does, every pod is marked that one NUMA node can hold on all hosts that it may go to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from alignup.align.errors import AlignError
from alignup.align.machine import Device
from alignup.align.workload.names import MARKER
from alignup.placement.steered import fits_one_node, with_markers
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import EqualPods, HostGroup, SimulatedHost

_CONTAINERS = 2  #: of a pod, for which there are enough markers


def add_markers(groups: Iterable[HostGroup]) -> tuple[HostGroup, ...]:
    """Return *groups* of hosts with markers, so many that they do not limit the number of pods."""
    groups_with_markers = []
    for group in groups:
        count, nodes = _CONTAINERS * group.settings.max_pods, group.machine.kubelet_view().nodes
        markers = [Device(MARKER, f"numa-{node.id}-{n}", nodes=1 << node.id) for node in nodes for n in range(count)]
        machine = group.machine.with_reported((*group.machine.devices, *markers))
        groups_with_markers.append(replace(group, machine=machine))
    return tuple(groups_with_markers)


class PodMarker:
    """Decides which pods are marked; *hosts* have markers, and are idle."""

    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self._hosts = hosts
        self._markable: dict[EqualPods, bool] = {}

    def mark(self, submission: PodSubmission, pods: EqualPods) -> PodSubmission:
        """Return *submission*, of a class of *pods*, with requests for markers if it can be steered everywhere."""
        if pods not in self._markable:
            self._markable[pods] = self._can_mark(pods)
        pod_with_markers = with_markers(submission.pod) if self._markable[pods] else None
        return submission if pod_with_markers is None else replace(submission, pod=pod_with_markers)

    def _can_mark(self, pods: EqualPods) -> bool:
        pod_with_markers = with_markers(pods.pod)
        if pod_with_markers is None:
            return False
        groups = {id(host.group): host for host in (self._hosts[number] for number in pods.hosts.values())}
        try:
            answers = {fits_one_node(host.kubelet, pods.pod, pod_with_markers) for host in groups.values()}
        except AlignError:
            return False
        return True in answers and False not in answers
