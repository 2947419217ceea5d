"""The gate controller: chooses nodes for the pods behind the gate, and releases them, in one process of a cluster.

Every waiting pod is tried in its order. The best node that its kubelet, the Node object and the pod's own selectors
allow is assumed, and the pod is released to it in one patch. The scheduler then binds it. A pod that no node admits is
tried again when a node changes that could admit it. The pods of a gang are released together, when all of them fit.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from alignup.align.errors import AlignError, PodError
from alignup.align.workload import Pod
from alignup.gate.admission import DEFAULT_SCHEDULER, SCHEDULERS, has_gate
from alignup.gate.blocked_pods import REASON as NO_NODE
from alignup.gate.blocked_pods import BlockedPods
from alignup.gate.claim_nodes import ClaimNodes
from alignup.gate.gated_gangs import GangChoice, GatedGangs, assume_released, describe_rest
from alignup.gate.metrics import GateMetrics
from alignup.gate.pod_queue import MAX_CHANGED, GatedGang, GatedPod, PodClass, PodQueue, Rank, waiting_order
from alignup.gate.releases import (
    UNBOUND_SECONDS,
    AvoidedNodes,
    PodRelease,
    ReleaseOutcome,
    Releases,
    WrittenRelease,
    controller_uids,
    describe_failure,
    evict_pod,
    host_names,
    nameable_nodes,
    pinned_nodes,
    write_release,
)
from alignup.gate.reservations import Reservations
from alignup.gate.schedulable_nodes import NodeCapacity, NodeFilter
from alignup.kubernetes.api import ApiClient, Change, EventType
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.schedule.claim_alignment import UNKNOWN_PREFERENCE, claim_preference
from alignup.schedule.known_claims import ClaimChange
from alignup.schedule.large_pods import LargePods, is_large
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.pod_events import GATE_COMPONENT, PodEvents
from alignup.schedule.pod_groups import GroupKey, group_of
from alignup.schedule.pod_steering import PodSteering
from alignup.schedule.step_guard import GuardedStep, ServiceStep, StepFailure

FAILED = "InternalError"  #: the reason of events about pods that a step has failed for
INVALID = "InvalidPod"  #: the reason of events about pods that no kubelet can decide on
OTHER_SCHEDULER = "OtherScheduler"  #: the reason of events about pods whose scheduler is not among the known ones
_YIELD_SECONDS = 0.02  #: of deciding, after which other tasks run
_MAX_TRIES = 64  #: of pods, after which other work has its turn
_RESERVE_SECONDS = 1.0  #: between looking for pods that have waited long, after there was none
_STALE_SECONDS = 1.0  #: between checks while the API server is not followed

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    parallel: int = 32  #: releases that are written at the same time
    patience: float = 60.0  #: seconds after which a node is kept for a pod that others overtake
    unbound: float = UNBOUND_SECONDS  #: seconds after which a release that is not bound gives its slot back
    share: float = 0.5  #: of all slots that one namespace may have while pods of others wait
    schedulers: frozenset[str] = SCHEDULERS  #: those that pods are released to
    retry: float = 10.0  #: seconds after a release that the API server did not accept
    avoid: float = 600.0  #: seconds for which pods of a controller avoid a node where one was not scheduled
    replace_stuck: bool = False  #: whether to evict released pods that are not scheduled and will be created again


class GateController:
    """The controller of one process; :meth:`run` may be called again after it was cancelled."""

    def __init__(
        self,
        client: ApiClient,
        live: LiveCluster,
        *,
        metrics: GateMetrics | None = None,
        options: GateOptions | None = None,
        steering: PodSteering | None = None,
    ) -> None:
        self.options = options or GateOptions()
        self._steering = steering  #: ``None``: pods go where their kubelets put them
        self._client, self._live, self._metrics = client, live, metrics or GateMetrics()
        self._clock = client.timing.clock
        self._running = False
        self._wake = asyncio.Event()
        self._reset()
        live.on_change(self._hosts_changed)
        live.on_claim_change(self._claims_changed)
        live.pod_groups.subscribe(self._group_changed)
        states = {
            "queued": lambda: len(self.queue) - self._count_blocked(),
            "blocked": self._count_blocked,
            "other_gates": lambda: len(self._other_gates),
            "released": lambda: len(self.releases),
        }
        self._metrics.follow(states, reserved_nodes=lambda: len(self.reservations))

    def _reset(self) -> None:
        options = self.options
        self.nodes = NodeFilter(self._live.nodes)
        self.queue = PodQueue(self.nodes)
        self.releases = Releases(seconds=options.unbound)
        self._capacity = NodeCapacity(self._read)
        self.reservations = Reservations(self._live, self._capacity)
        self._avoided = AvoidedNodes(options.avoid)
        self._events = PodEvents(self._client, GATE_COMPONENT)
        self.claim_nodes = ClaimNodes(self._live, self._claims_settled, self._clock)
        self._blocked = BlockedPods(self.claim_nodes, self._events, self.reservations, self.queue, self._clock)
        self.gangs = GatedGangs(
            self._live, self.queue, self.releases, self._events, add_alone=self._add_alone, clock=self._clock
        )
        self._slots = asyncio.Semaphore(options.parallel)  #: for releases that are being written
        self._writing: Counter[str] = Counter()  #: how many of them, by namespace
        self._other_gates: set[str] = set()  #: uids of pods that have other gates as well
        self._first_seen: dict[str, float] = {}
        self._refused: dict[str, tuple[ApiPod, float]] = {}  #: uid → pod, and when to try again to release it
        self._tasks: set[asyncio.Task[None]] = set()
        self._large_pods = LargePods(self._live.cluster)
        self._preparing: set[PodClass] = set()  #: of large pods, while a thread decides on them
        self._node_gone = False  #: whether pods may have been released to a node that is gone since the last check
        self._reserve_at = 0.0  #: when to look again for pods that have waited long

    async def run(self) -> None:
        """Release pods until cancelled."""
        await self._live.ready.wait()
        self._reset()
        self._running = True
        self._start(partial(self._live.guard.keep_running, "events of the gate", self._events.run), "events")
        stops = [self._live.nodes.subscribe(self._node_changed), self._live.pods.subscribe(self._pod_changed)]
        try:
            while True:
                self._wake.clear()
                if await self._place_pods():
                    self._wake.set()  # there are more
                with self._live.guard.guarded(ServiceStep.EXPLAIN, "blocked pods"):
                    self._blocked.explain_next()
                    self.gangs.explain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_check()):
                        await self._wake.wait()
                await asyncio.sleep(0)
                self.check_releases()
        finally:
            self._running = False
            for stop in stops:
                stop()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for release in self.releases:  # the next leader counts on them
                self._live.forget(release.uid)

    def notify(self) -> None:
        """Look again soon: time has passed, or something has changed."""
        self._wake.set()

    def describe_kept(self, node: str) -> str:
        """Return which pod a node is kept for, in words; empty: none."""
        return self.reservations.describe(node)

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str, *pods: ApiPod) -> None:
        """Start a task; if it fails, *pods* are tried again later."""

        async def run() -> None:
            with self._guarded(ServiceStep.RELEASE, name, *pods):
                await work()

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _guarded(self, step: ServiceStep, name: str, *pods: ApiPod) -> GuardedStep:
        """Let a step fail for *pods* alone, and try them again later."""
        return self._live.guard.guarded(step, name, undo=partial(self._put_off, pods))

    def _put_off(self, pods: Iterable[ApiPod], failure: StepFailure) -> None:
        """Undo everything for pods whose step has failed, and let those that are still gated wait for the next try."""
        for pod in pods:
            uid, current = pod.metadata.uid, self._live.find_pod(pod.metadata.namespace, pod.metadata.name)
            self._stop_waiting(uid)
            self._undo(self.releases.end(uid) or PodRelease(pod, {}, self._clock()))
            if current is not None and current.metadata.uid == uid and has_gate(current):
                self._live.cluster.forget(uid)  # also where only a part of the step was done
                self._refused[uid] = (current, self._clock() + failure.seconds)
                self._events.note(current, FAILED, f"alignup failed on the pod, and tries again: {failure.text}")

    # Changes of the cluster

    def _hosts_changed(self, names: Collection[str]) -> None:
        if self._running:
            taken = self._live.taken
            self.queue.nodes_changed([name for name in names if name in taken], taken=True)
            if len(taken) < len(names):
                self.queue.nodes_changed(name for name in names if name not in taken)
                self._wake.set()

    def _claims_changed(self, change: ClaimChange) -> None:
        if not self._running:
            return
        self.claim_nodes.check()
        if change.classes:
            for waiting in tuple(self.queue):  # what they request may be served by claims now
                for pod in waiting.api_pods:
                    self._wait(pod)
        if change.object is not None:  # nodes without devices for its pods were left out
            namespace = change.object[0]
            self.queue.rank_again(lambda each: each.namespace == namespace and each.pod.uses_claims)
            self._wake.set()

    def _claims_settled(self, nodes: Iterable[str]) -> None:
        """Try pods with claims again on nodes where claims of an earlier pod have devices now."""
        self.queue.nodes_changed(nodes)
        self._wake.set()

    def _node_changed(self, change: Change[ApiNode]) -> None:
        node = change.object
        name, old = node.metadata.name, change.old
        if change.type is EventType.MODIFIED and old is not None:
            same_status = old.status.allocatable == node.status.allocatable
            if same_status and (old.metadata.labels, old.spec) == (node.metadata.labels, node.spec):
                return  # a heartbeat: nothing has changed that the choice of a node depends on
        if change.type is EventType.DELETED:
            self.nodes.remove(name)
            self._node_gone = True
        else:
            self.nodes.put(node)
        self.reservations.drop_node(name)
        self._capacity.forget_node(name)
        self.queue.nodes_changed((name,))
        self._wake.set()

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod = change.object
        uid, node = pod.metadata.uid, pod.spec.node_name
        if change.type is EventType.DELETED or pod.finished:
            self._pod_gone(uid, node)
        elif node:
            self._pod_bound(pod, node)
        elif not has_gate(pod) or pod.metadata.deletion_timestamp is not None:
            self._stop_waiting(uid)
            nodes = pinned_nodes(pod)
            if nodes and self._knows_scheduler(pod) and uid not in self.releases and uid not in self.releases.given_up:
                self._adopt(pod, nodes)
            self._wake.set()
        elif uid not in self.releases:
            self._wait(pod)
        if key := group_of(pod):
            self._group_changed(key)

    def _group_changed(self, key: GroupKey) -> None:
        if self._running:
            self.gangs.update(key)
            self._wake.set()

    def _pod_gone(self, uid: str, node: str) -> None:
        self._stop_waiting(uid)
        self._first_seen.pop(uid, None)
        release = self.releases.end(uid)
        if release is not None and not node:
            self._cancel_steering(release)
            self._live.forget(uid)
            self._metrics.ended(ReleaseOutcome.DELETED)
        self.releases.forget(uid)
        self._events.forget(uid)
        self._capacity.remove_pod(uid)
        self.reservations.forget_pod(uid)
        self.claim_nodes.forget(uid)
        gone = (node,) if node else tuple(release.nodes) if release else ()
        if gone:
            self.queue.nodes_changed(gone)
            self._wake.set()

    def _pod_bound(self, pod: ApiPod, node: str) -> None:
        uid = pod.metadata.uid
        self._stop_waiting(uid)
        self._first_seen.pop(uid, None)
        kept = self._live.find_pod(pod.metadata.namespace, pod.metadata.name)
        if self._capacity.put_pod(kept or pod, node):  # which is smaller than the one that came
            self.queue.nodes_changed((node,))
            self._wake.set()
        self.claim_nodes.bound(pod)
        outcome = self.releases.bound(uid, node)
        if outcome is not None:
            self._metrics.ended(outcome)
            if outcome is not ReleaseOutcome.BOUND:
                _log.warning(
                    "released pod bound otherwise", pod=pod.metadata.full_name, uid=uid, node=node, outcome=str(outcome)
                )

    def _wait(self, pod: ApiPod) -> None:
        """Put a pod into the queue, unless it has other gates as well: they may take long."""
        with self._guarded(ServiceStep.QUEUE, pod.metadata.full_name, pod):
            self._put(pod)

    def _put(self, pod: ApiPod) -> None:
        uid = pod.metadata.uid
        self.queue.remove(uid)
        self.gangs.remove(uid)
        self._other_gates.discard(uid)
        self._refused.pop(uid, None)
        since = self._first_seen.setdefault(uid, self._clock())
        if len(pod.spec.scheduling_gates) > 1:
            self._other_gates.add(uid)
            return
        if not self._knows_scheduler(pod):
            known = ", ".join(sorted(self.options.schedulers))
            message = f"pods are released to {known} only; the scheduler of the pod is {pod.spec.scheduler_name}"
            self._events.note(pod, OTHER_SCHEDULER, message)
            return
        try:
            read = self._live.read(pod)
        except PodError as error:
            self._events.note(pod, INVALID, f"no kubelet can decide on the pod: {error}")
            return
        waiting = GatedPod(waiting_order(pod), pod, read, since)
        if not self.gangs.put(waiting):
            self._add_alone(waiting)
        self._wake.set()

    def _add_alone(self, waiting: GatedPod) -> None:
        pod_class = self.queue.add(waiting)
        if pod_class in self.queue.blocked:
            self._blocked.joined(waiting, pod_class)

    def _stop_waiting(self, uid: str) -> None:
        self.queue.remove(uid)
        self.gangs.remove(uid)
        self._other_gates.discard(uid)
        self._refused.pop(uid, None)
        self._end_reservation(uid)

    def _end_reservation(self, uid: str) -> None:
        kept = self.reservations.end(uid)
        if kept:
            self.queue.nodes_changed(kept)
            self._wake.set()

    def _adopt(self, pod: ApiPod, nodes: tuple[str, ...]) -> None:
        """Count on a pod that another process, or this one before a restart, has released."""
        release = PodRelease(pod, host_names(nodes, self._live.nodes), self._clock(), done=True)
        self.releases.add(release)
        self._capacity.put_pod(pod, *nodes)
        read = self._read(pod)
        if read is None or not assume_released(self._live, pod, read, nodes):
            _log.warning(
                "the kubelet will not admit a released pod", pod=release.pod_name, uid=release.uid, node=release.node
            )
        if read is not None and read.uses_claims:
            self.claim_nodes.released(read, nodes)
        self.queue.nodes_changed(nodes, taken=True)

    # Decisions

    async def _place_pods(self) -> bool:
        """Try the waiting pods in their order for a while; return whether there are more to try."""
        turn = self._clock()
        self._reserve()
        for _ in range(_MAX_TRIES):
            await self._slots.acquire()
            released = self.try_next()
            if not released:
                self._slots.release()
            if released is None:
                return False
            if self._clock() - turn >= _YIELD_SECONDS:
                break
        return True

    def try_next(self) -> bool | None:
        """Try the next pod; return whether it is released, which needs a slot, or ``None`` if there is none to try."""
        head = None if self._live.problems else self.queue.next_head(self._has_share)
        if head is None:
            return None
        pod_class, waiting = head
        with self._guarded(ServiceStep.PLACE, waiting.full_name, *waiting.api_pods):
            return self._try(waiting, pod_class)
        return False

    def _try(self, waiting: GatedPod | GatedGang, pod_class: PodClass) -> bool:
        if is_large(pod_class.pod) and not pod_class.prepared:
            self.queue.block(pod_class)
            self._start(partial(self._prepare, pod_class), waiting.full_name, *waiting.api_pods)
            return False
        pod_class.prepared = False
        if isinstance(waiting, GatedGang):
            return self._try_gang(waiting, pod_class)
        nodes = self._choose(waiting, pod_class)
        if not nodes:
            self.queue.block(pod_class)
            self._blocked.add(pod_class)
            return False
        self.queue.unblock(pod_class)
        self._start_release(waiting, nodes)
        return True

    def _try_gang(self, gang: GatedGang, pod_class: PodClass) -> bool:
        """Release all pods of a gang if they fit together; return whether they do."""
        try:
            choice = self.gangs.choose(gang, self._allowed_nodes, self._capacity)
        except AlignError as error:
            choice = GangChoice(problem=f"gang {gang.key}: no kubelet can decide on its pods: {error}")
            for member in gang.members:
                self._live.cluster.forget(member.uid)
        if choice.problem:
            self.queue.block(pod_class)
            for member in gang.members:
                self._events.note(member.api, NO_NODE, choice.problem, same=choice.fitting)
            return False
        self.queue.unblock(pod_class)
        self.gangs.take(gang)
        kept = self.reservations.end(gang.uid)
        members, before = {member.uid: member for member in gang.members}, dict[str, PodRelease]()
        for number, (pod, host) in enumerate(choice.bindings):
            release = self._add_release(members.pop(pod.uid), (host,))
            earlier = before.get(host) if choice.in_turn else None
            before[host] = release
            work = partial(self._release_in_turn, release, gang.since, earlier, has_slot=not number)
            self._start(work, release.pod_name, release.pod)
        for member in members.values():  # more than the gang needs
            self._wait(member.api)
        self.queue.nodes_changed([name for name in kept if name not in before])
        nodes = len(before)
        _log.info("gang released", group=str(gang.key), pods=len(choice.bindings), nodes=nodes)
        return True

    def _allowed_nodes(self, member: GatedPod, admitting: Collection[str]) -> Collection[str]:
        """Return the nodes that a pod of a gang may be released to, as far as its other pods do not matter.

        Its claims may allow fewer of the *admitting* nodes. No other nodes are chosen anyway.
        """
        allowed = self.nodes.allowed(member.api.spec) - self._avoided.of(member.api, now=self._clock())
        allowed -= {name for name in self.reservations.names if self.reservations.keeps_out(name, member)}
        if member.pod.uses_claims:
            allowed -= {name for name in admitting if name in allowed and self.claim_nodes.refusal(member.pod, name)}
        return frozenset(allowed)

    async def _prepare(self, pod_class: PodClass) -> None:
        """Let a thread decide on a large pod, and try it again then."""
        if pod_class not in self._preparing:
            self._preparing.add(pod_class)
            try:
                await self._large_pods.decide(pod_class.pod)
            finally:
                self._preparing.discard(pod_class)
            pod_class.prepared = True
            self.queue.retry(pod_class)
            self._wake.set()

    def _has_share(self, namespace: str) -> bool:
        """Return whether a namespace has a slot left.

        While pods of other namespaces wait, a namespace gets a share of the releases that are written at a time, and
        of those that are not bound, for which every node is a slot. While the scheduler does not answer, it gets one.
        """
        options = self.options
        unbound = self.releases.by_namespace[namespace]
        if self.releases.unanswered:
            return not unbound
        if len(self.queue.namespaces) == 1:
            return True
        nodes = len(self._live.nodes.objects)
        writing = self._writing[namespace]
        return unbound < max(options.share * nodes, 1) and writing < max(options.share * options.parallel, 1)

    def _choose(self, waiting: GatedPod, pod_class: PodClass) -> tuple[str, ...]:
        """Return the best node, or several for a pod with claims, which are then assumed; empty if there is none."""
        try:
            candidates = self._candidates(waiting, pod_class)
            if not waiting.pod.uses_claims:
                return next(((name,) for name in candidates if self._live.assume(waiting.pod, name).admits), ())
            if problem := claim_preference(waiting.pod)[1]:
                self._events.note(waiting.api, UNKNOWN_PREFERENCE, problem)
            chosen = self.claim_nodes.choose(waiting.pod, candidates, pod_class.drop)
            return self._live.assume_any(waiting.pod, nameable_nodes(waiting.api, chosen, self._live.nodes))
        except AlignError as error:
            self._events.note(waiting.api, INVALID, f"no kubelet can decide on the pod: {error}")
            return ()

    def _candidates(self, waiting: GatedPod, pod_class: PodClass) -> Iterator[str]:
        """Yield the nodes that may be chosen, the best first, and after them those that the pod should avoid."""
        avoided = self._avoided.of(waiting.api, now=self._clock())
        last: list[str] = []
        for name in self.queue.candidates(pod_class, self._rank):
            if name in avoided:
                last.append(name)
            elif self._may_choose(waiting, pod_class, name):
                yield name
        for name in last:
            if self._may_choose(waiting, pod_class, name):
                yield name

    def _rank(self, pod: Pod, names: Collection[str]) -> list[Rank]:
        record = self._live.cluster.record
        if len(names) <= MAX_CHANGED:
            names = [name for name in names if self._has_room(name, pod)]
        return [
            (record(ranked.host) is None, -ranked.score.total, ranked.host) for ranked in self._live.choose(pod, names)
        ]

    def _has_room(self, name: str, pod: Pod) -> bool:
        """Return whether enough is left on a node by its Node object."""
        node = self._live.nodes.get(name)
        return node is not None and not self._capacity.insufficient(node, pod)

    def _may_choose(self, waiting: GatedPod, pod_class: PodClass, name: str) -> bool:
        if not self._has_room(name, waiting.pod):
            pod_class.drop(name)
            return False
        return not self.reservations.keeps_out(name, waiting)

    def _reserve(self) -> None:
        """Keep a node for the first pod that has waited long, and has none; and none for gangs that have changed."""
        now, patience, may_reserve = self._clock(), self.options.patience, self.reservations.may_reserve
        if now < self._reserve_at:
            return
        self._reserve_at = now + _RESERVE_SECONDS
        for uid, holder in self.reservations.holders.items():
            waiting = self.queue.get(uid)
            if waiting is None or waiting.order != holder.order:
                self._end_reservation(uid)
        head = self.queue.first_blocked(lambda pod: now - pod.since >= patience and may_reserve(pod, now=now))
        if head is not None:
            _, first = head
            self._reserve_at = now  # for the next pod
            with self._guarded(ServiceStep.PLACE, first.full_name, *first.api_pods):
                self._reserve_for(first, now)

    def _reserve_for(self, first: GatedPod | GatedGang, now: float) -> None:
        members = self.gangs.needed(first) if isinstance(first, GatedGang) else (first,)
        nodes = self.reservations.reserve(first, members, self._may_use, now=now)
        if nodes:
            waited = round(now - first.since)
            _log.info("nodes reserved", pod=first.full_name, uid=first.uid, nodes=",".join(nodes), waited=waited)
            self.queue.nodes_changed(nodes, taken=True)

    def _may_use(self, waiting: GatedPod, name: str) -> bool:
        """Return whether a node could be chosen for a pod if it had no others, and no other claim had devices."""
        if not self.nodes.allows(waiting.api.spec, name):
            return False
        return not waiting.pod.uses_claims or self._live.claim_fit(waiting.pod, name, idle=True).possible

    # Releases

    def _start_release(self, waiting: GatedPod, nodes: tuple[str, ...]) -> None:
        release = self._add_release(waiting, nodes)
        self._start(partial(self._release, release, since=waiting.since), release.pod_name, release.pod)

    def _add_release(self, waiting: GatedPod, nodes: tuple[str, ...]) -> PodRelease:
        self._stop_waiting(waiting.uid)
        self._writing[waiting.api.metadata.namespace] += 1
        release = PodRelease(waiting.api, host_names(nodes, self._live.nodes), self._clock())
        self.releases.add(release)
        decoded = None if waiting.pod.class_resources else waiting.pod  # some of them may be served without a claim
        self._capacity.put_pod(waiting.api, *nodes, decoded=decoded)
        for node in nodes:
            self.reservations.take(node, waiting)
        if waiting.pod.uses_claims:
            self.claim_nodes.released(waiting.pod, nodes)
        self.queue.nodes_changed(nodes, taken=True)
        return release

    async def _release_in_turn(
        self, release: PodRelease, since: float, before: PodRelease | None, *, has_slot: bool
    ) -> None:
        """Write a release of a gang, after the one *before* it on its node is bound, if there is one."""
        if before is not None:
            await before.ended.wait()
            earlier = self._live.find_pod(before.pod.metadata.namespace, before.pod.metadata.name)
            if earlier is not None and not earlier.spec.node_name and self.releases.end(release.uid) is not None:
                self._writing[release.namespace] -= 1
                self._undo(release)
                self._wait(release.pod)
                return
        if not has_slot:
            await self._slots.acquire()
        await self._release(release, since=since)

    async def _release(self, release: PodRelease, *, since: float) -> None:
        """Write a release whose slot is acquired, and release the slot; the pod has waited *since* then."""
        try:
            written = await self._steer(release) or await write_release(self._client, release)
        finally:
            self._slots.release()
            self._writing[release.namespace] -= 1
        now = self._clock()
        if written.failure is None:
            waited = now - since
            self.releases.confirm(release, now=now)
            self._node_gone |= not self._exists(release)
            _log.info("pod released", pod=release.pod_name, uid=release.uid, node=release.node, waited=round(waited, 3))
            self._metrics.released(seconds=waited)
            self._events.forget(release.uid)
            self._wake.set()
        elif self.releases.end(release.uid) is not None:
            self._undo(release)
            self._metrics.ended(written.failure)
            if written.failure is ReleaseOutcome.REFUSED:
                _log.warning("release refused", pod=release.pod_name, uid=release.uid, problem=written.error)
                self._events.note(release.pod, "ReleaseFailed", f"cannot release the pod: {written.error}")
                self._refused[release.uid] = (release.pod, now + self.options.retry)
            elif written.current is not None and has_gate(written.current) and not written.current.spec.node_name:
                self._wait(written.current)

    async def _steer(self, release: PodRelease) -> WrittenRelease | None:
        """Steer a pod with markers before its release, unless devices of claims may still tie it to other NUMA nodes.

        Return that it must be tried again if it cannot be released now.
        """
        pod = self._read(release.pod) if self._steering is not None else None
        if self._steering is None or pod is None or pod.uses_claims or len(release.nodes) > 1:
            return None
        steered = await self._steering.begin(release.pod, pod, release.node)
        release.steered = steered.text
        return WrittenRelease(ReleaseOutcome.CHANGED, release.pod) if steered.problem else None

    def _cancel_steering(self, release: PodRelease) -> None:
        if self._steering is not None and self._steering.holds(release.uid, release.node):
            self._start(partial(self._steering.cancel, release.uid, release.node), release.pod_name)

    def _undo(self, release: PodRelease) -> None:
        self._cancel_steering(release)
        self._live.forget(release.uid)
        self._capacity.remove_pod(release.uid)
        self.reservations.forget_pod(release.uid)
        self.claim_nodes.forget(release.uid)
        self.queue.nodes_changed(release.nodes)
        self._wake.set()

    def check_releases(self) -> None:
        """Give up releases that have failed, and try refused ones again."""
        now = self._clock()
        self.claim_nodes.check()
        releases: Iterable[PodRelease] = self.releases if self._node_gone else self.releases.overdue(now)
        self._node_gone = False
        for release in releases:
            metadata = release.pod.metadata
            current = self._live.find_pod(metadata.namespace, metadata.name)
            outcome = self.releases.failure(release, current, now=now, node_exists=self._exists(release))
            if outcome is not None:
                with self._guarded(ServiceStep.RELEASE, release.pod_name):
                    self._give_up(release, current or release.pod, outcome)
        for pod, at in tuple(self._refused.values()):
            if at <= now:
                self._wait(pod)

    def _exists(self, release: PodRelease) -> bool:
        return any(self._live.nodes.get(name) is not None for name in release.nodes)

    def _give_up(self, release: PodRelease, current: ApiPod, outcome: ReleaseOutcome) -> None:
        """Forget the prediction, write an event, and replace the pod if that is allowed."""
        self.releases.give_up(release, outcome)
        self._undo(release)
        self._metrics.ended(outcome)
        self._avoided.add(current, release.nodes, now=self._clock())
        replaced = self.options.replace_stuck and bool(controller_uids(current))
        ids = {"pod": release.pod_name, "uid": release.uid, "node": release.node}
        _log.warning("release given up", **ids, outcome=str(outcome), replaced=replaced)
        message = describe_failure(release, current, outcome, replaced=replaced)
        evicted = [current] if replaced else []
        if (key := group_of(current)) is not None:
            text, rest = describe_rest(key, self._live.pod_groups.members(key), replaced=replaced)
            message, evicted = message + text, [*evicted, *rest]
        self._events.note(current, "NotScheduled", message)
        for pod in evicted:
            self._start(partial(evict_pod, self._client, pod), pod.metadata.full_name)

    # Helpers

    def _count_blocked(self) -> int:
        return sum(len(self.queue.of_kind(pod_class)) for pod_class in self.queue.blocked)

    def _knows_scheduler(self, pod: ApiPod) -> bool:
        return (pod.spec.scheduler_name or DEFAULT_SCHEDULER) in self.options.schedulers

    def _read(self, pod: ApiPod) -> Pod | None:
        try:
            return self._live.read(pod)
        except PodError:
            return None

    def _next_check(self) -> float | None:
        """Return the seconds after which something must be checked although nothing has changed."""
        now = self._clock()
        if self._live.problems:
            return _STALE_SECONDS
        checks = [self.releases.next_check(now), self._blocked.next_check(), self.claim_nodes.next_check()]
        checks.append(self.gangs.next_check())
        checks += [max(at - now, 0.1) for _, at in self._refused.values()]
        checks += [max(self._reserve_at - now, 0.1)] if self.queue.blocked else []
        return min((seconds for seconds in checks if seconds is not None), default=None)
