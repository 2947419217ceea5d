"""A pod's entry while a ledger is being restored: the pod, and the holdings to check."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from alignup.align.errors import ParseError
from alignup.align.ledger import AdmittedPod
from alignup.align.workload.demand import FitRequest
from alignup.schema.codec import build
from alignup.schema.ledgers.documents import PodEntryDocument
from alignup.schema.pods import read_pod


class HoldingConflict(NamedTuple):
    """Something that a pod can no longer hold."""

    uid: str  #: the pod to release; empty if no single pod is the cause
    what: str


@dataclass(frozen=True, slots=True)
class PodEntry:
    admitted: AdmittedPod
    document: PodEntryDocument

    @property
    def uid(self) -> str:
        return self.admitted.pod.uid

    def owner(self, container: str | None = None) -> str:
        """Return the name of the pod, or of one of its containers, for messages."""
        pod = self.admitted.pod
        name = f"{pod.namespace}/{pod.name}"
        return name if container is None else f"{name} (container {container})"

    def check_containers(self, names: Iterable[str]) -> None:
        if unknown := set(names) - {one.name for one in self.admitted.pod.all_containers}:
            raise ParseError(f"{self.owner()} has no container {', '.join(sorted(unknown))}")


def read_pod_entry(document: PodEntryDocument) -> PodEntry:
    pod = read_pod(document.pod)
    if not pod.uid:
        raise ParseError(f"pod {pod.namespace}/{pod.name} has no uid")
    admitted = AdmittedPod(
        pod,
        {container: hint.hint() for container, hint in document.hints.items()},
        build(FitRequest, document.uses),
    )
    return PodEntry(admitted, document)
