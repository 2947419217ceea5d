"""What pods use over time: on the NUMA nodes of a host, and on all hosts of a cluster.

On a host only exclusive resources count: CPUs, bytes of managed memory, devices. A memory block on several nodes is
charged to them from the lowest up, as in the ledger. A device on several nodes counts on each of them, and once in the
total. A pod changes few of the gauges, so only what differs between two ledgers is read.

On a cluster the requests of running pods count, and how many NUMA nodes they have, and how long they waited.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from alignup.align import bits
from alignup.align.decision import Decision
from alignup.align.devices.hints import DeviceSet
from alignup.align.fit import PODS
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, MARKER, MEMORY, is_hugepages
from alignup.picture.text_format import format_size
from alignup.simulate.cluster_hosts import SimulatedHost
from alignup.simulate.cluster_result import Alignment, ResourceUse, TimelinePoint, WaitingTimes
from alignup.simulate.container_placements import common_nodes, container_placements

MAX_POINTS = 200  #: of a timeline until the last pod is created, besides peaks between them
DOUBLED_AFTER = 50  #: points after that, the step doubles: ends of pods may take long
LOCAL = 10.0  #: the distance of a NUMA node from itself


def format_amount(resource: str, amount: float) -> str:
    return format_size(round(amount)) if resource == MEMORY or is_hugepages(resource) else format_mean(amount)


def format_mean(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


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
        self.since = time
        self.value = value
        if value > self.peak:  # noqa: PLR1730 - ten times for each pod, and max() takes twice as long
            self.peak = value

    def stats(self, start: float, end: float) -> UsageStats:
        area = self.area + self.value * (end - self.since)
        return UsageStats(self.total, self.value, self.peak, area / (end - start) if end > start else float(self.value))


class UsageMeter:
    """The usage of *host* from *time* on, per NUMA node and in total."""

    def __init__(self, host: Host, time: float) -> None:
        self._ledger = ledger = host.ledger
        self._start = self._now = time
        cpus, devices = ledger.cpus, ledger.devices
        gauges: dict[tuple[int | None, str], _Gauge] = {}
        allocatable = cpus.available | bits.union(map(cpus.owned, {*cpus.held, *cpus.pod_held}))
        for node, node_cpus in cpus.node_cpus.items() if allocatable else ():
            total = (node_cpus & allocatable).bit_count()
            gauges[node, CPU] = _Gauge(total, total - cpus.free[node], time)
        for node, node_memory in ledger.memory.nodes.items():
            for type_, table in node_memory.tables.items():
                gauges[node, type_] = _Gauge(table.allocatable, table.reserved, time)
        by_resource: dict[str, list[_Gauge]] = {}
        for (_, resource), gauge in gauges.items():
            by_resource.setdefault(resource, []).append(gauge)
        #: resource → the devices that each of its gauges counts
        self._counted: dict[str, dict[int | None, DeviceSet]] = {}
        for resource, inventory in devices.inventories.items():
            healthy = inventory.healthy
            healthy_sets = [*((node, on_node & healthy) for node, on_node in inventory.on.items()), (None, healthy)]
            self._counted[resource] = dict(healthy_sets)
            for number, members in healthy_sets:
                in_use = (members & ~devices.free[resource]).bit_count()
                gauges[number, resource] = _Gauge(members.bit_count(), in_use, time)
        gauges[None, PODS] = _Gauge(host.settings.max_pods, len(ledger.pods), time)
        for resource, parts in by_resource.items():  # CPUs and memory, whose total is the sum over the nodes
            total = sum(gauge.total for gauge in parts)
            gauges[None, resource] = _Gauge(total, sum(gauge.value for gauge in parts), time)
        self._gauges = gauges  #: by NUMA node, or ``None`` for the total, and by resource

    def record(self, time: float, ledger: Ledger) -> None:
        self._now = time
        earlier_ledger, self._ledger = self._ledger, ledger
        if ledger is earlier_ledger:
            return
        self._gauges[None, PODS].change(len(ledger.pods), time)
        self._record_amounts(time, earlier_ledger, ledger)
        if ledger.devices is not earlier_ledger.devices:
            self._record_devices(time, earlier_ledger.devices.free, ledger.devices.free)

    def _record_amounts(self, time: float, earlier_ledger: Ledger, ledger: Ledger) -> None:
        more: Counter[str] = Counter()  # CPUs and memory, in total
        if ledger.cpus is not earlier_ledger.cpus and (None, CPU) in self._gauges:
            for node, earlier in earlier_ledger.cpus.free.items():
                if (change := earlier - ledger.cpus.free[node]) != 0:
                    gauge = self._gauges[node, CPU]
                    gauge.change(gauge.value + change, time)
                    more[CPU] += change
        for node, node_memory in ledger.memory.nodes.items() if ledger.memory is not earlier_ledger.memory else ():
            if node_memory is not earlier_ledger.memory.nodes[node]:
                for type_, (_, _, _, reserved_size, _) in node_memory.tables.items():
                    gauge = self._gauges[node, type_]
                    if reserved_size != gauge.value:
                        more[type_] += reserved_size - gauge.value
                        gauge.change(reserved_size, time)
        for resource, size in more.items():
            if size:
                gauge = self._gauges[None, resource]
                gauge.change(gauge.value + size, time)

    def _record_devices(
        self, time: float, earlier_free: Mapping[str, DeviceSet], free: Mapping[str, DeviceSet]
    ) -> None:
        for resource, earlier in earlier_free.items():
            if (changed_devices := earlier ^ free[resource]) != 0:
                for node, counted_devices in self._counted[resource].items():
                    if counted_devices & changed_devices:
                        self._gauges[node, resource].change((counted_devices & ~free[resource]).bit_count(), time)

    @property
    def duration(self) -> float:
        return self._now - self._start

    def stats(self) -> dict[int | None, dict[str, UsageStats]]:
        """Return the usage by NUMA node and resource; ``None`` is the total."""
        stats: dict[int | None, dict[str, UsageStats]] = {None: {}}
        for (node, resource), gauge in self._gauges.items():
            stats.setdefault(node, {})[resource] = gauge.stats(self._start, self._now)
        return stats


class RequestMeter:
    """What running pods request: its mean between two times, its peak, and a timeline, which ends later."""

    def __init__(self, hosts: Iterable[SimulatedHost], start: float, end: float) -> None:
        allocatable: Counter[str] = Counter()
        for host in hosts:
            capacity = host.allocatable
            allocatable.update({CPU: capacity.milli_cpu, MEMORY: capacity.memory, **capacity.scalars})
        sizes = {name: size for name, size in allocatable.items() if size and name != MARKER}
        self._gauges = {name: _Gauge(size, 0, start) for name, size in sizes.items()}
        self._start = start
        self._end = end
        self._now = start
        self._step = (end - start) / MAX_POINTS
        self._next = start
        self._sampled = 0
        self._peaks: dict[str, TimelinePoint] = {}  #: since the last point, by attribute
        self.points: list[TimelinePoint] = []
        self.running = 0
        self.waiting = 0
        self.rejections = 0

    def advance(self, time: float) -> None:
        """Move on to *time*; nothing changes until then."""
        if self._now < time <= self._next:  # no point shows what is now
            for name in ("running", "waiting"):
                if name not in self._peaks or getattr(self, name) > getattr(self._peaks[name], name):
                    self._peaks[name] = self._point(self._now)
        while self._next < time:
            self._add_point(self._point(self._next))
            self._sampled += 1
            self._next = self._time_of(self._sampled)
        self._now = time

    def close(self, time: float) -> None:
        """Move on to *time*, and end the timeline with it."""
        self.advance(time)
        if self._step:
            self._add_point(self._point(time))

    def _time_of(self, number: int) -> float:
        if not self._step:
            return inf
        if number <= MAX_POINTS:
            return self._start + number * self._step
        doublings, steps = divmod(number - MAX_POINTS, DOUBLED_AFTER)
        return self._end + self._step * (DOUBLED_AFTER * ((1 << doublings) - 1) + (steps << doublings))

    def _point(self, time: float) -> TimelinePoint:
        return TimelinePoint(
            time=round(time, 3),
            running=self.running,
            waiting=self.waiting,
            rejections=self.rejections,
            requested={name: _scaled(name, gauge.value) for name, gauge in self._gauges.items()},
        )

    def _add_point(self, point: TimelinePoint) -> None:
        """Add a point, and before it the peaks that are above both it and the point before."""
        around = (*self.points[-1:], point)
        hidden_peaks = {
            peak.time: peak
            for name, peak in self._peaks.items()
            if getattr(peak, name) > max(getattr(neighbor, name) for neighbor in around)
        }
        self.points += [*(hidden_peaks[time] for time in sorted(hidden_peaks)), point]
        self._peaks.clear()

    def add(self, request: FitRequest, *, by: int = 1) -> None:
        """Count a pod that has started, or ended (*by* -1)."""
        self.running += by
        for name, amount in ((CPU, request.milli_cpu), (MEMORY, request.memory), *request.scalars.items()):
            gauge = self._gauges.get(name)
            if gauge is not None:
                gauge.change(gauge.value + by * amount, min(self._now, self._end))

    def use(self) -> dict[str, ResourceUse]:
        uses = {}
        for name, gauge in self._gauges.items():
            stats = gauge.stats(self._start, self._end)
            total, mean, peak = (_scaled(name, amount) for amount in (stats.total, stats.mean, stats.peak))
            uses[name] = ResourceUse(allocatable=total, mean=round(mean, 3), peak=peak)
        return uses


def _scaled(name: str, value: float) -> float:
    return value / 1000 if name == CPU else value


class AlignmentMeter:
    """The number of NUMA nodes of each pod, and the distances between them."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0.0

    def add(self, host: SimulatedHost, decision: Decision) -> None:
        """Count an admitted pod."""
        placements = container_placements(host.kubelet, decision.placements)
        sites = [site for placement in placements for site in placement.sites]
        nodes = common_nodes(sites)
        shared = all(nodes & site == nodes for site in sites)
        count = 0 if not sites else 1 if shared else nodes.bit_count()
        self._counts[count] += 1
        distances = host.kubelet.view.distances
        if count > 1 and distances is not None and not nodes & ~bits.of(distances.ids):
            self._total += distances.total(nodes) / count**2
        elif count:
            self._total += LOCAL

    def summary(self) -> Alignment:
        aligned_count = sum(number for count, number in self._counts.items() if count)
        return Alignment(
            pods_by_numa_nodes={str(count): self._counts[count] for count in sorted(self._counts)},
            mean_distance=round(self._total / aligned_count, 3) if aligned_count else LOCAL,
        )


def summarize_waiting(times: Sequence[float]) -> WaitingTimes:
    if not times:
        return WaitingTimes()
    series = sorted(times)
    percentiles = {f"p{percent}": percentile(series, percent) for percent in (50, 90, 99)}
    return WaitingTimes(mean=round(sum(series) / len(series), 3), **percentiles, max=round(series[-1], 3))


def percentile(sorted_values: Sequence[float], percent: int) -> float:
    """Return the least value that at least *percent* of the values do not exceed."""
    return round(sorted_values[max(0, ceil(len(sorted_values) * percent / 100) - 1)], 3)
