"""Plans in the random cluster: each pod is evicted once at most, others get no room of theirs, and they end as planned.

Or they end in words, whatever goes wrong: lost requests and responses, restarts, changes of the leader, plans that are
not true, strangers, and pods of higher priority.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.host_report import PodStage
from alignup.placement.moves import MoveRules, PendingPod, RunningPod
from alignup.placement.scheduling import events, instructions, tentative_gangs
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.plan_steps import (
    ActiveStep,
    EvictionOutcome,
    PlanOrder,
    PlanPhase,
    StepPhase,
    StepProgress,
)
from alignup.testing.replay import replay
from tests.effort import SEED, did, rounds
from tests.placement.scheduling.machine import SCHEDULER
from tests.placement.scheduling.model_api import GATE, ModelPod
from tests.placement.scheduling.model_shell import InjectedError, Shell
from tests.placement.scheduling.test_model import Model
from tests.placement.scheduling.test_transitions import PAGE

DEADLINE = 60.0  #: seconds
ASSUMING = frozenset(("NodesAsked", "BindingAsked", "PlaceNext"))  #: events after which pods are assumed, and no more


@dataclass
class ModelPlan:
    """A plan in the API server."""

    uid: str
    steps: tuple[ActiveStep, ...]
    created: float
    true: bool  #: whether it is as the planner said
    phase: PlanPhase = PlanPhase.PENDING
    message: str = ""
    evicted: int = 0
    progress: tuple[StepProgress, ...] = ()
    paused: bool = False
    sent: Counter[str] = field(default_factory=Counter)  #: uid → how often the pod was evicted

    @property
    def final(self) -> bool:
        return self.phase in {PlanPhase.SUCCEEDED, PlanPhase.FAILED}


class PlanShell(Shell):
    """A process that carries out plans as well; *model* has them."""

    def __init__(self, model: "PlanModel", record: Path | None = None) -> None:
        self.model = model
        self.active = ""  #: uid of the plan
        self.pending: instructions.WritePlan | None = None
        self.writing = False
        super().__init__(model.api, model, faults=lambda: model.faulty, record=record)

    def carry_out(self, done: list[Instruction]) -> list[Instruction]:
        super().carry_out(done)
        for instruction in done if self.leading else ():
            match instruction:
                case instructions.ReadPlanFacts(plan):
                    self.later(self.random.uniform(0, 0.3), partial(self.read_facts, plan))
                case instructions.WritePlan():
                    self.pending = instruction
                    if not self.writing:
                        self.writing = True
                        self.later(self.random.uniform(0, 0.3), self.write_plan)
                case instructions.EvictPlannedPod():
                    self.evict(instruction)
        return done

    def lead(self) -> None:
        super().lead()
        if self.leading and not self.closed:
            self.follow_plans()

    def tick(self) -> None:
        super().tick()
        if self.leading and not self.closed:
            self.follow_plans()

    def follow_plans(self) -> None:
        plans = self.model.plans
        if self.active and self.active not in plans:
            self.handle(events.PlanCancelled(self.active))
            self.active, self.pending = "", None
        if self.active:
            self.handle(events.PlanPaused(self.active, plans[self.active].paused))
        waiting = [plan for plan in plans.values() if not plan.final]
        if not self.active and waiting and not self.writing:
            plan = waiting[0]
            self.active = plan.uid
            progress = plan.progress or (StepProgress(),) * len(plan.steps)
            order = PlanOrder(
                uid=plan.uid,
                name=plan.uid,
                steps=plan.steps,
                progress=progress,
                deadline=plan.created + DEADLINE,
                paused=plan.paused,
            )
            self.handle(events.PlanActivated(order, self.model.facts_of(plan)))

    def read_facts(self, uid: str) -> None:
        plan = self.model.plans.get(uid)
        if plan is None or (self.faults() and self.random.random() < 0.1):
            self.handle(events.PlanFactsRead(uid, problem="not now"))
        else:
            self.handle(self.model.facts_of(plan))

    def write_plan(self) -> None:
        todo = self.pending
        plan = self.model.plans.get(todo.plan) if todo else None
        if todo is None or plan is None or (todo.plan != self.active):
            self.pending, self.writing = None, False
            return
        chance = self.random.random() if self.faults() else 1.0
        if chance > 0.1:
            self.model.write(plan, todo)
        if chance < 0.2:  # the request or the response is lost
            self.later(self.random.uniform(0.1, 1.0), self.write_plan)
            return
        self.writing = self.pending is not todo
        if self.writing:
            self.later(self.random.uniform(0, 0.3), self.write_plan)
        else:
            self.pending = None
        if todo.progress.final:
            self.active = ""
        self.handle(events.PlanWritten(todo.plan, todo.number))

    def evict(self, instruction: instructions.EvictPlannedPod) -> None:
        number = next(self.numbers)

        def request() -> bool:
            return self.model.evict(instruction)

        self.requests[number] = (request, lambda _done: None)
        self.later(self.random.uniform(0.005, 0.5), partial(self.send_eviction, number, instruction))

    def send_eviction(self, number: int, instruction: instructions.EvictPlannedPod) -> None:
        request, _ = self.requests.pop(number)
        chance = self.random.random() if self.faults() else 1.0
        outcome = EvictionOutcome.LOST
        if chance < 0.1:
            outcome = EvictionOutcome.FORBIDDEN
        elif chance > 0.2:
            outcome = EvictionOutcome.ACCEPTED if request() else EvictionOutcome.GONE
        if 0.2 < chance < 0.3:
            outcome = EvictionOutcome.LOST
        event: events.Event = events.PlannedPodEvicted(instruction.plan, instruction.step, outcome, "said the server")
        if chance > 0.98 and self.faults():
            event = events.StepFailed(instruction.plan, "plan", InjectedError("a task"))
        self.handle(event)

    def resign(self) -> None:
        super().resign()
        self.active, self.pending, self.writing = "", None, False


class PlanModel(Model):
    """The random cluster, in which plans are created."""

    def __init__(self, seed: int, *, record: Path | None = None) -> None:
        self.transitions: set[tuple[str, str]] = set()  #: of steps
        self.plans: dict[str, ModelPlan] = {}
        self.over: list[ModelPlan] = []
        self.numbers = count()
        self.names = count()
        self.possible: dict[str, tuple[object, bool]] = {}
        super().__init__(seed, record=record)
        create = self.api.create

        def create_for_long(pod_object: ModelPod) -> None:
            create(replace(pod_object, lifetime=4 * pod_object.lifetime))

        self.api.create = create_for_long  # type: ignore[method-assign]

    def make_shell(self) -> Shell:
        return PlanShell(self, self.record)

    # Plans

    def tick(self) -> None:
        super().tick()
        if self.arriving and len([plan for plan in self.plans.values() if not plan.final]) < 2:
            self.create_plan()
        if self.faulty:
            for plan in [plan for plan in self.plans.values() if not plan.final]:
                if self.random.random() < 0.003 * self.trouble:
                    del self.plans[plan.uid]
                if self.random.random() < 0.02:
                    plan.paused = not plan.paused
        else:
            for plan in self.plans.values():
                plan.paused = False

    def create_plan(self) -> None:
        pods = self.waiting_pods()
        if not pods:
            return
        priority = min(each.pod.priority or 0 for each in pods)
        running = {pod.pod.uid: pod for each in self.api.pods.values() if (pod := self.running(each, priority))}
        pending = [PendingPod(each.pod, self.api.nodes.keys() - each.forbidden) for each in pods]
        cluster = self.shell.cluster
        budget = iter(range(200))
        rules = MoveRules(pods=running, max_moves=3, should_stop=lambda: next(budget, None) is None)
        plan = cluster.plan(pending, rules)
        if not plan.feasible or (not plan.evictions and self.random.random() < 0.9):
            return
        steps = [
            ActiveStep(
                uid=step.pod.uid, pod=step.name, node=step.host, evicts=step.evicts, replacement=step.replacement
            )
            for step in plan.steps
        ]
        true = self.random.random() > 0.2
        if not true:
            self.corrupt(steps)
        uid = f"uid-plan-{next(self.numbers)}"
        self.plans[uid] = ModelPlan(uid, tuple(steps), self.world.now, true)

    def waiting_pods(self) -> list[ModelPod]:
        """A pod that waits, or a gang none of whose pods has a node."""

        def waits(each: ModelPod) -> bool:
            plain = each.stage is PodStage.RUNNING and each.scheduler == SCHEDULER and not each.pod.uses_claims
            return plain and not each.host and not each.released_to and each.gates in {(), (GATE,)} and not each.ignored

        waiting = [each for each in self.api.pods.values() if waits(each) and not each.group]
        groups: dict[object, list[ModelPod]] = {}
        for each in self.api.pods.values():
            if each.group:
                groups.setdefault(each.group, []).append(each)
        gangs = [pods for key, pods in groups.items() if all(map(waits, pods)) and len(pods) >= self.api.minimums[key]]  # type: ignore[index]
        candidates = [*([each] for each in waiting), *gangs]
        return self.random.choice(candidates) if candidates else []

    def corrupt(self, steps: list[ActiveStep]) -> None:
        place = self.random.randrange(len(steps))
        kind = self.random.random()
        if kind < 0.3:
            steps[place] = replace(steps[place], node=self.random.choice(list(self.api.nodes)))
        elif kind < 0.6:
            del steps[place]
        elif kind < 0.8:
            self.random.shuffle(steps)
        else:
            steps[place] = replace(steps[place], uid="uid-nobody")

    def running(self, each: ModelPod, priority: int) -> RunningPod | None:
        """What the API server says about a pod with a node."""
        if not each.host:
            return None
        protected = "" if each.controllers else "without a controller"
        return RunningPod(
            pod=replace(each.pod, annotations={}, labels={}),
            host=each.host,
            protected=protected or ("with claims" if each.pod.uses_claims or each.group else ""),
            preemptible=(each.pod.priority or 0) < priority,
            hosts=frozenset(self.api.nodes.keys() - each.forbidden),
            terminating=each.stage is not PodStage.RUNNING,
            controllers=each.controllers,
            scheduler=each.scheduler,
        )

    def facts_of(self, plan: ModelPlan) -> events.PlanFactsRead:
        uids = {step.uid for step in plan.steps} | {step.placed for step in plan.progress}
        admitted = [self.api.pods.get(step.uid) for step in plan.steps if not step.evicts and not step.replacement]
        priority = min((each.pod.priority or 0 for each in admitted if each), default=-1)
        running = [pod for uid in uids if (each := self.api.pods.get(uid)) and (pod := self.running(each, priority))]
        waiting: dict[str, tuple[str, ...]] = {}
        for each in self.api.pods.values():
            for owner in () if each.host else each.controllers:
                waiting[owner] = (*waiting.get(owner, ()), each.uid)
        return events.PlanFactsRead(plan.uid, tuple(sorted(running, key=lambda pod: pod.pod.uid)), waiting)

    def evict(self, instruction: instructions.EvictPlannedPod) -> bool:
        """The Eviction API; a ReplicaSet replaces the pod."""
        uid, plan = instruction.pod.uid, self.plans.get(instruction.plan)
        each = self.api.pods.get(uid)
        if plan is not None:
            step = plan.steps[instruction.step]
            if not step.evicts or step.uid != uid:
                self.fail(f"{uid} is evicted, and is not part of step {instruction.step} of {plan}")
            if not plan.progress or plan.progress[instruction.step].phase is StepPhase.WAITING:
                self.fail(f"{uid} is evicted before its start is written: {plan}")
        if each is None or each.stage is not PodStage.RUNNING:
            return each is not None
        if plan is not None:
            plan.sent[uid] += 1
            if plan.sent[uid] > 1:
                self.fail(f"{uid} is evicted twice")
        did("plan model: evictions")
        self.replace(each)
        self.api.delete(uid)
        return True

    def replace(self, each: ModelPod) -> None:
        if not each.controllers:
            return
        name = f"replacement-{next(self.names)}"
        later = self.random.choice((0.0, 0.5, 3.0))
        pod = replace(each.pod, name=name, uid=f"uid-{name}")
        copy = replace(
            each,
            pod=pod,
            host="",
            stage=PodStage.RUNNING,
            version=1,
            created=self.world.now + later,
            gates=() if each.asks else (GATE,),
            released_to=(),
            unschedulable=False,
        )
        self.world.after(later, lambda: self.api.create(copy))

    def write(self, plan: ModelPlan, todo: instructions.WritePlan) -> None:
        before = plan.phase
        progress = todo.progress
        known = plan.progress or (StepProgress(),) * len(plan.steps)
        changes = [(old.phase.value, new.phase.value) for old, new in zip(known, progress.steps, strict=True)]
        self.transitions.update((old, new) for old, new in changes if old != new)
        plan.phase, plan.message, plan.progress = progress.phase, progress.message, progress.steps
        plan.evicted = progress.evicted
        if plan.final and before != plan.phase:
            self.ended(plan)

    def ended(self, plan: ModelPlan) -> None:
        did(f"plan model: {plan.phase}")
        self.over.append(plan)
        if plan.phase is PlanPhase.FAILED:
            if not plan.message:
                self.fail(f"a plan has failed without words: {plan}")
            return
        if plan.evicted:
            did("plan model: succeeded with evictions")
        for step, progress in zip(plan.steps, plan.progress, strict=True):
            if progress.phase not in {StepPhase.DONE, StepPhase.SKIPPED}:
                self.fail(f"a plan has succeeded without {step}: {progress}")
            if progress.phase is StepPhase.SKIPPED:
                continue
            each = self.api.pods.get(progress.placed if step.replacement else step.uid)
            if step.evicts and each is not None:
                self.fail(f"{step.uid} was not evicted")
            if not step.evicts and each is not None and each.host != step.node:
                self.fail(f"{each.uid} is on {each.host}, not on {step.node}")

    # What holds

    def before(self, shell: Shell, event: str) -> None:
        super().before(shell, event)
        self.possible = {}
        if event in ASSUMING:
            nodes = shell.state.plan.nodes
            self.possible = {node: self.is_possible(shell, node) for node in nodes}
            self.assumed = {node: {pod.uid for pod in shell.state.assumptions.on(node)} for node in nodes}

    def after(self, shell: Shell, done: list[Instruction]) -> None:
        super().after(shell, done)
        possible, self.possible = self.possible, {}
        for node, (steps, was) in possible.items():
            now_steps, now = self.is_possible(shell, node)
            if steps != now_steps or not was or now:
                continue
            new = [pod for pod in shell.state.assumptions.on(node) if pod.uid not in self.assumed[node]]
            plan = shell.state.plan._plan  # noqa: SLF001 - what it holds room for
            if plan and not any((pod.priority or 0) > plan.priority for pod in new):
                self.fail(f"{[pod.uid for pod in new]} have taken the room of {plan.steps} on {node}")

    def is_possible(self, shell: Shell, node: str) -> tuple[object, bool]:
        """The remaining steps on a node, and whether they are possible in every state that it may be in."""
        plan, record = shell.state.plan._plan, shell.cluster.record(node)  # noqa: SLF001 - see above
        if plan is None or record is None:
            return (), False
        steps: list[tuple[bool, Pod]] = []
        for index in plan.remaining():
            step, pod = plan.steps[index], plan.pods.get(index)
            if step.node == node and pod and (step.evicts or not record.holds(plan.uid_of(index))):
                steps.append((step.evicts, pod))
        keys = tuple((evicts, pod.uid) for evicts, pod in steps)
        ledgers = record.states().ledgers
        return keys, bool(ledgers) and all(self.follow(record.report, ledger, steps) for ledger in ledgers)

    def follow(self, report: Any, ledger: Any, steps: list[tuple[bool, Pod]]) -> bool:
        host = Host(report.machine, report.settings, ledger=ledger)
        for number, (evicts, pod) in enumerate(steps):
            if evicts:
                host.release(pod.uid)
                continue
            decision = host.decide_without_plugins(replace(pod, uid=f"step-{number}"))
            if not decision.admitted:
                return False
            host.apply(decision)
        return True

    def settle(self) -> None:
        super().settle()
        if left := [plan for plan in self.plans.values() if not plan.final]:
            self.fail(f"plans have not ended: {left}")
        if self.shell.state.plan.name:
            self.fail(f"a plan is still active: {self.shell.state.plan.name}")


STEPS = "| a step is | and becomes |"
ROW = re.compile(r"^\| `([A-Z][a-z]+)`: [^|]+ \| (.+) \|$", re.MULTILINE)


def documented_transitions() -> set[tuple[str, str]]:
    rows = ROW.findall(PAGE.read_text("utf-8").partition(STEPS)[2].partition("\n\n")[0])
    return {(state, after) for state, cell in rows for after in re.findall(r"`([A-Z][a-z]+)`", cell)}


@pytest.mark.soak
@pytest.mark.parametrize("number", range(rounds(3, soak=200)))
def test_plans_are_carried_out_or_end_in_words_whatever_goes_wrong(number, monkeypatch):
    monkeypatch.setattr(tentative_gangs, "KEPT_SECONDS", 40.0)  # less than the time after which all is decided
    model = PlanModel(SEED * 1000 + number)
    model.run(rounds(2500, soak=6000))
    model.settle()
    model.empty()
    assert model.transitions - documented_transitions() == set()
    for plan in model.over:
        did(f"plan model: {plan.message.partition(':')[0][:40] or 'as planned'}")


@pytest.mark.parametrize("number", range(rounds(1, soak=20)))
def test_a_random_run_with_plans_is_replayed(number, tmp_path, monkeypatch):
    monkeypatch.setattr("alignup.schedule.recording.DecisionRecorder.max_bytes", 100_000)
    monkeypatch.setattr("alignup.schedule.recording.DecisionRecorder.max_files", 1000)
    model = PlanModel(SEED * 1000 + number, record=tmp_path)
    model.run(1500)
    model.shell.close()

    results = [replay(path) for path in sorted(tmp_path.iterdir())]
    assert [str(result.difference) for result in results if result.difference] == []
    assert len(results) > 3
    assert model.over


def test_the_phases_of_the_table_are_those_of_the_code():
    assert {state for pair in documented_transitions() for state in pair} == {phase.value for phase in StepPhase}
