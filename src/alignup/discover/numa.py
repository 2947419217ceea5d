"""The NUMA nodes of a machine, from ``/sys/devices/system/node``: CPUs, memory, huge pages, distances.

Node ids have gaps, nodes may have no CPUs or no memory, and a CPU may be claimed by no node or by several. A row of
distances has one column for each node the kernel knows, in rising order, not one for each id.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from alignup.align import bits
from alignup.align.bits import Cpus
from alignup.align.distances import FARTHEST, Distances
from alignup.align.machine import HugePages, NumaNode
from alignup.discover.sysfs import CPU
from alignup.discover.tree import Tree

NODE = "sys/devices/system/node"

_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,16})\s*kB", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,16})kB", re.ASCII)


def ids(tree: Tree) -> list[int]:
    """The nodes that are on, rising."""
    found = tree.numbered(NODE, "node")
    if not found:
        tree.gap("the kernel describes no NUMA nodes")
    return found


def homes(tree: Tree, nodes: Sequence[int], online: Cpus) -> dict[int, int]:
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


def linked(tree: Tree, node: int) -> list[int]:
    """The CPUs the node's directory links to, whether or not they are there; links that lead elsewhere are none."""
    here = f"{NODE}/node{node}"
    found = []
    for cpu in tree.numbered(here, "cpu"):
        target = tree.link(f"{here}/cpu{cpu}")
        if target is None or target.rstrip("/").endswith(f"cpu/cpu{cpu}"):
            found.append(cpu)
    return found


def listed(tree: Tree, node: int) -> Cpus | None:
    """The CPUs the node's own list names, also those that are off or not there at all."""
    return tree.cpus(f"{NODE}/node{node}/cpulist", f"{NODE}/node{node}/cpumap")


def memory(tree: Tree, path: str) -> int | None:
    """The bytes of memory a ``meminfo`` file tells of."""
    read = tree.read(path)
    if read is None:
        return None
    total = _TOTAL.search(read)
    if not total:
        tree.misread(path, "does not say how much memory there is")
        return None
    return int(total[1]) * 1024


def hugepages(tree: Tree, path: str) -> tuple[HugePages, ...]:
    """The huge pages a ``hugepages`` directory tells of, the smallest first."""
    found = []
    for name in tree.names(path):
        size = _PAGES.fullmatch(name)
        count = tree.number(f"{path}/{name}/nr_hugepages") if size else None
        if size is None or count is None or count < 0 or not int(size[1]):
            tree.misread(path, f"holds an entry that counts no huge pages: {bits.quote(name[:40])}")
            continue
        found.append(HugePages(size=int(size[1]) * 1024, count=count))
    return tuple(sorted(found, key=lambda pages: pages.size))


def describe(tree: Tree, nodes: Sequence[int]) -> tuple[NumaNode, ...]:
    """Each node with its memory and huge pages."""
    found = []
    for node in nodes:
        here = f"{NODE}/node{node}"
        held, pages = memory(tree, f"{here}/meminfo"), hugepages(tree, f"{here}/hugepages")
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


def distances(tree: Tree, nodes: Sequence[int]) -> Distances | None:
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


def _row(tree: Tree, path: str) -> list[int] | None:
    text = tree.text(path)
    values = text.split() if text else []
    if not values or not all(value.isascii() and value.isdigit() and len(value) < 11 for value in values):
        return None
    row = [int(value) for value in values]
    return row if max(row) < FARTHEST else None


def _columns(tree: Tree, nodes: Sequence[int], width: int) -> Iterable[int] | None:
    """Which nodes the *width* columns of a row stand for."""
    if width == len(nodes):
        return nodes
    for name in ("online", "possible"):
        named = tree.cpu_list(f"{NODE}/{name}") or 0
        if named.bit_count() == width and not bits.of(nodes) & ~named:
            return bits.members(named)
    return range(width) if width > max(nodes) else None


def _claimed(tree: Tree, node: int, online: Cpus) -> Cpus:
    said = listed(tree, node)
    if said is None:
        linked_cpus = linked(tree, node)
        said = bits.of(linked_cpus or _pointing(tree, node, online))
    return said & online


def _pointing(tree: Tree, node: int, online: Cpus) -> Iterator[int]:
    """The CPUs whose directories link to the node."""
    return (cpu for cpu in bits.members(online) if tree.has(f"{CPU}/cpu{cpu}/node{node}"))
