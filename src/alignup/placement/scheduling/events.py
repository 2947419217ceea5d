"""What happens in a cluster, as the scheduling state handles it: facts, without objects of the API server."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.claims.resource_claims import Claim
from alignup.align.workload import Pod
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.moves import RunningPod
from alignup.placement.scheduling.facts import GroupKey, NodeVictims, PodFacts
from alignup.placement.scheduling.options import ExtenderOptions, GateOptions
from alignup.placement.scheduling.plan_steps import EvictionOutcome, PlanOrder
from alignup.placement.scheduling.releases import ReleaseOutcome
from alignup.placement.victims import DisruptionBudget

# What the API server and observers say


class BoundPod(NamedTuple):
    pod: Pod
    node: str
    stage: PodStage


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod without a node was created, or has changed."""

    facts: PodFacts


@dataclass(frozen=True, slots=True)
class PodLeft:
    """A pod without a node does not wait for anything that is known here."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodUnreadable:
    """A pod behind the gate cannot be read."""

    uid: str
    problem: str


@dataclass(frozen=True, slots=True)
class PodBound:
    """The API server has recorded the binding of a pod."""

    uid: str
    node: str
    pod: Pod | None  #: as it is now; ``None``: it has no claims, or cannot be read


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted, or has ended."""

    uid: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A Node object has changed in what choices depend on, or is gone."""

    node: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class HostReported:
    """An observer has read the state of a kubelet."""

    report: HostReport


@dataclass(frozen=True, slots=True)
class HostLost:
    """The state of a host is not known until its next report."""

    node: str
    pods: tuple[BoundPod, ...] = ()  #: pods that are bound to the host


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """Something else has changed that verdicts depend on: devices of claims, or what Node objects have room for."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodsListed:
    """All pods with a node were listed; events may have been missed before."""

    pods: tuple[BoundPod, ...]


@dataclass(frozen=True, slots=True)
class PodObserved:
    """A pod with a node is in this stage."""

    pod: Pod  #: without requests, if the last report of the node contains it or it has ended
    node: str
    stage: PodStage


@dataclass(frozen=True, slots=True)
class PodRejected:
    """The kubelet has rejected a pod."""

    uid: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class PodPreempted:
    """The kubelet has ended a pod for a critical one."""

    pod: Pod
    node: str


@dataclass(frozen=True, slots=True)
class ClaimsChanged:
    """Claims, templates, classes or slices have changed; *namespace*: of a claim or template."""

    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class GroupChanged:
    key: GroupKey


@dataclass(frozen=True, slots=True)
class SteeringObserved:
    """The instruction to the observer of a node has changed."""

    node: str
    generation: int
    phase: str = ""  #: what the observer says about it; empty: nothing yet
    uid: str = ""  #: of the pod that it is about
    nodes: NodeSet = 0  #: NUMA nodes of that pod
    deleted: bool = False


# What a scheduler asks


@dataclass(frozen=True, slots=True)
class NodesAsked:
    """A scheduler asks for nodes. The outcome is ``AnswerNodes``."""

    facts: PodFacts
    nodes: Collection[str]  #: that are left for the pod
    avoided: AbstractSet[str] = frozenset()  #: that the pod avoids where it can
    again: bool = False  #: whether nodes were offered for it before


@dataclass(frozen=True, slots=True)
class BindingAsked:
    """A scheduler wants a pod to be bound. The outcome is ``AnswerBinding``, perhaps later."""

    request: int  #: its number
    facts: PodFacts
    node: str


@dataclass(frozen=True, slots=True)
class PreemptionAsked:
    """A scheduler asks which pods to evict. The outcome is ``AnswerPreemption``."""

    facts: PodFacts
    proposed: Mapping[str, NodeVictims]  #: by node
    budgets: tuple[DisruptionBudget, ...] = ()


# What became of instructions


@dataclass(frozen=True, slots=True)
class ReleaseWritten:
    uid: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    uid: str
    outcome: ReleaseOutcome
    message: str = ""
    current: PodFacts | None = None  #: the pod as it is now, if it is still there


@dataclass(frozen=True, slots=True)
class BindingWritten:
    request: int


@dataclass(frozen=True, slots=True)
class BindingFailed:
    """A binding was not written; *lost*: there was no answer, so it may have been."""

    request: int
    problem: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class ClaimsRead:
    """The claims of a pod that is about to be bound, as they are now."""

    request: int
    pod: Pod | None  #: with the names of its claims; ``None``: they cannot be read
    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)  #: newer than what is followed
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SteeringWritten:
    """An instruction was written to the observer of a node; without *uid*, it was cleared."""

    node: str
    uid: str
    generation: int


@dataclass(frozen=True, slots=True)
class SteeringFailed:
    """An instruction was not written; without a *problem*, it may have been."""

    node: str
    uid: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StepFailed:
    """Something unexpected happened while an instruction about a pod was carried out."""

    uid: str
    step: str
    error: Exception
    request: int = 0  #: of a binding


@dataclass(frozen=True, slots=True)
class LargePodDecided:
    uid: str


# Plans


@dataclass(frozen=True, slots=True)
class PlanFactsRead:
    """Which pods of a plan there are, and whether they may be evicted, as the API server says now."""

    plan: str  #: its uid
    pods: tuple[RunningPod, ...] = ()  #: pods of the plan that have nodes, and pods that are disrupted with them
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: uid of a controller → of pods without nodes
    problem: str = ""  #: why nothing could be read


@dataclass(frozen=True, slots=True)
class PlanActivated:
    """A plan is to be carried out from now on."""

    order: PlanOrder
    facts: PlanFactsRead


@dataclass(frozen=True, slots=True)
class PlanPaused:
    plan: str  #: its uid
    paused: bool


@dataclass(frozen=True, slots=True)
class PlanCancelled:
    """The object of a plan was deleted."""

    plan: str  #: its uid


@dataclass(frozen=True, slots=True)
class PlanWritten:
    """The status of a plan has this progress, or a later one."""

    plan: str  #: its uid
    number: int


@dataclass(frozen=True, slots=True)
class PlannedPodEvicted:
    """The answer to an eviction; the pod is not gone yet."""

    plan: str  #: its uid
    step: int
    outcome: EvictionOutcome
    problem: str = ""
    retry_after: float = 0.0  #: seconds


# Time, and turns


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing has happened, but it is later."""


@dataclass(frozen=True, slots=True)
class PlaceNext:
    """Try the next pod behind the gate."""


@dataclass(frozen=True, slots=True)
class ExplainNext:
    """Say why some pods behind the gate wait."""


@dataclass(frozen=True, slots=True)
class WakeNext:
    """Look for room for pods that were refused to their schedulers."""


@dataclass(frozen=True, slots=True)
class ExtenderOpened:
    """Schedulers are answered as the options say."""

    options: ExtenderOptions
    keeps_nodes: bool = True  #: whether nodes are kept for pods that their schedulers find none for


@dataclass(frozen=True, slots=True)
class GateOpened:
    """Pods behind the gate are placed as well, until it is closed, or the leadership ends."""

    options: GateOptions


@dataclass(frozen=True, slots=True)
class GateClosed:
    """Pods behind the gate are not placed any more."""


@dataclass(frozen=True, slots=True)
class LeadershipBegan:
    """This process decides from now on."""


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """Another process decides from now on."""


# Snapshots


class DroppedHost(NamedTuple):
    """A host whose state is unknown for a while, although pods are assumed there."""

    report: HostReport  #: the last one
    values: Mapping[str, Any]
    uids: tuple[str, ...]  #: of the pods


@dataclass(frozen=True, slots=True)
class StateRestored:
    """A new state continues from a snapshot, after the reports of its hosts; see ``snapshot``."""

    parts: Mapping[str, Mapping[str, Any]]  #: part of the state → attribute → value
    hosts: Mapping[str, Mapping[str, Any]]  #: what has happened on hosts since their reports
    dropped: tuple[DroppedHost, ...] = ()
    gate: GateOptions | None = None  #: ``None``: it is closed


Event = (
    PodSeen
    | PodLeft
    | PodUnreadable
    | PodBound
    | PodGone
    | NodeChanged
    | HostReported
    | HostLost
    | HostsChanged
    | PodsListed
    | PodObserved
    | PodRejected
    | PodPreempted
    | ClaimsChanged
    | GroupChanged
    | SteeringObserved
    | NodesAsked
    | BindingAsked
    | PreemptionAsked
    | ReleaseWritten
    | ReleaseFailed
    | BindingWritten
    | BindingFailed
    | ClaimsRead
    | SteeringWritten
    | SteeringFailed
    | StepFailed
    | LargePodDecided
    | PlanActivated
    | PlanPaused
    | PlanCancelled
    | PlanFactsRead
    | PlanWritten
    | PlannedPodEvicted
    | TimePassed
    | PlaceNext
    | ExplainNext
    | WakeNext
    | ExtenderOpened
    | GateOpened
    | GateClosed
    | LeadershipBegan
    | LeadershipEnded
    | StateRestored
)
