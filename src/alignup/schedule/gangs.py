"""Gangs in the extender: pods that are offered nodes, and bound, together or not at all.

A scheduler asks about the pods of a group one after the other before it binds any, then binds them in parallel, or one
by one. So with the first question all pods of the group that wait are decided together, and the nodes count on them
from then on. Each pod is offered its node only. Before the first binding is written, everything is decided once more,
and the gang is refused as a whole if it does not fit any more. After that the places are kept for the rest.

A kubelet admits pods in the order of their bindings. A pod is bound before others of its node if these will fit after
it, too; otherwise it waits for a moment until they are bound.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.kubernetes.api import Change, EventType
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.gang import GangAnswer, GangBinding
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.facts import GroupKey
from alignup.placement.shortage import describe_shortage
from alignup.schedule.claim_bindings import ClaimBindings
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import exclusions, selection_key
from alignup.schedule.pod_events import PodEvents
from alignup.schedule.pod_groups import KUBERNETES, GroupMembers, group_of
from alignup.schedule.step_guard import ServiceStep

TENTATIVE_SECONDS = 20.0  #: after the last question or binding, for which places are kept for a gang that is not bound
UNBOUND_SECONDS = 60.0  #: after the first question, by which a binding must follow, whatever is asked meanwhile
PAUSE_SECONDS = 60.0  #: for which others come first after that
KEPT_SECONDS = 300.0  #: after the last binding, for which places are kept for the rest of the gang
TURN_SECONDS = 3.0  #: for which a binding waits for those that must come before it
CHECK_SECONDS = 1.0
PLACEMENT_ANNOTATION = "alignup.dev/predicted-placement"  #: of pods that the extender has bound: what they will get
INCOMPLETE = "GangIncomplete"  #: the reason of events

_log = structlog.get_logger()


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
    bound: set[str] = field(default_factory=set)  #: those whose binding is written, or is being written
    unknown: set[str] = field(default_factory=set)  #: those whose binding may be written or not
    uncertain: set[str] = field(default_factory=set)  #: those that may be placed elsewhere on their nodes
    changed: asyncio.Event = field(default_factory=asyncio.Event)  #: set after the next binding

    @property
    def started(self) -> bool:
        return self.resumed or bool(self.bound)

    def unbound(self) -> list[GangBinding]:
        return [binding for uid, binding in self.hosts.items() if uid not in self.bound]

    def movable(self, asked: str, *, anew: bool) -> dict[str, GangBinding]:
        """Return the pods that may go elsewhere: the one that is *asked* about, and those that were not yet, or all."""
        fixed = self.bound if anew else self.bound | (self.answered - {asked})
        return {uid: binding for uid, binding in self.hosts.items() if uid not in fixed}


class _Question(NamedTuple):
    """Pods that are decided on together because of one of them."""

    key: GroupKey
    members: GroupMembers
    asked: Pod
    nodes: frozenset[str] | None = None  #: for the pod; ``None``: by its selectors
    for_others: bool = False  #: whether the nodes are also for others with the same selectors


class _Refusal(NamedTuple):
    version: int  #: of the cluster
    uids: frozenset[str]
    nodes: frozenset[str] | None  #: of the question
    for_others: bool
    until: float  #: Node objects and groups change as well
    problem: str


class Gangs:
    """The tentative ledgers of groups; *clock* is that of the client."""

    def __init__(
        self,
        live: LiveCluster,
        claims: ClaimBindings,
        events: PodEvents,
        clock: Callable[[], float],
    ) -> None:
        self._live, self._claims, self._events, self._clock = live, claims, events, clock
        self._groups = live.pod_groups
        self._gangs: dict[GroupKey, TentativeGang] = {}
        self._by_uid: dict[str, TentativeGang] = {}
        #: lets a pod be woken when one of these nodes has room for it
        self.wait_for_room: Callable[[ApiPod, Collection[str]], object] = lambda _pod, _nodes: None
        self._refused: dict[GroupKey, _Refusal] = {}
        self._paused: dict[GroupKey, float] = {}  #: gangs that were not bound in time → until when others come first
        self._resuming: set[GroupKey] = set()  #: half bound gangs whose rest has no places yet
        self._unasked: dict[str, set[GroupKey]] = {}  #: such gangs by the name of a scheduler that has not asked yet
        self._version = 0
        live.on_change(self._cluster_changed)
        live.pods.subscribe(self._pod_changed)

    def __len__(self) -> int:
        return len(self._gangs)

    def resume(self) -> None:
        """Keep places for the rest of gangs that another process has begun to bind; call it before others get them.

        Other schedulers bind gangs, too, and may never ask. So unless a pod has the annotation of the extender, places
        are kept when the scheduler of the gang asks for the first time.
        """
        self._resuming, self._unasked = set(), {}
        for key in self._groups.groups():
            members = self._groups.members(key)
            if any(PLACEMENT_ANNOTATION in pod.metadata.annotations for pod in members.bound):
                self._resuming.add(key)
            elif _is_half_bound(members):
                self._unasked.setdefault(members.waiting[0].spec.scheduler_name, set()).add(key)
        self._resume()

    def _resume(self) -> None:
        guard = self._live.guard
        for key in tuple(self._resuming):
            members = self._groups.members(key)
            if key in self._gangs or not _is_half_bound(members):
                self._resuming.discard(key)
                continue
            if not guard.may_try(ServiceStep.GANG, str(key)):
                continue
            with guard.guarded(ServiceStep.GANG, str(key)), suppress(PodError):
                self._decide(_Question(key, members, self._live.read(members.waiting[0])))
            for pod, host in self._gangs[key].unbound() if key in self._gangs else ():
                api_pod = self._live.find_pod(pod.namespace, pod.name)
                if api_pod is not None:  # the scheduler need not try it again by itself
                    self.wait_for_room(api_pod, (host,))

    async def run(self) -> None:
        """Give back the places of gangs that are not bound, until cancelled; then those of all."""
        try:
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                self.expire()
                self._resume()
        finally:
            for gang in tuple(self._gangs.values()):
                self._drop(gang, "this process does not lead any more")

    # Questions

    def place(self, api_pod: ApiPod, pod: Pod, nodes: Collection[str]) -> GangPlace | None:
        """Return where a pod goes with the others of its group; ``None``: it is decided on alone.

        *nodes* are those that the scheduler considers for it, and for others with the same selectors.
        """
        if unasked := self._unasked.pop(api_pod.spec.scheduler_name, None):
            self._resuming |= unasked
            self._resume()
        key = group_of(api_pod)
        if key is None:
            return None
        self.expire()
        place = self._place(key, api_pod, pod, nodes, for_others=True)
        if gang := self._gangs.get(key):
            gang.considered = len(nodes)
        return place

    def fits(self, api_pod: ApiPod, pod: Pod) -> bool:
        """Return whether a pod that waits could be placed now with the others of its group, if it is in one."""
        key = group_of(api_pod)
        if key is None or pod.uid in self._by_uid:
            return True
        members = self._groups.members(key, api_pod)
        if not self._is_decided_together(key, members, pod):
            return True
        try:
            return not (_missing(key, members) or self._decide(_Question(key, members, pod), keep=False))
        except PodError:
            return False

    def others_waiting(self, api_pod: ApiPod) -> tuple[ApiPod, ...]:
        """Return the pods of the same group that wait as well."""
        key = group_of(api_pod)
        waiting = self._groups.members(key, api_pod).waiting if key else ()
        return tuple([pod for pod in waiting if pod.metadata.uid != api_pod.metadata.uid])

    def _place(
        self, key: GroupKey, api_pod: ApiPod, pod: Pod, nodes: Collection[str], *, for_others: bool
    ) -> GangPlace | None:
        members, gang = self._groups.members(key, api_pod), self._gangs.get(key)
        if not self._is_decided_together(key, members, pod):
            return None
        if gang is not None and not gang.started:
            gang.touched = self._clock()
        if problem := _missing(key, members) or self._describe_pause(key):
            if gang is not None and not gang.started:
                self._drop(gang, problem)
            return GangPlace(problem=problem)
        if gang is not None:
            binding = gang.hosts.get(pod.uid)
            if binding is None and not needs_alignment(pod):
                return GangPlace()
            if binding is not None and self._still_fits(binding, nodes):
                gang.answered.add(pod.uid)
                return GangPlace(binding.host)
        try:
            problem = self._renew(_Question(key, members, pod, frozenset(nodes), for_others), gang)
        except PodError as error:
            return GangPlace(problem=f"gang {key}: alignup cannot read a pod of it: {error}")
        gang = self._gangs.get(key)
        if problem or gang is None:
            return GangPlace(problem=problem, unfit=True)
        binding = gang.hosts.get(pod.uid)
        gang.answered.add(pod.uid)
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
        if self._paused.get(key, 0.0) <= self._clock():
            self._paused.pop(key, None)
            return ""
        return f"gang {key} had places, but its scheduler did not bind it within {UNBOUND_SECONDS:.0f} s"

    def _is_decided_together(self, key: GroupKey, members: GroupMembers, pod: Pod) -> bool:
        """Return whether a pod is decided on with others: not if it is the last one, or others have placed it."""
        if pod.uid in self._by_uid or key in self._gangs:
            return True
        if pod.uid in self._live.assumed:
            return False
        if members.minimum == 1 and key.source != KUBERNETES:
            return False
        if not any(self._is_aligned(other) for other in members.waiting):
            return False
        return len(members.waiting) > 1 or bool(_missing(key, members))

    def _is_aligned(self, api_pod: ApiPod) -> bool:
        try:
            return needs_alignment(self._live.read(api_pod))
        except PodError:
            return True

    def _still_fits(self, binding: GangBinding, nodes: Collection[str]) -> bool:
        pod, host = binding
        if host not in nodes or pod.uid not in self._live.assumed:
            return False
        return self._live.verdict(pod, host).admits and not self._live.scheduling.keeps_out(host, pod)

    def _decide(self, question: "_Question", *, keep: bool = True, anew: bool = False) -> str:
        """Decide on all pods that wait, and *keep* their places; return why they do not fit, or nothing.

        Pods that were asked about before stay where they are, unless they are decided *anew*. ``PodError`` if a pod
        cannot be read.
        """
        live, key, members, asked = self._live, question.key, question.members, question.asked.uid
        uids = frozenset(pod.metadata.uid for pod in members.waiting)
        refusal, gang = self._refused.get(key), self._gangs.get(key)
        same = (self._version, uids, question.nodes, question.for_others)
        if refusal is not None and refusal[:4] == same and self._clock() < refusal.until:
            return refusal.problem
        pods = [(api_pod, live.read(api_pod)) for api_pod in members.waiting]
        aligned = sorted([pair for pair in pods if needs_alignment(pair[1])], key=lambda pair: pair[1].uid != asked)
        moved = gang.movable(asked, anew=anew) if gang is not None and keep else {}
        for uid in moved:
            live.cluster.forget(uid)
        beside = held_bindings(live, members, without=moved)
        waiting = [pod for _, pod in aligned if pod.uid not in beside]
        try:
            eligible = self._eligible_nodes(aligned, question, beside)
            answer = live.cluster.feasible_gang(
                [*(binding.pod for binding in beside.values()), *waiting], eligible=lambda pod: eligible[pod.uid]
            )
        except Exception:
            if moved:
                live.assume_gang(tuple(moved.values()), beside=_on_nodes_of(moved, beside))
            raise
        placed = {pod.uid: GangBinding(pod, host) for pod, host in answer.bindings if pod.uid not in beside}
        fitting = len(members.bound) + len(pods) - len(aligned) + len(placed) + len(uids & beside.keys())
        enough = fitting >= members.minimum and (asked in placed or asked in beside or asked not in eligible)
        if enough and keep and placed:
            enough = live.assume_gang(tuple(placed.values()), beside=_on_nodes_of(placed, beside))[-1].admits
        if enough:
            if keep:
                self._remember(key, members, placed, moved)
            return ""
        if moved:  # they stay where they were, if that is possible
            live.assume_gang(tuple(moved.values()), beside=_on_nodes_of(moved, beside))
        problem = describe_gang(key, members, fitting, answer, live)
        if gang is None:
            now = self._clock()
            recent = {group: old for group, old in self._refused.items() if now < old.until}  # their nodes take memory
            self._refused = {**recent, key: _Refusal(*same, now + CHECK_SECONDS, problem)}
        return problem

    def _eligible_nodes(
        self, aligned: Sequence[tuple[ApiPod, Pod]], question: "_Question", held: Collection[str]
    ) -> dict[str, Collection[str]]:
        """Return the nodes for each pod; the same collection for those with the same selectors.

        Those that are *held* stay where they are, so devices are not looked at for them.
        """
        asked, known = question.asked.uid, dict[Hashable, frozenset[str]]()
        suitable: dict[Hashable, frozenset[str]] = {}  #: for pods that require devices beside their CPUs
        selection = next((selection_key(api_pod.spec) for api_pod, pod in aligned if pod.uid == asked), None)
        if question.nodes is not None and question.for_others and selection is not None:
            known[selection] = question.nodes
        eligible: dict[str, Collection[str]] = {}
        for api_pod, pod in aligned:
            key = selection_key(api_pod.spec)
            if key not in known:
                nodes = self._live.nodes.objects.values()
                known[key] = frozenset(node.metadata.name for node in nodes if not exclusions(node, api_pod.spec))
            considered = known[key]
            if pod.uid == asked and question.nodes is not None:
                considered = question.nodes
            if refused := self._live.scheduling.refusals(pod):
                considered = considered.difference(refused)  # not "-", which makes a set of it
            if self._claims.must_align(pod) and pod.uid not in held:
                kind = (considered, self._live.claims.kind(pod))
                if kind not in suitable:
                    suitable[kind] = self._claims.suitable(pod, considered)
                considered = suitable[kind]
            eligible[pod.uid] = considered
        return eligible

    def _remember(
        self, key: GroupKey, members: GroupMembers, placed: dict[str, GangBinding], moved: Collection[str]
    ) -> None:
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = TentativeGang(key, _is_half_bound(members), self._clock(), self._clock())
            nodes = len({binding.host for binding in placed.values()})
            _log.info("gang placed", group=str(key), pods=len(placed), nodes=nodes, minimum=members.minimum)
        for uid in moved:
            del gang.hosts[uid]
            self._by_uid.pop(uid, None)
            if uid not in placed:
                self._live.forget(uid)
        gang.answered.difference_update(moved)
        gang.hosts |= placed
        self._by_uid |= dict.fromkeys(placed, gang)

    # Bindings

    async def wait_for_turn(self, gang: TentativeGang, deadline: float) -> bool:
        """Wait for the next binding of a gang; return whether it came in time."""
        try:
            async with asyncio.timeout(max(deadline - self._clock(), 0)):
                await gang.changed.wait()
        except TimeoutError:
            return False
        return True

    def turn(self, api_pod: ApiPod, pod: Pod, node: str, *, alone: bool = False) -> "str | TentativeGang":
        """Decide again whether a pod can be bound now, immediately before its binding; empty: yes.

        Return why it cannot be bound, or the gang if others must be bound before. Nothing else may be bound to the node
        before :meth:`bound` is called. *alone*: the pod may go to this node if its gang does not fit on others.
        """
        key = group_of(api_pod)
        if key is None:
            return ""
        members, gang = self._groups.members(key, api_pod), self._gangs.get(key)
        binding = gang.hosts.get(pod.uid) if gang else None
        if not self._is_decided_together(key, members, pod):
            return ""
        if gang is None or (needs_alignment(pod) and (binding is None or not self._still_fits(binding, (node,)))):
            place = self._place(key, api_pod, pod, (node,), for_others=False)
            if alone and place is not None and place.unfit and pod.uid not in self._by_uid:
                return ""
            if place is None or place.problem or key not in self._gangs:
                return place.problem if place else ""
            gang = self._gangs[key]
        gang.touched = self._clock()
        return self._take_turn(gang, members, pod, node)

    def _take_turn(self, gang: TentativeGang, members: GroupMembers, pod: Pod, node: str) -> "str | TentativeGang":
        unknown = [gang.hosts[uid].host for uid in gang.unknown & gang.hosts.keys() if uid != pod.uid]
        if node in unknown:
            return gang  # its binding would come before or after this one
        if pod.uid in gang.bound:  # the response to its binding was lost, and the node counts on it
            return ""
        mine = gang.hosts.get(pod.uid)
        on_node = [binding for binding in gang.unbound() if binding.host == node and mine is not None]
        elsewhere = [] if gang.started else [binding for binding in gang.unbound() if binding not in on_node]
        if not gang.started and (problem := _missing(gang.key, members)):
            self._drop(gang, problem)
            return problem
        moved = {binding.pod.uid for binding in (*on_node, *elsewhere)}
        hosts = {binding.host for binding in (*on_node, *elsewhere)}
        beside = [held for held in held_bindings(self._live, members, without=moved).values() if held.host in hosts]
        mine_first = sorted(on_node, key=lambda binding: binding is not mine)
        reason = ""
        for order in (mine_first, on_node) if mine_first != on_node else (on_node,):
            verdicts = self._live.assume_gang([*order, *elsewhere], beside=beside)
            if verdicts and not verdicts[-1].admits:
                reason = reason or verdicts[-1].reason
                continue
            gang.hosts = {held: gang.hosts[held] for held in gang.hosts if held not in moved} | {
                binding.pod.uid: binding for binding in (*order, *elsewhere)
            }
            if mine is not None and order[0] is not mine:
                return gang
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
        if problem and uid in self._live.assumed:
            gang.unknown.add(uid)
        elif problem:
            gang.bound.discard(uid)
            self._remove(gang, uid)
        gang.touched = self._clock()
        self._end_if_bound(gang)

    # Changes

    def expire(self) -> None:
        """Give back the places of gangs that their scheduler has not asked about, or bound, for long."""
        for gang in tuple(self._gangs.values()):
            with self._live.guard.guarded(ServiceStep.GANG, str(gang.key)):
                self._expire(gang, self._clock())

    def _expire(self, gang: TentativeGang, now: float) -> None:
        seconds = KEPT_SECONDS if gang.started else TENTATIVE_SECONDS
        if not gang.started and now - gang.since >= UNBOUND_SECONDS:
            self._paused = {key: until for key, until in self._paused.items() if until > now}
            self._paused[gang.key] = now + PAUSE_SECONDS
            self._drop(gang, f"nothing was bound for {UNBOUND_SECONDS:.0f} s")
        elif now - gang.touched >= seconds:
            if gang.started:
                self._tell_incomplete(gang)
            for uid in gang.unknown:  # the API server would have shown their bindings by now
                self._live.forget(uid)
            self._drop(gang, f"nothing was bound for {seconds:.0f} s")

    def _tell_incomplete(self, gang: TentativeGang) -> None:
        rest = [binding.pod.uid for binding in gang.unbound()]
        message = (
            f"gang {gang.key} is bound except for {len(rest)} pods, which its scheduler has not bound for "
            f"{KEPT_SECONDS:.0f} s; their places are not kept any more"
        )
        for pod in self._groups.members(gang.key).waiting:
            if pod.metadata.uid in rest:
                self._events.note(pod, INCOMPLETE, message)

    def _drop(self, gang: TentativeGang, reason: str) -> None:
        """Give back all places that are not bound."""
        self._gangs.pop(gang.key, None)
        for uid in (*gang.hosts, *gang.bound):
            self._by_uid.pop(uid, None)
        for binding in gang.unbound():
            self._live.forget(binding.pod.uid)
        gang.changed.set()
        _log.info("gang given back", group=str(gang.key), pods=len(gang.unbound()), reason=reason)

    def _remove(self, gang: TentativeGang, uid: str) -> None:
        gang.hosts.pop(uid, None)
        gang.unknown.discard(uid)
        self._by_uid.pop(uid, None)

    def _end_if_bound(self, gang: TentativeGang) -> None:
        gang.changed.set()
        gang.changed = asyncio.Event()
        if not gang.unbound() and gang.key in self._gangs:
            del self._gangs[gang.key]
            for uid in (*gang.hosts, *gang.bound):
                self._by_uid.pop(uid, None)
            _log.info("gang bound", group=str(gang.key), pods=len(gang.hosts))

    def _cluster_changed(self, _nodes: Collection[str]) -> None:
        self._version += 1

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        uid = pod.metadata.uid
        gang = self._by_uid.get(uid)
        if gang is None:
            return
        if pod.spec.node_name and change.type is not EventType.DELETED:
            gang.bound.add(uid)
            gang.unknown.discard(uid)
            self._end_if_bound(gang)
        elif change.type is EventType.DELETED or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._remove(gang, uid)
            gang.bound.discard(uid)
            gang.resumed |= bool(gang.bound)
            self._live.forget(uid)
            members = self._groups.members(gang.key)
            missing = _missing(gang.key, members)
            if missing and not gang.started:
                self._drop(gang, missing)
            else:
                self._end_if_bound(gang)


def held_bindings(live: LiveCluster, members: GroupMembers, *, without: Collection[str] = ()) -> dict[str, GangBinding]:
    """Return the pods of a gang by uid that are bound, or assumed on one node, and that no report contains yet."""
    bindings = []
    for pod in (*members.waiting, *members.bound):
        uid, node = pod.metadata.uid, pod.spec.node_name
        nodes = (node,) if node else live.assumed.get(uid, ())
        record = live.cluster.record(nodes[0]) if len(nodes) == 1 and uid not in without else None
        if record is not None and record.binding(uid) is not None and not pod.finished:
            bindings.append(GangBinding(live.read(pod), nodes[0]))
    return {binding.pod.uid: binding for binding in bindings}


def _is_half_bound(members: GroupMembers) -> bool:
    return bool(members.waiting) and 0 < len(members.bound) < members.minimum


def _missing(key: GroupKey, members: GroupMembers) -> str:
    """Return why a gang cannot start yet: pods of it are missing, or behind gates; empty: it can."""
    here, minimum = len(members.waiting) + len(members.bound), members.minimum
    if here >= minimum:
        return ""
    gated = f", {len(members.gated)} of them behind gates" if members.gated else ""
    return f"gang {key}: {members.present} of {minimum} pods exist{gated}"


def describe_gang(key: GroupKey, members: GroupMembers, fitting: int, answer: GangAnswer, live: LiveCluster) -> str:
    """Return why a gang of which only so many pods are *fitting* waits."""
    wanted = max(members.minimum, members.present)
    shortage = describe_shortage(live.cluster, answer.verdicts[answer.rest[0].uid]) if answer.rest else "nodes changed"
    text = f"gang {key}: {fitting} of {wanted} pods fit together; {shortage}"
    return text if answer.proved else f"{text}; no more were found within {answer.steps} steps"


def _on_nodes_of(placed: Mapping[str, GangBinding], beside: Mapping[str, GangBinding]) -> list[GangBinding]:
    hosts = {binding.host for binding in placed.values()}
    return [binding for binding in beside.values() if binding.host in hosts]
