"""Pod lifecycles on an in-memory runtime: no sequence of events breaks an invariant."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.pod_state import (
    DEFAULT_INTERVALS,
    Action,
    CreateSandbox,
    PodActions,
    PodPhase,
    PodStatus,
    PodTermination,
    ProbeStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
    StopSandbox,
    WorkerState,
    finished_at,
)
from alignup.kubernetes.podspec.types import ContainerKind, ContainerSpec, PodSpec, RestartPolicy
from alignup.run.cri.types import ContainerState, CriContainer, CriSandbox
from tests.agent.pods.statuses import (
    CREATED,
    EXITED,
    NEVER,
    NOW,
    ON_FAILURE,
    RUNNING,
    UNKNOWN,
    container,
    instance,
    sandbox,
)

CODES = st.sampled_from([0, 0, 1, 137])
LIVE = {RUNNING, UNKNOWN}

before_apps = st.lists(
    st.tuples(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), st.booleans()), max_size=3
)


@st.composite
def pod_specs(draw) -> PodSpec:
    """Pods with up to three init containers and sidecars, some with a startup probe, and one or two apps."""
    inits = [
        container(f"i{place}", kind, probed=probed and kind is ContainerKind.SIDECAR)
        for place, (kind, probed) in enumerate(draw(before_apps))
    ]
    apps = [container(f"app{place}") for place in range(draw(st.integers(1, 2)))]
    return PodSpec(
        name="pod",
        namespace="default",
        containers=(*inits, *apps),
        restart=draw(st.sampled_from(RestartPolicy)),
        grace=draw(st.sampled_from([0, 5, 30])),
        deadline=draw(st.sampled_from([None, None, None, 300])),
    )


@dataclass
class World:
    """An in-memory runtime and a clock."""

    now: float = NOW
    sandboxes: dict[str, CriSandbox] = field(default_factory=dict)
    containers: dict[str, CriContainer] = field(default_factory=dict)
    number: int = 0

    @property
    def pod_status(self) -> PodStatus:
        return PodStatus(sandboxes=tuple(self.sandboxes.values()), containers=tuple(self.containers.values()))

    def live_containers(self, name: str = "") -> list[CriContainer]:
        return [one for one in self.containers.values() if one.state in LIVE and name in {"", one.name}]

    def newest(self, name: str) -> CriContainer | None:
        found = [one for one in self.containers.values() if one.name == name]
        return max(found, key=lambda one: one.attempt, default=None)

    def create(self, action: StartContainer, state: ContainerState) -> None:
        self.number += 1
        made = instance(
            action.container, state, 128 if state is EXITED else 0, attempt=action.attempt, ran=(self.now, self.now)
        )
        self.containers[f"c{self.number}"] = replace(made, id=f"c{self.number}", sandbox=action.sandbox)

    def exit(self, id_: str, code: int) -> None:
        self.containers[id_] = replace(self.containers[id_], state=EXITED, finished=self.now, exit_code=code)

    def create_sandbox(self, attempt: int) -> None:
        self.number += 1
        made = sandbox(attempt, created=self.now)
        self.sandboxes[f"s{self.number}"] = replace(made, id=f"s{self.number}")

    def remove(self, id_: str) -> None:
        self.sandboxes = {key: one for key, one in self.sandboxes.items() if key != id_}
        self.containers = {key: one for key, one in self.containers.items() if id_ not in {key, one.sandbox}}


class PodLifecycle(RuleBasedStateMachine):
    """One pod: containers exit, sandboxes die, actions fail or get lost, the agent restarts, and time passes."""

    @initialize(spec=pod_specs(), steps=st.integers(0, 8))
    def begin(self, spec: PodSpec, steps: int) -> None:
        """A pod has advanced *steps* steps without a failure."""
        self.spec = spec
        self.world = World()
        self.state = WorkerState(admitted_at=NOW)
        self.passed: set[tuple[str, str]] = set()  #: sandbox and init container that succeeded, or sidecar that started
        self.delays: dict[str, tuple[float, float]] = {}  #: the kubelet's delay, and when it was set
        self.terminated = False
        for _ in range(steps):
            self.advance(self.next_actions())

    # Events

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0, 31.0, 290.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def time_passes_until_wake_at(self) -> None:
        self.world.now = self.next_actions().wake_at or self.world.now

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data(), code=CODES)
    def a_container_exits(self, data: st.DataObject, code: int) -> None:
        self.world.exit(data.draw(st.sampled_from([one.id for one in self.world.live_containers()])), code)

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data())
    def the_state_of_a_container_is_unknown(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from([one.id for one in self.world.live_containers()]))
        self.world.containers[id_] = replace(self.world.containers[id_], state=UNKNOWN)

    @precondition(lambda self: self.world.pod_status.ready_sandbox)
    @rule()
    def the_sandbox_dies(self) -> None:
        newest = self.world.pod_status.ready_sandbox
        assert newest is not None
        self.world.sandboxes[newest.id] = replace(newest, ready=False)

    @precondition(lambda self: not self.terminated and self.startable())
    @rule(data=st.data())
    def a_failed_start_succeeds_after_all(self, data: st.DataObject) -> None:
        """A start that seemed to fail succeeds, or a sandbox that seemed dead is ready."""
        id_ = data.draw(st.sampled_from(self.startable()))
        if id_ in self.world.sandboxes:
            self.world.sandboxes[id_] = replace(self.world.sandboxes[id_], ready=True)
        else:
            self.world.containers[id_] = replace(self.world.containers[id_], state=RUNNING, started=self.world.now)

    def startable(self) -> list[str]:
        made = [one.id for one in self.world.containers.values() if one.state is CREATED]
        return made + [one.id for one in self.world.sandboxes.values() if not one.ready]

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data(), started=st.booleans(), failed=st.booleans())
    def a_probe_reports(self, data: st.DataObject, started: bool, failed: bool) -> None:
        id_ = data.draw(st.sampled_from([one.id for one in self.world.live_containers()]))
        health = ProbeStatus(started=started, ready=started, failure="probe failed" if failed else "")
        self.state = replace(self.state, probes={**self.state.probes, id_: health})

    @rule()
    def the_agent_restarts(self) -> None:
        self.state = WorkerState(termination=self.state.termination, admitted_at=self.state.admitted_at)

    @precondition(lambda self: self.state.termination is None)
    @rule(grace=st.sampled_from([0.0, 5.0, 30.0]))
    def the_pod_is_released(self, grace: float) -> None:
        self.state = replace(self.state, termination=PodTermination(since=self.world.now, grace=grace))

    @rule(data=st.data())
    def some_actions_are_performed(self, data: st.DataObject) -> None:
        """Some actions are performed, in any order, and some of these fail."""
        actions = data.draw(st.permutations(self.next_actions().actions))
        for action in actions[: data.draw(st.integers(0, len(actions)))]:
            self.perform(
                action, fault=data.draw(st.sampled_from(["", "", "", "at once", "half way"])), code=data.draw(CODES)
            )

    @rule(code=CODES)
    def all_actions_are_performed(self, code: int) -> None:
        for action in self.next_actions().actions:
            self.perform(action, code=code)

    # Actions

    def perform(self, action: Action, *, fault: str = "", code: int = 0) -> None:
        world = self.world
        match action:
            case StartContainer(container=name) if fault == "at once":
                self.fail(name, "ErrImagePull")
            case StartContainer(container=name, sandbox=sandbox):
                state = RUNNING if not fault else EXITED if code else CREATED
                if state is not CREATED:
                    self.record_delay(self.container_spec(name), sandbox)
                world.create(action, state)
                if fault:
                    self.fail(name, "RunContainerError")
            case CreateSandbox() if fault:
                before = self.state.sandbox_backoff
                failure = DEFAULT_INTERVALS.back_off(
                    before, reason="FailedCreatePodSandBox", message="no", now=world.now
                )
                self.state = replace(self.state, sandbox_backoff=failure)
            case CreateSandbox(attempt=attempt):
                world.create_sandbox(attempt)
            case StopContainer(id=id_) if not fault:
                world.exit(id_, code)
            case StopSandbox(id=id_) if not fault:
                world.sandboxes[id_] = replace(world.sandboxes[id_], ready=False)
            case RemoveFromRuntime(id=id_) if not fault:
                world.remove(id_)

    def fail(self, name: str, reason: str) -> None:
        failure = DEFAULT_INTERVALS.back_off(
            self.state.backoffs.get(name), reason=reason, message="no", now=self.world.now
        )
        self.state = replace(self.state, backoffs={**self.state.backoffs, name: failure})

    def record_delay(self, spec: ContainerSpec, sandbox: str) -> None:
        """Track the kubelet's delay, which doubles at each restart and here resets with a new sandbox."""
        ended = self.last_exited(spec.name)
        if ended is not None:
            wait, since = self.delays.get(spec.name, (0.0, -math.inf))
            again = wait and finished_at(ended) - since <= 600
            same = spec.kind is ContainerKind.APP or ended.sandbox == sandbox
            self.delays[spec.name] = (min(wait * 2, 300.0) if again and same else 10.0, self.world.now)

    def last_exited(self, name: str) -> CriContainer | None:
        exits = [one for one in self.world.containers.values() if one.name == name and one.state is EXITED]
        return max(exits, key=lambda one: one.attempt, default=None)

    # Invariants

    def next_actions(self) -> PodActions:
        """The next actions, after all checks."""
        self.record_passed()
        found = compute_pod_actions(self.spec, self.world.pod_status, self.state, now=self.world.now)
        later = compute_pod_actions(self.spec, self.world.pod_status, self.state, now=self.world.now + 10_000)
        assert found.wake_at is None or found.wake_at > self.world.now
        assert not self.terminated or found.terminated, "a pod that has ended lives again"
        self.terminated = found.terminated
        if found.terminated:
            assert not self.world.live_containers()
            assert not any(one.ready for one in self.world.sandboxes.values())
            assert later == found, "what has ended changes"
            assert not found.actions
            assert found.phase in {PodPhase.SUCCEEDED, PodPhase.FAILED}
        self.check_all(found)
        return found

    def record_passed(self) -> None:
        newest = self.world.pod_status.ready_sandbox
        for one in self.spec.containers if newest is not None else ():
            instances = self.world.pod_status.instances(one.name, newest.id) if newest is not None else ()
            up = one.startup is None or (instances and self.probe_status(instances[0]).started)
            running = one.kind is ContainerKind.SIDECAR and instances and instances[0].state is RUNNING and up
            ended = one.kind is ContainerKind.INIT and any(
                end.state is EXITED and not end.exit_code for end in instances
            )
            if newest is not None and (running or ended):
                self.passed.add((newest.id, one.name))

    def probe_status(self, one: CriContainer) -> ProbeStatus:
        return self.state.probes.get(one.id, ProbeStatus())

    def check_all(self, found: PodActions) -> None:
        subjects = [
            action.container if isinstance(action, StartContainer) else getattr(action, "id", "sandbox")
            for action in found.actions
        ]
        assert len(set(subjects)) == len(subjects)
        for action in found.actions:
            match action:
                case StartContainer():
                    self.check_start(action)
                case StopContainer():
                    self.check_stop(action, found)
                case CreateSandbox(attempt=attempt):
                    assert not self.world.live_containers()
                    assert all(not one.ready and one.attempt < attempt for one in self.world.sandboxes.values())
                    assert not self.is_terminating
                case StopSandbox(id=id_):
                    assert all(one.sandbox != id_ for one in self.world.live_containers())
                    assert self.world.sandboxes[id_].ready
                    assert self.world.sandboxes[id_] is not self.world.pod_status.ready_sandbox or self.is_terminating
                case RemoveFromRuntime():
                    self.check_removal(action)
        ending = self.state.termination
        if ending is not None and self.world.now >= ending.since + ending.grace:
            assert {one.id for one in self.world.live_containers()} <= set(subjects), (
                "a grace period exceeds the time left"
            )
        if not found.actions and found.wake_at is None and not found.terminated:
            assert not set(self.idle()), "a container waits for nothing"

    @property
    def is_terminating(self) -> bool:
        late = self.spec.deadline is not None and self.world.now >= self.state.admitted_at + self.spec.deadline
        return self.state.termination is not None or late or self.finished()

    def finished(self) -> bool:
        """Whether nothing is left to run: all apps are done, or an init container failed permanently."""
        apps = [one for one in self.spec.containers if one.kind is ContainerKind.APP]
        failed = [self.last_exited(one.name) for one in self.spec.containers if one.kind is ContainerKind.INIT]
        lost = self.world.pod_status.ready_sandbox is None and any(
            one.state is not CREATED for one in self.world.containers.values()
        )
        return all(self.is_done(one) for one in apps) or (
            self.spec.restart is NEVER and (lost or any(one is not None and one.exit_code for one in failed))
        )

    def is_done(self, one: ContainerSpec) -> bool:
        newest = self.world.newest(one.name)
        if newest is None or newest.state is not EXITED:
            return False
        again = self.spec.restart is not NEVER and (self.spec.restart is not ON_FAILURE or newest.exit_code)
        return one.kind is not ContainerKind.SIDECAR and not again

    def idle(self) -> Iterator[str]:
        """Containers without an action, although nothing runs that they would have to wait for."""
        apps = [
            one for one in self.world.containers.values() if self.container_spec(one.name).kind is ContainerKind.APP
        ]
        if not any(one.sandbox == where.id for one in apps if (where := self.world.pod_status.ready_sandbox)):
            coming = [one for one in self.world.live_containers() if not self.is_up(one)]
            if coming:
                return
        for one in self.spec.containers:
            if (
                not self.world.live_containers(one.name)
                and one.kind is not ContainerKind.INIT
                and not self.is_done(one)
            ):
                yield one.name

    def is_up(self, one: CriContainer) -> bool:
        """Whether nothing waits for a running container: it is no init container and no starting sidecar."""
        spec = self.container_spec(one.name)
        return spec.kind is not ContainerKind.INIT and (spec.startup is None or self.probe_status(one).started)

    def container_spec(self, name: str) -> ContainerSpec:
        return next(one for one in self.spec.containers if one.name == name)

    def check_start(self, action: StartContainer) -> None:
        spec = self.container_spec(action.container)
        newest, ended = self.world.newest(action.container), self.last_exited(action.container)
        where = self.world.pod_status.ready_sandbox
        assert where is not None
        assert action.sandbox == where.id
        assert not self.is_terminating
        assert not self.world.live_containers(action.container), "two of one container"
        assert newest is None or newest.state is not CREATED, "two of one container, if the other starts after all"
        assert newest is None or action.attempt == newest.attempt + 1
        assert all(
            (where.id, one.name) in self.passed or self.world.newest(one.name) is None
            for one in self.spec.containers[: self.spec.containers.index(spec)]
            if one.kind is not ContainerKind.APP
        ), "out of compute"
        failure = self.state.backoffs.get(action.container)
        assert failure is None or failure.until <= self.world.now
        if (
            ended is not None
            and newest is ended
            and spec.kind is not ContainerKind.SIDECAR
            and ended.sandbox == where.id
        ):
            assert self.spec.restart is not NEVER
            assert self.spec.restart is not ON_FAILURE or ended.exit_code
            assert spec.kind is ContainerKind.APP or ended.exit_code
        if ended is not None and (spec.kind is ContainerKind.APP or ended.sandbox == where.id):
            wait, since = self.delays.get(action.container, (0.0, -math.inf))
            at = finished_at(ended)
            assert at - since > 600 or self.world.now >= at + wait, "sooner than the kubelet would"

    def check_stop(self, action: StopContainer, found: PodActions) -> None:
        one = self.world.containers[action.id]
        assert one.state in LIVE
        assert one.name == action.container
        assert action.grace >= 2
        if not self.is_terminating:
            where = self.world.pod_status.ready_sandbox
            in_place = where is not None and one.sandbox == where.id and one is self.world.newest(one.name)
            assert not in_place or one.state is UNKNOWN or self.probe_status(one).failure, "stopped for no reason"
            return
        ending = self.state.termination
        if ending is not None:
            assert action.grace == max(2.0, ending.since + ending.grace - self.world.now)
        if found.wake_at is not None or action.grace > 2:
            names = [one.name for one in self.spec.containers if one.kind is ContainerKind.SIDECAR]
            after = names.index(one.name) + 1 if one.name in names else len(names)
            others = {other.name for other in self.world.live_containers()}
            waits_for = set(names[after:]) if one.name not in names else others - set(names[:after])
            assert not waits_for & others, "a sidecar stops before those it serves"

    def check_removal(self, action: RemoveFromRuntime) -> None:
        inside = [one for one in self.world.containers.values() if action.id in {one.id, one.sandbox}]
        assert action.sandbox is (action.id in self.world.sandboxes)
        if action.sandbox:
            assert self.world.sandboxes[action.id] is not self.world.pod_status.newest_sandbox
            assert not self.world.sandboxes[action.id].ready
        for one in inside:
            assert one.state not in LIVE
            exits = sorted(
                end.attempt for end in self.world.containers.values() if end.name == one.name and end.state is EXITED
            )
            newest = self.world.newest(one.name)
            assert one is not newest or one.state is CREATED
            assert one.attempt not in (exits[-2:] if newest is not None and newest.state is EXITED else exits[-1:])

    # Convergence

    def teardown(self) -> None:
        """Without further failures, a pod that should run runs, and a pod that should terminate terminates."""
        if not hasattr(self, "spec"):
            return
        self.state = replace(self.state, probes={})
        for _ in range(100):
            found = self.next_actions()
            if found.terminated or not self.advance(found):
                break
        else:
            raise AssertionError("it goes on for ever")
        if not found.terminated:
            assert self.spec.restart is RestartPolicy.ALWAYS
            assert found.phase is PodPhase.RUNNING
            running = [one.name for one in self.world.containers.values() if one.state is RUNNING]
            assert sorted(running) == sorted(
                one.name for one in self.spec.containers if one.kind is not ContainerKind.INIT
            )

    def advance(self, found: PodActions) -> bool:
        """Perform all actions, or else let time pass or containers exit; whether anything changed."""
        for action in found.actions:
            self.perform(action)
        up = {
            one.id: ProbeStatus(started=True, ready=True)
            for one in self.world.live_containers()
            if not self.probe_status(one).started
        }
        self.state = replace(self.state, probes={**self.state.probes, **up})
        if found.actions or up:
            return True
        if found.wake_at is not None and (found.backing_off or not self.world.live_containers()):
            self.world.now = found.wake_at
            return True
        kinds = {one.name: one.kind for one in self.spec.containers}
        lasting = {ContainerKind.SIDECAR} | (
            {ContainerKind.APP} if self.spec.restart is RestartPolicy.ALWAYS else set()
        )
        ending = [one.id for one in self.world.live_containers() if kinds[one.name] not in lasting]
        for id_ in ending:
            self.world.exit(id_, 0)
        return bool(ending)


TestLife = PodLifecycle.TestCase
TestLife.settings = settings(stateful_step_count=40)
