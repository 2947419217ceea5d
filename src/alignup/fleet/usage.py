"""Measures how much of each resource is allocated over time, per NUMA node and in total.

Only exclusive resources count: CPUs, bytes of managed memory, devices. A memory block on several nodes is charged to
them from the lowest up, as in the ledger. A device on several nodes counts on each of them, and once in the total.
"""

from dataclasses import dataclass

from alignup.align import bits
from alignup.align.fit import PODS
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload.names import CPU


@dataclass(frozen=True, slots=True)
class UsageStats:
    total: int  #: the allocatable amount: CPUs that are not reserved, bytes, healthy devices
    end: int
    peak: int
    mean: float  #: over time, from the first event to the last


class UsageMeter:
    """Follows the ledger of a host from *time* on."""

    def __init__(self, host: Host, time: float) -> None:
        cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
        allocatable = cpus.available | bits.union(map(cpus.owned, {*cpus.held, *cpus.pod_held}))
        self._cpus = [(node, (own & allocatable).bit_count()) for node, own in cpus.node_cpus.items() if allocatable]
        self._memory = [(node, type_) for node, own in memory.nodes.items() for type_ in own.tables]
        self._pools = [(resource, inventory.healthy) for resource, inventory in devices.inventories.items()]
        on_nodes = [
            (node, resource, own & inventory.healthy)
            for resource, inventory in devices.inventories.items()
            for node, own in inventory.on.items()
        ]
        self._devices = [(resource, own) for _, resource, own in on_nodes]
        #: node (``None``: in total), resource and allocatable amount, in the order of ``_read``
        self._gauges: list[tuple[int | None, str, int]] = [
            *((node, CPU, total) for node, total in self._cpus),
            *((node, type_, memory.nodes[node].tables[type_].allocatable) for node, type_ in self._memory),
            *((node, resource, own.bit_count()) for node, resource, own in on_nodes),
            *((None, resource, healthy.bit_count()) for resource, healthy in self._pools),
            (None, PODS, host.settings.max_pods),
        ]
        by_resource: dict[str, list[int]] = {}  # CPUs and memory, whose total is the sum over the nodes
        for place, (_, resource, _) in enumerate(self._gauges[: len(self._cpus) + len(self._memory)]):
            by_resource.setdefault(resource, []).append(place)
        self._sums = list(by_resource.values())
        for resource, places in by_resource.items():
            self._gauges.append((None, resource, sum(self._gauges[place][2] for place in places)))
        self._ledger = host.ledger
        self._start = self._since = self._now = time
        self._values = self._peaks = self._read(host.ledger)
        self._areas = [0.0] * len(self._values)

    def record(self, time: float, ledger: Ledger) -> None:
        self._now = time
        if ledger is self._ledger:
            return
        self._integrate()
        self._ledger = ledger
        self._values = self._read(ledger)
        self._peaks = list(map(max, self._peaks, self._values))

    @property
    def duration(self) -> float:
        return self._now - self._start

    def stats(self) -> dict[int | None, dict[str, UsageStats]]:
        """By NUMA node and resource; ``None`` is the total."""
        self._integrate()
        duration = self.duration
        found: dict[int | None, dict[str, UsageStats]] = {None: {}}
        figures = zip(self._gauges, self._values, self._peaks, self._areas, strict=True)
        for (node, resource, total), end, peak, area in figures:
            mean = area / duration if duration else float(end)
            found.setdefault(node, {})[resource] = UsageStats(total, end, peak, mean)
        return found

    def _read(self, ledger: Ledger) -> list[int]:
        cpus, memory, devices = ledger.cpus.free, ledger.memory.nodes, ledger.devices.free
        values = [
            *[total - cpus[node] for node, total in self._cpus],
            *[memory[node].tables[type_].reserved for node, type_ in self._memory],
            *[(here & ~devices[resource]).bit_count() for resource, here in self._devices],
            *[(healthy & ~devices[resource]).bit_count() for resource, healthy in self._pools],
            len(ledger.pods),
        ]
        values += [sum([values[place] for place in places]) for places in self._sums]
        return values

    def _integrate(self) -> None:
        if passed := self._now - self._since:
            self._areas = [area + value * passed for area, value in zip(self._areas, self._values, strict=True)]
        self._since = self._now
