"""What a host could still take: how badly is it fragmented?

``largest_requests`` is the most of one resource that a single container could ask for and get wholly on one NUMA node, with the
least of everything else (a byte of memory, no CPU of its own): just what policy single-numa-node would still admit. A
node without a free byte has no CPU to give, and one whose memory belongs to a block on several nodes serves nobody.

``measure_stranded`` fills the host up with more of the workload's own pods, the most demanding first, until none of them fits.
The CPUs and devices that are then still free are stranded: this workload cannot use them under these settings.
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

#: A host is filled up with so many kinds of pods, those that come most often.
MAX_FILL_SHAPES = 16


@dataclass(frozen=True, slots=True)
class StrandedResources:
    """What stays free when no more of the workload's pods fit."""

    cpus: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)  #: by resource
    more: int = 0  #: the pods that did fit until then

    @property
    def all_devices(self) -> int:
        """Devices of any resource."""
        return sum(self.devices.values())


def largest_requests(host: Host) -> dict[int, dict[str, int]]:
    """NUMA node → resource → the most of it that one container could still get there."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    rules = host.cpus
    in_all = _left_in_all(host)
    found: dict[int, dict[str, int]] = {}
    for node in (node.id for node in host.view.nodes if node.id >= 0):
        room = _memory_alone(memory, node)
        if memory.nodes and not room[MEMORY]:
            room = dict.fromkeys(room, 0)
        if rules.allocatable:
            room[CPU] = 0 if memory.nodes and not room[MEMORY] else _cpus_alone(rules, cpus, node)
        for resource, inventory in devices.inventories.items():
            free = devices.free[resource]
            # Devices that tell no nodes at all are as near to one node as to any other.
            room[resource] = (free & inventory.on.get(node, 0) if inventory.placed else free).bit_count()
        least = {name: max(0, min(size, in_all.get(name, size))) for name, size in room.items()}
        found[node] = {name: size - size % _piece(rules, name) for name, size in least.items()}
    return found


def distinct_shapes(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """One of each kind of pods, the most frequent first; pods that ask for the same are of one kind."""
    known: dict[Hashable, Pod] = {}
    times: Counter[Hashable] = Counter()
    for pod in pods:
        kind = _kind(pod)
        known.setdefault(kind, pod)
        times[kind] += 1
    return tuple(known[kind] for kind, _ in times.most_common())


def measure_stranded(host: Host, kinds: Iterable[Pod]) -> StrandedResources:
    """What is left when *host* is filled up with pods of these *kinds*; it is not changed by that."""
    before, more = host.ledger, 0
    try:
        for kind in _to_fill_with(host, kinds):
            while _takes_one_more(host, replace(kind, uid=f"{kind.uid} and {more}")):
                more += 1
        cpus, devices = host.ledger.cpus, host.ledger.devices
        free = {resource: free.bit_count() for resource, free in devices.free.items()}
        return StrandedResources(cpus.available.bit_count(), free, more)
    finally:
        host.ledger = before


def _memory_alone(ledger: MemoryLedger, node: int) -> dict[str, int]:
    """The bytes of each type that are free on *node* for those who need no other node."""
    own = ledger.nodes.get(node)
    if own is None:
        return {}
    alone = own.cells == 1 << node
    return {type_: table.free if alone else 0 for type_, table in own.tables.items()}


def _cpus_alone(rules: CpuProvider, ledger: CpuLedger, node: int) -> int:
    """The CPUs of *node* that one container can be given; where only whole cores are, no more than are on such."""
    free = ledger.free.get(node, 0)
    if not rules.options.full_pcpus_only:
        return free
    return min(free, (ledger.shared & ~rules.reserved_cores).bit_count())


def _piece(rules: CpuProvider, resource: str) -> int:
    """What *resource* is given out in: whole cores where nothing else may be, whole huge pages."""
    if resource == CPU and rules.options.full_pcpus_only:
        return max(rules.view.cpus_per_core, 1)
    return (names.is_hugepages(resource) and names.page_size(resource)) or 1


def _left_in_all(host: Host) -> dict[str, int]:
    """What the fit check leaves of each resource for one more pod; nothing is said of what it does not limit."""
    offered, used = host.rules.allocatable, host.ledger.used
    if offered is None:
        return {}
    counts = {**offered.scalars, **host.ledger.devices.allocatable()}
    milli, size = offered.milli_cpu - used.milli_cpu, offered.memory - used.memory
    left = {name: count - used.scalars.get(name, 0) for name, count in counts.items()}
    if milli < 1 or size < 1:  # no pod is promised its memory without a bit of both
        left |= dict.fromkeys(offered.scalars, 0) | {CPU: 0, MEMORY: 0}
    else:
        left |= {CPU: milli // 1000, MEMORY: size}
    return left if used.pods < offered.pods else dict.fromkeys(left, 0)


def _to_fill_with(host: Host, kinds: Iterable[Pod]) -> list[Pod]:
    """Those of the most frequent *kinds* that hold CPUs or devices, the most demanding first."""
    asking = [(wanted, kind) for kind in kinds if any((wanted := _demand(host, kind))[:2])]
    return [kind for _, kind in sorted(asking[:MAX_FILL_SHAPES], key=lambda one: one[0], reverse=True)]


def _kind(pod: Pod) -> Hashable:
    """The same for pods that ask for the same."""
    asks = (pod.resources, *(container.resources for container in pod.all_containers))
    sidecars = tuple([container.restartable for container in pod.init])
    amounts = tuple([(frozenset(one.requests.items()), frozenset(one.limits.items())) for one in asks])
    return pod.qos, sidecars, amounts, frozenset(pod.annotations.items())


def _demand(host: Host, pod: Pod) -> tuple[int, int, int]:
    """How many devices, CPUs of its own and bytes a pod asks for."""
    known = host.ledger.devices.handled
    devices = sum(sum(demand.container_devices(one, known).values()) for one in pod.all_containers)
    cpus = sum(host.cpus.exclusive_cpus(pod, one) for one in pod.all_containers)
    return devices, cpus, demand.fit_request(pod).memory


def _takes_one_more(host: Host, pod: Pod) -> bool:
    """Whether *pod* was admitted and took CPUs or devices; one that takes nothing could come for ever."""
    before = host.ledger
    if not admit(host, pod).admitted:
        return False
    after = host.ledger
    return (before.cpus.available, before.devices.free) != (after.cpus.available, after.devices.free)
