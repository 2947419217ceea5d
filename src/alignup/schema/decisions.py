"""A decision as a document: plain JSON values, and back.

The schema is ``docs/decision.md``. Sets are Linux lists, ``"0-3,8"``, never integers.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision, MergeStep, Outcome, Placement, Rejection, ResourceHints, Shortfall
from alignup.align.devices import PreferenceRequest
from alignup.align.errors import ParseError
from alignup.align.hint import IMPOSSIBLE, Hint, HintList
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS

VERSION = 1  #: of the schema; raised when a field changes its meaning or goes away, not when one is added


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


def _nodes(nodes: NodeSet | None) -> str | None:
    return None if nodes is None else bits.show(nodes)


def _read_nodes(value: object) -> NodeSet | None:
    return None if value is None else bits.parse(_text(value))


def _hint(hint: Hint) -> dict[str, Any]:
    return {"nodes": _nodes(hint.nodes), "preferred": hint.preferred}


def _read_hint(document: Mapping[str, Any]) -> Hint:
    return Hint(_read_nodes(document["nodes"]), _flag(document["preferred"]))


def _read_step(document: Mapping[str, Any]) -> MergeStep:
    return MergeStep(
        container=_text_or_none(document["container"]),
        width=_number(document["width"]),
        rule=MergeRule[document["rule"]],
        hint=_read_hint(document["hint"]),
        runners_up=tuple(bits.parse(_text(nodes)) for nodes in _list(document["runnersUp"])),
        accepted=_flag(document["accepted"]),
        told=partial(tuple, [_read_voice(voice) for voice in _list(document["voices"])]),
    )


def _voice(voice: ResourceHints) -> dict[str, Any]:
    hints, hidden = voice.shown
    return {
        "provider": voice.provider,
        "resource": voice.resource,
        "request": voice.request,
        "free": None if voice.free is None else {str(node): amount for node, amount in voice.free.items()},
        "hints": [_hint(hint) for hint in hints],
        "hidden": hidden,
    }


def _read_voice(document: Mapping[str, Any]) -> ResourceHints:
    request, free, hints = document["request"], document["free"], _list(document["hints"])
    return ResourceHints(
        provider=_text(document["provider"]),
        resource=_text_or_none(document["resource"]),
        request=None if request is None else _number(request),
        free=None if free is None else {int(node): _number(amount) for node, amount in free.items()},
        options=HintList.of(map(_read_hint, hints)) if hints else IMPOSSIBLE,
        cut=_flag(document["hidden"]),
    )


def _read_placement(document: Mapping[str, Any]) -> Placement:
    given = {
        _text(provider): {_text(resource): _text(what) for resource, what in own.items()}
        for provider, own in document["given"].items()
    }
    return Placement(_text(document["container"]), _read_hint(document["hint"]), partial(dict, given))


def _refusal(refusal: Rejection | None) -> dict[str, Any] | None:
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


def _read_refusal(document: Mapping[str, Any]) -> Rejection:
    return Rejection(
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


def _read_ask(document: Mapping[str, Any]) -> PreferenceRequest:
    return PreferenceRequest(
        uid=_text(document["uid"]),
        container=_text(document["container"]),
        resource=_text(document["resource"]),
        available=tuple(map(_text, _list(document["available"]))),
        must_include=tuple(map(_text, _list(document["mustInclude"]))),
        size=_number(document["size"]),
    )
