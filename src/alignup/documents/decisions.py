"""A decision as a JSON document; ``docs/decision.md`` describes it.

Version 2 is written. Version 1, in which pods were ``refused``, is upgraded when it is read.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from alignup.align import bits
from alignup.align.decision import (
    Decision,
    MergeStep,
    Outcome,
    Placement,
    PossibleDevices,
    Rejection,
    ResourceHints,
    Shortfall,
    shown_hints,
)
from alignup.align.devices.choices import DeviceChoices, Pool
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import ParseError
from alignup.align.hint import IMPOSSIBLE, Hint, HintList
from alignup.align.machine import MAX_NODE_ID
from alignup.align.merging.merge import MergeRule
from alignup.align.settings import Policy, Scope
from alignup.align.workload import QoS
from alignup.documents import codec
from alignup.documents.codec import Document, LinuxList, build, parse_or_none, show_or_none

VERSION = 2  #: raised when a field changes its meaning or goes away, not when one is added

_RULES = [rule.name for rule in MergeRule]
RuleName = Annotated[str, Meta(pattern=f"^({'|'.join(_RULES)})$", extra_json_schema={"enum": _RULES})]


class HintDocument(Document, frozen=True):
    nodes: LinuxList | None  #: ``None``: any node
    preferred: bool

    @classmethod
    @lru_cache(maxsize=1024)  # decisions contain the same few hints again and again
    def of(cls, hint: Hint) -> "HintDocument":
        return cls(show_or_none(hint.nodes), hint.preferred)

    def hint(self) -> Hint:
        return Hint(parse_or_none(self.nodes), self.preferred)


class ResourceHintsDocument(Document, frozen=True):
    """The hints that one provider gave for one resource."""

    provider: str
    resource: str | None
    request: int | None
    free: Mapping[int, int] | None
    hints: list[HintDocument]
    hidden: bool


class MergeStepDocument(Document, frozen=True):
    """One merge of the hints of all resources."""

    container: str | None
    resources: list[ResourceHintsDocument]
    width: int
    rule: RuleName
    hint: HintDocument
    runners_up: list[LinuxList]
    accepted: bool


class PoolDocument(Document, frozen=True):
    """Any of these devices, as many as it takes."""

    take: int
    ids: list[str]


class ChoicesDocument(Document, frozen=True):
    """All devices of one resource that a container may get, where a kubelet or a device plugin chooses at random."""

    text: str
    count: int
    certain: bool
    options: list[list[PoolDocument]]
    may_crash: bool = False
    notes: list[str] = []


class PlacementDocument(Document, frozen=True, omit_defaults=True):
    """What one container holds: CPUs and devices as lists, memory as nodes=bytes."""

    container: str
    hint: HintDocument
    given: Mapping[str, Mapping[str, str]]
    choices: Mapping[str, ChoicesDocument] = {}  #: of a prediction, by resource; the given devices are one choice


class ShortfallDocument(Document, frozen=True):
    """A resource that is short, and where."""

    provider: str
    resource: str
    needed: int
    free: int
    nodes: LinuxList | None


class RejectionDocument(Document, frozen=True):
    """Why a pod was rejected; the kubelet reports the same reason and message."""

    reason: str
    message: str
    container: str | None
    provider: str | None
    shortfalls: list[ShortfallDocument]


class PreferenceRequestDocument(Document, frozen=True):
    """A question that a device plugin must answer before the pod can be admitted."""

    uid: str
    container: str
    resource: str
    available: list[str]
    must_include: list[str]
    size: int


class DecidedPodDocument(Document, frozen=True):
    uid: str
    name: str
    namespace: str
    qos: QoS


class DecisionDocument(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The full record of one admission."""

    version: Literal[2]
    pod: DecidedPodDocument
    policy: Policy
    scope: Scope
    outcome: Outcome
    kept: bool
    steps: list[MergeStepDocument]
    placements: list[PlacementDocument]
    rejection: RejectionDocument | None
    asks: list[PreferenceRequestDocument]
    possible_rejection: RejectionDocument | None = None  #: of a prediction: after some choices of devices


def decision_document(decision: Decision) -> DecisionDocument:
    steps = []
    for step in decision.steps:
        resources = []
        for resource in step.resources:
            hints, hidden = shown_hints(resource)
            free = None if resource.free is None else dict(resource.free)
            documents = list(map(HintDocument.of, hints))
            resources.append(
                ResourceHintsDocument(resource.provider, resource.resource, resource.request, free, documents, hidden)
            )
        hint, runners_up = HintDocument.of(step.hint), [bits.show(nodes) for nodes in step.runners_up]
        steps.append(
            MergeStepDocument(step.container, resources, step.width, step.rule.name, hint, runners_up, step.accepted)
        )
    return DecisionDocument(
        version=2,
        pod=DecidedPodDocument(decision.uid, decision.name, decision.namespace, decision.qos),
        policy=decision.policy,
        scope=decision.scope,
        outcome=decision.outcome,
        kept=decision.kept,
        steps=steps,
        placements=list(map(placement_document, decision.placements)),
        rejection=None if decision.rejection is None else rejection_document(decision.rejection),
        asks=[
            build(PreferenceRequestDocument, ask, available=list(ask.available), must_include=list(ask.must_include))
            for ask in decision.preference_requests
        ],
        possible_rejection=rejection_document(decision.possible.rejection)
        if decision.possible and decision.possible.rejection
        else None,
    )


class RecentDocuments:
    """The documents of the last *size* decisions, so that the answer, the history and the event share one."""

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._entries: dict[int, tuple[Decision, DecisionDocument]] = {}  #: by ``id`` of the decision, oldest first

    def document(self, decision: Decision) -> DecisionDocument:
        """Return the document of *decision*; at worst, two threads build it twice."""
        entry = self._entries.get(id(decision))
        if entry is not None and entry[0] is decision:
            return entry[1]
        document = decision_document(decision)
        if len(self._entries) >= self._size:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread removes it, too
                del self._entries[next(iter(self._entries))]
        self._entries[id(decision)] = decision, document
        return document


#: Of this process.
recent_documents = RecentDocuments()


def placement_document(placement: Placement) -> PlacementDocument:
    hint, choices = HintDocument.of(placement.hint), placement.choices
    documents = {resource: choices_document(choice) for resource, choice in choices.items()} if choices else {}
    return PlacementDocument(placement.container, hint, placement.as_text(), documents)


def choices_document(choices: DeviceChoices) -> ChoicesDocument:
    return ChoicesDocument(
        str(choices),
        choices.count,
        choices.is_certain,
        [[PoolDocument(pool.take, list(pool.ids)) for pool in option] for option in choices.options],
        choices.crashes,
        list(choices.notes),
    )


def rejection_document(rejection: Rejection) -> RejectionDocument:
    shortfalls = [
        build(ShortfallDocument, shortfall, nodes=show_or_none(shortfall.nodes)) for shortfall in rejection.shortfalls
    ]
    return build(RejectionDocument, rejection, shortfalls=shortfalls)


def to_document(decision: Decision) -> dict[str, Any]:
    """Return a decision as a JSON document (``docs/decision.md``)."""
    return codec.to_builtins(decision_document(decision))


def from_document(document: Mapping[str, Any]) -> Decision:
    """Return the decision that plain JSON values describe; ``ParseError`` if they describe none.

    Unknown fields are ignored: a later release may add fields to this version.
    """
    version = document.get("version") if isinstance(document, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise ParseError(f"version {version!r} is not supported: this release reads version {VERSION}")
    try:
        return _decision(codec.convert(dict(document), DecisionDocument))
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise ParseError(f"not a decision: {error}") from error


def _decision(document: DecisionDocument) -> Decision:
    possible = _rejection(document.possible_rejection)
    return build(
        Decision,
        document,
        **msgspec.structs.asdict(document.pod),
        steps=tuple(map(_step, document.steps)),
        placements=tuple(map(_placement, document.placements)),
        rejection=_rejection(document.rejection),
        possible=PossibleDevices(possible) if possible else None,
        preference_requests=tuple(
            build(PreferenceRequest, ask, available=tuple(ask.available), must_include=tuple(ask.must_include))
            for ask in document.asks
        ),
        before=None,
        after=None,
        residue=None,
    )


def _rejection(document: RejectionDocument | None) -> Rejection | None:
    if document is None:
        return None
    shortfalls = tuple(build(Shortfall, entry, nodes=parse_or_none(entry.nodes)) for entry in document.shortfalls)
    return build(Rejection, document, shortfalls=shortfalls)


def _placement(document: PlacementDocument) -> Placement:
    placement = Placement.of_text(document.container, document.hint.hint(), document.given)
    choices = {
        resource: DeviceChoices(
            document.container,
            resource,
            tuple([tuple([Pool(pool.take, tuple(pool.ids)) for pool in option]) for option in choice.options]),
            choice.may_crash,
            tuple(choice.notes),
        )
        for resource, choice in document.choices.items()
    }
    return replace(placement, choices=choices) if choices else placement


def _step(step: MergeStepDocument) -> MergeStep:
    resources = []
    for resource in step.resources:
        if not all(0 <= node < MAX_NODE_ID for node in resource.free or ()):
            raise ParseError(f"free: NUMA node numbers are from 0 to {MAX_NODE_ID - 1}")
        hints = HintList.of(hint.hint() for hint in resource.hints) if resource.hints else IMPOSSIBLE
        resources.append(build(ResourceHints, resource, hints=hints, truncated=resource.hidden))
    runners_up = tuple(bits.parse(nodes) for nodes in step.runners_up)
    rule, hint = MergeRule[step.rule], step.hint.hint()
    return build(MergeStep, step, resources=tuple(resources), rule=rule, hint=hint, runners_up=runners_up)
