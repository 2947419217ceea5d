"""Measures what the pods of a simulated cluster request over time, how long they wait, and where they are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from alignup.align import bits
from alignup.align.decision import Decision
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, MEMORY
from alignup.simulate.admission import common_nodes, container_placements
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.result_documents import Alignment, ResourceUse, TimelinePoint, WaitingTimes

MAX_POINTS = 200  #: of a timeline
LOCAL = 10.0  #: the distance of a NUMA node from itself

_MILLI = 1000


class RequestMeter:
    """What running pods request: its mean between two times, its peak, and points of a timeline between them."""

    def __init__(self, hosts: Iterable[SimulatedHost], start: float, end: float) -> None:
        allocatable: Counter[str] = Counter()
        for host in hosts:
            own = host.allocatable
            allocatable.update({CPU: own.milli_cpu, MEMORY: own.memory, **own.scalars})
        self._resources = [name for name, size in allocatable.items() if size]
        self._allocatable = [allocatable[name] for name in self._resources]
        self._places = {name: place for place, name in enumerate(self._resources)}
        self._values = [0] * len(self._resources)
        self._peaks = [0] * len(self._resources)
        self._areas = [0.0] * len(self._resources)
        self._start, self._end = start, end
        self._now = start
        self._step = (end - start) / MAX_POINTS
        self._next = start
        self.points: list[TimelinePoint] = []
        self.running = self.waiting = self.rejections = 0

    def advance(self, time: float) -> None:
        """Nothing changes until *time*."""
        while self._next < time and self._next <= self._end and len(self.points) <= MAX_POINTS:
            self.points.append(
                TimelinePoint(
                    time=round(self._next, 3),
                    running=self.running,
                    waiting=self.waiting,
                    rejections=self.rejections,
                    requested={name: self._scaled(name, self._values[n]) for name, n in self._places.items()},
                )
            )
            self._next = self._start + len(self.points) * self._step if self._step else self._end + 1
        until = min(time, self._end)
        if until > self._now:
            elapsed = until - self._now
            self._areas = [area + value * elapsed for area, value in zip(self._areas, self._values, strict=True)]
            self._now = until

    def add(self, request: FitRequest, *, by: int = 1) -> None:
        """A pod has started, or ended (*by* -1)."""
        self.running += by
        amounts = ((CPU, request.milli_cpu), (MEMORY, request.memory), *request.scalars.items())
        for name, amount in amounts:
            place = self._places.get(name)
            if place is not None:
                self._values[place] += by * amount
                self._peaks[place] = max(self._peaks[place], self._values[place])

    def use(self) -> dict[str, ResourceUse]:
        window = self._end - self._start
        found = {}
        for name, total, peak, area, value in zip(
            self._resources, self._allocatable, self._peaks, self._areas, self._values, strict=True
        ):
            mean = area / window if window else float(value)
            found[name] = ResourceUse(
                allocatable=self._scaled(name, total),
                mean=round(self._scaled(name, mean), 3),
                peak=self._scaled(name, peak),
            )
        return found

    @staticmethod
    def _scaled(name: str, value: float) -> float:
        return value / _MILLI if name == CPU else value


class AlignmentMeter:
    """On how many NUMA nodes pods are, and how far these are from each other."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._total = 0.0

    def add(self, host: SimulatedHost, decision: Decision) -> None:
        """A pod was admitted."""
        placements = container_placements(host.kubelet, decision.placements)
        nodes = common_nodes(site for one in placements for site in one.sites)
        own = any(one.sites for one in placements)
        shared = own and all(nodes & site == nodes for one in placements for site in one.sites)
        count = 0 if not own else 1 if shared else nodes.bit_count()
        self._counts[count] += 1
        distances = host.kubelet.view.distances
        if count > 1 and distances is not None and not nodes & ~bits.of(distances.ids):
            self._total += distances.total(nodes) / count**2
        elif count:
            self._total += LOCAL

    def summary(self) -> Alignment:
        aligned = sum(number for count, number in self._counts.items() if count)
        return Alignment(
            pods_by_numa_nodes={str(count): self._counts[count] for count in sorted(self._counts)},
            mean_distance=round(self._total / aligned, 3) if aligned else LOCAL,
        )


def summarize_waiting(times: Sequence[float]) -> WaitingTimes:
    if not times:
        return WaitingTimes()
    found = sorted(times)
    return WaitingTimes(
        mean=round(sum(found) / len(found), 3),
        p50=percentile(found, 50),
        p90=percentile(found, 90),
        p99=percentile(found, 99),
        max=round(found[-1], 3),
    )


def percentile(ascending: Sequence[float], percent: int) -> float:
    """The least value that at least *percent* of the values do not exceed."""
    return round(ascending[max(0, ceil(len(ascending) * percent / 100) - 1)], 3)
