"""The fewest NUMA nodes that together hold enough of several things at once.

Each node is a *stock*: what it holds of each kind, in one fixed order; a need is written alike. For one kind the
richest nodes are the fewest. For several kinds this is the covering problem, hard in general, and still solved exactly:
nodes holding the same are interchangeable, what a node holds beyond the need does not count, and weights for the kinds
are looked for under which the richest nodes either hold the need or cannot possibly. What that leaves open is searched,
giving up each choice that the richest nodes left could not complete. Sixty-four nodes, all different, in four kinds
take some hundredths of a second; past ``WORK_LIMIT`` dead ends a :class:`WorkLimitError` says so, never a guess.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import ge, itemgetter, mul

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import WorkLimitError

NodeAmounts = tuple[int, ...]  #: how much of each kind

#: Dead ends one question may run into; about a second.
WORK_LIMIT = 50_000

_UNIT = 1 << 80  # the weight of a kind is this over its need, so that at first all kinds count alike
_ROUNDS = 40  # of finding better weights before all choices are tried


def fewest_nodes(stocks: Sequence[NodeAmounts], need: NodeAmounts, *, work_limit: int = WORK_LIMIT) -> int | None:
    """The smallest number of *stocks*, at least one, that add up to *need*; ``None`` when all of them do not."""
    for stock in stocks:
        if all(map(ge, stock, need)):
            return 1
    if not stocks:
        return None
    count = 0
    for amounts, wanted in zip(zip(*stocks, strict=True), need, strict=True):
        alone = _fewest_of_one(amounts, wanted)
        if alone is None:
            return None
        count = max(count, alone)
    while not _together(stocks, need, count=count, work_limit=work_limit):
        count += 1
    return count


def is_enough(stocks: Sequence[NodeAmounts], need: NodeAmounts, *, count: int, work_limit: int = WORK_LIMIT) -> bool:
    """Whether some *count* of *stocks* add up to *need*."""
    if max(need) <= 0 or not stocks:
        return max(need) <= 0
    if count == 1:
        return any(all(map(ge, stock, need)) for stock in stocks)
    for amounts, wanted in zip(zip(*stocks, strict=True), need, strict=True):
        if sum(sorted(amounts, reverse=True)[:count]) < wanted:
            return False
    return _together(stocks, need, count=count, work_limit=work_limit)


def lowest_nodes(stocks: Sequence[tuple[int, NodeAmounts]], need: NodeAmounts, *, count: int) -> NodeSet:
    """Of the sets of *count* nodes that hold *need*, the one of the smallest value as a binary number.

    *stocks* are nodes, rising, with what each holds; some *count* of them must be enough.
    """
    if count == len(stocks):
        return bits.of(node for node, _ in stocks)
    held = [stock for _, stock in stocks]
    size = len(held)
    chosen: NodeSet = 0
    for left in range(count, 0, -1):
        # The highest node of the best set is the last one without which the nodes below are not enough.
        size = left - 1 + bisect_left(range(left, size), 1, key=lambda size: is_enough(held[:size], need, count=left))
        node, stock = stocks[size]
        chosen |= 1 << node
        need = tuple(wanted - own for wanted, own in zip(need, stock, strict=True))
    return chosen


def _fewest_of_one(amounts: Sequence[int], wanted: int) -> int | None:
    count = 0
    for amount in sorted(amounts, reverse=True):
        if wanted <= 0:
            break
        wanted -= amount
        count += 1
    return count if wanted <= 0 else None


def _together(stocks: Sequence[NodeAmounts], need: NodeAmounts, *, count: int, work_limit: int) -> bool:
    """Whether some *count* of *stocks* hold all kinds of *need* at once, where they do for each kind alone."""
    if len(need) == 1 or count >= len(stocks):
        return True
    # On real machines those richest in one kind usually have enough of the others.
    for kind in range(len(need)):
        richest = sorted(stocks, key=itemgetter(kind), reverse=True)[:count]
        if all(map(ge, map(sum, zip(*richest, strict=True)), need)):
            return True
    kinds = [kind for kind, wanted in enumerate(need) if wanted > 0]
    return _Cover(stocks, [need[kind] for kind in kinds], kinds=kinds, count=count).found(work_limit)


class _Cover:
    """One search for *count* stocks that add up to *need*; kinds without need are left out."""

    def __init__(self, stocks: Sequence[NodeAmounts], need: Sequence[int], *, kinds: Sequence[int], count: int) -> None:
        self.count = count
        self.need = tuple(need)
        #: stocks that differ, as far as they are needed, and how many there are of each
        self.copies = Counter(
            tuple(min(stock[kind], wanted) for kind, wanted in zip(kinds, need, strict=True)) for stock in stocks
        )
        self.failed: set[tuple[int, ...]] = set()

    def found(self, work_limit: int) -> bool:
        """Whether there are such stocks.

        Kinds are given weights; if the richest stocks by weight are short of the weighted need, nothing is enough. If
        they hold the need itself, they are the answer. Otherwise what they are short of weighs more next time, and
        when that leads nowhere the weights found are good bounds for trying all choices.
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
        """What the richest stocks by weight are short of, kind by kind; negative where they hold more."""
        left = self.count
        missing = list(self.need)
        for stock in sorted(self.copies, key=lambda stock: _weighed(weights, stock), reverse=True):
            taken = min(self.copies[stock], left)
            missing = [wanted - taken * own for wanted, own in zip(missing, stock, strict=True)]
            left -= taken
            if not left:
                break
        return missing

    def _search(self, weights: NodeAmounts, work_limit: int) -> bool:
        """Try all choices, the richest first by weight, as long as the stocks left could still complete them."""
        choices = sorted(((*stock, _weighed(weights, stock)) for stock in self.copies), key=lambda it: -it[-1])
        copies = [self.copies[choice[:-1]] for choice in choices]
        tops = [self._tops(choices[start:], copies[start:]) for start in range(len(choices))]

        def completes(start: int, left: int, missing: NodeAmounts) -> bool:
            """Whether *left* of the stocks from *start* on hold what is *missing*."""
            if not any(missing):
                return True
            state = (start, left, *missing)
            if start == len(choices) or state in self.failed:
                return False
            bounded = (*missing, _weighed(weights, missing))
            if any(wanted > top[min(left, len(top) - 1)] for wanted, top in zip(bounded, tops[start], strict=True)):
                return False
            stock = choices[start]
            for taken in range(min(copies[start], left), -1, -1):
                short = tuple(max(0, wanted - taken * own) for wanted, own in zip(missing, stock, strict=False))
                if completes(start + 1, left - taken, short):
                    return True
            self._give_up(state, work_limit)
            return False

        return completes(0, self.count, self.need)

    def _tops(self, choices: Sequence[NodeAmounts], copies: Sequence[int]) -> list[list[int]]:
        """For each kind, and by weight, the most that 0, 1, 2, … of *choices* hold."""
        tops = []
        for kind in range(len(self.need) + 1):
            amounts = [choice[kind] for choice, many in zip(choices, copies, strict=True) for _ in range(many)]
            tops.append([0, *accumulate(sorted(amounts, reverse=True)[: self.count])])
        return tops

    def _give_up(self, state: tuple[int, ...], work_limit: int) -> None:
        """Remember a dead end, unless there have been too many."""
        self.failed.add(state)
        if len(self.failed) > work_limit:
            raise WorkLimitError(
                f"whether {self.count} of {self.copies.total()} NUMA nodes hold enough of {len(self.need)} kinds of "
                f"memory cannot be told within {work_limit} steps",
                sources=("memory",),
            )


def _weighed(weights: Sequence[int], stock: Sequence[int]) -> int:
    return sum(map(mul, weights, stock))
