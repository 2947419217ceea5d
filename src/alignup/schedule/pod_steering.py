"""Steering of pods that request ``alignup.dev/numa``: the NUMA node of each, and the instruction to its observer.

A pod that was assumed on a node, and is about to be bound, is steered in these steps:

    choose a NUMA node → write the SteeringInstruction → wait until it is Ready → predict the pod there → bind it

If the observer does not answer in time, the instruction is cleared. The observer may be gone, and with it the plugin
that offers markers: so for a moment the binding is refused, to be tried again, until the status of the node would tell.
Then the pod is bound all the same. The kubelet may have the markers of one NUMA node or of all. So a pod is steered
only to a NUMA node on which it is admitted in both cases, and no other pod with resources of its own comes to the node
before a report contains it. An instruction that was carried out is left as it is; the next one replaces it.

While the markers of a node may be withdrawn for one pod, another pod with markers is bound there only if it is admitted
with those markers, too. A new leader clears the instructions of the one before.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from weakref import WeakValueDictionary

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import ParseError
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER
from alignup.documents.codec import to_builtins
from alignup.documents.steering import SteeredPod, SteeringInstruction, SteeringPhase, SteeringSpec
from alignup.kubernetes.api import ApiClient, Change, EventType, Informer
from alignup.kubernetes.api.errors import ApiError, ServerFailureError, UnreachableError
from alignup.kubernetes.api.objects import ApiPod
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.placement.steered import SteeringChoice, choose_node, count_markers, numa_preference
from alignup.placement.verdict import Verdict
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.pod_events import PodEvents

HOLD_SECONDS = 5.0  #: for which observers wait for a pod
READY_SECONDS = 1.5  #: for an observer to carry out an instruction
WRITE_SECONDS = 1.5  #: for the API server to accept one
HELD_SECONDS = 8.0  #: after which an observer has restored all markers by itself
SILENT_SECONDS = 12.0  #: after which the status of a node shows that its markers are gone; kubelets write it every 10
RESTORE_SECONDS = 3.0  #: after which an observer has restored them when an instruction was cleared
UNKNOWN_NUMA = "UnknownNumaPreference"  #: the reason of events about pods with an unknown value of the annotation
WITHDRAWN = "waits until the markers of NUMA nodes are back that were withdrawn for another pod"
SILENT = "waits until it is known whether the node still has markers of NUMA nodes: its observer does not answer"
CHANGED = "waits until the markers of NUMA nodes are back: the node has changed since they were withdrawn for the pod"
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5)  #: seconds
_LONGEST_RETRY = 60.0  #: seconds; the cluster may have no such resource

_log = structlog.get_logger()

#: Returns the options where the devices of the pod's claims are on the same NUMA node, with the names of the claims.
ClaimsBeside = Callable[[Mapping[NodeSet, Verdict]], Awaitable[Mapping[NodeSet, str]]]


class SteeringOutcome(StrEnum):
    """What became of the wish to steer a pod, for metrics."""

    READY = "ready"  #: it is bound while the kubelet has the markers of one NUMA node
    LATE = "late"  #: the observer did not answer in time; it is bound, or tried again
    FAILED = "failed"  #: the observer said that it cannot
    NOT_WRITTEN = "not_written"  #: the API server did not accept the instruction
    NO_CHOICE = "no_choice"  #: no NUMA node can hold the pod, or not the one that it names; or another one is coming
    WITHDRAWN = "withdrawn"  #: the markers are withdrawn for another pod
    CHANGED = "changed"  #: the node has changed meanwhile; the binding is refused and will be tried again


class PodSteeringMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._pods = Counter(
            "alignup_steering_pods",
            "Pods that request markers by what became of steering.",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "alignup_steering_seconds", "Time that steering added to a binding.", buckets=_BUCKETS, registry=registry
        )
        self._reviews = Counter(
            "alignup_steering_reviews", "Reviews of new pods that opted in, by result.", ["outcome"], registry=registry
        )
        for outcome in SteeringOutcome:
            self._pods.labels(outcome)

    def reviewed(self, outcome: str) -> None:
        """Count the answer of the webhook to a new pod."""
        self._reviews.labels(outcome).inc()

    def count(self, outcome: SteeringOutcome, seconds: float) -> None:
        self._pods.labels(outcome).inc()
        self._seconds.observe(seconds)


class Steered(NamedTuple):
    """What a pod can expect at its binding."""

    problem: str = ""  #: why it must not be bound now
    verdict: Verdict | None = None  #: the prediction from now on; ``None``: as before
    text: str = ""  #: where it is steered to, and why; empty: it is not, or that is not certain


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The markers of a node that may be the only ones at present."""

    uid: str  #: of the pod
    nodes: NodeSet
    generation: int  #: of the instruction
    until: float  #: by our clock


class PodSteering:
    """The instructions of one cluster service; *events* are about the annotations of pods.

    Observers wait *hold* seconds for a pod. What depends on their speed may take longer in proportion to that.
    """

    def __init__(self, client: ApiClient, live: LiveCluster, events: PodEvents, *, hold: float = HOLD_SECONDS) -> None:
        self._client, self._live, self._events = client, live, events
        self.metrics = PodSteeringMetrics(live.metrics.registry)
        self._clock = client.timing.clock
        share = hold / HOLD_SECONDS
        self.ready_seconds, self.write_seconds = READY_SECONDS * share, WRITE_SECONDS * share
        self.held_seconds, self.restore_seconds = HELD_SECONDS * share, RESTORE_SECONDS * share
        self.silent_seconds = SILENT_SECONDS
        self._silent: dict[str, float] = {}  #: node → since when its observer has not answered an instruction
        self.informer = Informer(client, STEERING_INSTRUCTIONS, longest_retry=_LONGEST_RETRY)
        self.informer.subscribe(self._instruction_changed)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: by node
        self._changed: dict[str, asyncio.Event] = {}  #: by node, for tasks that wait for an observer
        self.withdrawals: dict[str, Withdrawal] = {}  #: by node
        self._ours: dict[str, int] = {}  #: node → generation of the last instruction of this process

    async def run(self) -> None:
        """Follow the instructions until cancelled."""
        await self.informer.run()

    async def lead(self) -> None:
        """Clear the instructions that the last leader left open."""
        await self.informer.wait_synced()
        for node in [node for node in self.withdrawals if not self._is_ours(node)]:
            await self._clear(node)

    async def begin(self, api_pod: ApiPod, pod: Pod, node: str, beside: ClaimsBeside | None = None) -> Steered:
        """Steer a pod that is assumed on *node*, if it requests markers and the observer does it in time."""
        if not count_markers(pod) or not self.informer.synced:
            return Steered()
        async with self._locks.setdefault(node, asyncio.Lock()):
            return await self._begin(api_pod, pod, node, beside)

    async def _begin(self, api_pod: ApiPod, pod: Pod, node: str, beside: ClaimsBeside | None) -> Steered:
        record = self._live.cluster.record(node)
        if record is None or self._live.assumed.get(pod.uid) != (node,):
            return Steered()
        binding, withdrawal = record.binding(pod.uid), self._withdrawn(node)
        if binding is not None and binding.steered:  # it may be bound already: never steer a pod twice
            held = self.holds(pod.uid, node)
            return Steered(verdict=binding.verdict) if held else self._uncertain(pod, node, binding.ways[-1])
        started, choice = time.perf_counter(), None
        if withdrawal is not None and (withdrawal := await self._await_restored(node)) is not None:
            gone = node in self._silent and self._may_be_gone(node, self._clock())
            steered = Steered(SILENT) if gone else self._uncertain(pod, node, withdrawal.nodes)
            outcome = SteeringOutcome.WITHDRAWN
        else:
            preference, problem = numa_preference(pod)
            if problem:
                self._events.note(api_pod, UNKNOWN_NUMA, problem)
            # Another pod with markers that is about to come must find all of them.
            alone = not any(count_markers(other.pod) for other in record.bindings if other.uid != pod.uid)
            options = self._live.cluster.steered(pod, node) if alone else {}
            near = await beside(options) if beside is not None and options else {}
            choice = choose_node(options, preference, near)
            outcome, steered = SteeringOutcome.NO_CHOICE, self._as_before(pod, node)
            if choice is not None:
                outcome, steered = await self._instruct(api_pod, pod, node, choice)
        seconds = time.perf_counter() - started
        self.metrics.count(outcome, seconds)
        where = {"numa_node": bits.show(choice.nodes), "reason": choice.reason} if choice else {}
        name, uid = api_pod.metadata.full_name, pod.uid
        _log.info("steering", pod=name, uid=uid, node=node, outcome=str(outcome), seconds=round(seconds, 4), **where)
        return steered

    def holds(self, uid: str, node: str) -> bool:
        """Return whether the markers of a node may be withdrawn for this pod."""
        withdrawal = self._withdrawn(node)
        return withdrawal is not None and withdrawal.uid == uid

    async def cancel(self, uid: str, node: str) -> None:
        """Clear the instruction for a pod that is not bound after all."""
        if self.holds(uid, node):
            await self._clear(node)

    async def _instruct(
        self, api_pod: ApiPod, pod: Pod, node: str, choice: SteeringChoice
    ) -> tuple[SteeringOutcome, Steered]:
        metadata = api_pod.metadata
        steered_pod = SteeredPod(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid)
        spec = SteeringSpec(pod=steered_pod, numa_nodes=bits.show(choice.nodes), containers=count_markers(pod))
        started, silent = self._clock(), False
        try:
            generation = await self._write_new(node, pod.uid, spec, choice.nodes)
            silent = True
            async with asyncio.timeout(self.ready_seconds):
                phase = await self._await_phase(node, generation)
        except (UnreachableError, ServerFailureError, TimeoutError):  # it may have been written
            phase = None
        except ApiError as error:
            name, problem = metadata.full_name, str(error)
            _log.warning("cannot write an instruction", pod=name, uid=metadata.uid, node=node, problem=problem)
            self.withdrawals.pop(node, None)
            return SteeringOutcome.NOT_WRITTEN, self._as_before(pod, node)
        if phase is SteeringPhase.READY:
            verdict = self._live.cluster.steer(pod, node, choice.nodes, certain=True)
            if verdict is not None:
                return SteeringOutcome.READY, Steered(verdict=verdict, text=str(choice))
            await self._clear(node)
            return SteeringOutcome.CHANGED, Steered(CHANGED)
        if phase is not None:  # all markers are back
            return SteeringOutcome.FAILED, self._as_before(pod, node)
        await self._clear(node)
        if silent and self._may_be_gone(node, started):
            return SteeringOutcome.LATE, Steered(SILENT)
        steered = self._uncertain(pod, node, choice.nodes)
        return SteeringOutcome.CHANGED if steered.problem else SteeringOutcome.LATE, steered

    def _may_be_gone(self, node: str, since: float) -> bool:
        """Return whether a node may have no markers any more, whose observer has not answered *since* then."""
        since = self._silent.setdefault(node, since)
        known = self._live.nodes.get(node)
        left = known.status.allocatable.get(MARKER, "1") if known is not None else "0"
        return self._clock() - since < self.silent_seconds or str(left) == "0"

    async def _write_new(self, node: str, uid: str, spec: SteeringSpec, nodes: NodeSet) -> int:
        """Write an instruction, and return its generation."""
        known = self.informer.get(node)
        if known is not None and known.spec == spec:  # the same again would be no new instruction
            await self._write(node, SteeringSpec())
        self.withdrawals[node] = Withdrawal(uid, nodes, 0, self._clock() + self.held_seconds)
        written = await self._write(node, spec)
        generation = written.metadata.generation
        self.withdrawals[node] = Withdrawal(uid, nodes, generation, self._clock() + self.held_seconds)
        return generation

    async def _await_phase(self, node: str, generation: int) -> SteeringPhase | None:
        """Return the first phase that the observer reports about an instruction; ``None``: it was replaced."""
        changed = self._changed.setdefault(node, asyncio.Event())
        while True:
            changed.clear()
            current = self.informer.get(node)
            if current is not None and current.metadata.generation >= generation:
                if current.metadata.generation > generation:
                    return None
                if current.phase is not None:
                    return current.phase
            await changed.wait()

    async def _await_restored(self, node: str) -> Withdrawal | None:
        """Wait a moment until no markers of a node are withdrawn any more; return that they still are."""
        if not self._is_ours(node):
            await self._clear(node)
        changed = self._changed.setdefault(node, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.ready_seconds):
                while (withdrawal := self._withdrawn(node)) is not None:
                    changed.clear()
                    with suppress(TimeoutError):  # then it may be over
                        async with asyncio.timeout(max(withdrawal.until - self._clock(), 0.01)):
                            await changed.wait()
        return self._withdrawn(node)

    def _withdrawn(self, node: str) -> Withdrawal | None:
        withdrawal = self.withdrawals.get(node)
        if withdrawal is not None and withdrawal.until <= self._clock():
            del self.withdrawals[node]
            return None
        return withdrawal

    def _uncertain(self, pod: Pod, node: str, nodes: NodeSet) -> Steered:
        """Count on a pod that may meet the markers of *nodes* only, or all of them."""
        verdict = self._live.cluster.steer(pod, node, nodes, certain=False)
        return Steered(WITHDRAWN) if verdict is None else Steered(verdict=verdict)

    def _as_before(self, pod: Pod, node: str) -> Steered:
        """Check the prediction without steering once more, since time has passed."""
        verdict = self._live.verdict(pod, node)
        problem = "" if verdict.admits else f"node {node} does not admit the pod any more: {verdict.reason}"
        return Steered(problem, verdict)

    async def _clear(self, node: str) -> None:
        """Let an observer restore all markers; if that cannot be written, it does so by itself soon."""
        withdrawal = self.withdrawals.get(node)
        try:
            await self._write(node, SteeringSpec())
        except (ApiError, TimeoutError) as error:
            _log.warning("cannot clear an instruction", node=node, problem=str(error) or "no response")
            return
        if withdrawal is not None:
            until = min(withdrawal.until, self._clock() + self.restore_seconds)
            self.withdrawals[node] = Withdrawal("", withdrawal.nodes, withdrawal.generation, until)

    async def _write(self, node: str, spec: SteeringSpec) -> SteeringInstruction:
        ref = STEERING_INSTRUCTIONS.at(node)
        async with asyncio.timeout(self.write_seconds):
            written = await self._client.apply(ref, {"spec": to_builtins(spec)})
        self._ours[node] = written.metadata.generation
        return written

    def _is_ours(self, node: str) -> bool:
        return self.withdrawals[node].generation <= self._ours.get(node, -1)

    def _instruction_changed(self, change: Change[SteeringInstruction]) -> None:
        instruction = change.object
        node, generation = instruction.metadata.name, instruction.metadata.generation
        known = self.withdrawals.get(node)
        pod, phase = instruction.spec.pod, instruction.phase
        deleted = change.type is EventType.DELETED
        if phase is not None:
            self._silent.pop(node, None)
        if deleted or (phase is not None and phase is not SteeringPhase.READY):
            if known is not None and (deleted or generation >= known.generation):
                del self.withdrawals[node]
            if deleted:
                self._ours.pop(node, None)
        elif pod is not None and (known is None or generation > known.generation):
            with suppress(ParseError):
                nodes = bits.parse(instruction.spec.numa_nodes)
                self.withdrawals[node] = Withdrawal(pod.uid, nodes, generation, self._clock() + self.held_seconds)
        if (waiting := self._changed.get(node)) is not None:
            waiting.set()
