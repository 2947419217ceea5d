"""Searches for moves in the live cluster, for pages and for proposals: one at a time, in a thread, within a budget.

A search works on a copy of what the nodes hold, so the event loop goes on to answer schedulers. Who may be evicted is
read from the API server. What may not be read protects pods.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from alignup.align import bits
from alignup.align.errors import PodError
from alignup.align.explain import sentences
from alignup.align.workload import Pod, demand
from alignup.align.workload.names import CPU
from alignup.kubernetes.api import ApiClient
from alignup.kubernetes.api.errors import ApiError
from alignup.kubernetes.api.known_pods import known_pod
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.picture.text_format import clean, format_ids, pluralize
from alignup.placement.host_report import HostReport
from alignup.placement.moves import Defragmentation, MovePlan, MoveRules, PlanStep
from alignup.placement.pod_shape import is_large, needs_alignment, shape_key
from alignup.schedule.cluster_plan import PlanFacts, gang_of, pending_pods, plan_for_pods, read_plan_facts
from alignup.schedule.cluster_snapshot import ClusterView, view_of_reports
from alignup.schedule.live_cluster import LiveCluster

SEARCH_SECONDS = 2.0  #: for all searches on one copy, after it was read who may be evicted
RENEW_SECONDS = 300.0  #: after which a report on stranded resources is out of date, if anything has changed
AT_ONCE = 100  #: nodes that are copied before the loop does something else
MAX_MOVES = 20
MAX_SHAPES = 2  #: of pods for which room is searched

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ShapeGain:
    """How many more pods like one of the cluster fit after moves."""

    pod: Pod
    waits: bool
    result: Defragmentation

    @property
    def title(self) -> str:
        amounts = demand.fit_request(self.pod)
        devices = [f"{count} {clean(name)}" for name, count in sorted(amounts.scalars.items()) if count]
        request = ", ".join([*devices, f"{amounts.milli_cpu / 1000:g} {CPU}"])
        name = f"{self.pod.namespace}/{self.pod.name}"
        count_text = f"{pluralize(self.result.fitting, 'pod')} like {clean(name)} ({request}) fit now"
        if not self.result.gains:
            return f"{count_text}, and no move was found that lets more fit"
        moves, gain = self.result.gains[-1]
        return f"{pluralize(moves, 'move')} let {gain} more fit: {count_text}"

    @property
    def steps(self) -> list[str]:
        plan = MovePlan(self.result.steps)
        return [describe_step(plan, step) for step in self.result.steps]


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What moves would give back of what is stranded."""

    gains: tuple[ShapeGain, ...] = ()
    notes: tuple[str, ...] = ()
    at: float = 0.0  #: seconds since 1970
    problem: str = ""  #: why nothing was searched


class MoveSearches:
    """The searches of one process."""

    def __init__(self, client: ApiClient, live: LiveCluster) -> None:
        self._client = client
        self._live = live
        self._turn = asyncio.Semaphore(1)
        self._changes = 0  #: of nodes, so far
        self._searched = -1  #: after so many changes
        self._searched_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.report: MoveReport | None = None
        live.on_change(self._changed)

    def _changed(self, _nodes: object) -> None:
        self._changes += 1

    def renew_report(self, on_end: Callable[[], object]) -> None:
        """Search in the background, unless the report is new, and call *on_end* then."""
        running = self._task is not None and not self._task.done()
        new = self.report is not None and self._client.timing.clock() - self._searched_at < RENEW_SECONDS
        if not running and not new and self._searched != self._changes:
            self._searched = self._changes
            self._searched_at = self._client.timing.clock()
            self._task = asyncio.create_task(self._renew(on_end))

    async def _renew(self, on_end: Callable[[], object]) -> None:
        try:
            view, facts = await self._copy()
            self.report = await asyncio.to_thread(_search_gains, view, facts, self._client.timing.time_of_day())
        except ApiError as error:
            self.report = MoveReport(problem=str(error), at=self._client.timing.time_of_day())
        except Exception as error:  # noqa: BLE001 - a defect of the search must not end the service
            _log.error("search for moves failed", exc_info=error)
            problem = f"the search failed: {type(error).__name__}: {error}"
            self.report = MoveReport(problem=problem, at=self._client.timing.time_of_day())
        on_end()

    async def plan(self, pod: ApiPod, rules: EvictionRules) -> tuple[MovePlan, int] | None:
        """Return a plan for a pod with its gang, and how many pods that are; ``None``: it has none. ``ApiError``."""
        view, facts = await self._copy()
        pods = [(known_pod(member).pod, member.spec) for member in gang_of(facts, pod)]
        if any(pending_pod.uses_claims or is_large(pending_pod) for pending_pod, _ in pods):
            return None
        should_stop = _start_budget(SEARCH_SECONDS)
        plan = await asyncio.to_thread(plan_for_pods, view, facts, pods, rules=rules, should_stop=should_stop)
        return (plan, len(pods)) if plan.feasible else None

    async def _copy(self) -> tuple[ClusterView, PlanFacts]:
        """Return what nodes hold now, and who may be evicted; some nodes at a time."""
        async with self._turn:
            facts = await read_plan_facts(self._client)
            hosts: list[tuple[ApiNode, HostReport]] = []
            for number, ((_, name), node) in enumerate(tuple(self._live.nodes.objects.items()), start=1):
                record = self._live.cluster.record(name)
                ledgers = record.states().ledgers if record else ()
                if record and ledgers:
                    report = record.report
                    report_copy = HostReport(
                        host=name, machine=report.machine, settings=report.settings, ledger=ledgers[0], sequence=1
                    )
                    hosts.append((node, report_copy))
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)
            return await asyncio.to_thread(view_of_reports, hosts), facts


def _start_budget(seconds: float) -> Callable[[], bool]:
    """Return a function that says whether so many seconds are over since its first call."""
    end: float | None = None

    def is_over() -> bool:
        nonlocal end
        now = time.monotonic()
        end = now + seconds if end is None else end
        return now > end

    return is_over


def _search_gains(view: ClusterView, facts: PlanFacts, now: float) -> MoveReport:
    gains = []
    shapes, reported_nodes = list(choose_shapes(facts.pods)), set(view.cluster.hosts)
    # Without preemption, what may be done with a pod does not depend on the pod that needs room.
    pods = {
        running_pod.pod.uid: running_pod
        for running_pod in facts.running(view, EvictionRules(), priority=0)
        if running_pod.host in reported_nodes
    }
    for pod in shapes:
        decoded_pod = known_pod(pod).pod
        stop = _start_budget(SEARCH_SECONDS / len(shapes))
        rules = MoveRules(pods=pods, budgets=facts.budgets, max_moves=MAX_MOVES, should_stop=stop)
        (pending_pod,) = pending_pods(view, [(decoded_pod, pod.spec)])
        result = view.cluster.planner(rules, [decoded_pod]).defragment(pending_pod)
        gains.append(ShapeGain(decoded_pod, not pod.spec.node_name, result))
    return MoveReport(tuple(gains), facts.notes, now)


def choose_shapes(pods: Iterable[ApiPod]) -> Sequence[ApiPod]:
    """Return a pod of each shape that room is searched for: waiting pods first, then pods with the most devices."""
    counts = [(pod, _count_devices(pod)) for pod in pods if not pod.finished and not pod.spec.resource_claims]
    counts = [(pod, count) for pod, count in counts if count and not pod.metadata.deletion_timestamp]
    counts.sort(key=lambda entry: (bool(entry[0].spec.node_name), -entry[1], entry[0].metadata.full_name))
    chosen_pods: dict[object, ApiPod] = {}
    for pod, _ in counts:
        with suppress(PodError):
            decoded_pod = known_pod(pod).pod
            if needs_alignment(decoded_pod) and not is_large(decoded_pod):
                chosen_pods.setdefault(shape_key(decoded_pod), pod)
        if len(chosen_pods) >= MAX_SHAPES:
            break
    return tuple(chosen_pods.values())


def _count_devices(pod: ApiPod) -> int:
    limits = [amount for container in pod.spec.containers for amount in container.resources.limits.items()]
    return sum(int(str(count)) for name, count in limits if "/" in name and str(count).isdecimal())


def describe_step(plan: MovePlan, step: PlanStep) -> str:
    """Return a step in words, with what its pod gets."""
    if step.evicts:
        new_place = plan.new_place(step.pod.uid)
        return f"evict {step.name} from {step.host}" + ("" if new_place else ", without a new place")
    subject = "the replacement of " if step.replacement else ""
    placements = step.verdict.placements if step.verdict else ()
    nodes = step.numa_nodes
    numa_nodes = f", {format_ids('NUMA node', bits.members(nodes))}" if nodes else ""
    allocations = sentences.describe_allocations(placements)
    return f"{subject}{step.name} goes to {step.host}{numa_nodes}, decided{allocations and ': '}{allocations}"
