"""Topology hints, the sets of NUMA nodes that can serve a request for one resource, and the providers that return them.

A :class:`Hint` is one such set, and whether it is preferred. A :class:`HintList` lists them, as providers from outside
do; on *n* nodes a list has up to 2ⁿ - 1 entries. The built-in providers return a :class:`HintFamily` instead, which
tests sets without listing them and takes no longer on 64 nodes than on 2. Both mean the same:
``HintList.of_family`` lists the hints of a family in the kubelet's order.

A hint without nodes means "anywhere". One that is not preferred ("cannot be placed at all") restricts no nodes, but no
combination that contains it is preferred.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from itertools import combinations, compress
from operator import itemgetter
from typing import NamedTuple, Protocol, Self, TypeVar, cast

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import StateError
from alignup.align.workload import Container, Pod


class Hint(NamedTuple):
    nodes: NodeSet | None  #: ``None``: anywhere
    preferred: bool  #: whether the request needs at least this many nodes even on an idle machine

    def __str__(self) -> str:
        nodes = "anywhere" if self.nodes is None else "{" + bits.show(self.nodes) + "}"
        return nodes if self.preferred else f"{nodes} not preferred"


class HintFamily(Protocol):
    """All hints for one resource, tested instead of listed.

    A set of nodes *fits* if it is one of ``fixed_sets``, or if it is a subset of ``nodes`` and holds enough. Subsets of
    ``nodes`` are upward closed: a set that fits still fits with more nodes of ``nodes``. Sets that do not grow (memory
    already shared by a group of nodes) are in ``fixed_sets``.
    """

    @property
    def nodes(self) -> NodeSet:
        """The nodes that growing sets consist of, all of them nodes of the machine."""
        ...

    @property
    def fixed_sets(self) -> tuple[NodeSet, ...]:
        """Further sets that fit exactly as they are."""
        return ()

    @property
    def min_width(self) -> int:
        """The smallest number of nodes that fits now; 0 if nothing fits."""
        ...

    @property
    def preferred_widths(self) -> Bits:
        """The set of widths a preferred set can have; may contain too many, never too few.

        If it contains only one width, every set of that width that fits is preferred.
        """
        ...

    def fits(self, nodes: NodeSet) -> bool:
        """Return whether exactly these nodes can serve the request."""
        ...

    def prefers(self, nodes: NodeSet) -> bool:
        """Return whether a hint for *nodes*, which fit, is preferred."""
        ...

    def completing_nodes(self, nodes: NodeSet) -> NodeSet:
        """Return each node that, added to *nodes*, makes a subset of ``nodes`` that fits."""
        return bits.of(node for node in bits.members(self.nodes) if self.fits(nodes | 1 << node))

    @property
    def slack(self) -> tuple[int, ...] | None:
        """The amount of each kind that ``nodes`` hold beyond the need.

        A subset of ``nodes`` fits exactly if the other nodes hold no more than this, kind by kind. ``None`` if amounts
        do not decide what fits.
        """
        return None

    def amounts_on(self, node: int) -> tuple[int, ...]:
        """Return the amount of each kind on *node*; only for families with ``slack``."""
        del node
        return ()

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        """Return every set that fits, by size and then by node ids; up to 2ⁿ - 1 of them."""
        return tuple(filter(self.fits, subsets(self.nodes | bits.union(self.fixed_sets))))

    def may_complete(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        """Return whether *more* nodes of *among* may make *nodes* fit; false positives are possible, negatives not."""
        del more  # only a family with amounts per node can use it
        return self.fits(nodes | among & self.nodes)


@dataclass(slots=True)
class HintList:
    """Listed hints, indexed once so that merging works on sets of ints."""

    masks: tuple[NodeSet, ...]  #: every set of nodes, each once, in the given order
    _: KW_ONLY
    preferred: frozenset[NodeSet]  #: the preferred ones of ``masks``
    anywhere: Hint | None = None  #: the best hint without nodes, if any
    min_width: int | None = field(init=False, compare=False)  #: ``None`` if no hint has nodes
    preferred_singles: NodeSet = field(init=False, compare=False)  #: the nodes of preferred hints with one node

    def __post_init__(self) -> None:
        self.min_width = min(map(int.bit_count, self.masks), default=None)
        singles = 0
        for mask in self.preferred:
            if mask & mask - 1 == 0:
                singles |= mask
        self.preferred_singles = singles

    @classmethod
    def of(cls, hints: Iterable[Hint]) -> Self:
        """List *hints* of a provider; of two for the same nodes, the preferred one counts."""
        hints = tuple(hints)
        flags: dict[NodeSet | None, bool] = dict(hints)
        if len(flags) < len(hints):
            for nodes, is_preferred in hints:
                flags[nodes] |= is_preferred
        anywhere = Hint(None, flags.pop(None)) if None in flags else None
        preferred_by_nodes = cast("dict[NodeSet, bool]", flags)
        return cls(
            tuple(preferred_by_nodes),
            preferred=frozenset(compress(preferred_by_nodes, preferred_by_nodes.values())),
            anywhere=anywhere,
        )

    @classmethod
    def of_family(cls, family: HintFamily) -> Self:
        """List the hints of *family*, by number of nodes and then by node ids, as the kubelet does."""
        masks, widths = family.fitting_sets(), family.preferred_widths
        likely = [mask for mask in masks if widths >> mask.bit_count() & 1]
        return cls(masks, preferred=frozenset(filter(family.prefers, likely)))

    def __iter__(self) -> Iterator[Hint]:
        """Yield the hint without nodes first, then the others in the given order."""
        if self.anywhere is not None:
            yield self.anywhere
        for mask in self.masks:
            yield Hint(mask, mask in self.preferred)


Hints = HintList | HintFamily

#: The provider or resource has no preference: restricts nothing.
DONT_CARE = HintList((), preferred=frozenset(), anywhere=Hint(None, preferred=True))
#: The resource cannot be placed at all: restricts nothing either, but no combination with it is preferred.
IMPOSSIBLE = HintList((), preferred=frozenset(), anywhere=Hint(None, preferred=False))


class _SearchTables(NamedTuple):
    """The tables for a search in an :class:`AmountFamily`."""

    richest: list[int]  #: nodes by amount, the richest first
    steps: list[int]  #: distinct amounts, ascending
    at_least: list[NodeSet]  #: per step, the nodes with that much


@dataclass(slots=True)
class AmountFamily:
    """A family whose nodes each hold an amount: a set fits if its amounts add up to the need.

    CPUs, memory and devices with one node each are such families. A set is preferred if it has ``preferred_width``
    nodes or, with ``sockets``, if it touches exactly ``preferred_sockets`` of them (align-by-socket).

    Most merges need only the nodes that hold enough alone, so what only a search needs is computed on demand.
    """

    amounts: Mapping[int, int]  #: by node
    need: int
    _: KW_ONLY
    preferred_width: int
    required: NodeSet = 0  #: nodes every set must contain: the nodes of the pod's reusable CPUs
    fixed_sets: tuple[NodeSet, ...] = ()
    sockets: tuple[NodeSet, ...] = ()
    preferred_sockets: int = 0
    nodes: NodeSet = field(init=False, compare=False)
    enough_alone: NodeSet = field(init=False, compare=False)  #: the nodes that hold the need alone
    preferred_widths: Bits = field(init=False, compare=False)
    min_width: int = field(init=False, compare=False)
    _tables: _SearchTables | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        need = self.need
        self._tables = None
        nodes = enough_alone = 0
        if max(self.amounts.values(), default=need) < need:  # one node is not enough: there will be a search
            nodes = self._search_tables().at_least[0]
        else:
            for node, amount in self.amounts.items():
                nodes |= 1 << node
                if amount >= need:
                    enough_alone |= 1 << node
        self.nodes = nodes
        self.enough_alone = enough_alone
        self.preferred_widths = (1 << len(self.amounts) + 1) - 2 if self.sockets else 1 << self.preferred_width
        self.min_width = 1 if enough_alone and not self.required else self._min_width()

    def _search_tables(self) -> _SearchTables:
        if self._tables is None:
            amounts = self.amounts
            richest = sorted(amounts, key=amounts.__getitem__, reverse=True)
            at_least: dict[int, NodeSet] = {}
            nodes: NodeSet = 0
            for node in richest:
                nodes |= 1 << node
                at_least[amounts[node]] = nodes
            self._tables = _SearchTables(richest, [*at_least][::-1], [*at_least.values()][::-1])
        return self._tables

    def _min_width(self) -> int:
        widths = [mask.bit_count() for mask in self.fixed_sets]
        width = self.required.bit_count()
        missing_count = self.need - self._held(self.required)
        for node in self._search_tables().richest:
            if missing_count <= 0 and width:
                break
            if not self.required >> node & 1:
                width += 1
                missing_count -= self.amounts[node]
        if missing_count <= 0 and width and not self.required & ~self.nodes:
            widths.append(width)
        return min(widths, default=0)

    def _held(self, nodes: NodeSet) -> int:
        amounts = self.amounts
        total = 0
        nodes &= self.nodes
        while nodes:
            lowest = nodes & -nodes
            total += amounts[lowest.bit_length() - 1]
            nodes ^= lowest
        return total

    def fits(self, nodes: NodeSet) -> bool:
        if nodes & ~self.nodes or self.required & ~nodes or not nodes or self._held(nodes) < self.need:
            return nodes in self.fixed_sets
        return True

    def prefers(self, nodes: NodeSet) -> bool:
        if nodes.bit_count() == self.preferred_width:
            return True
        return bool(self.sockets) and self.preferred_sockets == sum(1 for socket in self.sockets if socket & nodes)

    def completing_nodes(self, nodes: NodeSet) -> NodeSet:
        if not nodes and not self.required:
            return self.enough_alone
        if nodes & ~self.nodes:
            return 0
        _, steps, at_least = self._search_tables()
        step = bisect_left(steps, self.need - self._held(nodes))
        enough = at_least[step] if step < len(steps) else 0
        absent = self.required & ~nodes
        if absent:
            return enough & absent if absent & absent - 1 == 0 else 0
        # A node already in the set adds nothing, so it completes only a set that is complete.
        return enough & ~nodes | (nodes if self.fits(nodes) else 0)

    @property
    def slack(self) -> tuple[int, ...] | None:
        # An amount cannot express that the required nodes must stay.
        return None if self.required else (self._held(self.nodes) - self.need,)

    def amounts_on(self, node: int) -> tuple[int, ...]:
        return (self.amounts[node],)

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        if self.required or self.fixed_sets or not 2 <= len(self.amounts) <= _MAX_CACHED_NODES:
            return tuple(filter(self.fits, subsets(self.nodes | bits.union(self.fixed_sets))))
        sums = [0]
        for node in bits.members(self.nodes):
            amount = self.amounts[node]
            sums += [total + amount for total in sums]
        return tuple(compress(subsets(self.nodes), map(self.need.__le__, _in_subset_order(self.nodes)(sums))))

    def may_complete(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        if nodes & ~self.nodes or self.required & ~(nodes | among) or (self.required & ~nodes).bit_count() > more:
            return False
        missing_count = self.need - self._held(nodes)
        for node in self._search_tables().richest:
            if missing_count <= 0 or more == 0:
                break
            if among >> node & 1:
                missing_count -= self.amounts[node]
                more -= 1
        return missing_count <= 0


#: Hints for one resource as a provider returns them; ``None``: no preference; an empty sequence: impossible.
AnyHints = HintList | HintFamily | Sequence[Hint] | None
#: Hints by resource; ``None`` or an empty mapping: the provider has no preference.
HintsByResource = Mapping[str, AnyHints] | None


class MergeInput(NamedTuple):
    """One input of a merge: the hints for a resource, or ``DONT_CARE`` under the name of a provider."""

    name: str
    hints: Hints


def provider_inputs(provider: str, hints: HintsByResource) -> list[MergeInput]:
    if not hints:
        return [MergeInput(provider, DONT_CARE)]
    inputs = []
    for resource, answer in hints.items():
        usable: Hints = IMPOSSIBLE
        if answer is None:
            usable = DONT_CARE
        elif isinstance(answer, HintList):
            if answer.masks or answer.anywhere:
                usable = answer
        elif hasattr(answer, "min_width"):
            if answer.min_width:
                usable = answer  # type: ignore[assignment] # a family
        elif answer:
            usable = HintList.of(answer)
        inputs.append(MergeInput(resource, usable))
    return inputs


def preferred_single_nodes(hints: Hints) -> tuple[NodeSet, bool]:
    """Return the nodes of all preferred hints with one node, and whether "anywhere" is preferred too."""
    if isinstance(hints, HintList):
        return hints.preferred_singles, hints.anywhere is not None and hints.anywhere.preferred
    if not hints.preferred_widths & 2:
        return 0, False
    singles = hints.completing_nodes(0)
    for mask in hints.fixed_sets:
        if mask & mask - 1 == 0:
            singles |= mask
    if hints.preferred_widths == 2:
        return singles, False
    preferred_mask = 0
    while singles:
        lowest = singles & -singles
        if hints.prefers(lowest):
            preferred_mask |= lowest
        singles ^= lowest
    return preferred_mask, False


_MAX_CACHED_NODES = 10  #: up to this many nodes, all subsets are cached


def subsets(nodes: NodeSet) -> tuple[NodeSet, ...]:
    """Return all non-empty subsets, by size and then by member ids."""
    return _cached_subsets(nodes) if nodes.bit_count() <= _MAX_CACHED_NODES else tuple(iter_subsets(nodes))


def iter_subsets(nodes: NodeSet, *, at_least: int = 1) -> Iterator[NodeSet]:
    """Yield the subsets with *at_least* that many members, in the order of ``subsets``."""
    singles = [1 << node for node in bits.members(nodes)]
    for width in range(at_least, len(singles) + 1):
        for combination in combinations(singles, width):
            yield sum(combination)


@lru_cache(maxsize=64)
def _cached_subsets(nodes: NodeSet) -> tuple[NodeSet, ...]:
    return tuple(iter_subsets(nodes))


@lru_cache(maxsize=64)
def _in_subset_order(nodes: NodeSet) -> Callable[[Sequence[int]], Iterable[int]]:
    """Return a function that puts one value per subset, counted up node by node, into the order of ``subsets``."""
    index = {mask: index for index, mask in enumerate(bits.subsets(nodes))}
    return itemgetter(*(index[mask] for mask in subsets(nodes)))


ProviderLedger = TypeVar("ProviderLedger")


class Need(NamedTuple):
    """The requested amount of a resource, and the free amounts; recorded in the decision."""

    request: int
    free: Mapping[int, int]  #: by NUMA node
    free_total: int | None = None  #: on the whole host; ``None``: the sum over the nodes

    @property
    def total(self) -> int:
        """The free amount on all nodes together."""
        return sum(self.free.values()) if self.free_total is None else self.free_total


class Provider(Protocol[ProviderLedger]):
    """A hint provider: where a resource can go, and its allocation once a policy has chosen.

    CPUs, memory and devices are providers, and callers can add more: pass an object with these methods to ``Host``. The
    ledger of a provider is any immutable value: every step returns a new one, so a rejected pod leaves no trace and
    deciding stays pure. ``docs/own-provider.md`` builds a complete provider. ``container`` is ``None`` for the pod as a
    whole.
    """

    @property
    def name(self) -> str:
        """Its name in decisions; unique on a host."""
        ...

    def initial_ledger(self) -> ProviderLedger:
        """Return a ledger in which nothing is allocated."""
        ...

    def hints(self, ledger: ProviderLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """Return where the requested resources can go; ``None`` if the container requests none."""
        ...

    def allocate(
        self, ledger: ProviderLedger, pod: Pod, container: Container | None, *, affinity: Hint
    ) -> ProviderLedger:
        """Allocate the request, on the nodes of *affinity* if possible; ``ProviderError`` if it is impossible.

        A container that has an allocation keeps it. ``container`` is ``None`` only for a pod whose pod-level resources
        are allocated as a whole.
        """
        ...

    def start_container(self, ledger: ProviderLedger, pod: Pod, container: Container) -> ProviderLedger:
        """Release what containers that end before *container* starts no longer need."""
        del pod, container
        return ledger

    def release(self, ledger: ProviderLedger, uid: str) -> ProviderLedger:
        """Return the ledger without everything that a pod holds."""
        ...

    def needs(self, ledger: ProviderLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """Return requested and free amounts by resource, for the decision."""
        del ledger, pod, container
        return {}

    def allocated_share(self, ledger: ProviderLedger, resource: str, nodes: NodeSet) -> tuple[int, int]:
        """Return how much of a resource is allocated on *nodes*, and how much can be; (0, 0): unknown."""
        del ledger, resource, nodes
        return 0, 0

    def capacity(self, ledger: ProviderLedger, uid: str) -> Mapping[str, int]:
        """Return the host's capacity by resource for the fit check of a pod; empty for cpu, memory and huge pages."""
        del ledger, uid
        return {}

    def describe(self, ledger: ProviderLedger, uid: str, container: str) -> Mapping[str, str]:
        """Return the allocation of a container as text by resource, for the decision."""
        del ledger, uid, container
        return {}

    def to_json(self, ledger: ProviderLedger) -> object:
        """Return the ledger as plain JSON values, to be stored."""
        del ledger
        raise StateError(f"the provider {self.name} cannot store its ledger: it has no to_json and from_json")

    def from_json(self, document: object) -> ProviderLedger:
        """Return the ledger that ``to_json`` stored; ``StateError`` if it is no longer valid on this host."""
        del document
        raise StateError(f"the provider {self.name} cannot store its ledger: it has no to_json and from_json")
