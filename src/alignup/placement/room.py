"""What a host still offers to aligned containers, one NUMA node at a time.

``largest_requests`` is the largest request for one resource that a single container can still get on one NUMA node
together with a minimum of everything else (one byte of memory, no exclusive CPU): what policy single-numa-node would
still admit. A node without free memory offers no CPUs, and a node whose memory is part of a block on several nodes
offers nothing.

Free CPUs that no container can get in this way are stranded, and so are free devices on nodes without CPUs or memory
to go with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY


@dataclass(frozen=True, slots=True)
class Room:
    largest: Mapping[str, int]  #: the largest aligned request for each resource on any NUMA node
    stranded_cpus: int
    stranded_devices: Mapping[str, int]  #: by resource
    unused_nodes: int  #: NUMA nodes of which no container has exclusive CPUs or memory

    @property
    def stranded(self) -> int:
        return self.stranded_cpus + sum(self.stranded_devices.values())


def measure_room(host: Host) -> Room:
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    exclusive = host.cpus.allocatable
    largest: dict[str, int] = {}
    stranded_devices = dict.fromkeys(devices.inventories, 0)
    stranded_cpus = unused = 0
    for node, offered in largest_requests(host).items():
        for name, size in offered.items():
            if size > largest.get(name, -1):
                largest[name] = size
        if exclusive:
            stranded_cpus += cpus.free.get(node, 0) - offered[CPU]
        if (exclusive and not offered[CPU]) or (memory.nodes and not offered[MEMORY]):
            for resource, inventory in devices.inventories.items():
                here = devices.free[resource] & inventory.on.get(node, 0) if inventory.placed else 0
                stranded_devices[resource] += here.bit_count()
        own = memory.nodes.get(node)
        untouched = not cpus.node_cpus.get(node, 0) & exclusive & ~cpus.shared
        unused += untouched and (own is None or not own.assignments)
    return Room(largest, stranded_cpus, stranded_devices, unused)


def largest_requests(host: Host) -> dict[int, dict[str, int]]:
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    rules, whole_cores = host.cpus, host.cpus.options.full_pcpus_only
    in_total = _left_in_total(host)
    found: dict[int, dict[str, int]] = {}
    for node in bits.members(host.view.all_nodes):
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
