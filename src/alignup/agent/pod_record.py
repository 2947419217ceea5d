"""What the agent keeps about a pod that is admitted, waiting or finished."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from alignup.align.admit import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.align.bits import quote
from alignup.align.decision import Decision
from alignup.align.errors import PodError, Problem
from alignup.align.workload import Pod
from alignup.kube.podspec import manifest_of
from alignup.schema.checkpoints import TerminationRequest
from alignup.schema.run_status import PodGrants, PodRunStatus

Document = Mapping[str, Any]  #: JSON values

MAX_UID = 1_024  #: characters; the HTTP API accepts no longer one

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
        return replace(self, decision=replace(decision, before=None, after=None))

    @cached_property
    def request_key(self) -> str:
        """Equal for pods with equal requests: on one ledger, the same decision applies to all of them."""
        return repr(replace(self.pod, name="", namespace="", uid="", labels={}))


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
