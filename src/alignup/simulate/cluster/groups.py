"""The hosts of a simulated cluster: groups of equal hosts."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field

from alignup.align.errors import SettingsError
from alignup.align.fit import NodeAllocatable
from alignup.align.host import Host, Settings, node_allocatable
from alignup.align.machine import Machine

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

    def host_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"{self.name}-{number}" for number in range(self.count))


@dataclass(slots=True, eq=False)
class SimulatedHost:
    """One host of a simulated cluster, with its kubelet."""

    name: str
    group: HostGroup
    labels: Mapping[str, str]
    kubelet: Host
    allocatable: NodeAllocatable  #: with the devices
    sequence: int = 0  #: of reports about it


def build_hosts(groups: Iterable[HostGroup]) -> list[SimulatedHost]:
    """All hosts, idle; ``SettingsError`` if a kubelet would not start, or if two hosts have the same name."""
    found: dict[str, SimulatedHost] = {}
    for group in groups:
        kubelet = Host(group.machine, group.settings)
        capacity = node_allocatable(group.machine, group.settings)
        allocatable = capacity.with_devices(kubelet.ledger.devices.allocatable())
        for name in group.host_names():
            if name in found:
                raise SettingsError(f"two hosts are called {name}: give every group another name")
            labels = {**group.labels, HOSTNAME_LABEL: name}
            found[name] = SimulatedHost(name, group, labels, copy(kubelet), allocatable)
    if len(found) > MAX_HOSTS:
        raise SettingsError(f"{len(found):,} nodes are too many: the maximum is {MAX_HOSTS:,}")
    return list(found.values())
