"""Bindings that schedulers ask for, while this process leads: the next leader would not know of later ones.

A kubelet admits pods in the order of their bindings. So bindings to one node are written one after the other, each
after a last check that the node still admits the pod.

    asked → queued → (waits for others of its gang) → steered → claims read → being written → bound
                                  ↓                      ↓          ↓              ↓
                        refused: in words, and the scheduler tries again       lost: it may be bound
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from alignup.align.bits import NodeSet
from alignup.align.reason_codes import UNKNOWN_CLAIM_PREFERENCE
from alignup.align.workload import Pod
from alignup.placement.pod_demands import needs_exact_host
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.claim_bindings import NOTHING_CHECKED, ClaimBindings, ClaimCheck
from alignup.placement.scheduling.claim_rules import (
    ClaimAlignment,
    ClaimPreference,
    claim_preference,
    claims_beside,
    restricts_claims,
)
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.events import BindingAsked, ClaimsRead
from alignup.placement.scheduling.facts import GroupKey, PodFacts
from alignup.placement.scheduling.gang_placement import FULL
from alignup.placement.scheduling.instructions import AnswerBinding, ReadPodClaims, WriteBinding, WriteEvent
from alignup.placement.scheduling.pod_steering import PodSteering, Steered
from alignup.placement.scheduling.tentative_gangs import TentativeGangs
from alignup.placement.steered import count_markers
from alignup.placement.verdict import Verdict

TURN_SECONDS = 3.0  #: for which a binding waits for bindings that must come before
FAILED = "alignup failed on the pod, and its log says why; it can be tried again"
NOT_LEADING = "this process does not lead any more; the next one has to bind the pod"


class BindingStep(StrEnum):
    """What the binding of a pod waits for; see docs/scheduling-states.md."""

    QUEUED = "queued"  #: for other bindings to the node
    GANG = "gang"  #: for bindings of others of its gang
    PREPARED = "prepared"  #: for its observer, or its claims; the node counts on the pod
    WRITING = "being written"  #: for the API server


@dataclass(slots=True, eq=False)
class PendingBinding:
    """A binding that a scheduler has asked for."""

    request: int
    facts: PodFacts
    node: str
    deadline: float  #: of the wait for others of its gang
    step: BindingStep = BindingStep.QUEUED
    verdict: Verdict | None = None
    steered: str | None = None  #: where it is steered to; ``None``: that is not decided yet
    check: ClaimCheck = NOTHING_CHECKED

    @property
    def pod(self) -> Pod:
        return self.facts.pod


class Bindings:
    """The bindings of one process; *ended* is called with the uid of a pod, and why it was not bound, or nothing.

    *refusal* returns why a pod must not get a node although its kubelet admits it, or nothing.
    """

    def __init__(  # noqa: PLR0913 - everything that a binding depends on
        self,
        parts: CommonParts,
        *,
        gangs: TentativeGangs,
        steering: PodSteering,
        claims: ClaimBindings,
        on_end: Callable[[str, str], object],
        refusal: Callable[[PodFacts, str], str],
    ) -> None:
        self._cluster = parts.cluster
        self._facts = parts.facts
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._gangs = gangs
        self._steering = steering
        self._claims = claims
        self._ended = on_end
        self._refusal = refusal
        self.allow_unknown = False
        self.leading = True
        self._bindings: dict[int, PendingBinding] = {}  #: by request
        self._queues: dict[str, deque[PendingBinding]] = {}  #: by node; the first is under way
        self._waiting: dict[GroupKey, list[PendingBinding]] = {}  #: for others of their gang

    def __len__(self) -> int:
        return len(self._bindings)

    def step_of(self, uid: str) -> BindingStep | None:
        """Return what the binding of a pod waits for; ``None``: none was asked for."""
        return next((binding.step for binding in self._bindings.values() if binding.facts.uid == uid), None)

    def asked(self, event: BindingAsked) -> None:
        deadline = self._turn.now + TURN_SECONDS
        binding = self._bindings[event.request] = PendingBinding(event.request, event.facts, event.node, deadline)
        self._queue(binding)

    def gang_changed(self, key: GroupKey) -> None:
        """Try bindings again that wait for other bindings of their gang."""
        for binding in self._waiting.pop(key, ()):
            self._queue(binding)

    def check(self) -> None:
        """Refuse bindings that have waited too long for other bindings of their gang."""
        for key, bindings in tuple(self._waiting.items()):
            for binding in [binding for binding in bindings if binding.deadline <= self._turn.now]:
                bindings.remove(binding)
                self._answer(binding, f"other pods of gang {key} must be bound to node {binding.node} before")
            if not bindings:
                self._waiting.pop(key, None)

    def next_check(self) -> float | None:
        """Return the seconds after which something must be checked although nothing has happened."""
        deadlines = [binding.deadline for bindings in self._waiting.values() for binding in bindings]
        return max(min(deadlines) - self._turn.now, 0.0) if deadlines else None

    def close(self) -> None:
        """Refuse all bindings that are not being written: another process decides from now on."""
        self.leading = False
        self._waiting.clear()
        for binding in tuple(self._bindings.values()):
            if binding.step is BindingStep.PREPARED:
                self._undo(binding, NOT_LEADING)
            elif binding.step is BindingStep.GANG:
                self._answer(binding, NOT_LEADING)

    def _queue(self, binding: PendingBinding) -> None:
        binding.step = BindingStep.QUEUED
        queue = self._queues.setdefault(binding.node, deque())
        queue.append(binding)
        if len(queue) == 1:
            self._begin(binding)

    def _leave(self, binding: PendingBinding) -> None:
        """Let the next binding to a node begin."""
        queue = self._queues[binding.node]
        queue.remove(binding)
        if not queue:
            del self._queues[binding.node]
        elif queue[0].step is BindingStep.QUEUED:
            self._begin(queue[0])

    @contextmanager
    def _isolated(self, binding: PendingBinding) -> Iterator[None]:
        """Let a step fail for one binding alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, all others go on
            self._fail(binding, error)

    def _fail(self, binding: PendingBinding, error: Exception) -> None:
        self._turn.failed("bind", binding.facts.full_name, error)
        written = binding.step is BindingStep.WRITING
        if binding.request in self._bindings:
            with self._turn.isolated("bind", binding.facts.full_name):
                # A binding that is being written may be there, so the node counts on the pod.
                self._end(binding, FAILED) if written else self._undo(binding, FAILED)
        self.give_up(binding.request)

    def give_up(self, request: int) -> None:
        """Answer a request that could be neither handled nor undone, so that nothing waits for the request."""
        binding = self._bindings.pop(request, None)
        answers = [instruction for instruction in self._turn.instructions if isinstance(instruction, AnswerBinding)]
        if all(answer.request != request for answer in answers):
            self._turn.emit(AnswerBinding(request, FAILED))
        if binding is None:
            return
        for waiting_bindings in self._waiting.values():
            waiting_bindings[:] = [other for other in waiting_bindings if other is not binding]
        if binding in self._queues.get(binding.node, ()):
            self._leave(binding)

    # Steps

    def _begin(self, binding: PendingBinding) -> None:
        with self._isolated(binding):
            if not self.leading:
                self._refuse(binding, NOT_LEADING)
                return
            node = binding.node
            without_report = self._cluster.record(node) is None
            alone = without_report and (self.allow_unknown or node in self._facts.approximate_nodes)
            turn = self._gangs.turn(binding.facts, node, alone=alone)
            if isinstance(turn, str):
                if turn:
                    self._refuse(binding, turn)
                else:
                    self._prepare(binding)
                return
            binding.step = BindingStep.GANG
            self._waiting.setdefault(turn, []).append(binding)
            self._leave(binding)

    def _prepare(self, binding: PendingBinding) -> None:
        """Assume a pod on its node, and steer it there."""
        pod, node = binding.pod, binding.node
        if problem := self._refusal(binding.facts, node):
            self._undo(binding, f"node {node}: {problem}")
            return
        binding.step = BindingStep.PREPARED
        binding.verdict = verdict = self._assumptions.assume(pod, node)
        if not verdict.admits:
            if problem := self._describe_refusal(pod, node, verdict):
                self._end(binding, f"node {node} {problem}")
                return
            self._assumptions.expect(pod, node)
        if _follows_claims(pod) and count_markers(pod) and self._facts.steering_known:
            self._read_claims(binding)  # the pod may be steered to the devices
        else:
            self._steer(binding)

    def _describe_refusal(self, pod: Pod, node: str, verdict: Verdict) -> str:
        """Return why a pod must not be bound to a node that does not admit it; empty: its scheduler may bind it."""
        if not needs_alignment(pod):
            return "" if self._assumptions.has_room(node, pod) else f"has {FULL}"
        if self.allow_unknown and self._cluster.record(node) is None and not needs_exact_host(pod):
            return ""
        detail = f" ({verdict.detail})" if verdict.detail else ""
        return f"does not admit the pod any more: {verdict.reason}{detail}"

    def _steer(self, binding: PendingBinding, claims_read: ClaimsRead | None = None) -> None:
        def beside(options: Mapping[NodeSet, Verdict]) -> dict[NodeSet, str]:
            if claims_read is None or claims_read.pod is None:
                return {}
            pod, node, claims = claims_read.pod, binding.node, claims_read.claims
            return claims_beside(options, lambda verdict: self._facts.explain_claims(pod, node, verdict, claims))

        def done(result: Steered) -> None:
            if binding.request in self._bindings and binding.steered is None:
                with self._isolated(binding):
                    self._steered(binding, result)

        self._steering.begin(binding.facts, binding.node, done, beside)

    def _steered(self, binding: PendingBinding, result: Steered) -> None:
        binding.steered = result.text
        binding.verdict = result.verdict or binding.verdict
        problem = claim_preference(binding.pod)[1]
        if binding.pod.uses_claims and problem:
            self._turn.emit(WriteEvent(binding.facts.uid, UNKNOWN_CLAIM_PREFERENCE, problem, gate=False))
        if result.problem:
            self._undo(binding, result.problem)
        elif _follows_claims(binding.pod):
            self._read_claims(binding)
        else:
            self._write(binding)

    def _read_claims(self, binding: PendingBinding) -> None:
        self._turn.emit(ReadPodClaims(binding.request, binding.pod, restricts_claims(binding.pod)))

    def claims_read(self, event: ClaimsRead) -> None:
        binding = self._bindings.get(event.request)
        if binding is None or binding.step is not BindingStep.PREPARED:
            return
        with self._isolated(binding):
            if binding.steered is None:
                self._steer(binding, event)
                return
            if event.pod is not None:
                explanation = self._facts.explain_claims(event.pod, binding.node, binding.verdict, event.claims)
                binding.check = self._claims.check(binding.facts, binding.node, explanation)
            elif restricts_claims(binding.pod):
                binding.check = ClaimCheck(f"alignup cannot read the claims of the pod: {event.problem}")
            else:
                binding.check = ClaimCheck(alignment=ClaimAlignment.UNKNOWN)
            if binding.check.problem:
                self._undo(binding, binding.check.problem)
            else:
                self._write(binding)

    def _write(self, binding: PendingBinding) -> None:
        verdict, uid = binding.verdict, binding.facts.uid
        # What the containers will get, if something of their own, and if it is certain.
        certain = verdict is not None and verdict.takes_resources and not verdict.alternatives
        placements = tuple(verdict.placements) if verdict and certain and not self._gangs.is_uncertain(uid) else None
        binding.step = BindingStep.WRITING
        self._turn.emit(WriteBinding(binding.request, binding.pod, binding.node, binding.steered or "", placements))

    # Outcomes

    def written(self, request: int) -> None:
        binding = self._bindings.get(request)
        if binding is not None:
            with self._isolated(binding):
                self._claims.bound(binding.facts.uid, binding.check)
                self._end(binding, "")

    def failed(self, request: int, problem: str, *, lost: bool) -> None:
        """Take note of a binding that was not written, or may have been (*lost*): then the node counts on the pod."""
        binding = self._bindings.get(request)
        if binding is not None:
            with self._isolated(binding):
                self._end(binding, problem) if lost else self._undo(binding, problem)

    def step_failed(self, request: int, error: Exception) -> None:
        """Take note of something unexpected while an instruction was carried out."""
        binding = self._bindings.get(request)
        if binding is not None:
            self._fail(binding, error)

    def _undo(self, binding: PendingBinding, problem: str) -> None:
        """Undo everything for a pod that is not bound."""
        self._assumptions.forget(binding.facts.uid)
        self._steering.cancel(binding.facts.uid, binding.node)
        self._end(binding, problem)

    def _end(self, binding: PendingBinding, problem: str) -> None:
        self._gangs.bound(binding.facts.uid, problem)
        self._refuse(binding, problem)

    def _refuse(self, binding: PendingBinding, problem: str) -> None:
        self._answer(binding, problem)
        self._leave(binding)

    def _answer(self, binding: PendingBinding, problem: str) -> None:
        del self._bindings[binding.request]
        self._turn.emit(AnswerBinding(binding.request, problem))
        with self._turn.isolated("bind", binding.facts.full_name):
            self._ended(binding.facts.uid, problem)


def _follows_claims(pod: Pod) -> bool:
    """Return whether it matters where the devices of a pod's claims are."""
    return pod.uses_claims and (claim_preference(pod)[0] is not ClaimPreference.IGNORE or restricts_claims(pod))
