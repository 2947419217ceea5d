"""Walking sets of nodes of one width from the best downwards, without making all of them.

The order among sets of one width is the kubelet's: the closest nodes first where distances count, then the set with
the smaller value as a binary number, which is the one whose highest differing node is missing. Sets are grown from
their highest node down; finishing each beginning with the nodes below it, rising, visits them in that order. Whole
beginnings are skipped when no set with them could be of use.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import add

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.distances import Distances

#: How many sets a search returns: the winner, and those that came close.
MAX_RESULTS = 4


class BudgetExceededError(Exception):
    """The work allowed is used up; never leaves ``align``."""


@dataclass(slots=True)
class WorkBudget:
    """Work still allowed, in steps of about a microsecond."""

    left: int

    def spend(self, steps: int = 1) -> None:
        """Take *steps* out, or give up."""
        self.left -= steps
        if self.left < 0:
            raise BudgetExceededError


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What is looked for among the sets of ``width`` nodes of ``among``."""

    width: int
    among: NodeSet
    #: the nodes which, added to a beginning, may make a set that is looked for
    completing_nodes: Callable[[NodeSet], NodeSet]
    #: whether a set is one
    accept: Callable[[NodeSet], bool]
    #: whether a beginning is worth going on with: beginning, how many are missing, of which
    promising: Callable[[NodeSet, int, NodeSet], bool]
    purse: WorkBudget


def find_best(query: SearchQuery, distances: Distances | None) -> list[NodeSet]:
    """The best set and up to three that it beat, best first; empty when there is none."""
    if query.among.bit_count() < query.width:
        return []
    return find_lowest(query) if distances is None else find_closest(query, distances)


def find_lowest(query: SearchQuery) -> list[NodeSet]:
    """The set of the smallest value, and those of the next values that begin alike."""
    for beginning, below in _beginnings(query, 0, query.among, query.width - 1):
        ends = bits.members(query.completing_nodes(beginning) & below)
        found: list[NodeSet] = []
        for node in ends:
            query.purse.spend()
            if query.accept(beginning | 1 << node):
                found.append(beginning | 1 << node)
                if len(found) == MAX_RESULTS:
                    break
        if found:
            return found
    return []


def _beginnings(query: SearchQuery, chosen: NodeSet, among: NodeSet, more: int) -> Iterator[tuple[NodeSet, NodeSet]]:
    """Each way to choose *more* nodes of *among*, highest first and rising, with the nodes left below them."""
    if more == 0:
        yield chosen, among
        return
    for node in bits.members(among):
        below = among & (1 << node) - 1
        if below.bit_count() < more:
            continue
        query.purse.spend()
        grown = chosen | 1 << node
        # With one node missing, ``completing`` says exactly what ``promising`` could only guess.
        if more == 1 or query.promising(grown, more, below):
            yield from _beginnings(query, grown, below, more - 1)


def find_closest(query: SearchQuery, distances: Distances) -> list[NodeSet]:
    """The set whose nodes are closest together, and those it beat on the way."""
    walk = _Closest(query, distances)
    walk.grow(0, query.among, query.width, 0, walk.own)
    return walk.found[::-1][:MAX_RESULTS]


class _Closest:
    """The walk behind ``find_closest``: the sum over all pairs grows with each node, so beginnings can be bounded."""

    def __init__(self, query: SearchQuery, distances: Distances) -> None:
        self.query = query
        self.place = {node: place for place, node in enumerate(distances.ids)}
        self.between = {node: distances.both_ways(node) for node in bits.members(query.among)}
        self.rows = {node: tuple(row.values()) for node, row in self.between.items()}
        self.own: Sequence[int] = tuple(distances.both_ways(node)[node] for node in distances.ids)
        #: number of nodes → what they add to a total at least by being pairs of each other
        self.pairs = [self._pairs(count) for count in range(query.width + 1)]
        self.least: int | None = None
        self.found: list[NodeSet] = []

    def grow(self, chosen: NodeSet, among: NodeSet, more: int, total: int, adds: Sequence[int]) -> None:
        """Try every way to add *more* nodes of *among* to *chosen*; *adds* is what each node would add to *total*."""
        if more == 1:
            self.finish(chosen, among, total, adds)
            return
        for node in bits.members(among):
            below = among & (1 << node) - 1
            if below.bit_count() < more - 1:
                continue
            self.query.purse.spend(8)  # about what the bound costs
            grown_total = total + adds[self.place[node]]
            grown_adds = tuple(map(add, adds, self.rows[node]))
            if self.least is not None and grown_total + self.at_least(grown_adds, below, more - 1) >= self.least:
                continue
            grown = chosen | 1 << node
            if more == 2 or self.query.promising(grown, more - 1, below):
                self.grow(grown, below, more - 1, grown_total, grown_adds)

    def _pairs(self, count: int) -> int:
        """What the pairs of *count* nodes add at least: half of what each has with its nearest others."""
        if count < 2:
            return 0
        nearest = ((row[other] for other in self.between if other != node) for node, row in self.between.items())
        return -(-count * min(sum(nsmallest(count - 1, others)) for others in nearest) // 2)

    def at_least(self, adds: Sequence[int], among: NodeSet, more: int) -> int:
        """What *more* nodes of *among* add at the very least."""
        if more <= 2:
            return more * min(adds) + self.pairs[more]
        return sum(nsmallest(more, [adds[self.place[node]] for node in bits.members(among)])) + self.pairs[more]

    def finish(self, chosen: NodeSet, among: NodeSet, total: int, adds: Sequence[int]) -> None:
        """Try each node of *among* as the last one."""
        for node in bits.members(self.query.completing_nodes(chosen) & among):
            whole = total + adds[self.place[node]]
            if self.least is None or whole < self.least:
                self.query.purse.spend()
                if self.query.accept(chosen | 1 << node):
                    self.least = whole
                    self.found.append(chosen | 1 << node)
