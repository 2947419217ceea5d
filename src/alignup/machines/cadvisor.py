"""cAdvisor's view of a machine, which the kubelet uses: from the same files, and as the report of a :class:`Machine`.

cAdvisor is naive and gives up easily, and the kubelet relies on it: nodes in the order of their names (0, 1, 10, 2),
CPUs only where a node links to them, cores by the kernel's core id within a node, no memory where ``meminfo`` is
missing, an L3 cache only if all caches have an id. Its mistakes are part of the view.

``MachineInfo`` has fewer facts than the kernel: no CPUs outside nodes and no locality of devices. A machine
read from it has gaps, but its report is exact.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import MachineError, ParseError
from alignup.align.machine import MAX_NODES, CadvisorNode, CadvisorReport, Cpu, Distances, HugePages, Machine, NumaNode
from alignup.machines.file_reader import FileReader
from alignup.machines.topology import CPU, NODE, read_linked_cpus, read_listed_cpus, topology_path

_MEMORY = re.compile(r"MemTotal:\s*([0-9]+) kB", re.ASCII)
_SOCKET = re.compile(r"^physical id\s*:\s*[0-9]+$", re.ASCII | re.MULTILINE)
_PAGES = re.compile(r"[^-]*-([0-9]{1,18})(?:kB.*)?(?:-.*)?", re.ASCII | re.DOTALL)
_LEADING = re.compile(r"[ \t]*([+-]?[0-9]{1,18})(?![0-9])", re.ASCII)
_KIB = re.compile(r"[ \t]*\+?[0-9]{1,18}K", re.ASCII)
_WORD = re.compile(r"[0-9a-fA-F]{1,16}")
_UNSIGNED = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CadvisorCore:
    core_id: int  #: the kernel's; may repeat
    socket: int
    threads: tuple[int, ...]
    uncore: tuple[int, ...] = ()  #: caches above L2 that are not shared by the whole node


@dataclass(frozen=True, slots=True)
class CadvisorNodeTopology:
    reported: CadvisorNode
    cores: tuple[CadvisorCore, ...] = ()
    caches: tuple[int, ...] = ()  #: L3 caches of the whole node


@dataclass(frozen=True, slots=True)
class CadvisorTopology:
    nodes: tuple[CadvisorNodeTopology, ...]
    num_cpus: int
    num_sockets: int

    def report(self) -> CadvisorReport:
        """Return this as the report of a :class:`Machine`; for a CPU reported twice the last one counts."""
        cpus = {
            thread: Cpu(thread, min(core.threads), core.socket, node.reported.id, next(iter(core.uncore), None))
            for node in self.nodes
            for core in node.cores
            for thread in core.threads
        }
        return CadvisorReport(
            cpus=tuple(sorted(cpus.values(), key=lambda cpu: cpu.id)),
            num_cpus=self.num_cpus,
            num_sockets=self.num_sockets,
            nodes=tuple(node.reported for node in self.nodes),
        )


def to_machine(
    topology: CadvisorTopology, *, memory: int | None = None, hugepages: tuple[HugePages, ...] = ()
) -> Machine:
    """Return the hardware that *topology* implies; what cAdvisor does not report is a gap."""
    gaps = ["cAdvisor does not report CPUs outside of NUMA nodes, offline CPUs or PCI devices"]
    report = topology.report()
    nodes = [node.reported for node in topology.nodes if node.reported.id >= 0]
    if len(nodes) < len(topology.nodes):
        gaps.append("a socket without a number was reported as a NUMA node; it is not counted as a node")
    caches = {node.reported.id: node.caches[0] for node in topology.nodes if len(node.caches) == 1}
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
    far = {node.id: node.distances for node in nodes if node.distances}
    distances, reason = None, "some are missing" if nodes else "the machine has no NUMA nodes"
    if nodes and len(far) == len(nodes):
        try:
            distances = Distances.of_rows(far)
        except MachineError as error:
            reason = str(error)
    if distances is None:
        gaps.append(f"the distances between NUMA nodes are unknown: {reason}")
    numa_nodes = (NumaNode(node.id, memory=node.memory, hugepages=node.hugepages) for node in nodes)
    return Machine(
        cpus=cpus,
        nodes=tuple(sorted(numa_nodes, key=lambda node: node.id)),
        distances=distances,
        memory=memory,
        hugepages=hugepages,
        report=report,
        gaps=tuple(gaps),
    ).checked()


def infer_report(machine: Machine) -> CadvisorReport:
    """Return what cAdvisor reports for *machine* if its kernel describes it completely."""
    sharing = Counter(cpu.cache for cpu in machine.cpus)
    reported = [cpu for cpu in machine.cpus if cpu.node is not None]
    cores = Counter((cpu.node, cpu.core) for cpu in reported)
    per_node = Counter(node for node, _ in cores)
    # A cache that all threads of the node share is the node's; cAdvisor assumes that all its cores are equal.
    cpus = (
        replace(cpu, cache=None) if sharing[cpu.cache] == per_node[cpu.node] * cores[cpu.node, cpu.core] else cpu
        for cpu in reported
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
        num_cpus=len(reported),
        num_sockets=len({cpu.socket for cpu in machine.cpus}),
        nodes=tuple(nodes),
    )


class _Cache(NamedTuple):
    id: int
    level: int
    shared_by: int


class CadvisorError(Exception):
    """A machine that cAdvisor gives up on: the kubelet gets no CPUs at all."""


def read_topology(files: FileReader) -> CadvisorTopology:
    """Return the topology that cAdvisor reads; raise ``CadvisorError`` where it gives up."""
    reader = _Reader(files)
    nodes, num_cpus = reader.nodes() if files.read_numbered(NODE, "node") else reader.read_sockets_as_nodes()
    return CadvisorTopology(nodes=nodes, num_cpus=num_cpus, num_sockets=count_sockets(files))


def count_sockets(files: FileReader) -> int:
    """Return the number of sockets in ``/proc/cpuinfo``, else those of the CPUs; a CPU without one is on socket 0."""
    if reported := set(_SOCKET.findall(files.read("proc/cpuinfo") or "")):
        return len(reported)
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

    def nodes(self) -> tuple[tuple[CadvisorNodeTopology, ...], int]:
        nodes = []
        for number in sorted(self._files.read_numbered(NODE, "node"), key=str):
            here = f"{NODE}/node{number}"
            reported = CadvisorNode(
                number,
                memory=self._memory(f"{here}/meminfo"),
                hugepages=self.hugepages(f"{here}/hugepages"),
                distances=self._distances(f"{here}/distance"),
            )
            # If a recording lost the links, those it lists.
            listed = self._present & (read_listed_cpus(self._files, number) or 0)
            cpus = read_linked_cpus(self._files, number) or bits.members(listed)
            nodes.append(self._with_cores(reported, sorted(cpus, key=str)))
        return tuple(nodes), sum(len(core.threads) for node in nodes for core in node.cores)

    def read_sockets_as_nodes(self) -> tuple[tuple[CadvisorNodeTopology, ...], int]:
        """Without NUMA nodes every socket becomes one, and offline CPUs count too."""
        cpus = sorted(self._files.read_numbered(CPU, "cpu"), key=str)
        if not cpus:
            raise CadvisorError("no CPU is available")
        sockets: dict[int, list[int]] = {}
        for cpu in cpus:
            socket = self._integer(topology_path(cpu, "physical_package_id"))
            if socket is not None:
                sockets.setdefault(socket, []).append(cpu)
        nodes = (self._with_cores(CadvisorNode(socket), sockets[socket]) for socket in sorted(sockets))
        return tuple(nodes), len(cpus)

    def hugepages(self, path: str) -> tuple[HugePages, ...]:
        """Return the huge pages in a directory, in the order of names."""
        pages = []
        for name in self._files.names(path):
            size = _PAGES.fullmatch(name)
            count = _LEADING.match((self._files.read(f"{path}/{name}/nr_hugepages") or "").strip())
            if not size or not count or int(count[1]) < 0:
                raise CadvisorError(f"{path}/{name} has no valid huge page count")
            pages.append(HugePages(size=int(size[1]) * 1024, count=int(count[1])))
        return tuple(pages)

    def _with_cores(self, reported: CadvisorNode, cpus: Iterable[int]) -> CadvisorNodeTopology:
        threads: dict[tuple[object, ...], list[int]] = {}
        for cpu in cpus:
            if (self._online is None or self._online >> cpu & 1) and (key := self._core_key(cpu)):
                threads.setdefault(key, []).append(cpu)
        uncore, caches = self._uncore(threads.values())
        cores = (
            CadvisorCore(int(str(key[0])), int(str(key[1])), tuple(group), uncore.get(group[0], ()))
            for key, group in threads.items()
        )
        return CadvisorNodeTopology(reported, tuple(cores), caches)

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

    def _uncore(self, cores: Collection[list[int]]) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """Map the first thread of a core to its uncore caches, and the caches of the whole node.

        The first unreadable cache ends the search in this node; earlier results stay.
        """
        uncore: dict[int, tuple[int, ...]] = {}
        node_caches: dict[int, None] = {}
        for threads in cores:
            caches = self._caches(threads[0])
            if caches is None:
                break
            high = [cache for cache in caches if cache.level > 2]
            all_threads = len(cores) * len(threads)  # cAdvisor assumes that every core of the node is like this one
            node_caches |= dict.fromkeys(cache.id for cache in high if cache.shared_by == all_threads)
            uncore[threads[0]] = tuple(dict.fromkeys(cache.id for cache in high if cache.shared_by != all_threads))
        return uncore, tuple(node_caches)

    def _caches(self, cpu: int) -> list[_Cache] | None:
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

    def _cache(self, path: str) -> _Cache | None:
        read = self._files.read
        number = _LEADING.match("0" if self._is_z else read(f"{path}/id") or "")
        level = _LEADING.match(read(f"{path}/level") or "")
        size = _KIB.match(read(f"{path}/size") or "")
        words = [word.strip() for word in (read(f"{path}/shared_cpu_map") or "").split(",")]
        valid = all(map(_WORD.fullmatch, words))
        if not number or not level or not size or not valid or read(f"{path}/type") is None:
            return None
        return _Cache(int(number[1]), int(level[1]), sum(int(word, 16).bit_count() for word in words))

    def _integer(self, path: str) -> int | None:
        """Return the number in the file, ``None`` if the file is missing; raise for anything else."""
        read = self._files.read(path)
        if read is None:
            if self._files.has(path):
                raise CadvisorError(f"{path} cannot be read")
            return None
        try:
            return bits.parse_integer(read.strip())
        except ParseError as error:
            raise CadvisorError(f"{path}: {str(error)[:200]}") from error

    def _memory(self, path: str) -> int:
        read = self._files.read(path)
        if read is None:
            return 0
        total = _MEMORY.search(read)
        if not total or len(total[1]) > 18:
            raise CadvisorError(f"{path} has no valid MemTotal")
        return int(total[1]) * 1024

    def _distances(self, path: str) -> tuple[int, ...] | None:
        read = self._files.read(path)
        if read is None:
            return None
        values = read.strip().split(" ")
        if len(values) > MAX_NODES or not all(map(_UNSIGNED.fullmatch, values)):
            raise CadvisorError(f"{path} has no valid distances")
        return tuple(map(int, values))


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
