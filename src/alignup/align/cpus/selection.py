"""The selection of CPUs: packed, or distributed over NUMA nodes (option distribute-cpus-across-numa).

*Packed* selection uses as few groups of CPUs as possible, and those most in use first. The machine is a tree: outer
groups, inner groups, cores, CPUs. Outer and inner groups are NUMA nodes and sockets, the larger kind being the outer
one. On every level, inside its parent, the group with the fewest free CPUs comes first, so partly used groups are used
up before a whole one is split. Selection walks down the tree: whole outer groups that fit into the request, whole inner
groups, optionally whole caches, whole cores, single CPUs. Up to 1.37, a socket or a core counts as whole only if it has
the machine's *average* number of CPUs, as in the kubelet; this matters on uneven machines. (The kubelet compares the
number of *free* CPUs with the average and therefore, on such machines, sometimes takes CPUs that are not free; here all
of them must be free too, unless its defects are to be copied.)

In a *distributed* selection, a request goes to as few nodes as can hold it on an empty machine, or to more if
necessary. Each node of a *combination* gives the same share; the remainder is given in rounds, one group of CPUs at a
time, by some of these nodes. Of all combinations, and all ways to give the remainder, the one wins that leaves the free
CPUs most evenly spread over all nodes (the smallest standard deviation, in thousandths), and of equal ones the first in
a fixed order. The kubelet tries them all, up to 2ⁿ times 2ⁿ. Four facts make that unnecessary:

* The sum of free CPUs afterwards is fixed, so only their sum of squares matters, or how much of it is *saved*.
* Nodes with equally many free CPUs are interchangeable: only the first combination of each sequence of sizes counts.
* No way to give the remainder beats taking each group from the node with most free CPUs at that moment. A combination
  that is not better even then is skipped.
* The nodes with most free CPUs make a very good combination, so a good bound is known before the search starts.

Above ``MAX_EXACT_NODES`` nodes, the nodes with most free CPUs are used without a search.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heapreplace
from itertools import combinations
from math import isqrt
from types import MappingProxyType
from typing import NamedTuple

from alignup.align.bits import Bits, CpuSet, union
from alignup.align.errors import ProviderError
from alignup.align.machine import KubeletView
from alignup.align.reason_codes import KUBELET_HANGS
from alignup.align.release import NEWEST, Release

#: Takes at most this many of the free CPUs; not called for fewer than the number before it.
TakeStep = tuple[int, Callable[[CpuSet, int], CpuSet]]


class PackedSelection:
    """Packed selection on one machine; with *spread*, no whole cores; with *by_cache*, in one cache if possible."""

    def __init__(
        self,
        view: KubeletView,
        *,
        spread: bool = False,
        by_cache: bool = False,
        release: Release = NEWEST,
        kubelet_faults: bool = False,
    ) -> None:
        nodes, sockets = tuple(view.node_cpus.values()), tuple(view.socket_cpus.values())
        cores, caches = tuple(view.core_cpus.values()), tuple(view.cache_cpus.values())
        core_size = max(view.cpus_per_core, 1)
        whole_sockets, large_sockets = _whole_by_size(
            sockets, view.cpus_per_socket, release, kubelet_faults=kubelet_faults
        )
        whole_cores, self._large_cores = _whole_by_size(cores, core_size, release, kubelet_faults=kubelet_faults)
        self._nodes_first = view.num_sockets >= view.num_nodes
        self._outer = nodes if self._nodes_first else sockets
        self._inner = sockets if self._nodes_first else nodes
        whole: tuple[tuple[frozenset[CpuSet], Mapping[CpuSet, int]], ...]
        whole = ((frozenset(nodes), {}), (whole_sockets, large_sockets))
        whole_outer, whole_inner = whole if self._nodes_first else whole[::-1]
        self._inner_of = _children(self._outer, self._inner)
        self._cores_of = _children(self._inner, cores)
        self._caches_of = _children(nodes, caches)
        self._cores_in_cache = _children(caches, cores)
        self._core_size = core_size
        self._smallest_core = min(map(self._free_if_whole, whole_cores), default=0)
        self._whole_cores_of = {
            inner: tuple(sorted(filter(whole_cores.__contains__, inside), key=self._free_if_whole))
            for inner, inside in self._cores_of.items()
        }
        self._cache_size = view.cpus_per_cache
        self._splits_cores = release.splits_cores_in_cache
        self._all = view.all_cpus
        self._cores_of_socket = _children(sockets, cores) if spread and release.goes_round_cores else {}
        take_cores: TakeStep = (self._smallest_core, self._whole_cores)
        last: tuple[TakeStep, ...] = ((1, self._single_spread),) if spread else (take_cores, (1, self._single))
        cache_steps: tuple[TakeStep, ...] = ((1, self._caches),) if by_cache else ()
        self._steps: tuple[TakeStep, ...] = (
            self._whole_groups(*whole_outer, self._order),
            self._whole_groups(*whole_inner, partial(self._order, inner=True)),
            *cache_steps,
            *last,
        )

    def take(self, free: CpuSet, count: int) -> CpuSet:
        """Select exactly *count* of the *free* CPUs, or raise ``ProviderError``; none if *count* is not positive."""
        if count <= 0:
            return 0
        rest = free & self._all
        if count > rest.bit_count():
            raise not_enough_error(free, count)
        selection = 0
        for at_least, step in self._steps:  # the last one takes any CPU
            if count >= at_least > 0:  # 0: there are no such groups
                more = step(rest, count)
                selection |= more
                rest &= ~more
                count -= more.bit_count()
        return selection

    def nodes(self, free: CpuSet) -> list[CpuSet]:
        return self._order(free, inner=not self._nodes_first)

    def _order(self, free: CpuSet, *, inner: bool = False) -> list[CpuSet]:
        outer_order = _most_used_first(self._outer, within=free, free=free)
        if not inner:
            return outer_order
        order: list[CpuSet] = []
        for outer in outer_order:
            inside = self._inner_of[outer]
            order += inside if inside == (outer,) else _most_used_first(inside, within=outer & free, free=free)
        return order

    @staticmethod
    def _whole_groups(
        whole: frozenset[CpuSet], average_sizes: Mapping[CpuSet, int], order: Callable[[CpuSet], list[CpuSet]]
    ) -> TakeStep:
        def step(free: CpuSet, need: int) -> CpuSet:
            groups = filter(whole.__contains__, order(free))
            return _take_whole(groups, free=free, need=need, average_sizes=average_sizes)

        return min(map(int.bit_count, whole - {0}), default=0), step

    def _free_if_whole(self, core: CpuSet) -> int:
        return self._large_cores.get(core, core.bit_count())

    def _whole_cores(self, free: CpuSet, need: int) -> CpuSet:
        size = self._smallest_core
        selection, used_cpus = 0, ~free
        for inner in self._order(free, inner=True):
            for core in self._whole_cores_of[inner]:
                average = self._large_cores.get(core)
                if not core & used_cpus if average is None else (core & free).bit_count() == average:
                    if core.bit_count() > need:
                        continue
                    selection |= core
                    used_cpus |= core
                    need -= core.bit_count()
                    if need < size:
                        return selection
        return selection

    def _single(self, free: CpuSet, need: int) -> CpuSet:
        cores = (
            core
            for inner in self._order(free, inner=True)
            for core in _most_used_first(self._cores_of[inner], within=inner & free, free=free)
        )
        selection = 0
        while selection.bit_count() < need:  # never more than are free
            selection |= lowest_cpus(next(cores) & free, need - selection.bit_count())
        return selection

    def _single_spread(self, free: CpuSet, need: int) -> CpuSet:
        selection = 0
        for socket in self._order(free, inner=self._nodes_first):
            inside = socket & free & ~selection
            if self._cores_of_socket and inside.bit_count() > need - selection.bit_count():
                cores = _most_used_first(self._cores_of_socket[socket], within=inside, free=inside)
                return selection | _in_rounds([core & inside for core in cores], need - selection.bit_count())
            selection |= lowest_cpus(inside, need - selection.bit_count())
        return selection

    def _caches(self, free: CpuSet, need: int) -> CpuSet:
        """Take whole caches that fit, then the complete rest inside one more cache, or nothing of the rest."""
        order = [
            cache
            for node in self.nodes(free)
            for cache in _most_used_first(self._caches_of[node], within=node & free, free=free)
        ]
        selection = _take_whole(order, free=free, need=need) if need >= self._cache_size else 0
        need -= selection.bit_count()
        free &= ~selection
        if not need:
            return selection
        return selection | next((cpus for cache in order if (cpus := self._inside(cache, free, need=need))), 0)

    def _inside(self, cache: CpuSet, free: CpuSet, *, need: int) -> CpuSet:
        """Take exactly *need* CPUs on the first cores of *cache*, or none if the numbers do not match."""
        cores = [core & free for core in self._cores_in_cache[cache] if core & cache & free]
        count = -(-need // self._core_size) if self._splits_cores else need // self._core_size
        selection = 0
        for core in cores[:count]:
            selection |= core
        if self._splits_cores and need % 2 and self._core_size > 1 and selection.bit_count() > need:
            selection ^= 1 << selection.bit_length() - 1
        return selection if selection.bit_count() == need else 0


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


def _in_rounds(cores: Sequence[CpuSet], need: int) -> CpuSet:
    """Return the lowest CPU of each of *cores*, then the second lowest of each, and so on: *need* of them."""
    selection = 0
    while need:
        for core in cores:
            lowest = core & ~selection & -(core & ~selection)
            if lowest and need:
                selection |= lowest
                need -= 1
    return selection


def _whole_by_size(
    groups: Sequence[CpuSet], average: int, release: Release, *, kubelet_faults: bool
) -> tuple[frozenset[CpuSet], Mapping[CpuSet, int]]:
    """Return the groups that can be taken as a whole.

    To some, a kubelet with defects gives an average size: it takes such a group if that many of its CPUs are free.
    """
    if release.takes_groups_by_size:
        return frozenset(groups), {}
    even = frozenset(group for group in groups if group.bit_count() == average)
    large = {group: average for group in groups if group.bit_count() > average > 0} if kubelet_faults else {}
    return even | large.keys(), large


def _most_used_first(groups: Iterable[CpuSet], *, within: CpuSet, free: CpuSet) -> list[CpuSet]:
    """Return the *groups* (in the order of their ids) that overlap *within*, groups with fewest free CPUs first."""
    touched_groups = [group for group in groups if group & within]
    if len(touched_groups) > 1:
        touched_groups.sort(key=lambda group: (group & free).bit_count())
    return touched_groups


def _take_whole(
    groups: Iterable[CpuSet], *, free: CpuSet, need: int, average_sizes: Mapping[CpuSet, int] = MappingProxyType({})
) -> CpuSet:
    """Return the CPUs of the *groups* that are entirely free and fit into *need*.

    A group with an average size counts as free if that many of its CPUs are.
    """
    selection = 0
    used_cpus = ~free
    for group in groups:
        average = average_sizes.get(group)
        if group & used_cpus if average is None else (group & free).bit_count() != average:
            continue
        size = group.bit_count()
        if size <= need:
            selection |= group
            used_cpus |= group
            need -= size
            if not need:
                break
    return selection


def _children(parents: Iterable[CpuSet], children: Iterable[CpuSet]) -> dict[CpuSet, tuple[CpuSet, ...]]:
    """Return parent → the children that overlap it, in the given order."""
    children = tuple(children)
    return {parent: tuple(child for child in children if child & parent) for parent in parents}


#: The error that stands for an endless loop of the kubelet, in which it keeps its lock.
ENDLESS = "the kubelet does not return from the selection of CPUs"
MAX_EXACT_NODES = 16  #: the largest number of NUMA nodes with an exact search

Indexes = tuple[int, ...]  #: nodes by their index in a list of nodes


class DistributionPlan(NamedTuple):
    """A shared request: each of ``nodes`` gives its ``share``, and one more group each time it is in ``extra``."""

    nodes: Indexes
    share: int
    extra: Indexes
    #: the nodes that take turns in giving the remainder, and the nodes of which they were chosen
    turns: Indexes = ()
    able: Indexes = ()
    perfect: bool = False  #: whether all nodes have equally many free CPUs afterwards
    by_socket: bool = False  #: whether sockets count

    def overwritten(self, sizes: Sequence[int], count: int, *, group: int) -> "DistributionPlan":
        """Return what becomes of the plan in the kubelet, which keeps it in arrays that later combinations overwrite.

        Combinations with the same first nodes share an array. Once a plan is perfect, only one more is tried.
        """
        every = tuple(range(len(sizes)))
        nodes = _last_alike(self.nodes, every)
        if self.perfect:
            later = next((later for later in combinations(every, len(self.nodes)) if later > self.nodes), self.nodes)
            fresh = _fresh_length(len(later))
            nodes = later if later[:fresh] == self.nodes[:fresh] else self.nodes
        even = count // len(nodes) // group * group
        share = min(even, *(sizes[index] // group * group for index in nodes))
        return DistributionPlan(nodes, share, extra=(), turns=_last_alike(self.turns, self.able))


class DistributedSelection:
    """Distributed selection on one machine, *group* CPUs at a time; with *by_socket*, on one socket if possible."""

    def __init__(
        self,
        view: KubeletView,
        *,
        group: int = 1,
        by_socket: bool = False,
        release: Release = NEWEST,
        kubelet_faults: bool = False,
    ) -> None:
        self._packed = PackedSelection(view, release=release, kubelet_faults=kubelet_faults)
        self._may_be_endless = group > 1 and kubelet_faults and not release.distributes_in_groups
        self._overwrites = kubelet_faults and not release.copies_combinations
        self._keeps_width = release.keeps_hint_width
        self._group = group
        self._groups_per_node = _ceil(_ceil(view.num_cpus, group), view.num_nodes)
        self._all = view.all_cpus
        self._sockets = tuple(view.socket_cpus.values()) if by_socket else ()

    def take(self, free: CpuSet, count: int, *, width: int = 0) -> CpuSet:
        """Select CPUs; *width* is the number of nodes of the hint; the release may use all of them."""
        if count <= 0 or count % self._group:
            return self._packed.take(free, count)
        if count > (free & self._all).bit_count():
            raise not_enough_error(free, count)
        order = tuple(dict.fromkeys(self._packed.nodes(free)))  # a node on two sockets occurs twice
        nodes = [node & free for node in order]
        fewest = _ceil(count // self._group, self._groups_per_node)
        if self._keeps_width and fewest < width <= min(count // self._group, len(nodes)):
            fewest = width
        sizes = [node.bit_count() for node in nodes]
        plan = plan_distribution(
            sizes,
            count,
            group=self._group,
            fewest=fewest,
            sockets=[self._touched(node) for node in order] if self._sockets else None,
        )
        if plan is None:
            return self._packed.take(free, count)
        widths = range(fewest, len(plan.nodes) + 1)
        if self._may_be_endless and _is_endless(sizes, count, plan, group=self._group, widths=widths):
            raise ProviderError(ENDLESS, reason=KUBELET_HANGS)
        if self._overwrites:
            plan = plan.overwritten(sizes, count, group=self._group)
        selection = 0
        for index in plan.nodes:
            selection |= self._packed.take(nodes[index], plan.share)
        if self._overwrites:
            return self._take_in_turns(selection, [nodes[index] for index in plan.turns], count)
        for index in plan.extra:
            selection |= self._packed.take(nodes[index] & ~selection, self._group)
        return selection

    def _take_in_turns(self, selection: CpuSet, nodes: Sequence[CpuSet], count: int) -> CpuSet:
        """Return *selection* with more groups of CPUs of *nodes*, which take turns, up to *count* CPUs."""
        while selection.bit_count() < count:
            earlier = selection
            for node in nodes:
                rest = node & ~selection
                if rest.bit_count() >= self._group and selection.bit_count() < count:
                    selection |= self._packed.take(rest, self._group)
            if selection == earlier:
                raise ProviderError(ENDLESS, reason=KUBELET_HANGS)
        return selection

    def _touched(self, node: CpuSet) -> Bits:
        return sum(1 << index for index, socket in enumerate(self._sockets) if socket & node)


def plan_distribution(
    sizes: Sequence[int], count: int, *, group: int = 1, fewest: int = 1, sockets: Sequence[Bits] | None = None
) -> DistributionPlan | None:
    """Return the best way to take *count* CPUs, a multiple of *group*, from nodes with *sizes* free CPUs.

    At least *fewest* nodes are used, and no more than necessary. With *sockets* (the sockets of each node), a
    combination on one socket beats all others. ``None`` if no number of nodes can share the request.
    """
    for width in range(fewest, min(count // group, len(sizes)) + 1):
        search = _Search(sizes, count, group=group, width=width, sockets=sockets)
        if search.richest:  # if the richest combination has not enough, none has
            return search.best()
    return None


class _Search:
    def __init__(
        self, sizes: Sequence[int], count: int, *, group: int, width: int, sockets: Sequence[Bits] | None
    ) -> None:
        self._sizes = sizes
        self._sockets = sockets
        self._groups = count // group
        self._group = group
        self._width = width
        self._even_share = count // width // group * group
        self._exact = len(sizes) <= MAX_EXACT_NODES
        self._squares = sum(size * size for size in sizes)
        self._left = sum(sizes) - count
        # With sockets, the share is at most the share of the smallest node; without, such a node is excluded.
        self._able = [index for index, size in enumerate(sizes) if sockets or size >= self._even_share]
        #: the richest combination of all nodes, and of each socket, where it has enough
        self.richest: list[Indexes] = []
        alike = [
            [index for index, socket_mask in enumerate(sockets or ()) if socket_mask == group]
            for group in sorted(set(sockets or ()))
        ]
        for pool in (self._able, *alike):
            indexes = tuple(sorted(sorted(pool, key=lambda index: -sizes[index])[:width]))
            if len(indexes) == width and self._has_enough(indexes):
                self.richest.append(indexes)

    def best(self) -> DistributionPlan:
        best = min(self.richest, key=self._rank)
        if self._exact:
            best = self._first_best(best)
        _, goal = self._rank(best)
        share, savings = self._even_part(best)
        remainder = self._remainder(best, share)
        combination = (
            remainder.first(lambda more: self._score(savings + more) <= goal) if self._exact else remainder.richest()
        )
        able = tuple(index for index in best if self._sizes[index] - share >= self._group)
        turns = tuple(best[index] for index in combination)
        extra_groups = tuple(best[index] for index in remainder.in_rounds(combination))
        perfect = goal == 0 and not self._rank(best)[0]
        return DistributionPlan(best, share, extra_groups, turns, able, perfect, by_socket=bool(self._sockets))

    def _first_best(self, start: Indexes) -> Indexes:
        """Return the first of the best combinations; *start* is one to start with."""
        crosses, score = self._rank(start)
        bar = (crosses, score + 1)
        kinds = [(self._sizes[index], self._sockets and self._sockets[index]) for index in self._able]
        for positions in _first_of_each(kinds, self._width):
            indexes = tuple([self._able[index] for index in positions])
            if not self._has_enough(indexes) or self._rank(indexes, ideal=True) >= bar:
                continue
            rank = self._rank(indexes)
            if rank < bar:
                start, bar = indexes, rank
                if rank == (False, 0):
                    break
        return start

    def _has_enough(self, indexes: Indexes) -> bool:
        return sum([self._sizes[index] // self._group for index in indexes]) >= self._groups

    def _even_part(self, indexes: Indexes) -> tuple[int, int]:
        """Return the even share of each of *indexes*, and how much of the squares it saves."""
        share = self._even_share
        sizes = [self._sizes[index] for index in indexes]
        if self._sockets:
            share = min(share, min(sizes) // self._group * self._group)
        return share, share * (2 * sum(sizes) - share * self._width)

    def _remainder(self, indexes: Indexes, share: int) -> "_Remainder":
        sizes = [self._sizes[index] - share for index in indexes]
        return _Remainder(sizes, self._groups - share // self._group * self._width, group=self._group)

    def _rank(self, indexes: Indexes, *, ideal: bool = False) -> tuple[bool, int]:
        """Return the rank of a combination, or a lower bound for it (*ideal*); smaller is better."""
        share, savings = self._even_part(indexes)
        remainder = self._remainder(indexes, share)
        savings += remainder.ideal() if ideal else remainder.most(exact=self._exact)
        socket_mask = union([self._sockets[index] for index in indexes]) if self._sockets else 0
        return socket_mask & socket_mask - 1 > 0, self._score(savings)

    def _score(self, savings: int) -> int:
        """Return the standard deviation of free CPUs per node, in thousandths, from a mean rounded to thousandths."""
        nodes = len(self._sizes)
        mean = (2000 * self._left + nodes) // (2 * nodes)
        squares = 1_000_000 * (self._squares - savings) - 2000 * mean * self._left + nodes * mean * mean
        return (isqrt(4 * squares // nodes) + 1) // 2


class _Remainder:
    """The remaining *groups*, taken in rounds from some nodes with *sizes* free CPUs, in that order."""

    def __init__(self, sizes: Sequence[int], groups: int, *, group: int) -> None:
        self._left = sizes
        self._groups = groups
        self._group = group

    def most(self, *, exact: bool) -> int:
        """Return the most that rounds can save; if not *exact*, what the richest nodes save."""
        if not self._groups:
            return 0
        able = [size for size in self._left if size >= self._group]
        sizes = sorted(able)
        # With one group each, the richest nodes save most; with more groups than nodes, all take part.
        most = self._saved(sizes[-self._groups :] if self._groups <= len(able) else able)
        for number in range(min(self._groups - 1, len(able)) if exact else 0, 0, -1):
            if self.ideal(sizes[-number:]) <= most:
                break
            most = max(most, *map(self._saved, combinations(able, number)))
        return most

    def first(self, good: Callable[[int], bool]) -> Indexes:
        """Return the first nodes, in the kubelet's order, that save enough to be *good*: many before few."""
        able = [index for index, size in enumerate(self._left) if size >= self._group]
        sizes = [self._left[index] for index in able]
        for number in range(len(able) if self._groups else 0, 0, -1):
            # Of more nodes than groups, only the first ones give a group, and the others must still follow them.
            group_count = min(number, self._groups)
            window = len(able) - (number - group_count)
            richest = sorted(sizes[:window])[-group_count:]
            ceiling = self._saved(richest) if group_count == self._groups else self.ideal(richest)
            if ceiling < 0 or not good(ceiling):
                continue
            for combination in combinations(range(window), group_count):
                savings = self._saved([sizes[index] for index in combination])
                if savings >= 0 and good(savings):
                    others = range(combination[-1] + 1, combination[-1] + 1 + number - group_count)
                    return tuple(able[index] for index in (*combination, *others))
        return ()

    def richest(self) -> Indexes:
        """Return the nodes with the most CPUs: as many as there are groups, or all nodes that have a whole group."""
        able = [index for index, size in enumerate(self._left) if size >= self._group]
        return tuple(sorted(sorted(able, key=lambda index: -self._left[index])[: self._groups]))

    def in_rounds(self, indexes: Indexes) -> Indexes:
        """Return the nodes that give a group, in order, if *indexes* take turns."""
        extra_groups: list[int] = []
        for number in range(self._groups):
            extra_groups += [index for index in indexes if self._left[index] // self._group > number]
            if len(extra_groups) >= self._groups:
                break
        return tuple(extra_groups[: self._groups])

    def _saved(self, sizes: Sequence[int]) -> int:
        """Return what rounds over *sizes* save; -1 without enough whole groups (the kubelet loops forever then)."""
        group, groups = self._group, self._groups
        sizes = list(sizes)
        savings = 0
        while groups:
            if not sizes:
                return -1
            rounds = min(min(sizes) // group, groups // len(sizes))
            if rounds:
                given_cpus = rounds * group
                savings += given_cpus * (2 * sum(sizes) - given_cpus * len(sizes))
                groups -= rounds * len(sizes)
                sizes = [size - given_cpus for size in sizes if size - given_cpus >= group]
            else:
                savings += group * (2 * sum(sizes[:groups]) - group * groups)
                groups = 0
        return savings

    def ideal(self, sizes: Sequence[int] | None = None) -> int:
        """Return what taking each group from the richest of *sizes* (or all) saves; -1 if they do not have enough."""
        group = self._group
        heap = [-size for size in (self._left if sizes is None else sizes)]
        heapify(heap)
        savings = 0
        for _ in range(self._groups):
            richest = -heap[0]
            if richest < group:
                return -1
            savings += group * (2 * richest - group)
            heapreplace(heap, group - richest)
        return savings


def _is_endless(sizes: Sequence[int], count: int, plan: DistributionPlan, *, group: int, widths: range) -> bool:
    """Return whether the kubelet, on its way to *plan*, tries nodes with enough free CPUs, but not in whole groups."""
    if len(sizes) > MAX_EXACT_NODES or not any(size % group for size in sizes):
        return False
    for width in widths:
        for combination in combinations(range(len(sizes)), width):
            if plan.perfect and width == len(plan.nodes) and combination > plan.nodes:
                return False
            whole = [sizes[index] // group * group for index in combination]
            share = count // width // group * group
            share = min(share, *whole) if plan.by_socket else share
            rests = [sizes[index] - share for index in combination]
            if sum(whole) >= count and min(rests) >= 0 and _gives_endlessly(rests, count - share * width, group=group):
                return True
    return False


def _gives_endlessly(sizes: Sequence[int], rest: int, *, group: int) -> bool:
    able = [size for size in sizes if size >= group] if rest else []
    return any(
        sum(some) >= rest > sum(size // group for size in some) * group
        for number in range(len(able), 0, -1)
        for some in combinations(able, number)
    )


def _fresh_length(length: int) -> int:
    """Return how many of the first nodes of a combination of this length decide which array the kubelet puts it in."""
    return max((size for size in (1, 2, 3, 5, 9) if size <= length), default=0)


def _last_alike(indexes: Indexes, every: Indexes) -> Indexes:
    """Return the last combination of *every* with the same first nodes as *indexes*."""
    rest = len(indexes) - _fresh_length(len(indexes))
    return (*indexes[: len(indexes) - rest], *every[len(every) - rest :]) if rest else indexes


def _first_of_each(kinds: Sequence[object], width: int) -> Iterator[Indexes]:
    """Yield, of all combinations of *width* indexes, the first for each sequence of kinds, in lexicographic order."""
    if width == 0:
        yield ()
        return
    numbers = set()
    for index in range(len(kinds) - width + 1):
        if kinds[index] not in numbers:
            numbers.add(kinds[index])
            for rest in _first_of_each(kinds[index + 1 :], width - 1):
                yield (index, *[index + 1 + other for other in rest])


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
