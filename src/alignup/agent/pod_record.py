"""A pod the agent knows: it runs here, or waits to, or has run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from alignup.align.admit import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.align.decision import Decision
from alignup.align.workload import Pod
from alignup.kube.podspec import PodManifest, manifest_of
from alignup.schema import decisions

Document = Mapping[str, Any]  #: of JSON values

POLICY_ANNOTATIONS = (POLICY_ANNOTATION, SCOPE_ANNOTATION)
API_SOURCE = "api"  #: where a pod comes from that came from no file


class StoredRecord:
    """A decision that is kept for long.

    As it was made it keeps alive every ledger it was made on, and it takes as long to write it down as to make it. So
    it is kept as it is while somebody waits for the answer, and as a text once it is *settled*.
    """

    __slots__ = ("_decision", "_text")

    def __init__(self, decision: Decision) -> None:
        self._decision: Decision | None = decision  #: ``None``: settled, and nobody has asked for it since
        self._text = b""  #: empty: not settled

    @property
    def decision(self) -> Decision:
        """The decision; once it is settled, without the ledgers."""
        decision = self._decision  # it may be settled meanwhile, by another thread
        if decision is None:
            decision = self._decision = decisions.from_document(json.loads(self._text))
        return decision

    def to_document(self) -> Document:
        """Keep it as a text from now on, and give it as a document."""
        document = decisions.to_document(self.decision)
        if not self._text:
            self._text = json.dumps(document, separators=(",", ":")).encode()
            self._decision = None
        return document


@dataclass(frozen=True, slots=True)
class TerminationRequest:
    """A pod was told to end; it holds what it has until the last of its containers has stopped."""

    since: float  #: seconds since 1970
    grace: float | None = None  #: seconds until they are killed; ``None``: as the pod says

    def is_sooner_than(self, other: "TerminationRequest") -> bool:
        """Whether its pod is killed earlier; as the pod says is not known here, and is the latest."""
        if self.grace is None:
            return False
        return other.grace is None or self.since + self.grace < other.since + other.grace


@dataclass(frozen=True, kw_only=True)
class PodRecord:
    """A pod, since when it is known, and the newest decision about it."""

    pod: Pod
    since: float  #: seconds since 1970
    source: str  #: ``api``, or the manifest file it comes from
    record: StoredRecord  #: of the newest decision about it
    #: container → resource → what device plugins gave with the devices (``plugins.allocate_response``)
    grants: Mapping[str, Mapping[str, Document]] = field(default_factory=dict)
    ending: TerminationRequest | None = None  #: ``None``: it is to go on

    def told(self, decision: Decision) -> Self:
        """The same pod, after a newer decision."""
        newer = StoredRecord(decision)
        newer.to_document()
        return replace(self, record=newer)

    @cached_property
    def shape(self) -> str:
        """The same for all pods that ask for the same, so that on one ledger they fare the same."""
        return repr(replace(self.pod, name="", namespace="", uid="", labels={}))


def same_workload(pod: Pod, known: Pod) -> bool:
    """Whether *pod* asks for the same as the one of its uid that is known, and would run the same if it is run here."""
    return _asked(pod) == _asked(known) and _runs_same(manifest_of(pod), manifest_of(known))


def _runs_same(manifest: PodManifest | None, known: PodManifest | None) -> bool:
    """Whether the specs are equal; labels and the like may change while the pod runs."""
    return manifest is None or (known is not None and manifest.same_spec(known))


def _asked(pod: Pod) -> tuple[object, ...]:
    choices = {name: said for name, said in pod.annotations.items() if name in POLICY_ANNOTATIONS}
    return pod.init, pod.containers, pod.resources, pod.overhead, choices
