"""The record of one admission: everything considered, chosen, refused.

Logs, metrics, answers, explanations and history are all made from a :class:`Decision`, in one place each;
``schema.decisions`` turns it into a document and back.

Everything in it is a value or follows from values that never change, so what costs time to spell out (hints, free
amounts, placements) is spelled out when somebody reads it.

A decision says what would be; it changes nothing. ``Host.apply`` makes it so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices import PreferenceRequest
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, Hint, HintFamily, HintList, iter_subsets
from alignup.align.lazy import lazy
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS


class Outcome(StrEnum):
    """How an admission ended."""

    ADMITTED = "admitted"
    REJECTED = "rejected"
    ASKING = "asking"  #: a device plugin has to be asked first; see ``Decision.asks``


#: Hints of one resource that a record shows.
MAX_SHOWN_HINTS = 8
#: Sets of nodes looked at to find them: on many nodes the few that fit may be far apart.
_LOOKED_AT = 128


@dataclass(frozen=True, slots=True, eq=False)
class ResourceHints:
    """What one resource, or a provider without an opinion, said in a merge.

    Hints are spelled out when somebody reads them; two voices are equal when they show the same.
    """

    provider: str
    resource: str | None  #: ``None``: the provider has nothing to say about this container
    request: int | None  #: CPUs, bytes or devices; ``None``: not told
    free: Mapping[int, int] | None  #: NUMA node → how much of it is free there; ``None``: not told
    options: HintList | HintFamily  #: all it said; of a record that was read back, what that showed
    cut: bool = False  #: whether a record that was read back had left hints out

    @property
    def hints(self) -> tuple[Hint, ...]:
        """In the kubelet's order, the first few; empty: it cannot be placed anywhere."""
        return self.shown[0]

    @property
    def hidden(self) -> bool:
        """Whether there are more hints than shown."""
        return self.shown[1]

    @property
    def shown(self) -> tuple[tuple[Hint, ...], bool]:
        """Both of these, worked out once."""
        hints, more = _shown(self.options)
        return hints, self.cut or more

    @property
    def has_no_preference(self) -> bool:
        """Whether anywhere would do."""
        return self.options == DONT_CARE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceHints) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash((self.provider, self.resource, self.request))

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.provider, self.resource, self.request, self.free, self.shown


def _shown(options: HintList | HintFamily) -> tuple[tuple[Hint, ...], bool]:
    """The first hints, and whether there are more."""
    if isinstance(options, HintList):
        hints = () if options == IMPOSSIBLE else options.hints
        return hints[:MAX_SHOWN_HINTS], len(hints) > MAX_SHOWN_HINTS
    universe = options.nodes | bits.union(options.apart)
    found: list[Hint] = []
    for looked_at, mask in enumerate(iter_subsets(universe, at_least=options.narrowest)):
        if looked_at == _LOOKED_AT:
            return tuple(found), True
        if options.fits(mask):
            if len(found) == MAX_SHOWN_HINTS:
                return tuple(found), True
            found.append(Hint(mask, options.prefers(mask)))
    return tuple(found), False


@dataclass(frozen=True, eq=False)
class MergeStep:
    """One merge: what was said, what came of it, and whether the policy took it."""

    container: str | None  #: ``None``: the pod as a whole
    width: int  #: the target width
    rule: MergeRule
    hint: Hint  #: what the providers are to follow
    runners_up: tuple[NodeSet, ...]
    accepted: bool
    told: Callable[[], tuple[ResourceHints, ...]] = field(repr=False)  #: tells ``voices`` when somebody wants to know

    @lazy
    def voices(self) -> tuple[ResourceHints, ...]:
        """What was said, in the order providers were asked."""
        return self.told()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MergeStep) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash((self.container, self.hint))

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.container, self.voices, self.width, self.rule, self.hint, self.runners_up, self.accepted


@dataclass(frozen=True, eq=False)
class Placement:
    """What one container was given."""

    container: str
    hint: Hint
    told: Callable[[], Mapping[str, Mapping[str, str]]] = field(repr=False)  #: tells ``given``, likewise

    @lazy
    def given(self) -> Mapping[str, Mapping[str, str]]:
        """Provider → resource → what, as text: CPUs and devices as lists, memory as ``nodes=bytes``."""
        return self.told()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash((self.container, self.hint))

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.container, self.hint, self.given


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Where something was missing, and how much."""

    provider: str
    resource: str
    needed: int
    free: int  #: of it, on ``nodes``
    nodes: NodeSet | None = None  #: ``None``: the host as a whole

    @property
    def missing(self) -> int:
        """How much more it would have taken."""
        return self.needed - self.free


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod was refused: in the kubelet's words, and in ours."""

    reason: str  #: the kubelet's, for the pod's status
    message: str  #: the kubelet's, word for word
    container: str | None = None  #: ``None``: the pod as a whole
    provider: str | None = None  #: who could not serve it; ``None``: no set of nodes suits everybody
    shortfalls: tuple[Shortfall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One admission, whole."""

    uid: str
    name: str
    namespace: str
    qos: QoS
    policy: Policy
    scope: Scope
    outcome: Outcome
    steps: tuple[MergeStep, ...] = ()
    placements: tuple[Placement, ...] = ()
    refusal: Rejection | None = None
    asks: tuple[PreferenceRequest, ...] = ()
    kept: bool = False  #: the pod was there already and keeps what it has
    #: the ledgers before and after, for ``Host.apply``; not part of the record
    before: Any = field(default=None, compare=False, repr=False)
    after: Any = field(default=None, compare=False, repr=False)

    @property
    def admitted(self) -> bool:
        """Whether the pod may run."""
        return self.outcome is Outcome.ADMITTED
