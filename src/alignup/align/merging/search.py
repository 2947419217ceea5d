"""The searches of a merge: for the best set of nodes of one width, and for the sets that combinations of hints reach.

``find_best`` goes through the sets of one width from the best downwards, without listing all of them. The order is the
kubelet's: with distances the closest nodes first, then the set with the smaller value as a binary number. Sets grow
from their highest node down; completing each partial set with lower nodes in ascending order visits them in that order.
Whole branches are skipped if they cannot contain a result.

A set is *reachable* if it is the intersection of one hint per resource. This matters only if no set is preferred by all
resources. There are three algorithms, all exact:

* ``count_reachable_sets`` counts, for every set, the combinations that contain it (superset sums: one addition of big
  ints per node and resource), and from these the combinations that equal it. Its time depends on the number of nodes
  alone.
* ``intersect_lists`` intersects lists one after the other, keeping each result once.
* ``is_reachable`` decides one set without any list: each node outside it must be dropped by a resource that still fits
  without all nodes it drops.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from math import inf
from operator import add, mul, sub
from struct import pack, unpack

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import HintFamily, HintList, Hints
from alignup.align.machine import Distances

MAX_RESULTS = 4  #: the number of sets a search returns: the winner and its runners-up


class BudgetExceededError(Exception):
    """A work budget that is used up; never leaves ``align``."""


@dataclass(slots=True)
class WorkBudget:
    """Work still allowed, in steps of about a microsecond."""

    remaining: int

    def spend(self, steps: int = 1) -> None:
        self.remaining -= steps
        if self.remaining < 0:
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


def _partial_sets(query: SearchQuery, base: NodeSet, among: NodeSet, more: int) -> Iterator[tuple[NodeSet, NodeSet]]:
    """Yield each way to add *more* nodes of *among*, highest node first and ascending, with the nodes below them."""
    if more == 0:
        yield base, among
        return
    for node in bits.members(among):
        below = among & (1 << node) - 1
        if below.bit_count() < more:
            continue
        query.budget.spend()
        grown = base | 1 << node
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

    def grow(self, base: NodeSet, among: NodeSet, more: int, total: int, adds: Sequence[int]) -> None:
        """Try every way to add *more* nodes of *among* to *base*; *adds* is what each node adds to *total*."""
        if more == 1:
            self._complete(base, among, total, adds)
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
            grown = base | 1 << node
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

    def _complete(self, base: NodeSet, among: NodeSet, total: int, adds: Sequence[int]) -> None:
        for node in bits.members(self.query.completing_nodes(base) & among):
            whole = total + adds[self.index[node]]
            if self.least is None or whole < self.least:
                self.query.budget.spend()
                if self.query.accept(base | 1 << node):
                    self.least = whole
                    self.found.append(base | 1 << node)


def allowed_sets(hints: Hints, nodes: NodeSet) -> set[NodeSet]:
    """Return every set of *nodes* in *hints*; a hint without nodes allows all of them."""
    if isinstance(hints, HintList):
        masks = {mask & nodes for mask in hints.masks}
        if hints.anywhere is not None:
            masks.add(nodes)
    else:
        masks = set(hints.fitting_sets())
    masks.discard(0)
    return masks


def allowed_nodes(hints: Hints, nodes: NodeSet) -> NodeSet:
    if isinstance(hints, HintList):
        return nodes if hints.anywhere is not None else nodes & bits.union(hints.masks)
    return nodes & (hints.nodes | bits.union(hints.fixed_sets))


def reachable_sets(inputs: Sequence[Hints], nodes: NodeSet) -> Collection[NodeSet]:
    """Return every reachable set, by the fastest algorithm for this number of nodes."""
    if nodes.bit_count() > 3:
        return count_reachable_sets(inputs, nodes)
    reached_sets = allowed_sets(inputs[0], nodes) if inputs else {nodes}
    for hints in inputs[1:]:
        masks = allowed_sets(hints, nodes)
        reached_sets = {mask & other for mask in reached_sets for other in masks}
    reached_sets.discard(0)
    return reached_sets


_sparse_sets = lru_cache(maxsize=64)(bits.subsets)


def count_reachable_sets(inputs: Sequence[Hints], nodes: NodeSet) -> list[NodeSet]:
    """Return every reachable set, in time that depends on the number of nodes and inputs only."""
    tables = [allowed_sets(hints, nodes) for hints in inputs]
    if nodes & nodes + 1 == 0:
        return _reached(tables, nodes.bit_length())
    # Number the nodes without gaps, and translate the result back.
    sparse = _sparse_sets(nodes)
    index = {mask: index for index, mask in enumerate(sparse)}
    index_sets = [{index[mask] for mask in table} for table in tables]
    return [sparse[number] for number in _reached(index_sets, nodes.bit_count())]


def _reached(tables: list[set[int]], count: int) -> list[int]:
    """Return the intersections of one member of each table, as numbers below ``2**count``."""
    size = 1 << count
    layout = f"<{size}Q"
    # Counts stay below 2**64 for this many tables at once: each has fewer than 2**count members.
    at_once = max(1, 64 // count) if count else 1
    reached_numbers: Iterable[int] = tables[0] if tables else [size - 1]
    rest = tables[1:]
    while rest:
        group = [_supersets(reached_numbers, count), *(_supersets(table, count) for table in rest[: at_once - 1])]
        rest = rest[at_once - 1 :]
        supersets: Iterable[int] = unpack(layout, group[0])
        for sums in group[1:]:
            supersets = map(mul, supersets, unpack(layout, sums))
        counts = int.from_bytes(pack(layout, *supersets), "little")
        for shift, sets_without in _shifts(count):
            counts -= counts >> shift & sets_without
        exactly = unpack(layout, counts.to_bytes(8 * size, "little"))
        reached_numbers = [number for number in range(1, size) if exactly[number]]
    return list(reached_numbers)


def _supersets(table: Iterable[int], count: int) -> bytes:
    """Return the number of members of *table* that contain each set, as one 64-bit number per set."""
    slots = bytearray(8 << count)
    for number in table:
        slots[number << 3] = 1
    sums = int.from_bytes(slots, "little")
    for shift, sets_without in _shifts(count):
        sums += sums >> shift & sets_without
    return sums.to_bytes(8 << count, "little")


@lru_cache(maxsize=32)
def _shifts(count: int) -> tuple[tuple[int, int], ...]:
    """Return for each node the distance between the slots with and without it, and a mask of all slots without it."""
    slots = range(1 << count)
    return tuple(
        (64 << node, int.from_bytes(b"".join((b"\0" if slot >> node & 1 else b"\xff") * 8 for slot in slots), "little"))
        for node in range(count)
    )


def intersect_lists(inputs: Sequence[Hints], nodes: NodeSet, budget: WorkBudget) -> set[NodeSet]:
    tables = [allowed_sets(hints, nodes) for hints in inputs]
    tables.sort(key=len)
    reached_sets = tables[0] if tables else {nodes}
    for other_sets in tables[1:]:
        budget.spend(len(reached_sets) * len(other_sets))
        reached_sets = {mask & other for mask in reached_sets for other in other_sets}
        reached_sets.discard(0)
    return reached_sets


def is_reachable(target: NodeSet, inputs: Sequence[Hints], *, nodes: NodeSet, budget: WorkBudget) -> bool:
    """Return whether *target* is the intersection of one hint of each input."""
    fixed_sets: set[NodeSet] = {nodes}
    families: list[HintFamily] = []
    for hints in inputs:
        if isinstance(hints, HintList):
            budget.spend(len(hints.masks))
            supersets = {mask & nodes for mask in hints.masks if not target & ~mask}
            if hints.anywhere is not None:
                supersets.add(nodes)
            intersections = {mask & other for mask in fixed_sets for other in supersets}
            # Whatever a superset reaches, its subset reaches too.
            fixed_sets = {
                mask
                for mask in intersections
                if not any(other != mask and other & mask == other for other in intersections)
            }
        else:
            families.append(hints)
    return any(_families_reach(families, mask, target, [], budget) for mask in fixed_sets)


def _families_reach(
    families: Sequence[HintFamily],
    nodes: NodeSet,
    target: NodeSet,
    growing_families: list[tuple[HintFamily, NodeSet]],
    budget: WorkBudget,
) -> bool:
    """Let each family choose a fixed set or its growing part, narrowing *nodes*; then drop the surplus nodes."""
    budget.spend()
    if not families:
        return _can_drop(nodes & ~target, growing_families, budget)
    family, rest = families[0], families[1:]
    for mask in family.fixed_sets:
        if not target & ~mask and _families_reach(rest, nodes & mask, target, growing_families, budget):
            return True
    if target & ~family.nodes or not family.fits(family.nodes):
        return False
    return _families_reach(rest, nodes & family.nodes, target, [*growing_families, (family, family.nodes)], budget)


def _can_drop(surplus: NodeSet, families: list[tuple[HintFamily, NodeSet]], budget: WorkBudget) -> bool:
    """Return whether each node of *surplus* can be dropped by one of *families* (family, nodes it still keeps)."""
    if not surplus:
        return True
    budget.spend(len(families))
    if any(family.fits(nodes & ~surplus) for family, nodes in families):
        return True
    can_spare = sum(nodes.bit_count() - family.min_width for family, nodes in families)
    if can_spare < surplus.bit_count() or len(families) < 2:
        return False
    slacks = [family.slack for family, _ in families]
    if all(slacks):
        losses = [[family.amounts_on(node) for family, _ in families] for node in bits.members(surplus)]
        return _can_distribute(losses, tuple(slack for slack in slacks if slack), budget)
    node = surplus & -surplus
    for index, (family, nodes) in enumerate(families):
        if family.fits(nodes & ~node):
            without = [*families[:index], (family, nodes & ~node), *families[index + 1 :]]
            if _can_drop(surplus ^ node, without, budget):
                return True
    return False


Slack = tuple[int, ...]  #: what one family can still drop, kind by kind


def _can_distribute(losses: list[list[Slack]], slacks: tuple[Slack, ...], budget: WorkBudget) -> bool:
    """Return whether each node can be charged to one family (its *losses*, one per family) within *slacks*.

    The states after each node are a set, so nodes with equal amounts cost almost nothing.
    """
    budget.spend(len(losses))
    shares = [list(map(_share, loss, slacks)) for loss in losses]
    # Each family can bear a share of 1 in total, so a larger sum is impossible in any distribution.
    if sum(map(min, shares)) > len(slacks) + 1e-9:
        return False
    order = sorted(range(len(losses)), key=lambda index: min(shares[index]), reverse=True)
    if _fits_greedily([(losses[index], shares[index]) for index in order], slacks):
        return True
    states = {slacks}
    for loss in (losses[index] for index in order):
        budget.spend(len(states))
        states = {
            (*state[:index], slack, *state[index + 1 :])
            for state in states
            for index, slack in enumerate(map(_subtract, state, loss))
            if min(slack) >= 0
        }
        if not states:
            return False
    return True


def _fits_greedily(nodes: list[tuple[list[Slack], list[float]]], slacks: tuple[Slack, ...]) -> bool:
    """Return whether it works to charge each node to the family with the smallest total share."""
    charged_shares = [0.0] * len(slacks)
    free_slacks = list(slacks)
    for losses, shares in nodes:
        new_charges = list(map(add, charged_shares, shares))
        index = new_charges.index(min(new_charges))
        charged_shares[index] = new_charges[index]
        free_slacks[index] = _subtract(free_slacks[index], losses[index])
    return all(min(slack) >= 0 for slack in free_slacks)


def _share(loss: Slack, slack: Slack) -> float:
    """Return the share of *slack* that *loss* takes, averaged over its kinds; infinite if a kind has too little."""
    total = 0.0
    for lost_amount, available in zip(loss, slack, strict=True):
        if lost_amount > available:
            return inf
        if lost_amount:
            total += lost_amount / available
    return total / len(slack)


def _subtract(slack: Slack, loss: Slack) -> Slack:
    return tuple(map(sub, slack, loss))
