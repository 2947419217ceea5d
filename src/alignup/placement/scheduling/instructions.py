"""What the scheduling state wants to be done. The outcome of an instruction comes back as an event."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from alignup.align.bits import NodeSet
from alignup.align.decision import Placement
from alignup.align.workload import Pod
from alignup.placement.scheduling.facts import GroupKey, NodeVictims
from alignup.placement.scheduling.plan_steps import PlanProgress


@dataclass(frozen=True, slots=True)
class KeepNode:
    """A node is kept for a pod, or for some pods of a gang, from now on."""

    node: str
    holder: str  #: its name
    uid: str  #: of the pod, or of the first pod of the gang
    pods: tuple[Pod, ...]
    waited: float  #: seconds


@dataclass(frozen=True, slots=True)
class GiveNodeBack:
    """A node is not kept any more."""

    node: str
    holder: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriteRelease:
    """Remove the gate of a pod, and name its nodes. The outcome is ``ReleaseWritten`` or ``ReleaseFailed``."""

    pod: Pod
    version: str  #: of the pod's object that the choice depends on
    nodes: tuple[str, ...]
    steered: str = ""  #: where it is steered to, and why


@dataclass(frozen=True, slots=True)
class WriteSteering:
    """Let the observer of a node withdraw markers for a pod, or restore all, in the order of the instructions.

    The outcome is ``SteeringWritten`` or ``SteeringFailed``.
    """

    node: str
    pod: Pod | None = None  #: ``None``: all markers are restored
    nodes: NodeSet = 0  #: NUMA nodes that keep their markers
    containers: int = 0  #: of the pod that request markers


@dataclass(frozen=True, slots=True)
class AnswerNodes:
    """The answer to a scheduler that asks for nodes: the nodes, or why the scheduler gets none."""

    offered: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  #: node → reason; evicting pods may help there
    unresolvable: Mapping[str, str] = field(default_factory=dict)  #: the others
    problem: str = ""  #: why nothing can be said
    aligned: bool = True  #: whether the kubelets align the pod; else nothing was decided


@dataclass(frozen=True, slots=True)
class ReadPodClaims:
    """Read the claims of a pod that is about to be bound. The outcome is ``ClaimsRead``."""

    request: int
    pod: Pod
    current: bool  #: whether all are read; one that is followed may have other devices meanwhile


@dataclass(frozen=True, slots=True)
class WriteBinding:
    """Bind a pod. The outcome is ``BindingWritten`` or ``BindingFailed``."""

    request: int
    pod: Pod
    node: str
    steered: str = ""  #: where it is steered to, and why
    placements: tuple[Placement, ...] | None = None  #: what its containers will get; ``None``: that is not certain


@dataclass(frozen=True, slots=True)
class AnswerBinding:
    """The answer to a scheduler that wants a pod to be bound."""

    request: int
    problem: str = ""  #: why it was not bound


@dataclass(frozen=True, slots=True)
class AnswerPreemption:
    victims: Mapping[str, NodeVictims]  #: by node


@dataclass(frozen=True, slots=True)
class WakePod:
    """Let the scheduler of a pod try it again, since *node* has room for it."""

    uid: str
    namespace: str
    name: str
    node: str


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Say something about a pod, unless the last event about it has the same reason and *same*, and is not old."""

    uid: str
    reason: str
    message: str
    same: Any = None
    gate: bool = True  #: whether the gate says so, or else the extender


@dataclass(frozen=True, slots=True)
class AwaitRoom:
    """Wake a pod when one of these nodes has room for the pod: its scheduler need not try the pod again by itself."""

    uid: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeGang:
    """Pods of this gang that wait for the binding of others may be bound now."""

    key: GroupKey


@dataclass(frozen=True, slots=True)
class ForgetEvents:
    """Nothing that was said about a pod is true any more."""

    uid: str


@dataclass(frozen=True, slots=True)
class DecideLargePod:
    """Let the hosts decide on a pod with many containers, which takes long. The outcome is ``LargePodDecided``."""

    uid: str
    pod: Pod


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Tell what a pod is now, as ``PodSeen``: it is tried again."""

    uid: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    uid: str


@dataclass(frozen=True, slots=True)
class ReadPlanFacts:
    """Read which pods of the active plan may be evicted now. The outcome is ``PlanFactsRead``."""

    plan: str  #: its uid


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Write the status of a plan; a later one replaces it. The outcome is ``PlanWritten``."""

    plan: str  #: its uid
    number: int
    progress: PlanProgress


@dataclass(frozen=True, slots=True)
class EvictPlannedPod:
    """Evict a pod as a step of a plan, once. The outcome is ``PlannedPodEvicted``."""

    plan: str  #: its uid
    step: int
    pod: Pod


@dataclass(frozen=True, slots=True)
class ChangeHosts:
    """Verdicts of these hosts may have changed."""

    hosts: Collection[str]
    taken: bool = False  #: whether nothing happened but that pods were assumed there


class PredictionOutcome(StrEnum):
    AS_PREDICTED = "as_predicted"
    PLACED_ELSEWHERE = "placed_elsewhere"
    REJECTED = "rejected"
    FOREIGN_REJECTED = "foreign_rejected"  #: a pod of others was rejected that predictions counted on


@dataclass(frozen=True, slots=True)
class CountPrediction:
    """Log and count what became of a prediction."""

    uid: str
    node: str
    outcome: PredictionOutcome
    cause: str = ""
    difference: str = ""  #: between what the pod got and what was predicted


@dataclass(frozen=True, slots=True)
class RefuseReport:
    """A report cannot be used: the state of its node is unknown, which comes back as ``HostLost``."""

    node: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Report:
    """Something happened that logs and metrics show."""

    event: str
    uid: str = ""
    pod: str = ""  #: its namespace and name
    details: dict[str, Any] = field(default_factory=dict)


Instruction = (
    KeepNode
    | GiveNodeBack
    | WriteRelease
    | WriteSteering
    | AnswerNodes
    | ReadPodClaims
    | WriteBinding
    | AnswerBinding
    | AnswerPreemption
    | WakePod
    | WriteEvent
    | AwaitRoom
    | ChangeGang
    | ForgetEvents
    | DecideLargePod
    | ReadPod
    | EvictPod
    | ReadPlanFacts
    | WritePlan
    | EvictPlannedPod
    | ChangeHosts
    | CountPrediction
    | RefuseReport
    | Report
)
