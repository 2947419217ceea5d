"""Workers of pods, with hands that take as long as a test likes."""

import asyncio
from dataclasses import dataclass, field, replace

from alignup.agent.pod_record import PodRecord
from alignup.agent.pod_record import TerminationRequest as Told
from alignup.agent.pods.pod_state import CreateSandbox, PodStatus, RemoveFromRuntime, StartContainer, StopContainer
from alignup.agent.pods.worker import PodWork, PodWorker
from alignup.agent.state import Clock
from alignup.align.workload import Pod
from alignup.enforce.cri.types import ContainerState
from alignup.kube.podspec.types import LifecycleHook
from tests.agent.pods.lives import APP, CREATED, EXITED, NEVER, NOW, RUNNING, box, instance, pod, seen, sidecar
from tests.agent.rooms import NOTHING

POD = Pod(name="pod", uid="uid")


@dataclass
class Hands:
    """What there is, and what was done; whatever is held up waits until it is let go."""

    now: PodStatus = field(default_factory=seen)
    did: list[object] = field(default_factory=list)
    held: dict[type, asyncio.Event] = field(default_factory=dict)  #: by kind of act
    gate: asyncio.Event | None = None  #: what the next look waits for before it answers with what was there then
    looks: int = 0

    async def refresh(self) -> PodStatus:
        self.looks += 1
        found, gate, self.gate = self.now, self.gate, None
        if gate is not None:
            await gate.wait()
        return found

    async def create_sandbox(self, act: CreateSandbox) -> None:
        await self._do(act)
        self.now = replace(self.now, sandboxes=(box(act.attempt),))

    async def start(self, act: StartContainer) -> None:
        self.now = replace(self.now, containers=(instance(act.container, CREATED, attempt=act.attempt),))
        await self._do(act)
        self.now = replace(self.now, containers=(instance(act.container, RUNNING, attempt=act.attempt),))

    async def stop(self, act: StopContainer) -> None:
        await self._do(act)
        ended = tuple(replace(one, state=ContainerState.EXITED, exit_code=137) for one in self.now.containers)
        self.now = replace(self.now, containers=ended)

    async def stop_sandbox(self, id_: str) -> None:
        self.now = replace(self.now, sandboxes=tuple(replace(one, ready=False) for one in self.now.sandboxes))

    async def remove(self, act: RemoveFromRuntime) -> None:
        await self._do(act)
        self.now = replace(self.now, containers=tuple(one for one in self.now.containers if one.id != act.id))

    def sync_probes(self, seen: PodStatus, health: object) -> None:
        """Nobody is probed."""

    def placements(self) -> dict:
        return {}

    async def _do(self, act: object) -> None:
        self.did.append(act)
        if gate := self.held.get(type(act)):
            await gate.wait()

    def done(self, kind: type) -> list:
        return [act for act in self.did if isinstance(act, kind)]


@dataclass
class Time:
    """A clock that can be set, and a watch that cannot."""

    now: float = NOW
    watch: float = 0.0


def working(hands, spec, story, *, barred="", time=None):
    """Have a story happen to a pod that has a worker, and began a while ago."""
    time = time or Time()

    async def told():
        known = PodRecord(pod=POD, since=NOW, source="api", record=NOTHING)
        clock = Clock(now=lambda: time.now, watch=lambda: time.watch)
        worker = PodWorker(
            PodWork(record=known, spec=spec, not_allowed=barred), hands, clock=clock, emit=lambda happening: None
        )
        task = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(10):
                return await story(worker, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(told())


async def until(true):
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for is a value, which tells nobody
            await asyncio.sleep(0.001)


def test_what_was_started_while_somebody_looked_is_not_started_again():
    hands = Hands()

    async def story(worker, task):
        hands.held[StartContainer] = asyncio.Event()
        await until(lambda: hands.done(StartContainer))
        hands.gate = gate = asyncio.Event()
        looks = hands.looks
        worker.wake_up()
        await until(lambda: hands.looks > looks)
        hands.held[StartContainer].set()
        await until(lambda: hands.now.live_containers)
        gate.set()
        await until(lambda: hands.looks > looks + 1)
        await asyncio.sleep(0.01)

    working(hands, pod(), story)

    assert hands.did == [StartContainer("app", "s0", 0)]


def test_one_that_is_just_being_started_is_not_discarded():
    hands = Hands()

    async def story(worker, task):
        hands.held[StartContainer] = asyncio.Event()
        await until(lambda: hands.done(StartContainer))
        looks = hands.looks
        worker.wake_up()
        await until(lambda: hands.looks > looks)
        await asyncio.sleep(0.01)
        hands.held[StartContainer].set()
        await until(lambda: hands.now.live_containers)

    working(hands, pod(), story)

    assert hands.done(RemoveFromRuntime) == []


def test_one_that_was_made_by_an_agent_before_is_discarded_and_made_anew():
    hands = Hands(seen(instance("app", CREATED)))

    async def story(worker, task):
        await until(lambda: hands.now.live_containers)

    working(hands, pod(), story)

    assert hands.did == [RemoveFromRuntime("app-0"), StartContainer("app", "s0", 0)]


def test_whoever_comes_after_waits_for_the_hook_of_the_one_before():
    hands = Hands(PodStatus(sandboxes=(box(),), containers=()))
    first = replace(sidecar("first"), post_start=LifecycleHook(sleep=1))

    async def story(worker, task):
        hands.held[StartContainer] = asyncio.Event()
        await until(lambda: hands.done(StartContainer))
        hands.now = seen(instance("first"))
        worker.wake_up()
        await asyncio.sleep(0.01)
        before = list(hands.did)
        hands.held.pop(StartContainer).set()
        await until(lambda: len(hands.done(StartContainer)) > 1)
        return before

    before = working(hands, pod(first, APP), story)

    assert before == [StartContainer("first", "s0", 0)]


def test_told_to_end_sooner_a_pod_ends_sooner():
    hands = Hands(seen(instance("app")))

    async def story(worker, task):
        hands.held[StopContainer] = asyncio.Event()
        worker.terminate(Told(since=NOW, grace=3600))
        await until(lambda: hands.done(StopContainer))
        worker.terminate(Told(since=NOW, grace=0))
        await until(lambda: len(hands.done(StopContainer)) > 1)
        hands.held.pop(StopContainer).set()
        await task

    working(hands, pod(), story)

    assert [act.grace for act in hands.done(StopContainer)] == [3600, 2]


def test_a_clock_that_is_set_back_gives_nobody_more_time_to_end():
    hands, time = Hands(seen(instance("app"))), Time()

    async def story(worker, task):
        time.now = NOW - 86_400
        worker.terminate(Told(since=NOW, grace=20))
        await task

    working(hands, pod(), story, time=time)

    assert [act.grace for act in hands.done(StopContainer)] == [20]


def test_a_clock_that_is_set_back_keeps_nobody_from_starting():
    hands, time = Hands(seen(instance("app", EXITED, 1, attempt=3, ran=(NOW - 5, NOW)))), Time(now=NOW - 86_400)

    async def story(worker, task):
        await until(lambda: hands.now.live_containers)

    working(hands, pod(), story, time=time)

    assert hands.done(StartContainer) == [StartContainer("app", "s0", 4)]


def test_a_pod_whose_time_is_over_has_its_grace_from_then_on():
    hands, time = Hands(seen(instance("app"))), Time(now=NOW + 500)

    async def story(worker, task):
        hands.held[StopContainer] = asyncio.Event()
        await until(lambda: hands.done(StopContainer))
        time.now += 10
        hands.held.pop(StopContainer).set()
        return await task, worker.termination_requested

    run, told = working(hands, pod(deadline=100), story, time=time)

    assert [act.grace for act in hands.done(StopContainer)] == [30]
    assert (run.phase, run.reason) == ("Failed", "DeadlineExceeded")
    assert not told


def test_a_pod_that_may_not_be_run_any_more_starts_nothing_and_ends_when_it_has_run():
    hands = Hands(seen(instance("app")))

    async def story(worker, task):
        await until(lambda: hands.looks)
        hands.now = seen(instance("app", EXITED, 0))
        worker.wake_up()
        return await task

    run = working(hands, pod(restart=NEVER), story, barred="it asks for too much")

    assert hands.did == []
    assert (run.reason, run.message) == ("NotAllowed", "it asks for too much")


def test_nothing_of_a_pod_that_may_not_be_run_any_more_is_started():
    hands = Hands(seen())

    async def story(worker, task):
        await until(lambda: hands.looks)
        await asyncio.sleep(0.02)

    working(hands, pod(), story, barred="it asks for too much")

    assert hands.did == []
