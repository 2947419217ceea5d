"""Stranded resources: what a workload cannot use of a host, or of the hosts of a cluster.

``measure_stranded`` fills a host with more pods of the workload, the most demanding first, until none fits. The CPUs
and devices that remain free are stranded: this workload cannot use them under these settings.

A cluster is measured at peak demand: when the pods that were created and would not have ended, had they started at
once, request the most CPUs. That time depends on the workload only, so strategies are compared at the same time.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

from alignup.align.errors import PodError
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Amounts, Pod, demand
from alignup.align.workload.names import MARKER
from alignup.picture.text_format import clean, pluralize
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import SimulatedHost
from alignup.simulate.cluster_result import StrandedTotals
from alignup.simulate.container_placements import admit

MAX_FILL_SHAPES = 16  #: the most frequent shapes of pods that fill a host


@dataclass(frozen=True, slots=True)
class StrandedResources:
    """The resources that remain free when no more pods of the workload fit."""

    cpus: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)  #: by resource
    more: int = 0  #: the pods that still fit
    memory: int = field(default=0, compare=False)  #: bytes that the fit check leaves; no ranking depends on it

    @property
    def all_devices(self) -> int:
        return sum(self.devices.values())

    @property
    def text(self) -> str:
        """The CPUs and devices, such as ``2 CPUs, 1 example.com/gpu``."""
        parts = [pluralize(self.cpus, "CPU")] if self.cpus else []
        parts += [f"{number} {clean(name)}" for name, number in self.devices.items() if number]
        return ", ".join(parts) or "nothing"


def distinct_shapes(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """Return one pod of each shape, the most frequent shape first; pods with equal requests have the same shape."""
    examples: dict[Hashable, Pod] = {}
    numbers: Counter[Hashable] = Counter()
    for pod in pods:
        quantities = _shape(pod, lambda amounts: tuple([(name, a.unscaled, a.power) for name, a in amounts.items()]))
        examples.setdefault(quantities, pod)
        numbers[quantities] += 1
    # Equal amounts can be written in several ways, but to compare every pod by its amounts would take longer.
    shapes: dict[Hashable, Pod] = {}
    counts: Counter[Hashable] = Counter()
    for quantities, pod in examples.items():
        shape = _shape(pod, lambda amounts: frozenset(amounts.items()))
        shapes.setdefault(shape, pod)
        counts[shape] += numbers[quantities]
    return tuple(shapes[shape] for shape, _ in counts.most_common())


def _shape(pod: Pod, key: Callable[[Amounts], Hashable]) -> Hashable:
    """Return the shape of *pod* in which *key* stands for amounts."""
    amounts = [key(pod.resources.requests), key(pod.resources.limits)]
    for container in pod.all_containers:
        amounts += (key(container.resources.requests), key(container.resources.limits))
    sidecars = tuple([container.restartable for container in pod.init])
    return pod.qos, sidecars, tuple(amounts), frozenset(pod.annotations.items())


def measure_stranded(host: Host, shapes: Iterable[Pod]) -> StrandedResources:
    """Return what remains when *host* is filled with pods of these *shapes*; its ledger is restored."""
    ledger, more = host.ledger, 0
    try:
        sized_shapes = [(size, shape) for shape in shapes if any((size := _demand(host, shape))[:2])]
        # The most frequent shapes that allocate CPUs or devices, the most demanding first.
        for _, shape in sorted(sized_shapes[:MAX_FILL_SHAPES], key=itemgetter(0), reverse=True):
            while _fits_one_more(host, replace(shape, uid=f"{shape.uid} and {more}")):
                more += 1
        free = _free_devices(host.ledger)
        allocatable = host.rules.allocatable
        memory = max(0, allocatable.memory - host.ledger.used.memory) if allocatable else 0
        return StrandedResources(host.ledger.cpus.available.bit_count(), free, more, memory)
    finally:
        host.ledger = ledger


def _free_devices(ledger: Ledger) -> dict[str, int]:
    """Return the number of free devices by resource; markers of NUMA nodes are none."""
    return {resource: free.bit_count() for resource, free in ledger.devices.free.items() if resource != MARKER}


def _demand(host: Host, pod: Pod) -> tuple[int, int, int]:
    """Return the devices, exclusive CPUs and bytes that a pod requests."""
    plugin_resources = host.ledger.devices.handled
    devices = sum(sum(demand.devices(pod, container, plugin_resources).values()) for container in pod.all_containers)
    cpus = sum(host.cpus.exclusive_cpus(pod, container) for container in pod.all_containers)
    return devices, cpus, demand.fit_request(pod).memory


def _fits_one_more(host: Host, pod: Pod) -> bool:
    """Admit *pod*; false if it is rejected or invalid, or gets no CPUs and devices and so could repeat for ever."""
    ledger = host.ledger
    try:
        if not admit(host, pod).admitted:
            return False
    except PodError:
        return False
    new_ledger = host.ledger
    return (ledger.cpus.available, ledger.devices.free) != (new_ledger.cpus.available, new_ledger.devices.free)


def peak_demand(submissions: Iterable[PodSubmission]) -> float:
    """Return the first time when the requested CPUs are at their maximum."""
    ends: list[tuple[float, int]] = []
    requested_sum = highest = 0
    peak = 0.0
    for submission in sorted(submissions, key=attrgetter("time")):
        time = submission.time
        while ends and ends[0][0] <= time:
            requested_sum -= heapq.heappop(ends)[1]
        milli_cpu = demand.fit_request(submission.pod).milli_cpu
        requested_sum += milli_cpu
        if submission.duration is not None:
            heapq.heappush(ends, (time + submission.duration, milli_cpu))
        if requested_sum > highest:
            highest, peak = requested_sum, time
    return peak


def measure_cluster(
    hosts: Sequence[SimulatedHost], ledgers: Sequence[Ledger], pods: Iterable[Pod], *, time: float
) -> StrandedTotals:
    """Return what is stranded on *hosts* with these *ledgers*; hosts in the same state are measured once."""
    shapes = distinct_shapes(pods)
    results: dict[Hashable, StrandedResources] = {}
    totals = Counter(dict.fromkeys(("free_cpus", "free_memory", "cpus", "memory", "more"), 0))
    devices: Counter[str] = Counter()
    free_devices: Counter[str] = Counter()
    for host, ledger in zip(hosts, ledgers, strict=True):
        usage = ledger.used
        key = (id(host.group), ledger.alignment_key(), usage[:4], frozenset(usage.scalars.items()))
        result = results.get(key)
        if result is None:
            result = results[key] = measure_stranded(host.kubelet.with_ledger(ledger), shapes)
        free_cpus = ledger.cpus.available.bit_count() if host.kubelet.cpus.allocatable else 0
        totals.update(free_cpus=free_cpus, free_memory=max(0, host.allocatable.memory - usage.memory))
        totals.update(cpus=result.cpus, memory=result.memory, more=result.more)
        free_devices.update(_free_devices(ledger))
        devices.update(result.devices)
    return StrandedTotals(time=time, **totals, free_devices=dict(free_devices), devices=dict(devices))
