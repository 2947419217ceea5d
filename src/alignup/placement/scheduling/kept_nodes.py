"""Nodes that are kept for pods that have waited long, so that smaller pods do not overtake them for ever.

A large pod fits only after several small ones on one node have ended. If every freed CPU goes to the next small pod,
that never happens. So for the first pods in the waiting order that have waited long, one node each is kept. A pod that
comes later in that order is placed there only if the waiting pod will fit beside it, and beside all such pods before
it, once those have ended that were there when the node was kept. So the waiting pod waits for none that overtook it,
and the rest of a large node stays in use. It does not matter whether a pod waits behind the gate or for its scheduler.

For the first gang that has waited long, as many nodes are kept as it needs to start when the others have ended there.

Pods of other namespaces do not wait for that without end. A namespace has one holder at a time, and its nodes keep pods
of others out for a limited time: see ``namespace_patience``. While they do, a gang keeps a tenth of the nodes that it
may use. A pod of a higher priority is never kept out.

The nodes of the active plan are kept in another way, which :class:`ActivePlan` decides. No others are kept there.

    waits → (patience) → holds nodes → placed, gone, unable to use them, or out of patience → the nodes are given back
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from alignup.align.bits import NodeSet
from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.kept_hosts import MAX_UNSUITABLE, find_hosts, fits_after, usable_hosts
from alignup.placement.pod_shape import SHAPE_UID, is_large, needs_alignment
from alignup.placement.scheduling.active_plan import ActivePlan
from alignup.placement.scheduling.facts import ClusterFacts, GroupKey, PodFacts, WaitingOrder, WaitState
from alignup.placement.scheduling.instructions import GiveNodeBack, Instruction, KeepNode
from alignup.placement.scheduling.namespace_patience import NamespacePatience
from alignup.placement.scheduling.reasons import FAILED, PATIENCE, SHARE, UNKNOWN_SCHEDULER
from alignup.placement.scheduling.turn import Turn

MAX_HOLDERS = 3  #: pods and gangs at a time for which nodes are kept, of which one is a gang
NAMESPACE_HOLDERS = 1  #: of one namespace
GANG_SHARE = 0.1  #: of the nodes that a gang may use: so many it keeps at most while it delays other namespaces
ROOM_SECONDS = 120.0  #: for which a node with room is kept for a pod; then something else prevents it
UNUSED_SECONDS = 600.0  #: after a pod did not take its node, before it gets another
UNSUITABLE_SECONDS = 60.0  #: after no node was suitable, or the search failed, before it is repeated

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class WaitingPod:
    facts: PodFacts
    retry: float = float("-inf")  #: when nodes may be searched for again


@dataclass(slots=True, eq=False)
class NodeHolder:
    """A pod, or a gang, for which nodes are kept."""

    name: str
    first: WaitingPod  #: the pod, or the first of its gang
    order: WaitingOrder
    uids: frozenset[str]  #: of the pod, or of all waiting pods of the gang
    group: GroupKey | None = None  #: ``None``: it is a pod
    room_since: float | None = None  #: since when there has been room for it on its nodes; ``None``: there is none
    share: int = 1  #: nodes that it may keep while it delays others
    delayed: set[str] = field(default_factory=set)  #: uids of pods of other namespaces that wait because of it
    limited: float | None = None  #: since when it has kept fewer nodes than it needs

    @property
    def uid(self) -> str:
        return self.first.facts.uid

    @property
    def namespace(self) -> str:
        return self.first.facts.namespace


@dataclass(slots=True, eq=False)
class KeptNode:
    holder: NodeHolder
    pods: tuple[Pod, ...]  #: pods of the holder that will be here
    later: dict[str, Pod] = field(default_factory=dict)  #: by uid, pods that come after the holder and were placed here


class KeptNodes:
    """The pods that wait, and the nodes that are kept for some of them."""

    def __init__(  # noqa: PLR0913 - everything that a choice depends on
        self,
        cluster: Cluster,
        facts: ClusterFacts,
        *,
        is_placed: Callable[[str], bool],
        will_schedule: Callable[[PodFacts], bool],
        turn: Turn,
        plan: ActivePlan,
    ) -> None:
        self.plan = plan
        self._cluster = cluster
        self._facts = facts
        self._is_placed = is_placed  #: whether nodes count on a pod
        self._will_schedule = will_schedule  #: whether a known scheduler will schedule a pod
        self._turn = turn
        self.namespaces = NamespacePatience()
        #: how long pods in a state wait before a node is kept for them, in seconds; in other states, none is kept
        self.patience: dict[WaitState, float] = {}
        self._waiting: dict[str, WaitingPod] = {}
        self._kept: dict[str, KeptNode] = {}  #: by node
        self._checked = float("-inf")

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """How many pods wait."""
        return len(self._waiting)

    @property
    def names(self) -> Collection[str]:
        return self._kept.keys()

    def _holders(self) -> list[NodeHolder]:
        """Return the pods and gangs for which nodes are kept."""
        return list({id(kept_node.holder): kept_node.holder for kept_node in self._kept.values()}.values())

    def _nodes_of(self, holder: NodeHolder) -> dict[str, KeptNode]:
        return {node: kept_node for node, kept_node in self._kept.items() if kept_node.holder is holder}

    # Questions

    def unschedulable(self) -> list[PodFacts]:
        """Return the pods that wait for their schedulers."""
        pods = [waiting_pod.facts for waiting_pod in self._waiting.values()]
        return [facts for facts in pods if facts.state is WaitState.UNSCHEDULABLE]

    def overdue(self, now: float) -> list[PodFacts]:
        """Return the pods that have waited as long as a node is kept after, in their order; one of each gang."""
        pods = [waiting_pod.facts for waiting_pod in self._waiting.values()]
        late = [facts for facts in pods if now - facts.since >= self.patience.get(facts.state, float("inf"))]
        late.sort(key=lambda facts: facts.order)
        return list({facts.group or facts.uid: facts for facts in reversed(late)}.values())[::-1]

    def keeps_out(self, node: str, pod: Pod, order: WaitingOrder, *, after: Sequence[Pod] = ()) -> bool:
        """Return whether *node* is kept for a pod that comes before *pod*, and that would not fit beside *pod*.

        Or the node is kept for the active plan. *after*: other pods of a gang that would be on the node, too; one pod
        may stand for several equal pods.
        """
        if self.plan.name and self.plan.keeps_out(node, pod, after=after):
            return True
        kept_node = self._kept.get(node)
        if kept_node is None or pod.uid in kept_node.holder.uids or order <= kept_node.holder.order:
            return False
        record = self._cluster.record(node)
        if record is not None and record.holds(pod.uid):  # this was decided when it got its place
            return False
        others = [replace(other, uid=f"{SHAPE_UID}-{number}") for number, other in enumerate(after)]
        return self._keeps_out(node, kept_node, (*others, pod))

    def _keeps_out(self, node: str, kept_node: KeptNode, newcomers: Sequence[Pod]) -> bool:
        record, (*pods, last) = self._cluster.record(node), kept_node.pods
        beside = (*kept_node.later.values(), *newcomers, *pods)
        if record is None or self._facts.insufficient(node, last, beside=beside, empty=True):
            return True
        staying_uids = {*kept_node.later, *(newcomer.uid for newcomer in newcomers)}
        return not fits_after(record, kept_node.pods, newcomers, staying=staying_uids)

    def keeps_off(self, node: str, pod: Pod, nodes: NodeSet) -> bool:
        """Return whether a pod that is placed on *node* must not be steered to these NUMA nodes.

        The pod that the node is kept for would not fit beside it then, or the steps of a plan would not be possible.
        """
        if self.plan.keeps_off(node, pod, nodes):
            return True
        kept_node, record = self._kept.get(node), self._cluster.record(node)
        if kept_node is None or record is None or pod.uid not in kept_node.later:
            return False
        return not fits_after(record.without(pod.uid), kept_node.pods, (pod,), staying=kept_node.later, nodes=nodes)

    def has_kept_room(self, node: str) -> bool:
        """Return whether *node* still has the room that is kept there, when the pods that were there before have ended.

        That is the room of a pod, and of the remaining steps of the active plan.
        """
        kept_node, record = self._kept.get(node), self._cluster.record(node)
        if kept_node is not None and record is not None:
            return fits_after(record, kept_node.pods, (), staying=kept_node.later)
        return self.plan.has_room(node)

    def refusals(self, pod: Pod, order: WaitingOrder) -> dict[str, str]:
        """Return the nodes that are kept from a pod, and why."""
        refusals = {node: self.describe(node) for node in self._kept if self.keeps_out(node, pod, order)}
        return refusals | self.plan.refusals(pod)

    def describe(self, node: str, pod: Pod | None = None) -> str:
        """Return which pod *node* is kept for, in words, or why it is kept from a pod; empty: it is not."""
        if pod is not None and self.plan.name and self.plan.keeps_out(node, pod):
            return self.plan.describe(pod)
        kept_node = self._kept.get(node)
        if kept_node is None:
            return self.plan.describe() if node in self.plan.nodes else ""
        return f"kept for {kept_node.holder.name}, which has waited longer"

    # Changes

    def waits(self, facts: PodFacts) -> None:
        """Note that a pod waits, or its present version."""
        waiting_pod = self._waiting.get(facts.uid)
        if waiting_pod is None:
            self._waiting[facts.uid] = WaitingPod(facts)
        else:
            waiting_pod.facts = facts

    def waits_no_longer(self, uid: str) -> list[Instruction]:
        """Note that a pod is placed or gone; return the nodes that are not kept for it any more."""
        self._not_delayed(uid)
        if self._waiting.pop(uid, None) is None:
            return []
        return self._give_back([holder for holder in self._holders() if uid in holder.uids], "the pod waits no longer")

    def placed(self, pod: Pod, nodes: Iterable[str], order: WaitingOrder) -> None:
        """Note that a pod will be on one of *nodes*."""
        self.ended(pod.uid)
        self._not_delayed(pod.uid)
        for node in nodes:
            kept_node = self._kept.get(node)
            if kept_node is not None and pod.uid not in kept_node.holder.uids and order > kept_node.holder.order:
                kept_node.later[pod.uid] = pod

    def ended(self, uid: str) -> None:
        """Note that a pod is on no node any more."""
        for kept_node in self._kept.values():
            kept_node.later.pop(uid, None)

    def kept_out(self, node: str, pod: Pod) -> None:
        """Note that a pod waits that *node* would admit if the node were not kept."""
        kept_node = self._kept.get(node)
        if kept_node is not None and pod.namespace != kept_node.holder.namespace:
            kept_node.holder.delayed.add(pod.uid)

    def _not_delayed(self, uid: str) -> None:
        for kept_node in self._kept.values():
            kept_node.holder.delayed.discard(uid)

    def node_changed(self, node: str) -> list[Instruction]:
        """Give back a node that is gone, or has changed and may not suit its holder; return all nodes of the holder.

        The other nodes of a gang are given back, too, since different nodes may be better now.
        """
        kept_node = self._kept.get(node)
        return self._give_back([kept_node.holder], "the node has changed") if kept_node else []

    def give_to_plan(self) -> list[Instruction]:
        """Give back the nodes that a plan needs now; return all of their holders' nodes."""
        holders = [kept_node.holder for node in self.plan.nodes if (kept_node := self._kept.get(node))]
        return self._give_back(holders, f"plan {self.plan.name} needs it")

    def clear(self) -> list[Instruction]:
        """Give back all nodes: another process decides from now on."""
        return self._give_back(self._holders(), "this process does not lead any more")

    def _give_back(self, holders: Collection[NodeHolder], reason: str) -> list[Instruction]:
        return self._give_nodes_back(
            [node for node, kept_node in self._kept.items() if kept_node.holder in holders], reason
        )

    def _give_nodes_back(self, nodes: Iterable[str], reason: str) -> list[Instruction]:
        given_back = {node: self._kept.pop(node).holder for node in nodes}
        for uid in {uid for holder in given_back.values() for uid in holder.delayed & self._waiting.keys()}:
            self._waiting[uid].retry = float("-inf")  # it may be the next holder
        return [GiveNodeBack(node, holder.name, holder.uid, reason) for node, holder in given_back.items()]

    # Time

    def check(self, now: float) -> list[Instruction]:
        """Give back nodes that need not, or must not, be kept any more, and keep nodes for the next pod."""
        self.namespaces.forgive(now)
        given_back: list[Instruction] = []
        for step in (self._give_back_changed, self._give_back_unused, self._give_back_delaying):
            for holder in self._holders():
                instructions = self._isolated(holder.first, now, partial(step, holder, now))
                given_back += self._give_back([holder], FAILED) if instructions is None else instructions
        self._checked = now
        return given_back + self._keep_next(now)

    def _isolated(self, waiting_pod: WaitingPod, now: float, step: Callable[[], Result]) -> Result | None:
        """Let a step fail for one pod alone, which gets no nodes for a while then."""
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            waiting_pod.retry = now + UNSUITABLE_SECONDS
            self._turn.failed("place", waiting_pod.facts.full_name, error, UNSUITABLE_SECONDS)
            return None

    def _give_back_delaying(self, holder: NodeHolder, now: float) -> list[Instruction]:
        """Give back nodes that delay pods of other namespaces: all nodes after the limit, or nodes beyond a share."""
        nodes = list(self._nodes_of(holder))
        if holder.delayed and self.namespaces.kept_out(holder.namespace, now - self._checked, now):
            return self._give_nodes_back(nodes, PATIENCE)
        if holder.delayed and holder.group and len(nodes) > holder.share:
            holder.limited = now
            return self._give_nodes_back(nodes[holder.share :], SHARE)
        return []

    def _give_back_unused(self, holder: NodeHolder, now: float) -> list[Instruction]:
        """Give back nodes that their holder does not take although there is room."""
        if holder.limited is not None:
            return []
        nodes = self._nodes_of(holder).items()
        has_room = all(self._cluster.verdict(kept_node.pods[0], node).admits for node, kept_node in nodes)
        holder.room_since = (now if holder.room_since is None else holder.room_since) if has_room else None
        if holder.room_since is None or now - holder.room_since < ROOM_SECONDS:
            return []
        holder.first.retry = now + UNUSED_SECONDS
        return self._give_back([holder], "the pod was not placed although there was room")

    def _give_back_changed(self, holder: NodeHolder, now: float) -> list[Instruction]:
        """Give back nodes of a gang if other pods of it wait now, and nodes whose state is not known any more.

        A gang that has kept fewer nodes than it needs gets others when it delays nobody.
        """
        if not self._will_schedule(holder.first.facts):
            return self._give_back([holder], UNKNOWN_SCHEDULER)
        if holder.limited is not None and not holder.delayed and now - holder.limited >= UNSUITABLE_SECONDS:
            holder.first.retry = now
            return self._give_back([holder], "others may be kept for the gang")
        is_changed = False
        for node, kept_node in self._nodes_of(holder).items():
            is_changed |= self._cluster.record(node) is None
            self._keeps_out(node, kept_node, ())  # if the holder is to blame, this fails here, and not only for others
        if holder.group:
            current = self._as_holder(holder.first)
            is_changed |= current is None or (current[0].group, current[0].order) != (holder.group, holder.order)
        return self._give_back([holder], "the pod cannot go there any more") if is_changed else []

    def _keep_next(self, now: float) -> list[Instruction]:
        """Keep nodes for the first pod that has waited long and has none, or note which holders it waits for."""
        by_namespace = Counter(holder.namespace for holder in self._holders())
        due = [
            waiting_pod
            for waiting_pod in self._waiting.values()
            if by_namespace[waiting_pod.facts.namespace] < NAMESPACE_HOLDERS
            and self._isolated(waiting_pod, now, partial(self._is_due, waiting_pod, now))
        ]
        for waiting_pod in sorted(due, key=lambda waiting_pod: waiting_pod.facts.order):
            instructions = self._isolated(waiting_pod, now, partial(self._keep_for, waiting_pod, now))
            if instructions is not None:
                return instructions
        return []

    def _keep_for(self, waiting_pod: WaitingPod, now: float) -> list[Instruction] | None:
        """Keep nodes for a pod, or its gang; ``None``: the gang cannot start anyway."""
        candidate = self._as_holder(waiting_pod)
        if candidate is None:
            return None
        waiting_pod.retry = now + UNSUITABLE_SECONDS
        holder, pods = candidate
        try:
            hosts = self._find_nodes(pods, holder)
        except AlignError:  # no kubelet can decide on it
            hosts = {}
        holders = self._holders()
        earlier = (
            holders if len(holders) >= MAX_HOLDERS else [other for other in holders if other.group and holder.group]
        )
        if hosts and earlier:
            earlier[0].delayed.add(holder.uid)
            return []
        self._kept |= {node: KeptNode(holder, held_pods) for node, held_pods in hosts.items()}
        wait = now - waiting_pod.facts.since
        return [KeepNode(node, holder.name, holder.uid, pods, wait) for node, pods in hosts.items()]

    def _is_due(self, waiting_pod: WaitingPod, now: float) -> bool:
        facts = waiting_pod.facts
        patience = self.patience.get(facts.state)
        if patience is None or now - facts.since < patience or waiting_pod.retry > now:
            return False
        return self._will_schedule(facts) and self.namespaces.may_keep(facts.namespace, now)

    def _as_holder(self, waiting_pod: WaitingPod) -> tuple[NodeHolder, Sequence[PodFacts]] | None:
        """Return a pod, or its gang if more than one pod of it is missing, with the pods that must start together.

        ``None``: the gang cannot start anyway, since too few of its pods exist.
        """
        facts = waiting_pod.facts
        if facts.group is None:
            return NodeHolder(facts.full_name, waiting_pod, facts.order, frozenset((facts.uid,))), (facts,)
        gang = self._facts.gang(facts.group)
        placed_count = len(gang.bound) + sum(map(self._is_placed, gang.waiting))
        missing_count = gang.minimum - placed_count
        if missing_count <= 1:
            return NodeHolder(facts.full_name, waiting_pod, facts.order, frozenset((facts.uid,))), (facts,)
        uids = gang.gated if facts.state is WaitState.GATED else gang.waiting
        members = [member for uid in uids if not self._is_placed(uid) and (member := self._facts.pod(uid))]
        members = [member for member in members if self._will_schedule(member)]
        if facts.state is WaitState.GATED:
            members = [member for member in members if member.state is WaitState.GATED]
        if missing_count > len(members):
            return None
        members.sort(key=lambda member: member.order)
        # The rest of a gang that has started comes before all others of its priority, but not before higher ones.
        order = (members[0].order[0], "", "", "") if placed_count else members[0].order
        holder = NodeHolder(f"gang {facts.group}", waiting_pod, order, frozenset(uids), facts.group)
        return holder, [member for member in members if needs_alignment(member.pod)][:missing_count]

    def _find_nodes(self, members: Sequence[PodFacts], holder: NodeHolder) -> dict[str, tuple[Pod, ...]]:
        """Return nodes that pods may use, and need after other pods have ended; nodes with the fewest pods first."""
        cluster, pods = self._cluster, [member.pod for member in members]
        by_uid = {member.uid: member for member in members}
        kept_names = {*self._kept, *self.plan.nodes}
        records = [record for name in cluster.hosts if name not in kept_names and (record := cluster.record(name))]
        records.sort(key=lambda record: (len(record.ledger.pods) + len(record.bindings), record.name))
        usable = usable_hosts(
            pods,
            [record.name for record in records],
            kind=lambda pod: (by_uid[pod.uid].selection, self._facts.claim_kind(pod)),
            may_use=lambda pod, name: self._may_use(by_uid[pod.uid], name),
        )
        holder.share = max(int(GANG_SHARE * len(set[str]().union(*usable.values()))), 1)
        tries = 1 if any(map(is_large, pods)) else MAX_UNSUITABLE
        return find_hosts(records, pods, usable, max_unsuitable=tries)

    def _may_use(self, facts: PodFacts, name: str) -> bool:
        """Return whether a pod could go to a node if it had no others, and no other claim had devices.

        A kubelet ignores extended resources that it does not know, such as GPUs on a node without any.
        """
        if not self._facts.allows(facts, name) or self._facts.insufficient(name, facts.pod, empty=True):
            return False
        return not facts.pod.uses_claims or self._facts.claim_fit(facts.pod, name, idle=True).possible
