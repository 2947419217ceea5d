"""Pods behind the gate: a node is chosen for each, and it is released there.

Every waiting pod is tried in its order. The best node that its kubelet, the Node object and the pod's own selectors
allow is assumed, and the pod is released to it. Its scheduler then binds it. A pod that no node admits is tried again
when a node changes that could admit it. The pods of a gang are released together, when all of them fit.

    other gates → queued → released (see ``releases``) → bound
                   ↑  ↓        ↓
                  blocked   (not written) → queued
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from functools import partial

from alignup.align import reason_codes
from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.placement.pod_demands import demand_problem
from alignup.placement.pod_shape import is_large
from alignup.placement.scheduling.blocked_explanations import EXPLAIN_SECONDS, BlockedExplanations
from alignup.placement.scheduling.claim_rules import GatedClaims, SettledClaims, claim_preference
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.facts import FIRST, GangFacts, GroupKey, PodFacts, WaitState
from alignup.placement.scheduling.failed_events import back_off
from alignup.placement.scheduling.gang_placement import GangChoice, GangPlacement
from alignup.placement.scheduling.instructions import (
    DecideLargePod,
    EvictPod,
    ForgetEvents,
    ReadPod,
    Report,
    WriteEvent,
    WriteRelease,
)
from alignup.placement.scheduling.kept_nodes import KeptNodes
from alignup.placement.scheduling.options import DEFAULT_SCHEDULER, GateOptions
from alignup.placement.scheduling.pod_queue import (
    MAX_CHANGED,
    PodClass,
    PodQueue,
    Rank,
    WaitingGang,
    gang_uid,
)
from alignup.placement.scheduling.pod_steering import PodSteering, Steered
from alignup.placement.scheduling.releases import (
    AvoidedNodes,
    PodRelease,
    ReleaseOutcome,
    ReleasePhase,
    Releases,
    describe_failure,
)
from alignup.placement.scheduling.turn import run_all

STEER_SECONDS = 1.0  #: before a pod is tried again that cannot be steered now
QUEUE = "queue"  #: the step in which a pod is read, and put into the queue


class GatedPodState(StrEnum):
    """What a pod behind the gate waits for, from its creation to its binding; see docs/scheduling-states.md."""

    NOWHERE = "nowhere"  #: not seen yet, bound, gone, or of a scheduler that pods are not released to
    OTHER_GATES = "other gates"  #: for the removal of other gates
    GANG_INCOMPLETE = "incomplete gang"  #: for other pods of its gang
    QUEUED = "queued"  #: for its turn
    BLOCKED = "blocked"  #: for a node that admits it
    PUT_OFF = "put off"  #: for another try, after a release was refused or a step failed
    PLANNED = "release planned"  #: for the write of its release
    WRITING = "release being written"
    RELEASED = "released"  #: for its scheduler
    GIVEN_UP = "given up"  #: its scheduler has not bound it in time


_RELEASE_STATES = {
    ReleasePhase.PLANNED: GatedPodState.PLANNED,
    ReleasePhase.WRITING: GatedPodState.WRITING,
    ReleasePhase.WRITTEN: GatedPodState.RELEASED,
}


class Gate:
    """The pods behind the gate, and the pods that are released and not bound yet."""

    def __init__(
        self,
        parts: CommonParts,
        kept_nodes: KeptNodes,
        steering: PodSteering,
        *,
        options: GateOptions,
        is_binding: Callable[[str], object],
    ) -> None:
        self.options = options
        self._is_binding = is_binding  #: whether this process is about to bind a pod
        self._cluster = parts.cluster
        self._facts = facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._kept_nodes = kept_nodes
        self._steering = steering
        self.queue = PodQueue(facts, is_planned=lambda uid: kept_nodes.plan.place_of(uid) is not None)
        self.releases = Releases(seconds=options.unbound)
        self.claims = GatedClaims(facts)
        self._explanations = BlockedExplanations(parts, kept_nodes, queue=self.queue, claims=self.claims)
        self._avoided = AvoidedNodes(options.avoid)
        self._gang_placement = GangPlacement(parts, kept_nodes, claims=self.claims, avoided_nodes=self._avoided)
        self._pods: dict[str, PodFacts] = {}  #: all pods that wait here or are released, as they are now, by uid
        self.other_gates: set[str] = set()  #: uids of pods that have other gates as well
        self._refused: dict[str, float] = {}  #: uid → when to try again to release it
        self._ready: dict[GroupKey, dict[str, PodFacts]] = {}  #: pods of groups that have no gate but ours, by uid
        self.incomplete: dict[GroupKey, float] = {}  #: groups without enough pods → when to explain that
        self._preparing: dict[str, PodClass] = {}  #: of large pods, by uid of the first, while others decide on them
        self._failures: dict[str, int] = {}  #: uid of a pod, or of the first pod of a gang → failures in a row
        self._paused: dict[str, tuple[int, float]] = {}  #: namespace → failures in a row, and when to look there again
        self._node_gone = False  #: whether pods may have been released to a node that is gone since the last check

    def count_blocked(self) -> int:
        return sum(len(self.queue.of_kind(pod_class)) for pod_class in self.queue.blocked)

    def state_of(self, uid: str) -> GatedPodState:
        """Return what a pod waits for."""
        release, facts = self.releases.get(uid), self._pods.get(uid)
        if release is not None:
            return _RELEASE_STATES[release.phase]
        if uid in self.releases.given_up:
            return GatedPodState.GIVEN_UP
        if uid in self.other_gates:
            return GatedPodState.OTHER_GATES
        if uid in self._refused:
            return GatedPodState.PUT_OFF
        group = facts.group if facts else None
        for entry in (uid, gang_uid(group) if group else ""):
            if entry in self.queue:
                return GatedPodState.BLOCKED if self.queue.is_blocked(entry) else GatedPodState.QUEUED
        waits = group is not None and uid in self._ready.get(group, {})
        return GatedPodState.GANG_INCOMPLETE if waits else GatedPodState.NOWHERE

    # Changes of pods

    def pod_seen(self, facts: PodFacts) -> None:
        """Take note of a pod without a node, as it is now."""
        uid = facts.uid
        if uid in self.releases:
            self._pods[uid] = facts
            return
        self._stop_waiting(uid)
        if facts.state is WaitState.GATED:
            with self._isolated(QUEUE, facts):
                self._wait(facts)
        elif facts.state is WaitState.OTHER_GATES:
            self._pods[uid] = facts
            self.other_gates.add(uid)
        elif facts.released_to and self._knows_scheduler(facts) and uid not in self.releases.given_up:
            self._adopt(facts)

    def pod_left(self, uid: str) -> None:
        """Note that a pod does not wait here: another process has removed its gate."""
        if uid not in self.releases:
            self._stop_waiting(uid)

    def pod_gone(self, uid: str, node: str) -> None:
        release = self.releases.get(uid)
        nodes = release.nodes if release else ()
        self._turn.emit(ForgetEvents(uid))
        self._failures.pop(uid, None)
        run_all(
            partial(self._stop_waiting, uid),
            partial(self._steering.cancel, uid, *(nodes if not node else ())),
            partial(self._end_release, uid, bound=False),
            partial(self.releases.forget, uid),
            lambda: self._settle(self.claims.forget(uid)),
            partial(self.queue.nodes_changed, (node,) if node else nodes),
        )
        self._pods.pop(uid, None)
        if release is not None and not node:
            self._report("release ended", release.facts, outcome=ReleaseOutcome.DELETED)

    def pod_bound(self, uid: str, node: str, pod: Pod | None) -> None:
        """Take note of a binding; *pod* as it is now, with the names of its claims, if it can be read."""
        run_all(
            partial(self._stop_waiting, uid),
            lambda: self._settle(self.claims.bound(uid, node, pod, now=self._turn.now)),
            partial(self._release_bound, uid, node),
            self._write_planned,
        )
        self._pods.pop(uid, None)

    def _release_bound(self, uid: str, node: str) -> None:
        outcome, facts = self.releases.bound(uid, node), self._pods.get(uid)
        if outcome is not None:
            details = {"outcome": outcome, "node": node}
            self._turn.emit(Report("release ended", uid, facts.full_name if facts else "", details))
            self._write_followers(uid, bound=True)

    def pod_unreadable(self, uid: str, problem: str) -> None:
        """Take note of a pod behind the gate that cannot be read."""
        self._stop_waiting(uid)
        self._turn.emit(WriteEvent(uid, reason_codes.INVALID_POD, f"no kubelet can decide on the pod: {problem}"))

    def _wait(self, facts: PodFacts) -> None:
        """Put a pod into the queue."""
        self._pods[facts.uid] = facts
        if problem := demand_problem(facts.pod):
            self._turn.emit(WriteEvent(facts.uid, reason_codes.UNKNOWN_DEMAND, problem))
        elif not self._knows_scheduler(facts):
            schedulers = ", ".join(sorted(self.options.schedulers))
            message = f"pods are released to {schedulers} only; the scheduler of the pod is {facts.scheduler}"
            self._turn.emit(WriteEvent(facts.uid, reason_codes.OTHER_SCHEDULER, message))
        elif facts.group:
            self._ready.setdefault(facts.group, {})[facts.uid] = facts
            self.group_changed(facts.group)
        else:
            self._add_alone(facts)

    def _add_alone(self, facts: PodFacts) -> None:
        pod_class = self.queue.add(facts)
        if pod_class in self.queue.blocked:
            self._explanations.joined(pod_class, facts.uid)

    def _stop_waiting(self, uid: str) -> None:
        facts = self._pods.get(uid)
        self.queue.remove(uid)
        self.other_gates.discard(uid)
        self._refused.pop(uid, None)
        group = facts.group if facts else None
        if group and self._ready.get(group, {}).pop(uid, None) is not None:
            self.group_changed(group)

    def _adopt(self, facts: PodFacts) -> None:
        """Count on a pod that another process has released, or this process before a restart."""
        nodes, now = facts.released_to, self._turn.now
        self._pods[facts.uid] = facts
        self.releases.add(PodRelease(facts, nodes, now, ReleasePhase.WRITTEN))
        if not self._assume_released(facts):
            self.releases.uncounted.add(facts.uid)
            self._report("the kubelet will not admit a released pod", facts, node=",".join(nodes))
        if facts.pod.uses_claims:
            self.claims.released(facts.pod, nodes)
        self.queue.nodes_changed(nodes, taken=True)
        if facts.group:
            self.group_changed(facts.group)

    def _assume_released(self, facts: PodFacts) -> bool:
        """Count on a released pod; return whether all of its nodes do."""
        gang = self._facts.gang(facts.group) if facts.group else None
        members = frozenset((*gang.bound, *gang.waiting)) if gang else frozenset()
        return self._assumptions.adopt(facts.pod, facts.released_to, gang=members) == facts.released_to

    # Changes of nodes, claims and groups

    def count_released(self, hosts: Collection[str]) -> None:
        """Count on adopted pods where *hosts* did not admit them: these were unknown, or other pods have left them."""
        for uid in sorted(self.releases.uncounted):
            facts = self._pods[uid]
            if not set(hosts).isdisjoint(facts.released_to):
                with self._turn.isolated("release", facts.full_name):  # it is tried with the next change of a node
                    if self._assume_released(facts):
                        self.releases.uncounted.discard(uid)

    def node_changed(self, node: str, *, gone: bool) -> None:
        """Take note that a Node object has changed in what choices depend on, or is gone."""
        self._node_gone |= gone
        self.queue.nodes_changed((node,))

    def claims_changed(self, namespace: str | None) -> None:
        """Take note that claims have changed; *namespace*: of a claim or template that did."""
        self._settle(self.claims.check(self._turn.now))
        if namespace is not None:  # nodes without devices for its pods were left out
            self.queue.rank_again(lambda pod_class: pod_class.namespace == namespace and pod_class.pod.uses_claims)

    def _settle(self, settled_claims: Iterable[SettledClaims]) -> None:
        """Try pods with claims again on nodes where claims of an earlier pod have devices now."""
        for uid, nodes, alignment in settled_claims:
            self.queue.nodes_changed(nodes)
            if alignment is not None:
                self._turn.emit(Report("claims settled", uid, details={"alignment": alignment}))

    def group_changed(self, key: GroupKey) -> None:
        """Queue the pods of a group: together, or alone if it has started, or not at all if some are missing."""
        ready = self._ready.get(key, {})
        self.queue.remove(gang_uid(key))
        if not ready:
            self._ready.pop(key, None)
            self.incomplete.pop(key, None)
            return
        gang = self._facts.gang(key)
        placed_count = self._count_placed(gang)
        if placed_count >= gang.minimum or gang.minimum == 1:
            self.incomplete.pop(key, None)
            for facts in ready.values():
                self._add_alone(facts)
            return
        for uid in ready:
            self.queue.remove(uid)
        if placed_count + len(ready) < gang.minimum:
            self.incomplete.setdefault(key, self._turn.now + EXPLAIN_SECONDS)
            return
        self.incomplete.pop(key, None)
        pods = tuple(sorted(ready.values(), key=lambda facts: facts.order))
        order = FIRST if placed_count else pods[0].order
        since = min(facts.since for facts in pods)
        first = {field.name: getattr(pods[0], field.name) for field in fields(PodFacts)}
        self.queue.add(WaitingGang(**(first | {"order": order, "since": since}), key=key, members=pods))

    def _count_placed(self, gang: GangFacts) -> int:
        """Return how many pods are bound or released."""
        return len(gang.bound) + sum(uid in self.releases for uid in gang.waiting)

    # Decisions

    def try_next(self) -> bool | None:
        """Try the next pod; return whether it is released, or ``None`` if there is none to try."""
        if self.releases.writing >= self.options.parallel:
            return None
        head = self.queue.next_head(self._may_try, self._isolated_namespace)
        if head is None:
            return None
        pod_class, waiting_pod = head
        try:
            return self._try(waiting_pod, pod_class)
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self.step_failed("place", waiting_pod.uid, error, waiting_pod)
            return False

    def _try(self, waiting_pod: PodFacts, pod_class: PodClass) -> bool:
        if is_large(pod_class.pod) and not pod_class.prepared:
            self.queue.block(pod_class)
            if waiting_pod.uid not in self._preparing:
                self._preparing[waiting_pod.uid] = pod_class
                self._turn.emit(DecideLargePod(waiting_pod.uid, pod_class.pod))
            return False
        pod_class.prepared = False
        if isinstance(waiting_pod, WaitingGang):
            return self._try_gang(waiting_pod, pod_class)
        nodes = self._choose(waiting_pod, pod_class)
        if not nodes:
            self.queue.block(pod_class)
            self._explanations.explain_later(pod_class)
            return False
        self.queue.unblock(pod_class)
        self._plan_release(waiting_pod, nodes)
        self._write_planned()
        return True

    def large_pod_decided(self, uid: str) -> None:
        """Try a large pod again whose verdicts are known now."""
        pod_class = self._preparing.pop(uid, None)
        if pod_class is not None:
            pod_class.prepared = True
            self.queue.retry(pod_class)

    def _may_try(self, namespace: str) -> bool:
        return self._turn.now >= self._paused.get(namespace, (0, 0.0))[1] and self._has_share(namespace)

    def _has_share(self, namespace: str) -> bool:
        """Return whether a namespace has a slot left.

        While pods of other namespaces wait, a namespace gets a share of the releases that are written at a time, and a
        share of the released pods that are not bound yet: every node is a slot for one. While the scheduler does not
        answer, it gets one.
        """
        options = self.options
        unbound = self.releases.by_namespace[namespace]
        if self.releases.unanswered:
            return not unbound
        if len(self.queue.namespaces) == 1:
            return True
        nodes = len(self._facts.nodes)
        writing = self.releases.unwritten[namespace]
        return unbound < max(options.share * nodes, 1) and writing < max(options.share * options.parallel, 1)

    def _choose(self, waiting_pod: PodFacts, pod_class: PodClass) -> tuple[str, ...]:
        """Return the best node, or several for a pod with claims, which are then assumed; empty if there is none."""
        pod = waiting_pod.pod
        try:
            candidates = self._candidates(waiting_pod, pod_class)
            if not pod.uses_claims:
                return next(((name,) for name in candidates if self._assumptions.assume(pod, name).admits), ())
            if problem := claim_preference(pod)[1]:
                self._turn.emit(WriteEvent(waiting_pod.uid, reason_codes.UNKNOWN_CLAIM_PREFERENCE, problem))
            chosen_nodes = self.claims.choose(pod, candidates, pod_class.drop)
            return self._assumptions.assume_any(pod, self._nameable(waiting_pod, chosen_nodes))
        except AlignError as error:
            self._turn.emit(
                WriteEvent(waiting_pod.uid, reason_codes.INVALID_POD, f"no kubelet can decide on the pod: {error}")
            )
            return ()

    def _candidates(self, waiting_pod: PodFacts, pod_class: PodClass) -> Iterator[str]:
        """Yield the nodes that may be chosen, the best first, and then the nodes that the pod should avoid."""
        avoided_nodes = self._avoided.of(waiting_pod, now=self._turn.now)
        last: list[str] = []
        for name in self.queue.candidates(pod_class, self._rank):
            if name in avoided_nodes:
                last.append(name)
            elif self._may_choose(waiting_pod, pod_class, name):
                yield name
        for name in last:
            if self._may_choose(waiting_pod, pod_class, name):
                yield name

    def _nameable(self, facts: PodFacts, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes that can be named together: in terms of the pod, by host names that only they have."""
        if len(nodes) < 2 or not facts.has_terms:
            return nodes
        return self._facts.unique_host_names(nodes) or nodes[:1]

    def _rank(self, pod: Pod, names: Collection[str]) -> list[Rank]:
        record = self._cluster.record
        if len(names) <= MAX_CHANGED:
            names = [name for name in names if self._assumptions.has_room(name, pod)]
        ranked_hosts = self._assumptions.rank(pod, names)
        return [
            (record(ranked_host.host) is None, -ranked_host.score.total, ranked_host.host)
            for ranked_host in ranked_hosts
        ]

    def _may_choose(self, waiting_pod: PodFacts, pod_class: PodClass, name: str) -> bool:
        if not self._assumptions.has_room(name, waiting_pod.pod):
            pod_class.drop(name)
            return False
        if not self._kept_nodes.keeps_out(name, waiting_pod.pod, waiting_pod.order):
            return True
        self._kept_nodes.kept_out(name, waiting_pod.pod)
        return False

    # Gangs

    def _try_gang(self, gang: WaitingGang, pod_class: PodClass) -> bool:
        """Release all pods of a gang if they fit together; return whether they do."""
        try:
            placed_count = self._count_placed(self._facts.gang(gang.key))
            choice = self._gang_placement.choose(gang, placed_count=placed_count, now=self._turn.now)
        except AlignError as error:
            choice = GangChoice(problem=f"gang {gang.key}: no kubelet can decide on its pods: {error}")
            for member in gang.members:
                self._cluster.forget(member.uid)
        if choice.problem:
            self.queue.block(pod_class)
            for member in gang.members:
                self._turn.emit(WriteEvent(member.uid, reason_codes.NO_NODE, choice.problem, choice.fitting))
            return False
        self.queue.unblock(pod_class)
        self.queue.remove(gang.uid)
        self._ready.pop(gang.key, None)
        members = {member.uid: member for member in gang.members}
        last_released: dict[str, str] = {}  #: node → uid of the last pod that is released there
        for pod, host in choice.bindings:
            after = last_released.get(host, "") if choice.in_turn else ""
            self._plan_release(members.pop(pod.uid), (host,), after=after)
            last_released[host] = pod.uid
        for member in members.values():  # more than the gang needs
            self._wait(member)
        details = {"group": str(gang.key), "pods": len(choice.bindings), "nodes": len(last_released)}
        self._turn.emit(Report("gang released", details=details))
        self._write_planned()
        return True

    # Releases

    def _plan_release(self, facts: PodFacts, nodes: tuple[str, ...], *, after: str = "") -> None:
        self._stop_waiting(facts.uid)
        self._pods[facts.uid] = facts
        self._turn.emit(*self._kept_nodes.waits_no_longer(facts.uid))
        self.releases.add(PodRelease(facts, nodes, self._turn.now, after=after))
        if facts.pod.uses_claims:
            self.claims.released(facts.pod, nodes)
        self.queue.nodes_changed(nodes, taken=True)

    @contextmanager
    def _isolated(self, step: str, waiting_pod: PodFacts) -> Iterator[None]:
        """Let a step fail for one pod or gang alone, and try it again later."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self.step_failed(step, waiting_pod.uid, error, waiting_pod)

    def step_failed(self, step: str, uid: str, error: Exception, waiting_pod: PodFacts | None = None) -> None:
        """Undo everything for a pod or gang whose step has failed, and try it again later."""
        waiting_pod = waiting_pod or self._pods.get(uid)
        pods = waiting_pod.members if isinstance(waiting_pod, WaitingGang) else (waiting_pod,) if waiting_pod else ()
        uids = [facts.uid for facts in pods] or ([uid] if step == QUEUE else [])  # others are bound or gone
        seconds = self._count_failure(uids[0]) if uids else 0.0
        name = waiting_pod.full_name if waiting_pod else uid
        self._turn.failed(step, name, error, seconds)
        undo: list[Callable[[], object]] = [partial(self.queue.remove, uid)]
        for member in uids:
            undo += [
                partial(undo_step, member)
                for undo_step in (self._stop_waiting, self._take_back, self._assumptions.forget)
            ]
            undo.append(partial(self._cluster.forget, member))  # also where only a part of the step was done
            undo.append(partial(self._try_later, member, seconds, error))
        for undo_step in undo:
            with self._turn.isolated(step, name):
                undo_step()

    def _take_back(self, uid: str) -> None:
        if (release := self._end_release(uid, bound=False)) is not None:
            self._undo(release)

    def _try_later(self, uid: str, seconds: float, error: Exception) -> None:
        current = self._facts.pod(uid)
        if current is None or current.state is WaitState.GATED:
            self._refused[uid] = self._turn.now + seconds
            message = f"alignup failed on the pod, and tries again: {type(error).__name__}: {error}"
            self._turn.emit(WriteEvent(uid, reason_codes.INTERNAL_ERROR, message))

    @contextmanager
    def _isolated_namespace(self, namespace: str) -> Iterator[None]:
        """Let the search for the next pod fail for one namespace alone, and look there again later."""
        count, until = self._paused.get(namespace, (0, 0.0))
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            seconds = back_off(count + 1)
            self._paused[namespace] = (count + 1, self._turn.now + seconds)
            self._turn.failed("place", f"namespace {namespace}", error, seconds)
        else:
            if until <= self._turn.now:
                self._paused.pop(namespace, None)

    def _count_failure(self, uid: str) -> float:
        """Return the seconds after which to try again."""
        failures = self._failures[uid] = self._failures.get(uid, 0) + 1
        return back_off(failures)

    def _write_planned(self) -> None:
        """Write releases that are planned, as many as may be written at a time."""
        for release in self.releases.planned:
            if self.releases.writing >= self.options.parallel:
                break
            if not release.after:
                self.releases.start(release)
                self._steer(release)

    def _steer(self, release: PodRelease) -> None:
        """Steer a pod with markers before its release, unless claims may still tie it to other NUMA nodes."""

        def write(result: Steered) -> None:
            facts, uid = release.facts, release.uid
            if self.releases.get(uid) is not release:
                self._steering.cancel(uid, *release.nodes)  # it was taken back meanwhile
            elif result.problem:
                self.release_failed(uid, ReleaseOutcome.CHANGED, "", None)
                self._refused[uid] = self._turn.now + STEER_SECONDS
            else:
                self._turn.emit(WriteRelease(facts.pod, facts.version, release.nodes, result.text))

        if release.facts.pod.uses_claims or len(release.nodes) > 1:
            write(Steered())
        else:
            self._steering.begin(release.facts, release.nodes[0], write)

    def release_written(self, uid: str) -> None:
        release, now = self.releases.get(uid), self._turn.now
        if release is None:
            return
        wait = now - release.facts.since
        self.releases.written(release, now=now)
        self._node_gone |= not self._exists(release)
        self._failures.pop(uid, None)
        self._report("pod released", release.facts, node=release.node, waited=wait)
        self._turn.emit(ForgetEvents(uid))
        self._write_planned()

    def release_failed(self, uid: str, outcome: ReleaseOutcome, message: str, current: PodFacts | None) -> None:
        """Undo a release that was not written; try again with the *current* pod, if it is still behind the gate."""
        release = self._end_release(uid, bound=False)
        if release is None:
            return
        self._undo(release)
        self._report("release ended", release.facts, outcome=outcome, problem=message, node=release.node)
        if outcome is ReleaseOutcome.REFUSED:
            self._turn.emit(WriteEvent(uid, reason_codes.RELEASE_FAILED, f"cannot release the pod: {message}"))
            self._refused[uid] = self._turn.now + self.options.retry
        elif current is not None and current.state is WaitState.GATED:
            self._wait_again(current)
        self._write_planned()

    def _wait_again(self, facts: PodFacts) -> None:
        self._kept_nodes.waits(facts)
        self._wait(facts)

    def _end_release(self, uid: str, *, bound: bool) -> PodRelease | None:
        release = self.releases.end(uid)
        if release is not None:
            self._write_followers(uid, bound=bound)
        return release

    def _write_followers(self, uid: str, *, bound: bool) -> None:
        """Let the release follow that waits until a pod of the same gang is bound; if it is not, take it back."""
        for release in self.releases.planned:
            if release.after == uid:
                if bound:
                    release.after = ""
                else:
                    self.releases.end(release.uid)
                    self._write_followers(release.uid, bound=False)
                    self._undo(release)
                    current = self._pods.get(release.uid, release.facts)
                    if current.state is WaitState.GATED:
                        self._wait_again(current)

    def _undo(self, release: PodRelease) -> None:
        self._steering.cancel(release.uid, *release.nodes)
        self._assumptions.forget(release.uid)
        self._settle(self.claims.forget(release.uid))
        self.queue.nodes_changed(release.nodes)
        if release.facts.group:
            self.group_changed(release.facts.group)

    def close(self) -> None:
        """Forget all releases: the next process to decide counts on the written releases."""
        for release in self.releases:
            self._assumptions.forget(release.uid)

    def check(self) -> None:
        """Give up releases that have failed, and try refused ones again."""
        now = self._turn.now
        self._settle(self.claims.check(now))
        self._avoided.forget_old(now)
        releases = list(self.releases) if self._node_gone else self.releases.overdue(now)
        self._node_gone = False
        for release in releases:
            current = self._pods.get(release.uid, release.facts)
            outcome = self.releases.failure(release, current, now=now, node_exists=self._exists(release))
            if outcome is not None and not self._is_binding(release.uid):
                with self._isolated("release", current):
                    self._give_up(release, current, outcome)
        for uid in [uid for uid, at in self._refused.items() if at <= now]:
            del self._refused[uid]
            self._turn.emit(ReadPod(uid))

    def _exists(self, release: PodRelease) -> bool:
        return any(name in self._facts.nodes for name in release.nodes)

    def _give_up(self, release: PodRelease, current: PodFacts, outcome: ReleaseOutcome) -> None:
        """Forget the prediction, write an event, and replace the pod if that is allowed."""
        self.releases.give_up(release, outcome)
        self._write_followers(release.uid, bound=False)
        self._undo(release)
        self._avoided.add(current, release.nodes, now=self._turn.now)
        replaced = self.options.replace_stuck and bool(current.controllers)
        self._report("release given up", current, outcome=outcome, replaced=replaced, node=release.node)
        message = describe_failure(release, current.problem, outcome, replaced=replaced)
        evicted_uids = [release.uid] if replaced else []
        if current.group is not None:
            gang = self._facts.gang(current.group)
            message += f"; {len(gang.running)} of {gang.minimum} pods of gang {current.group} are bound"
            if replaced and 0 < len(gang.running) < gang.minimum:
                message += ", and replaced as well"
                evicted_uids += gang.replaceable
        self._turn.emit(WriteEvent(release.uid, reason_codes.NOT_SCHEDULED, message), *map(EvictPod, evicted_uids))

    def explain_next(self) -> None:
        """Say why no node admits the pods of one class, and which gangs lack pods."""
        now = self._turn.now
        for key in [key for key, due in self.incomplete.items() if due <= now]:
            self.incomplete[key] = float("inf")
            ready = self._ready.get(key, {})
            self._explanations.explain_missing(key, self._count_placed(self._facts.gang(key)) + len(ready), ready)
        pod_class = self._explanations.next_class()
        if pod_class is not None:
            with self._isolated("explain", self.queue.of_kind(pod_class)[0]):
                self._explanations.explain(pod_class)

    def next_check(self) -> float | None:
        """Return the seconds after which something must be checked although nothing has happened."""
        now = self._turn.now
        checks = [self.releases.next_check(now), self.claims.next_check()]
        checks += [max(at - now, 0.0) for at in (*self._explanations.due(), *self.incomplete.values())]
        checks += [
            max(at - now, 0.1) for at in (*self._refused.values(), *(until for _, until in self._paused.values()))
        ]
        seconds = min((seconds for seconds in checks if seconds is not None), default=None)
        return None if seconds == float("inf") else seconds

    def _knows_scheduler(self, facts: PodFacts) -> bool:
        return (facts.scheduler or DEFAULT_SCHEDULER) in self.options.schedulers

    def _report(self, event: str, facts: PodFacts, **details: object) -> None:
        self._turn.emit(Report(event, facts.uid, facts.full_name, details))
