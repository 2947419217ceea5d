"""What the agent keeps about a pod that is admitted, waiting or finished."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from alignup.align.admit import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.align.bits import quote
from alignup.align.decision import Decision
from alignup.align.errors import PodError, Problem
from alignup.align.layered_map import LayeredMap, with_item, without_item
from alignup.align.workload import Pod
from alignup.documents import codec
from alignup.documents.checkpoints import FinishedPodDocument, TerminationRequest
from alignup.documents.decisions import decision_document
from alignup.documents.pods import pod_document
from alignup.documents.run_status import PodGrants, PodRunStatus
from alignup.kubernetes.podspec import manifest_of

Document = Mapping[str, Any]  #: JSON values

MAX_UID = 1_024  #: characters; the HTTP API accepts no longer one
MAX_METADATA = 256 << 10  #: characters of all labels and annotations; the API server has this limit for annotations
MAX_MANIFEST = 1 << 20  #: characters
MAX_GRANT_BYTES = 256 << 10  #: of everything that device plugins return for one pod

API_SOURCE = "api"  #: the source of pods that come from no manifest file
_POLICY_ANNOTATIONS = (POLICY_ANNOTATION, SCOPE_ANNOTATION)


@dataclass(frozen=True, kw_only=True)
class PodRecord:
    pod: Pod
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the path of the manifest file
    decision: Decision  #: the latest, without its ledgers, which would stay in memory
    grants: PodGrants = field(default_factory=dict)
    termination: TerminationRequest | None = None  #: ``None``: the pod is not terminating
    run: PodRunStatus | None = None  #: the final status of a finished pod

    def with_decision(self, decision: Decision) -> Self:
        return type(self)(  # replace() takes three times as long, which shows when many pods wait
            pod=self.pod,
            since=self.since,
            source=self.source,
            decision=decision.without_ledgers(),
            grants=self.grants,
            termination=self.termination,
            run=self.run,
        )

    @cached_property
    def finished_document(self) -> bytes:
        """The record of a finished pod in the checkpoint."""
        assert self.run is not None, "the pod has not finished"  # noqa: S101
        return codec.encode(
            FinishedPodDocument(
                pod=pod_document(self.pod),
                run=self.run,
                decision=decision_document(self.decision),
                since=self.since,
                source=self.source,
                manifest=self.pod.manifest.text if self.pod.manifest else None,
                termination=self.termination,
            )
        )


RecordMap = dict[str, PodRecord] | LayeredMap[str, PodRecord]  #: by uid; must not be changed


class TrackedRecords:
    """Changes *records*, by uid: each change makes another map. ``changed`` has the uids that were changed."""

    def __init__(self, records: RecordMap) -> None:
        self.records = records
        self.changed: set[str] = set()

    def __contains__(self, uid: str) -> bool:
        return uid in self.records

    def __getitem__(self, uid: str) -> PodRecord:
        return self.records[uid]

    def __setitem__(self, uid: str, record: PodRecord) -> None:
        self.changed.add(uid)
        self.records = with_item(self.records, uid, record)

    def __delitem__(self, uid: str) -> None:
        self.changed.add(uid)
        self.records = without_item(self.records, uid)


def check_pod(pod: Pod) -> None:
    """Raise ``PodError`` for a pod that could never be released, or carries too much to be stored with many others."""
    check_uid(pod.uid)
    size = sum(len(name) + len(value) for part in (pod.labels, pod.annotations) for name, value in part.items())
    if size > MAX_METADATA:
        what = f"labels and annotations must have at most {MAX_METADATA} characters together, not {size}"
        raise PodError([Problem("metadata.annotations", what)])
    if pod.manifest is not None and len(pod.manifest.text) > MAX_MANIFEST:
        raise PodError([Problem("", f"a manifest must have at most {MAX_MANIFEST} characters as JSON")])


def check_uid(uid: str) -> None:
    """Raise ``PodError`` for a uid that cannot be part of a URL path: such a pod could never be released."""
    if not 0 < len(uid) <= MAX_UID:
        raise PodError([Problem("metadata.uid", f"must have 1 to {MAX_UID} characters, not {len(uid)}")])
    if "/" in uid or uid in {".", ".."} or not uid.isprintable():
        what = f"must consist of printable characters without slashes, and be more than dots, not {quote(uid)}"
        raise PodError([Problem("metadata.uid", what)])


def same_workload(pod: Pod, known: Pod) -> bool:
    """Whether *pod* requests the same resources as *known*, and runs the same if the agent runs it."""
    manifest, known_manifest = manifest_of(pod), manifest_of(known)
    same_spec = manifest is None or (known_manifest is not None and manifest.same_spec(known_manifest))
    requests, known_requests = (
        (one.init, one.containers, one.resources, one.overhead, *map(one.annotations.get, _POLICY_ANNOTATIONS))
        for one in (pod, known)
    )
    return same_spec and requests == known_requests
