"""The use of each NUMA node of a host by resource: what is reserved, held, stranded and free."""

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.workload.names import CPU, MARKER, MEMORY
from alignup.placement.free_capacity import largest_requests


class ResourceBar(NamedTuple):
    """One NUMA node's part of a resource, divided by use; the parts add up to the total."""

    resource: str
    reserved: int = 0
    held: int = 0
    stranded: int = 0  #: free, but no aligned container can get it
    free: int = 0

    @property
    def total(self) -> int:
        return self.reserved + self.held + self.stranded + self.free


def add_bars(bar: ResourceBar, other: ResourceBar) -> ResourceBar:
    """Return the sum of two bars of one resource."""
    return ResourceBar(bar.resource, *map(add, bar[1:], other[1:]))


class NumaBars(NamedTuple):
    node: int
    bars: tuple[ResourceBar, ...]


def measure_bars(host: Host) -> tuple[NumaBars, ...]:
    """Return what the managers of a host have on each NUMA node: CPUs, memory, and devices with topology."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    exclusive = host.cpus.allocatable
    offers = largest_requests(host)
    claimed_counts = host.ledger.claims.count_by_node(host.ledger.pods) if host.ledger.claims else {}
    nodes = []
    for node in bits.members(host.view.all_nodes):
        largest, bars = offers[node], []
        node_cpus = host.view.node_cpus.get(node, 0)
        reserved_count = (node_cpus & cpus.reserved).bit_count()
        exclusive_count = (node_cpus & exclusive & ~cpus.shared & ~cpus.reserved).bit_count()
        free = node_cpus.bit_count() - reserved_count - exclusive_count
        usable = min(free, largest.get(CPU, free))
        bars.append(
            ResourceBar(
                CPU, reserved_count, exclusive_count, free - usable if exclusive else 0, usable if exclusive else free
            )
        )
        for type_, table in memory.nodes[node].tables.items() if node in memory.nodes else ():
            if table.total:
                bars.append(ResourceBar(type_, table.total - table.allocatable, table.reserved, 0, table.free))
        without_room = (exclusive and not largest[CPU]) or (bool(memory.nodes) and not largest.get(MEMORY))
        for resource, inventory in sorted(devices.inventories.items()):
            here = inventory.on.get(node, 0) if inventory.placed and resource != MARKER else 0
            if here:
                free_count = (devices.free[resource] & here).bit_count()
                stranded = free_count if without_room else 0
                bars.append(ResourceBar(resource, 0, here.bit_count() - free_count, stranded, free_count - stranded))
        bars += [
            ResourceBar(name, 0, count - free_count, 0, free_count)
            for name, (count, free_count) in claimed_counts.get(node, {}).items()
        ]
        nodes.append(NumaBars(node, tuple(bars)))
    return tuple(nodes)


def sum_bars(nodes: Sequence[NumaBars]) -> dict[str, ResourceBar]:
    """Return what all NUMA nodes have together, by resource."""
    totals: dict[str, ResourceBar] = {}
    for node in nodes:
        for bar in node.bars:
            totals[bar.resource] = add_bars(totals.get(bar.resource, ResourceBar(bar.resource)), bar)
    return totals


def stranded_places(nodes: Sequence[NumaBars]) -> set[tuple[int, str]]:
    """Return the NUMA nodes and resources where everything unused is stranded."""
    return {(node.node, bar.resource) for node in nodes for bar in node.bars if bar.stranded and not bar.free}
