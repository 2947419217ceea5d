"""What happens in a cluster, as the scheduling state handles it: facts, without objects of the API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from alignup.align.workload import Pod
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.scheduling.facts import GroupKey, PodFacts
from alignup.placement.scheduling.releases import ReleaseOutcome

if TYPE_CHECKING:
    from alignup.placement.scheduling.gate import GateOptions

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
    pods: tuple[BoundPod, ...] = ()  #: those that are bound to it


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


# What a scheduler asks


@dataclass(frozen=True, slots=True)
class SchedulerAsked:
    """A scheduler asks about a pod."""

    facts: PodFacts


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
class StepFailed:
    """Something unexpected happened while an instruction about a pod was carried out."""

    uid: str
    step: str
    error: Exception


@dataclass(frozen=True, slots=True)
class LargePodDecided:
    uid: str


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
    gate: "GateOptions | None" = None  #: ``None``: it is closed


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
    | SchedulerAsked
    | ReleaseWritten
    | ReleaseFailed
    | StepFailed
    | LargePodDecided
    | TimePassed
    | PlaceNext
    | ExplainNext
    | LeadershipBegan
    | LeadershipEnded
    | StateRestored
)
