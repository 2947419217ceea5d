"""Facts about pods, gangs and nodes that scheduling depends on, without objects of the API server.

What follows from one object is a field of :class:`PodFacts`. What follows from many, such as the nodes that a pod's
selectors allow, is asked for when it is needed: see :class:`ClusterFacts`. So node affinity, taints and selectors of
claims are evaluated elsewhere.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from alignup.align.claims.alignment import ExplainedClaim
from alignup.align.claims.resource_claims import Claim
from alignup.align.workload import Pod
from alignup.placement.verdict import Verdict

WaitingOrder = tuple[int, str, str, str]  #: a sort key: the highest priority first, then the oldest
FIRST: WaitingOrder = (-(1 << 40), "", "", "")  #: before all priorities


class WaitState(StrEnum):
    """What a pod without a node waits for, by its object."""

    GATED = "gated"  #: for a node, behind our scheduling gate and no other
    OTHER_GATES = "other_gates"  #: for the removal of other gates; ours is among them
    UNSCHEDULABLE = "unschedulable"  #: for its scheduler, which has found no node
    OTHER = "other"  #: for something else, such as the first try of its scheduler


class GroupKey(NamedTuple):
    """The name of a group of pods that start together."""

    namespace: str
    name: str
    source: str  #: where the pods name it

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """A pod without a node."""

    pod: Pod
    order: WaitingOrder
    state: WaitState
    since: float  #: when it began to wait, by our clock
    version: str = ""  #: of its object
    scheduler: str = ""
    group: GroupKey | None = None
    selection: Hashable = None  #: equal for pods whose selectors and tolerations allow the same nodes
    controllers: frozenset[str] = frozenset()  #: uids of controllers that replace the pod when it is deleted
    released_to: tuple[str, ...] = ()  #: the nodes that it was released to from the gate
    problem: str | None = None  #: why its scheduler cannot place it; ``None``: it has not said so
    has_terms: bool = False  #: whether its required node affinity has terms, in which one node can be named only
    has_preferences: bool = False  #: whether its scheduler's own scores matter
    bound_at_once: bool = False  #: whether its scheduler binds the pods of its group when none has a gate, in any order

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def namespace(self) -> str:
        return self.pod.namespace

    @property
    def full_name(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}"


class GangFacts(NamedTuple):
    """The pods of a group that have not failed and are not being deleted, by uid."""

    minimum: int  #: how many must start together
    bound: Mapping[str, str] = {}  #: uid → node; succeeded pods included
    waiting: Sequence[str] = ()  #: that a scheduler can bind
    gated: Sequence[str] = ()  #: behind gates
    running: Collection[str] = ()  #: bound pods that have not succeeded
    replaceable: Collection[str] = ()  #: running pods that a controller replaces when they are deleted
    begun: bool = False  #: whether the extender has bound one of them
    schedulers: Mapping[str, str] = {}  #: uid → name, of waiting pods
    strangers: int = 0  #: others that wait for a scheduler that is not known

    @property
    def present(self) -> int:
        return len(self.bound) + len(self.waiting) + len(self.gated)


class ClaimFit(NamedTuple):
    """Whether the devices of a node suffice for the claims of a pod."""

    possible: bool
    reason: str = ""  #: why not, or why that is not certain
    certain: bool = True  #: ``False``: only the scheduler can tell


class NodeVictims(NamedTuple):
    """Pods to evict from one node."""

    pods: tuple[str, ...]  #: uids
    violations: int = 0  #: disruptions beyond what budgets allow


Explained = tuple[tuple[ExplainedClaim, ...], ...]  #: the claims of a pod beside each of its possible placements


class ClusterFacts(Protocol):
    """Facts that follow from several objects; they may change with every event."""

    @property
    def nodes(self) -> Collection[str]:
        """The names of all nodes."""

    def pod(self, uid: str) -> PodFacts | None:
        """Return a pod without a node as it is now; ``None``: it is bound, gone, or cannot be read."""

    def allowed(self, facts: PodFacts) -> Collection[str]:
        """Return the nodes that selectors, affinity and taints allow."""

    def excluded(self, facts: PodFacts) -> Mapping[str, str]:
        """Return the nodes that they do not allow, each with the first reason."""

    def allows(self, facts: PodFacts, node: str) -> bool:
        """Return whether a node exists and is allowed, without looking at others."""

    def insufficient(self, node: str, pod: Pod, *, beside: Sequence[Pod] = (), empty: bool = False) -> Collection[str]:
        """Return the resources that *node* lacks by its Node object, for *pod* and the pods *beside* it.

        Pods that are bound to it count, unless it is taken as *empty*. A node that does not exist has too little of
        everything.
        """

    def unique_host_names(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the *nodes* whose label with the host name no other node has."""

    @property
    def approximate_nodes(self) -> Collection[str]:
        """The nodes whose kubelets are not observed, but about which something is known."""

    def verdict_without_report(self, pod: Pod, node: str) -> Verdict:
        """Return the verdict of a node whose kubelet is not observed: approximate, or why it is unknown."""

    def readable_pod(self, uid: str) -> PodFacts:
        """Return a pod without a node as it is now; ``PodError`` if it cannot be read."""

    @property
    def groups(self) -> Collection[GroupKey]:
        """The groups that have pods."""

    def gang(self, key: GroupKey) -> GangFacts:
        """Return the pods of a group."""

    def claim_fit(self, pod: Pod, node: str, *, idle: bool = False) -> ClaimFit:
        """Return whether *node* has devices for the claims of a pod, perhaps when no other claim has any (*idle*)."""

    @property
    def claims_known(self) -> bool:
        """Whether claims, classes and slices are followed."""

    def claims_open(self, pod: Pod) -> bool:
        """Return whether a claim of the pod has no devices, or is not known."""

    def claim_kind(self, pod: Pod) -> Hashable:
        """Return a key that is equal for pods that the same nodes suit: of one shape, with claims for equal devices."""

    def explain_claims(
        self, pod: Pod, node: str, verdict: Verdict | None = None, newer: Mapping[tuple[str, str], Claim] | None = None
    ) -> Explained:
        """Return the claims of a pod on *node* beside what it gets there by *verdict*, or by the present one.

        *newer*: claims that are newer than what is followed, by namespace and name.
        """

    def bound_to(self, node: str) -> AbstractSet[str]:
        """Return the uids of the pods that are bound to a node."""

    @property
    def steering_known(self) -> bool:
        """Whether the instructions to observers are followed."""

    def has_markers(self, node: str) -> bool | None:
        """Return whether a Node object has markers; ``None``: it does not name them."""
