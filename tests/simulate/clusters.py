"""Clusters and schedulers for tests."""

from collections.abc import Sequence

from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import EqualPods, HostGroup, SimulatedHost
from alignup.simulate.schedulers import Members
from tests.align.hosts import make_host
from tests.simulate.workloads import small


def group(name: str = "node", *, count: int = 1, policy: Policy = Policy.SINGLE_NUMA_NODE, **labels: str) -> HostGroup:
    """Hosts with two NUMA nodes, each with four CPUs (one less on node 0), 16 GiB, a GPU and a NIC."""
    return of_host(name, make_host(policy), count=count, **labels)


def of_host(name: str, kubelet: Host, *, count: int = 1, **labels: str) -> HostGroup:
    return HostGroup(name=name, machine=kubelet.machine, settings=kubelet.settings, count=count, labels=labels)


def submission(uid: str, time: float = 0.0, duration: float | None = None, **requests: str) -> PodSubmission:
    return PodSubmission(time, small(uid, **requests), duration)


class DirectScheduler:
    """Sends every pod to the first host that suits it, or to the first one, whatever is free there."""

    mispredictions = 0

    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self.hosts = hosts

    def choose_together(self, members: Members) -> dict[str, SimulatedHost] | None:
        """Give up."""

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        return next((self.hosts[place] for place in pod_class.hosts.values()), self.hosts[0])

    def forget(self, pod: Pod, host: SimulatedHost) -> None: ...

    def decided(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None: ...

    def ended(self, pod: Pod, host: SimulatedHost) -> None: ...
