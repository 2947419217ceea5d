"""The records of the agent about pods that are admitted or waiting."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from alignup.align.bits import quote
from alignup.align.decision import Decision
from alignup.align.errors import PodError, Problem
from alignup.align.layered_map import LayeredMap, with_item, without_item
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.documents.pods import PodGrants

Document = Mapping[str, Any]  #: JSON values

MAX_UID = 1_024  #: characters; the HTTP API accepts no longer one
MAX_METADATA = 256 << 10  #: characters of all labels and annotations; the API server has this limit for annotations
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

    def with_decision(self, decision: Decision) -> Self:
        return type(self)(  # replace() takes three times as long, which shows when many pods wait
            pod=self.pod,
            since=self.since,
            source=self.source,
            decision=decision.without_ledgers(),
            grants=self.grants,
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
        message = f"labels and annotations must have at most {MAX_METADATA} characters together, not {size}"
        raise PodError([Problem("metadata.annotations", message)])


def check_uid(uid: str) -> None:
    """Raise ``PodError`` for a uid that cannot be part of a URL path: such a pod could never be released."""
    if not 0 < len(uid) <= MAX_UID:
        raise PodError([Problem("metadata.uid", f"must have 1 to {MAX_UID} characters, not {len(uid)}")])
    if "/" in uid or uid in {".", ".."} or not uid.isprintable():
        message = f"must consist of printable characters without slashes, and be more than dots, not {quote(uid)}"
        raise PodError([Problem("metadata.uid", message)])


def same_workload(pod: Pod, known: Pod) -> bool:
    """Return whether *pod* requests the same resources as *known*."""
    requests, known_requests = (
        (each.init, each.containers, each.resources, each.overhead, *map(each.annotations.get, _POLICY_ANNOTATIONS))
        for each in (pod, known)
    )
    return requests == known_requests
