"""The fewest NUMA nodes that together hold enough of several kinds of memory.

Each node holds an amount of each kind, in a fixed order, and so does the need. For one kind, the richest nodes are the
fewest. For several kinds this is the covering problem, hard in general, and still solved exactly: nodes with equal
amounts are interchangeable, amounts beyond the need do not count, and weights for the kinds are adjusted until the
richest nodes by weight either hold the need or prove that none can. What remains is searched, skipping each choice that
the richest remaining nodes could not complete. Sixty-four different nodes and four kinds take some hundredths of a
second; after ``WORK_LIMIT`` dead ends a :class:`WorkLimitError` is raised, and never a wrong result returned.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import ge, itemgetter, mul

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import WorkLimitError

NodeAmounts = tuple[int, ...]  #: the amount of each kind

WORK_LIMIT = 50_000  #: dead ends of one search; about a second

_UNIT = 1 << 80  # a kind's weight is this divided by its need, so at first all kinds count equally
_ROUNDS = 40  # of weight adjustment before the search


def fewest_nodes(nodes: Sequence[NodeAmounts], need: NodeAmounts, *, work_limit: int = WORK_LIMIT) -> int | None:
    """Return the smallest number of nodes, from 1, that hold *need* together; ``None`` if all are not enough."""
    for amounts in nodes:
        if all(map(ge, amounts, need)):
            return 1
    if not nodes:
        return None
    count = 0
    for amounts, wanted in zip(zip(*nodes, strict=True), need, strict=True):
        alone = _fewest_of_one(amounts, wanted)
        if alone is None:
            return None
        count = max(count, alone)
    while not _together(nodes, need, count=count, work_limit=work_limit):
        count += 1
    return count


def is_enough(nodes: Sequence[NodeAmounts], need: NodeAmounts, *, count: int, work_limit: int = WORK_LIMIT) -> bool:
    if max(need) <= 0 or not nodes:
        return max(need) <= 0
    if count == 1:
        return any(all(map(ge, amounts, need)) for amounts in nodes)
    for amounts, wanted in zip(zip(*nodes, strict=True), need, strict=True):
        if sum(sorted(amounts, reverse=True)[:count]) < wanted:
            return False
    return _together(nodes, need, count=count, work_limit=work_limit)


def lowest_nodes(nodes: Sequence[tuple[int, NodeAmounts]], need: NodeAmounts, *, count: int) -> NodeSet:
    """Return the set of *count* nodes that holds *need* and has the smallest value as a binary number.

    *nodes* are (node, amounts), ascending; some *count* of them must be enough.
    """
    if count == len(nodes):
        return bits.of(node for node, _ in nodes)
    held = [amounts for _, amounts in nodes]
    size = len(held)
    chosen: NodeSet = 0
    for left in range(count, 0, -1):
        # The highest node of the best set is the last one without which the nodes below are not enough.
        size = left - 1 + bisect_left(range(left, size), 1, key=lambda size: is_enough(held[:size], need, count=left))
        node, amounts = nodes[size]
        chosen |= 1 << node
        need = tuple(wanted - amount for wanted, amount in zip(need, amounts, strict=True))
    return chosen


def _fewest_of_one(amounts: Sequence[int], wanted: int) -> int | None:
    count = 0
    for amount in sorted(amounts, reverse=True):
        if wanted <= 0:
            break
        wanted -= amount
        count += 1
    return count if wanted <= 0 else None


def _together(nodes: Sequence[NodeAmounts], need: NodeAmounts, *, count: int, work_limit: int) -> bool:
    """Return whether some *count* nodes hold all kinds of *need* at once, if some do for each kind alone."""
    if len(need) == 1 or count >= len(nodes):
        return True
    # On real machines, the nodes richest in one kind usually have enough of the others.
    for kind in range(len(need)):
        richest = sorted(nodes, key=itemgetter(kind), reverse=True)[:count]
        if all(map(ge, map(sum, zip(*richest, strict=True)), need)):
            return True
    kinds = [kind for kind, wanted in enumerate(need) if wanted > 0]
    return _Cover(nodes, [need[kind] for kind in kinds], kinds=kinds, count=count).found(work_limit)


class _Cover:
    """One search for *count* nodes that hold *need*; kinds that are not needed are left out."""

    def __init__(self, nodes: Sequence[NodeAmounts], need: Sequence[int], *, kinds: Sequence[int], count: int) -> None:
        self.count = count
        self.need = tuple(need)
        #: distinct amounts, capped at the need, and the number of nodes with each
        self.copies = Counter(
            tuple(min(amounts[kind], wanted) for kind, wanted in zip(kinds, need, strict=True)) for amounts in nodes
        )
        self.failed: set[tuple[int, ...]] = set()

    def found(self, work_limit: int) -> bool:
        """Return whether there are such nodes.

        If the richest nodes by weight lack some of the weighted need, no nodes are enough. If they hold the need
        itself, they are the solution. Otherwise the kinds they lack get more weight in the next round. If no round
        decides, the last weights are good bounds for a search.
        """
        shares = [1.0] * len(self.need)
        for _ in range(_ROUNDS):
            weights = tuple(int(share * _UNIT / wanted) + 1 for share, wanted in zip(shares, self.need, strict=True))
            missing = self._missing(weights)
            if max(missing) <= 0:
                return True
            if _weighed(weights, missing) > 0:
                return False
            shares = [
                share * (1 + min(0.5, max(-0.5, short / wanted)))
                for share, short, wanted in zip(shares, missing, self.need, strict=True)
            ]
        return self._search(weights, work_limit)

    def _missing(self, weights: NodeAmounts) -> list[int]:
        """Return what the richest nodes by weight lack of each kind; negative if they hold more."""
        left = self.count
        missing = list(self.need)
        richest = iter(sorted(self.copies, key=lambda amounts: _weighed(weights, amounts), reverse=True))
        while left:  # there are more nodes
            amounts = next(richest)
            taken = min(self.copies[amounts], left)
            missing = [wanted - taken * amount for wanted, amount in zip(missing, amounts, strict=True)]
            left -= taken
        return missing

    def _search(self, weights: NodeAmounts, work_limit: int) -> bool:
        """Try all choices, the richest first by weight, while the remaining nodes can complete them."""
        choices = sorted(
            ((*amounts, _weighed(weights, amounts)) for amounts in self.copies), key=lambda choice: -choice[-1]
        )
        copies = [self.copies[choice[:-1]] for choice in choices]
        tops = [self._tops(choices[start:], copies[start:]) for start in range(len(choices))]

        def completes(start: int, left: int, missing: NodeAmounts) -> bool:
            """Return whether *left* of the choices from *start* on hold what is *missing*."""
            if not any(missing):
                return True
            state = (start, left, *missing)
            if start == len(choices) or state in self.failed:
                return False
            bounded = (*missing, _weighed(weights, missing))
            if any(wanted > top[min(left, len(top) - 1)] for wanted, top in zip(bounded, tops[start], strict=True)):
                return False
            amounts = choices[start]
            for taken in range(min(copies[start], left), -1, -1):
                short = tuple(max(0, wanted - taken * amount) for wanted, amount in zip(missing, amounts, strict=False))
                if completes(start + 1, left - taken, short):
                    return True
            self.failed.add(state)
            if len(self.failed) > work_limit:
                raise WorkLimitError(
                    f"cannot decide within {work_limit} steps whether {self.count} of {self.copies.total()} NUMA nodes "
                    f"hold enough of {len(self.need)} kinds of memory",
                    sources=("memory",),
                )
            return False

        return completes(0, self.count, self.need)

    def _tops(self, choices: Sequence[NodeAmounts], copies: Sequence[int]) -> list[list[int]]:
        """Return for each kind, and for the weight, the most that 0, 1, 2, … of *choices* hold."""
        tops = []
        for kind in range(len(self.need) + 1):
            amounts = [choice[kind] for choice, many in zip(choices, copies, strict=True) for _ in range(many)]
            tops.append([0, *accumulate(sorted(amounts, reverse=True)[: self.count])])
        return tops


def _weighed(weights: Sequence[int], amounts: Sequence[int]) -> int:
    return sum(map(mul, weights, amounts))
