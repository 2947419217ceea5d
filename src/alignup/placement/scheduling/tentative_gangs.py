"""Gangs of schedulers that ask: their pods are offered nodes, and bound, together or not at all.

A scheduler asks about the pods of a group one after the other before it binds any, then binds them in parallel, or one
by one. So with the first question all pods of the group that wait are decided together, and the nodes count on them
from then on. Each pod is offered its node only. Before the first binding is written, everything is decided once more,
and the gang is refused as a whole if it does not fit any more. After that the places are kept for the rest.

A kubelet admits pods in the order of their bindings. A pod is bound before others of its node if these will fit after
it, too; otherwise it waits for a moment until they are bound.

    waiting → placed → started → bound
       ↑         ↓        ↓
       └─ (paused) ← given back: deleted, not asked or bound for long, does not fit any more
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from alignup.align.errors import PodError
from alignup.align.reason_codes import GANG_INCOMPLETE
from alignup.align.workload import Pod
from alignup.placement.gang import GangBinding
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.claim_rules import ClaimSuitability, restricts_claims
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.facts import GangFacts, GroupKey, PodFacts, WaitingOrder
from alignup.placement.scheduling.gang_placement import describe_gang
from alignup.placement.scheduling.instructions import AwaitRoom, ChangeGang, Report, WriteEvent
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.known_schedulers import KnownSchedulers

TENTATIVE_SECONDS = 20.0  #: after the last question or binding, for which places are kept for a gang that is not bound
UNBOUND_SECONDS = 60.0  #: after the first question, by which a binding must follow, whatever is asked meanwhile
PAUSE_SECONDS = 60.0  #: for which others come first after that
KEPT_SECONDS = 300.0  #: after the last binding, for which places are kept for the rest of the gang
UNSEEN_SECONDS = 60.0  #: after which a pod that the API server does not show is gone
REFUSED_SECONDS = 1.0  #: for which a refusal is repeated while nothing has changed
KUBERNETES = "spec.schedulingGroup"  #: the source of groups whose scheduler knows gangs


class TentativeState(StrEnum):
    """How far a gang is whose scheduler has asked; see docs/scheduling-states.md."""

    WAITING = "waiting"  #: it has no places: pods are missing, it does not fit, or all of it is bound
    PLACED = "placed"  #: nodes count on all of its pods
    STARTED = "started"  #: the binding of a pod was written, or is being written
    PAUSED = "paused"  #: it had places, and its scheduler did not bind it in time


class GangPlace(NamedTuple):
    """Where a pod of a gang goes, with the others."""

    host: str = ""  #: empty: anywhere, since no kubelet rejects it because of NUMA nodes
    problem: str = ""  #: why it waits
    unfit: bool = False  #: whether that is because its gang does not fit on nodes with HostState


@dataclass(slots=True, eq=False)
class TentativeGang:
    """The nodes of a gang, from the first question to the last binding."""

    key: GroupKey
    resumed: bool  #: whether it was half bound before
    since: float
    touched: float  #: when it was asked about, if nothing is bound, or when a pod was bound
    considered: int = 0  #: nodes in the last question
    hosts: dict[str, GangBinding] = field(default_factory=dict)  #: by uid, in the order of binding
    answered: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)  #: pods whose binding is written, or is being written
    unknown: set[str] = field(default_factory=set)  #: pods whose binding may be written or not
    uncertain: set[str] = field(default_factory=set)  #: pods that may be placed elsewhere on their nodes

    @property
    def started(self) -> bool:
        return self.resumed or bool(self.bound)

    def unbound(self) -> list[GangBinding]:
        return [binding for uid, binding in self.hosts.items() if uid not in self.bound]

    def movable(self, asked_uid: str, *, anew: bool) -> dict[str, GangBinding]:
        """Return the pods that may go elsewhere: *asked_uid* and the pods that were not asked about yet, or all."""
        fixed_uids = self.bound if anew else self.bound | (self.answered - {asked_uid})
        return {uid: binding for uid, binding in self.hosts.items() if uid not in fixed_uids}


class _Question(NamedTuple):
    """Pods that are decided on together because a scheduler asks about one pod."""

    key: GroupKey
    members: GangFacts
    asked: PodFacts
    nodes: frozenset[str] | None = None  #: for the pod; ``None``: by its selectors
    for_others: bool = False  #: whether the nodes are also for others with the same selectors


class _Refusal(NamedTuple):
    version: int  #: of the cluster
    uids: frozenset[str]
    nodes: frozenset[str] | None  #: of the question
    for_others: bool
    until: float  #: Node objects and groups change as well
    problem: str


class TentativeGangs:
    """The places of gangs that their schedulers have asked about."""

    def __init__(
        self,
        parts: CommonParts,
        claims: ClaimSuitability,
        *,
        schedulers: KnownSchedulers,
        kept_nodes: KeptNodes,
        order: Callable[[Pod], WaitingOrder],
    ) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._claims = claims
        self._schedulers = schedulers
        self._kept_nodes = kept_nodes
        self._order = order
        self._gangs: dict[GroupKey, TentativeGang] = {}
        self._by_uid: dict[str, TentativeGang] = {}
        #: pods that were asked about and are not seen yet, by uid, and when
        self._asked: dict[str, tuple[PodFacts, float]] = {}
        self._gone: dict[str, float] = {}  #: uids of pods that are gone, which schedulers may still ask about, and when
        self._refused: dict[GroupKey, _Refusal] = {}
        self._paused: dict[GroupKey, float] = {}  #: gangs that were not bound in time → until when others come first
        self._resuming: set[GroupKey] = set()  #: half bound gangs whose rest has no places yet
        self._unasked: dict[str, set[GroupKey]] = {}  #: such gangs by the name of a scheduler that has not asked yet
        self._version = 0

    def __len__(self) -> int:
        return len(self._gangs)

    def __contains__(self, uid: str) -> bool:
        """Whether a pod has a place."""
        return uid in self._by_uid

    def state_of(self, key: GroupKey) -> TentativeState:
        gang = self._gangs.get(key)
        if gang is not None:
            return TentativeState.STARTED if gang.started else TentativeState.PLACED
        return TentativeState.PAUSED if self._paused.get(key, 0.0) > self._turn.now else TentativeState.WAITING

    def resume(self) -> None:
        """Keep places for the rest of gangs that another process has begun to bind; call it before others get them.

        Other schedulers bind gangs, too, and may never ask. So unless a pod was bound by the extender, places are kept
        when the scheduler of the gang asks for the first time.
        """
        self._resuming = set()
        self._unasked = {}
        for key in self._facts.groups:
            members = self._facts.gang(key)
            first = self._pod(members.waiting[0]) if members.waiting else None
            if members.begun:
                self._resuming.add(key)
            elif first is not None and _is_half_bound(members):
                self._unasked.setdefault(first.scheduler, set()).add(key)
        self.check()

    def check(self) -> None:
        """Give back places of gangs that are not bound; keep places of gangs that others have begun to bind."""
        self.expire()
        now = self._turn.now
        self._refused = {key: refusal for key, refusal in self._refused.items() if now < refusal.until}
        self._asked = {uid: entry for uid, entry in self._asked.items() if now < entry[1] + UNSEEN_SECONDS}
        self._gone = {uid: since for uid, since in self._gone.items() if now < since + UNSEEN_SECONDS}
        for key in sorted(self._resuming):
            members = self._known_members(key)
            if key in self._gangs or not _is_half_bound(members):
                self._resuming.discard(key)
                continue
            first = self._pod(members.waiting[0])
            with self._isolated(key):
                if first is not None:
                    self._decide(_Question(key, members, first))
            for pod, host in self._gangs[key].unbound() if key in self._gangs else ():
                self._turn.emit(AwaitRoom(pod.uid, (host,)))  # the scheduler need not try it again by itself

    def close(self) -> None:
        """Give back all places: another process decides from now on."""
        for gang in tuple(self._gangs.values()):
            self._drop(gang, "this process does not lead any more")

    @contextmanager
    def _isolated(self, key: GroupKey) -> Iterator[None]:
        """Let a step fail for one gang alone."""
        try:
            yield
        except PodError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self._turn.failed("gang", str(key), error, REFUSED_SECONDS)

    def _pod(self, uid: str) -> PodFacts | None:
        return self._facts.pod(uid) or self._asked.get(uid, (None,))[0]

    def _known_members(self, key: GroupKey) -> GangFacts:
        """Return the pods of a group; pods that wait for an unknown scheduler get no places."""
        members = self._facts.gang(key)
        waiting_uids = [uid for uid in members.waiting if self._schedulers.has(members.schedulers.get(uid, ""))]
        return members._replace(waiting=waiting_uids, strangers=len(members.waiting) - len(waiting_uids))

    def _members(self, key: GroupKey, asked_pod: PodFacts) -> GangFacts:
        """Return the pods of a group, with pods that were asked about and are not seen yet."""
        members = self._known_members(key)
        seen = {*members.bound, *members.waiting, *members.gated}
        if asked_pod.uid in seen:
            self._asked.pop(asked_pod.uid, None)
        elif asked_pod.uid not in self._gone:
            self._asked[asked_pod.uid] = (asked_pod, self._turn.now)
        unseen_uids = [uid for uid, (facts, _) in self._asked.items() if facts.group == key and uid not in seen]
        return members._replace(waiting=[*members.waiting, *unseen_uids]) if unseen_uids else members

    # Questions

    def place(self, asked_pod: PodFacts, nodes: Collection[str]) -> GangPlace | None:
        """Return where a pod goes with the other pods of its group; ``None``: the pod is decided on alone.

        *nodes* are the nodes that the scheduler considers for the pod, and for other pods with the same selectors.
        """
        if unasked_pods := self._unasked.pop(asked_pod.scheduler, None):
            self._resuming |= unasked_pods
            self.check()
        key = asked_pod.group
        if key is None:
            return None
        self.expire()
        gang_place = self._place(key, asked_pod, nodes, for_others=True)
        if gang := self._gangs.get(key):
            gang.considered = len(nodes)
        return gang_place

    def fits(self, asked_pod: PodFacts) -> bool:
        """Return whether a waiting pod could be placed now, together with the other pods of its group, if any."""
        key = asked_pod.group
        if key is None:
            return True
        members = self._members(key, asked_pod)
        if asked_pod.uid in self._by_uid:
            return not _missing(key, members)
        if not self._is_decided_together(key, members, asked_pod):
            return True
        try:
            return not (_missing(key, members) or self._decide(_Question(key, members, asked_pod), keep=False))
        except PodError:
            return False

    def waiting_members(self, asked_pod: PodFacts) -> list[PodFacts] | None:
        """Return as many waiting pods as a gang needs to start, in their order.

        ``None``: *asked_pod* is decided on alone. No pods: the gang cannot start, since pods are missing.
        """
        key = asked_pod.group
        if key is None or asked_pod.uid in self._by_uid:
            return None
        members = self._members(key, asked_pod)
        if not self._is_decided_together(key, members, asked_pod):
            return None
        if _missing(key, members):
            return []
        pods = [facts for uid in members.waiting if uid != asked_pod.uid and (facts := self._pod(uid)) is not None]
        needed_count = max(members.minimum - len(members.bound), 1)
        current = self._facts.pod(asked_pod.uid) or asked_pod
        return sorted([current, *sorted(pods, key=_place)[: needed_count - 1]], key=_place)

    def others_waiting(self, asked_pod: PodFacts) -> list[str]:
        """Return the uids of pods of the same group that wait as well."""
        waiting_uids = self._facts.gang(asked_pod.group).waiting if asked_pod.group else ()
        return [uid for uid in waiting_uids if uid != asked_pod.uid]

    def _place(
        self, key: GroupKey, asked_pod: PodFacts, nodes: Collection[str], *, for_others: bool
    ) -> GangPlace | None:
        members, gang = self._members(key, asked_pod), self._gangs.get(key)
        if not self._is_decided_together(key, members, asked_pod):
            return None
        if gang is not None and not gang.started:
            gang.touched = self._turn.now
        if problem := _missing(key, members) or self._describe_pause(key):
            if gang is not None and not gang.started:
                self._drop(gang, problem)
            return GangPlace(problem=problem)
        if gang is not None:
            binding = gang.hosts.get(asked_pod.uid)
            if binding is None and not needs_alignment(asked_pod.pod):
                return GangPlace()
            if binding is not None and self._still_fits(binding, nodes):
                gang.answered.add(asked_pod.uid)
                return GangPlace(binding.host)
        try:
            problem = self._renew(_Question(key, members, asked_pod, frozenset(nodes), for_others), gang)
        except PodError as error:
            return GangPlace(problem=f"gang {key}: alignup cannot read a pod of it: {error}")
        gang = self._gangs.get(key)
        if problem or gang is None:
            return GangPlace(problem=problem, unfit=True)
        binding = gang.hosts.get(asked_pod.uid)
        gang.answered.add(asked_pod.uid)
        return GangPlace(binding.host if binding else "")

    def _renew(self, question: "_Question", gang: TentativeGang | None) -> str:
        """Decide on a gang again, as far as needed, and drop it if it does not fit any more; return the problem."""
        problem, uid = self._decide(question), question.asked.uid
        if not problem or gang is None or gang.started or (gang.hosts and uid not in gang.hosts):
            return problem
        problem = self._decide(question, anew=True)  # the scheduler begins again: no answer holds any more
        binding, nodes = gang.hosts.get(uid), question.nodes or frozenset()
        # It asks about the nominated node of a pod first, then about all.
        if problem and (binding is None or binding.host in nodes or len(nodes) >= gang.considered):
            self._drop(gang, problem)
        return problem

    def _describe_pause(self, key: GroupKey) -> str:
        if self._paused.get(key, 0.0) <= self._turn.now:
            self._paused.pop(key, None)
            return ""
        return f"gang {key} had places, but its scheduler did not bind it within {UNBOUND_SECONDS:.0f} s"

    def _is_decided_together(self, key: GroupKey, members: GangFacts, asked_pod: PodFacts) -> bool:
        """Return whether the whole gang is decided with a pod. The last pod, or a placed one, is decided alone."""
        if asked_pod.uid in self._by_uid or key in self._gangs:
            return True
        if asked_pod.uid in self._assumptions:
            return False
        if members.minimum == 1 and key.source != KUBERNETES:
            return False
        pods = map(self._pod, members.waiting)
        if not any(facts is None or needs_alignment(facts.pod) for facts in pods):
            return False
        return len(members.waiting) > 1 or bool(_missing(key, members))

    def _still_fits(self, binding: GangBinding, nodes: Collection[str]) -> bool:
        pod, host = binding
        if host not in nodes or pod.uid not in self._assumptions:
            return False
        return self._assumptions.verdict(pod, host).admits and host not in self._refusals(pod)

    def _refusals(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that are kept from a pod, and why."""
        return self._kept_nodes.refusals(pod, self._order(pod))

    def _has_room(self, host: str, pods: Sequence[Pod]) -> bool:
        """Return whether these pods of a gang leave the room that *host* is kept for, if it is."""
        (*others, pod) = pods
        return not self._kept_nodes.keeps_out(host, pod, self._order(pod), after=others)

    def _decide(self, question: "_Question", *, keep: bool = True, anew: bool = False) -> str:
        """Decide on all pods that wait, and *keep* their places; return why they do not fit, or nothing.

        Pods that were asked about before stay where they are, unless they are decided *anew*. ``PodError`` if a pod
        cannot be read.
        """
        key, members, asked_uid = question.key, question.members, question.asked.uid
        uids = frozenset(members.waiting)
        refusal, gang = self._refused.get(key), self._gangs.get(key)
        same = (self._version, uids, question.nodes, question.for_others)
        if refusal is not None and refusal[:4] == same and self._turn.now < refusal.until:
            return refusal.problem
        unseen_pods = {uid: facts for uid, (facts, _) in self._asked.items()}
        pods = [unseen_pods.get(uid) or self._facts.readable_pod(uid) for uid in members.waiting]
        aligned_pods = sorted([facts for facts in pods if needs_alignment(facts.pod)], key=lambda facts: facts.order)
        aligned_pods.sort(key=lambda facts: facts.uid != asked_uid)
        moved_bindings = gang.movable(asked_uid, anew=anew) if gang is not None and keep else {}
        beside = self._assumptions.beside(members, without=moved_bindings)
        waiting_pods = [facts.pod for facts in aligned_pods if facts.uid not in beside]
        try:
            self._assumptions.withdraw(binding.pod for binding in moved_bindings.values())
            eligible = self._eligible_nodes(aligned_pods, question, beside)
            answer = self._cluster.feasible_gang(
                [*(binding.pod for binding in beside.values()), *waiting_pods],
                eligible=lambda pod: eligible[pod.uid],
                has_room=self._has_room,
            )
        except Exception:
            if moved_bindings:
                self._assumptions.assume_gang(
                    tuple(moved_bindings.values()), beside=_on_nodes_of(moved_bindings, beside)
                )
            raise
        placed_bindings = {pod.uid: GangBinding(pod, host) for pod, host in answer.bindings if pod.uid not in beside}
        settled_count = sum(facts.uid in beside for facts in aligned_pods)
        fitting_count = len(members.bound) + len(pods) - len(aligned_pods) + settled_count + len(placed_bindings)
        enough = fitting_count >= members.minimum and (
            asked_uid in placed_bindings or asked_uid in beside or asked_uid not in eligible
        )
        if enough and keep and placed_bindings:
            others = _on_nodes_of(placed_bindings, beside)
            enough = self._assumptions.assume_gang(tuple(placed_bindings.values()), beside=others)[-1].admits
        if enough:
            if keep:
                self._remember(key, members, placed_bindings, moved_bindings)
            return ""
        if moved_bindings:  # they stay where they were, if that is possible
            self._assumptions.assume_gang(tuple(moved_bindings.values()), beside=_on_nodes_of(moved_bindings, beside))
        problem = describe_gang(key, members, fitting_count, answer, self._cluster)
        if gang is None:
            self._refused[key] = _Refusal(*same, self._turn.now + REFUSED_SECONDS, problem)
        return problem

    def _eligible_nodes(
        self, aligned_pods: Sequence[PodFacts], question: "_Question", placed_uids: Collection[str]
    ) -> dict[str, Collection[str]]:
        """Return the nodes for each pod; the same collection for pods with the same selectors.

        Pods of *placed_uids* stay where they are, so their devices are not checked.
        """
        asked_pod, allowed_nodes = question.asked, dict[Hashable, frozenset[str]]()
        suitable: dict[Hashable, frozenset[str]] = {}  #: for pods that may get some devices for their claims only
        if question.nodes is not None and question.for_others:
            allowed_nodes[asked_pod.selection] = question.nodes
        eligible: dict[str, Collection[str]] = {}
        for facts in aligned_pods:
            key, pod = facts.selection, facts.pod
            if key not in allowed_nodes:
                allowed_nodes[key] = frozenset(self._facts.allowed(facts))
            considered_nodes = allowed_nodes[key]
            if facts.uid == asked_pod.uid and question.nodes is not None:
                considered_nodes = question.nodes
            if refused_nodes := self._refusals(pod):
                considered_nodes = considered_nodes.difference(refused_nodes)  # not "-", which makes a set of it
            if restricts_claims(pod) and pod.uid not in placed_uids:
                kind = (considered_nodes, self._facts.claim_kind(pod))
                if kind not in suitable:
                    suitable[kind] = self._claims.suitable(pod, considered_nodes)
                considered_nodes = suitable[kind]
            eligible[pod.uid] = considered_nodes
        return eligible

    def _remember(
        self, key: GroupKey, members: GangFacts, placed_bindings: dict[str, GangBinding], moved_uids: Collection[str]
    ) -> None:
        gang = self._gangs.get(key)
        if gang is None:
            now, nodes = self._turn.now, len({binding.host for binding in placed_bindings.values()})
            gang = self._gangs[key] = TentativeGang(key, _is_half_bound(members), now, now)
            self._report("gang placed", key, pods=len(placed_bindings), nodes=nodes, minimum=members.minimum)
        for uid in moved_uids:
            del gang.hosts[uid]
            self._by_uid.pop(uid, None)
            if uid not in placed_bindings:
                self._assumptions.forget(uid)
        gang.answered.difference_update(moved_uids)
        gang.hosts |= placed_bindings
        self._by_uid |= dict.fromkeys(placed_bindings, gang)

    # Bindings

    def turn(self, asked_pod: PodFacts, node: str, *, alone: bool = False) -> "str | GroupKey":
        """Decide again whether a pod can be bound now, immediately before its binding; empty: yes.

        Return why it cannot be bound, or its gang if others must be bound before. Nothing else may be bound to the node
        before :meth:`bound` is called. *alone*: the pod may go to this node if its gang does not fit on others.
        """
        key = asked_pod.group
        if key is None:
            return ""
        members, gang = self._members(key, asked_pod), self._gangs.get(key)
        binding = gang.hosts.get(asked_pod.uid) if gang else None
        if not self._is_decided_together(key, members, asked_pod):
            return ""
        misplaced = needs_alignment(asked_pod.pod) and (binding is None or not self._still_fits(binding, (node,)))
        if gang is None or misplaced:
            gang_place = self._place(key, asked_pod, (node,), for_others=False)
            if alone and gang_place is not None and gang_place.unfit and asked_pod.uid not in self._by_uid:
                return ""
            if gang_place is None or gang_place.problem or key not in self._gangs:
                return gang_place.problem if gang_place else ""
            gang = self._gangs[key]
        gang.touched = self._turn.now
        return self._take_turn(gang, members, asked_pod.pod, node)

    def _take_turn(self, gang: TentativeGang, members: GangFacts, pod: Pod, node: str) -> "str | GroupKey":
        unknown_nodes = [gang.hosts[uid].host for uid in gang.unknown & gang.hosts.keys() if uid != pod.uid]
        if node in unknown_nodes:
            return gang.key  # its binding would come before or after this one
        if pod.uid in gang.bound:  # the response to its binding was lost, and the node counts on it
            return ""
        mine = gang.hosts.get(pod.uid)
        on_node = [binding for binding in gang.unbound() if binding.host == node and mine is not None]
        elsewhere = [] if gang.started else [binding for binding in gang.unbound() if binding not in on_node]
        if not gang.started and (problem := _missing(gang.key, members)):
            self._drop(gang, problem)
            return problem
        moved_uids = {binding.pod.uid for binding in (*on_node, *elsewhere)}
        hosts = {binding.host for binding in (*on_node, *elsewhere)}
        held_by_others = self._assumptions.beside(members, without=moved_uids).values()
        beside = [binding for binding in held_by_others if binding.host in hosts]
        mine_first = sorted(on_node, key=lambda binding: binding is not mine)
        reason = ""
        for order in (mine_first, on_node) if mine_first != on_node else (on_node,):
            verdicts = self._assumptions.assume_gang([*order, *elsewhere], beside=beside)
            if verdicts and not verdicts[-1].admits:
                reason = reason or verdicts[-1].reason
                continue
            if order is not on_node and not self._kept_nodes.has_kept_room(node):
                continue  # in another order, the pods may be where they keep a pod out that comes first
            gang.hosts = {member: binding for member, binding in gang.hosts.items() if member not in moved_uids} | {
                binding.pod.uid: binding for binding in (*order, *elsewhere)
            }
            if mine is not None and order[0] is not mine:
                return gang.key
            gang.uncertain = {
                binding.pod.uid
                for binding, verdict in zip((*order, *elsewhere), verdicts[len(beside) :], strict=True)
                if verdict.alternatives
            }
            gang.bound.add(pod.uid)
            self._by_uid[pod.uid] = gang
            return ""
        problem = f"gang {gang.key} does not fit any more: {reason} on node {node}"
        if not gang.started:
            self._drop(gang, problem)
            return problem
        for binding in on_node:  # they are decided again when the scheduler asks
            self._remove(gang, binding.pod.uid)
        return problem

    def is_uncertain(self, uid: str) -> bool:
        """Return whether a pod of a gang may get something else than predicted, as others end on its node."""
        gang = self._by_uid.get(uid)
        return gang is not None and uid in gang.uncertain

    def bound(self, uid: str, problem: str) -> None:
        """Note that a binding was written, or why it was not; with an unknown outcome the node counts on the pod."""
        gang = self._by_uid.get(uid)
        if gang is None:
            return
        gang.unknown.discard(uid)
        if problem and uid in self._assumptions:
            gang.unknown.add(uid)
        elif problem:
            gang.bound.discard(uid)
            self._remove(gang, uid)
            if not gang.started:  # without this pod, the others must not start
                self._drop(gang, problem)
                return
        gang.touched = self._turn.now
        self._end_if_bound(gang)

    # Changes

    def expire(self) -> None:
        """Give back the places of gangs that their scheduler has not asked about, or bound, for long."""
        for gang in tuple(self._gangs.values()):
            with self._isolated(gang.key):
                self._expire(gang, self._turn.now)

    def _expire(self, gang: TentativeGang, now: float) -> None:
        seconds = KEPT_SECONDS if gang.started else TENTATIVE_SECONDS
        if not gang.started and now - gang.since >= UNBOUND_SECONDS:
            self._paused = {key: until for key, until in self._paused.items() if until > now}
            self._paused[gang.key] = now + PAUSE_SECONDS
            self._drop(gang, f"nothing was bound for {UNBOUND_SECONDS:.0f} s")
        elif now - gang.touched >= seconds:
            if gang.started:
                self._tell_incomplete(gang)
            for uid in sorted(gang.unknown):  # the API server would have shown their bindings by now
                self._assumptions.forget(uid)
            self._drop(gang, f"nothing was bound for {seconds:.0f} s")

    def _tell_incomplete(self, gang: TentativeGang) -> None:
        rest = [binding.pod.uid for binding in gang.unbound()]
        message = (
            f"gang {gang.key} is bound except for {len(rest)} pods, which its scheduler has not bound for "
            f"{KEPT_SECONDS:.0f} s; their places are not kept any more"
        )
        for uid in rest:
            self._turn.emit(WriteEvent(uid, GANG_INCOMPLETE, message, gate=False))

    def _drop(self, gang: TentativeGang, reason: str) -> None:
        """Give back all places that are not bound."""
        self._gangs.pop(gang.key, None)
        for uid in (*gang.hosts, *gang.bound):
            self._by_uid.pop(uid, None)
        for binding in gang.unbound():
            self._assumptions.forget(binding.pod.uid)
        self._turn.emit(ChangeGang(gang.key))
        self._report("gang given back", gang.key, pods=len(gang.unbound()), reason=reason)

    def _remove(self, gang: TentativeGang, uid: str) -> None:
        gang.hosts.pop(uid, None)
        gang.unknown.discard(uid)
        self._by_uid.pop(uid, None)

    def _end_if_bound(self, gang: TentativeGang) -> None:
        self._turn.emit(ChangeGang(gang.key))
        if not gang.unbound() and gang.key in self._gangs:
            del self._gangs[gang.key]
            for uid in (*gang.hosts, *gang.bound):
                self._by_uid.pop(uid, None)
            self._report("gang bound", gang.key, pods=len(gang.hosts))

    def hosts_changed(self) -> None:
        """Take note that verdicts of hosts may have changed."""
        self._version += 1

    def pod_bound(self, uid: str) -> None:
        self._asked.pop(uid, None)
        gang = self._by_uid.get(uid)
        if gang is not None:
            gang.bound.add(uid)
            gang.unknown.discard(uid)
            self._end_if_bound(gang)

    def pod_gone(self, uid: str) -> None:
        """Take note that a pod is deleted, is being deleted, or has ended."""
        self._asked.pop(uid, None)
        self._gone[uid] = self._turn.now
        gang = self._by_uid.get(uid)
        if gang is None:
            return
        self._remove(gang, uid)
        gang.bound.discard(uid)
        gang.resumed |= bool(gang.bound)
        self._assumptions.forget(uid)
        missing_text = _missing(gang.key, self._known_members(gang.key))
        if missing_text and not gang.started:
            self._drop(gang, missing_text)
        else:
            self._end_if_bound(gang)

    def _report(self, event: str, key: GroupKey, **details: object) -> None:
        self._turn.emit(Report(event, details={"group": str(key), **details}))


def _place(facts: PodFacts) -> tuple[WaitingOrder, str]:
    return facts.order, facts.uid


def _is_half_bound(members: GangFacts) -> bool:
    return bool(members.waiting) and 0 < len(members.bound) < members.minimum


def _missing(key: GroupKey, members: GangFacts) -> str:
    """Return why a gang cannot start yet: pods of it are missing, or behind gates; empty: it can."""
    here, minimum = len(members.waiting) + len(members.bound), members.minimum
    if here >= minimum:
        return ""
    gated_text = f", {len(members.gated)} of them behind gates" if members.gated else ""
    others = f", and {members.strangers} of other schedulers" if members.strangers else ""
    return f"gang {key}: {members.present} of {minimum} pods exist{gated_text}{others}"


def _on_nodes_of(bindings: Mapping[str, GangBinding], beside: Mapping[str, GangBinding]) -> list[GangBinding]:
    hosts = {binding.host for binding in bindings.values()}
    return [binding for binding in beside.values() if binding.host in hosts]
