"""What providers say about one resource: on which sets of NUMA nodes could it be placed?

A :class:`Hint` is one such set and whether it is preferred. A provider may spell its hints out (:class:`HintList`), as
providers from outside do; with *n* nodes that takes up to 2ⁿ - 1 of them. Our own providers answer questions about
their hints instead (:class:`HintFamily`), which takes no longer on 64 nodes than on 2. Both mean the same, and
``HintList.of_family`` turns the second into the first, in the kubelet's order.

The surprising rule: a hint without nodes says "anywhere", and an anywhere that is *not* preferred ("cannot be placed at
all") restricts nobody's nodes but keeps every combination from being preferred.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, compress
from operator import itemgetter
from typing import NamedTuple, Protocol, Self, cast

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet


class Hint(NamedTuple):
    """One way to serve a request.

    ``nodes`` is ``None`` when the provider does not care where. ``preferred`` marks the ways that use the fewest
    nodes the empty machine would allow.
    """

    nodes: NodeSet | None
    preferred: bool

    def __str__(self) -> str:
        where = "anywhere" if self.nodes is None else "{" + bits.show(self.nodes) + "}"
        return where if self.preferred else f"{where} not preferred"


class HintFamily(Protocol):
    """All hints of one resource, answered instead of listed.

    A set of nodes *fits* when it is one of ``apart``, or when it lies inside ``nodes`` and holds enough. Inside
    ``nodes`` more is never worse: a set that fits still fits with further nodes of ``nodes`` added. What does not grow
    like that (memory already shared by a group of nodes) stands ``apart``, each set for itself.
    """

    @property
    def nodes(self) -> NodeSet:
        """What sets that may grow are made of; never nodes the machine does not have."""
        ...

    @property
    def apart(self) -> tuple[NodeSet, ...]:
        """Further sets that fit, each exactly as it is."""
        return ()

    @property
    def narrowest(self) -> int:
        """The fewest nodes that fit now; 0 when nothing fits."""
        ...

    @property
    def preferred_widths(self) -> Bits:
        """The numbers of nodes a preferred set may have, as a set of numbers; may name too many, never too few."""
        ...

    def fits(self, nodes: NodeSet) -> bool:
        """Whether the request could be served from exactly these nodes."""
        ...

    def prefers(self, nodes: NodeSet) -> bool:
        """Whether *nodes*, which fit, would be a preferred hint."""
        ...

    def completing(self, nodes: NodeSet) -> NodeSet:
        """Each node which, added to *nodes*, makes a set inside ``nodes`` that fits."""
        return bits.of(node for node in bits.members(self.nodes) if self.fits(nodes | 1 << node))

    @property
    def room(self) -> tuple[int, ...] | None:
        """How much of each kind ``nodes`` hold beyond what is needed; ``None`` when that is not how fitting is decided.

        With it, a set inside ``nodes`` fits exactly when the nodes left out hold no more than this, kind by kind.
        """
        return None

    def holds(self, node: int) -> tuple[int, ...]:
        """How much of each kind *node* holds; asked only of a family that tells its ``room``."""
        del node
        return ()

    def masks(self) -> tuple[NodeSet, ...]:
        """Every set that fits, by number of nodes and then in rising order of ids; there may be 2ⁿ - 1 of them."""
        return tuple(filter(self.fits, subsets(self.nodes | bits.union(self.apart))))

    def within_reach(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        """Whether *nodes* could be made to fit by adding *more* nodes of *among*; may hope in vain, never despair."""
        del more  # only a family that knows how much each node holds can make use of it
        return self.fits(nodes | among & self.nodes)


class HintList:
    """Hints spelled out, digested once so that merging works on sets of ints."""

    __slots__ = ("anywhere", "masks", "narrowest", "preferred")

    def __init__(self, masks: Iterable[NodeSet], *, preferred: Iterable[NodeSet], anywhere: Hint | None = None) -> None:
        #: every set of nodes named, each once, in the order given
        self.masks: tuple[NodeSet, ...] = tuple(masks)
        #: those of ``masks`` that are preferred
        self.preferred: frozenset[NodeSet] = frozenset(preferred)
        #: the best hint without nodes, if there is one
        self.anywhere: Hint | None = anywhere
        #: the fewest nodes a hint names; ``None`` when no hint names any
        self.narrowest: int | None = min(map(int.bit_count, self.masks), default=None)

    @classmethod
    def of(cls, hints: Iterable[Hint]) -> Self:
        """The hints as a provider gave them; of two about the same nodes the preferred one counts."""
        hints = tuple(hints)
        # A comprehension, since dict() is slow about tuples that are not plain.
        flags: dict[NodeSet | None, bool] = {nodes: preferred for nodes, preferred in hints}  # noqa: C416
        if len(flags) < len(hints):
            for nodes, preferred in hints:
                flags[nodes] |= preferred
        anywhere = Hint(None, flags.pop(None)) if None in flags else None
        named = cast("dict[NodeSet, bool]", flags)
        return cls(named, preferred=compress(named, named.values()), anywhere=anywhere)

    @classmethod
    def of_family(cls, family: HintFamily) -> Self:
        """A family's hints, by number of nodes and then in rising order of node ids, as the kubelet lists them."""
        masks, widths = family.masks(), family.preferred_widths
        likely = [mask for mask in masks if widths >> mask.bit_count() & 1]
        return cls(masks, preferred=filter(family.prefers, likely))

    @property
    def hints(self) -> tuple[Hint, ...]:
        """One by one: the hint without nodes first, then the others in the order given."""
        named = tuple(Hint(mask, mask in self.preferred) for mask in self.masks)
        return named if self.anywhere is None else (self.anywhere, *named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HintList) and self.hints == other.hints

    __hash__ = None  # type: ignore[assignment]  # compared in tests, never a key

    def __repr__(self) -> str:
        return f"Listed({', '.join(map(str, self.hints))})"


#: "I do not care": restricts nothing.
DONT_CARE = HintList((), preferred=(), anywhere=Hint(None, preferred=True))
#: "It cannot be placed at all": restricts nothing either, but no combination with it is preferred.
IMPOSSIBLE = HintList((), preferred=(), anywhere=Hint(None, preferred=False))


class AmountFamily:
    """A family whose nodes each hold an amount: a set fits when its amounts add up to what is needed.

    CPUs, memory and devices of one node each are such families. ``must`` are nodes every set has to contain (where a
    pod's reusable CPUs are). A set is preferred when it has ``preferred_width`` nodes or, with *sockets*, when it
    touches exactly ``preferred_sockets`` of them (align-by-socket).
    """

    __slots__ = (
        "_amounts",
        "_at_least",
        "_need",
        "_richest",
        "_steps",
        "apart",
        "must",
        "narrowest",
        "nodes",
        "preferred_sockets",
        "preferred_width",
        "preferred_widths",
        "sockets",
    )

    def __init__(  # noqa: PLR0913 - each is one fact of the request
        self,
        amounts: Mapping[int, int],
        need: int,
        *,
        preferred_width: int,
        must: NodeSet = 0,
        apart: Sequence[NodeSet] = (),
        sockets: Sequence[NodeSet] = (),
        preferred_sockets: int = 0,
    ) -> None:
        self._amounts = amounts
        self._need = need
        #: nodes by what they hold, the richest first
        self._richest = sorted(amounts, key=amounts.__getitem__, reverse=True)
        self.nodes: NodeSet = bits.of(amounts)
        self.must = must
        self.apart = tuple(apart)
        self.preferred_width = preferred_width
        self.sockets = tuple(sockets)
        self.preferred_sockets = preferred_sockets
        self.preferred_widths: Bits = (1 << len(amounts) + 1) - 2 if sockets else 1 << preferred_width
        #: rising amounts, and for each the nodes holding at least that much
        self._steps: list[int] = []
        self._at_least: list[NodeSet] = []
        held: NodeSet = 0
        for node in self._richest:
            held |= 1 << node
            if self._steps and self._steps[-1] == amounts[node]:
                self._at_least[-1] = held
            else:
                self._steps.append(amounts[node])
                self._at_least.append(held)
        self._steps.reverse()
        self._at_least.reverse()
        self.narrowest: int = self._narrowest()

    def _narrowest(self) -> int:
        widths = [mask.bit_count() for mask in self.apart]
        width = self.must.bit_count()
        missing = self._need - self._held(self.must)
        rest = iter(self._richest)
        while missing > 0 or width == 0:
            node = next((node for node in rest if not self.must >> node & 1), None)
            if node is None:
                break
            width += 1
            missing -= self._amounts[node]
        else:
            if not self.must & ~self.nodes:
                widths.append(width)
        return min(widths, default=0)

    def _held(self, nodes: NodeSet) -> int:
        amounts = self._amounts
        held = 0
        nodes &= self.nodes
        while nodes:
            lowest = nodes & -nodes
            held += amounts[lowest.bit_length() - 1]
            nodes ^= lowest
        return held

    def fits(self, nodes: NodeSet) -> bool:
        """Whether the amounts of *nodes* add up, or *nodes* is one of the sets apart."""
        if nodes & ~self.nodes or self.must & ~nodes or not nodes or self._held(nodes) < self._need:
            return nodes in self.apart
        return True

    def prefers(self, nodes: NodeSet) -> bool:
        """Whether *nodes* has the preferred width, or touches just the preferred number of sockets."""
        if nodes.bit_count() == self.preferred_width:
            return True
        return bool(self.sockets) and self.preferred_sockets == sum(1 for socket in self.sockets if socket & nodes)

    def completing(self, nodes: NodeSet) -> NodeSet:
        """Each node which, added to *nodes*, makes them hold enough."""
        if nodes & ~self.nodes:
            return 0
        step = bisect_left(self._steps, self._need - self._held(nodes))
        enough = self._at_least[step] if step < len(self._steps) else 0
        absent = self.must & ~nodes
        if absent:
            return enough & absent if absent & absent - 1 == 0 else 0
        # A node already in the set adds nothing, so it completes only what was complete.
        return enough & ~nodes | (nodes if self.fits(nodes) else 0)

    @property
    def room(self) -> tuple[int, ...] | None:
        """What may be left out; nodes that must not be cannot be told in an amount."""
        return None if self.must else (self._held(self.nodes) - self._need,)

    def holds(self, node: int) -> tuple[int, ...]:
        """The amount of *node*."""
        return (self._amounts[node],)

    def masks(self) -> tuple[NodeSet, ...]:
        """Every set that fits, by number of nodes and then in rising order of ids."""
        if self.must or self.apart or not 2 <= len(self._amounts) <= _FEW:
            return tuple(filter(self.fits, subsets(self.nodes | bits.union(self.apart))))
        held = [0]
        for node in bits.members(self.nodes):
            amount = self._amounts[node]
            held += [total + amount for total in held]
        return tuple(compress(subsets(self.nodes), map(self._need.__le__, _as_listed(self.nodes)(held))))

    def within_reach(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        """Whether the *more* richest nodes of *among* would make *nodes* hold enough."""
        if nodes & ~self.nodes or self.must & ~(nodes | among) or (self.must & ~nodes).bit_count() > more:
            return False
        missing = self._need - self._held(nodes)
        for node in self._richest:
            if missing <= 0 or more == 0:
                break
            if among >> node & 1:
                missing -= self._amounts[node]
                more -= 1
        return missing <= 0


#: What a provider says about one resource; ``None``: the resource does not care.
AnyHints = HintList | HintFamily | Sequence[Hint] | None
#: What a provider says: resource → options; no mapping, or an empty one: the provider does not care.
HintsByResource = Mapping[str, AnyHints] | None


class MergeInput(NamedTuple):
    """One voice in a merge: a resource of a provider, or a provider that does not care."""

    name: str
    options: "HintList | HintFamily"


def merge_inputs(answers: Mapping[str, HintsByResource]) -> tuple[MergeInput, ...]:
    """The voices in *answers* (provider → answer)."""
    return tuple(voice for provider, answer in answers.items() for voice in provider_inputs(provider, answer))


def provider_inputs(provider: str, answer: HintsByResource) -> list[MergeInput]:
    """The voices in one answer: no answer, no options and impossible told apart."""
    if not answer:
        return [MergeInput(provider, DONT_CARE)]
    return [MergeInput(resource, _voice(options)) for resource, options in answer.items()]


def _voice(options: AnyHints) -> "HintList | HintFamily":
    if options is None:
        return DONT_CARE
    if isinstance(options, HintList):
        return options if options.masks or options.anywhere else IMPOSSIBLE
    # Plain tuples and lists are told first: asking whether something is a Sequence takes a while.
    if isinstance(options, (tuple, list, Sequence)):
        return HintList.of(options) if options else IMPOSSIBLE
    return options if options.narrowest else IMPOSSIBLE


def preferred_single_nodes(options: HintList | HintFamily) -> tuple[NodeSet, bool]:
    """The nodes that *options* prefer each for itself, and whether they prefer "anywhere" too."""
    if isinstance(options, HintList):
        singles = [mask for mask in options.preferred if mask & mask - 1 == 0]
        return sum(singles), options.anywhere is not None and options.anywhere.preferred
    if not options.preferred_widths & 2:
        return 0, False
    left = options.completing(0)
    for mask in options.apart:
        if mask & mask - 1 == 0:
            left |= mask
    preferred = 0
    while left:
        lowest = left & -left
        if options.prefers(lowest):
            preferred |= lowest
        left ^= lowest
    return preferred, False


#: Up to this many nodes all their subsets are remembered.
_FEW = 10


def subsets(nodes: NodeSet) -> tuple[NodeSet, ...]:
    """All non-empty subsets: by size, then in rising order of their ids."""
    return _subsets(nodes) if nodes.bit_count() <= _FEW else tuple(iter_subsets(nodes))


def iter_subsets(nodes: NodeSet, *, at_least: int = 1) -> Iterator[NodeSet]:
    """The same one by one, leaving out those of fewer than *at_least* nodes."""
    singles = [1 << node for node in bits.members(nodes)]
    for width in range(at_least, len(singles) + 1):
        for chosen in combinations(singles, width):
            yield sum(chosen)


@lru_cache(maxsize=64)
def _subsets(nodes: NodeSet) -> tuple[NodeSet, ...]:
    return tuple(iter_subsets(nodes))


@lru_cache(maxsize=64)
def _as_listed(nodes: NodeSet) -> Callable[[Sequence[int]], Iterable[int]]:
    """Puts what belongs to each subset, counted up node by node, into the order of ``subsets``."""
    counted = [0]
    for node in bits.members(nodes):
        counted += [mask | 1 << node for mask in counted]
    place = {mask: place for place, mask in enumerate(counted)}
    return itemgetter(*(place[mask] for mask in subsets(nodes)))
