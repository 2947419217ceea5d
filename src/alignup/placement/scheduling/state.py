"""The scheduling state: events in, instructions out.

    state = SchedulingState(cluster, facts)
    for instruction in state.handle(PodSeen(pod_facts), now=clock()):
        carry_out(instruction)

It decides what concerns more than one pod, for the extender and for the gate alike. Nothing here waits, reads a clock,
or talks to anybody: the same events at the same times give the same instructions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.scheduling.facts import ClusterFacts, PodFacts, PodState, WaitingOrder
from alignup.placement.scheduling.kept_nodes import GivenBack, KeptNodes

CHECK_SECONDS = 1.0  #: between searches for a node to keep, each for one pod
MAX_SCHEDULERS = 100


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod without a node was created, or has changed."""

    facts: PodFacts


@dataclass(frozen=True, slots=True)
class PodPlaced:
    """A pod will be on one of these nodes, or is on one of them."""

    pod: Pod
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PodUnplaced:
    """A pod that was to be placed was not; it may still wait."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodLeft:
    """A pod waits no longer: it is bound, or released from the gate."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted, or has ended."""

    uid: str


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A Node object has changed in what decisions depend on, or is gone."""

    node: str


@dataclass(frozen=True, slots=True)
class SchedulerAsked:
    """A scheduler asks about a pod."""

    facts: PodFacts


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing has happened, but it is later."""


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """Another process decides from now on."""


PodEvent = PodSeen | PodPlaced | PodUnplaced | PodLeft | PodGone
Event = PodEvent | NodeChanged | SchedulerAsked | TimePassed | LeadershipEnded


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


Instruction = KeepNode | GiveNodeBack


class SchedulingState:
    def __init__(self, cluster: Cluster, facts: ClusterFacts) -> None:
        self.cluster = cluster
        self.kept_nodes = KeptNodes(cluster, facts)
        self._orders: dict[str, WaitingOrder] = {}  #: by uid, of pods without a node
        self._schedulers: set[str] = set()  #: names of those that have asked
        self._checked = float("-inf")

    def handle(self, event: Event, *, now: float) -> list[Instruction]:  # noqa: C901 - one case per event
        """Take note of an event, and return what is to be done."""
        match event:
            case PodSeen(facts):
                self._orders[facts.uid] = facts.order
                if facts.state is PodState.OTHER:
                    return self._stop_waiting(facts.uid)
                self.kept_nodes.waits(facts)
            case PodPlaced(pod, nodes):
                self.kept_nodes.placed(pod, nodes, self.order(pod))
            case PodUnplaced(uid):
                self.kept_nodes.ended(uid)
            case PodLeft(uid):
                return self._stop_waiting(uid)
            case PodGone(uid):
                self.kept_nodes.ended(uid)
                return self._stop_waiting(uid)
            case NodeChanged(node):
                return _give_back(self.kept_nodes.node_changed(node), "the node has changed")
            case SchedulerAsked(facts):
                self._orders.setdefault(facts.uid, facts.order)
                if len(self._schedulers) < MAX_SCHEDULERS:
                    self._schedulers.add(facts.scheduler)
                return self._check(now)
            case TimePassed():
                return self._check(now)
            case LeadershipEnded():
                return _give_back(self.kept_nodes.clear(), "this process does not lead any more")
        return []

    def order(self, pod: Pod) -> WaitingOrder:
        """Return the waiting order of a pod; one that is not known comes after all others of its priority."""
        return self._orders.get(pod.uid) or (-(pod.priority or 0), "~", pod.namespace, pod.name)

    def keeps_out(self, node: str, pod: Pod) -> bool:
        """Return whether *node* is kept for a pod that comes before this one, and that would not fit beside it."""
        return self.kept_nodes.keeps_out(node, pod, self.order(pod))

    def refusals(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that are kept from a pod, and why."""
        return self.kept_nodes.refusals(pod, self.order(pod))

    def _stop_waiting(self, uid: str) -> list[Instruction]:
        self._orders.pop(uid, None)
        return _give_back(self.kept_nodes.waits_no_longer(uid), "the pod waits no longer")

    def _check(self, now: float) -> list[Instruction]:
        """Look from time to time for a pod to keep a node for, and for nodes that need not be kept any more."""
        if now - self._checked < CHECK_SECONDS or not self.kept_nodes.waiting:
            return []
        self._checked = now
        instructions = _give_back(self.kept_nodes.give_back_changed(), "the pod cannot go there any more")
        unused = self.kept_nodes.give_back_unused(now)
        instructions += _give_back(unused, "the pod was not placed although there was room")
        if kept := self.kept_nodes.keep_next(now, self._schedulers):
            holder, nodes = kept
            waited = now - holder.first.facts.since
            instructions += [
                KeepNode(node, holder.name, holder.first.facts.uid, pods, waited) for node, pods in nodes.items()
            ]
        return instructions


def _give_back(nodes: Iterable[GivenBack], reason: str) -> list[Instruction]:
    return [GiveNodeBack(node, holder.name, holder.first.facts.uid, reason) for node, holder in nodes]
