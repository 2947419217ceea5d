"""``SteeringInstruction`` of ``alignup.dev/v1alpha1``: to which NUMA nodes the next pod on a node is to go.

The object is named after its node and has no namespace. The cluster service writes its ``spec``, and the observer of
the node its ``status``; neither can write the other. An instruction is one generation of the object: the observer
carries it out at most once, and reports every step with the generation that it belongs to.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from alignup.documents.codec import Count, Document, LinuxList

GROUP, VERSION, KIND, PLURAL = "alignup.dev", "v1alpha1", "SteeringInstruction", "steeringinstructions"

MARKER_RESOURCE = "alignup.dev/numa"  #: the resource of the devices that stand for NUMA nodes
_MAX_DIGITS = 6  #: of the number of a marker


class SteeringPhase(StrEnum):
    """How far an instruction has been carried out; all but ``READY`` are final."""

    READY = "Ready"  #: the kubelet offers the markers of the chosen NUMA nodes only: bind the pod now
    DONE = "Done"  #: the pod holds its markers; all markers are offered again
    EXPIRED = "Expired"  #: the pod did not come in time; all markers are offered again
    FAILED = "Failed"  #: the kubelet does not follow, or the instruction is wrong; all markers are offered again


class SteeringMetadata(Document, frozen=True, omit_defaults=True, kw_only=True):
    name: str = ""  #: of the node
    namespace: str = ""  #: always empty
    uid: str = ""
    resource_version: str = ""
    generation: Count = 0  #: rises with every change of ``spec``


class SteeredPod(Document, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str


class SteeringSpec(Document, frozen=True, omit_defaults=True, kw_only=True):
    pod: SteeredPod | None = None  #: ``None``: nothing is steered
    numa_nodes: LinuxList = ""
    containers: Annotated[int, Meta(ge=1)] = 1  #: how many of the pod's containers request markers


class SteeringStatus(Document, frozen=True, omit_defaults=True, kw_only=True):
    observed_generation: Count = 0  #: the generation that ``phase`` is about
    phase: str = ""  #: a :class:`SteeringPhase`
    message: str = ""


class SteeringInstruction(Document, frozen=True, omit_defaults=True, kw_only=True):
    metadata: SteeringMetadata = SteeringMetadata()
    spec: SteeringSpec = SteeringSpec()
    status: SteeringStatus = SteeringStatus()

    @property
    def phase(self) -> SteeringPhase | None:
        """How far the instruction has been carried out; ``None``: the observer has not answered this generation."""
        current = self.status.observed_generation == self.metadata.generation
        return SteeringPhase(self.status.phase) if current and self.status.phase in {*SteeringPhase} else None


def marker_number(node: int, id_: str) -> int | None:
    """Return the number of a marker of a NUMA node; ``None`` if *id_* is not the id of any."""
    digits = id_.removeprefix(f"numa-{node}-")
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < _MAX_DIGITS else -1
    return number if id_ == marker_id(node, number) else None


def marker_id(node: int, number: int) -> str:
    """Return the id of a marker of a NUMA node."""
    return f"numa-{node}-{number:03}"
