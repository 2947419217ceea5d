"""The scheduler extender: which nodes kube-scheduler may choose for a pod, and the binding to the one it chose.

Filter offers the best nodes only, since the scheduler's own work grows with their number: one if nothing but our rank
matters. The scheduler does not say which of them it chose before it binds the pod, so the binding checks again.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import structlog

from alignup.align.errors import PodError
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.decisions import placement_document
from alignup.kubernetes.api import PODS, ApiClient
from alignup.kubernetes.api.errors import ApiError, ServerFailureError, UnreachableError
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.claim_rules import MAX_JUDGED, must_align
from alignup.placement.scheduling.events import SchedulerAsked
from alignup.placement.scheduling.facts import GroupKey
from alignup.placement.scheduling.instructions import ChangeGang, Instruction
from alignup.placement.steered import STEERED_ANNOTATION
from alignup.placement.verdict import PASSING_REASONS, Verdict, unknown
from alignup.schedule.claim_bindings import NOT_ALIGNED, ClaimBindings, ClaimCheck
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.schedule.extender_messages import BindingArgs, BindingResult, ExtenderArgs, FilterResult, HostPriority
from alignup.schedule.live_cluster import LiveCluster
from alignup.schedule.node_selection import SoftTaints, has_preferences
from alignup.schedule.pod_steering import HOLD_SECONDS, PodSteering
from alignup.schedule.preempt import Preemption
from alignup.schedule.step_guard import ServiceStep
from alignup.schedule.wake_up import WakeUp

PATIENCE_SECONDS = 60.0
MANY = 16  #: nodes for a scheduler to choose from by its own scores
MAX_SCORE = 10  #: of the protocol
CLAIM_POINTS = 30  #: of a score, for a node where devices of claims can be beside the CPUs
MAX_PODS = 4096  #: pods that are remembered from filter to binding
OFFER_SECONDS = 2.0  #: after which a scheduler has bound a pod elsewhere, or not at all
TURN_SECONDS = 3.0  #: for which a binding waits for those that must come before it
BIND_SECONDS = 20.0  #: for one binding
FAILED = "alignup failed on the pod, and its log says why; it can be tried again"
NOT_LEADING = "this process does not lead any more; the next one has to bind the pod"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderOptions:
    #: nodes that filter answers with, at most; ``None``: the best one, or ``MANY`` if the scheduler's scores matter
    offered: int | None = None
    allow_unknown: bool = False  #: whether nodes without HostState pass
    patience: float = PATIENCE_SECONDS  #: seconds after which a node is kept for a pod that others overtake
    steer_hold: float = HOLD_SECONDS  #: for which observers wait for a steered pod
    #: whether the scheduler asks for victims where it needs none itself, as from Kubernetes 1.38 on; ``None``: as the
    #: version of the API server suggests
    chooses_victims: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRecord:
    """The last answer of filter about one pod."""

    pod: ApiPod
    at: float  #: seconds since 1970
    asked: int  #: nodes
    offered: tuple[str, ...]
    reasons: Mapping[str, int] = field(default_factory=dict)  #: if none was offered: nodes by reason

    def document(self) -> dict[str, Any]:
        at = datetime.fromtimestamp(self.at, UTC).isoformat()
        return {"time": at, "asked": self.asked, "offered": list(self.offered), "reasons": dict(self.reasons)}


class Offers:
    """Nodes that were offered to pods whose bindings are still to come.

    A scheduler asks about the next pod before it binds the previous one, and a node gets one pod at a time. So a node
    that was offered to another pod a moment ago comes after the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nodes: dict[str, tuple[str, float]] = {}  #: node → uid of the last pod it was offered to, until when

    def offered(self, uid: str, nodes: Iterable[str]) -> None:
        """Replace what was offered to the pod *uid*."""
        others = {node: offer for node, offer in self._nodes.items() if offer[0] != uid}
        self._nodes = others | dict.fromkeys(nodes, (uid, self._clock() + OFFER_SECONDS))

    def taken(self, uid: str) -> set[str]:
        """Return the nodes that were offered to other pods than *uid* lately."""
        now = self._clock()
        self._nodes = {node: offer for node, offer in self._nodes.items() if offer[1] > now}
        return {node for node, offer in self._nodes.items() if offer[0] != uid}


class Binder:
    """The writer of bindings, while *leads* returns true: the next leader would not know of later ones.

    A kubelet admits pods in the order of their bindings. So bindings to one node are written one after the other, each
    after a last check that the node still admits the pod.
    """

    def __init__(  # noqa: PLR0913 - everything that a binding depends on
        self,
        client: ApiClient,
        live: LiveCluster,
        claims: ClaimBindings,
        steering: PodSteering,
        *,
        allow_unknown: bool = False,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._live, self._allow_unknown, self._leads = client, live, allow_unknown, leads
        self._accepts_unknown = allow_unknown or live.options.approximate
        self.claims, self._steering = claims, steering
        self._gangs = live.scheduling.gangs
        self._gang_changes: dict[GroupKey, asyncio.Event] = {}  #: set after the next binding of a gang
        live.on_instruction(self._carry_out)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: by node
        self._running = 0
        self.idle = asyncio.Event()  #: set while no binding is being written
        self.idle.set()

    async def bind(self, api_pod: ApiPod, pod: Pod, node: str) -> str:
        """Bind a pod if the node still admits it; return why it was not bound, or nothing."""
        lock = self._locks.setdefault(node, asyncio.Lock())
        self._running += 1
        self.idle.clear()
        try:
            deadline = self._client.timing.clock() + TURN_SECONDS
            while True:
                async with lock:
                    alone = self._accepts_unknown and self._live.cluster.record(node) is None
                    facts = self._live.facts(api_pod)
                    turn: str | GroupKey = NOT_LEADING
                    if self._leads():
                        turn = self._live.act(self._gangs.turn, facts, node, alone=alone)
                    if not turn:
                        problem = FAILED
                        with self._live.guard.guarded(ServiceStep.BIND, api_pod.metadata.full_name):
                            problem = await self._bind(api_pod, pod, node)
                        self._live.act(self._gangs.bound, pod.uid, problem)
                        return problem
                if isinstance(turn, str):
                    return turn
                if not await self._wait_for_turn(turn, deadline):
                    return f"other pods of gang {turn} must be bound to node {node} before"
        finally:
            self._running -= 1
            if not self._running:
                self.idle.set()

    async def _wait_for_turn(self, key: GroupKey, deadline: float) -> bool:
        """Wait for the next binding of a gang; return whether it came in time."""
        changed = self._gang_changes.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(max(deadline - self._client.timing.clock(), 0)):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, ChangeGang) and (changed := self._gang_changes.pop(instruction.key, None)):
            changed.set()

    async def _bind(self, api_pod: ApiPod, pod: Pod, node: str) -> str:
        prepared = None
        with self._live.guard.guarded(ServiceStep.BIND, api_pod.metadata.full_name):
            prepared = await self._prepare(api_pod, pod, node)
        if prepared is None:
            await self._cancel(pod, node)
            return FAILED
        check, annotations = prepared
        if check.problem:
            return check.problem
        try:
            async with asyncio.timeout(BIND_SECONDS):
                await self._client.bind(PODS.of(api_pod), node, annotations=annotations)
        except (UnreachableError, ServerFailureError, TimeoutError) as error:
            # It may have happened, so the node counts with the pod until the API server shows otherwise.
            return f"it is unknown whether the pod was bound to {node}: {error or 'no response'}"
        except ApiError as error:
            await self._cancel(pod, node)
            return str(error)
        self.claims.bound(pod.uid, check)
        return ""

    async def _prepare(self, api_pod: ApiPod, pod: Pod, node: str) -> tuple[ClaimCheck, dict[str, str]]:
        """Assume a pod on its node and steer it there; return whether it may be bound, and its annotations."""
        verdict = self._live.assume(pod, node)
        accepted = self._allow_unknown and self._live.cluster.record(node) is None
        if not verdict.admits and not accepted and needs_alignment(pod):
            detail = f" ({verdict.detail})" if verdict.detail else ""
            return ClaimCheck(f"node {node} does not admit the pod any more: {verdict.reason}{detail}"), {}
        steered = await self._steering.begin(api_pod, pod, node, partial(self.claims.beside, api_pod, pod, node))
        verdict = steered.verdict or verdict
        check = ClaimCheck(steered.problem)
        if pod.uses_claims and not check.problem:
            check = await self.claims.check(api_pod, pod, node, verdict)
        if check.problem:
            await self._cancel(pod, node)
        annotations = {STEERED_ANNOTATION: steered.text} if steered.text else {}
        # What the containers will get, if something of their own, and if it is certain.
        if verdict.takes_resources and not verdict.alternatives and not self._gangs.is_uncertain(pod.uid):
            placements = [placement_document(placement) for placement in verdict.placements]
            annotations[PLACEMENT_ANNOTATION] = encode(placements).decode()
        return check, annotations

    async def _cancel(self, pod: Pod, node: str) -> None:
        """Undo everything for a pod that is not bound."""
        self._live.forget(pod.uid)
        await self._steering.cancel(pod.uid, node)


class Extender:
    """The verbs filter, prioritize and bind; pods for which no node is offered go to *wake_up*."""

    def __init__(
        self,
        live: LiveCluster,
        binder: Binder,
        preemption: Preemption,
        wake_up: WakeUp,
        options: ExtenderOptions,
    ) -> None:
        self.options, self._claims = options, binder.claims
        self._suitability = live.scheduling.claims
        self._live, self._binder, self._preemption, self._wake_up = live, binder, preemption, wake_up
        self._offers = Offers()
        self._soft_taints = SoftTaints(live.nodes)
        self.records: OrderedDict[str, FilterRecord] = OrderedDict()  #: what filter answered about a pod last, by uid
        #: uid → why no node was offered, as logged last
        self._logged: OrderedDict[str, frozenset[str]] = OrderedDict()

    def filter(self, args: ExtenderArgs) -> FilterResult:
        names, metadata = args.names, args.pod.metadata
        verdicts: dict[str, Verdict] = {}
        kept: dict[str, str] = {}
        problem = ""
        try:
            if problems := self._live.problems:
                problem = f"alignup cannot tell what nodes have: {'; '.join(problems)}"
            else:
                pod = self._live.read(args.pod)
                self._live.schedule(SchedulerAsked(self._live.facts(args.pod)))
                kept = self._live.scheduling.refusals(pod)
                if (answer := self._filter_together(args, pod, kept)) is not None:
                    return answer
                if not needs_alignment(pod) and not must_align(pod):
                    allowed = list(names)
                    refused = {name: kept[name] for name in allowed if name in kept} if kept else {}
                    return args.result([name for name in allowed if name not in refused], unresolvable=refused)
                chosen = self._best(args.pod, pod, names, kept)
                verdicts = {} if chosen else self._live.feasible(pod, names)
                if must_align(pod):  # every node that admits it was tried
                    kept = dict.fromkeys(verdicts, NOT_ALIGNED) | kept
                kept = {name: reason for name, reason in kept.items() if name in verdicts and verdicts[name].admits}
                verdicts |= {name: unknown(reason) for name, reason in kept.items()}
        except PodError as error:
            problem = f"alignup cannot read the pod: {error}"
        if problem:
            if self._is_new(metadata.uid, [problem]):
                _log.warning("filter", pod=metadata.full_name, uid=metadata.uid, problem=problem)
            return FilterResult(error=problem)
        if chosen:
            self._offers.offered(pod.uid, chosen)
            return self._offer(args, chosen)
        self._remember(args.pod, len(names), verdicts, chosen)
        self._wake_up.rejected(args.pod, names)
        resolvable = self._preemption.resolvable(pod, verdicts.keys() - kept.keys())
        failed = {name: verdict.reason for name, verdict in verdicts.items() if name in resolvable}
        unresolvable = {name: verdict.reason for name, verdict in verdicts.items() if name not in resolvable}
        return args.result([], failed, unresolvable)

    def _filter_together(self, args: ExtenderArgs, pod: Pod, kept: Collection[str]) -> FilterResult | None:
        """Answer about a pod that waits for devices, or is decided on with its gang; ``None``: it is not."""
        names = args.names
        if waits := self._claims.waits(pod):
            return args.result([], unresolvable=dict.fromkeys(names, waits))
        place = self._live.act(self._live.scheduling.gangs.place, self._live.facts(args.pod), names)
        if place is None:
            return None
        others = self._without_host_state(names) if place.unfit else []  # gangs are not decided there
        if others and (chosen := self._best(args.pod, pod, others, kept)):
            return self._offer(args, chosen)
        if place.problem:  # evicting others for one pod would not let the gang start
            refused = dict.fromkeys(names, unknown(place.problem))
            self._remember(args.pod, len(refused), refused, [])
            self._wake_up.rejected(args.pod, names)
            return args.result([], unresolvable=dict.fromkeys(refused, place.problem))
        return self._offer(args, [place.host]) if place.host else None

    def _offer(self, args: ExtenderArgs, chosen: list[str]) -> FilterResult:
        self._remember(args.pod, len(args.names), {}, chosen)
        return args.result(chosen)

    def _without_host_state(self, names: Iterable[str]) -> list[str]:
        """Return the nodes without HostState, if pods may go there."""
        if not self.options.allow_unknown and not self._live.options.approximate:
            return []
        return [name for name in names if self._live.cluster.record(name) is None]

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Score nodes from 0 to 10; the best of them gets 10 where they differ."""
        totals: dict[str, float] = {}
        try:
            pod = self._live.read(args.pod)
            if needs_alignment(pod):
                verdicts = self._live.feasible(pod, args.names).items()
                totals = {name: verdict.score.total for name, verdict in verdicts if verdict.admits and verdict.score}
                if pod.uses_claims:
                    totals = {
                        name: total + CLAIM_POINTS * self._suitability.suits(pod, name)
                        for name, total in totals.items()
                    }
        except PodError as error:
            _log.warning("prioritize", pod=args.pod.metadata.full_name, uid=args.pod.metadata.uid, problem=str(error))
        lowest, highest = min(totals.values(), default=0.0), max(totals.values(), default=0.0)
        width = highest - lowest
        scores = {
            name: round(MAX_SCORE * (total - lowest) / width) if width else MAX_SCORE for name, total in totals.items()
        }
        return [HostPriority(name, scores.get(name, 0)) for name in args.names]

    async def bind(self, args: BindingArgs) -> BindingResult:
        started = time.perf_counter()
        problem = await self._bind(args)
        seconds = round(time.perf_counter() - started, 4)
        pod, uid, node = f"{args.pod_namespace}/{args.pod_name}", args.pod_uid, args.node
        detail = {"problem": problem} if problem else {}
        _log.info("bind", pod=pod, uid=uid, node=node, bound=not problem, seconds=seconds, **detail)
        return BindingResult(problem)

    async def _bind(self, args: BindingArgs) -> str:
        """Bind a pod; return why it was not bound, or nothing."""
        if problems := self._live.problems:
            return f"alignup cannot tell what nodes have: {'; '.join(problems)}"
        api_pod = self._live.find_pod(args.pod_namespace, args.pod_name)
        if api_pod is None or args.pod_uid not in {"", api_pod.metadata.uid}:  # the watch may be late
            record = self.records.get(args.pod_uid)
            api_pod = record.pod if record else None
        if api_pod is None:
            return f"alignup does not know pod {args.pod_namespace}/{args.pod_name} with uid {args.pod_uid}"
        try:
            pod = self._live.read(api_pod)
        except PodError as error:
            return f"alignup cannot read the pod: {error}"
        problem = await self._binder.bind(api_pod, pod, args.node)
        self._offers.offered(pod.uid, ())
        if not problem:
            self._wake_up.scheduled(pod.uid)
        return problem

    def _best(self, api_pod: ApiPod, pod: Pod, names: Collection[str], kept: Collection[str]) -> list[str]:
        """Return the best nodes but those *kept* for others; those that others may get, or the pod avoids, after them.

        Nodes without HostState are the last. A pod that was not bound after the last offer may need another node, so it
        gets several.
        """
        limit = self.options.offered
        if limit is None:
            record = self.records.get(api_pod.metadata.uid)
            limit = MANY if has_preferences(api_pod) or (record is not None and record.offered) else 1
        last = self._offers.taken(pod.uid) | self._soft_taints.avoided_by(api_pod.spec.tolerations)
        cluster = self._live.cluster
        if pod.uid in self._live.assumed:  # the scheduler tries again, and the assumed node still admits the pod
            chosen = sorted([ranked.host for ranked in cluster.rank(pod, names)], key=lambda name: name in last)
        else:
            wanted = limit if not pod.uses_claims else len(names) if must_align(pod) else MAX_JUDGED
            chosen = cluster.best(pod, max(limit, wanted) + len(kept), among=names, last=last)
        chosen = [name for name in chosen if name not in kept]
        if pod.uses_claims:
            chosen = self._suitability.select(pod, chosen, limit)
        unknown_nodes = self._without_host_state(names) if len(chosen) < limit else []
        if unknown_nodes and not must_align(pod):
            verdicts = self._live.feasible(pod, unknown_nodes)
            judged = [(-verdict.score.total, name) for name, verdict in verdicts.items() if verdict.score]
            chosen += [name for _, name in sorted(judged) if verdicts[name].admits]
            if self.options.allow_unknown:
                chosen += [name for name in unknown_nodes if not verdicts[name].admits]
        return chosen[:limit]

    def _remember(self, pod: ApiPod, asked: int, verdicts: Mapping[str, Verdict], chosen: list[str]) -> None:
        uid = pod.metadata.uid
        reasons = Counter([verdict.reason for verdict in verdicts.values()])
        record = FilterRecord(pod=pod, at=time.time(), asked=asked, offered=tuple(chosen), reasons=reasons)
        self.records[uid] = record
        self.records.move_to_end(uid)
        while len(self.records) > MAX_PODS:
            self.records.popitem(last=False)
        if chosen:
            self._logged.pop(uid, None)
        if chosen or self._is_new(uid, reasons):
            detail = {} if chosen else {"reasons": dict(reasons.most_common(5))}
            _log.info("filter", pod=pod.metadata.full_name, uid=uid, nodes=asked, offered=len(chosen), **detail)

    def _is_new(self, uid: str, reasons: Iterable[str]) -> bool:
        """Return whether a pod is rejected for other reasons than last time, apart from those that pass in seconds.

        A scheduler asks about a rejected pod again and again, and each answer would be a line of the log.
        """
        lasting, last = frozenset(reasons) - PASSING_REASONS, self._logged.pop(uid, None)
        self._logged[uid] = lasting
        while len(self._logged) > MAX_PODS:
            self._logged.popitem(last=False)
        return lasting != last
