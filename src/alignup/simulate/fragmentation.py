"""Measures what a workload cannot use of a host.

``measure_stranded`` fills the host with more pods of the workload, the most demanding first, until none fits. The CPUs
and devices that remain free are stranded: this workload cannot use them under these settings.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from alignup.align.host import Host
from alignup.align.workload import Amounts, Pod, demand
from alignup.simulate.admission import admit

MAX_FILL_SHAPES = 16  #: the most frequent shapes of pods that fill a host


@dataclass(frozen=True, slots=True)
class StrandedResources:
    """What remains free when no more pods of the workload fit."""

    cpus: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)  #: by resource
    more: int = 0  #: the pods that still fit
    memory: int = field(default=0, compare=False)  #: bytes that the fit check leaves; no ranking depends on it

    @property
    def all_devices(self) -> int:
        return sum(self.devices.values())


def distinct_shapes(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """One pod of each shape, the most frequent shape first; pods with equal requests have the same shape."""
    known: dict[Hashable, Pod] = {}
    numbers: Counter[Hashable] = Counter()
    for pod in pods:
        written = _shape(pod, _as_written)
        known.setdefault(written, pod)
        numbers[written] += 1
    # Equal amounts can be written in several ways, but to compare every pod by its amounts would take longer.
    shapes: dict[Hashable, Pod] = {}
    counts: Counter[Hashable] = Counter()
    for written, pod in known.items():
        shape = _shape(pod, lambda amounts: frozenset(amounts.items()))
        shapes.setdefault(shape, pod)
        counts[shape] += numbers[written]
    return tuple(shapes[shape] for shape, _ in counts.most_common())


def _shape(pod: Pod, key: Callable[[Amounts], Hashable]) -> Hashable:
    """The shape of *pod* in which *key* stands for amounts."""
    amounts = [key(pod.resources.requests), key(pod.resources.limits)]
    for container in pod.all_containers:
        amounts += (key(container.resources.requests), key(container.resources.limits))
    sidecars = tuple([container.restartable for container in pod.init])
    return pod.qos, sidecars, tuple(amounts), frozenset(pod.annotations.items())


def _as_written(amounts: Amounts) -> Hashable:
    return tuple([(name, amount.unscaled, amount.power) for name, amount in amounts.items()])


def measure_stranded(host: Host, shapes: Iterable[Pod]) -> StrandedResources:
    """What remains when *host* is filled with pods of these *shapes*; its ledger is restored."""
    before, more = host.ledger, 0
    try:
        demanding = [(wanted, shape) for shape in shapes if any((wanted := _demand(host, shape))[:2])]
        # The most frequent shapes that allocate CPUs or devices, the most demanding first.
        for _, shape in sorted(demanding[:MAX_FILL_SHAPES], key=lambda one: one[0], reverse=True):
            while _fits_one_more(host, replace(shape, uid=f"{shape.uid} and {more}")):
                more += 1
        free = {resource: free.bit_count() for resource, free in host.ledger.devices.free.items()}
        allocatable = host.rules.allocatable
        memory = max(0, allocatable.memory - host.ledger.used.memory) if allocatable else 0
        return StrandedResources(host.ledger.cpus.available.bit_count(), free, more, memory)
    finally:
        host.ledger = before


def _demand(host: Host, pod: Pod) -> tuple[int, int, int]:
    """The devices, exclusive CPUs and bytes that a pod requests."""
    known = host.ledger.devices.handled
    devices = sum(sum(demand.container_devices(one, known).values()) for one in pod.all_containers)
    cpus = sum(host.cpus.exclusive_cpus(pod, one) for one in pod.all_containers)
    return devices, cpus, demand.fit_request(pod).memory


def _fits_one_more(host: Host, pod: Pod) -> bool:
    """Admit *pod*; false if it is rejected, or allocates neither CPUs nor devices and so could repeat for ever."""
    before = host.ledger
    if not admit(host, pod).admitted:
        return False
    after = host.ledger
    return (before.cpus.available, before.devices.free) != (after.cpus.available, after.devices.free)
