"""The NUMA nodes of a machine, from ``/sys/devices/system/node``: CPUs, memory, huge pages, distances.

Node ids have gaps, nodes may lack CPUs or memory, and a CPU may belong to no node or to several. A row of distances
has one column for each node of the kernel, in ascending order, not one for each id.
"""

import re
from collections.abc import Iterable, Sequence

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.distances import MAX_DISTANCE, Distances
from alignup.align.machine import HugePages, NumaNode
from alignup.discover.cpu_topology import CPU
from alignup.discover.file_reader import FileReader

NODE = "sys/devices/system/node"

_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,16})\s*kB", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,16})kB", re.ASCII)


def map_cpus_to_nodes(files: FileReader, nodes: Sequence[int], online: CpuSet) -> dict[int, int]:
    """CPU → its node; the lowest of several."""
    found: dict[int, int] = {}
    ambiguous = 0
    for node in nodes:
        cpus = read_listed_cpus(files, node)
        if cpus is None:
            linking = (cpu for cpu in bits.members(online) if files.has(f"{CPU}/cpu{cpu}/node{node}"))
            cpus = bits.of(read_linked_cpus(files, node) or linking)
        cpus &= online
        ambiguous |= bits.of(cpu for cpu in bits.members(cpus) if cpu in found)
        found = dict.fromkeys(bits.members(cpus), node) | found
    if ambiguous:
        files.add_gap(f"CPUs {bits.show(ambiguous)} belong to several NUMA nodes; the lowest was used")
    without_node = bits.of(cpu for cpu in bits.members(online) if cpu not in found)
    if without_node and nodes:
        files.add_gap(f"CPUs {bits.show(without_node)} belong to no NUMA node")
    return found


def read_linked_cpus(files: FileReader, node: int) -> list[int]:
    """The CPUs the node's directory links to, present or not; links that point elsewhere are ignored."""
    here = f"{NODE}/node{node}"
    targets = {cpu: files.link(f"{here}/cpu{cpu}") for cpu in files.read_numbered(here, "cpu")}
    return [cpu for cpu, target in targets.items() if target is None or target.rstrip("/").endswith(f"cpu/cpu{cpu}")]


def read_listed_cpus(files: FileReader, node: int) -> CpuSet | None:
    """The CPUs in the node's list, including offline and missing ones."""
    return files.cpus(f"{NODE}/node{node}/cpulist", f"{NODE}/node{node}/cpumap")


def read_memory(files: FileReader, path: str) -> int | None:
    read = files.read(path)
    if read is None:
        return None
    total = _TOTAL.search(read)
    if not total:
        files.add_unusable(path, "has no valid MemTotal")
        return None
    return int(total[1]) * 1024


def read_hugepages(files: FileReader, path: str) -> tuple[HugePages, ...]:
    """The huge pages in a ``hugepages`` directory, smallest first."""
    found = []
    for name in files.names(path):
        size = _PAGES.fullmatch(name)
        count = files.number(f"{path}/{name}/nr_hugepages") if size else None
        if size is None or count is None or count < 0 or not int(size[1]):
            files.add_unusable(path, f"has an entry without a valid huge page count: {bits.quote(name[:40])}")
            continue
        found.append(HugePages(size=int(size[1]) * 1024, count=count))
    return tuple(sorted(found, key=lambda pages: pages.size))


def read_nodes(files: FileReader, nodes: Sequence[int]) -> tuple[NumaNode, ...]:
    found = []
    for node in nodes:
        here = f"{NODE}/node{node}"
        memory, pages = read_memory(files, f"{here}/meminfo"), read_hugepages(files, f"{here}/hugepages")
        huge = sum(each.bytes for each in pages)
        if memory is not None and memory < huge:
            files.add_gap(f"NUMA node {node} reports {memory} bytes of memory, but {huge} bytes of huge pages")
            memory = None
        found.append(NumaNode(node, memory=memory, hugepages=pages))
    without_memory = bits.of(node.id for node in found if node.memory is None)
    if without_memory:
        files.add_gap(f"the memory of NUMA nodes {bits.show(without_memory)} is unknown")
    without_pages = bits.of(node for node in nodes if not files.has(f"{NODE}/node{node}/hugepages"))
    if without_pages:
        files.add_gap(f"NUMA nodes {bits.show(without_pages)} do not report huge pages")
    return tuple(found)


def read_distances(files: FileReader, nodes: Sequence[int]) -> Distances | None:
    """The distances; ``None`` unless every row is valid."""
    matrix = {}
    for node in nodes:
        texts = (files.text(f"{NODE}/node{node}/distance") or "").split()
        valid = all(text.isascii() and text.isdigit() and len(text) < 11 and int(text) < MAX_DISTANCE for text in texts)
        columns = _columns(files, nodes, len(texts)) if texts and valid else None
        if columns is None:
            files.add_gap(f"the distances from NUMA node {node} are unknown, so all distances are")
            return None
        matrix[node] = {column: int(text) for column, text in zip(columns, texts, strict=False) if column in nodes}
    return Distances(matrix) if matrix else None


def _columns(files: FileReader, nodes: Sequence[int], width: int) -> Iterable[int] | None:
    if width == len(nodes):
        return nodes
    for name in ("online", "possible"):
        named = files.read_cpu_list(f"{NODE}/{name}") or 0
        if named.bit_count() == width and not bits.of(nodes) & ~named:
            return bits.members(named)
    return range(width) if width > max(nodes) else None
