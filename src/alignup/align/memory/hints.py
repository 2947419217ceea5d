"""On which sets of NUMA nodes could a request for memory be served?

Memory of one node goes to containers that fit on that node; memory of several nodes only to containers that use just
that group. So a set is one of three: nodes nobody uses yet, as many as it takes; one node already in use for itself; or
an existing group, exactly as it is. Only the first kind grows, and it is never listed. Every requested type must fit,
so all types share one family of sets.

A set is preferred when it has as few nodes as the request would take on the idle machine.
"""

from collections.abc import Mapping, Sequence
from operator import ge

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError
from alignup.align.hint import subsets
from alignup.align.memory import cover
from alignup.align.memory.cover import NodeAmounts
from alignup.align.memory.ledger import EMPTY_TABLE, MemoryLedger, Sizes

#: Dead ends after which :meth:`MemoryHintFamily.within_reach` rather hopes than searches on.
_HOPE_LIMIT = 500


class MemoryHintFamily:
    """The sets of nodes that hold enough of every type: those growing inside ``nodes``, and those ``apart``.

    Without *preferred_width* nothing is held yet, so that what fits now is what an idle machine takes.
    """

    __slots__ = (
        "_need",
        "_stocks",
        "_width",
        "_work_limit",
        "apart",
        "narrowest",
        "nodes",
        "preferred_width",
        "preferred_widths",
    )

    def __init__(
        self,
        stocks: Mapping[int, NodeAmounts],
        need: NodeAmounts,
        *,
        preferred_width: int | None = None,
        apart: Sequence[NodeSet] = (),
        work_limit: int = cover.WORK_LIMIT,
    ) -> None:
        self._stocks = stocks  #: what may grow, rising: how much of each type a node has free
        self._need = need
        self._work_limit = work_limit
        self.nodes: NodeSet = bits.of(stocks)
        self.apart = tuple(apart)
        self._width = cover.fewest_nodes(list(stocks.values()), need, work_limit=work_limit)
        self.preferred_width: int = preferred_width or self._width or 0
        self.preferred_widths: Bits = 1 << self.preferred_width
        widths = [mask.bit_count() for mask in self.apart]
        self.narrowest: int = min(widths if self._width is None else [*widths, self._width], default=0)

    def fits(self, nodes: NodeSet) -> bool:
        """Whether *nodes* together hold enough of every type, or are one of the sets apart."""
        if nodes and not nodes & ~self.nodes and max(self._missing(nodes)) <= 0:
            return True
        return nodes in self.apart

    def prefers(self, nodes: NodeSet) -> bool:
        """Whether *nodes* are as few as the idle machine allows."""
        return nodes.bit_count() == self.preferred_width

    def completing(self, nodes: NodeSet) -> NodeSet:
        """Each node which, added to *nodes*, makes them hold enough of every type."""
        if nodes & ~self.nodes:
            return 0
        missing = self._missing(nodes)
        complete = nodes if nodes and max(missing) <= 0 else 0
        for node, stock in self._stocks.items():
            if not nodes >> node & 1 and all(own >= wanted for own, wanted in zip(stock, missing, strict=True)):
                complete |= 1 << node
        return complete

    @property
    def room(self) -> tuple[int, ...]:
        """How much of each type ``nodes`` hold beyond what is needed."""
        return tuple(-short for short in self._missing(self.nodes))

    def holds(self, node: int) -> tuple[int, ...]:
        """How much of each type *node* has free."""
        return self._stocks[node]

    def masks(self) -> tuple[NodeSet, ...]:
        """Every set that fits, by number of nodes and then in rising order of ids."""
        inside: list[NodeSet] = [0]
        for node in self._stocks:
            inside += [mask | 1 << node for mask in inside]
        fitting = set(inside)
        for kind, wanted in enumerate(self._need):
            held = [0]
            for stock in self._stocks.values():
                held += [amount + stock[kind] for amount in held]
            fitting.intersection_update(mask for mask, amount in zip(inside, held, strict=True) if amount >= wanted)
        return tuple(filter(fitting.union(self.apart).__contains__, subsets(self.nodes | bits.union(self.apart))))

    def within_reach(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        """Whether some *more* nodes of *among* would make *nodes* hold enough of every type."""
        if nodes & ~self.nodes:
            return False
        rest = [stock for node, stock in self._stocks.items() if among >> node & 1]
        limit = min(_HOPE_LIMIT, self._work_limit)
        try:
            return cover.is_enough(rest, self._missing(nodes), count=more, work_limit=limit)
        except WorkLimitError:
            return True

    def best(self, start: NodeSet = 0) -> NodeSet | None:
        """Of the sets that fit and contain *start*, the one with the fewest nodes, then the lowest, if any."""
        found = [mask for mask in self.apart if not start & ~mask]
        grown = self._grown(start)
        if grown:
            found.append(grown)
        return min(found, key=lambda mask: (mask.bit_count(), mask), default=None)

    def _grown(self, start: NodeSet) -> NodeSet:
        """The best set that grows from *start*; empty when none does."""
        if start & ~self.nodes:
            return 0
        missing = self._missing(start)
        if start and max(missing) <= 0:
            return start
        rest = [(node, stock) for node, stock in self._stocks.items() if not start >> node & 1]
        count = cover.fewest_nodes([stock for _, stock in rest], missing) if start else self._width
        return 0 if count is None else start | cover.lowest_nodes(rest, missing, count=count)

    def _missing(self, nodes: NodeSet) -> NodeAmounts:
        """What *nodes* are short of, type by type; negative where they hold more."""
        missing = self._need
        for node in bits.members(nodes):
            missing = tuple(wanted - own for wanted, own in zip(missing, self._stocks[node], strict=True))
        return missing


def memory_family(ledger: MemoryLedger, need: Sizes, *, pod: str) -> MemoryHintFamily | None:
    """The sets of nodes that could serve *need*, for a container of *pod*; ``None`` when there is none."""
    wanted = tuple(need.values())
    untouched: dict[int, NodeAmounts] = {}
    apart: list[NodeSet] = []
    groups = dict.fromkeys(ledger.reusable_by(pod))
    one_is_enough = False
    for id_, (cells, assignments, tables) in ledger.nodes.items():
        # A node that does not list a type has none of it; the kubelet crashes there.
        stock = tuple([tables.get(type_, EMPTY_TABLE).free for type_ in need])
        enough = all(map(ge, stock, wanted))
        one_is_enough = one_is_enough or enough
        if not assignments:
            untouched[id_] = stock
        elif cells & cells - 1:
            groups[cells] = None
        elif enough:
            apart.append(cells)
    preferred_width = 1 if one_is_enough else None
    if not one_is_enough and len(untouched) < len(ledger.nodes):
        preferred_width = _idle_width(ledger, need)
    apart += [mask for mask in groups if mask not in apart and _serves(ledger, mask, need, pod=pod)]
    found = MemoryHintFamily(untouched, wanted, preferred_width=preferred_width, apart=apart)
    return found if found.narrowest else None


def _idle_width(ledger: MemoryLedger, need: Sizes) -> int | None:
    """The fewest nodes that would serve *need* if nothing were held; ``None`` when all of them would not."""
    stocks = [
        tuple([node.tables.get(type_, EMPTY_TABLE).allocatable for type_ in need]) for node in ledger.nodes.values()
    ]
    return cover.fewest_nodes(stocks, tuple(need.values()))


def _serves(ledger: MemoryLedger, nodes: NodeSet, need: Sizes, *, pod: str) -> bool:
    """Whether a group, as it is, has *need* in what is free and what *pod* may use again, and would if idle."""
    again = ledger.reusable_by(pod).get(nodes, {})
    return ledger.keeps_groups(nodes) and all(
        ledger.free(nodes, type_) + again.get(type_, 0) >= size <= ledger.allocatable_on(nodes, type_)
        for type_, size in need.items()
    )
