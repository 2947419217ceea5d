"""A scheduling state that carries out a plan, with an API server and kubelets in a few lines."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.host_report import PodStage
from alignup.placement.moves import RunningPod
from alignup.placement.scheduling import events, instructions
from alignup.placement.scheduling.facts import GroupKey, PodFacts, WaitState
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.plan_steps import (
    ActiveStep,
    EvictionOutcome,
    PlanOrder,
    PlanPhase,
    PlanProgress,
    StepPhase,
    StepProgress,
)
from tests.placement.scheduling.machine import SCHEDULER, Machine

PLAN = "plan-uid"
DEADLINE = 1000.0


def evict(uid: str, node: str) -> ActiveStep:
    return ActiveStep(uid=uid, pod=f"default/{uid}", node=node, evicts=True)


def admit(uid: str, node: str) -> ActiveStep:
    return ActiveStep(uid=uid, pod=f"default/{uid}", node=node)


def move(uid: str, node: str) -> ActiveStep:
    return ActiveStep(uid=uid, pod=f"default/{uid}", node=node, replacement=True)


class PlanMachine(Machine):
    """Hosts whose pods belong to the controller ``owner-UID`` each; instructions about the plan are carried out."""

    def __init__(self, hosts: dict[str, Host], *, gate: GateOptions | None = None) -> None:
        self.running: dict[str, RunningPod] = {}
        self.todo: deque[Instruction] = deque()
        self.progress: PlanProgress | None = None  #: that was written last
        self.evictions: list[str] = []
        self.answers: deque[EvictionOutcome] = deque()  #: to the next evictions; then they are accepted
        self.writes = True  #: whether the status is written
        self.numbers = 0
        self.busy = False
        super().__init__(hosts, gate=gate)
        for name, host in hosts.items():
            for uid, admitted in host.ledger.pods.items():
                self.facts.bound[uid] = (admitted.pod, name)
                self.run_pod(admitted.pod, name)

    def run_pod(self, pod: Pod, node: str, **more: Any) -> None:
        owners = frozenset((f"owner-{pod.uid.partition('-')[0]}",))
        self.running[pod.uid] = RunningPod(pod=pod, host=node, controllers=owners, scheduler=SCHEDULER, **more)

    def protect(self, uid: str, why: str) -> None:
        self.running[uid] = replace(self.running[uid], protected=why)

    # The shell

    def handle(self, event: events.Event) -> list[Instruction]:
        done = super().handle(event)
        self.todo.extend(done)
        if not self.busy:
            self.busy = True
            while self.todo:
                self.carry_out(self.todo.popleft())
            self.busy = False
        return done

    def read_facts(self) -> events.PlanFactsRead:
        waiting: dict[str, tuple[str, ...]] = {}
        for facts in self.facts.pods.values():
            for owner in facts.controllers:
                waiting[owner] = (*waiting.get(owner, ()), facts.uid)
        return events.PlanFactsRead(PLAN, tuple(self.running.values()), waiting)

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case instructions.ReadPlanFacts():
                self.handle(self.read_facts())
            case instructions.WritePlan(_, number, progress) if self.writes:
                self.progress = progress
                self.handle(events.PlanWritten(PLAN, number))
            case instructions.EvictPlannedPod(_, step, pod):
                self.evictions.append(pod.uid)
                outcome = self.answers.popleft() if self.answers else EvictionOutcome.ACCEPTED
                if outcome is EvictionOutcome.ACCEPTED:
                    self.terminate(pod.uid)
                self.handle(events.PlannedPodEvicted(PLAN, step, outcome, "said the server"))
            case instructions.ReadPod(uid) if uid in self.facts.pods:
                self.handle(events.PodSeen(self.facts.pods[uid]))

    # What happens

    def activate(
        self, *steps: ActiveStep, paused: bool = False, progress: Sequence[StepProgress] | None = None
    ) -> None:
        known = tuple(progress or (StepProgress(),) * len(steps))
        order = PlanOrder(
            uid=PLAN, name="room", steps=steps, progress=known, deadline=self.now + DEADLINE, paused=paused
        )
        self.handle(events.PlanActivated(order, self.read_facts()))

    def terminate(self, uid: str) -> None:
        known = self.running[uid]
        self.running[uid] = replace(known, terminating=True)
        self.handle(events.PodObserved(known.pod, known.host, PodStage.TERMINATING))

    def end(self, uid: str) -> None:
        """The kubelet has ended a pod, and its object is gone."""
        known = self.running.pop(uid)
        self.hosts[known.host].release(uid)
        self.handle(events.PodObserved(known.pod, known.host, PodStage.ENDED))
        self.gone(uid)
        self.report(known.host)

    def come(
        self, pod: Pod, owner: str = "", *, state: WaitState = WaitState.UNSCHEDULABLE, group: GroupKey | None = None
    ) -> PodFacts:
        """A pod without a node is there."""
        order = (-(pod.priority or 0), pod.uid, pod.namespace, pod.name)
        owners = frozenset((owner,)) if owner else frozenset()
        facts = PodFacts(
            pod=pod, order=order, state=state, since=self.now, scheduler=SCHEDULER, group=group, controllers=owners
        )
        return self.see(facts)

    def ask(self, facts: PodFacts) -> instructions.AnswerNodes:
        """Its scheduler asks for nodes."""
        done = self.handle(events.NodesAsked(facts, sorted(self.facts.nodes)))
        return next(each for each in done if isinstance(each, instructions.AnswerNodes))

    def ask_to_bind(self, facts: PodFacts, node: str) -> str:
        """Its scheduler binds it; return the problem."""
        self.numbers += 1
        number = self.numbers
        done = self.handle(events.BindingAsked(number, facts, node))
        if any(isinstance(each, instructions.WriteBinding) for each in done):
            done = self.handle(events.BindingWritten(number))
        return next(each.problem for each in done if isinstance(each, instructions.AnswerBinding))

    def run(self, facts: PodFacts, node: str) -> None:
        """The API server shows a binding, and the kubelet admits the pod."""
        pod = facts.pod
        self.facts.pods.pop(pod.uid, None)
        self.facts.bound[pod.uid] = (pod, node)
        self.run_pod(pod, node)
        self.handle(events.PodObserved(pod, node, PodStage.RUNNING))
        self.handle(events.PodBound(pod.uid, node, None))
        assert self.hosts[node].admit(pod).admitted, pod.uid
        self.report(node)

    def schedule(self, facts: PodFacts) -> str:
        """A scheduler binds a pod to the only node that it is offered; return the node, or nothing."""
        offered = self.ask(facts).offered
        if not offered:
            return ""
        (node,) = offered
        assert not self.ask_to_bind(facts, node)
        self.run(facts, node)
        return node

    @property
    def phase(self) -> PlanPhase:
        assert self.progress
        return self.progress.phase

    @property
    def message(self) -> str:
        assert self.progress
        return self.progress.message

    @property
    def phases(self) -> list[StepPhase]:
        assert self.progress
        return [step.phase for step in self.progress.steps]
