"""Pods that got another NUMA node than the node they were steered to, and why."""

from enum import StrEnum
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.placement.cluster import Cluster, Confirmed
from alignup.placement.host_report import Cause
from alignup.placement.prediction_comparison import actual_placements
from alignup.placement.scheduling.facts import PodFacts
from alignup.placement.scheduling.instructions import Report
from alignup.placement.scheduling.turn import Turn
from alignup.placement.steered import are_on, numa_preference


class DeviationCause(StrEnum):
    """Why a pod is on another NUMA node; causes without a comment are outcomes of steering that was not certain."""

    NO_INSTRUCTIONS = "no_instructions"  #: the service could not read the SteeringInstructions yet
    NO_MARKERS = "no_markers"
    SILENT = "silent"
    LATE = "late"
    FAILED = "failed"
    NOT_WRITTEN = "not_written"
    NO_CHOICE = "no_choice"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"  #: it was ready; the observer waited too long for the pod, and restored all markers
    RESTORED = "restored"  #: it was ready; the observer had to restore all markers before the pod came
    REPLACED = "replaced"  #: it was ready; the instruction was replaced or removed before the pod came
    OVERTAKEN = "overtaken"  #: it was ready; the node changed, and ``alignup_prediction_total`` counts how
    UNEXPLAINED = "unexplained"  #: it was ready, and the kubelet placed it elsewhere


_ENDED = {"Expired": DeviationCause.EXPIRED, "Failed": DeviationCause.RESTORED}  #: by phase of the instruction


class SteeringTarget(NamedTuple):
    """The NUMA node that a pod asked for, or that was chosen for it."""

    pod: str  #: its namespace and name
    nodes: NodeSet
    cause: DeviationCause | None  #: why it may end elsewhere; ``None``: it is steered for certain
    generation: int  #: of the instruction


class SteeringDeviations:
    """The targets of bound pods, until a report shows where they are."""

    def __init__(self, cluster: Cluster, turn: Turn) -> None:
        self._cluster = cluster
        self._turn = turn
        self._targets: dict[str, SteeringTarget] = {}  #: by uid

    def expect(self, facts: PodFacts, nodes: NodeSet, cause: DeviationCause | None, generation: int = 0) -> None:
        """Expect a pod on *nodes*, or if there are none, on the NUMA node that its annotation names."""
        self.forget(facts.uid)
        preference, _ = numa_preference(facts.pod)
        if not nodes and isinstance(preference, int):
            nodes = 1 << preference
        if nodes:
            self._targets[facts.uid] = SteeringTarget(facts.full_name, nodes, cause, generation)

    def forget(self, uid: str) -> None:
        self._targets.pop(uid, None)

    def confirmed(self, prediction: Confirmed, node: str, instruction: tuple[int, str]) -> None:
        """Compare the NUMA nodes of a pod with its target; *instruction*: generation and phase on its node."""
        target, record = self._targets.pop(prediction.uid, None), self._cluster.record(node)
        if target is None or record is None:
            return
        ledger = record.ledger
        placements = actual_placements(prediction.uid, record.model, ledger)
        if not are_on(target.nodes, placements, ledger):
            cause = target.cause or _cause_of_steered(prediction, target, instruction)
            numa_nodes = bits.union(site for placement in placements for site in placement.sites(ledger))
            details = {"cause": cause, "target": bits.show(target.nodes), "numa_nodes": bits.show(numa_nodes)}
            self._turn.emit(Report("steering deviation", prediction.uid, target.pod, {"node": node, **details}))


def _cause_of_steered(prediction: Confirmed, target: SteeringTarget, instruction: tuple[int, str]) -> DeviationCause:
    """Return why a pod is elsewhere that was bound while the kubelet had the markers of its target only."""
    generation, phase = instruction
    if generation != target.generation:
        return DeviationCause.REPLACED
    if phase in _ENDED:
        return _ENDED[phase]
    overtaken = any(cause is not Cause.STEERING for cause in prediction.causes)
    return DeviationCause.OVERTAKEN if overtaken else DeviationCause.UNEXPLAINED
