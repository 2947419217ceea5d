"""Wake-ups: pods that were rejected before are tried again when a node has room for them.

kube-scheduler sets a pod aside that an extender rejected, until something happens in the cluster that it watches. A new
HostState is nothing of that kind. The smallest event that makes it try a pod again is a change of that pod, so the pod
gets an annotation. Nodes change one by one, and each wakes at most one pod: the most important one that it admits.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import structlog

from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.kubernetes.api import PODS, ApiClient, Change, EventType
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.instructions import AwaitRoom, Instruction, KeepNode
from alignup.placement.wait_queue import WaitQueue
from alignup.schedule.large_pods import LargePods
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.step_guard import GuardedStep, ServiceStep, StepFailure

ANNOTATION = "alignup.dev/room-found"
SWEEP_SECONDS = 30.0  #: between looking for room for all waiting pods, since a woken pod need not take the room
AGAIN_SECONDS = 5.0  #: before a pod is woken again
MAX_PER_SWEEP = 64

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class RejectedPod:
    api_pod: ApiPod
    pod: Pod
    nodes: frozenset[str]  #: that the scheduler asked about
    woken: float = float("-inf")  #: when, by the clock of the client


class WakeUp:
    def __init__(self, client: ApiClient, live: LiveCluster, large_pods: LargePods) -> None:
        self._client, self._live, self._large_pods, self._clock = client, live, large_pods, client.timing.clock
        self._waiting: WaitQueue[None, RejectedPod] = WaitQueue()  #: the highest priority first, then the oldest
        self._nodes: tuple[tuple[str, ...], frozenset[str]] = ((), frozenset())  #: of the last pod, to be shared
        self._changed: dict[str, None] = {}
        self._wanted = asyncio.Event()
        self.woken = 0
        live.on_change(self._note)
        live.pods.subscribe(self._pod_changed)
        live.on_instruction(self._carry_out)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def rejected(self, pod: ApiPod, nodes: Collection[str]) -> None:
        """Let *pod* wait, for which none of *nodes* was offered."""
        uid = pod.metadata.uid
        if self._nodes[0] != tuple(nodes):
            self._nodes = (tuple(nodes), frozenset(nodes))
        known = self._waiting.get(uid)
        try:
            waiting = RejectedPod(pod, self._live.read(pod), self._nodes[1])
        except PodError:
            return
        waiting.woken = known.woken if known else waiting.woken
        self._waiting.put(uid, waiting, kind=None, order=(-(waiting.pod.priority or 0),))

    def _carry_out(self, instruction: Instruction) -> None:
        """Let pods wait for nodes as well that are kept for them, or where they have a place."""
        match instruction:
            case KeepNode(node, pods=pods):
                for pod in pods:
                    self._await_room(pod.uid, (node,))
            case AwaitRoom(uid, nodes):
                self._await_room(uid, nodes)

    def _await_room(self, uid: str, nodes: tuple[str, ...]) -> None:
        api_pod = self._live.find_by_uid(uid)
        if api_pod is not None and not api_pod.spec.scheduling_gates:
            rejected = self._waiting.get(uid)
            self.rejected(api_pod, {*(rejected.nodes if rejected else ()), *nodes})

    def scheduled(self, uid: str) -> None:
        self._waiting.remove(uid)

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        """Forget pods that wait no longer: bound by others, ended, or deleted before a node had room."""
        pod = change.object
        if change.type is EventType.DELETED or pod.spec.node_name or pod.finished:
            self.scheduled(pod.metadata.uid)

    async def run(self) -> None:
        """Wake pods until cancelled."""
        while True:
            try:
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                for waiting in islice(self._waiting, MAX_PER_SWEEP):
                    with self._guarded(waiting):
                        await self._large_pods.decide(waiting.pod)
                        nodes = waiting.nodes - self._live.scheduling.refusals(waiting.pod).keys()
                        if self._may_wake(waiting) and (best := self._live.choose(waiting.pod, nodes, limit=1)):
                            await self._wake_all(waiting, best[0].host)
                continue
            self._wanted.clear()
            changed, self._changed = self._changed, {}
            for node in changed:
                await self._wake_first(node)

    def _note(self, nodes: Collection[str]) -> None:
        if self._waiting:
            self._changed.update(dict.fromkeys(nodes))
            self._wanted.set()

    async def _wake_first(self, node: str) -> None:
        """Wake the first pod that *node* admits."""
        for waiting in self._waiting:
            if node not in waiting.nodes or not self._may_wake(waiting):
                continue
            with self._guarded(waiting):
                await self._large_pods.decide(waiting.pod, (node,))
                admits = self._live.verdict(waiting.pod, node).admits
                keeps_out = self._live.scheduling.keeps_out
                if admits and not keeps_out(node, waiting.pod) and await self._wake_all(waiting, node):
                    return

    def _guarded(self, waiting: RejectedPod) -> GuardedStep:
        """Let a wake-up fail for one pod, and try it again later."""

        def put_off(failure: StepFailure) -> None:
            waiting.woken = self._clock() + failure.seconds

        return self._live.guard.guarded(ServiceStep.WAKE, waiting.api_pod.metadata.full_name, undo=put_off)

    async def _wake_all(self, waiting: RejectedPod, node: str) -> bool:
        """Wake a pod, and with it its gang if all of it fits; return whether it does."""
        gangs, facts = self._live.scheduling.gangs, self._live.facts(waiting.api_pod)
        if not self._live.act(gangs.fits, facts):
            return False
        uids = gangs.others_waiting(facts)
        others = [other for uid in uids if (other := self._waiting.get(uid)) and self._may_wake(other)]
        for each in (waiting, *others):
            await self._wake(each, node)
        return True

    def _may_wake(self, waiting: RejectedPod) -> bool:
        return self._clock() >= waiting.woken + AGAIN_SECONDS

    async def _wake(self, waiting: RejectedPod, node: str) -> None:
        metadata = waiting.api_pod.metadata
        known = self._live.find_pod(metadata.namespace, metadata.name) is not None  # else the watch is late
        waiting.woken = self._clock()
        now = datetime.fromtimestamp(self._client.timing.time_of_day(), UTC).isoformat()
        ref = PODS.of(waiting.api_pod, subresource="status")  # annotations may be changed there, the spec may not
        try:
            await self._client.patch(ref, {"metadata": {"uid": metadata.uid, "annotations": {ANNOTATION: now}}})
        except ApiError as error:
            _log.warning("cannot wake a pod", pod=metadata.full_name, uid=metadata.uid, problem=str(error))
            if not known:
                self.scheduled(metadata.uid)
            return
        self.woken += 1
        _log.info("pod woken", pod=metadata.full_name, uid=metadata.uid, node=node)
