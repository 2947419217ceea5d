"""The types of the agent's HTTP API.

The agent returns them and the server sends them, so they belong to neither. A response body and its OpenAPI schema both
derive from one struct. Fields hold what JSON holds: Linux lists for sets, RFC 3339 for times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from alignup.align.decision import Decision
from alignup.align.workload import Pod, QoS
from alignup.documents.codec import Document, Timestamp
from alignup.documents.decisions import DecisionDocument, PlacementDocument, RejectionDocument
from alignup.documents.pods import PodGrants

Story = Annotated[list[str], Meta(description="The decision in sentences.")]


class NotReadyError(Exception):
    """The agent cannot decide now; the message gives the reason and a remedy."""


class BusyError(Exception):
    """A queue is full."""


class LedgerFullError(BusyError):
    """The ledger would be too large with another pod; pods must be released first."""


class AdmissionStatus(StrEnum):
    ADMITTED = "admitted"
    WAITING = "waiting"  #: the pod does not fit now, and is retried when resources are released


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod that the agent knows: admitted or waiting."""

    pod: Pod
    status: AdmissionStatus
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the path of the manifest file
    decision: Decision  #: the latest
    position: int | None = None  #: in the wait queue, from 1
    grants: PodGrants = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    decision: Decision
    pod_view: PodView | None  #: ``None``: rejected, or a dry run


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision from the history."""

    id: int  #: rises with every decision, and is never reused
    time: float  #: seconds since 1970
    document: Mapping[str, Any]  #: as ``documents.decisions`` encodes it


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """Selects decisions from the history, newest first."""

    pod: str | None = None  #: a uid, a name, or ``namespace/name``
    outcome: str | None = None
    before: int | None = None  #: only lower IDs
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEvent:
    id: int  #: increases by one, and restarts with the agent
    time: float  #: seconds since 1970
    kind: str  #: admitted, rejected, waiting, released, announced, …
    document: Mapping[str, Any]


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
    story: Story


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
    story: Story


class AnyDecisionDocument(Document, frozen=True):
    """A decision as it was stored, possibly by another version of alignup."""

    version: int


class StoredDecisionDocument(Document, frozen=True, kw_only=True):
    """A decision from the history."""

    id: int
    time: Timestamp
    decision: AnyDecisionDocument


class StoredDecisionDetailDocument(StoredDecisionDocument, frozen=True, kw_only=True):
    """A decision from the history, also in sentences."""

    story: Story


class DecisionPageDocument(Document, frozen=True):
    decisions: list[StoredDecisionDocument]
    next: Annotated[int, Meta(description="Pass as `before` to get the next page; null: last page.")] | None


class SignInLinkDocument(Document, frozen=True, kw_only=True):
    """A link to the web pages that is valid once."""

    url: Annotated[str, Meta(extra_json_schema={"format": "uri"})]
    seconds: Annotated[int, Meta(ge=1, description="How long it is valid.")]


class ReadyDocument(Document, frozen=True):
    ready: Literal[True] = True


class FieldProblem(Document, frozen=True):
    field: str
    what: str


class ProblemDocument(Document, frozen=True, kw_only=True):
    """A problem as defined in RFC 9457; `errors` lists every invalid field."""

    type: Annotated[str, Meta(extra_json_schema={"format": "uri-reference"})] = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem]


class RejectionProblemDocument(ProblemDocument, frozen=True, kw_only=True):
    """A problem with the decision that rejects the pod."""

    reason: str
    message: str
    decision: DecisionDocument
    story: Story
