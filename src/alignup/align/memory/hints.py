"""Hints for memory: the sets of NUMA nodes that can serve a request.

A node that serves containers alone serves no group, and a group of nodes serves only containers on exactly this group.
So a set is one of three: any number of idle nodes; one node already in use alone; or an existing group as it is. Only
sets of the first kind grow, and they are never listed. All requested types must fit, so they share one family.

A set is preferred if it has as few nodes as the request needs on an idle machine.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from operator import ge

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError
from alignup.align.hint import subsets
from alignup.align.memory import cover
from alignup.align.memory.cover import NodeAmounts
from alignup.align.memory.ledger import EMPTY_TABLE, MemoryLedger, Sizes

_REACH_LIMIT = 500  #: dead ends after which :meth:`MemoryHintFamily.may_complete` gives up and returns ``True``


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
    work_limit: int = cover.WORK_LIMIT
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
                growing = cover.fewest_nodes(list(self.amounts.values()), self.need, work_limit=self.work_limit)
            fixed = min(map(int.bit_count, self.fixed_sets), default=0)
            self.min_width = min(fixed, growing) if fixed and growing else fixed or growing or 0
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
        missing = self._missing(nodes)
        complete = nodes if nodes and max(missing) <= 0 else 0
        for node, amounts in self.amounts.items():
            if not nodes >> node & 1 and all(map(ge, amounts, missing)):
                complete |= 1 << node
        return complete

    @property
    def slack(self) -> tuple[int, ...]:
        return tuple(-short for short in self._missing(self.nodes))

    def amounts_on(self, node: int) -> tuple[int, ...]:
        return self.amounts[node]

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        inside = bits.subsets(self.nodes)
        fitting = set(inside)
        for kind, wanted in enumerate(self.need):
            held = [0]
            for amounts in self.amounts.values():
                held += [amount + amounts[kind] for amount in held]
            fitting.intersection_update(mask for mask, amount in zip(inside, held, strict=True) if amount >= wanted)
        every = subsets(self.nodes | bits.union(self.fixed_sets))
        return tuple(filter(fitting.union(self.fixed_sets).__contains__, every))

    def may_complete(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        if nodes & ~self.nodes:
            return False
        rest = [amounts for node, amounts in self.amounts.items() if among >> node & 1]
        limit = min(_REACH_LIMIT, self.work_limit)
        try:
            return cover.is_enough(rest, self._missing(nodes), count=more, work_limit=limit)
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
        missing = self._missing(start)
        if start and max(missing) <= 0:
            return start
        rest = [(node, amounts) for node, amounts in self.amounts.items() if not start >> node & 1]
        count = cover.fewest_nodes([amounts for _, amounts in rest], missing) if start else self._growing_width
        return 0 if count is None else start | cover.lowest_nodes(rest, missing, count=count)

    def _missing(self, nodes: NodeSet) -> NodeAmounts:
        """Return the missing amount of each type on *nodes*; negative if they hold more."""
        missing = self.need
        for node in bits.members(nodes):
            missing = tuple(wanted - amount for wanted, amount in zip(missing, self.amounts[node], strict=True))
        return missing


def memory_family(ledger: MemoryLedger, need: Sizes, *, pod: str) -> MemoryHintFamily | None:
    """Return the sets of nodes that can serve *need* for a container of *pod*; ``None`` if there is none."""
    wanted = tuple(need.values())
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
            enough = all(map(ge, free, wanted))
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
        preferred_width = cover.fewest_nodes(all_idle, wanted) or 0
    if groups:
        fixed_sets += [mask for mask in groups if mask not in fixed_sets and _group_fits(ledger, mask, need, pod=pod)]
    family = MemoryHintFamily(
        idle, wanted, preferred_width=preferred_width, fixed_sets=tuple(fixed_sets), enough_alone=enough_alone
    )
    return family if family.min_width else None


def _group_fits(ledger: MemoryLedger, nodes: NodeSet, need: Sizes, *, pod: str) -> bool:
    """Return whether a group has *need* in its free memory and what *pod* can reuse, and also if idle."""
    again = ledger.reusable_by(pod).get(nodes, {})
    return ledger.keeps_groups(nodes) and all(
        ledger.free(nodes, type_) + again.get(type_, 0) >= size <= ledger.allocatable_on(nodes, type_)
        for type_, size in need.items()
    )
