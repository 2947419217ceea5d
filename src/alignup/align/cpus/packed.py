"""Packed selection of CPUs: use as few groups of CPUs as possible, and those most in use first.

The machine is a tree: outer groups, inner groups, cores, CPUs. Outer and inner groups are NUMA nodes and sockets, the
larger kind being the outer one. On every level, inside its parent, the group with the fewest free CPUs comes first, so
partly used groups are used up before a whole one is split. Selection walks down the tree: whole outer groups that fit
into the request, whole inner groups, optionally whole caches, whole cores, single CPUs.

Note that a socket or a core counts as whole only if it has the machine's *average* number of CPUs, as in the kubelet;
this matters on uneven machines. (The kubelet compares the number of *free* CPUs with the average and therefore, on such
machines, sometimes takes CPUs that are not free; here all of them must be free too.)
"""

from collections.abc import Callable, Iterable

from alignup.align.bits import CpuSet
from alignup.align.errors import ProviderError
from alignup.align.machine import KubeletView

#: Takes at most this many of the free CPUs; not called for fewer than the number before it.
TakeStep = tuple[int, Callable[[CpuSet, int], CpuSet]]


class PackedSelection:
    """Packed selection on one machine; with *spread*, no whole cores; with *by_cache*, in one cache if possible."""

    def __init__(self, view: KubeletView, *, spread: bool = False, by_cache: bool = False) -> None:
        nodes, sockets = tuple(view.node_cpus.values()), tuple(view.socket_cpus.values())
        cores, caches = tuple(view.core_cpus.values()), tuple(view.cache_cpus.values())
        even_sockets = frozenset(cpus for cpus in sockets if cpus.bit_count() == view.cpus_per_socket)
        self._nodes_first = view.num_sockets >= view.num_nodes
        self._outer, self._inner = (nodes, sockets) if self._nodes_first else (sockets, nodes)
        whole = (frozenset(nodes), even_sockets)
        whole_outer, whole_inner = whole if self._nodes_first else reversed(whole)
        self._inner_of = _children(self._outer, self._inner)
        self._cores_of = _children(self._inner, cores)
        self._caches_of = _children(nodes, caches)
        self._cores_in_cache = _children(caches, cores)
        self._core_size = max(view.cpus_per_core, 1)
        self._whole_cores_of = {
            inner: tuple(core for core in inside if core.bit_count() == self._core_size)
            for inner, inside in self._cores_of.items()
        }
        self._cache_size = view.cpus_per_cache
        self._all = view.all_cpus
        whole_cores: TakeStep = (self._core_size, self._whole_cores)
        last: tuple[TakeStep, ...] = ((1, self._single_spread),) if spread else (whole_cores, (1, self._single))
        cached: tuple[TakeStep, ...] = ((1, self._caches),) if by_cache else ()
        self._steps: tuple[TakeStep, ...] = (
            self._whole_groups(whole_outer, self._outer_order),
            self._whole_groups(whole_inner, self._inner_order),
            *cached,
            *last,
        )

    def take(self, free: CpuSet, count: int) -> CpuSet:
        """Select exactly *count* of the *free* CPUs, or raise ``ProviderError``; none if *count* is not positive."""
        if count <= 0:
            return 0
        left = free & self._all
        if count > left.bit_count():
            raise not_enough_error(free, count)
        taken = 0
        for at_least, step in self._steps:  # the last one takes any CPU
            if count >= at_least > 0:  # 0: there are no such groups
                more = step(left, count)
                taken |= more
                left ^= more
                count -= more.bit_count()
        return taken

    def nodes(self, free: CpuSet) -> list[CpuSet]:
        return self._outer_order(free) if self._nodes_first else self._inner_order(free)

    def _outer_order(self, free: CpuSet) -> list[CpuSet]:
        return _most_used_first(self._outer, within=free, free=free)

    def _inner_order(self, free: CpuSet) -> list[CpuSet]:
        order: list[CpuSet] = []
        for outer in self._outer_order(free):
            inside = self._inner_of[outer]
            order += inside if inside == (outer,) else _most_used_first(inside, within=outer & free, free=free)
        return order

    @staticmethod
    def _whole_groups(whole: frozenset[CpuSet], order: Callable[[CpuSet], list[CpuSet]]) -> TakeStep:
        def step(free: CpuSet, need: int) -> CpuSet:
            return _take_whole(filter(whole.__contains__, order(free)), free=free, need=need)

        return min(map(int.bit_count, whole - {0}), default=0), step

    def _whole_cores(self, free: CpuSet, need: int) -> CpuSet:
        # Whole cores have the same number of CPUs, so inside their parent they are in ascending order.
        size = self._core_size
        taken, used = 0, ~free
        for inner in self._inner_order(free):
            for core in self._whole_cores_of[inner]:
                if not core & used:
                    taken |= core
                    used |= core
                    need -= size
                    if need < size:
                        return taken
        return taken

    def _single(self, free: CpuSet, need: int) -> CpuSet:
        cores = (
            core
            for inner in self._inner_order(free)
            for core in _most_used_first(self._cores_of[inner], within=inner & free, free=free)
        )
        taken = 0
        while taken.bit_count() < need:  # never more than are free
            taken |= lowest_cpus(next(cores) & free, need - taken.bit_count())
        return taken

    def _single_spread(self, free: CpuSet, need: int) -> CpuSet:
        taken = 0
        for socket in self._inner_order(free) if self._nodes_first else self._outer_order(free):
            taken |= lowest_cpus(socket & free & ~taken, need - taken.bit_count())
        return taken

    def _caches(self, free: CpuSet, need: int) -> CpuSet:
        """Take whole caches that fit, then the complete rest inside one more cache, or nothing of it."""
        order = [
            cache
            for node in self.nodes(free)
            for cache in _most_used_first(self._caches_of[node], within=node & free, free=free)
        ]
        taken = _take_whole(order, free=free, need=need) if need >= self._cache_size else 0
        need -= taken.bit_count()
        free &= ~taken
        if not need:
            return taken
        return taken | next((cpus for cache in order if (cpus := self._inside(cache, free, need=need))), 0)

    def _inside(self, cache: CpuSet, free: CpuSet, *, need: int) -> CpuSet:
        """Take exactly *need* CPUs on the first cores of *cache*, or none if the numbers do not match."""
        cores = [core & free for core in self._cores_in_cache[cache] if core & cache & free]
        chosen = 0
        for core in cores[: -(-need // self._core_size)]:
            chosen |= core
        if need % 2 and self._core_size > 1 and chosen.bit_count() > need:
            chosen ^= 1 << chosen.bit_length() - 1
        return chosen if chosen.bit_count() == need else 0


def not_enough_error(free: CpuSet, count: int) -> ProviderError:
    return ProviderError(
        f"not enough cpus available to satisfy request: requested={count}, available={free.bit_count()}"
    )


def lowest_cpus(cpus: CpuSet, count: int) -> CpuSet:
    """Return the *count* lowest members, or all if there are fewer."""
    if count >= cpus.bit_count():
        return cpus
    rest = cpus
    for _ in range(count):
        rest &= rest - 1
    return cpus ^ rest


def _most_used_first(groups: Iterable[CpuSet], *, within: CpuSet, free: CpuSet) -> list[CpuSet]:
    """Return those of *groups* (in the order of their ids) that overlap *within*, the fewest free CPUs first."""
    touched = [group for group in groups if group & within]
    if len(touched) > 1:
        touched.sort(key=lambda group: (group & free).bit_count())
    return touched


def _take_whole(groups: Iterable[CpuSet], *, free: CpuSet, need: int) -> CpuSet:
    """Return the CPUs of those *groups* that are entirely free and fit into *need*."""
    taken = 0
    used = ~free
    for group in groups:
        if group & used:
            continue
        size = group.bit_count()
        if size <= need:
            taken |= group
            used |= group
            need -= size
            if not need:
                break
    return taken


def _children(parents: Iterable[CpuSet], children: Iterable[CpuSet]) -> dict[CpuSet, tuple[CpuSet, ...]]:
    """Return parent → the children that overlap it, in the given order."""
    children = tuple(children)
    return {parent: tuple(child for child in children if child & parent) for parent in parents}
