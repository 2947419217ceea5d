"""Whole lives of pods on a runtime in memory: whatever happens in whatever order, no rule is broken on the way."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from alignup.agent.pods import backoff
from alignup.agent.pods.actions import compute_pod_actions
from alignup.agent.pods.pod_state import (
    Action,
    Backoff,
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
)
from alignup.enforce.cri.types import ContainerState, CriContainer, CriSandbox
from alignup.kube.podspec.types import ContainerKind, ContainerSpec, PodSpec, RestartPolicy
from tests.agent.pods.lives import CREATED, EXITED, NEVER, NOW, ON_FAILURE, RUNNING, UNKNOWN, box, container, instance

CODES = st.sampled_from([0, 0, 1, 137])
LIVE = {RUNNING, UNKNOWN}

before_apps = st.lists(
    st.tuples(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), st.booleans()), max_size=3
)


@st.composite
def specs(draw) -> PodSpec:
    """Pods with up to three init containers and sidecars, some of them probed, and one or two apps."""
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
    """A runtime in memory, and a clock."""

    now: float = NOW
    sandboxes: dict[str, CriSandbox] = field(default_factory=dict)
    containers: dict[str, CriContainer] = field(default_factory=dict)
    number: int = 0

    @property
    def seen(self) -> PodStatus:
        return PodStatus(sandboxes=tuple(self.sandboxes.values()), containers=tuple(self.containers.values()))

    def live_containers(self, name: str = "") -> list[CriContainer]:
        return [one for one in self.containers.values() if one.state in LIVE and name in {"", one.name}]

    def newest(self, name: str) -> CriContainer | None:
        found = [one for one in self.containers.values() if one.name == name]
        return max(found, key=lambda one: one.attempt, default=None)

    def make(self, act: StartContainer, state: ContainerState) -> None:
        self.number += 1
        made = instance(
            act.container, state, 128 if state is EXITED else 0, attempt=act.attempt, ran=(self.now, self.now)
        )
        self.containers[f"c{self.number}"] = replace(made, id=f"c{self.number}", sandbox=act.sandbox)

    def end(self, id_: str, code: int) -> None:
        self.containers[id_] = replace(self.containers[id_], state=EXITED, finished=self.now, exit_code=code)

    def make_sandbox(self, attempt: int) -> None:
        self.number += 1
        made = box(attempt, created=self.now)
        self.sandboxes[f"s{self.number}"] = replace(made, id=f"s{self.number}")

    def drop(self, id_: str) -> None:
        self.sandboxes = {key: one for key, one in self.sandboxes.items() if key != id_}
        self.containers = {key: one for key, one in self.containers.items() if id_ not in {key, one.sandbox}}


class Life(RuleBasedStateMachine):
    """One pod: containers end, sandboxes die, acts fail or are forgotten, the agent starts again, and time passes."""

    @initialize(spec=specs(), steps=st.integers(0, 8))
    def begin(self, spec: PodSpec, steps: int) -> None:
        """A pod has come so many steps along without a hitch."""
        self.spec = spec
        self.world = World()
        self.memory = WorkerState(admitted_at=NOW)
        self.passed: set[tuple[str, str]] = (
            set()
        )  #: sandbox and init container that ended well, or sidecar that started
        self.waits: dict[str, tuple[float, float]] = {}  #: as the kubelet has it: the wait, and when it was set
        self.over = False
        for _ in range(steps):
            self.moved_on(self.asked())

    # What happens

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 10.0, 31.0, 290.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def time_passes_until_the_next_look(self) -> None:
        self.world.now = self.asked().wake_at or self.world.now

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data(), code=CODES)
    def a_container_ends(self, data: st.DataObject, code: int) -> None:
        self.world.end(data.draw(st.sampled_from([one.id for one in self.world.live_containers()])), code)

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data())
    def nobody_knows_of_a_container(self, data: st.DataObject) -> None:
        id_ = data.draw(st.sampled_from([one.id for one in self.world.live_containers()]))
        self.world.containers[id_] = replace(self.world.containers[id_], state=UNKNOWN)

    @precondition(lambda self: self.world.seen.ready_sandbox)
    @rule()
    def the_sandbox_dies(self) -> None:
        newest = self.world.seen.ready_sandbox
        assert newest is not None
        self.world.sandboxes[newest.id] = replace(newest, ready=False)

    @precondition(lambda self: not self.over and self.still())
    @rule(data=st.data())
    def what_was_given_up_runs_after_all(self, data: st.DataObject) -> None:
        """A start that seemed to fail has not, or a sandbox that seemed dead is not."""
        id_ = data.draw(st.sampled_from(self.still()))
        if id_ in self.world.sandboxes:
            self.world.sandboxes[id_] = replace(self.world.sandboxes[id_], ready=True)
        else:
            self.world.containers[id_] = replace(self.world.containers[id_], state=RUNNING, started=self.world.now)

    def still(self) -> list[str]:
        made = [one.id for one in self.world.containers.values() if one.state is CREATED]
        return made + [one.id for one in self.world.sandboxes.values() if not one.ready]

    @precondition(lambda self: self.world.live_containers())
    @rule(data=st.data(), started=st.booleans(), sick=st.booleans())
    def a_probe_tells(self, data: st.DataObject, started: bool, sick: bool) -> None:
        id_ = data.draw(st.sampled_from([one.id for one in self.world.live_containers()]))
        health = ProbeStatus(started=started, ready=started, failure="it is sick" if sick else "")
        self.memory = replace(self.memory, probes={**self.memory.probes, id_: health})

    @rule()
    def the_agent_starts_again(self) -> None:
        self.memory = WorkerState(termination=self.memory.termination, admitted_at=self.memory.admitted_at)

    @precondition(lambda self: self.memory.termination is None)
    @rule(grace=st.sampled_from([0.0, 5.0, 30.0]))
    def it_is_told_to_end(self, grace: float) -> None:
        self.memory = replace(self.memory, termination=PodTermination(since=self.world.now, grace=grace))

    @rule(data=st.data())
    def some_is_done(self, data: st.DataObject) -> None:
        """Of what is to be done some is, in any order, and some of that fails."""
        acts = data.draw(st.permutations(self.asked().actions))
        for act in acts[: data.draw(st.integers(0, len(acts)))]:
            self.do(act, fault=data.draw(st.sampled_from(["", "", "", "at once", "half way"])), code=data.draw(CODES))

    @rule(code=CODES)
    def all_is_done(self, code: int) -> None:
        for act in self.asked().actions:
            self.do(act, code=code)

    # What is done

    def do(self, act: Action, *, fault: str = "", code: int = 0) -> None:
        world = self.world
        match act:
            case StartContainer(container=name) if fault == "at once":
                self.fail(name, "ErrImagePull")
            case StartContainer(container=name, sandbox=sandbox):
                state = RUNNING if not fault else EXITED if code else CREATED
                if state is not CREATED:
                    self.note_wait(self.named(name), sandbox)
                world.make(act, state)
                if fault:
                    self.fail(name, "RunContainerError")
            case CreateSandbox() if fault:
                before = self.memory.sandbox_backoff
                rest = Backoff.after_failure(before, reason="FailedCreatePodSandBox", message="no", now=world.now)
                self.memory = replace(self.memory, sandbox_backoff=rest)
            case CreateSandbox(attempt=attempt):
                world.make_sandbox(attempt)
            case StopContainer(id=id_) if not fault:
                world.end(id_, code)
            case StopSandbox(id=id_) if not fault:
                world.sandboxes[id_] = replace(world.sandboxes[id_], ready=False)
            case RemoveFromRuntime(id=id_) if not fault:
                world.drop(id_)

    def fail(self, name: str, reason: str) -> None:
        rest = Backoff.after_failure(self.memory.backoffs.get(name), reason=reason, message="no", now=self.world.now)
        self.memory = replace(self.memory, backoffs={**self.memory.backoffs, name: rest})

    def note_wait(self, spec: ContainerSpec, sandbox: str) -> None:
        """The kubelet's own count, which doubles with every start of one that has ended; here anew with a sandbox."""
        ended = self.last_end(spec.name)
        if ended is not None:
            wait, since = self.waits.get(spec.name, (0.0, -math.inf))
            again = wait and backoff.finished_at(ended) - since <= 600
            same = spec.kind is ContainerKind.APP or ended.sandbox == sandbox
            self.waits[spec.name] = (min(wait * 2, 300.0) if again and same else 10.0, self.world.now)

    def last_end(self, name: str) -> CriContainer | None:
        ends = [one for one in self.world.containers.values() if one.name == name and one.state is EXITED]
        return max(ends, key=lambda one: one.attempt, default=None)

    # What has to be true

    def asked(self) -> PodActions:
        """What is to be done, looked at closely."""
        self.note_passed()
        found = compute_pod_actions(self.spec, self.world.seen, self.memory, now=self.world.now)
        later = compute_pod_actions(self.spec, self.world.seen, self.memory, now=self.world.now + 10_000)
        assert found.wake_at is None or found.wake_at > self.world.now
        assert not self.over or found.terminated, "a pod that has ended lives again"
        self.over = found.terminated
        if found.terminated:
            assert not self.world.live_containers()
            assert not any(one.ready for one in self.world.sandboxes.values())
            assert later == found, "what has ended changes"
            assert not found.actions
            assert found.phase in {PodPhase.SUCCEEDED, PodPhase.FAILED}
        self.check_all(found)
        return found

    def note_passed(self) -> None:
        newest = self.world.seen.ready_sandbox
        for one in self.spec.containers if newest is not None else ():
            instances = self.world.seen.instances(one.name, newest.id) if newest is not None else ()
            up = one.startup is None or (instances and self.health(instances[0]).started)
            running = one.kind is ContainerKind.SIDECAR and instances and instances[0].state is RUNNING and up
            ended = one.kind is ContainerKind.INIT and any(
                end.state is EXITED and not end.exit_code for end in instances
            )
            if newest is not None and (running or ended):
                self.passed.add((newest.id, one.name))

    def health(self, one: CriContainer) -> ProbeStatus:
        return self.memory.probes.get(one.id, ProbeStatus())

    def check_all(self, found: PodActions) -> None:
        subjects = [
            act.container if isinstance(act, StartContainer) else getattr(act, "id", "sandbox") for act in found.actions
        ]
        assert len(set(subjects)) == len(subjects)
        for act in found.actions:
            match act:
                case StartContainer():
                    self.check_start(act)
                case StopContainer():
                    self.check_stop(act, found)
                case CreateSandbox(attempt=attempt):
                    assert not self.world.live_containers()
                    assert all(not one.ready and one.attempt < attempt for one in self.world.sandboxes.values())
                    assert not self.is_ending
                case StopSandbox(id=id_):
                    assert all(one.sandbox != id_ for one in self.world.live_containers())
                    assert self.world.sandboxes[id_].ready
                    assert self.world.sandboxes[id_] is not self.world.seen.ready_sandbox or self.is_ending
                case RemoveFromRuntime():
                    self.check_discard(act)
        ending = self.memory.termination
        if ending is not None and self.world.now >= ending.since + ending.grace:
            assert {one.id for one in self.world.live_containers()} <= set(subjects), (
                "somebody has more time than there is"
            )
        if not found.actions and found.wake_at is None and not found.terminated:
            assert not set(self.idle()), "somebody waits for nothing"

    @property
    def is_ending(self) -> bool:
        late = self.spec.deadline is not None and self.world.now >= self.memory.admitted_at + self.spec.deadline
        return self.memory.termination is not None or late or self.finished()

    def finished(self) -> bool:
        """Whether nothing is left to do: all apps are done, or what may run once failed before them."""
        apps = [one for one in self.spec.containers if one.kind is ContainerKind.APP]
        failed = [self.last_end(one.name) for one in self.spec.containers if one.kind is ContainerKind.INIT]
        lost = self.world.seen.ready_sandbox is None and any(
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
        """Containers that nothing is done for, though nothing they would have to wait for runs."""
        apps = [one for one in self.world.containers.values() if self.named(one.name).kind is ContainerKind.APP]
        if not any(one.sandbox == where.id for one in apps if (where := self.world.seen.ready_sandbox)):
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
        """Whether nobody has to wait for one that runs: it is no init container, and no sidecar that comes up."""
        spec = self.named(one.name)
        return spec.kind is not ContainerKind.INIT and (spec.startup is None or self.health(one).started)

    def named(self, name: str) -> ContainerSpec:
        return next(one for one in self.spec.containers if one.name == name)

    def check_start(self, act: StartContainer) -> None:
        spec = self.named(act.container)
        newest, ended = self.world.newest(act.container), self.last_end(act.container)
        where = self.world.seen.ready_sandbox
        assert where is not None
        assert act.sandbox == where.id
        assert not self.is_ending
        assert not self.world.live_containers(act.container), "two of one container"
        assert newest is None or newest.state is not CREATED, "two of one container, if the other starts after all"
        assert newest is None or act.attempt == newest.attempt + 1
        assert all(
            (where.id, one.name) in self.passed or self.world.newest(one.name) is None
            for one in self.spec.containers[: self.spec.containers.index(spec)]
            if one.kind is not ContainerKind.APP
        ), "out of turn"
        rest = self.memory.backoffs.get(act.container)
        assert rest is None or rest.until <= self.world.now
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
            wait, since = self.waits.get(act.container, (0.0, -math.inf))
            at = backoff.finished_at(ended)
            assert at - since > 600 or self.world.now >= at + wait, "sooner than the kubelet would"

    def check_stop(self, act: StopContainer, found: PodActions) -> None:
        one = self.world.containers[act.id]
        assert one.state in LIVE
        assert one.name == act.container
        assert act.grace >= 2
        if not self.is_ending:
            where = self.world.seen.ready_sandbox
            in_place = where is not None and one.sandbox == where.id and one is self.world.newest(one.name)
            assert not in_place or one.state is UNKNOWN or self.health(one).failure, "stopped for no reason"
            return
        ending = self.memory.termination
        if ending is not None:
            assert act.grace == max(2.0, ending.since + ending.grace - self.world.now)
        if found.wake_at is not None or act.grace > 2:
            names = [one.name for one in self.spec.containers if one.kind is ContainerKind.SIDECAR]
            after = names.index(one.name) + 1 if one.name in names else len(names)
            others = {other.name for other in self.world.live_containers()}
            waits_for = set(names[after:]) if one.name not in names else others - set(names[:after])
            assert not waits_for & others, "a sidecar stops before those it serves"

    def check_discard(self, act: RemoveFromRuntime) -> None:
        inside = [one for one in self.world.containers.values() if act.id in {one.id, one.sandbox}]
        assert act.sandbox is (act.id in self.world.sandboxes)
        if act.sandbox:
            assert self.world.sandboxes[act.id] is not self.world.seen.newest_sandbox
            assert not self.world.sandboxes[act.id].ready
        for one in inside:
            assert one.state not in LIVE
            ends = sorted(
                end.attempt for end in self.world.containers.values() if end.name == one.name and end.state is EXITED
            )
            newest = self.world.newest(one.name)
            assert one is not newest or one.state is CREATED
            assert one.attempt not in (ends[-2:] if newest is not None and newest.state is EXITED else ends[-1:])

    # How it ends

    def teardown(self) -> None:
        """From now on all goes well; whatever was, a pod that is to run runs, and one that is to end ends."""
        if not hasattr(self, "spec"):
            return
        self.memory = replace(self.memory, probes={})
        for _ in range(100):
            found = self.asked()
            if found.terminated or not self.moved_on(found):
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

    def moved_on(self, found: PodActions) -> bool:
        """Do all there is to do, or else let time pass or those end who would; whether there was anything."""
        for act in found.actions:
            self.do(act)
        up = {
            one.id: ProbeStatus(started=True, ready=True)
            for one in self.world.live_containers()
            if not self.health(one).started
        }
        self.memory = replace(self.memory, probes={**self.memory.probes, **up})
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
            self.world.end(id_, 0)
        return bool(ending)


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40)
