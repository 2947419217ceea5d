"""The fewest NUMA nodes that touch enough devices, if a device may be on several nodes.

Devices on the same nodes are one *set* of nodes with a weight. If every device has one node, the richest nodes are the
fewest. Otherwise this is the maximum coverage problem, hard in general, but not on real machines: their sets are nested
or disjoint (a device belongs to a node, a socket or the whole board), and then the greedy choice of the node that adds
most is exact. Other sets are searched, skipping each partial choice that the richest remaining nodes cannot complete.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import combinations

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError

Weights = Mapping[NodeSet, int]  #: set of nodes → the worth of touching any of them

WORK_LIMIT = 2_000  #: steps of a search among overlapping sets; some tenths of a second on 64 nodes


def fewest_nodes(weights: Weights, need: int, *, source: str) -> int | None:
    """Return the smallest number of nodes, from 1, that touch sets worth *need*; ``None`` if all are not enough."""
    if need <= 0:
        return 1
    if need > sum(weights.values()):
        return None
    if are_single_nodes(weights):
        return _richest(weights.values(), need)
    touched = _units(weights)
    at_least = _richest(map(int.bit_count, touched.values()), need)
    if at_least == 1:
        return 1
    reached, at_most = 0, 0
    while reached.bit_count() < need:  # the greedy choice
        reached |= max(touched.values(), key=lambda units: (units & ~reached).bit_count())
        at_most += 1
    if at_least == at_most or are_nested(weights):
        return at_most
    search = _Search(_undominated(touched), _charges(weights), source)
    return next((count for count in range(at_least, at_most) if search.completes(search.choices, count, need)), at_most)


def are_single_nodes(masks: Collection[NodeSet]) -> bool:
    return not any(mask & mask - 1 for mask in masks)


def are_nested(masks: Collection[NodeSet]) -> bool:
    """Return whether any two sets are disjoint or one contains the other."""
    nodes = bits.of(node for mask in masks for node in bits.members(mask))
    if len(masks) > max(0, 2 * nodes.bit_count() - 1):
        return False  # too many different sets to be nested
    return all(mask & other in {0, mask, other} for mask, other in combinations(masks, 2))


def _richest(gains: Iterable[int], need: int) -> int:
    """Return the number of *gains*, largest first, that reach *need*; all of them together do."""
    ranked = sorted(gains, reverse=True)
    count = 1
    reached = ranked[0]
    while reached < need:
        reached += ranked[count]
        count += 1
    return count


def _units(weights: Weights) -> dict[int, Bits]:
    """Return node → what it touches, as one bit per unit of weight."""
    touched: dict[int, Bits] = {}
    start = 0
    for mask, weight in weights.items():
        units = (1 << weight) - 1 << start
        start += weight
        for node in bits.members(mask):
            touched[node] = touched.get(node, 0) | units
    return touched


def _charges(weights: Weights) -> list[Bits]:
    """Return the units of the sets with at most one node, two nodes, … up to all: each gives a bound.

    Charged units count once for each node that touches them; all others count as touched by any choice.
    """
    charges = []
    for width in sorted({mask.bit_count() for mask in weights}):
        start = charged = 0
        for mask, weight in weights.items():
            if mask.bit_count() <= width:
                charged |= (1 << weight) - 1 << start
            start += weight
        charges.append(charged)
    return charges


def _undominated(touched: Mapping[int, Bits]) -> list[Bits]:
    """Return what nodes touch, without nodes whose units another node touches too."""
    kept: list[Bits] = []
    for units in sorted(touched.values(), key=int.bit_count, reverse=True):
        if all(units & ~other for other in kept):
            kept.append(units)
    return kept


class _Search:
    def __init__(self, choices: list[Bits], charged: Sequence[Bits], source: str) -> None:
        self.choices = choices
        self.charged = charged
        self.source = source
        self.steps = 0

    def completes(self, choices: list[Bits], left: int, missing: int) -> bool:
        """Return whether *left* of *choices*, which contain only untouched units, touch the *missing* units."""
        self.steps += 1
        if self.steps > WORK_LIMIT:
            raise WorkLimitError(
                f"cannot decide within {WORK_LIMIT} steps how few NUMA nodes touch enough devices of {self.source}: "
                "its devices are on groups of nodes that overlap without being nested",
                sources=(self.source,),
            )
        gains = [units.bit_count() for units in choices]
        most = max(gains, default=0)
        if left == 1 or most >= missing:
            return most >= missing
        if self._at_most(choices, left) < missing:
            return False
        ranked = sorted(zip(gains, choices, strict=True), reverse=True)
        place = 0
        while sum(gain for gain, _ in ranked[place : place + left]) >= missing:
            gain, units = ranked[place]
            place += 1
            rest = [fresh for _, other in ranked[place:] if (fresh := other & ~units)]
            if self.completes(rest, left - 1, missing - gain):
                return True
        return False

    def _at_most(self, choices: list[Bits], left: int) -> int:
        """Return an upper bound for what *left* of *choices* touch: uncharged units, and charged ones of each."""
        everything = bits.union(choices)
        return min(
            (everything & ~charged).bit_count()
            + sum(nlargest(left, [(units & charged).bit_count() for units in choices]))
            for charged in self.charged
        )
