"""Measures how fragmented a host is.

``largest_requests`` is the largest request for one resource that a single container can still get on one NUMA node
together with a minimum of everything else (one byte of memory, no exclusive CPU): what policy single-numa-node would
still admit. A node without free memory offers no CPUs, and a node whose memory is part of a block on several nodes
offers nothing.

``measure_stranded`` fills the host with more pods of the workload, the most demanding first, until none fits. The CPUs
and devices that remain free are stranded: this workload cannot use them under these settings.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.provider import CpuProvider
from alignup.align.host import Host
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.workload import Pod, demand, names
from alignup.align.workload.names import CPU, MEMORY
from alignup.fleet.admission import admit

MAX_FILL_SHAPES = 16  #: the most frequent shapes of pods that fill a host


@dataclass(frozen=True, slots=True)
class StrandedResources:
    """What remains free when no more pods of the workload fit."""

    cpus: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)  #: by resource
    more: int = 0  #: the pods that still fit

    @property
    def all_devices(self) -> int:
        return sum(self.devices.values())


def largest_requests(host: Host) -> dict[int, dict[str, int]]:
    """NUMA node → resource → the largest request that one container can still get there."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    rules = host.cpus
    in_total = _left_in_total(host)
    found: dict[int, dict[str, int]] = {}
    for node in (node.id for node in host.view.nodes if node.id >= 0):
        free = _free_memory(memory, node)
        if memory.nodes and not free[MEMORY]:
            free = dict.fromkeys(free, 0)
        if rules.allocatable:
            free[CPU] = 0 if memory.nodes and not free[MEMORY] else _free_cpus(rules, cpus, node)
        for resource, inventory in devices.inventories.items():
            available = devices.free[resource]
            # Devices without topology are equally near to every node.
            free[resource] = (available & inventory.on.get(node, 0) if inventory.placed else available).bit_count()
        limited = {name: max(0, min(size, in_total.get(name, size))) for name, size in free.items()}
        found[node] = {name: size - size % _granularity(rules, name) for name, size in limited.items()}
    return found


def distinct_shapes(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """One pod of each shape, the most frequent shape first; pods with equal requests have the same shape."""
    known: dict[Hashable, Pod] = {}
    counts: Counter[Hashable] = Counter()
    for pod in pods:
        shape = _shape(pod)
        known.setdefault(shape, pod)
        counts[shape] += 1
    return tuple(known[shape] for shape, _ in counts.most_common())


def measure_stranded(host: Host, shapes: Iterable[Pod]) -> StrandedResources:
    """What remains when *host* is filled with pods of these *shapes*; its ledger is restored."""
    before, more = host.ledger, 0
    try:
        for shape in _most_demanding(host, shapes):
            while _fits_one_more(host, replace(shape, uid=f"{shape.uid} and {more}")):
                more += 1
        free = {resource: free.bit_count() for resource, free in host.ledger.devices.free.items()}
        return StrandedResources(host.ledger.cpus.available.bit_count(), free, more)
    finally:
        host.ledger = before


def _free_memory(ledger: MemoryLedger, node: int) -> dict[str, int]:
    """The free bytes of each type for containers that need only *node*."""
    own = ledger.nodes.get(node)
    if own is None:
        return {}
    alone = own.cells == 1 << node
    return {type_: table.free if alone else 0 for type_, table in own.tables.items()}


def _free_cpus(rules: CpuProvider, ledger: CpuLedger, node: int) -> int:
    """The CPUs of *node* that one container can get; with full-pcpus-only, no more than whole cores have."""
    free = ledger.free.get(node, 0)
    if not rules.options.full_pcpus_only:
        return free
    return min(free, (ledger.shared & ~rules.reserved_cores).bit_count())


def _granularity(rules: CpuProvider, resource: str) -> int:
    """The unit of allocation: a core with full-pcpus-only, a huge page, else 1."""
    if resource == CPU and rules.options.full_pcpus_only:
        return max(rules.view.cpus_per_core, 1)
    return (names.is_hugepages(resource) and names.page_size(resource)) or 1


def _left_in_total(host: Host) -> dict[str, int]:
    """What the fit check leaves for one more pod, for the resources that it limits."""
    allocatable, used = host.rules.allocatable, host.ledger.used
    if allocatable is None:
        return {}
    counts = {**allocatable.scalars, **host.ledger.devices.allocatable()}
    milli, size = allocatable.milli_cpu - used.milli_cpu, allocatable.memory - used.memory
    left = {name: count - used.scalars.get(name, 0) for name, count in counts.items()}
    if milli < 1 or size < 1:  # a pod with managed memory needs some of both
        left |= dict.fromkeys(allocatable.scalars, 0) | {CPU: 0, MEMORY: 0}
    else:
        left |= {CPU: milli // 1000, MEMORY: size}
    return left if used.pods < allocatable.pods else dict.fromkeys(left, 0)


def _most_demanding(host: Host, shapes: Iterable[Pod]) -> list[Pod]:
    """The most frequent *shapes* that allocate CPUs or devices, the most demanding first."""
    found = [(wanted, shape) for shape in shapes if any((wanted := _demand(host, shape))[:2])]
    return [shape for _, shape in sorted(found[:MAX_FILL_SHAPES], key=lambda one: one[0], reverse=True)]


def _shape(pod: Pod) -> Hashable:
    owners = (pod.resources, *(container.resources for container in pod.all_containers))
    sidecars = tuple([container.restartable for container in pod.init])
    amounts = tuple([(frozenset(one.requests.items()), frozenset(one.limits.items())) for one in owners])
    return pod.qos, sidecars, amounts, frozenset(pod.annotations.items())


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
