"""Spreading a request evenly over NUMA nodes (the option distribute-cpus-across-numa).

A request goes to as few nodes as could hold it on an empty machine, or more if it must. Each node of a *combination*
gives the same share; what does not divide is dealt out in rounds, a group of CPUs at a time, to some of these nodes.
Of all combinations, and all ways to deal, the one wins that leaves the free CPUs spread most evenly over all nodes (the
smallest standard deviation, in thousandths); of equally good ones the first, in a fixed order. The kubelet tries them
all, up to 2ⁿ times 2ⁿ. Four facts make that unnecessary:

* What is left adds up to the same whatever is chosen, so only its sum of squares matters, or how much of it is *saved*.
* Nodes with as many free CPUs are interchangeable: only the first combination of each sequence of sizes is looked at.
* No dealing beats taking every group from the node that is richest at that moment. A combination for which even this
  would not be better than the best one known is passed over.
* The richest nodes make a very good combination, so how good it is becomes known before the search begins.

Above ``MAX_EXACT_NODES`` nodes the richest combination is taken as it is, and the rest goes to its richest nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import combinations
from math import isqrt
from typing import NamedTuple

from alignup.align.bits import Bits, CpuSet
from alignup.align.cpus.packed import PackedSelection, not_enough_error
from alignup.align.machine import KubeletView

#: The most NUMA nodes for which the best combination is searched for.
MAX_EXACT_NODES = 16

Indexes = tuple[int, ...]  #: nodes, by their place in a list of nodes


class DistributionPlan(NamedTuple):
    """Who gives what: each of ``nodes`` its ``share``, and one group more each time it is in ``dealt``."""

    nodes: Indexes
    share: int
    dealt: Indexes


class DistributedSelection:
    """Distributed selection on one machine, *group* CPUs at a time; with *by_socket* on one socket if it can be."""

    def __init__(self, view: KubeletView, *, group: int = 1, by_socket: bool = False) -> None:
        self._packed = PackedSelection(view)
        self._group = group
        self._groups_per_node = _ceil(_ceil(view.num_cpus, group), view.num_nodes)
        self._all = view.all_cpus
        self._sockets = tuple(view.socket_cpus.values()) if by_socket else ()

    def take(self, free: CpuSet, count: int) -> CpuSet:
        """Choose exactly *count* of the *free* CPUs."""
        if count <= 0 or count % self._group:
            return self._packed.take(free, count)
        if count > (free & self._all).bit_count():
            raise not_enough_error(free, count)
        order = tuple(dict.fromkeys(self._packed.nodes(free)))  # a node on two sockets is met twice
        nodes = [node & free for node in order]
        found = plan_distribution(
            [node.bit_count() for node in nodes],
            count,
            group=self._group,
            fewest=_ceil(count // self._group, self._groups_per_node),
            sockets=[self._touched(node) for node in order] if self._sockets else None,
        )
        return self._carry_out(found, nodes) if found else self._packed.take(free, count)

    def _touched(self, node: CpuSet) -> Bits:
        """The sockets a node is on, as a set of places."""
        return sum(1 << place for place, socket in enumerate(self._sockets) if socket & node)

    def _carry_out(self, plan: DistributionPlan, nodes: Sequence[CpuSet]) -> CpuSet:
        taken = 0
        for place in plan.nodes:
            taken |= self._packed.take(nodes[place], plan.share)
        for place in plan.dealt:
            taken |= self._packed.take(nodes[place] & ~taken, self._group)
        return taken


def plan_distribution(
    sizes: Sequence[int], count: int, *, group: int = 1, fewest: int = 1, sockets: Sequence[Bits] | None = None
) -> DistributionPlan | None:
    """The best way to take *count* CPUs, a multiple of *group*, from nodes with so many free ones, in that order.

    At least *fewest* nodes are used, and no more than are necessary. With *sockets* (node by node, the set of those it
    is on) a combination on one socket beats all others. ``None`` when no number of nodes can share the request.
    """
    for width in range(fewest, min(count // group, len(sizes)) + 1):
        search = _Search(sizes, count, group=group, width=width, sockets=sockets)
        if search.hopeful:
            return search.best()
    return None


class _Search:
    """All combinations of *width* nodes, of which the best is wanted."""

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
        # With sockets the share sinks to what the poorest node of a combination has; without, such a node is out.
        self._able = [place for place, size in enumerate(sizes) if sockets or size >= self._even_share]
        self._richest = [places for pool in self._pools() if (places := self._richest_of(pool))]

    @property
    def hopeful(self) -> bool:
        """Whether any combination has enough: if not the richest, then none."""
        return bool(self._richest)

    def best(self) -> DistributionPlan:
        """The first of the best combinations."""
        best = min(self._richest, key=self._rank)
        if self._exact:
            best = self._first_best(best)
        _, goal = self._rank(best)
        share, saved = self._even(best)
        dealing = self._dealing(best, share)
        chosen = dealing.first(lambda more: self._score(saved + more) <= goal) if self._exact else dealing.richest()
        return DistributionPlan(best, share, tuple(best[place] for place in dealing.in_rounds(chosen)))

    def _first_best(self, known: Indexes) -> Indexes:
        """The first combination that none is better than; *known* is one to begin with, however good."""
        crosses, score = self._rank(known)
        bar = (crosses, score + 1)
        kinds = [(self._sizes[place], self._sockets and self._sockets[place]) for place in self._able]
        for chosen in _first_of_each(kinds, self._width):
            places = tuple([self._able[place] for place in chosen])
            if self._has_enough(places) and self._ideal(places) < bar and (rank := self._rank(places)) < bar:
                known, bar = places, rank
                if rank == (False, 0):
                    break
        return known

    def _pools(self) -> Iterator[list[int]]:
        """All nodes, and those of each socket where sockets matter."""
        yield self._able
        for socket in sorted(set(self._sockets or ())):
            yield [place for place, touched in enumerate(self._sockets or ()) if touched == socket]

    def _richest_of(self, pool: Sequence[int]) -> Indexes:
        """The richest combination inside *pool*; none if even it has not enough."""
        places = tuple(sorted(sorted(pool, key=lambda place: -self._sizes[place])[: self._width]))
        return places if len(places) == self._width and self._has_enough(places) else ()

    def _has_enough(self, places: Indexes) -> bool:
        return sum([self._sizes[place] // self._group for place in places]) >= self._groups

    def _even(self, places: Indexes) -> tuple[int, int]:
        """What each of *places* gives before anything is dealt, and how much of the squares that saves."""
        share = self._even_share
        sizes = [self._sizes[place] for place in places]
        if self._sockets:
            share = min(share, min(sizes) // self._group * self._group)
        return share, share * (2 * sum(sizes) - share * self._width)

    def _dealing(self, places: Indexes, share: int) -> "_Dealing":
        left = [self._sizes[place] - share for place in places]
        return _Dealing(left, self._groups - share // self._group * self._width, group=self._group)

    def _rank(self, places: Indexes) -> tuple[bool, int]:
        """How good a combination is, the smaller the better."""
        share, saved = self._even(places)
        return self._crosses(places), self._score(saved + self._dealing(places, share).most(exact=self._exact))

    def _ideal(self, places: Indexes) -> tuple[bool, int]:
        """A rank that *places* do not beat."""
        share, saved = self._even(places)
        return self._crosses(places), self._score(saved + self._dealing(places, share).ideal())

    def _crosses(self, places: Indexes) -> bool:
        """Whether the combination is on several sockets, where that matters."""
        if not self._sockets:
            return False
        touched = 0
        for place in places:
            touched |= self._sockets[place]
        return touched & touched - 1 != 0

    def _score(self, saved: int) -> int:
        """The standard deviation of what is left on all nodes, in thousandths; its mean is rounded to those first."""
        nodes = len(self._sizes)
        mean = (2000 * self._left + nodes) // (2 * nodes)
        squares = 1_000_000 * (self._squares - saved) - 2000 * mean * self._left + nodes * mean * mean
        return (isqrt(4 * squares // nodes) + 1) // 2


class _Dealing:
    """Dealing out *groups* of CPUs in rounds over some of the nodes that have so many left, in that order."""

    def __init__(self, left: Sequence[int], groups: int, *, group: int) -> None:
        self._left = left
        self._groups = groups
        self._group = group

    def ideal(self) -> int:
        """What is saved if each group comes from the node that is richest at that moment."""
        return self._saved_ideally(self._left)

    def most(self, *, exact: bool) -> int:
        """The most that dealing in rounds can save; if not *exact*, what dealing to the richest saves."""
        if not self._groups:
            return 0
        able = [size for size in self._left if size >= self._group]
        rising = sorted(able)
        # With a group for each, order is no matter and the richest do best; with more groups than nodes all take part.
        most = self._saved(rising[-self._groups :] if self._groups <= len(able) else able)
        for number in range(min(self._groups - 1, len(able)) if exact else 0, 0, -1):
            if self._saved_ideally(rising[-number:]) <= most:
                break
            most = max(most, *map(self._saved, combinations(able, number)))
        return most

    def first(self, good: Callable[[int], bool]) -> Indexes:
        """The first nodes, in the kubelet's order, dealing to which saves enough to be *good*: many before few."""
        able = [place for place, size in enumerate(self._left) if size >= self._group]
        sizes = [self._left[place] for place in able]
        for number in range(len(able) if self._groups else 0, 0, -1):
            # Of more nodes than groups only the first ones get any, and the others must still follow them.
            getting = min(number, self._groups)
            window = len(able) - (number - getting)
            richest = sorted(sizes[:window])[-getting:]
            ceiling = self._saved(richest) if getting == self._groups else self._saved_ideally(richest)
            if ceiling < 0 or not good(ceiling):
                continue
            for chosen in combinations(range(window), getting):
                saved = self._saved([sizes[place] for place in chosen])
                if saved >= 0 and good(saved):
                    return tuple(able[place] for place in chosen)
        return ()

    def richest(self) -> Indexes:
        """As many of the richest nodes as there are groups, or all that have one."""
        able = [place for place, size in enumerate(self._left) if size >= self._group]
        return tuple(sorted(sorted(able, key=lambda place: -self._left[place])[: self._groups]))

    def in_rounds(self, places: Indexes) -> Indexes:
        """The nodes that give a group, one after the other, when all is dealt to *places*."""
        given: list[int] = []
        for number in range(self._groups):
            given += [place for place in places if self._left[place] // self._group > number]
            if len(given) >= self._groups:
                break
        return tuple(given[: self._groups])

    def _saved(self, sizes: Sequence[int]) -> int:
        """What dealing in rounds to all of *sizes* saves; -1 when they cannot take all groups.

        The kubelet deals for ever when nodes have enough CPUs but not in whole groups.
        """
        group, groups = self._group, self._groups
        sizes = list(sizes)
        saved = 0
        while groups:
            if not sizes:
                return -1
            rounds = min(min(sizes) // group, groups // len(sizes))
            if rounds:
                given = rounds * group
                saved += given * (2 * sum(sizes) - given * len(sizes))
                groups -= rounds * len(sizes)
                sizes = [size - given for size in sizes if size - given >= group]
            else:
                saved += group * (2 * sum(sizes[:groups]) - group * groups)
                groups = 0
        return saved

    def _saved_ideally(self, sizes: Sequence[int]) -> int:
        """What taking each group from the richest of *sizes* saves; -1 when they do not have as many."""
        group = self._group
        heap = [-size for size in sizes]
        heapify(heap)
        saved = 0
        for _ in range(self._groups):
            richest = -heap[0]
            if richest < group:
                return -1
            saved += group * (2 * richest - group)
            heapreplace(heap, group - richest)
        return saved


def _first_of_each(kinds: Sequence[object], width: int) -> Iterator[Indexes]:
    """Of all combinations of *width* places the first for each sequence of kinds, in lexicographic order."""
    if width == 0:
        yield ()
        return
    seen = set()
    for place in range(len(kinds) - width + 1):
        if kinds[place] not in seen:
            seen.add(kinds[place])
            for rest in _first_of_each(kinds[place + 1 :], width - 1):
                yield (place, *[place + 1 + other for other in rest])


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
