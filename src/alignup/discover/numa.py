"""The NUMA nodes of a machine, from ``/sys/devices/system/node``: CPUs, memory, huge pages, distances.

Node ids have gaps, nodes may have no CPUs or no memory, and a CPU may be claimed by no node or by several. A row of
distances has one column for each node the kernel knows, in rising order, not one for each id.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.distances import MAX_DISTANCE, Distances
from alignup.align.machine import HugePages, NumaNode
from alignup.discover.cpu_topology import CPU
from alignup.discover.file_reader import FileReader

NODE = "sys/devices/system/node"

_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,16})\s*kB", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,16})kB", re.ASCII)


def read_node_ids(tree: FileReader) -> list[int]:
    """The nodes that are on, rising."""
    found = tree.numbered(NODE, "node")
    if not found:
        tree.gap("the kernel describes no NUMA nodes")
    return found


def map_cpus_to_nodes(tree: FileReader, nodes: Sequence[int], online: CpuSet) -> dict[int, int]:
    """CPU → the node that claims it; of several the lowest."""
    found: dict[int, int] = {}
    quarrels = 0
    for node in nodes:
        claimed = _claimed(tree, node, online)
        quarrels |= bits.of(cpu for cpu in bits.members(claimed) if cpu in found)
        found = dict.fromkeys(bits.members(claimed), node) | found
    if quarrels:
        tree.gap(f"CPUs {bits.show(quarrels)} are claimed by several NUMA nodes; the lowest one has them")
    lost = bits.of(cpu for cpu in bits.members(online) if cpu not in found)
    if lost and nodes:
        tree.gap(f"CPUs {bits.show(lost)} are claimed by no NUMA node")
    return found


def read_linked_cpus(tree: FileReader, node: int) -> list[int]:
    """The CPUs the node's directory links to, whether or not they are there; links that lead elsewhere are none."""
    here = f"{NODE}/node{node}"
    found = []
    for cpu in tree.numbered(here, "cpu"):
        target = tree.link(f"{here}/cpu{cpu}")
        if target is None or target.rstrip("/").endswith(f"cpu/cpu{cpu}"):
            found.append(cpu)
    return found


def read_listed_cpus(tree: FileReader, node: int) -> CpuSet | None:
    """The CPUs the node's own list names, also those that are off or not there at all."""
    return tree.cpus(f"{NODE}/node{node}/cpulist", f"{NODE}/node{node}/cpumap")


def read_memory(tree: FileReader, path: str) -> int | None:
    """The bytes of memory a ``meminfo`` file tells of."""
    read = tree.read(path)
    if read is None:
        return None
    total = _TOTAL.search(read)
    if not total:
        tree.add_unusable(path, "does not say how much memory there is")
        return None
    return int(total[1]) * 1024


def read_hugepages(tree: FileReader, path: str) -> tuple[HugePages, ...]:
    """The huge pages a ``read_hugepages`` directory tells of, the smallest first."""
    found = []
    for name in tree.names(path):
        size = _PAGES.fullmatch(name)
        count = tree.number(f"{path}/{name}/nr_hugepages") if size else None
        if size is None or count is None or count < 0 or not int(size[1]):
            tree.add_unusable(path, f"holds an entry that counts no huge pages: {bits.quote(name[:40])}")
            continue
        found.append(HugePages(size=int(size[1]) * 1024, count=count))
    return tuple(sorted(found, key=lambda pages: pages.size))


def read_nodes(tree: FileReader, nodes: Sequence[int]) -> tuple[NumaNode, ...]:
    """Each node with its memory and huge pages."""
    found = []
    for node in nodes:
        here = f"{NODE}/node{node}"
        held, pages = read_memory(tree, f"{here}/meminfo"), read_hugepages(tree, f"{here}/hugepages")
        huge = sum(each.bytes for each in pages)
        if held is not None and held < huge:
            tree.gap(f"NUMA node {node} tells of {held} bytes of memory with {huge} bytes of huge pages in them")
            held = None
        found.append(NumaNode(node, memory=held, hugepages=pages))
    silent = bits.of(node.id for node in found if node.memory is None)
    if silent:
        tree.gap(f"the memory of NUMA nodes {bits.show(silent)} is not known")
    without = bits.of(node for node in nodes if not tree.has(f"{NODE}/node{node}/hugepages"))
    if without:
        tree.gap(f"NUMA nodes {bits.show(without)} do not tell of huge pages")
    return tuple(found)


def read_distances(tree: FileReader, nodes: Sequence[int]) -> Distances | None:
    """How far the nodes are from each other; ``None`` unless every row is there."""
    matrix = {}
    for node in nodes:
        row = _row(tree, f"{NODE}/node{node}/distance")
        columns = None if row is None else _columns(tree, nodes, len(row))
        if row is None or columns is None:
            tree.gap(f"the distances from NUMA node {node} are not known, so no distances are")
            return None
        matrix[node] = {column: value for column, value in zip(columns, row, strict=False) if column in nodes}
    return Distances(matrix) if matrix else None


def _row(tree: FileReader, path: str) -> list[int] | None:
    text = tree.text(path)
    values = text.split() if text else []
    if not values or not all(value.isascii() and value.isdigit() and len(value) < 11 for value in values):
        return None
    row = [int(value) for value in values]
    return row if max(row) < MAX_DISTANCE else None


def _columns(tree: FileReader, nodes: Sequence[int], width: int) -> Iterable[int] | None:
    """Which nodes the *width* columns of a row stand for."""
    if width == len(nodes):
        return nodes
    for name in ("online", "possible"):
        named = tree.read_cpu_list(f"{NODE}/{name}") or 0
        if named.bit_count() == width and not bits.of(nodes) & ~named:
            return bits.members(named)
    return range(width) if width > max(nodes) else None


def _claimed(tree: FileReader, node: int, online: CpuSet) -> CpuSet:
    said = read_listed_cpus(tree, node)
    if said is None:
        linked_cpus = read_linked_cpus(tree, node)
        said = bits.of(linked_cpus or _pointing(tree, node, online))
    return said & online


def _pointing(tree: FileReader, node: int, online: CpuSet) -> Iterator[int]:
    """The CPUs whose directories link to the node."""
    return (cpu for cpu in bits.members(online) if tree.has(f"{CPU}/cpu{cpu}/node{node}"))
