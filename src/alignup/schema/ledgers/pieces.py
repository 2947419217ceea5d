"""The piece of one pod while a ledger is put together: who it is, and what it is said to hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from alignup.align.errors import ParseError
from alignup.align.hint import Hint
from alignup.align.ledger import AdmittedPod
from alignup.align.workload.demand import FitRequest
from alignup.schema.ledgers.values import amount, fields, flag, members_or_none, text
from alignup.schema.ledgers.workload import read_pod


class HoldingConflict(NamedTuple):
    """Something that cannot be held any more."""

    uid: str  #: the pod that would have to go; empty: nobody in particular
    what: str


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod and the holdings in its document, not looked at yet."""

    resident: AdmittedPod
    document: Mapping[str, Any]

    @property
    def uid(self) -> str:
        """The pod's own."""
        return self.resident.pod.uid

    def owner(self, container: str | None = None) -> str:
        """The pod, or one of its containers, as people call it."""
        pod = self.resident.pod
        name = f"{pod.namespace}/{pod.name}"
        return name if container is None else f"{name} (container {container})"

    def holds(self, kind: str) -> Mapping[str, Any]:
        """What it is said to hold of one kind."""
        return fields(self.document.get(kind, {}))

    def by_container(self, document: object) -> Mapping[str, Any]:
        """*document*, an object with the pod's containers as names."""
        said = fields(document)
        strange = said.keys() - {one.name for one in self.resident.pod.everyone}
        if strange:
            raise ParseError(f"{self.owner()} has no container {', '.join(sorted(strange))}")
        return said


def read_pod_entry(document: object) -> PodEntry:
    """The piece a document describes."""
    said = fields(document)
    pod = read_pod(said["pod"])
    if not pod.uid:
        raise ParseError(f"the pod {pod.namespace}/{pod.name} has no uid")
    uses = fields(said["uses"])
    resident = AdmittedPod(
        pod,
        {container: _hint(hint) for container, hint in fields(said.get("hints", {})).items()},
        FitRequest(
            milli_cpu=amount(uses["milliCpu"]),
            memory=amount(uses["memory"]),
            ephemeral_storage=amount(uses["ephemeralStorage"]),
            scalars={name: amount(count) for name, count in fields(uses["scalars"]).items()},
        ),
    )
    return PodEntry(resident, said)


def if_pod_exists(again: object, pieces: Sequence[PodEntry]) -> Mapping[str, Any] | None:
    """Leave to use something again, if the pod that had it is there: one that is gone gave everything back."""
    if again is None:
        return None
    said = fields(again)
    return said if any(piece.uid == text(said["pod"]) for piece in pieces) else None


def _hint(document: object) -> Hint:
    said = fields(document)
    return Hint(members_or_none(said["nodes"]), flag(said["preferred"]))
