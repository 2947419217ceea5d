"""Steering of pods that request ``alignup.dev/numa``: the NUMA node of each, and the instruction to its observer.

A pod that was assumed on a node, and is about to be bound or released, is steered in these steps:

    (markers are withdrawn for another pod) → the instruction is written → the observer answers → ready
                     ↓                                   ↓                        ↓
          not back in time: withdrawn          refused: not_written        late, failed, or changed

If the observer does not answer in time, the instruction is cleared. The observer may be gone, and with it the plugin
that offers markers: so the binding is refused, to be tried again, until the status of the node would tell, and for at
most ``WAIT_SECONDS``. So it is while the HostState of the node shows no markers yet. Then the pod is bound all the
same. The kubelet may have the markers of one NUMA node or of all. So a pod is steered only to a NUMA node on which it
is admitted in both cases, and no other pod with resources of its own comes to the node before a report contains it. An
instruction that was carried out is left as it is; the next one replaces it.

While the markers of a node may be withdrawn for one pod, another pod with markers is bound there only if it is admitted
with those markers, too. A new leader clears the instructions of the one before.

A pod that ends on another NUMA node than the one chosen for it, or named by it, is counted with its cause.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.reason_codes import NOT_STEERED, UNKNOWN_NUMA_PREFERENCE, WAITS_FOR_STEERING
from alignup.align.workload import Pod
from alignup.placement.cluster import Confirmed
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.events import SteeringObserved
from alignup.placement.scheduling.facts import PodFacts
from alignup.placement.scheduling.instructions import Report, WriteEvent, WriteSteering
from alignup.placement.scheduling.options import HOLD_SECONDS
from alignup.placement.scheduling.steering_deviations import DeviationCause, SteeringDeviations
from alignup.placement.steered import SteeringChoice, choose_node, count_markers, marker_nodes, numa_preference
from alignup.placement.verdict import Verdict

READY_SECONDS = 1.5  #: for an observer to carry out an instruction
HELD_SECONDS = 8.0  #: after which an observer has restored all markers by itself
SILENT_SECONDS = 12.0  #: after which the status of a node shows that its markers are gone; kubelets write it every 10
RESTORE_SECONDS = 3.0  #: after which an observer has restored them when an instruction was cleared
WAIT_SECONDS = 60.0  #: for which a pod waits for markers or a silent observer; then it goes without steering
READY = "Ready"  #: the phase of an instruction that was carried out
WITHDRAWN = "waits until the markers of NUMA nodes are back that were withdrawn for another pod"
NO_MARKERS = "waits until the HostState of the node shows markers of NUMA nodes"
SILENT = "waits until it is known whether the node still has markers of NUMA nodes: its observer does not answer"
FAILED_STEP = "alignup failed to steer the pod, and its log says why; it is tried again"
CHANGED = "waits until the markers of NUMA nodes are back: the node has changed since they were withdrawn for the pod"

#: Returns the options where the devices of the pod's claims are on the same NUMA node, with the names of the claims.
ClaimsBeside = Callable[[Mapping[NodeSet, Verdict]], Mapping[NodeSet, str]]
#: Returns whether a pod on a node must not be steered to NUMA nodes, since the node is kept for another pod.
KeepsOff = Callable[[str, Pod, NodeSet], bool]


class SteeringOutcome(StrEnum):
    """What became of the wish to steer a pod, for metrics."""

    READY = "ready"  #: it is bound while the kubelet has the markers of one NUMA node
    WAITING = "waiting"  #: for markers, or a silent observer; a pod counts once, and is tried again
    NO_MARKERS = "no_markers"  #: the HostState has shown none for too long; it is bound without steering
    SILENT = "silent"  #: the observer has not answered for too long; it is bound, perhaps steered
    LATE = "late"  #: it is unknown whether the instruction was written; it is bound, perhaps steered, or tried again
    FAILED = "failed"  #: the observer said that it cannot
    NOT_WRITTEN = "not_written"  #: the API server did not accept the instruction
    NO_CHOICE = "no_choice"  #: no NUMA node can hold the pod, or not the one that it names; or another one is coming
    WITHDRAWN = "withdrawn"  #: the markers are withdrawn for another pod
    CHANGED = "changed"  #: the node has changed meanwhile; the binding is refused and will be tried again


class Steered(NamedTuple):
    """What a pod can expect at its binding."""

    problem: str = ""  #: why it must not be bound now
    verdict: Verdict | None = None  #: the prediction from now on; ``None``: as before
    text: str = ""  #: where it is steered to, and why; empty: it is not, or that is not certain


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The markers of a node that may be the only ones at present."""

    uid: str  #: of the pod; empty: they are being restored
    nodes: NodeSet
    generation: int  #: of the instruction; 0: it is not written yet
    until: float


class _Step(StrEnum):
    QUEUED = "queued"  #: another pod is being steered on the node
    RESTORING = "restoring"  #: until the markers are back that are withdrawn for another pod
    WRITING = "writing"
    AWAITING = "awaiting"  #: the answer of the observer


@dataclass(slots=True, eq=False)
class _Attempt:
    """One try to steer a pod."""

    facts: PodFacts
    node: str
    done: Callable[[Steered], object]
    beside: ClaimsBeside | None
    since: float
    step: _Step = _Step.QUEUED
    until: float = float("inf")  #: of the present step
    choice: SteeringChoice | None = None
    generation: int = 0
    gone: bool = False  #: whether the pod is

    @property
    def pod(self) -> Pod:
        return self.facts.pod

    @property
    def nodes(self) -> NodeSet:
        return self.choice.nodes if self.choice else 0


class PodSteering:
    """The NUMA nodes that pods are steered to, one pod at a time on each node."""

    def __init__(self, parts: CommonParts, *, keeps_off: KeepsOff) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._keeps_off = keeps_off
        self._deviations = SteeringDeviations(parts.cluster, parts.turn)
        self.silent_seconds = SILENT_SECONDS
        self.use(HOLD_SECONDS)
        self.withdrawals: dict[str, Withdrawal] = {}  #: by node
        self._attempts: dict[str, deque[_Attempt]] = {}  #: by node; the first is under way
        self._written: dict[str, int] = {}  #: node → generation of the last instruction of this process
        self._observed: dict[str, tuple[int, str]] = {}  #: node → generation and phase of its instruction
        self._silent: dict[str, float] = {}  #: node → since when its observer has not answered an instruction
        self._waiting: dict[str, float] = {}  #: uid → since when a pod waits for markers, or a silent observer

    def use(self, hold: float) -> None:
        """Expect that observers wait *hold* seconds for a pod; what depends on them may take longer in proportion."""
        share = hold / HOLD_SECONDS
        self.ready_seconds = READY_SECONDS * share
        self.held_seconds = HELD_SECONDS * share
        self.restore_seconds = RESTORE_SECONDS * share
        self.wait_seconds = WAIT_SECONDS * share

    def begin(
        self, facts: PodFacts, node: str, on_end: Callable[[Steered], object], beside: ClaimsBeside | None = None
    ) -> None:
        """Steer a pod that is assumed on *node*, if it requests markers; *on_end* is called at once, or later."""
        if not count_markers(facts.pod):
            on_end(Steered())
            return
        if not self._facts.steering_known:
            self._deviations.expect(facts, 0, DeviationCause.NO_INSTRUCTIONS)
            on_end(Steered())
            return
        attempts = self._attempts.setdefault(node, deque())
        attempts.append(_Attempt(facts, node, on_end, beside, self._turn.now))
        if len(attempts) == 1:
            self._go_on(attempts[0], self._start)

    def _go_on(self, attempt: _Attempt, step: Callable[[_Attempt], object]) -> None:
        """Take a step of an attempt; if it fails unexpectedly, the attempt ends, and others go on."""
        try:
            step(attempt)
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self._turn.failed("steer", attempt.facts.full_name, error)
            if attempt in self._attempts.get(attempt.node, ()):
                with self._turn.isolated("steer", attempt.facts.full_name):
                    self._clear(attempt.node)
                    self._report(attempt, SteeringOutcome.FAILED)
                self._leave(attempt, Steered(FAILED_STEP))

    def holds(self, uid: str, node: str) -> bool:
        """Return whether the markers of a node may be withdrawn for this pod."""
        withdrawal = self._withdrawn(node)
        return withdrawal is not None and withdrawal.uid == uid

    def cancel(self, uid: str, *nodes: str) -> None:
        """Clear the instruction for a pod that will not come."""
        for node in nodes:
            if self.holds(uid, node):
                self._clear(node)

    def resume(self) -> None:
        """Clear the instructions that the last leader left open."""
        for node in tuple(self.withdrawals):
            if not self._is_written_here(node):
                self._clear(node)

    def forget(self, uid: str) -> None:
        """Forget how long a pod has waited: it is bound, or gone."""
        self._waiting.pop(uid, None)

    def confirmed(self, prediction: Confirmed, node: str) -> None:
        """Count a pod that a report shows on another NUMA node than the node it was steered to."""
        with self._turn.isolated("steer", prediction.uid):
            self._deviations.confirmed(prediction, node, self._observed.get(node, (0, "")))

    def pod_gone(self, uid: str) -> None:
        self.forget(uid)
        self._deviations.forget(uid)
        for attempt in [attempt for attempts in self._attempts.values() for attempt in attempts]:
            attempt.gone |= attempt.facts.uid == uid

    def node_gone(self, node: str) -> None:
        for nodes in (self.withdrawals, self._written, self._observed, self._silent):
            nodes.pop(node, None)

    def close(self) -> None:
        """Stop all tries: another process decides from now on."""
        self._attempts.clear()

    # Steps

    def _start(self, attempt: _Attempt) -> None:
        node, uid = attempt.node, attempt.facts.uid
        record = self._cluster.record(node)
        if record is None or self._assumptions.nodes.get(uid) != (node,):
            self._end(attempt, Steered())
            return
        binding = record.binding(uid)
        if binding is not None and binding.steered:  # it may be bound already: never steer a pod twice
            certain = self.holds(uid, node)
            result = Steered(verdict=binding.verdict) if certain else self._uncertain(attempt, binding.ways[-1])
            self._end(attempt, result)
            return
        attempt.since = self._turn.now
        if not marker_nodes(record.ledger) and self._facts.has_markers(node):
            if not self._refuse(attempt, NO_MARKERS):
                self._end(attempt, self._as_before(attempt), SteeringOutcome.NO_MARKERS)
            return
        if self._withdrawn(node) is None:
            self._choose(attempt)
            return
        if not self._is_written_here(node):
            self._clear(node)
        attempt.step = _Step.RESTORING
        attempt.until = self._turn.now + self.ready_seconds

    def _choose(self, attempt: _Attempt) -> None:
        pod, node, record = attempt.pod, attempt.node, self._cluster.record(attempt.node)
        preference, problem = numa_preference(pod)
        if problem:
            self._turn.emit(WriteEvent(pod.uid, UNKNOWN_NUMA_PREFERENCE, problem, gate=False))
        # Another pod with markers that is about to come must find all of them.
        bindings = record.bindings if record else ()
        alone = not any(count_markers(other.pod) for other in bindings if other.uid != pod.uid)
        options = self._cluster.steered(pod, node) if alone and record else {}
        options = {nodes: verdict for nodes, verdict in options.items() if not self._keeps_off(node, pod, nodes)}
        near = attempt.beside(options) if attempt.beside is not None and options else {}
        attempt.choice = choice = choose_node(options, preference, near)
        if choice is None:
            self._end(attempt, self._as_before(attempt), SteeringOutcome.NO_CHOICE)
            return
        attempt.step = _Step.WRITING
        attempt.until = float("inf")
        self._withdraw(attempt)
        self._turn.emit(WriteSteering(node, pod, choice.nodes, count_markers(pod)))

    def _withdraw(self, attempt: _Attempt) -> None:
        until = self._turn.now + self.held_seconds
        self.withdrawals[attempt.node] = Withdrawal(attempt.facts.uid, attempt.nodes, attempt.generation, until)

    def _answered(self, attempt: _Attempt, phase: str) -> None:
        """Take note of the answer of the observer."""
        if phase != READY:  # all markers are back
            self._end(attempt, self._as_before(attempt), SteeringOutcome.FAILED)
            return
        verdict = self._cluster.steer(attempt.pod, attempt.node, attempt.nodes, certain=True)
        if verdict is None:
            self._clear(attempt.node)
            self._end(attempt, Steered(CHANGED), SteeringOutcome.CHANGED)
        else:
            self._end(attempt, Steered(verdict=verdict, text=str(attempt.choice)), SteeringOutcome.READY)

    def _unanswered(self, attempt: _Attempt, *, silent: bool) -> None:
        """Go on without an answer; the kubelet may have the markers of one NUMA node or of all."""
        self._clear(attempt.node)
        if silent and self._refuse(attempt, SILENT, always=self._may_be_gone(attempt.node, attempt.since)):
            return
        result = self._uncertain(attempt, attempt.nodes)
        outcome = SteeringOutcome.SILENT if silent else SteeringOutcome.LATE
        self._end(attempt, result, SteeringOutcome.CHANGED if result.problem else outcome)

    def _refuse(self, attempt: _Attempt, problem: str, *, always: bool = False) -> bool:
        """Let a pod wait, and be tried again; return ``False`` if it has waited for long enough, unless *always*."""
        uid, node, now = attempt.facts.uid, attempt.node, self._turn.now
        if attempt.gone:
            self._end(attempt, Steered(problem))
            return True
        outcome = SteeringOutcome.WAITING if uid not in self._waiting else None
        if now - self._waiting.setdefault(uid, now) >= self.wait_seconds and not always:
            message = f"the pod is placed without steering, after {self.wait_seconds:.0f} s: it {problem} ({node})"
            self._turn.emit(WriteEvent(uid, NOT_STEERED, message, gate=False))
            return False
        self._turn.emit(WriteEvent(uid, WAITS_FOR_STEERING, f"the pod {problem} ({node})", gate=False))
        self._end(attempt, Steered(problem), outcome)
        return True

    def _end(self, attempt: _Attempt, result: Steered, outcome: SteeringOutcome | None = None) -> None:
        """Tell the result of an attempt, and begin the next one on its node."""
        if outcome is not None:
            self._report(attempt, outcome)
            if not result.problem:
                cause = None if outcome is SteeringOutcome.READY else DeviationCause(outcome)
                self._deviations.expect(attempt.facts, attempt.nodes, cause, attempt.generation)
        self._leave(attempt, result)

    def _report(self, attempt: _Attempt, outcome: SteeringOutcome) -> None:
        facts, choice = attempt.facts, attempt.choice
        where = {"numa_node": bits.show(choice.nodes), "reason": choice.reason} if choice else {}
        details = {"node": attempt.node, "outcome": outcome, "seconds": self._turn.now - attempt.since, **where}
        self._turn.emit(Report("steering", facts.uid, facts.full_name, details))

    def _leave(self, attempt: _Attempt, result: Steered) -> None:
        """Let the next attempt on a node begin."""
        attempts, facts = self._attempts[attempt.node], attempt.facts
        attempts.remove(attempt)
        if not result.problem:
            self._waiting.pop(facts.uid, None)
        with self._turn.isolated("steer", facts.full_name):
            attempt.done(result)
        if not attempts:
            self._attempts.pop(attempt.node, None)
        elif attempts[0].step is _Step.QUEUED:
            self._go_on(attempts[0], self._start)

    # Events

    def written(self, node: str, uid: str, generation: int) -> None:
        """Take note of an instruction that was written for a pod, or cleared (no *uid*)."""
        self._written[node] = generation
        attempt = self._current(node, _Step.WRITING)
        withdrawal = self.withdrawals.get(node)
        if not uid and attempt is None and withdrawal is not None:
            until = min(withdrawal.until, self._turn.now + self.restore_seconds)
            self.withdrawals[node] = Withdrawal("", withdrawal.nodes, withdrawal.generation, until)
        elif uid and attempt is not None and attempt.facts.uid == uid:
            attempt.step = _Step.AWAITING
            attempt.until = self._turn.now + self.ready_seconds
            attempt.generation = generation
            self._withdraw(attempt)
            self._go_on(attempt, self._check)

    def failed(self, node: str, uid: str, problem: str | None) -> None:
        """Take note of an instruction that was not written; without a *problem*, it may have been."""
        attempt = self._current(node, _Step.WRITING)
        if attempt is None or attempt.facts.uid != uid:
            return
        if problem is None:
            self._unanswered(attempt, silent=False)
            return
        details = {"node": node, "problem": problem}
        self._turn.emit(Report("cannot write an instruction", uid, attempt.facts.full_name, details))
        self.withdrawals.pop(node, None)
        self._end(attempt, self._as_before(attempt), SteeringOutcome.NOT_WRITTEN)

    def observed(self, event: SteeringObserved) -> None:
        """Take note of the instruction of a node as it is now."""
        node, generation, withdrawal = event.node, event.generation, self.withdrawals.get(event.node)
        self._observed[node] = (generation, event.phase)
        if event.phase:
            self._silent.pop(node, None)
        if event.deleted or event.phase not in {"", READY}:
            if withdrawal is not None and (event.deleted or generation >= withdrawal.generation):
                del self.withdrawals[node]
            if event.deleted:
                self._written.pop(node, None)
                self._observed.pop(node, None)
        elif event.uid and event.nodes and (withdrawal is None or generation > withdrawal.generation):
            until = self._turn.now + self.held_seconds
            self.withdrawals[node] = Withdrawal(event.uid, event.nodes, generation, until)
        if attempts := self._attempts.get(node):
            self._go_on(attempts[0], self._check)

    def check(self) -> None:
        """Go on where something took too long."""
        for attempts in tuple(self._attempts.values()):
            self._go_on(attempts[0], self._check)

    def next_check(self) -> float | None:
        """Return the seconds after which something must be checked although nothing has happened."""
        times = [attempts[0].until for attempts in self._attempts.values()]
        times += [self.withdrawals[node].until for node in self._attempts if node in self.withdrawals]
        soonest = min(times, default=float("inf"))
        return None if soonest == float("inf") else max(soonest - self._turn.now, 0.0)

    def _check(self, attempt: _Attempt) -> None:
        node, late = attempt.node, self._turn.now >= attempt.until
        if attempt.step is _Step.RESTORING:
            withdrawal = self._withdrawn(node)
            if withdrawal is None:
                self._choose(attempt)
            elif late:
                is_gone = node in self._silent and self._may_be_gone(node, self._turn.now)
                result = Steered(SILENT) if is_gone else self._uncertain(attempt, withdrawal.nodes)
                self._end(attempt, result, SteeringOutcome.WITHDRAWN)
        elif attempt.step is _Step.AWAITING:
            generation, phase = self._observed.get(node, (0, ""))
            if generation == attempt.generation and phase:
                self._answered(attempt, phase)
            elif late or generation > attempt.generation:
                self._unanswered(attempt, silent=True)

    # What is known of nodes

    def _current(self, node: str, step: _Step) -> _Attempt | None:
        attempts = self._attempts.get(node)
        return attempts[0] if attempts and attempts[0].step is step else None

    def _may_be_gone(self, node: str, since: float) -> bool:
        """Return whether a node may have no markers any more, whose observer has not answered *since* then."""
        since = self._silent.setdefault(node, since)
        return self._turn.now - since < self.silent_seconds or self._facts.has_markers(node) is False

    def _withdrawn(self, node: str) -> Withdrawal | None:
        withdrawal = self.withdrawals.get(node)
        if withdrawal is not None and withdrawal.until <= self._turn.now:
            del self.withdrawals[node]
            return None
        return withdrawal

    def _is_written_here(self, node: str) -> bool:
        return self.withdrawals[node].generation <= self._written.get(node, -1)

    def _clear(self, node: str) -> None:
        """Let an observer restore all markers; if that cannot be written, it does so by itself soon."""
        self._turn.emit(WriteSteering(node))

    def _uncertain(self, attempt: _Attempt, nodes: NodeSet) -> Steered:
        """Count on a pod that may meet the markers of *nodes* only, or the markers of all nodes."""
        kept_off = self._keeps_off(attempt.node, attempt.pod, nodes)
        verdict = None if kept_off else self._cluster.steer(attempt.pod, attempt.node, nodes, certain=False)
        return Steered(WITHDRAWN) if verdict is None else Steered(verdict=verdict)

    def _as_before(self, attempt: _Attempt) -> Steered:
        """Check the prediction without steering once more, since time has passed."""
        verdict = self._assumptions.verdict(attempt.pod, attempt.node)
        problem = "" if verdict.admits else f"node {attempt.node} does not admit the pod any more: {verdict.reason}"
        return Steered(problem, verdict)
