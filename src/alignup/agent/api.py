"""The JSON documents of the agent's HTTP API.

A response body and its OpenAPI schema both derive from one struct. Fields hold what JSON holds: Linux lists for sets,
RFC 3339 for times.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from alignup.agent.state import AdmissionResult, AdmissionStatus, PodView
from alignup.align.decision import Decision
from alignup.align.errors import ParseError
from alignup.align.explain import sentences
from alignup.align.workload import QoS
from alignup.documents import codec
from alignup.documents.codec import Document, Timestamp
from alignup.documents.decisions import (
    DecisionDocument,
    PlacementDocument,
    RejectionDocument,
    decision_document,
    from_document,
    placement_document,
    recent_documents,
    rejection_document,
)
from alignup.store.history import StoredDecision
from alignup.web.responses import ProblemDocument

Explanation = Annotated[list[str], Meta(description="The decision in sentences.")]


class ManifestResources(Document, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"


class ManifestContainer(Document, frozen=True):
    name: Annotated[str, Meta(pattern=f"^{_LABEL}$", max_length=63)]
    resources: ManifestResources | None = None


class ManifestMetadata(Document, frozen=True):
    name: Annotated[str, Meta(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253)]


class ManifestSpec(Document, frozen=True):
    containers: Annotated[list[ManifestContainer], Meta(min_length=1)]


class ManifestDocument(Document, frozen=True):
    """A v1 Pod. Fields that do not affect alignment are ignored."""

    api_version: Literal["v1"]
    kind: Literal["Pod"]
    metadata: ManifestMetadata
    spec: ManifestSpec


class GrantedMount(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str
    read_only: bool


class GrantedDevice(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str
    permissions: str


class DeviceGrantDocument(msgspec.Struct, frozen=True):
    """What a device plugin returned for the devices of a container."""

    envs: dict[str, str]
    mounts: list[GrantedMount]
    devices: list[GrantedDevice]
    annotations: dict[str, str]
    cdi: list[str]


class PodViewDocument(Document, frozen=True, kw_only=True):
    """A pod that the agent knows."""

    uid: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    qos: QoS
    status: AdmissionStatus
    position: Annotated[int, Meta(ge=1, description="Position in the wait queue.")] | None
    since: Timestamp
    source: Annotated[str, Meta(description="api, or the path of the manifest file.")]
    placements: list[PlacementDocument]
    rejection: RejectionDocument | None
    grants: Annotated[dict[str, dict[str, DeviceGrantDocument]], Meta(description="By container and resource.")]


class PodDetailDocument(PodViewDocument, frozen=True, kw_only=True):
    """A pod and the latest decision about it."""

    decision: DecisionDocument
    explanation: Explanation


class ListMetadata(Document, frozen=True, kw_only=True):
    """The position of a page in its list, as in the Kubernetes API."""

    continue_: Annotated[str, Meta(description="Pass as `continue` to get the next page; null: last page.")] | None = (
        msgspec.field(name="continue")
    )
    remaining_item_count: Annotated[int, Meta(ge=0, description="The number of pods after this page.")]


class PodListDocument(Document, frozen=True):
    """A page of pods. All pages show the same moment."""

    pods: list[PodViewDocument]
    notes: Annotated[tuple[str, ...], Meta(description="Problems with manifest files.")]
    metadata: ListMetadata


class ReleaseDocument(Document, frozen=True):
    pod: PodViewDocument


class AdmissionDocument(Document, frozen=True, kw_only=True):
    """The result of an admission or of a dry run."""

    outcome: Annotated[str, Meta(extra_json_schema={"enum": ["admitted", "kept", "waiting", "rejected", "asking"]})]
    dry_run: bool
    pod: PodViewDocument | None
    decision: DecisionDocument
    explanation: Explanation


class AnyDecisionDocument(Document, frozen=True):
    """A decision as it was stored, possibly by another version of alignup."""

    version: int


class StoredDecisionDocument(Document, frozen=True, kw_only=True):
    """A decision from the history."""

    id: int
    time: Timestamp
    outcome: Annotated[str, Meta(description="admitted, rejected, or waiting: rejected for now.")]
    decision: AnyDecisionDocument


class StoredDecisionDetailDocument(StoredDecisionDocument, frozen=True, kw_only=True):
    """A decision from the history, also in sentences."""

    explanation: Explanation


class DecisionPageDocument(Document, frozen=True):
    decisions: list[StoredDecisionDocument]
    next: Annotated[int, Meta(description="Pass as `before` to get the next page; null: last page.")] | None


class SignInLinkDocument(Document, frozen=True, kw_only=True):
    """A link to the web pages that is valid once."""

    url: Annotated[str, Meta(extra_json_schema={"format": "uri"})]
    seconds: Annotated[int, Meta(ge=1, description="How long it is valid.")]


class ReadyDocument(Document, frozen=True):
    ready: Literal[True] = True


class RejectionProblemDocument(ProblemDocument, frozen=True, kw_only=True):
    """A problem with the decision that rejects the pod."""

    reason: str
    message: str
    decision: DecisionDocument
    explanation: Explanation


def pod_view_document(view: PodView, *, document: DecisionDocument | None = None) -> PodViewDocument:
    """Return the view of a pod; *document*: the document of its decision, if there is one already."""
    pod, decision = view.pod, view.decision
    if document is None:
        placements = list(map(placement_document, decision.placements))
        rejection = None if decision.rejection is None else rejection_document(decision.rejection)
    else:
        placements, rejection = document.placements, document.rejection
    return PodViewDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=pod.labels,
        qos=pod.qos,
        status=view.status,
        position=view.position,
        since=codec.timestamp(view.since),
        source=view.source,
        placements=placements,
        rejection=rejection,
        grants=cast("Any", view.grants),
    )


def pod_detail_document(view: PodView) -> PodDetailDocument:
    document, explanation = decision_document(view.decision), list(decision_sentences(view.decision))
    view_document = pod_view_document(view, document=document)
    return codec.build(PodDetailDocument, view_document, decision=document, explanation=explanation)


def admission_document(result: AdmissionResult, *, dry_run: bool) -> AdmissionDocument:
    """Return the result; a pod that was admitted before is ``kept``."""
    decision, view = result.decision, result.pod_view
    outcome = str(decision.outcome)
    if view is not None and view.status is AdmissionStatus.WAITING:
        outcome = "waiting"
    elif decision.kept:
        outcome = "kept"
    document = recent_documents.document(decision)
    # The view of a pod that was decided on now has this decision, without its ledgers.
    shared_document = document if view is not None and view.decision.placements is decision.placements else None
    return AdmissionDocument(
        outcome=outcome,
        dry_run=dry_run,
        pod=None if view is None else pod_view_document(view, document=shared_document),
        decision=document,
        explanation=list(decision_sentences(decision)),
    )


def stored_decision_detail(entry: StoredDecision) -> StoredDecisionDetailDocument:
    """Return the decision, with an explanation if this version can read it."""
    try:
        explanation = list(decision_sentences(from_document(entry.document)))
    except ParseError:
        explanation = []
    return codec.build(StoredDecisionDetailDocument, stored_decision(entry), explanation=explanation)


def stored_decision(entry: StoredDecision) -> StoredDecisionDocument:
    decision = cast("Any", entry.document)
    time, outcome = codec.timestamp(entry.time), entry.outcome
    return StoredDecisionDocument(id=entry.id, time=time, outcome=outcome, decision=decision)


def decision_sentences(decision: Decision) -> Iterator[str]:
    """Yield the verdict, the rules, how nodes were chosen, and what was allocated or is short."""
    yield sentences.verdict(decision)
    yield sentences.describe_rules(decision)
    for step in decision.steps:
        subject = "the pod" if step.container is None else f"container {step.container}"
        yield f"{subject}: {sentences.describe_choice(step)}"
    for placement in decision.placements:
        yield f"container {placement.container}: {sentences.describe_allocation(placement)}"
    yield from sentences.describe_rejection(decision)
