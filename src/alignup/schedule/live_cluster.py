"""A ``placement.cluster.Cluster`` that follows the API server: nodes, pods, and the HostState objects of the observers.

    live = LiveCluster(client)
    task = asyncio.create_task(live.run())
    await live.ready.wait()
    live.choose(live.read(pod))           # the nodes that admit a pod, best first

Everything happens in one event loop, and nothing here waits while the cluster is changed, so an answer belongs to one
moment. Pods of the API server are read only if no report contains them: a report has all that decisions depend on.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import structlog

from alignup import garbage_collection
from alignup.align.claims.resource_claims import Claim
from alignup.align.errors import AlignError, PodError
from alignup.align.workload import Pod
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.reader import kubelet_release
from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES, NODES, PODS, ApiClient, Change, EventType, Informer
from alignup.kubernetes.api.errors import NotFoundError
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.kubernetes.api.known_pods import (
    api_pod_stage,
    binding_time,
    bound_pod,
    check_container_count,
    kubelet_uid,
    plain_pod,
    readable_pod,
    was_preempted,
    was_rejected,
)
from alignup.kubernetes.api.objects import ApiNode, ApiPod
from alignup.kubernetes.api.steering_instructions import STEERING_INSTRUCTIONS
from alignup.picture.text_format import pluralize
from alignup.placement.cluster import Cluster, RankedHost
from alignup.placement.host_report import PodStage, pod_stage
from alignup.placement.scheduling import events, instructions
from alignup.placement.scheduling.events import BoundPod, Event
from alignup.placement.scheduling.facts import ClaimFit, Explained, PodFacts, WaitState
from alignup.placement.scheduling.instructions import Instruction, PredictionOutcome
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.turn import run_all
from alignup.placement.verdict import Verdict, unknown
from alignup.schedule.claim_alignment import explain_claims
from alignup.schedule.cluster_claims import ClusterClaims
from alignup.schedule.cluster_facts import LiveFacts, pod_state
from alignup.schedule.failed_decisions import FailedDecisions
from alignup.schedule.instruction_tasks import InstructionTasks, failure_event
from alignup.schedule.known_claims import ClaimChange, ObjectName, object_label
from alignup.schedule.large_pods import LargePods
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.node_resource_topology import TopologyFallback
from alignup.schedule.pod_groups import PodGroups, group_of
from alignup.schedule.pod_trimmer import PodTrimmer
from alignup.schedule.recording import DecisionRecorder, RecordedState
from alignup.schedule.schedulable_nodes import NodeCapacity, NodeFilter, affects_choice
from alignup.schedule.step_guard import ServiceStep, StepGuard

NO_NODE = unknown("no such node")
NO_HOST_STATE = unknown("no HostState")
UNKNOWN_STATE = "unknown state"
SILENT_SECONDS = 900.0  #: after which an observer that renews its HostState every few minutes counts as dead
CHECK_SECONDS = 60.0  #: between looking for such observers
MAX_DECODED = 4096  #: pods that are kept as they were decoded: a scheduler asks about a pod several times
_LONGEST_RETRY = 60.0  #: seconds
_UNEXPECTED = {
    PredictionOutcome.PLACED_ELSEWHERE: "pod placed elsewhere",
    PredictionOutcome.REJECTED: "pod rejected",
    PredictionOutcome.FOREIGN_REJECTED: "pod of others rejected that predictions counted on",
}
#: Instructions that concern both front ends.
_FOLLOWED: tuple[type[Instruction], ...] = (
    instructions.KeepNode,
    instructions.GiveNodeBack,
    instructions.ChangeHosts,
    instructions.ReadPod,
    instructions.CountPrediction,
    instructions.DecideLargePod,
    instructions.Report,
)
_MAX_WARNING = 300  #: characters about one unreadable object

_log = structlog.get_logger()

ChangeListener = Callable[[Collection[str]], object]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class LiveCluster:
    """The cluster as of now. Only the event loop in which :meth:`run` runs may use it."""

    def __init__(
        self, client: ApiClient, *, options: LiveClusterOptions | None = None, metrics: ScheduleMetrics | None = None
    ) -> None:
        self.options = options or LiveClusterOptions()
        self.metrics = metrics or ScheduleMetrics()
        self.guard = StepGuard(self.metrics, client.timing)  #: of everything that is done about one pod, gang or node
        self.failed_decisions = FailedDecisions(self.guard, self._decide_again)
        self.cluster = Cluster(max_unconfirmed=self.options.max_unconfirmed, on_defect=self.failed_decisions.note)
        self.cluster_facts = LiveFacts(self)
        self._recorder: DecisionRecorder | None = None
        self.scheduling = SchedulingState(self.cluster, self.cluster_facts)
        if self.options.record is not None:
            self._recorder = DecisionRecorder(
                self.options.record,
                self.cluster_facts,
                max_unconfirmed=self.options.max_unconfirmed,
                on_failure=self.metrics.recording_failures.inc,
            )
            self.scheduling = RecordedState(self.cluster, self._recorder)
        self.nodes = Informer(client, NODES)
        self.node_filter = NodeFilter(self.nodes, self.failed_decisions.note)
        isolate = partial(self.guard.guarded, ServiceStep.FOLLOW)
        self.node_capacity = NodeCapacity(self.nodes, self._unfinished_pods, self._read_or_none, isolate)
        self.host_states = Informer(client, HOST_STATES, trim=HostStateObject.without_content)
        # Pending and finished ones, too: a watch of unfinished pods does not show why they end.
        self.pods = Informer(client, PODS, trim=PodTrimmer().trim)
        self.topologies = Informer(client, NODE_RESOURCE_TOPOLOGIES)  #: followed only if they count
        self.claims = ClusterClaims(client, self.nodes, self._claims_changed)
        #: followed by the service; the cluster may have no such resource
        self.steering_instructions = Informer(client, STEERING_INSTRUCTIONS, longest_retry=_LONGEST_RETRY)
        self.pod_groups = PodGroups(client, self.pods)
        self.pod_groups.subscribe(lambda key: self.schedule(events.GroupChanged(key)))
        self._informers: tuple[Informer[Any], ...] = (self.nodes, self.host_states)  #: that come before the pods
        if self.options.approximate:
            self._informers += (self.topologies,)
        self._fallback = TopologyFallback()
        self._client = client
        self.tasks = InstructionTasks(self.schedule)
        self.large_pods = LargePods(self.cluster)
        self._reader = host_state_reader(self.options.plugin_rules)
        self._unknown: dict[str, Verdict] = {}  #: node → why its state is unknown, if it has a HostState
        self._state_uids: dict[str, str] = {}  #: node → uid of the HostState that its host was read from
        #: node → uid that the kubelet uses → pod, as observed last
        self._bound: dict[str, dict[str, tuple[ApiPod, PodStage]]] = {}
        #: namespaces and names of pods that are not bound, or in a group, by uid
        self._names: dict[str, tuple[str, str]] = {}
        self._node_names: dict[str, None] = {}
        self._uids: dict[str, str] = {}  #: uid of every pod → the one that the kubelet uses; empty: not known yet
        #: HostStates that wait until all pods are listed, or until there is a Node
        self._waiting: dict[str, HostStateObject] = {}
        self._heard: dict[str, float] = {}  #: node → when its HostState was written last, by our clock
        self._changed: dict[str, None] = {}  #: nodes about which listeners are not notified yet
        self._listeners: list[ChangeListener] = []
        self._instruction_listeners: dict[type[Instruction], list[Callable[[Any], object]]] = {}
        self.on_instruction(self._follow_instruction, *_FOLLOWED)
        self._event_listeners: list[Callable[[Event], object]] = []
        self.ready = asyncio.Event()  #: set when everything was listed once
        self._decoded: dict[tuple[str, str], Pod] = {}  #: by uid and resource version
        self._pods_wanted = False  #: whether pods are followed, or about to be
        self._unreadable: dict[str, str] = {}  #: kind and name of an object whose content is invalid → the problem

    # Following the API server

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        try:
            await self._follow()
        finally:
            if self._recorder:
                self._recorder.close()

    async def _follow(self) -> None:
        self.nodes.subscribe(self._node_changed)
        self.host_states.subscribe(self._state_changed)
        self.topologies.subscribe(lambda change: self._topology_changed(change.object.metadata.name))
        self.pods.subscribe(self._pod_changed)
        self.pods.subscribe_lists(self._pods_listed)
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers:
                tasks.create_task(informer.run())
            tasks.create_task(self.claims.run())
            tasks.create_task(self.pod_groups.run())
            for informer in self._informers:
                await informer.wait_tried()
                # Those that the API server does not know are not waited for; their informers try again.
                while not informer.synced and not isinstance(informer.error, NotFoundError):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await self.claims.wait_settled()
            await self.pod_groups.settled.wait()
            # After the HostState objects: a pod that they contain, and the later list of pods does not, has ended.
            self._pods_wanted = True
            tasks.create_task(self.pods.run())
            await self.pods.wait_synced()
            garbage_collection.set_for_service()
            self.ready.set()
            while True:
                await asyncio.sleep(CHECK_SECONDS)
                self.check_observers()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why answers could be wrong now; empty: they are right."""
        if not self.ready.is_set():
            return ("the cluster has not been read yet",)
        return tuple(
            f"{informer.resource.full_name} are not followed: {informer.error}"
            for informer in (*self._informers, self.pods)
            if informer.error is not None and not isinstance(informer.error, NotFoundError)
        )

    @property
    def unreadable(self) -> dict[str, str]:
        """Objects that cannot be read, and why. Their nodes count as unknown; answers about others are right."""
        return (
            self._unreadable
            | self.claims.unreadable
            | {
                object_label(informer.resource.kind, name): problem
                for informer in (*self._informers, self.pods)
                for name, problem in informer.unreadable.items()
            }
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What health checks tell although answers are right."""
        unreadable = self.unreadable
        warnings = [text[:_MAX_WARNING] for text in self.claims.warnings]
        if unreadable:
            first = "; ".join(f"{name}: {problem}"[:_MAX_WARNING] for name, problem in islice(unreadable.items(), 3))
            warnings.insert(0, f"{pluralize(len(unreadable), 'object')} cannot be read: {first}")
        return tuple(warnings)

    def _decide_again(self, node: str) -> None:
        """Make decisions about a node again that a defect prevented."""
        api_node = self.nodes.get(node)
        if api_node is not None:
            self.node_filter.update(Change(EventType.MODIFIED, api_node))
            self._touch(node)

    def on_change(self, listener: ChangeListener) -> None:
        """Call *listener* with the names of nodes that changed, soon after they did."""
        self._listeners.append(listener)

    # The scheduling state

    def on_instruction(self, listener: Callable[[Any], object], *types: type[Instruction]) -> None:
        """Call *listener* with each instruction of these *types*."""
        for type_ in types:
            self._instruction_listeners.setdefault(type_, []).append(listener)

    def on_event(self, listener: Callable[[Event], object]) -> None:
        """Call *listener* after the scheduling state has handled an event."""
        self._event_listeners.append(listener)

    def open_gate(self, options: GateOptions) -> None:
        """Let the scheduling state place the pods behind the gate as well, until the leadership ends."""
        self.schedule(events.GateOpened(options))
        for pod in tuple(self.pods.objects.values()):
            if not pod.spec.node_name:
                self._follow_unbound(pod, gone=pod.finished)

    def schedule(self, event: Event) -> Sequence[Instruction]:
        """Let the scheduling state handle an event, and listeners carry out its instructions, which are returned."""
        todo = self.scheduling.handle(event, now=self._now())
        self._carry_out(todo)
        for listener in self._event_listeners:
            with self.guard.guarded(ServiceStep.FOLLOW, type(event).__name__):
                listener(event)
        return todo

    def _carry_out(self, todo: Sequence[Instruction]) -> None:
        for instruction in todo:
            for listener in self._instruction_listeners.get(type(instruction), ()):
                try:
                    listener(instruction)
                except Exception as error:  # noqa: BLE001 - whatever it is, all others are carried out
                    self.instruction_failed(instruction, error)

    def instruction_failed(self, instruction: Instruction, error: Exception) -> None:
        """Let the scheduling state undo what it expects of an instruction that was not carried out."""
        event = failure_event(instruction, error)
        if not isinstance(event, events.StepFailed):
            self.guard.report(step=ServiceStep.FOLLOW, name=type(instruction).__name__, error=error, retry=0.0)
        if event is not None:
            self.schedule(event)

    def _follow_instruction(self, instruction: Instruction) -> None:  # noqa: C901 - a case for each
        match instruction:
            case instructions.KeepNode(node, holder, uid, _, wait):
                _log.info("node kept", pod=holder, uid=uid, node=node, waited=round(wait))
            case instructions.GiveNodeBack(node, holder, uid, reason):
                _log.info("node no longer kept", pod=holder, uid=uid, node=node, reason=reason)
            case instructions.ChangeHosts(hosts):
                self._notify_later(hosts)
            case instructions.ReadPod(uid):
                if (pod := self.find_by_uid(uid)) is not None and not pod.spec.node_name:
                    self._follow_unbound(pod, gone=pod.finished)
            case instructions.CountPrediction():
                self._count_prediction(instruction)
            case instructions.DecideLargePod(uid, large):
                self.tasks.start(self._decide_large(uid, large), uid, ServiceStep.PLACE)
            case instructions.Report("claims settled", details=details):
                self.metrics.claimed_pods.labels(details["alignment"]).inc()
            case instructions.Report("claims", uid, full_name, details):
                _log.info("claims", pod=full_name, uid=uid, **(details | {"alignment": str(details["alignment"])}))
            case instructions.Report("step failed", details=details):
                self.guard.report(**details)
            case instructions.Report(event, details=details) if event.startswith("gang "):
                _log.info(event, **details)

    async def decide_large(self, pod: ApiPod) -> None:
        """Let hosts decide on a pod with many containers; do nothing for others, or if it cannot be read."""
        with suppress(PodError):
            await self.large_pods.decide(self.read(pod))

    async def _decide_large(self, uid: str, pod: Pod) -> None:
        try:
            await self.large_pods.decide(pod)
        finally:
            self.schedule(events.LargePodDecided(uid))

    def _now(self) -> float:
        return self._client.timing.clock()

    def facts(self, pod: ApiPod) -> PodFacts:
        """Return what scheduling depends on of a pod without a node; ``PodError`` if it is invalid."""
        return self.cluster_facts.of(pod, self._now())

    # Questions

    def find_pod(self, namespace: str, name: str) -> ApiPod | None:
        return self.pods.get(name, namespace=namespace)

    def find_by_uid(self, uid: str) -> ApiPod | None:
        """Return a pod that is not bound, or in a group; ``None``: it is gone."""
        name = self._names.get(uid)
        pod = self.find_pod(*name) if name else None
        return pod if pod is not None and pod.metadata.uid == uid else None

    @property
    def assumed(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes that count on pods whose binding was not observed, by uid."""
        return self.scheduling.assumptions.nodes

    @property
    def node_names(self) -> Collection[str]:
        return self._node_names

    @property
    def approximate_nodes(self) -> Collection[str]:
        return self._fallback.nodes

    def _unfinished_pods(self, node: str) -> Mapping[str, ApiPod]:
        pods = self._bound.get(node, {}).values()
        return {pod.metadata.uid: pod for pod, _ in pods if not pod.finished}

    def _read_or_none(self, pod: ApiPod) -> Pod | None:
        with suppress(PodError):
            return self.read(pod)
        return None

    def bound_pods(self, node: str) -> list[ApiPod]:
        """Return the pods that are bound to a node, finished ones included."""
        return [pod for pod, _ in self._bound.get(node, {}).values()]

    def read(self, pod: ApiPod) -> Pod:
        """Return the pod as decisions need it; ``PodError`` if it is invalid."""
        key = (pod.metadata.uid, pod.metadata.resource_version)
        decoded_pod = self._decoded.get(key)
        if decoded_pod is None:
            try:
                check_container_count(len(pod.spec.containers) + len(pod.spec.init_containers))
                decoded_pod = self.claims.objects.with_class_resources(readable_pod(pod))
            except PodError as error:
                self._note_unreadable(pod, str(error))
                raise
            if all(key):
                if len(self._decoded) >= MAX_DECODED:
                    self._decoded.clear()
                self._decoded[key] = decoded_pod
        return decoded_pod

    def _read_bound(self, pod: ApiPod, uid: str) -> Pod:
        """Read a bound pod; without its requests if the pod has ended, or if a report of its node has them."""
        record = self.cluster.record(pod.spec.node_name)
        if (record is not None and uid in record.ledger.pods) or api_pod_stage(pod) is PodStage.ENDED:
            return plain_pod(pod, uid=uid)
        decoded_pod, problem = bound_pod(pod, uid=uid)
        if problem:
            self._note_unreadable(pod, problem)
        return decoded_pod.pod

    def _kubelet_uid(self, pod: ApiPod) -> str:
        """Return the uid that the kubelet uses, the same for as long as the pod exists."""
        uid = self._uids.get(pod.metadata.uid)
        if not uid:
            uid = self._uids[pod.metadata.uid] = kubelet_uid(pod, self._uids)
        return uid

    def _note_unreadable(self, pod: ApiPod, problem: str) -> None:
        """Name a pod of the cluster that cannot be read; a scheduler may ask about others, too."""
        name = f"{PODS.kind} {pod.metadata.full_name}"
        current = self.find_pod(pod.metadata.namespace, pod.metadata.name)
        if current is not None and current.metadata.uid == pod.metadata.uid and self._unreadable.get(name) != problem:
            self._unreadable[name] = problem
            ids = {"pod": pod.metadata.full_name, "uid": pod.metadata.uid, "node": pod.spec.node_name}
            _log.warning("cannot read a pod", **ids, problem=problem)

    def verdict(self, pod: Pod, node: str) -> Verdict:
        """Predict what the kubelet of *node* decides about *pod*."""
        return self.scheduling.assumptions.verdict(pod, node)

    def feasible(self, pod: Pod, nodes: Iterable[str] | None = None) -> dict[str, Verdict]:
        """Return the verdict of every node, or of these; ``PodError`` if no kubelet could decide on the pod."""
        names = [name for _, name in self.nodes.objects] if nodes is None else list(nodes)
        verdicts = self.cluster.verdicts(pod, names)
        return {name: verdicts.get(name) or self.verdict_without_report(pod, name) for name in names}

    def choose(self, pod: Pod, nodes: Iterable[str] | None = None, *, limit: int | None = None) -> list[RankedHost]:
        """Return the nodes that admit *pod*, best first; of *nodes* only, if given, and at most *limit*."""
        names = self._node_names if nodes is None else frozenset(nodes)
        return self.scheduling.assumptions.rank(pod, names, limit=limit)

    def claim_fit(self, pod: Pod, node: str, *, idle: bool = False) -> ClaimFit:
        """Return whether *node* has devices for the claims of *pod*, perhaps when no other claim has any (*idle*)."""
        return self.claims.fit_on(pod, node, self.cluster.record(node), idle=idle)

    def explain_claims(
        self, pod: Pod, node: str, verdict: Verdict | None = None, fresh: Mapping[ObjectName, Claim] | None = None
    ) -> Explained:
        """Return the claims of *pod* on *node* beside what it gets there by *verdict*, or by the present one."""
        verdict = verdict or self.verdict(pod, node)
        return explain_claims(self.claims, self.cluster.record(node), pod, verdict, fresh)

    def verdict_without_report(self, pod: Pod, node: str) -> Verdict:
        """Return the verdict of a node whose kubelet is not observed: approximate, or why it is unknown."""
        if node in self._unknown:
            return self._unknown[node]
        if problem := self.host_states.unreadable.get(("", node)):
            return unknown(UNKNOWN_STATE, f"its HostState cannot be read: {problem}")
        approximate = self._fallback.verdict(node, pod, self.scheduling.assumptions.on(node))
        if approximate is not None:
            return approximate
        return NO_HOST_STATE if self.nodes.get(node) is not None else NO_NODE

    # Events

    def _claims_changed(self, change: ClaimChange) -> None:
        if change.classes:
            self._decoded.clear()
        if self.ready.is_set():
            self._touch(*([name for _, name in self.nodes.objects] if change.nodes is None else change.nodes))
            for facts in self.cluster_facts.read_again(self._now()) if change.classes else ():
                self.schedule(events.PodSeen(facts))
            self.schedule(events.ClaimsChanged(change.object[0] if change.object else None))

    def _state_changed(self, change: Change[HostStateObject]) -> None:
        state = change.object
        name = state.metadata.name
        self._heard[name] = self._client.timing.clock()
        self._waiting.pop(name, None)
        if change.type is EventType.DELETED:
            self._heard.pop(name, None)
            self._reader.forget(name)
            self._unreadable.pop(f"{HOST_STATES.kind} {name}", None)
            self._forget_host(name)
        elif self._must_wait or self.nodes.get(name) is None:
            self._waiting[name] = state
        else:
            self._read_host(state)

    def check_observers(self) -> None:
        """Drop nodes whose observer stopped; times of other machines are not compared."""
        now = self._client.timing.clock()
        for (_, name), state in self.host_states.objects.items():
            heard = self._heard.get(name, now)
            if state.observed_at and now - heard > SILENT_SECONDS and self.cluster.record(name) is not None:
                _log.warning("observer has stopped", node=name)
                self._unknown[name] = unknown("observer has stopped", f"its last report is of {state.observed_at}")
                with self.guard.guarded(ServiceStep.FOLLOW, f"node {name}"):
                    self._drop_host(name)

    def _node_changed(self, change: Change[ApiNode]) -> None:
        name = change.object.metadata.name
        deleted = change.type is EventType.DELETED
        if affects_choice(change):
            (self._node_names.pop if deleted else self._node_names.setdefault)(name, None)
            self.node_capacity.forget_node(name)
            self.node_filter.update(change)
            self.schedule(events.NodeChanged(name, deleted))
        if deleted:
            self._forget_host(name)
        elif change.type is EventType.ADDED and not self._must_wait:
            if name in self._waiting:
                self._read_host(self._waiting.pop(name))
            elif self.options.approximate:
                self._topology_changed(name)
        elif (record := self.cluster.record(name)) is not None:
            version = change.object.status.node_info.kubelet_version
            if kubelet_release(version) is not record.report.settings.release:
                _log.info("kubelet has another release now", node=name, version=version)
                self._unknown[name] = unknown("new kubelet", f"it is {version} now; its next report counts")
                self._drop_host(name)

    @property
    def _must_wait(self) -> bool:
        """Whether a list of pods is on its way: it may lack a pod of a new HostState, which has not ended."""
        return self._pods_wanted and self.pods.listing

    def _forget_host(self, name: str) -> None:
        self._unknown.pop(name, None)
        self._drop_host(name)
        if self.options.approximate:
            self._topology_changed(name)

    def _topology_changed(self, name: str) -> None:
        """Read a NodeResourceTopology that was written, or that counts from now on, or no longer."""
        counts = self.host_states.get(name) is None and self.nodes.get(name) is not None
        bound_pods = self._bound.get(name, {}) if counts else {}
        pods = [(pod, bound_pod(pod, uid=uid)[0].pod) for uid, (pod, _) in bound_pods.items()]
        self._fallback.update(name, self.topologies.get(name) if counts else None, pods)
        self._touch(name)

    def _read_host(self, state: HostStateObject) -> None:
        """Read a HostState; after any error, only the state of its own node becomes unknown."""
        name, label = state.metadata.name, f"{HOST_STATES.kind} {state.metadata.name}"
        with self.host_states.isolated(("", name)):
            try:
                self._update_host(state)
                self._unreadable.pop(label, None)
            except Exception as error:
                self._unknown[name] = unknown(UNKNOWN_STATE, str(error))
                self._drop_host(name)
                if not isinstance(error, AlignError):
                    raise
                if state.has_ledger:
                    self._unreadable[label] = str(error)

    def _update_host(self, state: HostStateObject) -> None:
        name = state.metadata.name
        if name in self._fallback.nodes:
            self._topology_changed(name)
        if self._state_uids.get(name) not in {None, state.metadata.uid}:
            self._drop_host(name)  # generations start again
        record = self.cluster.record(name)
        if record is not None and state.has_ledger and record.report.sequence >= state.generation:
            return  # only the Node object changed, or the time of the observation
        version = node.status.node_info.kubelet_version if (node := self.nodes.get(name)) else ""
        report = self._reader.read(state, kubelet_version=version)
        self._unknown.pop(name, None)
        self._state_uids[name] = state.metadata.uid
        for instruction in self.schedule(events.HostReported(report)):
            if isinstance(instruction, instructions.RefuseReport):
                raise instruction.error

    def _drop_host(self, name: str) -> None:
        """Drop a host whose state is no longer known; remember the pods bound to it, or assumed, for when it is."""
        self._state_uids.pop(name, None)
        if self.cluster.record(name) is not None:
            bound_pods = self._bound.get(name, {}).items()
            pods = [BoundPod(bound_pod(pod, uid=uid)[0].pod, name, stage) for uid, (pod, stage) in bound_pods]
            self.schedule(events.HostLost(name, tuple(pods)))

    def _pods_listed(self) -> None:
        """Start again from a list of all pods: the order of events since the last list or watch is unknown."""
        api_pods = sorted((pod for pod in self.pods.objects.values() if pod.spec.node_name), key=binding_time)
        self._bound = {}
        bound_pods = []
        for pod in api_pods:
            with self.pods.isolated((pod.metadata.namespace, pod.metadata.name)):
                stage, host, uid = api_pod_stage(pod), pod.spec.node_name, self._kubelet_uid(pod)
                self._bound.setdefault(host, {})[uid] = (pod, stage)
                bound_pods.append(BoundPod(self._read_bound(pod, uid), host, stage))
        self.node_capacity.forget_pods()
        self.schedule(events.PodsListed(tuple(bound_pods)))
        waiting_states, self._waiting = self._waiting, {}
        for name, state in waiting_states.items():
            if self.nodes.get(name) is None:
                self._waiting[name] = state
            else:
                self._read_host(state)
        for name in [name for _, name in self.nodes.objects] if self.options.approximate else ():
            self._topology_changed(name)

    def _pod_changed(self, change: Change[ApiPod]) -> None:
        pod, is_deleted = change.object, change.type is EventType.DELETED
        if self._unreadable.pop(f"{PODS.kind} {pod.metadata.full_name}", None) and not pod.finished:
            with suppress(PodError):  # it is named again if it still cannot be read, and still exists
                self.read(pod)
        self._uids.setdefault(pod.metadata.uid, "")
        is_bound = bool(pod.spec.node_name)
        for version in filter(None, (change.old, pod if is_deleted or is_bound else None)):  # no scheduler asks again
            self._decoded.pop((pod.metadata.uid, version.metadata.resource_version), None)
        key = group_of(pod)
        if key or not is_bound:
            self._names[pod.metadata.uid] = (pod.metadata.namespace, pod.metadata.name)
        leaves = is_deleted or pod.finished or pod.metadata.deletion_timestamp is not None
        run_all(
            lambda: None if is_bound else self._follow_unbound(pod, gone=leaves),
            lambda: self._bound_pod_changed(pod, deleted=is_deleted) if is_bound and not change.listed else None,
            lambda: self._follow_bound(pod, change.old, deleted=is_deleted) if is_bound else None,
            lambda: self.schedule(events.GroupChanged(key)) if key else None,
        )
        if is_deleted or (is_bound and not key):
            self._names.pop(pod.metadata.uid, None)
        if is_deleted:
            self._uids.pop(pod.metadata.uid, None)

    def _follow_unbound(self, pod: ApiPod, *, gone: bool) -> None:
        """Tell the scheduling state about a pod without a node."""
        uid = pod.metadata.uid
        if gone:
            self.cluster_facts.forget(uid)
            self.schedule(events.PodGone(uid))
        else:
            try:
                facts = self.cluster_facts.see(pod, self._now())
            except PodError as error:
                gated = pod_state(pod) is WaitState.GATED
                self.schedule(events.PodUnreadable(uid, str(error)) if gated else events.PodLeft(uid))
                return
            except Exception as error:  # noqa: BLE001 - whatever one pod raises, all others are followed
                self.schedule(events.StepFailed(uid, ServiceStep.QUEUE, error))
                return
            self.schedule(events.PodLeft(uid) if facts is None else events.PodSeen(facts))

    def _follow_bound(self, pod: ApiPod, old: ApiPod | None, *, deleted: bool) -> None:
        """Tell the scheduling state about a pod with a node."""
        uid, node, has_ended = pod.metadata.uid, pod.spec.node_name, deleted or pod.finished
        bound_before = old if old is not None and old.spec.node_name else None

        trimmed_pod = self.find_pod(pod.metadata.namespace, pod.metadata.name) or pod
        waits = uid in self.scheduling.waiting_for_claims
        steps: list[Callable[[], object]] = [lambda: self.cluster_facts.forget(uid)]
        if self.node_capacity.pod_changed(node, bound_before, trimmed_pod, ended=has_ended):
            steps.append(lambda: self.schedule(events.HostsChanged((node,))))
        if has_ended:
            steps.append(lambda: self.schedule(events.PodGone(uid, node)))
        elif bound_before is None or waits:
            steps.append(lambda: self.schedule(events.PodBound(uid, node, self._read_or_none(pod) if waits else None)))
        run_all(*steps)

    def _bound_pod_changed(self, pod: ApiPod, *, deleted: bool) -> None:
        host, uid = pod.spec.node_name, self._kubelet_uid(pod)
        bound_pods = self._bound.setdefault(host, {})
        bound_before = bound_pods.get(uid)
        stage = api_pod_stage(pod)
        if deleted:
            bound_pods.pop(uid, None)
            if not bound_pods:
                del self._bound[host]
            force_deleted = stage is not PodStage.ENDED and pod.metadata.deletion_grace_period_seconds == 0
            stage = PodStage.ENDED
            if force_deleted:
                stage = pod_stage(deleted=True, force_deleted_may_run=self.options.force_deleted_may_run)
        else:
            trimmed_pod = self.find_pod(pod.metadata.namespace, pod.metadata.name)
            bound_pods[uid] = (trimmed_pod or pod, stage)
        if bound_before is not None and bound_before[1] is stage and uid not in self.assumed:
            return
        if was_rejected(pod):
            self.schedule(events.PodRejected(uid, host, pod.status.reason))
            return
        decoded_pod = plain_pod(pod, uid=uid) if stage is PodStage.ENDED else self._read_bound(pod, uid)
        if host in self._fallback.nodes and (bound_before is None or stage is PodStage.ENDED):
            self._fallback.bound(host, decoded_pod, ended=stage is PodStage.ENDED)
        event = events.PodObserved(decoded_pod, host, stage)
        self.schedule(events.PodPreempted(decoded_pod, host) if was_preempted(pod) else event)

    def _count_prediction(self, prediction: instructions.CountPrediction) -> None:
        uid, node, outcome, cause = prediction.uid, prediction.node, prediction.outcome, prediction.cause
        if outcome is PredictionOutcome.FOREIGN_REJECTED:
            self.metrics.foreign_rejections.inc()
        else:
            self.metrics.prediction(outcome=outcome, cause=cause)
        if message := _UNEXPECTED.get(outcome):
            entry = self._bound.get(node, {}).get(uid)
            details = {key: text for key, text in (("cause", cause), ("difference", prediction.difference)) if text}
            _log.warning(message, pod=entry[0].metadata.full_name if entry else uid, uid=uid, node=node, **details)

    def _touch(self, *nodes: str) -> None:
        """Note that what these nodes have room for has changed, not by their pods."""
        if nodes:
            self.schedule(events.HostsChanged(nodes))

    def _notify_later(self, nodes: Collection[str]) -> None:
        """Notify listeners in the next turn of the event loop."""
        if nodes and not self._changed:
            asyncio.get_running_loop().call_soon(self._notify)
        self._changed |= dict.fromkeys(nodes)

    def _notify(self) -> None:
        changed_nodes, self._changed = self._changed, {}
        for listener in tuple(self._listeners):
            with self.guard.guarded(ServiceStep.FOLLOW, "changed nodes"):
                listener(changed_nodes.keys())
