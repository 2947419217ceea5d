"""Measures how much of each resource a workload allocates over time.

Only exclusive resources count: CPUs, bytes of managed memory, devices. A memory block on several nodes is charged to
them from the lowest up, as in the ledger. A device on several nodes counts on each of them, and once in the total.

A pod changes few of the gauges, so only what differs between two ledgers is read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from alignup.align import bits
from alignup.align.devices.ledger import DeviceSet
from alignup.align.fit import PODS
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import NodeMemory
from alignup.align.workload.names import CPU


class UsageStats(NamedTuple):
    total: int  #: the allocatable amount: CPUs that are not reserved, bytes, healthy devices
    end: int
    peak: int
    mean: float  #: over time, from the first event to the last


class _Gauge:
    """The allocated amount of one resource, on one NUMA node or in total, over time."""

    __slots__ = ("area", "peak", "since", "total", "value")

    def __init__(self, total: int, value: int, time: float) -> None:
        self.total = total
        self.value = self.peak = value
        self.since = time  #: when the value changed last
        self.area = 0.0  #: the integral of the value until then

    def change(self, value: int, time: float) -> None:
        self.area += self.value * (time - self.since)
        self.since, self.value = time, value
        if value > self.peak:  # noqa: PLR1730 - ten times for each pod, and max() takes twice as long
            self.peak = value

    def stats(self, start: float, end: float) -> UsageStats:
        area = self.area + self.value * (end - self.since)
        return UsageStats(self.total, self.value, self.peak, area / (end - start) if end > start else float(self.value))


class UsageMeter:
    """Measures the usage of *host* from *time* on, per NUMA node and in total."""

    def __init__(self, host: Host, time: float) -> None:
        self._ledger = ledger = host.ledger
        self._start = self._now = time
        cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
        allocatable = cpus.available | bits.union(map(cpus.owned, {*cpus.held, *cpus.pod_held}))
        self._cpus = {
            node: _Gauge(total := (own & allocatable).bit_count(), total - cpus.free[node], time)
            for node, own in cpus.node_cpus.items()
            if allocatable
        }
        self._memory = {
            (node, type_): _Gauge(table.allocatable, table.reserved, time)
            for node, own in memory.nodes.items()
            for type_, table in own.tables.items()
        }
        #: resource → the gauges of its devices, each with the devices that it counts; the last one is the total
        self._devices: dict[str, list[tuple[int | None, DeviceSet, _Gauge]]] = {}
        for resource, inventory in devices.inventories.items():
            used, healthy = ~devices.free[resource], inventory.healthy
            counted = [*((node, own & healthy) for node, own in inventory.on.items()), (None, healthy)]
            self._devices[resource] = [
                (node, own, _Gauge(own.bit_count(), (own & used).bit_count(), time)) for node, own in counted
            ]
        self._pods = _Gauge(host.settings.max_pods, len(ledger.pods), time)
        by_resource: dict[str, list[_Gauge]] = {CPU: [*self._cpus.values()]} if self._cpus else {}
        for (_, type_), gauge in self._memory.items():
            by_resource.setdefault(type_, []).append(gauge)
        #: CPUs and memory, whose total is the sum over the nodes
        self._totals = {
            resource: _Gauge(sum(one.total for one in own), sum(one.value for one in own), time)
            for resource, own in by_resource.items()
        }

    def record(self, time: float, ledger: Ledger) -> None:
        self._now = time
        before, self._ledger = self._ledger, ledger
        if ledger is before:
            return
        self._pods.change(len(ledger.pods), time)
        if ledger.cpus is not before.cpus and self._cpus:
            self._record_cpus(time, before.cpus.free, ledger.cpus.free)
        if ledger.memory is not before.memory:
            self._record_memory(time, before.memory.nodes, ledger.memory.nodes)
        if ledger.devices is not before.devices:
            self._record_devices(time, before.devices.free, ledger.devices.free)

    @property
    def duration(self) -> float:
        return self._now - self._start

    def stats(self) -> dict[int | None, dict[str, UsageStats]]:
        """By NUMA node and resource; ``None`` is the total."""
        found: dict[int | None, dict[str, UsageStats]] = {None: {}}

        def add(node: int | None, resource: str, gauge: _Gauge) -> None:
            found.setdefault(node, {})[resource] = gauge.stats(self._start, self._now)

        for cpu_node, gauge in self._cpus.items():
            add(cpu_node, CPU, gauge)
        for (memory_node, type_), gauge in self._memory.items():
            add(memory_node, type_, gauge)
        for resource, gauges in self._devices.items():
            for node, _, gauge in gauges:
                add(node, resource, gauge)
        add(None, PODS, self._pods)
        for resource, gauge in self._totals.items():
            add(None, resource, gauge)
        return found

    def _record_cpus(self, time: float, before: Mapping[int, int], free: Mapping[int, int]) -> None:
        more = 0
        for node, earlier in before.items():
            if (taken := earlier - free[node]) != 0:
                gauge = self._cpus[node]
                gauge.change(gauge.value + taken, time)
                more += taken
        if more:
            total = self._totals[CPU]
            total.change(total.value + more, time)

    def _record_memory(self, time: float, before: Mapping[int, NodeMemory], nodes: Mapping[int, NodeMemory]) -> None:
        more: dict[str, int] = {}
        for node, earlier in before.items():
            if (now := nodes[node]) is earlier:
                continue
            for type_, (_, _, _, reserved, _) in now.tables.items():
                gauge = self._memory[node, type_]
                if reserved != gauge.value:
                    more[type_] = more.get(type_, 0) + reserved - gauge.value
                    gauge.change(reserved, time)
        for type_, size in more.items():
            if size:
                total = self._totals[type_]
                total.change(total.value + size, time)

    def _record_devices(self, time: float, before: Mapping[str, DeviceSet], free: Mapping[str, DeviceSet]) -> None:
        for resource, earlier in before.items():
            if (changed := earlier ^ free[resource]) != 0:
                used = ~free[resource]
                for _, own, gauge in self._devices[resource]:
                    if own & changed:
                        gauge.change((own & used).bit_count(), time)
