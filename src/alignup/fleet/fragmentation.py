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

from alignup.align.host import Host
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
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    rules, whole_cores = host.cpus, host.cpus.options.full_pcpus_only
    in_total = _left_in_total(host)
    found: dict[int, dict[str, int]] = {}
    for node in (node.id for node in host.view.nodes if node.id >= 0):
        own = memory.nodes.get(node)
        free = {type_: table.free for type_, table in own.tables.items()} if own else {}
        if own and (own.cells != 1 << node or not free[MEMORY]):
            free = dict.fromkeys(free, 0)
        if rules.allocatable:
            free[CPU] = 0 if memory.nodes and not free[MEMORY] else cpus.free.get(node, 0)
            if whole_cores:
                free[CPU] = min(free[CPU], (cpus.shared & ~rules.reserved_cores).bit_count())
        for resource, inventory in devices.inventories.items():
            available = devices.free[resource]
            # Devices without topology are equally near to every node.
            free[resource] = (available & inventory.on.get(node, 0) if inventory.placed else available).bit_count()
        limited = {name: max(0, min(size, in_total.get(name, size))) for name, size in free.items()}
        units = {name: names.page_size(name) or 1 for name in free if names.is_hugepages(name)}
        if whole_cores:
            units[CPU] = max(rules.view.cpus_per_core, 1)
        found[node] = {name: size - size % units.get(name, 1) for name, size in limited.items()}
    return found


def distinct_shapes(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """One pod of each shape, the most frequent shape first; pods with equal requests have the same shape."""
    known: dict[Hashable, Pod] = {}
    counts: Counter[Hashable] = Counter()
    for pod in pods:
        owners = (pod.resources, *(container.resources for container in pod.all_containers))
        sidecars = tuple([container.restartable for container in pod.init])
        amounts = tuple([(frozenset(one.requests.items()), frozenset(one.limits.items())) for one in owners])
        shape = (pod.qos, sidecars, amounts, frozenset(pod.annotations.items()))
        known.setdefault(shape, pod)
        counts[shape] += 1
    return tuple(known[shape] for shape, _ in counts.most_common())


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
        return StrandedResources(host.ledger.cpus.available.bit_count(), free, more)
    finally:
        host.ledger = before


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
