"""The CPUs of a machine, from ``/sys/devices/system/cpu``: which are on, and which share a core, a socket, an L3 cache.

The kernel numbers cores and sockets as the firmware does: core ids repeat (per die, per node, per cluster), socket
ids have gaps or are -1, caches often have no id at all. The sets of siblings are what can be trusted, so groups come
from them, read at the lowest CPU of each group, and always without the CPUs that are switched off. A core is numbered
after its lowest CPU here; sockets and caches keep the kernel's number wherever it is one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.errors import SourceError
from alignup.align.machine import Cpu
from alignup.discover.file_reader import FileReader

CPU = "sys/devices/system/cpu"
MAX_CPUS = 1 << 13  #: as many as the largest kernels run

#: What the kernel calls the threads of one core and the CPUs of one socket, the newer name first.
_CORE = ("core_cpus_list", "core_cpus", "thread_siblings_list", "thread_siblings")
_SOCKET = ("package_cpus_list", "package_cpus", "core_siblings_list", "core_siblings")


@dataclass(frozen=True, slots=True)
class OnlineCpus:
    """The CPUs that have a directory, by whether they are on."""

    online: CpuSet
    offline: CpuSet


def topology_path(cpu: int, name: str) -> str:
    """The path of one file about the place of a CPU."""
    return f"{CPU}/cpu{cpu}/topology/{name}"


def read_online_cpus(tree: FileReader) -> OnlineCpus:
    """Which CPUs are on, from the kernel's list or, where that is missing, from each CPU."""
    there = bits.of(tree.numbered(CPU, "cpu"))
    if there.bit_count() > MAX_CPUS:
        raise SourceError(f"{CPU} has {there.bit_count()} CPUs: expected at most {MAX_CPUS}")
    listed = tree.read_cpu_list(f"{CPU}/online")
    if not listed:
        tree.gap("the kernel's list of CPUs that are on is missing; each CPU was asked")
        on = bits.of(_asked(tree, there))
    else:
        on = listed & there
        if lost := listed & ~there:
            tree.gap(f"CPUs {bits.show(lost)} are on, but nothing else is said of them; they are left out")
    return OnlineCpus(online=on, offline=there & ~on)


def _asked(tree: FileReader, there: CpuSet) -> Iterator[int]:
    """The CPUs that say they are on; one that says nothing is on if its place is known, or nobody's is."""
    placed = bits.of(cpu for cpu in bits.members(there) if tree.names(f"{CPU}/cpu{cpu}/topology"))
    for cpu in bits.members(there):
        said = tree.text(f"{CPU}/cpu{cpu}/online")
        if said == "0":
            continue
        if said is not None or not placed or placed >> cpu & 1:
            yield cpu


def read_cpus(tree: FileReader, online: CpuSet, homes: dict[int, int]) -> tuple[Cpu, ...]:
    """Every CPU that is on, with its core, socket and cache; *homes* says which node it is of."""
    sockets = number_groups(_sockets(tree, online))
    cores = _cores(tree, online, sockets)
    caches = number_groups(_caches(tree, online, cores))
    return tuple(
        Cpu(id=cpu, core=cores[cpu], socket=sockets.get(cpu, -1), node=homes.get(cpu), cache=caches.get(cpu))
        for cpu in bits.members(online)
    )


def sibling_groups(cpus: CpuSet, siblings: Callable[[int], CpuSet | None]) -> Iterator[CpuSet]:
    """*cpus* in groups, each as its lowest CPU tells it; a CPU that tells nothing is in none."""
    left = cpus
    while left:
        lowest = (left & -left).bit_length() - 1
        told = siblings(lowest)
        group = 1 << lowest | ((told or 0) & left)
        left &= ~group
        if told is not None:
            yield group


def number_groups(found: Iterable[tuple[int | None, CpuSet]]) -> dict[int, int]:
    """CPU → number of its group: the group's own where it has one that is free, else the first free one."""
    given: dict[int, int] = {}
    waiting: list[CpuSet] = []
    taken: set[int] = set()
    for number, group in found:
        if number is None or number < 0 or number in taken:
            waiting.append(group)
            continue
        taken.add(number)
        given |= dict.fromkeys(bits.members(group), number)
    free = iter(number for number in range(len(taken) + len(waiting)) if number not in taken)
    for group in waiting:
        given |= dict.fromkeys(bits.members(group), next(free))
    return given


def _sockets(tree: FileReader, online: CpuSet) -> Iterator[tuple[int | None, CpuSet]]:
    """Sockets by the kernel's id, for an old kernel cut the sets of siblings short; by those sets where it has none.

    On IBM Z ids start again in every book and drawer.
    """
    named: dict[tuple[int | None, ...], CpuSet] = {}
    unnamed = 0
    books = [name for name in ("book_id", "drawer_id") if _any_has(tree, online, name)]
    for cpu in bits.members(online):
        number = tree.number(topology_path(cpu, "physical_package_id"))
        if number is None or number < 0:
            unnamed |= 1 << cpu
            continue
        key = (number, *(tree.number(topology_path(cpu, name)) for name in books))
        named[key] = named.get(key, 0) | 1 << cpu
    yield from ((key[0], group) for key, group in named.items())
    alone = unnamed
    for group in sibling_groups(unnamed, lambda cpu: _told(tree, cpu, [topology_path(cpu, name) for name in _SOCKET])):
        alone &= ~group
        yield None, group
    if unnamed & ~alone:
        tree.gap(
            f"the kernel does not number the sockets of CPUs {bits.show(unnamed & ~alone)}; they are numbered here"
        )
    if alone:
        tree.gap(f"the sockets of CPUs {bits.show(alone)} are not known")


def _told(tree: FileReader, cpu: int, paths: Iterable[str]) -> CpuSet | None:
    """The first set that has *cpu* itself in it; one that has not is wrong."""
    for path in paths:
        found = tree.cpus(path)
        if found is not None and found >> cpu & 1:
            return found
    return None


def _any_has(tree: FileReader, online: CpuSet, name: str) -> bool:
    """Whether the kernel knows *name*; what it knows it says of every CPU, so the first few are enough."""
    first = [cpu for cpu, _ in zip(bits.members(online), range(4), strict=False)]
    return any(tree.read(topology_path(cpu, name)) is not None for cpu in first)


def _cores(tree: FileReader, online: CpuSet, sockets: dict[int, int]) -> dict[int, int]:
    """CPU → the lowest CPU of its core.

    Core ids do not matter where siblings are told: they repeat, and the two halves of an AMD module, which the kernel
    takes for threads of one core, have different ones.
    """

    def siblings(cpu: int) -> CpuSet | None:
        told = _told(tree, cpu, [topology_path(cpu, name) for name in _CORE])
        if told is None:
            return None
        return bits.of(other for other in bits.members(told & online) if sockets.get(other) == sockets.get(cpu))

    cores = {cpu: cpu for cpu in bits.members(online)}
    unsaid = online
    for group in sibling_groups(online, siblings):
        unsaid &= ~group
        cores |= dict.fromkeys(bits.members(group), (group & -group).bit_length() - 1)
    return cores | _cores_by_id(tree, unsaid, sockets) if unsaid else cores


def _cores_by_id(tree: FileReader, cpus: CpuSet, sockets: dict[int, int]) -> dict[int, int]:
    """CPU → the lowest CPU of its core, from ids only: they start again in each socket, die and cluster."""
    tree.gap(f"the kernel does not say which of CPUs {bits.show(cpus)} are threads of one core; core ids were used")
    lowest: dict[tuple[object, ...], int] = {}
    cores = {}
    for cpu in bits.members(cpus):
        core, *around = (tree.number(topology_path(cpu, name)) for name in ("core_id", "die_id", "cluster_id"))
        key = ("alone", cpu) if core is None else (sockets.get(cpu), *around, core)
        cores[cpu] = lowest.setdefault(key, cpu)
    return cores


def _caches(tree: FileReader, online: CpuSet, cores: dict[int, int]) -> Iterator[tuple[int | None, CpuSet]]:
    """The L3 caches; found by level, since their place among the caches differs.

    A cache that nobody is said to share is that of a core: Itanium tells of its own so.
    """
    ids: dict[int, int | None] = {}
    undescribed = 0
    threads: dict[int, CpuSet] = {}
    for cpu, core in cores.items():
        threads[core] = threads.get(core, 0) | 1 << cpu

    def sharing(cpu: int) -> CpuSet | None:
        nonlocal undescribed
        here = f"{CPU}/cpu{cpu}/cache"
        indexes = [name for name in tree.names(here) if name.startswith("index")]
        if not indexes:
            undescribed |= 1 << cpu
        for name in indexes:
            if tree.number(f"{here}/{name}/level") == 3:
                ids[cpu] = tree.number(f"{here}/{name}/id")
                told = _told(tree, cpu, [f"{here}/{name}/shared_cpu_list", f"{here}/{name}/shared_cpu_map"])
                return threads[cores[cpu]] if told is None else told
        return None

    for group in sibling_groups(online, sharing):
        yield ids[(group & -group).bit_length() - 1], group
    if undescribed:
        tree.gap(f"the caches of CPUs {bits.show(undescribed)} are not described")
