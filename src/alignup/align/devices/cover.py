"""The fewest NUMA nodes that touch enough devices, where a device may sit on several nodes at once.

Devices on the same nodes are one *set* of nodes with a weight. With one node a device the richest nodes are the fewest.
With more this is the maximum coverage problem, hard in general, but not on machines: there sets are nested or apart (a
device belongs to a node, a socket or the whole board), and then taking the node that adds most, again and again, is
exact. What is neither is searched, giving up each beginning that the richest nodes left could not complete.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import combinations

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError

Weights = Mapping[NodeSet, int]  #: set of nodes → how much touching any of them is worth

#: Beginnings one question may look at when sets overlap without being nested; some tenths of a second on 64 nodes.
WORK_LIMIT = 2_000


def fewest_nodes(weights: Weights, need: int, *, source: str) -> int | None:
    """The smallest number of nodes, at least one, that touch sets worth *need*; ``None`` when all do not.

    *source* is named by the ``WorkLimitError`` raised when that cannot be told within ``WORK_LIMIT`` steps.
    """
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
    at_most = _greedy(touched, need)
    if at_least == at_most or are_nested(weights):
        return at_most
    search = _Search(_undominated(touched), _charges(weights), source)
    return next((count for count in range(at_least, at_most) if search.reaches(count, need)), at_most)


def are_single_nodes(masks: Collection[NodeSet]) -> bool:
    """Whether every set is of one node."""
    for mask in masks:  # noqa: SIM110 - on the way of every hint, where all() costs twice
        if mask & mask - 1:
            return False
    return True


def are_nested(masks: Collection[NodeSet]) -> bool:
    """Whether of any two sets one contains the other, or they have no node in common."""
    nodes = bits.of(node for mask in masks for node in bits.members(mask))
    if len(masks) > max(0, 2 * nodes.bit_count() - 1):
        return False  # so many different ones cannot be nested
    return all(one & other in {0, one, other} for one, other in combinations(masks, 2))


def _richest(gains: Iterable[int], need: int) -> int:
    """How many of *gains* reach *need*, the largest first; all of them together do."""
    ranked = sorted(gains, reverse=True)
    count = 1
    reached = ranked[0]
    while reached < need:
        reached += ranked[count]
        count += 1
    return count


def _units(weights: Weights) -> dict[int, Bits]:
    """Node → what it touches, one bit for each unit of weight, so that counting bits is weighing."""
    touched: dict[int, Bits] = {}
    start = 0
    for mask, weight in weights.items():
        units = (1 << weight) - 1 << start
        start += weight
        for node in bits.members(mask):
            touched[node] = touched.get(node, 0) | units
    return touched


def _charges(weights: Weights) -> list[Bits]:
    """The units of the sets of at most one node, of two, … and so on up to all: each makes a bound of its own.

    What is charged counts once for each node that touches it; all else counts as touched, whichever nodes are chosen.
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


def _greedy(touched: Mapping[int, Bits], need: int) -> int:
    """How many nodes it takes when each is the one that adds most."""
    reached, count = 0, 0
    while reached.bit_count() < need:
        reached |= max(touched.values(), key=lambda units: (units & ~reached).bit_count())
        count += 1
    return count


def _undominated(touched: Mapping[int, Bits]) -> list[Bits]:
    """What nodes touch, without nodes that another one could always stand in for."""
    kept: list[Bits] = []
    for units in sorted(touched.values(), key=int.bit_count, reverse=True):
        if all(units & ~other for other in kept):
            kept.append(units)
    return kept


class _Search:
    """All ways to choose nodes, the richest first."""

    def __init__(self, choices: list[Bits], charged: Sequence[Bits], source: str) -> None:
        self.choices = choices
        self.charged = charged
        self.source = source
        self.steps = 0

    def reaches(self, count: int, need: int) -> bool:
        """Whether some *count* nodes touch *need* units."""
        return self._completes(self.choices, count, need)

    def _completes(self, choices: list[Bits], left: int, missing: int) -> bool:
        """Whether *left* of *choices*, which show only what is not touched yet, touch the *missing* units."""
        self._step()
        gains = [units.bit_count() for units in choices]
        most = max(gains, default=0)
        if left == 1 or most >= missing:
            return most >= missing
        if self._at_most(choices, left) < missing:
            return False
        ranked = sorted(zip(gains, choices, strict=True), reverse=True)
        for place, (gain, units) in enumerate(ranked):
            if sum(gain for gain, _ in ranked[place : place + left]) < missing:
                return False
            rest = [fresh for _, other in ranked[place + 1 :] if (fresh := other & ~units)]
            if self._completes(rest, left - 1, missing - gain):
                return True
        return False

    def _at_most(self, choices: list[Bits], left: int) -> int:
        """What *left* of *choices* touch at most: all that is not charged, and of the rest what each does alone."""
        everything = bits.union(choices)
        return min(
            (everything & ~charged).bit_count()
            + sum(nlargest(left, [(units & charged).bit_count() for units in choices]))
            for charged in self.charged
        )

    def _step(self) -> None:
        self.steps += 1
        if self.steps > WORK_LIMIT:
            raise WorkLimitError(
                f"how few NUMA nodes touch enough devices of {self.source} cannot be told within {WORK_LIMIT} steps: "
                f"its devices sit on groups of nodes that overlap without being nested",
                sources=(self.source,),
            )
