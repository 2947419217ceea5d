"""The CPUs of a machine and its NUMA nodes with memory and distances, from ``/sys/devices/system``.

The kernel numbers cores and sockets as the firmware does: core ids repeat (per die, node or cluster), socket ids have
gaps or are -1, and caches often have no id. Only the sets of siblings are reliable, so groups come from them: they are
read at the lowest CPU of each group, without offline CPUs. A core is numbered after its lowest CPU. Sockets and caches
keep the kernel's numbers where they have one.

Node ids have gaps, nodes may lack CPUs or memory, and a CPU may belong to no node or to several. A row of distances
has one column for each node of the kernel, in ascending order, not one for each id.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import SourceError
from alignup.align.machine import MAX_CPUS, MAX_DISTANCE, Cpu, Distances, HugePages, NumaNode
from alignup.machines.file_reader import FileReader

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

#: The kernel's names for the threads of a core and the CPUs of a socket, newest first.
_CORE = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")
_SOCKET = ("package_cpus_list", "package_cpus", "core_siblings_list", "core_siblings")

_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,16})\s*kB", re.ASCII)
_PAGES = re.compile(r"hugepages-([0-9]{1,16})kB", re.ASCII)
_MODEL = re.compile(r"^(?:model name|cpu model|Model)[ \t]*:[ \t]*([^\n]{1,100})$", re.MULTILINE)
_CACHE_SIZE = re.compile(r"([0-9]{1,9})([KM]?)", re.ASCII)
_CACHE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_CACHE_KINDS = {"Data": "d", "Instruction": "i", "Unified": ""}
_MAX_CACHES = 8


def topology_path(cpu: int, name: str) -> str:
    return f"{CPU}/cpu{cpu}/topology/{name}"


def read_online_cpus(files: FileReader) -> tuple[CpuSet, CpuSet]:
    """Return the online and the offline CPUs, from the kernel's list or, if that is missing, from each CPU."""
    present = bits.of(files.read_numbered(CPU, "cpu"))
    if present.bit_count() > MAX_CPUS:
        raise SourceError(f"{CPU} has {present.bit_count()} CPUs: expected at most {MAX_CPUS}")
    online_cpus = files.read_cpu_list(f"{CPU}/online")
    if not online_cpus:
        files.add_gap("the kernel's list of online CPUs is missing; the state of each CPU was read instead")
        on = bits.of(_online_by_state(files, present))
    else:
        on = online_cpus & present
        if lost_cpus := online_cpus & ~present:
            files.add_gap(f"CPUs {bits.show(lost_cpus)} are online but not described; they are left out")
    return on, present & ~on


def _online_by_state(files: FileReader, present: CpuSet) -> Iterator[int]:
    """Yield the online CPUs; one without a state is online if its topology is known, or if no topology is."""
    described_cpus = bits.of(cpu for cpu in bits.members(present) if files.names(f"{CPU}/cpu{cpu}/topology"))
    for cpu in bits.members(present):
        state = files.text(f"{CPU}/cpu{cpu}/online")
        if state != "0" and (state is not None or not described_cpus or described_cpus >> cpu & 1):
            yield cpu


def read_cpus(files: FileReader, online: CpuSet, nodes: dict[int, int]) -> tuple[Cpu, ...]:
    """Return every online CPU with its core, socket and cache; *nodes* maps CPUs to NUMA nodes."""
    sockets = number_groups(_sockets(files, online))
    cores = _cores(files, online, sockets)
    caches = number_groups(_caches(files, online, cores))
    return tuple(
        Cpu(id=cpu, core=cores[cpu], socket=sockets.get(cpu, -1), node=nodes.get(cpu), cache=caches.get(cpu))
        for cpu in bits.members(online)
    )


def sibling_groups(cpus: CpuSet, siblings: Callable[[int], CpuSet | None]) -> Iterator[CpuSet]:
    """Yield *cpus* in groups, as the lowest CPU of each lists them; a CPU without a list is in no group."""
    other_cpus = cpus
    while other_cpus:
        lowest = (other_cpus & -other_cpus).bit_length() - 1
        members = siblings(lowest)
        group = 1 << lowest | ((members or 0) & other_cpus)
        other_cpus &= ~group
        if members is not None:
            yield group


def number_groups(groups: Iterable[tuple[int | None, CpuSet]]) -> dict[int, int]:
    """Map each CPU to the number of its group: the group's own number if it is unique, else the first unused one."""
    numbers: dict[int, int] = {}
    groups_without_number: list[CpuSet] = []
    used_ids: set[int] = set()
    for number, group in groups:
        if number is None or number < 0 or number in used_ids:
            groups_without_number.append(group)
            continue
        used_ids.add(number)
        numbers |= dict.fromkeys(bits.members(group), number)
    free = iter(number for number in range(len(used_ids) + len(groups_without_number)) if number not in used_ids)
    for group in groups_without_number:
        numbers |= dict.fromkeys(bits.members(group), next(free))
    return numbers


def _sockets(files: FileReader, online: CpuSet) -> Iterator[tuple[int | None, CpuSet]]:
    """Yield sockets by the kernel's id, since an old kernel truncated the sibling sets; by those sets if it has no id.

    On IBM Z ids repeat in every book and drawer.
    """
    groups: dict[tuple[int | None, ...], CpuSet] = {}
    unnamed_cpus = 0
    # The kernel has these for every CPU or for none, so a few are enough.
    first = list(islice(bits.members(online), 4))
    parents = [
        name
        for name in ("book_id", "drawer_id")
        if any(files.read(topology_path(cpu, name)) is not None for cpu in first)
    ]
    for cpu in bits.members(online):
        number = files.number(topology_path(cpu, "physical_package_id"))
        if number is None or number < 0:
            unnamed_cpus |= 1 << cpu
            continue
        key = (number, *(files.number(topology_path(cpu, name)) for name in parents))
        groups[key] = groups.get(key, 0) | 1 << cpu
    yield from ((key[0], group) for key, group in groups.items())
    unknown_cpus = unnamed_cpus
    for group in sibling_groups(unnamed_cpus, lambda cpu: _siblings(files, cpu, "topology", _SOCKET)):
        unknown_cpus &= ~group
        yield None, group
    if named_cpus := unnamed_cpus & ~unknown_cpus:
        files.add_gap(
            f"the kernel does not number the sockets of CPUs {bits.show(named_cpus)}; new numbers were assigned"
        )
    if unknown_cpus:
        files.add_gap(f"the sockets of CPUs {bits.show(unknown_cpus)} are unknown")


def _siblings(files: FileReader, cpu: int, directory: str, names: Iterable[str]) -> CpuSet | None:
    """Return the first set in *directory* of the CPU that contains it; others are wrong."""
    for name in names:
        cpus = files.cpus(f"{CPU}/cpu{cpu}/{directory}/{name}")
        if cpus is not None and cpus >> cpu & 1:
            return cpus
    return None


def _cores(files: FileReader, online: CpuSet, sockets: dict[int, int]) -> dict[int, int]:
    """Map each CPU to the lowest CPU of its core.

    Core ids are ignored where siblings are known: they repeat, and the two halves of an AMD module, which the kernel
    treats as threads of one core, have different ones.
    """

    def siblings(cpu: int) -> CpuSet | None:
        members = _siblings(files, cpu, "topology", _CORE)
        if members is None:
            return None
        return bits.of(other for other in bits.members(members & online) if sockets.get(other) == sockets.get(cpu))

    cores = {cpu: cpu for cpu in bits.members(online)}
    without_siblings = online
    for group in sibling_groups(online, siblings):
        without_siblings &= ~group
        cores |= dict.fromkeys(bits.members(group), (group & -group).bit_length() - 1)
    return cores | _cores_by_id(files, without_siblings, sockets) if without_siblings else cores


def _cores_by_id(files: FileReader, cpus: CpuSet, sockets: dict[int, int]) -> dict[int, int]:
    """Map each CPU to the lowest CPU of its core, by ids, which repeat in each socket, die and cluster."""
    files.add_gap(f"CPUs {bits.show(cpus)} have no thread siblings; core ids were used instead")
    lowest: dict[tuple[object, ...], int] = {}
    cores = {}
    for cpu in bits.members(cpus):
        core, *parents = (files.number(topology_path(cpu, name)) for name in ("core_id", "die_id", "cluster_id"))
        key = ("alone", cpu) if core is None else (sockets.get(cpu), *parents, core)
        cores[cpu] = lowest.setdefault(key, cpu)
    return cores


def _caches(files: FileReader, online: CpuSet, cores: dict[int, int]) -> Iterator[tuple[int | None, CpuSet]]:
    """Yield the L3 caches, found by level, since their index differs.

    A cache without sharers belongs to one core: Itanium reports its caches this way.
    """
    ids: dict[int, int | None] = {}
    undescribed_cpus = 0
    threads: dict[int, CpuSet] = {}
    for cpu, core in cores.items():
        threads[core] = threads.get(core, 0) | 1 << cpu

    def sharing(cpu: int) -> CpuSet | None:
        nonlocal undescribed_cpus
        here = f"{CPU}/cpu{cpu}/cache"
        indexes = [name for name in files.names(here) if name.startswith("index")]
        if not indexes:
            undescribed_cpus |= 1 << cpu
        for index in indexes:
            if files.number(f"{here}/{index}/level") == 3:
                ids[cpu] = files.number(f"{here}/{index}/id")
                members = _siblings(files, cpu, f"cache/{index}", ("shared_cpu_list", "shared_cpu_map"))
                return threads[cores[cpu]] if members is None else members
        return None

    for group in sibling_groups(online, sharing):
        yield ids[(group & -group).bit_length() - 1], group
    if undescribed_cpus:
        files.add_gap(f"the caches of CPUs {bits.show(undescribed_cpus)} are not described")


def map_cpus_to_nodes(files: FileReader, nodes: Sequence[int], online: CpuSet) -> dict[int, int]:
    """Map each CPU to its node; the lowest of several."""
    node_by_cpu: dict[int, int] = {}
    ambiguous = 0
    for node in nodes:
        cpus = read_listed_cpus(files, node)
        if cpus is None:
            cpus_with_link = (cpu for cpu in bits.members(online) if files.has(f"{CPU}/cpu{cpu}/node{node}"))
            cpus = bits.of(read_linked_cpus(files, node) or cpus_with_link)
        cpus &= online
        ambiguous |= bits.of(cpu for cpu in bits.members(cpus) if cpu in node_by_cpu)
        node_by_cpu = dict.fromkeys(bits.members(cpus), node) | node_by_cpu
    if ambiguous:
        files.add_gap(f"CPUs {bits.show(ambiguous)} belong to several NUMA nodes; the lowest was used")
    without_node = bits.of(cpu for cpu in bits.members(online) if cpu not in node_by_cpu)
    if without_node and nodes:
        files.add_gap(f"CPUs {bits.show(without_node)} belong to no NUMA node")
    return node_by_cpu


def read_linked_cpus(files: FileReader, node: int) -> list[int]:
    """Return the CPUs the node's directory links to, present or not; links that point elsewhere are ignored."""
    here = f"{NODE}/node{node}"
    targets = {cpu: files.link(f"{here}/cpu{cpu}") for cpu in files.read_numbered(here, "cpu")}
    return [cpu for cpu, target in targets.items() if target is None or target.rstrip("/").endswith(f"cpu/cpu{cpu}")]


def read_listed_cpus(files: FileReader, node: int) -> CpuSet | None:
    """Return the CPUs in the node's list, including offline and missing ones."""
    return files.cpus(f"{NODE}/node{node}/cpulist", f"{NODE}/node{node}/cpumap")


def read_memory(files: FileReader, path: str) -> int | None:
    text = files.read(path)
    if text is None:
        return None
    total = _TOTAL.search(text)
    if not total:
        files.add_unusable(path, "has no valid MemTotal")
        return None
    return int(total[1]) * 1024


def read_hugepages(files: FileReader, path: str) -> tuple[HugePages, ...]:
    """Return the huge pages in a ``hugepages`` directory, smallest first."""
    pages = []
    for name in files.names(path):
        size = _PAGES.fullmatch(name)
        count = files.number(f"{path}/{name}/nr_hugepages") if size else None
        if size is None or count is None or count < 0 or not int(size[1]):
            files.add_unusable(path, f"has an entry without a valid huge page count: {bits.quote(name[:40])}")
            continue
        pages.append(HugePages(size=int(size[1]) * 1024, count=count))
    return tuple(sorted(pages, key=lambda pages: pages.size))


def read_nodes(files: FileReader, nodes: Sequence[int]) -> tuple[NumaNode, ...]:
    numa_nodes = []
    for node in nodes:
        here = f"{NODE}/node{node}"
        memory, pages = read_memory(files, f"{here}/meminfo"), read_hugepages(files, f"{here}/hugepages")
        huge = sum(pages_of_size.bytes for pages_of_size in pages)
        if memory is not None and memory < huge:
            files.add_gap(f"NUMA node {node} reports {memory} bytes of memory, but {huge} bytes of huge pages")
            memory = None
        numa_nodes.append(NumaNode(node, memory=memory, hugepages=pages))
    without_memory = bits.of(node.id for node in numa_nodes if node.memory is None)
    if without_memory:
        files.add_gap(f"the memory of NUMA nodes {bits.show(without_memory)} is unknown")
    without_pages = bits.of(node for node in nodes if not files.has(f"{NODE}/node{node}/hugepages"))
    if without_pages:
        files.add_gap(f"NUMA nodes {bits.show(without_pages)} do not report huge pages")
    return tuple(numa_nodes)


def read_distances(files: FileReader, nodes: Sequence[int]) -> Distances | None:
    """Return the distances; ``None`` unless every row is valid."""
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
        listed_nodes = files.read_cpu_list(f"{NODE}/{name}") or 0
        if listed_nodes.bit_count() == width and not bits.of(nodes) & ~listed_nodes:
            return bits.members(listed_nodes)
    return range(width) if width > max(nodes) else None


def read_model(files: FileReader) -> str:
    """Return the model of the first CPU, for pictures; empty if it is unknown."""
    text = (files.read("proc/cpuinfo") or "") if files.has("proc/cpuinfo") else ""
    model = _MODEL.search(text)
    return " ".join(model[1].split()) if model else ""


def read_caches(files: FileReader, online: CpuSet) -> tuple[tuple[str, int], ...]:
    """Return the caches of the first CPU, for pictures: name and bytes, the nearest first."""
    first = next(bits.members(online), None)
    here = f"{CPU}/cpu{first}/cache"
    if first is None or not files.has(here):
        return ()
    caches = []
    for number in files.read_numbered(here, "index")[:_MAX_CACHES]:
        paths = [f"{here}/index{number}/{name}" for name in ("level", "type", "size")]
        level, kind, size = ((files.text(path) or "") if files.has(path) else "" for path in paths)
        amount = _CACHE_SIZE.fullmatch(size)
        if level.isascii() and level.isdigit() and kind in _CACHE_KINDS and amount:
            caches.append((f"L{level}{_CACHE_KINDS[kind]}", int(amount[1]) * _CACHE_UNITS[amount[2]]))
    return tuple(sorted(dict(caches).items()))
