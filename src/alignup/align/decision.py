"""The record of one admission: everything considered, chosen, refused.

Logs, metrics, answers, explanations and history are all made from a :class:`Decision`, in one place each. It goes to
JSON and back (``to_document``, ``from_document``; the schema is ``docs/decision.md``, its version ``VERSION``), sets as
Linux lists, ``"0-3,8"``, never as integers.

A decision says what would be; it changes nothing. ``Host.apply`` makes it so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Any

from alignup.align import bits
from alignup.align.bits import Nodes
from alignup.align.devices import Ask
from alignup.align.errors import ParseError
from alignup.align.hint import DONT_CARE, IMPOSSIBLE, Family, Hint, Listed, walk_subsets
from alignup.align.merging.merge import Rule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS

VERSION = 1  #: of the schema; raised when a field changes its meaning or goes away, not when one is added


class Outcome(StrEnum):
    """How an admission ended."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    ASKING = "asking"  #: a device plugin has to be asked first; see ``Decision.asks``


#: Hints of one resource that a record shows.
SHOWN = 8
#: Sets of nodes looked at to find them: on many nodes the few that fit may be far apart.
_LOOKED_AT = 128


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What one resource, or a provider without an opinion, said in a merge.

    Hints are spelled out when somebody reads them; two voices are equal when they show the same.
    """

    provider: str
    resource: str | None  #: ``None``: the provider has nothing to say about this container
    request: int | None  #: CPUs, bytes or devices; ``None``: not told
    free: Mapping[int, int] | None  #: NUMA node → how much of it is free there; ``None``: not told
    options: Listed | Family  #: all it said; of a record that was read back, what that showed
    cut: bool = False  #: whether a record that was read back had left hints out

    @property
    def hints(self) -> tuple[Hint, ...]:
        """In the kubelet's order, the first few; empty: it cannot be placed anywhere."""
        return _shown(self.options)[0]

    @property
    def hidden(self) -> bool:
        """Whether there are more hints than shown."""
        return self.cut or _shown(self.options)[1]

    @property
    def indifferent(self) -> bool:
        """Whether anywhere would do."""
        return self.options == DONT_CARE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and _voice(self) == _voice(other)

    def __hash__(self) -> int:
        return hash((self.provider, self.resource, self.request))


def _shown(options: Listed | Family) -> tuple[tuple[Hint, ...], bool]:
    """The first hints, and whether there are more."""
    if isinstance(options, Listed):
        hints = () if options == IMPOSSIBLE else options.hints
        return hints[:SHOWN], len(hints) > SHOWN
    universe = reduce(int.__or__, options.apart, options.nodes)
    found: list[Hint] = []
    for looked_at, mask in enumerate(walk_subsets(universe, at_least=options.narrowest)):
        if looked_at == _LOOKED_AT:
            return tuple(found), True
        if options.fits(mask):
            if len(found) == SHOWN:
                return tuple(found), True
            found.append(Hint(mask, options.prefers(mask)))
    return tuple(found), False


@dataclass(frozen=True, slots=True)
class Step:
    """One merge: what was said, what came of it, and whether the policy took it."""

    container: str | None  #: ``None``: the pod as a whole
    voices: tuple[Voice, ...]
    width: int  #: the target width
    rule: Rule
    hint: Hint  #: what the providers are to follow
    runners_up: tuple[Nodes, ...]
    accepted: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """What one container was given."""

    container: str
    hint: Hint
    #: provider → resource → what, as text: CPUs and devices as lists, memory as ``nodes=bytes``
    given: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Where something was missing, and how much."""

    provider: str
    resource: str
    needed: int
    free: int  #: of it, on ``nodes``
    nodes: Nodes | None = None  #: ``None``: the host as a whole

    @property
    def missing(self) -> int:
        """How much more it would have taken."""
        return self.needed - self.free


@dataclass(frozen=True, slots=True)
class Refusal:
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
    steps: tuple[Step, ...] = ()
    placements: tuple[Placement, ...] = ()
    refusal: Refusal | None = None
    asks: tuple[Ask, ...] = ()
    kept: bool = False  #: the pod was there already and keeps what it has
    #: the ledgers before and after, for ``Host.apply``; not part of the record
    before: Any = field(default=None, compare=False, repr=False)
    after: Any = field(default=None, compare=False, repr=False)

    @property
    def admitted(self) -> bool:
        """Whether the pod may run."""
        return self.outcome is Outcome.ADMITTED


def to_document(decision: Decision) -> dict[str, Any]:
    """The decision as plain JSON values."""
    return {
        "version": VERSION,
        "pod": {"uid": decision.uid, "name": decision.name, "namespace": decision.namespace, "qos": str(decision.qos)},
        "policy": str(decision.policy),
        "scope": str(decision.scope),
        "outcome": str(decision.outcome),
        "kept": decision.kept,
        "steps": [
            {
                "container": step.container,
                "voices": [_voice(voice) for voice in step.voices],
                "width": step.width,
                "rule": step.rule.name,
                "hint": _hint(step.hint),
                "runnersUp": [bits.show(nodes) for nodes in step.runners_up],
                "accepted": step.accepted,
            }
            for step in decision.steps
        ],
        "placements": [
            {
                "container": placement.container,
                "hint": _hint(placement.hint),
                "given": {provider: dict(what) for provider, what in placement.given.items()},
            }
            for placement in decision.placements
        ],
        "refusal": _refusal(decision.refusal),
        "asks": [
            {
                "uid": ask.uid,
                "container": ask.container,
                "resource": ask.resource,
                "available": list(ask.available),
                "mustInclude": list(ask.must_include),
                "size": ask.size,
            }
            for ask in decision.asks
        ],
    }


def from_document(document: Mapping[str, Any]) -> Decision:
    """The decision a document describes; :class:`ParseError` when it is none, or of a version unknown here.

    Fields unknown here are passed over: a later program of the same version may have added them.
    """
    version = document.get("version") if isinstance(document, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise ParseError(f"a decision of version {version!r}; this program reads version {VERSION}")
    try:
        return _decision(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        missing = "there is no " if isinstance(error, KeyError) else ""
        raise ParseError(f"not a decision: {missing}{error}") from error


def _decision(document: Mapping[str, Any]) -> Decision:
    pod, refusal = document["pod"], document["refusal"]
    return Decision(
        uid=_text(pod["uid"]),
        name=_text(pod["name"]),
        namespace=_text(pod["namespace"]),
        qos=QoS(pod["qos"]),
        policy=Policy(document["policy"]),
        scope=Scope(document["scope"]),
        outcome=Outcome(document["outcome"]),
        kept=_flag(document["kept"]),
        steps=tuple(map(_read_step, _list(document["steps"]))),
        placements=tuple(map(_read_placement, _list(document["placements"]))),
        refusal=None if refusal is None else _read_refusal(refusal),
        asks=tuple(map(_read_ask, _list(document["asks"]))),
    )


def _text(value: object) -> str:
    if type(value) is not str:
        raise ParseError(f"{value!r} is no text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> int:
    if type(value) is not int:
        raise ParseError(f"{value!r} is no whole number")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ParseError(f"{value!r} is neither true nor false")
    return value


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise ParseError(f"{value!r} is no list")
    return value


def _nodes(nodes: Nodes | None) -> str | None:
    return None if nodes is None else bits.show(nodes)


def _read_nodes(value: object) -> Nodes | None:
    return None if value is None else bits.parse(_text(value))


def _hint(hint: Hint) -> dict[str, Any]:
    return {"nodes": _nodes(hint.nodes), "preferred": hint.preferred}


def _read_hint(document: Mapping[str, Any]) -> Hint:
    return Hint(_read_nodes(document["nodes"]), _flag(document["preferred"]))


def _read_step(document: Mapping[str, Any]) -> Step:
    return Step(
        container=_text_or_none(document["container"]),
        voices=tuple(map(_read_voice, _list(document["voices"]))),
        width=_number(document["width"]),
        rule=Rule[document["rule"]],
        hint=_read_hint(document["hint"]),
        runners_up=tuple(bits.parse(_text(nodes)) for nodes in _list(document["runnersUp"])),
        accepted=_flag(document["accepted"]),
    )


def _voice(voice: Voice) -> dict[str, Any]:
    hints, hidden = _shown(voice.options)
    return {
        "provider": voice.provider,
        "resource": voice.resource,
        "request": voice.request,
        "free": None if voice.free is None else {str(node): amount for node, amount in voice.free.items()},
        "hints": [_hint(hint) for hint in hints],
        "hidden": hidden or voice.cut,
    }


def _read_voice(document: Mapping[str, Any]) -> Voice:
    request, free, hints = document["request"], document["free"], _list(document["hints"])
    return Voice(
        provider=_text(document["provider"]),
        resource=_text_or_none(document["resource"]),
        request=None if request is None else _number(request),
        free=None if free is None else {int(node): _number(amount) for node, amount in free.items()},
        options=Listed.of(map(_read_hint, hints)) if hints else IMPOSSIBLE,
        cut=_flag(document["hidden"]),
    )


def _read_placement(document: Mapping[str, Any]) -> Placement:
    given = {
        _text(provider): {_text(resource): _text(what) for resource, what in own.items()}
        for provider, own in document["given"].items()
    }
    return Placement(_text(document["container"]), _read_hint(document["hint"]), given)


def _refusal(refusal: Refusal | None) -> dict[str, Any] | None:
    if refusal is None:
        return None
    return {
        "reason": refusal.reason,
        "message": refusal.message,
        "container": refusal.container,
        "provider": refusal.provider,
        "shortfalls": [
            {
                "provider": short.provider,
                "resource": short.resource,
                "needed": short.needed,
                "free": short.free,
                "nodes": _nodes(short.nodes),
            }
            for short in refusal.shortfalls
        ],
    }


def _read_refusal(document: Mapping[str, Any]) -> Refusal:
    return Refusal(
        reason=_text(document["reason"]),
        message=_text(document["message"]),
        container=_text_or_none(document["container"]),
        provider=_text_or_none(document["provider"]),
        shortfalls=tuple(map(_read_shortfall, _list(document["shortfalls"]))),
    )


def _read_shortfall(document: Mapping[str, Any]) -> Shortfall:
    return Shortfall(
        provider=_text(document["provider"]),
        resource=_text(document["resource"]),
        needed=_number(document["needed"]),
        free=_number(document["free"]),
        nodes=_read_nodes(document["nodes"]),
    )


def _read_ask(document: Mapping[str, Any]) -> Ask:
    return Ask(
        uid=_text(document["uid"]),
        container=_text(document["container"]),
        resource=_text(document["resource"]),
        available=tuple(map(_text, _list(document["available"]))),
        must_include=tuple(map(_text, _list(document["mustInclude"]))),
        size=_number(document["size"]),
    )
