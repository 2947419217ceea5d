"""A process around a scheduling state: it follows a simulated API server and carries out instructions, with faults.

It does what ``schedule.live_cluster`` and ``schedule.gate.controller`` do with real objects.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.scheduling import events, instructions
from alignup.placement.scheduling.facts import ClaimFit, GangFacts, GroupKey, PodFacts, WaitState
from alignup.placement.scheduling.instructions import Instruction
from alignup.placement.scheduling.options import ExtenderOptions, GateOptions
from alignup.placement.scheduling.releases import ReleaseOutcome
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.schedule.recording import DecisionRecorder, RecordedState
from tests.placement.scheduling.machine import PlainFacts
from tests.placement.scheduling.model_api import ModelApi, ModelPod

Result = TypeVar("Result")
PATIENCE = 8.0
OPTIONS = GateOptions(parallel=4, patience=PATIENCE, unbound=10.0, retry=3.0, avoid=30.0, replace_stuck=True)


class InjectedError(Exception):
    """A task of the process has failed."""


class Checks(Protocol):
    """What holds at every step."""

    def before(self, shell: "Shell", event: str) -> None: ...
    def after(self, shell: "Shell", done: list[Instruction]) -> None: ...


class ModelFacts(PlainFacts):
    """Facts from the objects that the process has seen."""

    def __init__(self, api: ModelApi, fails: Callable[[], bool]) -> None:
        super().__init__()
        self._fails = fails
        self.view: dict[str, ModelPod] = {}
        self.told: set[str] = set()  #: uids of pods that the process was told of; a scheduler may ask about others
        self.allocated: set[str] = set()  #: uids of pods whose claims have devices, as far as it is known
        self.since: dict[str, float] = {}
        self._api = api

    def of(self, pod_object: ModelPod, now: float) -> PodFacts:
        return PodFacts(
            pod=pod_object.pod,
            order=pod_object.order,
            state=pod_object.state,
            since=self.since.get(pod_object.uid, now),
            version=str(pod_object.version),
            scheduler=pod_object.scheduler,
            group=pod_object.group,
            selection=(pod_object.forbidden, pod_object.released_to),
            controllers=pod_object.controllers,
            released_to=pod_object.released_to if not pod_object.gates else (),
            problem="no" if pod_object.unschedulable else None,
            bound_at_once=pod_object.at_once,
        )

    def see(self, pod_object: ModelPod, now: float) -> PodFacts | None:
        uid, state = pod_object.uid, pod_object.state
        self.pods.pop(uid, None)
        if state is WaitState.OTHER and not pod_object.released_to and pod_object.group is None:
            return None
        if state is not WaitState.OTHER:
            self.since.setdefault(uid, now)
        facts = self.pods[uid] = self.of(pod_object, now)
        return facts

    def forget(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.since.pop(uid, None)

    def readable_pod(self, uid: str) -> PodFacts:
        return self.pods.get(uid) or self.of(self.view[uid], self.since.get(uid, 0.0))

    def gang(self, key: GroupKey) -> GangFacts:
        members = [each for each in self.view.values() if each.group == key and each.stage is PodStage.RUNNING]
        bound = {each.uid: each.host for each in members if each.host}
        return GangFacts(
            self._api.minimums[key],
            bound,
            [each.uid for each in members if not each.host and not each.gates],
            [each.uid for each in members if each.gates],
            list(bound),
            [each.uid for each in members if each.host and each.controllers],
        )

    def allowed(self, facts: PodFacts) -> set[str]:
        if facts.uid not in self.view:
            return set()
        pod_object = self.view[facts.uid]
        released_to = set(facts.released_to or self.nodes)
        return {node for node in self.nodes if node in released_to and node not in pod_object.forbidden}

    def insufficient(self, node: str, pod: Pod, **more: Any) -> Sequence[str]:
        if self._fails():
            raise InjectedError("a defect")
        return super().insufficient(node, pod, **more)

    def excluded(self, facts: PodFacts) -> Mapping[str, str]:
        return dict.fromkeys(self.nodes.keys() - self.allowed(facts), "node selector")

    def claim_fit(self, _pod: Pod, node: str, *, idle: bool = False) -> ClaimFit:
        return ClaimFit(possible=node != "node-0", certain=not idle)

    def claims_open(self, pod: Pod) -> bool:
        return pod.uses_claims and pod.uid not in self.allocated

    def claim_kind(self, pod: Pod) -> object:  # type: ignore[override]
        return pod.uses_claims


class Shell:
    """One process. It begins with a list of all objects; *leading* begins later."""

    def __init__(
        self, api: ModelApi, checks: Checks, *, faults: Callable[[], bool], record: Path | None = None
    ) -> None:
        self.api, self.world, self.random, self.checks, self.faults = api, api.world, api.world.random, checks, faults
        self.cluster, self.facts = Cluster(), ModelFacts(api, lambda: faults() and self.random.random() < 0.0005)
        self.recorder = DecisionRecorder(record, self.facts) if record else None
        self.state = SchedulingState(self.cluster, self.facts)
        if self.recorder:
            self.state = RecordedState(self.cluster, self.recorder)
        self.state.handle(events.ExtenderOpened(ExtenderOptions(patience=PATIENCE)), now=self.world.now)
        self.asked_about: dict[str, ModelPod] = {}
        self.log: deque[tuple[float, object]] = deque(maxlen=60)
        self.numbers = count(1)  #: of requests
        self.asking: dict[str, int] = {}  #: uid → number of the request for its binding
        self.leading = self.closed = False
        self.term = 0  #: of leadership; answers to requests of earlier ones are read by nobody
        #: on their way: what they do, and what follows, whether they are done or not
        self.requests: dict[int, tuple[Callable[[], bool], Callable[[bool], object]]] = {}
        self.bound: dict[str, dict[str, tuple[ModelPod, PodStage]]] = {}
        self.waiting: dict[str, HostReport] = {}  #: reports of hosts without a Node
        self.list_all()

    # Events

    def handle(self, event: events.Event) -> list[Instruction]:
        self.log.append((self.world.now, event))
        self.checks.before(self, type(event).__name__)
        return self.carry_out(self.state.handle(event, now=self.world.now))

    def carry_out(self, done: list[Instruction]) -> list[Instruction]:  # noqa: C901 - a case for each instruction
        if done:
            self.log.append((self.world.now, tuple(done)))
        self.checks.after(self, done)
        for instruction in done:
            match instruction:
                case instructions.ReadPod(uid) if uid in self.facts.view and not self.facts.view[uid].host:
                    self.follow_unbound(self.facts.view[uid])
                case instructions.WriteRelease() if self.leading:
                    self.later(0.0, partial(self.write_release, instruction))
                case instructions.DecideLargePod(uid):
                    self.later(self.random.uniform(0, 1), partial(self.handle, events.LargePodDecided(uid)))
                case instructions.EvictPod(uid) if uid in self.api.pods:
                    self.api.delete(uid)
                case instructions.WriteBinding():
                    self.write_binding(instruction)
                case instructions.ReadPodClaims():
                    self.later(self.random.uniform(0, 0.2), partial(self.read_claims, instruction))
                case instructions.WriteSteering() if self.leading:
                    self.later(self.random.uniform(0, 0.2), partial(self.write_steering, instruction))
                case instructions.AnswerBinding(request, problem):
                    self.answer_binding(request, problem)
                case instructions.WakePod(uid):
                    self.api.aside.pop(uid, None)
        return done

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something if the process still leads then."""
        term = self.term
        self.world.after(seconds, lambda: None if self.closed or term != self.term else action())

    def tick(self) -> None:
        if self.closed:
            return
        self.world.after(self.random.uniform(0.05, 0.4), self.tick)
        if self.leading:
            self.handle(events.TimePassed())
            for _ in range(self.random.randint(1, 8)):
                tries = self.state.gate.queue.tries if self.state.gate else 0
                self.handle(events.PlaceNext())
                if self.state.gate is None or self.state.gate.queue.tries == tries:
                    break
            self.handle(events.ExplainNext())
            while self.state.wake_ups.due:
                self.handle(events.WakeNext())

    def lead(self) -> None:
        if not self.leading and not self.closed:
            self.leading = True
            self.handle(events.LeadershipBegan())
            self.handle(events.GateOpened(OPTIONS))
            for pod_object in list(self.facts.view.values()):
                if not pod_object.host:
                    self.follow_unbound(pod_object)

    def resign(self) -> None:
        """Requests that are on their way are done, or never."""
        self.leading = False
        self.term += 1
        requests, self.requests = list(self.requests.values()), {}
        self.handle(events.LeadershipEnded())
        for request, tell in requests:
            tell(self.random.random() < 0.5 and request())

    def close(self) -> None:
        self.resign()
        self.closed = True
        if self.recorder:
            self.recorder.close()

    # Following the API server

    def receive(self, kind: str, *event: Any) -> None:
        if not self.closed:
            getattr(self, f"{kind}_changed")(*event)

    def list_all(self) -> None:
        """Nodes, then reports, then pods."""
        for name in self.facts.nodes.keys() - self.api.nodes.keys():
            self.node_changed(name, None)
        for name, allocatable in self.api.nodes.items():
            self.node_changed(name, allocatable)
        for report in self.api.reports.values():
            self.report_changed(report)
        for name, instruction in self.api.instructions.items():
            self.steering_changed(name, *instruction)
        self.list_pods()

    def list_pods(self) -> None:
        """Only the differences to the objects that are known are told, and the order of bindings is lost."""
        self.facts.allocated = set(self.api.claims)
        for uid, pod_object in list(self.facts.view.items()):
            if uid not in self.api.pods:
                self.pod_changed(pod_object, PodStage.ENDED, "", listed=True)
        listed = [replace(pod_object) for pod_object in self.api.pods.values()]
        for pod_object in listed:
            known = self.facts.view.get(pod_object.uid)
            if known is None or known.version != pod_object.version:
                self.pod_changed(pod_object, pod_object.stage, "", listed=True)
        self.bound = {}
        bound = [pod_object for pod_object in listed if pod_object.host]
        for pod_object in bound:
            self.bound.setdefault(pod_object.host, {})[pod_object.uid] = (pod_object, pod_object.stage)
        pods = [events.BoundPod(pod_object.pod, pod_object.host, pod_object.stage) for pod_object in bound]
        self.handle(events.PodsListed(tuple(pods)))

    def pod_changed(self, pod_object: ModelPod, stage: PodStage, reason: str, *, listed: bool = False) -> None:
        uid, ended = pod_object.uid, stage is PodStage.ENDED
        known = self.facts.view.get(uid)
        if ended and known is None:
            return  # an informer tells nothing about an object that it does not know
        self.facts.view[uid] = pod_object
        self.facts.told.add(uid)
        if not pod_object.host:
            self.follow_unbound(pod_object, gone=ended)
        else:
            if not listed:
                self.follow_binding(pod_object, stage, reason)
            self.facts.forget(uid)
            self.facts.bound[uid] = (pod_object.pod, pod_object.host)
            if ended:
                del self.facts.bound[uid]
            self.handle(events.HostsChanged((pod_object.host,)))
            waits = uid in self.state.waiting_for_claims
            if ended:
                self.handle(events.PodGone(uid, pod_object.host))
            elif known is None or not known.host or waits:
                self.handle(events.PodBound(uid, pod_object.host, pod_object.pod if waits else None))
        if ended:
            self.facts.view.pop(uid, None)
            self.facts.allocated.discard(uid)
        if pod_object.group:
            self.handle(events.GroupChanged(pod_object.group))

    def follow_unbound(self, pod_object: ModelPod, *, gone: bool = False) -> None:
        if gone:
            del self.facts.view[pod_object.uid]
            self.facts.forget(pod_object.uid)
            self.handle(events.PodGone(pod_object.uid))
        else:
            facts = self.facts.see(pod_object, self.world.now)
            self.handle(events.PodLeft(pod_object.uid) if facts is None else events.PodSeen(facts))

    def follow_binding(self, pod_object: ModelPod, stage: PodStage, reason: str) -> None:
        uid, host = pod_object.uid, pod_object.host
        bound = self.bound.setdefault(host, {})
        known = bound.pop(uid, None)
        if stage is not PodStage.ENDED:
            bound[uid] = (pod_object, stage)
        if known is not None and known[1] is stage and uid not in self.state.assumptions:
            return
        rejected = events.PodRejected(uid, host, reason)
        self.handle(rejected if reason else events.PodObserved(pod_object.pod, host, stage))

    def node_changed(self, name: str, allocatable: Any) -> None:
        gone = allocatable is None
        if gone:
            self.facts.nodes.pop(name, None)
        else:
            self.facts.nodes[name] = allocatable
        self.handle(events.NodeChanged(name, gone))
        if gone:
            self.drop_host(name)
        elif name in self.waiting:
            self.report_changed(self.waiting.pop(name))

    def report_changed(self, report: HostReport) -> None:
        name = report.host
        self.waiting.pop(name, None)
        if name not in self.facts.nodes:
            self.waiting[name] = report
            return
        record = self.cluster.record(name)
        if record is not None and record.report.sequence >= report.sequence:
            return
        self.handle(events.HostReported(report))

    def drop_host(self, name: str) -> None:
        """The state of a host is unknown until its next report."""
        if self.cluster.record(name) is not None:
            bound = self.bound.get(name, {}).values()
            pods = [events.BoundPod(pod_object.pod, name, stage) for pod_object, stage in bound]
            self.handle(events.HostLost(name, tuple(pods)))

    def claims_changed(self, namespace: str) -> None:
        self.facts.allocated = {uid for uid in self.api.claims if uid in self.facts.view}
        self.handle(events.ClaimsChanged(namespace))

    # Releases

    def write_release(self, release: instructions.WriteRelease) -> None:
        uid = release.pod.uid
        pod_object = self.facts.view.get(uid)
        if pod_object is None:
            self.handle(events.ReleaseFailed(uid, ReleaseOutcome.DELETED))
        elif str(pod_object.version) != release.version:
            current = self.facts.of(pod_object, self.world.now)
            self.handle(events.ReleaseFailed(uid, ReleaseOutcome.CHANGED, current=current))
        else:
            number = next(self.numbers)
            self.requests[number] = (lambda: self.api.release(uid, release.version, release.nodes), lambda _: None)
            self.later(self.random.uniform(0.005, 0.3), lambda: self.send_release(number, release))

    def send_release(self, number: int, release: instructions.WriteRelease) -> None:
        (request, _), uid = self.requests.pop(number), release.pod.uid
        chance = self.random.random() if self.faults() else 1.0
        answer: Callable[[], object] = partial(self.find_out, release)
        if chance < 0.03:
            answer = partial(self.handle, events.ReleaseFailed(uid, ReleaseOutcome.REFUSED, "no"))
        elif chance < 0.04:
            answer = partial(self.handle, events.StepFailed(uid, "release", InjectedError("a task")))
        elif chance < 0.08:
            pass  # the request is lost
        elif request() and chance > 0.12:
            answer = partial(self.handle, events.ReleaseWritten(uid))
        self.later(self.random.choice((0.001, 0.1, 2.0)), answer)

    def find_out(self, release: instructions.WriteRelease) -> None:
        """Read the pod after a conflict or a lost answer."""
        uid = release.pod.uid
        current = self.api.pods.get(uid)
        if current is None:
            self.handle(events.ReleaseFailed(uid, ReleaseOutcome.DELETED))
        elif current.released_to == release.nodes:
            self.handle(events.ReleaseWritten(uid))
        else:
            facts = self.facts.of(replace(current), self.world.now)
            self.handle(events.ReleaseFailed(uid, ReleaseOutcome.CHANGED, current=facts))

    # The extender

    def schedule_pod(self, pod_object: ModelPod) -> None:
        """A scheduler asks about a pod, and wants it to be bound to one of the nodes that it is offered."""
        uid = pod_object.uid
        if not self.leading or uid in self.asking or uid in self.api.aside:
            return
        pod, facts = pod_object.pod, self.facts.of(pod_object, self.world.now)
        self.asked_about[uid] = pod_object
        left = [node for node in self.api.nodes.keys() - pod_object.forbidden if self.api.has_room(node, pod)]
        done = self.handle(events.NodesAsked(facts, sorted(left), again=self.random.random() < 0.3))
        offered = next((each.offered for each in done if isinstance(each, instructions.AnswerNodes)), ())
        if offered:
            number = next(self.numbers)
            self.asking[uid] = number
            self.handle(events.BindingAsked(number, facts, self.random.choice(offered)))
        else:
            self.api.aside[uid] = frozenset(left)
            self.mark_unschedulable(uid)

    def mark_unschedulable(self, uid: str) -> None:
        known = self.api.pods.get(uid)
        if known is not None and not known.host and not known.unschedulable:
            self.api.change(uid, unschedulable=True)

    def answer_binding(self, request: int, problem: str) -> None:
        uid = next(uid for uid, number in self.asking.items() if number == request)
        del self.asking[uid]
        if problem:
            self.mark_unschedulable(uid)

    def read_claims(self, read: instructions.ReadPodClaims) -> None:
        chance = self.random.random() if self.faults() else 1.0
        event: events.Event = events.ClaimsRead(read.request, read.pod)
        if chance < 0.1:
            event = events.ClaimsRead(read.request, None, problem="not found")
        elif chance < 0.2:
            event = events.StepFailed(read.pod.uid, "bind", InjectedError("a task"), read.request)
        self.handle(event)

    def write_binding(self, binding: instructions.WriteBinding) -> None:
        """The request takes a while; if the process resigns meanwhile, it is done, or not."""
        number = next(self.numbers)

        def request() -> bool:
            return binding.node in self.api.nodes and self.api.bind(binding.pod.uid, binding.node)

        def tell(done: bool) -> None:
            failed = events.BindingFailed(binding.request, "no")
            self.handle(events.BindingWritten(binding.request) if done else failed)

        self.requests[number] = (request, tell)
        self.later(self.random.uniform(0.005, 0.3), lambda: self.send_binding(number, binding))

    def send_binding(self, number: int, binding: instructions.WriteBinding) -> None:
        request, tell = self.requests.pop(number)
        chance = self.random.random() if self.faults() else 1.0
        done = chance >= 0.1 and request()
        if chance < 0.2 and chance > 0.05:
            self.handle(events.BindingFailed(binding.request, "no response", lost=True))
        elif chance < 0.22 and chance > 0.05:
            self.handle(events.StepFailed(binding.pod.uid, "bind", InjectedError("a task"), binding.request))
        else:
            tell(done)

    def write_steering(self, steering: instructions.WriteSteering) -> None:
        uid, chance = steering.pod.uid if steering.pod else "", self.random.random() if self.faults() else 1.0
        if chance < 0.05 or steering.node not in self.api.nodes:
            self.handle(events.SteeringFailed(steering.node, uid, "no"))
            return
        generation = self.api.steer(steering.node, uid, steering.nodes)
        failed = events.SteeringFailed(steering.node, uid)
        self.handle(failed if chance < 0.1 else events.SteeringWritten(steering.node, uid, generation))

    def steering_changed(self, node: str, generation: int, phase: str, uid: str, nodes: int) -> None:
        self.handle(events.SteeringObserved(node, generation, phase, uid, nodes))


def describe(value: object) -> str:
    """Return an event or instruction in brief: pods by uid and what they ask for."""
    match value:
        case Pod():
            asked = [f"{amount}" for each in value.containers for amount in each.resources.requests.values()]
            return f"{value.uid}({' '.join(asked[:6])})"
        case PodFacts():
            fields = (value.state, f"v{value.version}", value.group and value.group.name, value.released_to)
            return " ".join([describe(value.pod), *(str(each) for each in fields if each)])
        case tuple() | list():
            return f"[{', '.join(map(describe, value))}]"
        case _ if is_dataclass(value):
            members = [describe(getattr(value, each.name)) for each in fields_of(value)]
            return f"{type(value).__name__}({', '.join(members)})"
        case _:
            return str(value)
