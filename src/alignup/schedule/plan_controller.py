"""The controller of Plan objects: the leader carries out one at a time, the oldest first.

What happens next is decided in ``placement.scheduling.active_plan``. Here objects are followed, facts are read, the
status is written, and pods are evicted. The status is all that the next leader knows.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter

from alignup.align.errors import AlignError
from alignup.align.workload import Pod
from alignup.documents.codec import encode, load, seconds_of, timestamp, to_builtins
from alignup.documents.plans import Plan, PlanCondition, PlanStatus, StepAction, StepStatus
from alignup.kubernetes.api import PODS, ApiClient, Informer, PatchType
from alignup.kubernetes.api.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    ServerFailureError,
    TooManyRequestsError,
    UnreachableError,
    UnreadableError,
)
from alignup.kubernetes.api.plan_resource import PLANS
from alignup.kubernetes.api.pods_with_volumes import PodWithVolumes
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict, read_pod
from alignup.placement.moves import RunningPod
from alignup.placement.scheduling import events, instructions
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.plan_steps import (
    ActiveStep,
    EvictionOutcome,
    PlanOrder,
    PlanPhase,
    PlanProgress,
    StepPhase,
    StepProgress,
)
from alignup.schedule.cluster_plan import PlanFacts, read_plan_facts, running_pods
from alignup.schedule.cluster_snapshot import ClusterView
from alignup.schedule.gate.release_patch import controller_uids
from alignup.schedule.instruction_tasks import InstructionTasks
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.object_events import ObjectEvents
from alignup.schedule.pod_groups import group_of
from alignup.schedule.step_guard import ServiceStep, StepFailure

ABSENT_SECONDS = 60.0  #: between attempts to list plans that the API server does not have
STALE_SECONDS = 1.0  #: between looks while the API server is not followed
RESUME_SECONDS = 10.0  #: in which a new leader reads the facts of a plan that has begun, before it answers
RETRY_SECONDS = 5.0  #: after the facts of a new plan could not be read
MAX_RECORDED = 512 << 10  #: bytes of what evicted pods request, in the status: etcd stores 1.5 MiB of an object
COMPONENT = "alignup-plan"
ACTIVATED, EVICTED, SUCCEEDED, FAILED = "PlanActivated", "EvictedByPlan", "PlanSucceeded", "PlanFailed"

_log = structlog.get_logger()


class PlanMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.plans = Counter(
            "alignup_plans", "Plans that this process carried out, by outcome.", ["outcome"], registry=registry
        )
        self.evictions = Counter(
            "alignup_plan_evictions", "Evictions as steps of plans, by answer.", ["outcome"], registry=registry
        )
        for outcome in (PlanPhase.SUCCEEDED, PlanPhase.FAILED, "Cancelled"):
            self.plans.labels(outcome)
        for outcome in EvictionOutcome:
            self.evictions.labels(outcome)


class PlanController:
    """The plans of one process, from :meth:`resume` to :meth:`stop`."""

    def __init__(self, client: ApiClient, live: LiveCluster) -> None:
        self._client = client
        self._live = live
        self.metrics = PlanMetrics(live.metrics.registry)
        self.plans = Informer(client, PLANS, longest_retry=ABSENT_SECONDS)
        self._events = ObjectEvents(client, COMPONENT, live.guard.reporting)
        self._tasks = InstructionTasks(live.schedule)
        self._wake = asyncio.Event()
        self._running = False
        self._active: Plan | None = None  #: as it was read or written last
        self._written: list[PlanStatus] = []  #: statuses that the active plan may have from us
        self._pending: instructions.WritePlan | None = None  #: the status that is to be written next
        self._writing = False
        self._ended: set[str] = set()  #: uids of plans that are over, although the watch may not show it yet
        self._evicted: dict[str, PodWithVolumes] = {}  #: the pods of the last facts that may be evicted, by uid
        self.plans.subscribe(lambda _change: self._wake.set())
        handlers: dict[type[Instruction], Callable[[Any], object]] = {
            instructions.ReadPlanFacts: lambda read: self._start(self._read_again(), read.plan),
            instructions.WritePlan: self._write_later,
            instructions.EvictPlannedPod: lambda evict: self._start(self._evict(evict), evict.plan),
            instructions.Report: self._report,
        }
        self._handlers = handlers
        live.on_instruction(self._carry_out, *handlers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What health checks tell although plans are optional."""
        error = self.plans.error
        if error is None or self.plans.synced:
            return ()
        if isinstance(error, NotFoundError):
            return (f"plans are not carried out: the API server has no {PLANS.full_name}",)
        return (f"plans are not carried out: {error}",)

    async def follow(self) -> None:
        """Follow the plans until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.plans.run())
            await self.plans.wait_tried()
            for warning in self.warnings:
                _log.warning("plans", problem=warning)

    async def run(self) -> None:
        """Carry out plans until cancelled."""
        await self.plans.wait_synced()
        await self._live.ready.wait()
        self._running = True
        self._start(self._live.guard.keep_running("events of plans", self._events.run), "")
        while True:
            self._wake.clear()
            seconds = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    async def resume(self) -> None:
        """Go on with the plan that another process has begun, if it can be read soon; :meth:`run` follows."""
        begun = any(plan.status.phase in {PlanPhase.RUNNING, PlanPhase.PAUSED} for plan in self.plans.objects.values())
        self._running = True
        if begun:
            with suppress(TimeoutError):
                async with asyncio.timeout(RESUME_SECONDS):
                    await self._look()

    async def stop(self) -> None:
        """Forget everything: another process leads from now on."""
        self._running = False
        self._writing = False
        self._active = None
        self._pending = None
        self._ended.clear()
        self._evicted.clear()
        await self._tasks.cancel()

    def _start(self, work: Coroutine[Any, Any, None], uid: str) -> None:
        """Start a task; if it fails, the plan ends."""
        self._tasks.start(work, uid, ServiceStep.PLAN)

    # Which plan

    async def _look(self) -> float | None:
        """Begin with the oldest plan if none is active; return the seconds after which to look again."""
        plans = sorted(self.plans.objects.values(), key=_age_key)
        self._ended &= {plan.metadata.uid for plan in plans}
        waiting_plans = [plan for plan in plans if not plan.final and plan.metadata.uid not in self._ended]
        waiting_plans = [plan for plan in waiting_plans if plan.metadata.deletion_timestamp is None]
        active = self._active
        if active is not None:
            current = next((plan for plan in waiting_plans if plan.metadata.uid == active.metadata.uid), None)
            if current is None:
                self._active = None
                self._live.schedule(events.PlanCancelled(active.metadata.uid))
            else:
                self._live.schedule(events.PlanPaused(current.metadata.uid, current.spec.paused))
        seconds = None
        if self._active is None and waiting_plans:
            failures: list[StepFailure] = []
            with self._live.guard.guarded(ServiceStep.PLAN, waiting_plans[0].metadata.name, undo=failures.append):
                seconds = await self._activate(waiting_plans[0])
            for failure in failures:
                seconds = failure.seconds
                await self._give_up(waiting_plans[0], f"alignup failed: {failure.text}")
        if self._active is not None:
            name = self._active.metadata.name
            for plan in waiting_plans:
                if plan.metadata.uid != self._active.metadata.uid:
                    await self._say_pending(plan, f"waits for the end of plan {name}")
        return seconds

    async def _activate(self, plan: Plan) -> float | None:
        if self._live.problems:
            return STALE_SECONDS
        name = plan.metadata.name
        try:
            facts = await self._read_facts(plan)
        except ApiError as error:
            _log.warning("cannot read who may be evicted", plan=name, problem=str(error))
            await self._say_pending(plan, f"cannot read which pods may be evicted: {error}")
            return RETRY_SECONDS
        if sum(len(_encode_pod(pod.pod)) for pod in facts.pods) > MAX_RECORDED:
            await self._give_up(plan, f"what its pods request takes more than {MAX_RECORDED >> 10} KiB in its status")
            return RETRY_SECONDS
        self._active = plan
        self._written = [plan.status]
        self._pending = None
        self._note_event(plan, ACTIVATED, "the plan is carried out from now on")
        self._live.schedule(events.PlanActivated(self._order(plan), facts))
        return None

    def _order(self, plan: Plan) -> PlanOrder:
        timing = self._client.timing
        creation = seconds_of(plan.metadata.creation_timestamp)
        seconds_left = creation + plan.spec.deadline_seconds - timing.time_of_day()
        return PlanOrder(
            uid=plan.metadata.uid,
            name=plan.metadata.name,
            steps=read_steps(plan),
            progress=_read_progress(plan),
            deadline=timing.clock() + seconds_left,
            paused=plan.spec.paused,
        )

    async def _give_up(self, plan: Plan, message: str) -> None:
        """End a plan that cannot even begin; if that cannot be written, this is tried again later."""
        steps = (StepProgress(phase=StepPhase.SKIPPED),) * len(plan.spec.steps)
        progress = PlanProgress(phase=PlanPhase.FAILED, message=message, steps=steps)
        now = self._client.timing.time_of_day()
        self._active = None
        try:
            self._finish(await self._patch_status(plan, _make_status(plan, progress, now=now)))
        except ApiError as error:
            _log.warning("cannot write the status of a plan", plan=plan.metadata.name, problem=str(error))

    async def _say_pending(self, plan: Plan, message: str) -> None:
        if (plan.status.phase, plan.status.message) != (PlanPhase.PENDING, message):
            status = plan.status.replace(phase=PlanPhase.PENDING, message=message)
            with suppress(ApiError):  # it is said again
                await self._patch_status(plan, status)

    # Facts

    async def _read_facts(self, plan: Plan) -> events.PlanFactsRead:
        facts = await read_plan_facts(self._client)
        for note in facts.notes:
            _log.info("plan facts", plan=plan.metadata.name, note=note)
        return self._select_facts(plan, facts)

    def _select_facts(self, plan: Plan, facts: PlanFacts) -> events.PlanFactsRead:
        """Return what concerns the pods of a plan, and the pods that are disrupted together with these."""
        uids = {step.pod.uid for step in plan.spec.steps} | {step.pod for step in plan.status.steps if step.pod}
        uids |= {step.placed for step in self._progress(plan) if step.placed}
        planned_pods = [pod for pod in facts.pods if pod.metadata.uid in uids]
        groups = {key for pod in planned_pods if (key := group_of(pod)) is not None}
        related = [pod for pod in facts.pods if pod.metadata.uid in uids or group_of(pod) in groups]
        admissions = [step for step in plan.spec.steps if step.action is StepAction.ADMIT]
        admitted_uids = {step.pod.uid for step in admissions if not step.replacement}
        priorities = [pod.spec.priority or 0 for pod in planned_pods if pod.metadata.uid in admitted_uids]
        rules = EvictionRules(
            exempt=plan.spec.exempt,
            allow_preemption=plan.spec.allow_preemption and bool(priorities),
            allow_local_volumes=plan.spec.allow_local_volumes,
        )
        nodes = {node.metadata.name: node for node in self._live.nodes.objects.values()}
        view = ClusterView(nodes=nodes, cluster=self._live.cluster)
        planned_nodes = {step.node for step in plan.spec.steps}
        selected_facts = replace(facts, pods=related)
        running = [
            replace(pod, hosts=frozenset(planned_nodes.intersection(pod.hosts or ())))
            for pod in running_pods(view, selected_facts, rules, priority=min(priorities, default=0))
        ]
        self._evicted = {pod.metadata.uid: pod for pod in planned_pods}
        return events.PlanFactsRead(plan.metadata.uid, tuple(running), _waiting_pods(running, facts.pods))

    def _progress(self, plan: Plan) -> Sequence[StepProgress]:
        return self._pending.progress.steps if self._pending is not None else _read_progress(plan)

    async def _read_again(self) -> None:
        plan = self._active
        if plan is None:
            return
        try:
            facts = await self._read_facts(plan)
        except ApiError as error:
            facts = events.PlanFactsRead(plan.metadata.uid, problem=str(error))
        self._live.schedule(facts)

    # Evictions

    async def _evict(self, instruction: instructions.EvictPlannedPod) -> None:
        """Send an eviction once; its precondition is the uid, so a repetition would do no harm."""
        pod = instruction.pod
        ref = replace(PODS.at(pod.name, namespace=pod.namespace), uid=pod.uid)
        outcome, problem, retry_after = EvictionOutcome.ACCEPTED, "", 0.0
        try:
            await self._client.evict(ref)
        except (NotFoundError, ConflictError):
            outcome = EvictionOutcome.GONE
        except TooManyRequestsError as error:
            outcome, problem, retry_after = EvictionOutcome.FORBIDDEN, error.message, error.retry_after or 0.0
        except (UnreachableError, ServerFailureError, UnreadableError) as error:
            outcome, problem = EvictionOutcome.LOST, str(error)
        except ApiError as error:
            outcome, problem = EvictionOutcome.REFUSED, str(error)
        api_pod = self._evicted.get(pod.uid)
        if outcome is EvictionOutcome.ACCEPTED and api_pod is not None and self._active is not None:
            self._events.note(api_pod, EVICTED, f"evicted by plan {self._active.metadata.name}", warning=False)
        step = instruction.step
        self._live.schedule(events.PlannedPodEvicted(instruction.plan, step, outcome, problem, retry_after))

    # Status

    def _write_later(self, instruction: instructions.WritePlan) -> None:
        if self._active is not None and self._active.metadata.uid == instruction.plan:
            self._pending = instruction
            if not self._writing:
                self._writing = True
                self._start(self._write_all(), instruction.plan)

    async def _write_all(self) -> None:
        """Write the latest progress until there is none that is not written."""
        failures = 0
        try:
            while self._pending is not None and self._active is not None:
                todo, plan = self._pending, self._active
                status = _make_status(plan, todo.progress, now=self._client.timing.time_of_day())
                self._written.append(status)
                try:
                    written_plan = await self._patch_status(plan, status)
                except ConflictError:
                    await self._read_conflict(plan)
                    continue
                except NotFoundError:
                    return  # the watch shows that it was deleted
                except ApiError as error:
                    failures += 1
                    _log.warning("cannot write the status of a plan", plan=plan.metadata.name, problem=str(error))
                    await self._client.timing.sleep(min(0.5 * 2 ** min(failures, 8), 30.0))
                    continue
                failures = 0
                self._written = [status]
                if self._active is not plan:
                    return
                self._active = written_plan
                if self._pending is todo:
                    self._pending = None
                if todo.progress.final:
                    self._finish(written_plan)
                self._live.schedule(events.PlanWritten(todo.plan, todo.number))
        finally:
            self._writing = False

    async def _read_conflict(self, plan: Plan) -> None:
        """Continue from a newer version of the active plan, unless others have written its status."""
        current = await self._client.find(PLANS.at(plan.metadata.name))
        if self._active is not plan:
            return
        if current is not None and current.metadata.uid == plan.metadata.uid and current.status in self._written:
            self._active = current
            return
        self._active = None
        self._pending = None
        self._live.schedule(events.PlanCancelled(plan.metadata.uid))
        self._wake.set()

    async def _patch_status(self, plan: Plan, status: PlanStatus) -> Plan:
        patch = [
            {"op": "add", "path": "/metadata/resourceVersion", "value": plan.metadata.resource_version},
            {"op": "add", "path": "/status", "value": to_builtins(status)},
        ]
        ref = PLANS.at(plan.metadata.name, subresource="status")
        return await self._client.patch(ref, patch, patch_type=PatchType.JSON)

    def _finish(self, plan: Plan) -> None:
        self._ended.add(plan.metadata.uid)
        self._active = None
        succeeded = plan.status.phase is PlanPhase.SUCCEEDED
        reason = SUCCEEDED if succeeded else FAILED
        self._note_event(plan, reason, plan.status.message, warning=not succeeded)
        self._wake.set()

    # Instructions

    def _carry_out(self, instruction: Instruction) -> None:
        if self._running:
            self._handlers[type(instruction)](instruction)

    def _report(self, report: instructions.Report) -> None:
        details = report.details
        match report.event:
            case "plan activated" as event:
                _log.info(event, **details)
            case "planned eviction" as event:
                self.metrics.evictions.labels(details["outcome"]).inc()
                _log.info(event, **details)
            case "plan ended" as event:
                self.metrics.plans.labels(details["outcome"]).inc()
                log = _log.info if details["outcome"] == PlanPhase.SUCCEEDED else _log.warning
                log(event, **details)

    def _note_event(self, plan: Plan, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.note(plan, reason, message, warning=warning, resource=PLANS)


def _age_key(plan: Plan) -> tuple[float, str]:
    return seconds_of(plan.metadata.creation_timestamp), plan.metadata.name


def _waiting_pods(running: Collection[RunningPod], pods: Collection[PodWithVolumes]) -> dict[str, tuple[str, ...]]:
    """Return the pods without nodes of the controllers of *running*."""
    pods_by_controller: dict[str, tuple[str, ...]] = {uid: () for pod in running for uid in sorted(pod.controllers)}
    for pod in pods:
        if not pod.spec.node_name:
            for uid in controller_uids(pod) & pods_by_controller.keys():
                pods_by_controller[uid] = (*pods_by_controller[uid], pod.metadata.uid)
    return pods_by_controller


def read_steps(plan: Plan) -> tuple[ActiveStep, ...]:
    return tuple(
        ActiveStep(
            uid=step.pod.uid,
            pod=f"{step.pod.namespace}/{step.pod.name}",
            node=step.node,
            evicts=step.action is StepAction.EVICT,
            replacement=step.replacement and step.action is StepAction.ADMIT,
        )
        for step in plan.spec.steps
    )


def _read_progress(plan: Plan) -> tuple[StepProgress, ...]:
    """Return what the status says about each step; nothing, if it is not about these steps."""
    statuses = plan.status.steps
    if len(statuses) != len(plan.spec.steps):
        return (StepProgress(),) * len(plan.spec.steps)
    return tuple(
        StepProgress(
            phase=status.phase,
            message=status.message,
            placed=status.pod,
            evicted=_decode_pod(status.evicted_pod),
            controllers=frozenset(status.controllers),
            earlier=frozenset(status.earlier_pods),
        )
        for status in statuses
    )


def _decode_pod(text: str) -> Pod | None:
    if not text:
        return None
    try:
        return read_pod(load(text))
    except AlignError:
        return None  # the plan ends in words if it needs the pod


def _encode_pod(pod: Pod) -> str:
    return encode(pod_to_dict(replace(pod, labels={}, annotations={}))).decode()


def _make_status(plan: Plan, progress: PlanProgress, *, now: float) -> PlanStatus:
    """Return the status with this progress; times and what was encoded before stay."""
    count, old_steps = len(progress.steps), plan.status.steps
    if len(old_steps) != count:
        old_steps = (StepStatus(),) * count
    steps = []
    for old, step in zip(old_steps, progress.steps, strict=True):
        evicted_pod = old.evicted_pod or (_encode_pod(step.evicted) if step.evicted is not None else "")
        steps.append(
            StepStatus(
                phase=step.phase,
                message=step.message,
                pod=step.placed,
                time=old.time if old.phase is step.phase else timestamp(now),
                evicted_pod=evicted_pod if not progress.final else "",
                controllers=tuple(sorted(step.controllers)) if not progress.final else (),
                earlier_pods=tuple(sorted(step.earlier)) if not progress.final else (),
            )
        )
    conditions = []
    for type_, phase in (("Complete", PlanPhase.SUCCEEDED), ("Failed", PlanPhase.FAILED)):
        holds = "True" if progress.phase is phase else "False"
        conditions_before = plan.status.conditions
        unchanged = next((item for item in conditions_before if (item.type, item.status) == (type_, holds)), None)
        conditions.append(
            PlanCondition(
                type=type_,
                status=holds,
                reason=str(progress.phase),
                message=progress.message if holds == "True" else "",
                last_transition_time=unchanged.last_transition_time if unchanged else timestamp(now),
            )
        )
    started_steps = [step for step in progress.steps if step.phase is StepPhase.STARTED and step.message]
    return PlanStatus(
        observed_generation=plan.metadata.generation,
        phase=progress.phase,
        message=progress.message or (started_steps[0].message if started_steps and not progress.final else ""),
        evicted=progress.evicted,
        steps=tuple(steps),
        conditions=tuple(conditions),
    )
