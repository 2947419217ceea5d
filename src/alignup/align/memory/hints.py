"""Hints for memory: the sets of NUMA nodes that can serve a request.

A node that serves containers alone serves no group, and a group of nodes serves only containers on exactly this group.
So a set is one of three: any number of idle nodes; one node already in use alone; or an existing group as it is. Only
sets of the first kind grow, and they are never listed. All requested types must fit, so they share one family.

A set is preferred if it has as few nodes as the request needs on an idle machine. For one kind of memory, the richest
nodes are the fewest. For several kinds this is the covering problem, hard in general, and still solved exactly: nodes
with equal amounts are interchangeable, amounts beyond the need do not count, and weights for the kinds are adjusted
until the richest nodes by weight either hold the need or prove that none can. What remains is searched, skipping each
choice that the richest remaining nodes could not complete. Sixty-four different nodes and four kinds take some
hundredths of a second; after ``WORK_LIMIT`` dead ends a :class:`WorkLimitError` is raised, and never a wrong result
returned.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from operator import ge, itemgetter, mul

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError
from alignup.align.hint import subsets
from alignup.align.memory.ledger import EMPTY_TABLE, MemoryLedger, Sizes

NodeAmounts = tuple[int, ...]  #: the amount of each kind of memory

WORK_LIMIT = 50_000  #: dead ends of one search; about a second
_REACH_LIMIT = 500  #: dead ends after which :meth:`MemoryHintFamily.may_complete` gives up and returns ``True``
_UNIT = 1 << 80  # a kind's weight is this divided by its need, so at first all kinds count equally
_ROUNDS = 40  # of weight adjustment before the search


@dataclass(slots=True)
class MemoryHintFamily:
    """The sets of nodes with enough free memory of every type; growing sets inside ``nodes``, and ``fixed_sets``."""

    amounts: Mapping[int, NodeAmounts]  #: the free amount of each type on nodes of growing sets, ascending
    need: NodeAmounts
    _: KW_ONLY
    preferred_width: int = 0  #: by default what fits now: nothing is allocated yet
    fixed_sets: tuple[NodeSet, ...] = ()
    enough_alone: NodeSet | None = field(
        default=None, compare=False
    )  #: the nodes of growing sets that hold enough alone, if they are known
    work_limit: int = WORK_LIMIT
    nodes: NodeSet = field(init=False, compare=False)
    preferred_widths: Bits = field(init=False, compare=False)
    min_width: int = field(init=False, compare=False)
    _growing_width: int | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        nodes = 0
        for node in self.amounts:
            nodes |= 1 << node
        self.nodes = nodes
        if self.enough_alone:
            growing: int | None = 1
            self.min_width = 1
        else:
            growing = None
            if self.amounts:
                growing = fewest_nodes(list(self.amounts.values()), self.need, work_limit=self.work_limit)
            fixed_width = min(map(int.bit_count, self.fixed_sets), default=0)
            self.min_width = min(fixed_width, growing) if fixed_width and growing else fixed_width or growing or 0
        self._growing_width = growing
        self.preferred_width = self.preferred_width or growing or 0
        self.preferred_widths = 1 << self.preferred_width

    def fits(self, nodes: NodeSet) -> bool:
        if nodes and not nodes & ~self.nodes and max(self._missing(nodes)) <= 0:
            return True
        return nodes in self.fixed_sets

    def prefers(self, nodes: NodeSet) -> bool:
        return nodes.bit_count() == self.preferred_width

    def completing_nodes(self, nodes: NodeSet) -> NodeSet:
        if not nodes and self.enough_alone is not None:
            return self.enough_alone
        if nodes & ~self.nodes:
            return 0
        shortage = self._missing(nodes)
        complete = nodes if nodes and max(shortage) <= 0 else 0
        for node, amounts in self.amounts.items():
            if not nodes >> node & 1 and all(map(ge, amounts, shortage)):
                complete |= 1 << node
        return complete

    @property
    def slack(self) -> tuple[int, ...]:
        return tuple(-short for short in self._missing(self.nodes))

    def amounts_on(self, node: int) -> tuple[int, ...]:
        return self.amounts[node]

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        inside = bits.subsets(self.nodes)
        masks = set(inside)
        for kind, minimum in enumerate(self.need):
            sums = [0]
            for amounts in self.amounts.values():
                sums += [amount + amounts[kind] for amount in sums]
            masks.intersection_update(mask for mask, amount in zip(inside, sums, strict=True) if amount >= minimum)
        every = subsets(self.nodes | bits.union(self.fixed_sets))
        return tuple(filter(masks.union(self.fixed_sets).__contains__, every))

    def may_complete(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        if nodes & ~self.nodes:
            return False
        rest = [amounts for node, amounts in self.amounts.items() if among >> node & 1]
        limit = min(_REACH_LIMIT, self.work_limit)
        try:
            return is_enough(rest, self._missing(nodes), count=more, work_limit=limit)
        except WorkLimitError:
            return True

    def best(self, start: NodeSet = 0) -> NodeSet | None:
        """Return, of the sets that fit and contain *start*, the one with the fewest nodes, then the lowest."""
        sets = [mask for mask in self.fixed_sets if not start & ~mask]
        if grown := self._grow(start):
            sets.append(grown)
        return min(sets, key=lambda mask: (mask.bit_count(), mask), default=None)

    def _grow(self, start: NodeSet) -> NodeSet:
        """Return the best set that grows from *start*; empty if there is none."""
        if start & ~self.nodes:
            return 0
        shortage = self._missing(start)
        if start and max(shortage) <= 0:
            return start
        rest = [(node, amounts) for node, amounts in self.amounts.items() if not start >> node & 1]
        count = fewest_nodes([amounts for _, amounts in rest], shortage) if start else self._growing_width
        return 0 if count is None else start | lowest_nodes(rest, shortage, count=count)

    def _missing(self, nodes: NodeSet) -> NodeAmounts:
        """Return the missing amount of each type on *nodes*; negative if they hold more."""
        shortage = self.need
        for node in bits.members(nodes):
            shortage = tuple(minimum - amount for minimum, amount in zip(shortage, self.amounts[node], strict=True))
        return shortage


def memory_family(ledger: MemoryLedger, need: Sizes, *, pod: str) -> MemoryHintFamily | None:
    """Return the sets of nodes that can serve *need* for a container of *pod*; ``None`` if there is none."""
    minimums = tuple(need.values())
    # One type, the usual case, needs no comprehensions.
    only, size = next(iter(need.items())) if len(need) == 1 else (None, 0)
    free: NodeAmounts
    idle: dict[int, NodeAmounts] = {}
    fixed_sets: list[NodeSet] = []
    groups = dict.fromkeys(ledger.reusable_by(pod))
    one_is_enough = False
    enough_alone: NodeSet = 0
    for id_, (cells, assignments, tables) in ledger.nodes.items():
        # A node that does not list a type has none of it; the kubelet crashes there.
        if only is not None:
            amount = tables[only].free if only in tables else 0
            free, enough = (amount,), amount >= size
        else:
            free = tuple([tables[type_].free if type_ in tables else 0 for type_ in need])
            enough = all(map(ge, free, minimums))
        one_is_enough = one_is_enough or enough
        if not assignments:
            idle[id_] = free
            if enough:
                enough_alone |= 1 << id_
        elif cells & cells - 1:
            groups[cells] = None
        elif enough:
            fixed_sets.append(cells)
    preferred_width = 1 if one_is_enough else 0
    if not one_is_enough and len(idle) < len(ledger.nodes):
        idle_tables = [node.tables for node in ledger.nodes.values()]
        all_idle = [tuple([tables.get(type_, EMPTY_TABLE).allocatable for type_ in need]) for tables in idle_tables]
        preferred_width = fewest_nodes(all_idle, minimums) or 0
    if groups:
        fixed_sets += [mask for mask in groups if mask not in fixed_sets and _group_fits(ledger, mask, need, pod=pod)]
    family = MemoryHintFamily(
        idle, minimums, preferred_width=preferred_width, fixed_sets=tuple(fixed_sets), enough_alone=enough_alone
    )
    return family if family.min_width else None


def _group_fits(ledger: MemoryLedger, nodes: NodeSet, need: Sizes, *, pod: str) -> bool:
    """Return whether a group has *need* in its free memory and what *pod* can reuse, and also if idle."""
    again = ledger.reusable_by(pod).get(nodes, {})
    return ledger.keeps_groups(nodes) and all(
        ledger.free(nodes, type_) + again.get(type_, 0) >= size <= ledger.allocatable_on(nodes, type_)
        for type_, size in need.items()
    )


def fewest_nodes(nodes: Sequence[NodeAmounts], need: NodeAmounts, *, work_limit: int = WORK_LIMIT) -> int | None:
    """Return the smallest number of nodes, from 1, that hold *need* together; ``None`` if all are not enough."""
    for amounts in nodes:
        if all(map(ge, amounts, need)):
            return 1
    if not nodes:
        return None
    count = 0
    for amounts, minimum in zip(zip(*nodes, strict=True), need, strict=True):
        richest = accumulate(sorted(amounts, reverse=True), initial=0)
        alone = next((number for number, total in enumerate(richest) if total >= minimum), None)
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
    for amounts, minimum in zip(zip(*nodes, strict=True), need, strict=True):
        if sum(sorted(amounts, reverse=True)[:count]) < minimum:
            return False
    return _together(nodes, need, count=count, work_limit=work_limit)


def lowest_nodes(nodes: Sequence[tuple[int, NodeAmounts]], need: NodeAmounts, *, count: int) -> NodeSet:
    """Return the set of *count* nodes that holds *need* and has the smallest value as a binary number.

    *nodes* are (node, amounts), ascending; some *count* of them must be enough.
    """
    if count == len(nodes):
        return bits.of(node for node, _ in nodes)
    rows = [amounts for _, amounts in nodes]
    size = len(rows)
    lowest: NodeSet = 0
    for rest in range(count, 0, -1):
        # The highest node of the best set is the last one without which the nodes below are not enough.
        size = rest - 1 + bisect_left(range(rest, size), 1, key=lambda size: is_enough(rows[:size], need, count=rest))
        node, amounts = nodes[size]
        lowest |= 1 << node
        need = tuple(minimum - amount for minimum, amount in zip(need, amounts, strict=True))
    return lowest


def _together(nodes: Sequence[NodeAmounts], need: NodeAmounts, *, count: int, work_limit: int) -> bool:
    """Return whether some *count* nodes hold all kinds of *need* at once, if some do for each kind alone."""
    if len(need) == 1 or count >= len(nodes):
        return True
    # On real machines, the nodes richest in one kind usually have enough of the others.
    for kind in range(len(need)):
        richest = sorted(nodes, key=itemgetter(kind), reverse=True)[:count]
        if all(map(ge, map(sum, zip(*richest, strict=True)), need)):
            return True
    kinds = [kind for kind, minimum in enumerate(need) if minimum > 0]
    return _Cover(nodes, [need[kind] for kind in kinds], kinds=kinds, count=count).found(work_limit)


class _Cover:
    """One search for *count* nodes that hold *need*; kinds that are not needed are left out."""

    def __init__(self, nodes: Sequence[NodeAmounts], need: Sequence[int], *, kinds: Sequence[int], count: int) -> None:
        self.count = count
        self.need = tuple(need)
        #: distinct amounts, capped at the need, and the number of nodes with each
        self.copies = Counter(
            tuple(min(amounts[kind], minimum) for kind, minimum in zip(kinds, need, strict=True)) for amounts in nodes
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
            weights = tuple(int(share * _UNIT / minimum) + 1 for share, minimum in zip(shares, self.need, strict=True))
            shortage = self._missing(weights)
            if max(shortage) <= 0:
                return True
            if _weighed(weights, shortage) > 0:
                return False
            shares = [
                share * (1 + min(0.5, max(-0.5, short / minimum)))
                for share, short, minimum in zip(shares, shortage, self.need, strict=True)
            ]
        return self._search(weights, work_limit)

    def _missing(self, weights: NodeAmounts) -> list[int]:
        """Return what the richest nodes by weight lack of each kind; negative if they hold more."""
        count = self.count
        missing = list(self.need)
        richest = iter(sorted(self.copies, key=lambda amounts: _weighed(weights, amounts), reverse=True))
        while count:  # there are more nodes
            amounts = next(richest)
            number = min(self.copies[amounts], count)
            missing = [minimum - number * amount for minimum, amount in zip(missing, amounts, strict=True)]
            count -= number
        return missing

    def _search(self, weights: NodeAmounts, work_limit: int) -> bool:
        """Try all choices, the richest first by weight, while the remaining nodes can complete them."""
        choices = sorted(
            ((*amounts, _weighed(weights, amounts)) for amounts in self.copies), key=lambda choice: -choice[-1]
        )
        copies = [self.copies[choice[:-1]] for choice in choices]
        tops = [self._tops(choices[start:], copies[start:]) for start in range(len(choices))]

        def completes(start: int, more: int, shortage: NodeAmounts) -> bool:
            """Return whether *more* of the choices from *start* on hold the *shortage*."""
            if not any(shortage):
                return True
            state = (start, more, *shortage)
            if start == len(choices) or state in self.failed:
                return False
            bounds = (*shortage, _weighed(weights, shortage))
            if any(minimum > top[min(more, len(top) - 1)] for minimum, top in zip(bounds, tops[start], strict=True)):
                return False
            amounts = choices[start]
            for number in range(min(copies[start], more), -1, -1):
                short = tuple(
                    max(0, minimum - number * amount) for minimum, amount in zip(shortage, amounts, strict=False)
                )
                if completes(start + 1, more - number, short):
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
