"""Facts about pods, gangs and nodes that scheduling depends on, without objects of the API server.

What follows from one object is a field of :class:`PodFacts`. What follows from many, such as the nodes that a pod's
selectors allow, is asked for when it is needed: see :class:`ClusterFacts`. So node affinity, taints and selectors of
claims are evaluated elsewhere.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from alignup.align.fit import NodeAllocatable
from alignup.align.workload import Pod

WaitingOrder = tuple[int, str, str, str]  #: a sort key: the highest priority first, then the oldest
FIRST: WaitingOrder = (-(1 << 40), "", "", "")  #: before all priorities


class PodState(StrEnum):
    """What a pod without a node waits for, by its object."""

    GATED = "gated"  #: for a node, behind our scheduling gate and no other
    UNSCHEDULABLE = "unschedulable"  #: for its scheduler, which has found no node
    OTHER = "other"  #: for something else: other gates, or the first try of its scheduler


class GroupKey(NamedTuple):
    """The name of a group of pods that start together."""

    namespace: str
    name: str
    source: str  #: where the pods name it

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod without a node."""

    pod: Pod
    order: WaitingOrder
    state: PodState
    since: float  #: when it began to wait, by our clock
    scheduler: str = ""
    group: GroupKey | None = None

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def full_name(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}"


class GangFacts(NamedTuple):
    """The pods of a group that can be placed together."""

    minimum: int  #: how many must start together
    placed: int  #: how many are bound, or count on a node
    waiting: Sequence[PodFacts]  #: the others that wait in the same way as the pod in question, in their order


class ClusterFacts(Protocol):
    """Facts that follow from several objects; they may change with every event."""

    def allocatable(self, node: str) -> NodeAllocatable | None:
        """Return what the Node object says that pods can request; ``None``: it does not say so."""

    def may_use(self, facts: PodFacts, node: str) -> bool:
        """Return whether a pod could go to *node* if it had no others, and no other claim had devices."""

    def kind(self, facts: PodFacts) -> Hashable:
        """Return a key that is equal for pods that may use the same nodes."""

    def gang(self, facts: PodFacts) -> GangFacts | None:
        """Return the gang that a pod waits for; ``None``: it is in no group."""
