"""The machine as cAdvisor reads it from the same files, for questions of parity with the kubelet.

cAdvisor reads naively and gives up easily, and the kubelet believes it: nodes in the order of their names (0, 1, 10,
2), CPUs only where a node links to them, cores by the kernel's core id inside one node, no memory where ``meminfo`` is
missing, an L3 cache only if all caches have an id. What is wrong with that view is part of it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import ParseError
from alignup.align.machine import CadvisorNode, HugePages
from alignup.discover import numa
from alignup.discover.cadvisor import CadvisorCore, CadvisorNodeTopology, CadvisorTopology
from alignup.discover.cpu_topology import CPU, topology_path
from alignup.discover.file_reader import FileReader
from alignup.discover.numa import NODE

_MEMORY = re.compile(r"MemTotal:\s*([0-9]+) kB", re.ASCII)
_SOCKET = re.compile(r"^physical id\s*:\s*[0-9]+$", re.ASCII | re.MULTILINE)
_PAGES = re.compile(r"[^-]*-([0-9]{1,18})(?:kB.*)?(?:-.*)?", re.ASCII | re.DOTALL)
_LEADING = re.compile(r"[ \t]*([+-]?[0-9]{1,18})(?![0-9])", re.ASCII)
_KIB = re.compile(r"[ \t]*\+?[0-9]{1,18}K", re.ASCII)
_UNSIGNED = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Cache:
    id: int
    level: int
    shared_by: int


class CadvisorError(Exception):
    """cAdvisor gives up on the machine: the kubelet is told of no CPUs at all."""


def read_topology(tree: FileReader) -> CadvisorTopology:
    """The machine as cAdvisor sees it; ``CadvisorError`` when it would give up."""
    eye = _Eye(tree)
    nodes, num_cpus = eye.nodes() if tree.numbered(NODE, "node") else eye.read_sockets_as_nodes()
    return CadvisorTopology(nodes=nodes, num_cpus=num_cpus, num_sockets=count_sockets(tree))


def count_sockets(tree: FileReader) -> int:
    """As ``/proc/cpuinfo`` counts them, else as the CPUs do; a CPU that does not say is on socket 0."""
    if told := set(_SOCKET.findall(tree.read("proc/cpuinfo") or "")):
        return len(told)
    online = _online(tree)
    return len(
        {
            "0" if (read := tree.read(topology_path(cpu, "physical_package_id"))) is None else read.strip()
            for cpu in tree.numbered(CPU, "cpu")
            if online is None or online >> cpu & 1
        }
    )


class _Eye:
    """cAdvisor looking at one tree: the facts that every CPU is read with."""

    def __init__(self, tree: FileReader) -> None:
        self._tree = tree
        self._there = bits.of(tree.numbered(CPU, "cpu"))
        self._online = _online(tree)
        self._z = _is_z(tree)

    def nodes(self) -> tuple[tuple[CadvisorNodeTopology, ...], int]:
        """All NUMA nodes and the number of CPUs in them."""
        found = []
        for number in sorted(self._tree.numbered(NODE, "node"), key=str):
            here = f"{NODE}/node{number}"
            told = CadvisorNode(
                number,
                memory=self._memory(f"{here}/meminfo"),
                hugepages=self.hugepages(f"{here}/hugepages"),
                distances=self._distances(f"{here}/distance"),
            )
            found.append(self._with_cores(told, self._linked(number)))
        return tuple(found), sum(len(core.threads) for node in found for core in node.cores)

    def read_sockets_as_nodes(self) -> tuple[tuple[CadvisorNodeTopology, ...], int]:
        """Where the kernel has no nodes every socket is one, and CPUs that are off are counted too."""
        cpus = sorted(self._tree.numbered(CPU, "cpu"), key=str)
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
        """The huge pages of a directory, in the order of the names."""
        found = []
        for name in self._tree.names(path):
            size = _PAGES.fullmatch(name)
            count = _LEADING.match((self._tree.read(f"{path}/{name}/nr_hugepages") or "").strip())
            if not size or not count or int(count[1]) < 0:
                raise CadvisorError(f"{path}/{name} does not count huge pages")
            found.append(HugePages(size=int(size[1]) * 1024, count=int(count[1])))
        return tuple(found)

    def _linked(self, node: int) -> list[int]:
        """The CPUs the node links to; where a recording lost all the links, those the node lists, as a kernel would."""
        cpus = numa.read_linked_cpus(self._tree, node) or bits.members(
            self._there & (numa.read_listed_cpus(self._tree, node) or 0)
        )
        return sorted(cpus, key=str)

    def _with_cores(self, told: CadvisorNode, cpus: Iterable[int]) -> CadvisorNodeTopology:
        threads: dict[tuple[object, ...], list[int]] = {}
        for cpu in cpus:
            if self._online is not None and not self._online >> cpu & 1:
                continue
            key = self._core(cpu)
            if key is not None:
                threads.setdefault(key, []).append(cpu)
        uncore, caches = self._uncore([group[0] for group in threads.values()], list(map(len, threads.values())))
        cores = (
            CadvisorCore(int(str(key[0])), int(str(key[1])), tuple(group), uncore.get(group[0], ()))
            for key, group in threads.items()
        )
        return CadvisorNodeTopology(told, tuple(cores), caches)

    def _core(self, cpu: int) -> tuple[object, ...] | None:
        """What tells cores of one node apart; ``None`` for a CPU that cAdvisor passes over."""
        core = self._integer(topology_path(cpu, "core_id"))
        socket = self._integer(topology_path(cpu, "physical_package_id"))
        if core is None or socket is None:
            return None
        if not self._z:
            return core, socket
        books = [self._tree.read(topology_path(cpu, name)) for name in ("book_id", "drawer_id")]
        return None if None in books else (core, socket, *(str(book).strip() for book in books))

    def _uncore(
        self, firsts: Sequence[int], sizes: Sequence[int]
    ) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
        """First thread of a core → its uncore caches, and the caches of the whole node.

        The first cache that cannot be read ends the search in this node; what was found before it stays.
        """
        uncore: dict[int, tuple[int, ...]] = {}
        whole: dict[int, None] = {}
        for first, size in zip(firsts, sizes, strict=True):
            caches = self._caches(first)
            if caches is None:
                break
            high = [cache for cache in caches if cache.level > 2]
            # cAdvisor takes every core of the node for one like this.
            whole |= dict.fromkeys(cache.id for cache in high if cache.shared_by == len(firsts) * size)
            own = dict.fromkeys(cache.id for cache in high if cache.shared_by != len(firsts) * size)
            uncore[first] = tuple(own)
        return uncore, tuple(whole)

    def _caches(self, cpu: int) -> list[_Cache] | None:
        here = f"{CPU}/cpu{cpu}/cache"
        if not self._tree.has(here):
            return None
        found = []
        for name in self._tree.names(here):
            if name.startswith("index"):
                cache = self._cache(f"{here}/{name}")
                if cache is None:
                    return None
                found.append(cache)
        return found

    def _cache(self, path: str) -> _Cache | None:
        read = self._tree.read
        number = _LEADING.match("0" if self._z else read(f"{path}/id") or "")
        level = _LEADING.match(read(f"{path}/level") or "")
        size = _KIB.match(read(f"{path}/size") or "")
        words = [word.strip() for word in (read(f"{path}/shared_cpu_map") or "").split(",")]
        shared = _popcount(words)
        if not number or not level or not size or shared is None or read(f"{path}/type") is None:
            return None
        return _Cache(int(number[1]), int(level[1]), shared)

    def _integer(self, path: str) -> int | None:
        """The number in the file, ``None`` when there is no file; anything else ends the search."""
        read = self._tree.read(path)
        if read is None:
            if self._tree.has(path):
                raise CadvisorError(f"{path} cannot be read")
            return None
        try:
            return bits.parse_integer(read.strip())
        except ParseError as error:
            raise CadvisorError(f"{path}: {str(error)[:200]}") from error

    def _memory(self, path: str) -> int:
        read = self._tree.read(path)
        if read is None:
            return 0
        total = _MEMORY.search(read)
        if not total or len(total[1]) > 18:
            raise CadvisorError(f"{path} does not say how much memory there is")
        return int(total[1]) * 1024

    def _distances(self, path: str) -> tuple[int, ...] | None:
        read = self._tree.read(path)
        if read is None:
            return None
        values = read.strip().split(" ")
        if not all(map(_UNSIGNED.fullmatch, values)):
            raise CadvisorError(f"{path} is no row of distances")
        return tuple(map(int, values))


def _online(tree: FileReader) -> CpuSet | None:
    """The CPUs on the kernel's list, up to where it cannot be read; ``None`` when there is no list, so all are on."""
    path = f"{CPU}/online"
    if not tree.has(path):
        return None
    found = 0
    for part in (tree.read(path) or "").strip().split(","):
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(_UNSIGNED.fullmatch(end) and len(end) < 6 for end in ends) or int(ends[0]) > int(ends[1]):
            break
        found |= (1 << int(ends[1]) + 1) - (1 << int(ends[0]))
    return found


def _popcount(words: Sequence[str]) -> int | None:
    if not all(re.fullmatch(r"[0-9a-fA-F]{1,16}", word) for word in words):
        return None
    return sum(int(word, 16).bit_count() for word in words)


def _is_z(tree: FileReader) -> bool:
    """Whether this is IBM Z, where cAdvisor wants books and drawers too."""
    if "IBM/S390" in (tree.read("proc/cpuinfo") or "")[:200]:
        return True
    return any(tree.has(topology_path(cpu, "book_id")) for cpu in tree.numbered(CPU, "cpu")[:64])
