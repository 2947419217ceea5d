"""A search for sets of nodes of one width, from the best downwards, without listing all of them.

The order among sets of one width is the kubelet's: with distances the closest nodes first, then the set with the
smaller value as a binary number. Sets grow from their highest node down; completing each partial set with lower nodes
in ascending order visits them in that order. Whole branches are skipped if they cannot contain a result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import add

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.distances import Distances

MAX_RESULTS = 4  #: the number of sets a search returns: the winner and its runners-up


class BudgetExceededError(Exception):
    """A work budget that is used up; never leaves ``align``."""


@dataclass(slots=True)
class WorkBudget:
    """Work still allowed, in steps of about a microsecond."""

    left: int

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetExceededError


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search among the sets of ``width`` nodes of ``among``."""

    width: int
    among: NodeSet
    #: the nodes that may complete a partial set with one node missing
    completing_nodes: Callable[[NodeSet], NodeSet]
    #: whether a set is a result
    accept: Callable[[NodeSet], bool]
    #: whether a partial set may lead to a result: partial set, number of missing nodes, nodes to choose from
    promising: Callable[[NodeSet, int, NodeSet], bool]
    budget: WorkBudget


def find_best(query: SearchQuery, distances: Distances | None) -> list[NodeSet]:
    """Return the best set and up to three runners-up, best first; empty if there is none."""
    if query.among.bit_count() < query.width:
        return []
    if distances is None:
        return _find_lowest(query)
    search = _ClosestSearch(query, distances)
    search.grow(0, query.among, query.width, 0, search.own)
    return search.found[::-1][:MAX_RESULTS]


def _find_lowest(query: SearchQuery) -> list[NodeSet]:
    """Return the set with the smallest value, and the next ones that differ only in their lowest node."""
    for partial, below in _partial_sets(query, 0, query.among, query.width - 1):
        results: list[NodeSet] = []
        for node in bits.members(query.completing_nodes(partial) & below):
            query.budget.spend()
            if query.accept(partial | 1 << node):
                results.append(partial | 1 << node)
                if len(results) == MAX_RESULTS:
                    break
        if results:
            return results
    return []


def _partial_sets(query: SearchQuery, chosen: NodeSet, among: NodeSet, more: int) -> Iterator[tuple[NodeSet, NodeSet]]:
    """Yield each way to add *more* nodes of *among*, highest node first and ascending, with the nodes below them."""
    if more == 0:
        yield chosen, among
        return
    for node in bits.members(among):
        below = among & (1 << node) - 1
        if below.bit_count() < more:
            continue
        query.budget.spend()
        grown = chosen | 1 << node
        # With one node missing, ``completing_nodes`` is exact where ``promising`` only estimates.
        if more == 1 or query.promising(grown, more, below):
            yield from _partial_sets(query, grown, below, more - 1)


class _ClosestSearch:
    """A branch-and-bound search: the sum over all pairs grows with each node, which bounds partial sets."""

    def __init__(self, query: SearchQuery, distances: Distances) -> None:
        self.query = query
        self.index = {node: index for index, node in enumerate(distances.ids)}
        self.between = {node: distances.both_ways(node) for node in bits.members(query.among)}
        self.rows = {node: tuple(row.values()) for node, row in self.between.items()}
        self.own: Sequence[int] = tuple(distances.both_ways(node)[node] for node in distances.ids)
        #: number of nodes → a lower bound for the distances among them
        self.pairs = [self._pairs(count) for count in range(query.width + 1)]
        self.least: int | None = None
        self.found: list[NodeSet] = []

    def grow(self, chosen: NodeSet, among: NodeSet, more: int, total: int, adds: Sequence[int]) -> None:
        """Try every way to add *more* nodes of *among* to *chosen*; *adds* is what each node adds to *total*."""
        if more == 1:
            self._complete(chosen, among, total, adds)
            return
        for node in bits.members(among):
            below = among & (1 << node) - 1
            if below.bit_count() < more - 1:
                continue
            self.query.budget.spend(8)  # about the cost of the bound
            grown_total = total + adds[self.index[node]]
            grown_adds = tuple(map(add, adds, self.rows[node]))
            if self.least is not None and grown_total + self._lower_bound(grown_adds, below, more - 1) >= self.least:
                continue
            grown = chosen | 1 << node
            if more == 2 or self.query.promising(grown, more - 1, below):
                self.grow(grown, below, more - 1, grown_total, grown_adds)

    def _pairs(self, count: int) -> int:
        """Return a lower bound for the distances among *count* nodes: half the sum of each node's nearest others."""
        if count < 2:
            return 0
        nearest = ((row[other] for other in self.between if other != node) for node, row in self.between.items())
        return -(-count * min(sum(nsmallest(count - 1, others)) for others in nearest) // 2)

    def _lower_bound(self, adds: Sequence[int], among: NodeSet, more: int) -> int:
        """Return a lower bound for what *more* nodes of *among* add."""
        if more <= 2:
            return more * min(adds) + self.pairs[more]
        return sum(nsmallest(more, [adds[self.index[node]] for node in bits.members(among)])) + self.pairs[more]

    def _complete(self, chosen: NodeSet, among: NodeSet, total: int, adds: Sequence[int]) -> None:
        for node in bits.members(self.query.completing_nodes(chosen) & among):
            whole = total + adds[self.index[node]]
            if self.least is None or whole < self.least:
                self.query.budget.spend()
                if self.query.accept(chosen | 1 << node):
                    self.least = whole
                    self.found.append(chosen | 1 << node)
