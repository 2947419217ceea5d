"""The layout of a machine in a picture, shared by the terminal and SVG.

The unit is the **box**: a NUMA node with its CPUs, memory and devices. Boxes are in **frames**: sockets and nodes with
common CPUs. On most machines that is one socket with its nodes, on some one node with its sockets, on a few several of
both, so neither has to contain the other. CPUs of no node get a box in the frame of their socket. Nodes without CPUs
are on no socket and are shown apart.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.devices.hints import natural_sort_key
from alignup.align.ledger import Ledger
from alignup.align.locality import Locality
from alignup.align.machine import Cpu, Device, Distances, Machine, NumaNode, PciDevice
from alignup.align.workload.names import MARKER
from alignup.picture.occupancy import Occupancy, group_by, known_devices, read_occupancy
from alignup.picture.pcie_tree import describe_links, draw_tree
from alignup.picture.text_format import clean, format_bits, format_ids, format_list, format_size, pluralize, shorten

MAX_SINGLE_ROWS = 8  #: up to this number, each node has its own row
MAX_ROWS = 16
_MAX_COMPARED = 256  #: with more nodes, they are not compared

Matrix = Sequence[Sequence[int]]


class Core(NamedTuple):
    """The threads of a core in one box: usually all threads of the core."""

    id: int
    cpus: tuple[int, ...]


class CoreGroup(NamedTuple):
    """The cores of a box that share a socket and a last-level cache."""

    name: str  #: socket and cache, where they differ; else empty
    cores: tuple[Core, ...]

    @property
    def cpus(self) -> CpuSet:
        return bits.of(cpu for core in self.cores for cpu in core.cpus)

    @property
    def shape(self) -> str:
        """``8 cores of 2 threads``; different cores one after the other."""
        sizes = sorted(Counter(len(core.cpus) for core in self.cores).items(), reverse=True)
        return ", ".join(f"{pluralize(cores, 'core')} of {pluralize(threads, 'thread')}" for threads, cores in sizes)


class DeviceGroup(NamedTuple):
    """The devices of one resource in one place."""

    resource: str
    devices: tuple[Device, ...]


class NodeBox(NamedTuple):
    """A NUMA node, or the CPUs of no node."""

    node: NumaNode | None
    sockets: tuple[int, ...] = ()
    core_groups: tuple[CoreGroup, ...] = ()
    device_groups: tuple[DeviceGroup, ...] = ()
    pci: tuple[str, ...] = ()  #: descriptions of its PCI devices
    tree: tuple[str, ...] = ()  #: lines of its PCIe tree, whose devices are not in the descriptions
    nearest: str = ""  #: the nodes with CPUs near a node without any; empty if unknown

    @property
    def name(self) -> str:
        return "in no NUMA node" if self.node is None else f"NUMA node {self.node.id}"

    @property
    def memory(self) -> str:
        if self.node is None or self.node.memory is None:
            return "memory not known"
        return format_size(self.node.memory) if self.node.memory else "no memory"

    @property
    def cpus(self) -> CpuSet:
        return bits.union(core_group.cpus for core_group in self.core_groups)


class SocketFrame(NamedTuple):
    """Sockets and nodes that have CPUs in common."""

    sockets: tuple[int, ...]
    boxes: tuple[NodeBox, ...]

    @property
    def name(self) -> str:
        return "Unknown socket" if self.sockets == (-1,) else format_ids("Socket", self.sockets)


class DistanceTable(NamedTuple):
    """Distances from each group of nodes (rows) to each other (columns); nodes with equal distances share both."""

    groups: tuple[tuple[int, ...], ...]
    cells: tuple[tuple[str, ...], ...]
    note: str = ""  #: an explanation below the table

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(format_list, self.groups))


@dataclass(frozen=True, slots=True)
class MachineLayout:
    title: str
    facts: tuple[str, ...]
    frames: tuple[SocketFrame, ...]
    nodes_without_cpus: tuple[NodeBox, ...] = ()
    unplaced_devices: tuple[tuple[str, tuple[DeviceGroup, ...]], ...] = ()  #: of several nodes or none, by location
    pci: tuple[str, ...] = ()  #: descriptions of PCI devices of no node
    tree: tuple[str, ...] = ()  #: lines of their PCIe tree
    links: tuple[str, ...] = ()  #: between devices, beside PCIe
    table: DistanceTable | None = None
    occupancy: Occupancy = field(default_factory=Occupancy)
    gaps: tuple[str, ...] = ()

    @property
    def boxes(self) -> tuple[NodeBox, ...]:
        """The NUMA nodes with CPUs."""
        return tuple(box for frame in self.frames for box in frame.boxes)

    @property
    def cpus(self) -> CpuSet:
        return bits.union(box.cpus for box in self.boxes)

    def fold(self, boxes: Iterable[NodeBox]) -> list[tuple[NodeBox, ...]]:
        """Return groups of adjacent *boxes* that can be drawn as one: equal, without devices, and without pods."""

        def key(box: NodeBox) -> Hashable:
            if box.device_groups or box.pci or box.tree or box.node is None:
                return box
            states = {self.occupancy.of_cpu(cpu) for cpu in bits.members(box.cpus)}
            bars = self.occupancy.bars(box.node)
            if len(states) > 1 or any(use.holder for use in states) or any("held" in dict(bar.parts) for bar in bars):
                return box
            shapes = tuple(core_group.shape for core_group in box.core_groups)
            return bars, tuple(states), shapes, len(box.sockets), box.nearest

        return [tuple(run) for _, run in groupby(boxes, key)]


def layout_machine(machine: Machine, ledger: Ledger | None = None) -> MachineLayout:
    """Return the layout of *machine*; a *ledger* adds what pods hold. Markers of NUMA nodes are not drawn."""
    devices = [device for device in known_devices(machine, ledger) if device.resource != MARKER]
    locality = machine.locality
    near = _NearDevices(
        group_by(devices, lambda device: device.nodes or 0), group_by(machine.pci, lambda device: device.node), locality
    )
    frames = tuple(_frames(machine, near))
    with_cpus = {box.node.id for frame in frames for box in frame.boxes if box.node}
    without_cpus = tuple(
        _box(node, (), near=near)._replace(nearest=_nearest_nodes(machine.distances, node.id, with_cpus))
        for node in machine.nodes
        if node.id not in with_cpus
    )
    title = (
        pluralize(len({cpu.socket for cpu in machine.cpus}), "socket"),
        pluralize(len(machine.nodes), "NUMA node"),
        pluralize(len({cpu.core for cpu in machine.cpus}), "core"),
        pluralize(len(machine.cpus), "CPU"),
    )
    nodes = {node.id for node in machine.nodes}
    pci, tree = near.describe(device for device in machine.pci if device.node not in nodes)
    return MachineLayout(
        title=" · ".join(title if machine.cpus else ("devices only", *title[1 : 1 + bool(nodes)])),
        facts=tuple(_facts(machine)),
        frames=frames,
        nodes_without_cpus=without_cpus,
        unplaced_devices=tuple(_unplaced_devices(machine, devices)),
        pci=pci,
        tree=tree,
        links=tuple(describe_links(locality, machine)),
        table=build_distance_table(machine.distances) if machine.distances else None,
        occupancy=read_occupancy(ledger),
        gaps=(*machine.gaps, *([f"PCIe: {locality.note}"] if locality.note else [])),
    )


def _facts(machine: Machine) -> Iterator[str]:
    if machine.model:
        yield shorten(clean(machine.model), 60)
    if machine.caches:
        yield "caches " + ", ".join(f"{clean(name)} {format_size(size)}" for name, size in machine.caches)
    sizes = [node.memory for node in machine.nodes if node.memory is not None]
    if machine.memory is not None or sizes:
        yield f"memory {format_size(sum(sizes) if machine.memory is None else machine.memory)}"
    counts: Counter[int] = Counter()
    for pages in [pages for node in machine.nodes for pages in node.hugepages] or machine.hugepages:
        counts[pages.size] += pages.count
    for bytes_, number in sorted(counts.items()):
        if number:
            yield f"{pluralize(number, 'huge page')} of {format_size(bytes_)}"
    if machine.devices:
        yield pluralize(len(machine.devices), "device")
    if machine.pci:
        yield pluralize(len(machine.pci), "PCI device")
    if machine.offline:
        off = shorten(format_bits(machine.offline), 32)
        yield f"{pluralize(machine.offline.bit_count(), 'CPU')} switched off ({off})"


class _NearDevices(NamedTuple):
    devices: Mapping[int, Sequence[Device]]  #: by their nodes as a set
    pci: Mapping[int | None, Sequence[PciDevice]]  #: by node
    locality: Locality

    def describe(self, pci: Iterable[PciDevice]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return descriptions of PCI devices, and the lines of the tree of devices whose place in the tree matters."""
        in_tree, others = list[PciDevice](), list[PciDevice]()
        for device in pci:
            (in_tree if self.locality.has_tree and device.address in self.locality.devices else others).append(device)
        return tuple(_describe_pci(others)), draw_tree(self.locality, in_tree)


def _frames(machine: Machine, near: _NearDevices) -> Iterator[SocketFrame]:
    members: dict[int, set[int]] = {}  # socket → the sockets it shares nodes with; they share the set
    first: dict[int, int] = {}  # node → its first socket
    for cpu in machine.cpus:
        sharing = members.setdefault(cpu.socket, {cpu.socket})
        if cpu.node is None:
            continue
        other = members[first.setdefault(cpu.node, cpu.socket)]
        if other is not sharing:
            sharing |= other
            members.update(dict.fromkeys(other, sharing))
    nodes = {node.id: node for node in machine.nodes}
    places: dict[tuple[int, ...], dict[int | None, list[Cpu]]] = {}
    for cpu in machine.cpus:
        boxes = places.setdefault(tuple(sorted(members[cpu.socket])), {})
        boxes.setdefault(cpu.node, []).append(cpu)
    for sockets, boxes in sorted(places.items()):
        claimed_nodes = sorted(node for node in boxes if node is not None)
        inside = [_box(nodes[node], boxes[node], near=near) for node in claimed_nodes]
        inside += [_box(None, boxes[None], near=near)] if None in boxes else []
        yield SocketFrame(sockets, tuple(inside))


def _box(node: NumaNode | None, cpus: Sequence[Cpu], *, near: _NearDevices) -> NodeBox:
    alone = 1 << node.id if node and node.id >= 0 else None
    pci, tree = near.describe(near.pci.get(node.id, ()) if node else ())
    return NodeBox(
        node=node,
        sockets=tuple(sorted({cpu.socket for cpu in cpus})),
        core_groups=tuple(_core_groups(cpus)),
        device_groups=tuple(_group_devices(near.devices.get(alone, ()))) if alone is not None else (),
        pci=pci,
        tree=tree,
    )


def _core_groups(cpus: Sequence[Cpu]) -> Iterator[CoreGroup]:
    sockets = {cpu.socket for cpu in cpus}
    groups: dict[tuple[int, int], dict[int, list[int]]] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.id):
        key = (cpu.socket, -1 if cpu.cache is None else cpu.cache)
        groups.setdefault(key, {}).setdefault(cpu.core, []).append(cpu.id)
    for (socket, cache), cores in sorted(groups.items()):
        names = [f"socket {socket}"] if len(sockets) > 1 else []
        names += [f"cache {cache}"] if cache >= 0 else []
        yield CoreGroup(" ".join(names), tuple(Core(id_, tuple(threads)) for id_, threads in cores.items()))


def _group_devices(devices: Iterable[Device]) -> Iterator[DeviceGroup]:
    for resource, group in sorted(group_by(devices, lambda device: device.resource).items()):
        yield DeviceGroup(resource, tuple(sorted(group, key=lambda device: natural_sort_key(device.id))))


def _unplaced_devices(machine: Machine, devices: Sequence[Device]) -> Iterator[tuple[str, tuple[DeviceGroup, ...]]]:
    there = {1 << node.id for node in machine.nodes if node.id >= 0}
    unplaced_devices = [device for device in devices if device.nodes not in there]
    for nodes, group in sorted(group_by(unplaced_devices, lambda device: device.nodes or 0).items()):
        description = f"near {format_ids('NUMA node', bits.members(nodes))}" if nodes else "near no NUMA node"
        if nodes and not any(nodes & node for node in there):
            description += ", not on this machine"
        yield description, tuple(_group_devices(group))


#: The PCI base classes worth listing.
_LISTED_CLASSES = {0x01: "storage", 0x02: "network", 0x03: "display", 0x12: "accelerator"}
_GPU = 0x0302  #: the PCI class of 3D controllers, which GPUs without a display have


def _describe_pci(devices: Iterable[PciDevice]) -> Iterator[str]:
    """Describe PCI devices by class: listed classes with names, or addresses if few; the others as a count."""
    classes = group_by(devices, _class_name)
    for name, group in sorted(classes.items(), key=lambda pair: (pair[0] == "other", pair[0])):
        # The names of the system for a device, or its address.
        addresses = ["/".join(shorten(clean(name), 24) for name in device.names) or device.address for device in group]
        if name == "GPU" and all(device.names for device in group):
            name = ""  # noqa: PLW2901 - their names begin with it
        if name == "other":
            yield f"{len(addresses)} other"
        elif len(addresses) > 4 and not any(device.names for device in group):
            yield f"{len(addresses)} {name} ({addresses[0]} to {addresses[-1]})"
        elif len(addresses) > 16:
            yield f"{len(addresses)} {name} ({', '.join(addresses[:8])} …)"
        else:
            yield f"{name} {', '.join(addresses)}".lstrip()


def _class_name(device: PciDevice) -> str:
    kind = device.kind or 0
    return "GPU" if kind >> 8 == _GPU else _LISTED_CLASSES.get(kind >> 16, "other")


def _nearest_nodes(distances: Distances | None, node: int, with_cpus: set[int]) -> str:
    """Return the nodes with CPUs nearest to a node without any, if the distances differ."""
    if distances is None or len(with_cpus) < 2 or not {node, *with_cpus} <= set(distances.ids):
        return ""
    away = {other: distances.both_ways(node)[other] for other in with_cpus}
    nearest = [other for other, far in away.items() if far == min(away.values())]
    return f"near {format_ids('node', nearest)}" if len(nearest) < len(with_cpus) else ""


def build_distance_table(distances: Distances) -> DistanceTable:
    """Return the table of *distances*; a machine with too many different nodes gets only a note with the range."""
    ids, matrix = distances.ids, distances.matrix
    if len(ids) <= MAX_SINGLE_ROWS:
        return DistanceTable(tuple((id_,) for id_ in ids), tuple(tuple(map(str, row)) for row in matrix))
    groups = _group_equal(matrix) if len(ids) <= _MAX_COMPARED else [[index] for index in range(len(ids))]
    if len(groups) > MAX_ROWS:
        near = [matrix[index][index] for index in range(len(ids))]
        far = [value for a, row in enumerate(matrix) for b, value in enumerate(row) if a != b]
        return DistanceTable((), (), f"{_range(near)} to itself, {_range(far)} to others")
    cells = tuple(tuple(_cell(matrix, a, b=b) for b in groups) for a in groups)
    pairs = any("/" in cell for row in cells for cell in row)
    note = "where two are given: to itself / to the others of its row" if pairs else ""
    return DistanceTable(tuple(tuple(ids[index] for index in group) for group in groups), cells, note)


def _group_equal(matrix: Matrix) -> list[list[int]]:
    """Return groups of indexes that can be swapped without changing the matrix."""
    columns = tuple(zip(*matrix, strict=True))

    def are_equal(a: int, b: int) -> bool:
        """Return whether two nodes have equal distances to themselves, each other, and all others."""
        if matrix[a][a] != matrix[b][b] or matrix[a][b] != matrix[b][a]:
            return False
        others = [other for other in range(len(matrix)) if other not in {a, b}]
        return all(view[a][other] == view[b][other] for view in (matrix, columns) for other in others)

    groups: list[list[int]] = []
    for index in range(len(matrix)):
        equal = next((group for group in groups if are_equal(group[0], index)), None)
        if equal is None:
            groups.append([index])
        else:
            equal.append(index)
    return groups


def _cell(matrix: Matrix, a: Sequence[int], *, b: Sequence[int]) -> str:
    if a is not b:
        return str(matrix[a[0]][b[0]])
    return f"{matrix[a[0]][a[0]]}/{matrix[a[0]][a[1]]}" if len(a) > 1 else str(matrix[a[0]][a[0]])


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
