"""The hosts of a simulated cluster, and the classes of pods that every scheduler treats alike."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from alignup.align.claims.alignment import HostClaims
from alignup.align.errors import SettingsError
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.host import Host, Settings, node_allocatable
from alignup.align.machine import Machine
from alignup.align.workload import Pod, demand
from alignup.align.workload.demand import FitRequest
from alignup.placement.pod_shape import build_shape, shape_key
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.simulated_claims import SimulatedClaims

HOSTNAME_LABEL = "kubernetes.io/hostname"
MAX_HOSTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    name: str
    machine: Machine
    settings: Settings
    count: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()  #: of the hosts; empty: ``NAME-0``, ``NAME-1`` …
    claims: HostClaims | None = None  #: the devices for claims on each host; ``None``: pods have no claims

    def host_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"{self.name}-{number}" for number in range(self.count))


@dataclass(slots=True, eq=False)
class SimulatedHost:
    """A host of a simulated cluster, with its kubelet."""

    name: str
    group: HostGroup
    labels: Mapping[str, str]
    kubelet: Host
    allocatable: NodeAllocatable  #: with the devices
    claims: SimulatedClaims | None = None
    sequence: int = 0  #: of reports about it


def build_hosts(groups: Iterable[HostGroup]) -> list[SimulatedHost]:
    """Return all hosts, idle; ``SettingsError`` if a kubelet would not start, or if two hosts have the same name."""
    hosts: dict[str, SimulatedHost] = {}
    groups = tuple(groups)
    named_claims = {
        key: claim for group in groups if group.claims for key, claim in group.claims.objects.claims.items()
    }
    for group in groups:
        kubelet = Host(group.machine, group.settings)
        capacity = node_allocatable(group.machine, group.settings)
        allocatable = capacity.with_devices(kubelet.ledger.devices.allocatable())
        for name in group.host_names():
            if name in hosts:
                raise SettingsError(f"two hosts are called {name}: give every group another name")
            labels = {**group.labels, HOSTNAME_LABEL: name}
            claims = (
                SimulatedClaims(group.claims, host=name, named_claims=named_claims)
                if group.claims is not None
                else None
            )
            hosts[name] = SimulatedHost(name, group, labels, copy(kubelet), allocatable, claims)
    if len(hosts) > MAX_HOSTS:
        raise SettingsError(f"{len(hosts):,} nodes are too many: the maximum is {MAX_HOSTS:,}")
    return list(hosts.values())


@dataclass(frozen=True, slots=True, eq=False)
class EqualPods:
    """A class of pods with equal requests and the same hosts to choose from; there is one object for each class."""

    pod: Pod  #: a pod of this class that runs nowhere
    request: FitRequest
    hosts: Mapping[str, int]  #: that it may run on → their places in the list of all hosts
    scalars: tuple[tuple[str, int], ...]  #: of the request, without zeros

    def fits(self, host: SimulatedHost, usage: UsedResources | None = None) -> bool:
        """Return whether *host* as a whole has room beside *usage* (default: of its pods). NUMA nodes do not count."""
        usage = host.kubelet.ledger.used if usage is None else usage
        capacity, request = host.allocatable, self.request
        if (
            usage.pods >= capacity.pods
            or usage.milli_cpu + request.milli_cpu > capacity.milli_cpu
            or usage.memory + request.memory > capacity.memory
        ):
            return False
        scalars = usage.scalars
        return not any(scalars.get(name, 0) + size > capacity.scalars[name] for name, size in self.scalars)


class EqualPodsIndex:
    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self._hosts = hosts
        self._equal_pods: dict[Hashable, EqualPods] = {}
        self._restricted: dict[tuple[EqualPods, tuple[str, ...]], EqualPods] = {}
        #: wanted labels and extended resources → the hosts that have them when idle
        self._eligible: dict[Hashable, Mapping[str, int]] = {}

    def restrict(self, pods: EqualPods, hosts: Iterable[str]) -> EqualPods:
        """Return the class of the pods of a class that may run on these hosts only."""
        names = tuple(hosts)
        key = (pods, names)
        if key not in self._restricted:
            self._restricted[key] = replace(pods, hosts={name: pods.hosts[name] for name in names})
        return self._restricted[key]

    def find(self, submission: PodSubmission) -> EqualPods:
        selector = tuple(sorted(submission.selector.items()))
        key = (shape_key(submission.pod), selector)
        pods = self._equal_pods.get(key)
        if pods is None:
            # A claim serves the extended resources of a DeviceClass, whatever the host has.
            claimed_requests = demand.claimed_requests(submission.pod, {})
            request = demand.fit_request(
                submission.pod.without_requests(claimed_requests) if claimed_requests else submission.pod
            )
            scalars = tuple((name, size) for name, size in request.scalars.items() if size)
            requirements = (selector, frozenset(scalars))
            if requirements not in self._eligible:
                self._eligible[requirements] = {
                    host.name: number
                    for number, host in enumerate(self._hosts)
                    if submission.matches(host.labels)
                    and all(size <= host.allocatable.scalars.get(name, 0) for name, size in scalars)
                }
            hosts = self._eligible[requirements]
            pods = self._equal_pods[key] = EqualPods(build_shape(submission.pod).pod, request, hosts, scalars)
        return pods
