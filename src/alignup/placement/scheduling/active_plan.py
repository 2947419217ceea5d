"""The plan that is carried out: room is held for it, pods are evicted one after the other, and others get their places.

    waiting → started → done    an eviction: its start is written before it is sent; done: the pod is gone
    waiting → started → done    an admission: the pod is offered its node only; done: its kubelet has admitted it
                      → failed: the plan ends, in words, and its room is given back

One plan at a time. Before each step, all remaining ones are decided again on the present state. Nothing is believed
that the object says about them. The progress is all that the next process knows: see ``plan_steps``.

A pod that is not part of the plan gets no place on one of its nodes if the remaining steps would not be possible after
it, unless its priority is higher. If something else takes the room, the plan ends.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from alignup.align.bits import NodeSet
from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.moves import MoveRules, PlanStep, RunningPod
from alignup.placement.scheduling.events import PlanActivated, PlanFactsRead, PlannedPodEvicted
from alignup.placement.scheduling.facts import ClusterFacts, PodFacts, WaitState
from alignup.placement.scheduling.failed_events import back_off
from alignup.placement.scheduling.instructions import (
    AwaitRoom,
    EvictPlannedPod,
    ReadPlanFacts,
    ReadPod,
    Report,
    WritePlan,
)
from alignup.placement.scheduling.known_schedulers import KnownSchedulers
from alignup.placement.scheduling.plan_room import PlanRoom
from alignup.placement.scheduling.plan_steps import (
    ActiveStep,
    EvictionOutcome,
    PendingEviction,
    PlanPhase,
    PlanProgress,
    RunningPlan,
    StepPhase,
    execution_order,
    find_protection,
    is_alike,
)
from alignup.placement.scheduling.turn import IsolatedStep, Turn
from alignup.placement.verdict import Verdict, VerdictKind, unknown

CHECK_SECONDS = 5.0  #: between two readings of the facts while a step waits for them to change
LONGEST_RETRY = 30.0  #: seconds between two tries of an eviction
GATE_SECONDS = 30.0  #: after its begin, in which a plan waits until the gate is open
FORBIDDEN_SECONDS = 300.0  #: for which PodDisruptionBudgets may forbid an eviction; then the plan ends
DEADLINE = "its deadline has passed"
FAILED = "alignup failed on the plan, and its log says why"
_UNDECIDED = unknown("not decided yet")


class ActivePlan:
    """The plan that this process carries out, if there is one; *changed* is called with nodes that have room again."""

    def __init__(  # noqa: PLR0913 - everything that a step depends on
        self,
        cluster: Cluster,
        facts: ClusterFacts,
        *,
        schedulers: KnownSchedulers,
        turn: Turn,
        waiting: Callable[[], Collection[str]],
        on_change: Callable[[Collection[str]], object],
    ) -> None:
        self._cluster = cluster
        self._facts = facts
        self._schedulers = schedulers
        self._turn = turn
        self._waiting = waiting  #: returns the uids of pods without nodes
        self._changed = on_change
        self._plan: RunningPlan | None = None
        self._dirty = False  #: whether something has happened that the next step may wait for
        self._room = PlanRoom(cluster)

    @property
    def name(self) -> str:
        """The name of the plan; empty: there is none."""
        return self._plan.order.name if self._plan else ""

    @property
    def nodes(self) -> Collection[str]:
        """The nodes of the remaining steps."""
        plan = self._plan
        return dict.fromkeys(plan.steps[index].node for index in plan.remaining()) if plan else ()

    # Questions

    def place_of(self, uid: str) -> str | None:
        """Return the node that a pod of the plan may get now; empty: none yet; ``None``: it is not part of the plan."""
        plan = self._plan
        if plan is None:
            return None
        with self._isolated("find the place of a pod"):
            index = self._admission_of(uid)
            if index is not None:
                return plan.steps[index].node if plan.is_open(index) else ""
        return None

    def keeps_out(self, node: str, pod: Pod, *, after: Sequence[Pod] = ()) -> bool:
        """Return whether a pod must not get a place on *node*, beside pods of its gang that come before this pod."""
        plan = self._plan
        if plan is None:
            return False
        with self._isolated("keep room"):
            place = self.place_of(pod.uid)
            if place is not None:
                return node != place
            record = self._cluster.record(node)
            if not self._is_held(plan, node, pod) or (record is not None and record.holds(pod.uid)):
                return False
            return self._room.is_taken_by(plan, node, (*after, pod))
        return False

    def keeps_off(self, node: str, pod: Pod, numa_nodes: NodeSet) -> bool:
        """Return whether a pod that is placed on *node* must not be steered to these NUMA nodes."""
        plan = self._plan
        if plan is None:
            return False
        with self._isolated("keep room"):
            if self._admission_of(pod.uid) is None and not self._is_held(plan, node, pod):
                return False
            return node in self.nodes and not self._room.is_left_by(plan, node, pod, numa_nodes)
        return False

    def has_room(self, node: str) -> bool:
        """Return whether the remaining steps on *node* are possible as it is now."""
        plan = self._plan
        with self._isolated("keep room"):
            return plan is None or node not in self.nodes or not self._room.is_taken_by(plan, node, ())
        return False

    def _is_held(self, plan: RunningPlan, node: str, pod: Pod) -> bool:
        """Return whether the room on *node* is held from a pod that is not part of the plan."""
        return (pod.priority or 0) <= plan.priority and node in self.nodes

    def refusals(self, pod: Pod) -> dict[str, str]:
        """Return the nodes that the plan keeps from a pod, and why."""
        if self._plan is None:
            return {}
        with self._isolated("keep room"):
            nodes = self.nodes if self.place_of(pod.uid) is None else self._facts.nodes
            return {node: self.describe(pod) for node in nodes if self.keeps_out(node, pod)}
        return {}

    def describe(self, pod: Pod | None = None) -> str:
        """Return why a pod does not get a node of the plan."""
        if pod is not None and self.place_of(pod.uid) is not None:
            return f"waits for plan {self.name}"
        return f"held for plan {self.name}"

    # Begin and end

    def activated(self, event: PlanActivated) -> None:
        """Begin to carry out a plan, or go on with it."""
        self.close()
        order = event.order
        sequence = execution_order(order.steps)
        plan = self._plan = RunningPlan(order, sequence, list(order.progress), order.paused, self._turn.now)
        with self._isolated("begin"):
            self._report("plan activated")
            problem = self._begin(plan, event.facts)
            if problem:
                self._fail(problem)
                return
            self._write()
            if self._plan is plan:
                self._match_waiting(plan)
                self._facts_read(plan, event.facts)
            self._refresh(plan)
            self._changed(tuple(self.nodes))

    def _begin(self, plan: RunningPlan, facts: PlanFactsRead) -> str:
        """Take note of the pods of a plan; return why it cannot be carried out, or nothing."""
        running_pods = {pod.pod.uid: pod for pod in facts.pods}
        for index, step in enumerate(plan.steps):
            if plan.progress[index].finished:
                continue
            if step.evicts:
                problem = self._begin_eviction(plan, index, running_pods)
            elif step.replacement:
                problem = self._begin_replacement(plan, index, running_pods)
            else:
                problem = self._begin_admission(plan, index, running_pods)
            if problem:
                return f"step {index + 1}: {problem}"
        plan.priority = max((pod.priority or 0 for pod in plan.pods.values()), default=0)
        return ""

    def _begin_eviction(self, plan: RunningPlan, index: int, running_pods: Mapping[str, RunningPod]) -> str:
        step = plan.steps[index]
        pod, evicted_pod = running_pods.get(step.uid), plan.progress[index].evicted
        if pod is None:  # it is gone already
            plan.pods |= {} if evicted_pod is None else {index: evicted_pod}
            return ""
        if f"{pod.pod.namespace}/{pod.pod.name}" != step.pod:
            return f"pod {step.pod} does not have this uid"
        if pod.host != step.node:
            return f"{step.pod} is on node {pod.host}, not on {step.node}"
        if not self._schedulers.has(pod.scheduler):
            return f"no known scheduler schedules the replacement of {step.pod}: {pod.scheduler}"
        plan.pods[index] = pod.pod
        return ""

    def _begin_replacement(self, plan: RunningPlan, index: int, running_pods: Mapping[str, RunningPod]) -> str:
        step, eviction = plan.steps[index], plan.eviction_of(index)
        if eviction is None or plan.sequence.index(eviction) > plan.sequence.index(index):
            return f"{step.pod} is not evicted before"
        pod = running_pods[step.uid].pod if step.uid in running_pods else plan.progress[eviction].evicted
        if pod is not None:
            plan.pods[index] = pod
        elif plan.progress[eviction].finished and plan.progress[eviction].phase is not StepPhase.SKIPPED:
            return f"it is not known what {step.pod} requested"
        hosts = running_pods[step.uid].hosts if step.uid in running_pods else None
        if hosts is not None and step.node not in hosts:
            return f"no scheduler sends the replacement of {step.pod} to node {step.node}"
        replacement = running_pods.get(plan.progress[index].placed)
        if replacement is not None:
            return self._note_binding(plan, index, replacement.pod.uid, replacement.host)
        return ""

    def _begin_admission(self, plan: RunningPlan, index: int, running_pods: Mapping[str, RunningPod]) -> str:
        step = plan.steps[index]
        pod = running_pods.get(step.uid)
        if pod is not None:
            plan.pods[index] = pod.pod
            return self._note_binding(plan, index, step.uid, pod.host)
        try:
            facts = self._facts.readable_pod(step.uid)
        except (AlignError, KeyError) as error:
            return f"{step.pod} cannot be read: {error}"
        plan.pods[index] = facts.pod
        if facts.pod.uses_claims:
            return f"{step.pod} has ResourceClaims"
        if not self._facts.allows(facts, step.node):
            return f"no scheduler sends {step.pod} to node {step.node}"
        if facts.released_to and facts.released_to != (step.node,):
            return f"{step.pod} was released to node {','.join(facts.released_to)} before"
        return ""

    def set_paused(self, uid: str, paused: bool) -> None:  # noqa: FBT001 - as the event has it
        plan = self._plan
        if plan is not None and plan.uid == uid and plan.paused != paused:
            plan.paused = paused
            self.retry()
            self._write()

    def cancelled(self, uid: str) -> None:
        """Give the room back: the object of the plan was deleted."""
        if self._plan is not None and self._plan.uid == uid:
            self._report("plan ended", outcome="Cancelled", reason="the object was deleted")
            self.close()

    def close(self) -> None:
        """Forget the plan; another process goes on with it, or none does."""
        plan, self._plan = self._plan, None
        self._room.clear()
        if plan is not None:
            self._refresh(plan)
            self._changed(tuple({plan.steps[index].node for index in plan.remaining()}))

    def step_failed(self, uid: str, error: Exception) -> None:
        """Take note of something unexpected while an instruction about the plan was carried out."""
        self._turn.failed("plan", self.name or uid, error)
        if self._plan is not None and self._plan.uid == uid:
            self._fail(FAILED)

    def _fail(self, reason: str) -> None:
        """End the plan, in words."""
        plan = self._plan
        if plan is None:
            return
        current = next(iter(plan.remaining()), None)
        for index in plan.remaining():
            started = plan.progress[index].phase is StepPhase.STARTED
            phase = StepPhase.FAILED if index == current or started else StepPhase.SKIPPED
            message = reason if phase is StepPhase.FAILED else ""
            plan.progress[index] = replace(plan.progress[index], phase=phase, message=message)
        self._end(plan, PlanPhase.FAILED, reason)

    def _end(self, plan: RunningPlan, phase: PlanPhase, message: str) -> None:
        plan.message = message
        self._write(phase)
        self._report("plan ended", outcome=str(phase), reason=message)
        nodes = {step.node for step in plan.steps}
        self._plan = None
        self._room.clear()
        self._refresh(plan)
        self._changed(tuple(sorted(nodes)))

    def _refresh(self, plan: RunningPlan) -> None:
        """Let the gate queue the pods of the plan again: which of them are alike has changed."""
        for index, step in enumerate(plan.steps):
            uid = "" if step.evicts else plan.uid_of(index)
            if uid and self._facts.pod(uid) is not None:
                self._turn.emit(ReadPod(uid))

    def _write(self, phase: PlanPhase | None = None) -> None:
        plan = self._plan
        if plan is None:
            return
        plan.number += 1
        self._dirty = True
        self._room.clear()
        phase = phase or (PlanPhase.PAUSED if plan.paused else PlanPhase.RUNNING)
        evicted_count = sum(
            step.evicts and progress.phase is StepPhase.DONE
            for step, progress in zip(plan.steps, plan.progress, strict=True)
        )
        progress = PlanProgress(phase=phase, message=plan.message, steps=tuple(plan.progress), evicted=evicted_count)
        self._turn.emit(WritePlan(plan.uid, plan.number, progress))

    def _set(self, plan: RunningPlan, index: int, phase: StepPhase, message: str = "") -> None:
        plan.progress[index] = replace(plan.progress[index], phase=phase, message=message)
        self._write()

    def _wait(self, plan: RunningPlan, message: str) -> None:
        """Say what the next step waits for."""
        if plan.message != message:
            plan.message = message
            self._write()

    # What happens

    def written(self, uid: str, number: int) -> None:
        plan = self._plan
        if plan is None or plan.uid != uid:
            return
        plan.written = max(plan.written, number)
        self._dirty = True
        eviction = plan.eviction
        if eviction is not None and eviction.checked and plan.written >= eviction.number:
            eviction.checked = False
            if not plan.paused:
                self._send(plan, eviction)
        for pod_uid, last_number in tuple(plan.recorded.items()):
            if plan.written >= last_number:
                del plan.recorded[pod_uid]
                self._offer(plan, pod_uid)

    def _send(self, plan: RunningPlan, eviction: PendingEviction) -> None:
        eviction.sent = True
        self._turn.emit(EvictPlannedPod(plan.uid, eviction.step, plan.pods[eviction.step]))

    def evicted(self, event: PlannedPodEvicted) -> None:
        """Take note of the answer to an eviction."""
        plan = self._plan
        eviction = plan.eviction if plan is not None and plan.uid == event.plan else None
        if plan is None or eviction is None or eviction.step != event.step or not eviction.sent:
            return
        eviction.sent = False
        self._dirty = True
        step, now = plan.steps[event.step], self._turn.now
        self._report("planned eviction", outcome=str(event.outcome), evicted=step.pod, node=step.node)
        if event.outcome in {EvictionOutcome.ACCEPTED, EvictionOutcome.GONE}:
            plan.read_at = now + LONGEST_RETRY  # if it still runs then, it was not evicted
            return
        if event.outcome is EvictionOutcome.REFUSED:
            self._fail(f"{step.pod} cannot be evicted: {event.problem}")
            return
        eviction.tries += 1
        plan.read_at = now + max(min(back_off(eviction.tries), LONGEST_RETRY), min(event.retry_after, LONGEST_RETRY))
        if event.outcome is EvictionOutcome.FORBIDDEN:
            since = eviction.forbidden_since = now if eviction.forbidden_since is None else eviction.forbidden_since
            if now - since >= FORBIDDEN_SECONDS:
                seconds = f"for {FORBIDDEN_SECONDS:.0f} s"
                self._fail(f"PodDisruptionBudgets have not allowed to evict {step.pod} {seconds}: {event.problem}")
                return
            self._wait(plan, f"PodDisruptionBudgets do not allow to evict {step.pod} now: {event.problem}")

    def pod_seen(self, facts: PodFacts) -> None:
        """Take note of a pod without a node, which may be a replacement."""
        plan = self._plan
        if plan is not None and facts.controllers:
            with self._isolated("find replacements"):
                self._match(plan, facts)

    def _match_waiting(self, plan: RunningPlan) -> None:
        """Look for replacements among all pods without nodes."""
        for uid in tuple(self._waiting()):
            facts = self._facts.pod(uid)
            if facts is not None and facts.controllers:
                self._match(plan, facts)

    def _match(self, plan: RunningPlan, facts: PodFacts) -> None:
        planned_uids = {plan.uid_of(index) for index, step in enumerate(plan.steps) if not step.evicts}
        if facts.uid in planned_uids:
            return
        for index in plan.remaining():
            step, eviction = plan.steps[index], plan.eviction_of(index) if plan.steps[index].replacement else None
            if eviction is None or plan.progress[index].placed:
                continue
            begun = plan.progress[eviction]
            alike = begun.evicted is not None and is_alike(begun.evicted, facts.pod)
            if (
                begun.phase in {StepPhase.STARTED, StepPhase.DONE}
                and alike
                and not begun.controllers.isdisjoint(facts.controllers)
                and facts.uid not in begun.earlier
                and facts.uid != step.uid
            ):
                plan.progress[index] = replace(plan.progress[index], placed=facts.uid)
                plan.pods[index] = facts.pod  # with its annotations, which may demand more
                self._write()
                plan.recorded[facts.uid] = plan.number
                self._turn.emit(ReadPod(facts.uid))
                return

    def pod_bound(self, uid: str, node: str) -> None:
        plan = self._plan
        index = self._admission_of(uid)
        if plan is not None and index is not None:
            problem = self._note_binding(plan, index, uid, node)
            if problem:
                self._fail(problem)

    def _note_binding(self, plan: RunningPlan, index: int, uid: str, node: str) -> str:
        step = plan.steps[index]
        self._dirty = True
        if node != step.node:
            subject = f"the replacement of {step.pod}" if step.replacement else step.pod
            return f"{subject} was bound to node {node}, not to {step.node}"
        plan.bound.add(uid)
        return ""

    def pod_gone(self, uid: str) -> None:
        plan, index = self._plan, self._admission_of(uid)
        self._dirty = True
        if plan is None or index is None:
            return
        if uid in plan.bound:
            self._set(plan, index, StepPhase.DONE)
        elif plan.steps[index].replacement:  # its controller creates another
            plan.recorded.pop(uid, None)
            plan.progress[index] = replace(plan.progress[index], placed="")
            self._write()
            self._match_waiting(plan)
        else:
            self._fail(f"{plan.steps[index].pod} is gone")

    def pod_rejected(self, uid: str, node: str, reason: str) -> None:
        plan, index = self._plan, self._admission_of(uid)
        if plan is not None and index is not None:
            self._fail(f"the kubelet of {node} has rejected {plan.steps[index].pod}: {reason}")

    def _admission_of(self, uid: str) -> int | None:
        """Return the remaining step that admits a pod."""
        return self._plan.admission_of(uid) if self._plan is not None else None

    def hosts_changed(self) -> None:
        self._dirty = True

    def check(self) -> None:
        """Take note that time has passed."""
        self._dirty = True

    def retry(self) -> None:
        """Try the next step at once, not after a while."""
        self._dirty = True
        if self._plan is not None:
            self._plan.read_at = self._turn.now

    # Steps

    def advance(self) -> None:
        """Go on with the plan as far as it is possible now."""
        while self._plan is not None and self._dirty:
            self._dirty = False
            with self._isolated("go on"):
                self._advance(self._plan)

    def _advance(self, plan: RunningPlan) -> None:
        if self._turn.now >= plan.order.deadline:
            self._fail(DEADLINE)
            return
        self._skip_gone(plan)
        steps_left = plan.remaining()
        if not steps_left:
            self._end(plan, PlanPhase.SUCCEEDED, "")
        elif plan.steps[steps_left[0]].evicts:
            self._advance_eviction(plan, steps_left[0])
        else:
            self._advance_admissions(plan, self._stage(plan, steps_left))

    def _stage(self, plan: RunningPlan, steps_left: Sequence[int]) -> list[int]:
        """Return the next admission, with the admissions of all pods of the plan or of the same gang that follow."""
        stage = [steps_left[0]]
        for index in steps_left[1:]:
            step, first = plan.steps[index], plan.steps[stage[0]]
            together = self._are_together(plan.uid_of(stage[0]), plan.uid_of(index))
            if step.evicts or not (together or not (step.replacement or first.replacement)):
                break
            stage.append(index)
        return stage

    def _is_gone(self, step: ActiveStep) -> bool:
        """Return whether a pod is certainly not on its node any more."""
        record = self._cluster.record(step.node)
        if record is None or not record.states().ledgers:
            return False
        return not any(step.uid in ledger.pods for ledger in record.states().ledgers)

    def _skip_gone(self, plan: RunningPlan) -> None:
        """Skip evictions of pods that are gone already; their controllers have created other pods then."""
        for index in plan.remaining():
            step = plan.steps[index]
            if step.evicts and plan.progress[index].phase is StepPhase.WAITING and self._is_gone(step):
                self._skip(plan, index)

    def _skip(self, plan: RunningPlan, index: int) -> None:
        message = f"{plan.steps[index].pod} was gone before its eviction"
        replacement = plan.replacement_of(index)
        if replacement is not None:
            plan.progress[replacement] = replace(plan.progress[replacement], phase=StepPhase.SKIPPED, message=message)
        self._set(plan, index, StepPhase.SKIPPED, message)

    # Evictions

    def _advance_eviction(self, plan: RunningPlan, index: int) -> None:
        if plan.eviction is None or plan.eviction.step != index:
            plan.eviction = PendingEviction(index)
        eviction, has_started = plan.eviction, plan.progress[index].phase is StepPhase.STARTED
        if has_started and self._is_gone(plan.steps[index]):
            plan.eviction = None
            plan.message = ""
            self._set(plan, index, StepPhase.DONE)
            self._match_waiting(plan)
            return
        under_way = eviction.sent or eviction.checked or plan.reading
        if not under_way and not plan.paused and self._turn.now >= plan.read_at:
            plan.reading = True
            self._turn.emit(ReadPlanFacts(plan.uid))

    def facts_read(self, event: PlanFactsRead) -> None:
        """Go on with an eviction if that is still possible and allowed."""
        plan = self._plan
        if plan is not None and plan.uid == event.plan:
            with self._isolated("evict"):
                plan.reading = False
                self._dirty = True
                self._facts_read(plan, event)

    def _facts_read(self, plan: RunningPlan, facts: PlanFactsRead) -> None:
        plan.read_at = self._turn.now + CHECK_SECONDS
        if facts.problem:
            self._wait(plan, f"cannot read which pods may be evicted: {facts.problem}")
            return
        running_pods = {pod.pod.uid: pod for pod in facts.pods}
        for index in plan.remaining():
            step = plan.steps[index]
            if step.evicts and plan.progress[index].phase is StepPhase.WAITING and step.uid not in running_pods:
                self._skip(plan, index)
        if problem := find_protection(plan, running_pods):
            self._fail(problem)
            return
        current = next(iter(plan.remaining()), None)
        if current is None or not plan.steps[current].evicts or plan.paused:
            return
        eviction = plan.eviction
        if eviction is None or eviction.step != current:
            eviction = plan.eviction = PendingEviction(current)
        pod = running_pods.get(plan.steps[current].uid)
        if pod is None or pod.terminating:
            plan.read_at = self._turn.now + LONGEST_RETRY
        elif not (eviction.sent or eviction.checked) and self._prove(plan):
            self._start(plan, eviction, pod, facts)

    def _start(self, plan: RunningPlan, eviction: PendingEviction, pod: RunningPod, facts: PlanFactsRead) -> None:
        """Evict a pod, after the start is written."""
        index = eviction.step
        plan.pods[index] = pod.pod
        if plan.progress[index].phase is StepPhase.STARTED and plan.written >= eviction.number:
            self._send(plan, eviction)
            return
        earlier = {uid for controller in pod.controllers for uid in facts.waiting.get(controller, ())}
        plan.message = ""
        plan.progress[index] = replace(
            plan.progress[index],
            phase=StepPhase.STARTED,
            evicted=pod.pod,
            controllers=pod.controllers,
            earlier=frozenset(earlier),
        )
        replacement = plan.replacement_of(index)
        if replacement is not None:
            plan.pods[replacement] = pod.pod
        self._write()
        eviction.number = plan.number
        eviction.checked = True

    # Admissions

    def _advance_admissions(self, plan: RunningPlan, stage: Sequence[int]) -> None:
        for index in stage:
            step = plan.steps[index]
            record, uid = self._cluster.record(step.node), plan.uid_of(index)
            if uid in plan.bound and record is not None and uid in record.ledger.pods:
                self._set(plan, index, StepPhase.DONE)
        unfinished_steps = [index for index in stage if not plan.progress[index].finished]
        if not unfinished_steps or not self._prove(plan):
            return
        first_on_node: dict[str, str] = {}  #: node → uid of the first pod that waits there
        for index in unfinished_steps:
            step, uid = plan.steps[index], plan.uid_of(index)
            first = first_on_node.setdefault(step.node, uid)
            if plan.progress[index].phase is StepPhase.WAITING and (first == uid or self._are_together(first, uid)):
                plan.message = ""
                self._set(plan, index, StepPhase.STARTED, f"waits for the pod, which gets node {step.node}")
                self._offer(plan, uid)

    def _are_together(self, uid: str, other: str) -> bool:
        """Return whether two pods are of one gang, whose order on a node its own rules decide."""
        groups = [facts.group for member in (uid, other) if (facts := self._facts.pod(member)) is not None]
        return len(groups) == 2 and groups[0] is not None and groups[0] == groups[1]

    def _offer(self, plan: RunningPlan, uid: str) -> None:
        """Let a pod be tried again that may get its node now."""
        index = self._admission_of(uid)
        if uid and index is not None and plan.is_open(index):
            node = plan.steps[index].node
            self._turn.emit(AwaitRoom(uid, (node,)))
            self._changed((node,))

    # Proofs

    def _prove(self, plan: RunningPlan) -> bool:
        """Decide on all remaining steps again; end the plan if they are not possible any more, or wait."""
        if not all(self._is_scheduled(plan, index) for index in plan.remaining()):
            return False
        steps, indices = [], []
        for index in plan.remaining():
            step, pod = plan.steps[index], plan.pods.get(index)
            record = self._cluster.record(step.node)
            if pod is None:
                self._fail(f"step {index + 1}: it is not known what {step.pod} requests")
                return False
            if step.evicts:
                steps.append(PlanStep(pod, step.node))
            elif record is not None and record.holds(plan.uid_of(index)):
                continue
            else:
                steps.append(PlanStep(pod, step.node, _UNDECIDED, step.replacement))
            indices.append(index)
        rules = MoveRules(pods={step.pod.uid: RunningPod(pod=step.pod, host=step.host) for step in steps})
        proved_steps, problem = self._cluster.planner(rules, [step.pod for step in steps]).prove(steps)
        if problem is None:
            return True
        index = indices[len(proved_steps)]
        return self._judge(plan, index, problem)

    def _is_scheduled(self, plan: RunningPlan, index: int) -> bool:
        """Return whether a known scheduler schedules the pod of an admission, if it waits; end the plan if not."""
        uid, step = plan.uid_of(index), plan.steps[index]
        facts = None if step.evicts or uid in plan.bound else self._facts.pod(uid)
        if facts is None or self._schedulers.know(facts):
            return True
        if facts.state is WaitState.GATED and self._turn.now - plan.since < GATE_SECONDS:
            self._wait(plan, f"waits until the gate is open, behind which {step.pod} is")
        else:
            self._fail(f"no known scheduler schedules {step.pod}: {facts.scheduler}")
        return False

    def _judge(self, plan: RunningPlan, index: int, problem: Verdict) -> bool:
        detail = f" ({problem.detail})" if problem.detail else ""
        text = f"step {index + 1}, {plan.steps[index]}: {problem.reason}{detail}"
        if problem.kind is VerdictKind.REJECTS:
            self._fail(f"the remaining steps are not possible any more: {text}")
        else:
            self._wait(plan, f"waits until the remaining steps can be decided: {text}")
        return False

    # Bookkeeping

    def _isolated(self, action: str) -> IsolatedStep:
        """Let any error in the block end the plan, and nothing else."""
        return IsolatedStep(self.fail_unexpectedly, action)

    def fail_unexpectedly(self, action: str, error: Exception) -> None:
        """End the plan because of a defect. Ending it may raise the same error."""
        plan = self._plan
        self._turn.failed("plan", f"{self.name}: {action}", error)
        try:
            self._fail(FAILED)
        except Exception as second:  # noqa: BLE001 - see above
            self._turn.failed("plan", f"{self.name}: end", second)
            self._plan = None
            if plan is not None:
                plan.number += 1
                progress = PlanProgress(phase=PlanPhase.FAILED, message=FAILED, steps=tuple(plan.progress))
                self._turn.emit(WritePlan(plan.uid, plan.number, progress))

    def _report(self, event: str, **details: object) -> None:
        self._turn.emit(Report(event, details={"plan": self.name, **details}))
