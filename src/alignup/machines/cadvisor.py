"""cAdvisor's view of a machine, which the kubelet uses: from the same files, and as the report of a :class:`Machine`.

cAdvisor is naive and gives up easily, and the kubelet relies on it: nodes in the order of their names (0, 1, 10, 2),
CPUs only where a node links to them, cores by the kernel's core id within a node, no memory where ``meminfo`` is
missing, an L3 cache only if all caches have an id. Its mistakes are part of the view.

``MachineInfo`` has fewer facts than the kernel: no CPUs outside nodes and no locality of devices. A machine
read from it has gaps, but its report is exact.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import FieldError, MachineError, ParseError, SourceError
from alignup.align.machine import (
    MAX_CPUS,
    MAX_NODE_ID,
    MAX_NODES,
    CadvisorNode,
    CadvisorReport,
    Cpu,
    Distances,
    HugePages,
    Machine,
    NumaNode,
)
from alignup.machines.file_reader import FileReader
from alignup.machines.topology import CPU, NODE, read_linked_cpus, read_listed_cpus, topology_path

_MEMORY = re.compile(r"MemTotal:\s*([0-9]+) kB", re.ASCII)
_SOCKET = re.compile(r"^physical id\s*:\s*[0-9]+$", re.ASCII | re.MULTILINE)
_PAGES = re.compile(r"[^-]*-([0-9]{1,18})(?:kB.*)?(?:-.*)?", re.ASCII | re.DOTALL)
_LEADING = re.compile(r"[ \t]*([+-]?[0-9]{1,18})(?![0-9])", re.ASCII)
_KIB = re.compile(r"[ \t]*\+?[0-9]{1,18}K", re.ASCII)
_WORD = re.compile(r"[0-9a-fA-F]{1,16}")
_UNSIGNED = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(slots=True)
class _Pages:
    page_size: int  #: KiB
    num_pages: int


@dataclass(slots=True)
class _Cache:
    id: int = 0
    level: int = 0


@dataclass(slots=True)
class _Core:
    core_id: int  #: the kernel's; may repeat
    thread_ids: list[int]
    socket_id: int = 0
    uncore_caches: list[_Cache] | None = None  #: above L2, and not shared by the whole node


@dataclass(slots=True)
class _Node:
    node_id: int
    memory: int = 0
    hugepages: list[_Pages] | None = None
    cores: list[_Core] | None = None
    caches: list[_Cache] | None = None  #: of the whole node
    distances: list[int] | None = None


@dataclass(slots=True)
class MachineInfo:
    """cAdvisor's description of a machine, in JSON: its API and the kubelet's ``/spec/`` return it."""

    num_cores: int
    topology: list[_Node] | None
    num_sockets: int = 0
    memory_capacity: int = 0
    hugepages: list[_Pages] | None = None

    def report(self) -> CadvisorReport:
        """Return this as the report of a :class:`Machine`; for a CPU reported twice the last one counts."""
        cpus: dict[int, Cpu] = {}
        nodes = []
        for node in self.topology or ():
            distances = None if node.distances is None else tuple(node.distances)
            nodes.append(CadvisorNode(node.node_id, node.memory, _huge_pages(node.hugepages), distances))
            for core in node.cores or ():
                cache = next((cache.id for cache in core.uncore_caches or ()), None)
                lowest = min(core.thread_ids)
                cpus |= {cpu: Cpu(cpu, lowest, core.socket_id, node.node_id, cache) for cpu in core.thread_ids}
        return CadvisorReport(
            cpus=tuple(sorted(cpus.values(), key=lambda cpu: cpu.id)),
            num_cpus=self.num_cores,
            num_sockets=self.num_sockets,
            nodes=tuple(nodes),
        )


def _huge_pages(pages: list[_Pages] | None) -> tuple[HugePages, ...]:
    return tuple(HugePages(size=page.page_size * 1024, count=page.num_pages) for page in pages or ())


def from_machine_info(document: object, *, name: str) -> Machine:
    """Return the hardware that a decoded ``MachineInfo`` implies; what cAdvisor does not report is a gap."""
    from alignup.documents.codec import convert  # noqa: PLC0415 - discovery needs the standard library only

    try:
        info = convert(document, MachineInfo)
    except FieldError as error:
        raise SourceError(error.message, file=name, field=error.field) from error
    except ParseError as error:
        raise SourceError(f"not a valid MachineInfo of cAdvisor: {error}", file=name) from error
    topology = info.topology or []
    _check_integers(document, name)
    _check_limits(topology, name)
    gaps = ["cAdvisor does not report CPUs outside of NUMA nodes, offline CPUs or PCI devices"]
    report = info.report()
    nodes = [node for node in report.nodes or () if node.id >= 0]
    if len(nodes) < len(topology):
        gaps.append("a socket without a number was reported as a NUMA node; it is not counted as a node")
    caches_by_node = {node.node_id: [cache.id for cache in node.caches or () if cache.level == 3] for node in topology}
    caches = {node: ids[0] for node, ids in caches_by_node.items() if len(ids) == 1}
    cpus = tuple(
        Cpu(
            id=cpu.id,
            core=cpu.core,
            socket=max(cpu.socket, -1),
            node=cpu.node if cpu.node is not None and cpu.node >= 0 else None,
            cache=caches.get(cpu.node or 0) if cpu.cache is None else cpu.cache,
        )
        for cpu in report.cpus
    )
    if without_memory := bits.of(node.id for node in nodes if not node.memory):
        gaps.append(f"cAdvisor reports no memory on NUMA nodes {bits.show(without_memory)}, which may mean unknown")
    distances, reason = _distances(nodes)
    if distances is None:
        gaps.append(f"the distances between NUMA nodes are unknown: {reason}")
    numa_nodes = (NumaNode(node.id, memory=node.memory, hugepages=node.hugepages) for node in nodes)
    return Machine(
        cpus=cpus,
        nodes=tuple(sorted(numa_nodes, key=lambda node: node.id)),
        distances=distances,
        memory=info.memory_capacity or None,
        hugepages=_huge_pages(info.hugepages),
        report=report,
        gaps=tuple(gaps),
    ).checked()


def _check_integers(document: object, name: str) -> None:
    """Reject numbers that cAdvisor cannot have written: its integers have 64 bits."""
    queue: list[tuple[str, object]] = [("", document)]
    while queue:
        field, value = queue.pop()
        if isinstance(value, dict):
            queue += [(f"{field}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            queue += [(f"{field}[{index}]", inner) for index, inner in enumerate(value)]
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise SourceError("is not an integer of 64 bits", file=name, field=field)


def _check_limits(nodes: list[_Node], name: str) -> None:
    cores = [core for node in nodes for core in node.cores or ()]
    cpus = sum(len(core.thread_ids) for core in cores)
    for kind, count, most in (("CPUs", cpus, MAX_CPUS), ("NUMA nodes", len(nodes), MAX_NODES)):
        if count > most:
            raise SourceError(f"{name} has {count} {kind}: expected at most {most}")
    for node in nodes:
        if not -MAX_NODE_ID <= node.node_id < MAX_NODE_ID:
            raise SourceError(f"{name} has NUMA node {node.node_id}: expected a number from 0 to {MAX_NODE_ID - 1}")
    if any(not core.thread_ids for core in cores):
        raise SourceError(f"{name} has a core without threads, which cAdvisor never reports")


def _distances(nodes: list[CadvisorNode]) -> tuple[Distances | None, str]:
    """Return the distances, or why they are unknown."""
    if not nodes:
        return None, "the machine has no NUMA nodes"
    far = {node.id: node.distances for node in nodes if node.distances}
    if len(far) < len(nodes):
        return None, "some are missing"
    try:
        return Distances.of_rows(far), ""
    except MachineError as error:
        return None, str(error)


def infer_report(machine: Machine) -> CadvisorReport:
    """Return what cAdvisor reports for *machine* if its kernel describes it completely."""
    sharing = Counter(cpu.cache for cpu in machine.cpus)
    reported_cpus = [cpu for cpu in machine.cpus if cpu.node is not None]
    cores = Counter((cpu.node, cpu.core) for cpu in reported_cpus)
    per_node = Counter(node for node, _ in cores)
    # A cache that all threads of the node share is the node's; cAdvisor assumes that all its cores are equal.
    cpus = (
        replace(cpu, cache=None) if sharing[cpu.cache] == per_node[cpu.node] * cores[cpu.node, cpu.core] else cpu
        for cpu in reported_cpus
    )
    far = machine.distances
    nodes = (
        CadvisorNode(
            node.id,
            memory=node.memory or 0,
            hugepages=tuple(sorted(node.hugepages, key=lambda pages: str(pages.size // 1024))),
            distances=far.matrix[far.ids.index(node.id)] if far else None,
        )
        for node in sorted(machine.nodes, key=lambda node: str(node.id))
    )
    return CadvisorReport(
        cpus=tuple(cpus),
        num_cpus=len(reported_cpus),
        num_sockets=len({cpu.socket for cpu in machine.cpus}),
        nodes=tuple(nodes),
    )


class CadvisorError(Exception):
    """A machine that cAdvisor gives up on: the kubelet gets no CPUs at all."""


def read_machine_info(files: FileReader) -> MachineInfo:
    """Return what cAdvisor reads; raise ``CadvisorError`` where it gives up."""
    reader = _Reader(files)
    nodes, num_cpus = reader.nodes() if files.read_numbered(NODE, "node") else reader.read_sockets_as_nodes()
    return MachineInfo(num_cpus, nodes, count_sockets(files))


def count_sockets(files: FileReader) -> int:
    """Return the number of sockets in ``/proc/cpuinfo``, else of the CPUs; a CPU without a socket is on socket 0."""
    if socket_ids := set(_SOCKET.findall(files.read("proc/cpuinfo") or "")):
        return len(socket_ids)
    online = _online(files)
    cpus = [cpu for cpu in files.read_numbered(CPU, "cpu") if online is None or online >> cpu & 1]
    sockets = [files.read(topology_path(cpu, "physical_package_id")) for cpu in cpus]
    return len({"0" if socket is None else socket.strip() for socket in sockets})


class _Reader:
    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._present = bits.of(files.read_numbered(CPU, "cpu"))
        self._online = _online(files)
        # On IBM Z cAdvisor also needs books and drawers.
        self._is_z = "IBM/S390" in (files.read("proc/cpuinfo") or "")[:200] or any(
            files.has(topology_path(cpu, "book_id")) for cpu in files.read_numbered(CPU, "cpu")[:64]
        )

    def nodes(self) -> tuple[list[_Node], int]:
        nodes = []
        for number in sorted(self._files.read_numbered(NODE, "node"), key=str):
            here = f"{NODE}/node{number}"
            node = _Node(
                number,
                memory=self._memory(f"{here}/meminfo"),
                hugepages=self.hugepages(f"{here}/hugepages"),
                distances=self._distances(f"{here}/distance"),
            )
            # If a recording lost the links, the CPUs it lists.
            listed_cpus = self._present & (read_listed_cpus(self._files, number) or 0)
            cpus = read_linked_cpus(self._files, number) or bits.members(listed_cpus)
            nodes.append(self._with_cores(node, sorted(cpus, key=str)))
        return nodes, sum(len(core.thread_ids) for node in nodes for core in node.cores or ())

    def read_sockets_as_nodes(self) -> tuple[list[_Node], int]:
        """Without NUMA nodes every socket becomes one, and offline CPUs count too."""
        cpus = sorted(self._files.read_numbered(CPU, "cpu"), key=str)
        if not cpus:
            raise CadvisorError("no CPU is available")
        sockets: dict[int, list[int]] = {}
        for cpu in cpus:
            socket = self._integer(topology_path(cpu, "physical_package_id"))
            if socket is not None:
                sockets.setdefault(socket, []).append(cpu)
        return [self._with_cores(_Node(socket), sockets[socket]) for socket in sorted(sockets)], len(cpus)

    def hugepages(self, path: str) -> list[_Pages]:
        """Return the huge pages in a directory, in the order of names."""
        pages = []
        for name in self._files.names(path):
            size = _PAGES.fullmatch(name)
            count = _LEADING.match((self._files.read(f"{path}/{name}/nr_hugepages") or "").strip())
            if not size or not count or int(count[1]) < 0:
                raise CadvisorError(f"{path}/{name} has no valid huge page count")
            pages.append(_Pages(int(size[1]), int(count[1])))
        return pages

    def _with_cores(self, node: _Node, cpus: Iterable[int]) -> _Node:
        """Return *node* with the cores of its *cpus* and the caches above L2.

        The first unreadable cache ends the search for caches in this node; earlier results stay.
        """
        threads: dict[tuple[object, ...], list[int]] = {}
        for cpu in cpus:
            if (self._online is None or self._online >> cpu & 1) and (key := self._core_key(cpu)):
                threads.setdefault(key, []).append(cpu)
        node.cores = [_Core(int(str(key[0])), ids, int(str(key[1]))) for key, ids in threads.items()]
        shared_caches: dict[int, _Cache] = {}
        for core in node.cores:
            caches = self._caches(core.thread_ids[0])
            if caches is None:
                break
            high = [(cache, sharers) for cache, sharers in caches if cache.level > 2]
            all_threads = len(threads) * len(core.thread_ids)  # cAdvisor assumes that every core is like this one
            shared_caches |= {cache.id: cache for cache, sharers in high if sharers == all_threads}
            core.uncore_caches = list({cache.id: cache for cache, sharers in high if sharers != all_threads}.values())
        node.caches = list(shared_caches.values())
        return node

    def _core_key(self, cpu: int) -> tuple[object, ...] | None:
        """Return what distinguishes the cores of one node; ``None`` for a CPU that cAdvisor skips."""
        core = self._integer(topology_path(cpu, "core_id"))
        socket = self._integer(topology_path(cpu, "physical_package_id"))
        if core is None or socket is None:
            return None
        if not self._is_z:
            return core, socket
        books = [self._files.read(topology_path(cpu, name)) for name in ("book_id", "drawer_id")]
        return None if None in books else (core, socket, *(str(book).strip() for book in books))

    def _caches(self, cpu: int) -> list[tuple[_Cache, int]] | None:
        """Return the caches of a CPU, and how many threads share each."""
        here = f"{CPU}/cpu{cpu}/cache"
        if not self._files.has(here):
            return None
        caches = []
        for name in self._files.names(here):
            if name.startswith("index"):
                cache = self._cache(f"{here}/{name}")
                if cache is None:
                    return None
                caches.append(cache)
        return caches

    def _cache(self, path: str) -> tuple[_Cache, int] | None:
        read_file = self._files.read
        number = _LEADING.match("0" if self._is_z else read_file(f"{path}/id") or "")
        level = _LEADING.match(read_file(f"{path}/level") or "")
        size = _KIB.match(read_file(f"{path}/size") or "")
        words = [word.strip() for word in (read_file(f"{path}/shared_cpu_map") or "").split(",")]
        valid = all(map(_WORD.fullmatch, words))
        if not number or not level or not size or not valid or read_file(f"{path}/type") is None:
            return None
        return _Cache(int(number[1]), int(level[1])), sum(int(word, 16).bit_count() for word in words)

    def _integer(self, path: str) -> int | None:
        """Return the number in the file, ``None`` if the file is missing; raise for anything else."""
        text = self._files.read(path)
        if text is None:
            if self._files.has(path):
                raise CadvisorError(f"{path} cannot be read")
            return None
        try:
            return bits.parse_integer(text.strip())
        except ParseError as error:
            raise CadvisorError(f"{path}: {str(error)[:200]}") from error

    def _memory(self, path: str) -> int:
        text = self._files.read(path)
        if text is None:
            return 0
        total = _MEMORY.search(text)
        if not total or len(total[1]) > 18:
            raise CadvisorError(f"{path} has no valid MemTotal")
        return int(total[1]) * 1024

    def _distances(self, path: str) -> list[int] | None:
        text = self._files.read(path)
        if text is None:
            return None
        values = text.strip().split(" ")
        if len(values) > MAX_NODES or not all(map(_UNSIGNED.fullmatch, values)):
            raise CadvisorError(f"{path} has no valid distances")
        return list(map(int, values))


def _online(files: FileReader) -> CpuSet | None:
    """Return the online CPUs up to the first invalid part; ``None`` if the list is missing, so all are online."""
    path = f"{CPU}/online"
    if not files.has(path):
        return None
    online = 0
    for part in (files.read(path) or "").strip().split(","):
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(_UNSIGNED.fullmatch(end) and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
            break
        online |= (1 << int(ends[1]) + 1) - (1 << int(ends[0]))
    return online
