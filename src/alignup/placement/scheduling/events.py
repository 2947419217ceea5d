"""What happens in a cluster, as the scheduling state handles it: facts, without objects of the API server."""

from dataclasses import dataclass

from alignup.align.workload import Pod
from alignup.placement.scheduling.facts import GroupKey, PodFacts
from alignup.placement.scheduling.releases import ReleaseOutcome

# What the API server and observers say


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
class HostsChanged:
    """What hosts hold has changed."""

    hosts: tuple[str, ...]


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


Event = (
    PodSeen
    | PodLeft
    | PodUnreadable
    | PodBound
    | PodGone
    | NodeChanged
    | HostsChanged
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
)
