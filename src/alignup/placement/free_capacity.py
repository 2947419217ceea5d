"""The free capacity of a host for aligned containers, by NUMA node.

``largest_requests`` is the largest request for one resource that a single container can still get on one NUMA node
together with a minimum of everything else (one byte of memory, no exclusive CPU): what policy single-numa-node would
still admit. A node without free memory offers no CPUs, and a node whose memory is part of a block on several nodes
offers nothing.

Free CPUs that no container can get in this way are stranded. A free device is stranded as far as it lacks its share of
the CPUs and memory: of a NUMA node with 4 devices and 60 CPUs, each needs 15. If 30 of the CPUs are free beside 3 free
devices, 2 of these can be used, and 1 is stranded. The same holds for the totals of the host, from which pods that
share CPUs take, too. Many devices on one NUMA node are parts of few real ones, so more than ``MAX_COUNTED`` of a
resource count as so many. Markers of NUMA nodes are no devices to run out of, and do not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices.hints import DeviceInventory
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.fit import NodeAllocatable, UsedResources
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import names
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, HUGEPAGES, MARKER, MEMORY

DEVICE = 1000  #: stranded devices are counted in thousandths
MAX_COUNTED = 4  #: devices of one resource on one NUMA node

Stranded = Mapping[str, int]  #: resource → thousandths of devices


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    largest: Mapping[str, int]  #: the largest aligned request for each resource on any NUMA node
    stranded_cpus: int
    stranded_devices: Stranded  #: by the CPUs and memory of their NUMA nodes


def measure_free_capacity(host: Host, *, earlier: FreeCapacity | None = None) -> FreeCapacity:
    """Measure *host*; parts that equal those of *earlier* are the same objects, since a cluster has many."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    exclusive = host.cpus.allocatable
    inventories = _counted(devices)
    placed_inventories = {name: inventory for name, inventory in inventories.items() if inventory.placed}
    largest: dict[str, int] = {}
    stranded_parts = dict.fromkeys(inventories, 0)
    stranded_cpus = 0
    for node, node_amounts in largest_requests(host).items():
        for name, size in node_amounts.items():
            if size > largest.get(name, -1):
                largest[name] = size
        share = DEVICE
        if exclusive:
            free = cpus.free.get(node, 0)
            stranded_cpus += free - node_amounts[CPU]
            own_cpus = (cpus.node_cpus.get(node, 0) & exclusive).bit_count()
            share = DEVICE * free // own_cpus if own_cpus and node_amounts[CPU] else 0
        if node in memory.nodes:
            allocatable = memory.nodes[node].tables[MEMORY].allocatable
            share = min(share, DEVICE * node_amounts[MEMORY] // allocatable if allocatable else 0)
        for resource, inventory in placed_inventories.items():
            here = inventory.on.get(node, 0)
            count = (here & inventory.healthy).bit_count()
            left_over = max(0, DEVICE * (devices.free[resource] & here).bit_count() - share * count)
            stranded_parts[resource] += left_over if count <= MAX_COUNTED else left_over * MAX_COUNTED // count
    same = earlier is not None and stranded_parts == earlier.stranded_devices
    return FreeCapacity(largest, stranded_cpus, earlier.stranded_devices if earlier and same else stranded_parts)


def _counted(devices: DeviceLedger) -> Mapping[str, DeviceInventory]:
    """Return the devices without markers of NUMA nodes."""
    inventories = devices.inventories
    return {name: inventories[name] for name in inventories if name != MARKER} if MARKER in inventories else inventories


def count_stranded(
    by_nodes: Stranded,
    devices: DeviceLedger,
    usage: UsedResources,
    allocatable: NodeAllocatable,
    pod: FitRequest | None = None,
) -> int:
    """Return how much of all devices is stranded, *by_nodes* or by the totals of the host, after *pod* if given."""
    milli, size = allocatable.milli_cpu - usage.milli_cpu, allocatable.memory - usage.memory
    pod_scalars: Mapping[str, int] = {}
    if pod is not None:
        milli, size, pod_scalars = milli - pod.milli_cpu, size - pod.memory, pod.scalars
    share = min(
        DEVICE * max(milli, 0) // allocatable.milli_cpu if allocatable.milli_cpu else 0,
        DEVICE * max(size, 0) // allocatable.memory if allocatable.memory else 0,
    )
    total = 0
    for resource, inventory in _counted(devices).items():
        count = inventory.healthy.bit_count()
        short = max(0, DEVICE * (devices.free[resource].bit_count() - pod_scalars.get(resource, 0)) - share * count)
        counted_devices = MAX_COUNTED * max(devices.nodes.bit_count(), 1)
        total += max(by_nodes[resource], short if count <= counted_devices else short * counted_devices // count)
    return total


def count_beside(devices: DeviceLedger, nodes: NodeSet, resources: Iterable[str]) -> int:
    """Return the devices on *nodes* that a pod leaves unused: the free ones of *resources*, and all of other resources.

    Devices without topology are on all nodes.
    """
    unused_count = 0
    resources = set(resources)
    for resource, inventory in _counted(devices).items():
        counted_devices = devices.free[resource] if resource in resources else inventory.healthy
        if inventory.placed:
            unused_count += sum(
                min((counted_devices & inventory.on.get(node, 0)).bit_count(), MAX_COUNTED)
                for node in bits.members(nodes)
            )
        else:
            unused_count += min(counted_devices.bit_count(), MAX_COUNTED)
    return unused_count


def largest_requests(host: Host) -> dict[int, dict[str, int]]:
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    rules, whole_cores = host.cpus, host.cpus.options.full_pcpus_only
    in_total = _left_in_total(host.ledger, host.rules.allocatable) if host.rules.allocatable else {}
    inventories = _counted(devices)
    largest: dict[int, dict[str, int]] = {}
    for node in bits.members(host.view.all_nodes):
        node_memory = memory.nodes.get(node)
        free = {type_: table.free for type_, table in node_memory.tables.items()} if node_memory else {}
        if node_memory and (node_memory.cells != 1 << node or not free[MEMORY]):
            free = dict.fromkeys(free, 0)
        if rules.allocatable:
            free[CPU] = 0 if memory.nodes and not free[MEMORY] else cpus.free.get(node, 0)
            if whole_cores:
                free[CPU] = min(free[CPU], (cpus.shared & ~rules.reserved_cores).bit_count())
        for resource, inventory in inventories.items():
            available = devices.free[resource]
            # Devices without topology are equally near to every node.
            free[resource] = (available & inventory.on.get(node, 0) if inventory.placed else available).bit_count()
        limited_amounts = {name: max(0, min(size, in_total.get(name, size))) for name, size in free.items()}
        units = {name: names.page_size(name) or 1 for name in free if name.startswith(HUGEPAGES)}
        if whole_cores:
            units[CPU] = max(rules.view.cpus_per_core, 1)
        largest[node] = {name: size - size % units.get(name, 1) for name, size in limited_amounts.items()}
    return largest


def _left_in_total(ledger: Ledger, allocatable: NodeAllocatable) -> dict[str, int]:
    """Return what the fit check leaves for one more pod, for the resources that it limits."""
    usage = ledger.used
    counts = {**allocatable.scalars, **ledger.devices.allocatable()}
    milli, size = allocatable.milli_cpu - usage.milli_cpu, allocatable.memory - usage.memory
    left_over = {name: count - usage.scalars.get(name, 0) for name, count in counts.items()}
    if milli < 1 or size < 1:  # a pod with managed memory needs some of both
        left_over |= dict.fromkeys(allocatable.scalars, 0) | {CPU: 0, MEMORY: 0}
    else:
        left_over |= {CPU: milli // 1000, MEMORY: size}
    return left_over if usage.pods < allocatable.pods else dict.fromkeys(left_over, 0)
