"""Pod workers, with operations that take as long as a test needs."""

import asyncio
from dataclasses import dataclass, field, replace

from alignup.agent.pod_record import PodRecord
from alignup.agent.pods.pod_state import (
    DEFAULT_INTERVALS,
    CreateSandbox,
    PodStatus,
    RemoveFromRuntime,
    StartContainer,
    StopContainer,
)
from alignup.agent.pods.worker import PodWork, PodWorker
from alignup.agent.state import Clock
from alignup.align.workload import Pod
from alignup.documents.checkpoints import TerminationRequest
from alignup.kubernetes.podspec.types import LifecycleHook
from alignup.run.cri.types import ContainerState
from tests.agent.pods.statuses import (
    APP,
    CREATED,
    EXITED,
    NEVER,
    NOW,
    RUNNING,
    instance,
    pod,
    pod_status,
    sandbox,
    sidecar,
)
from tests.agent.states import ANY_DECISION

POD = Pod(name="pod", uid="uid")


@dataclass
class FakeOperations:
    """Operations on an in-memory status; actions of a held type wait until they are let go."""

    now: PodStatus = field(default_factory=pod_status)
    performed: list[object] = field(default_factory=list)
    held: dict[type, asyncio.Event] = field(default_factory=dict)  #: by type of action
    gate: asyncio.Event | None = None  #: delays the next refresh, which returns the status at its beginning
    refreshes: int = 0

    async def refresh(self) -> PodStatus:
        self.refreshes += 1
        found, gate, self.gate = self.now, self.gate, None
        if gate is not None:
            await gate.wait()
        return found

    async def create_sandbox(self, action: CreateSandbox) -> None:
        await self._perform(action)
        self.now = replace(self.now, sandboxes=(sandbox(action.attempt),))

    async def start(self, action: StartContainer) -> None:
        self.now = replace(self.now, containers=(instance(action.container, CREATED, attempt=action.attempt),))
        await self._perform(action)
        self.now = replace(self.now, containers=(instance(action.container, RUNNING, attempt=action.attempt),))

    async def stop(self, action: StopContainer) -> None:
        await self._perform(action)
        ended = tuple(replace(one, state=ContainerState.EXITED, exit_code=137) for one in self.now.containers)
        self.now = replace(self.now, containers=ended)

    async def stop_sandbox(self, id_: str) -> None:
        self.now = replace(self.now, sandboxes=tuple(replace(one, ready=False) for one in self.now.sandboxes))

    async def remove(self, action: RemoveFromRuntime) -> None:
        await self._perform(action)
        self.now = replace(self.now, containers=tuple(one for one in self.now.containers if one.id != action.id))

    def sync_probes(self, status: PodStatus, report: object) -> None:
        """Run no probes."""

    def placements(self) -> dict:
        return {}

    async def _perform(self, action: object) -> None:
        self.performed.append(action)
        if gate := self.held.get(type(action)):
            await gate.wait()

    def performed_of(self, kind: type) -> list:
        return [action for action in self.performed if isinstance(action, kind)]


@dataclass
class Time:
    """A wall clock and a monotonic clock."""

    now: float = NOW
    watch: float = 0.0


def run_worker(operations, spec, scenario, *, not_allowed="", time=None):
    """Run a scenario with a worker."""
    time = time or Time()

    async def run():
        record = PodRecord(pod=POD, since=NOW, source="api", decision=ANY_DECISION)
        clock = Clock(now=lambda: time.now, monotonic=lambda: time.watch)
        worker = PodWorker(
            PodWork(record=record, spec=spec, not_allowed=not_allowed),
            operations,
            clock=clock,
            emit=lambda event: None,
            intervals=DEFAULT_INTERVALS,
        )
        task = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(60):
                return await scenario(worker, task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(run())


async def wait_until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a plain value cannot notify
            await asyncio.sleep(0.001)


async def wait_synced(worker, operations):
    """Wait until the worker has begun all actions that follow from the current status."""
    for _ in range(2):
        refreshes = operations.refreshes
        worker.wake_up()
        await wait_until(lambda before=refreshes: operations.refreshes > before)


def test_a_container_started_during_a_refresh_is_not_started_again():
    operations = FakeOperations()

    async def scenario(worker, task):
        operations.held[StartContainer] = asyncio.Event()
        await wait_until(lambda: operations.performed_of(StartContainer))
        operations.gate = gate = asyncio.Event()
        refreshes = operations.refreshes
        worker.wake_up()
        await wait_until(lambda: operations.refreshes > refreshes)
        operations.held[StartContainer].set()
        await wait_until(lambda: operations.now.live_containers)
        gate.set()
        await wait_synced(worker, operations)

    run_worker(operations, pod(), scenario)

    assert operations.performed == [StartContainer("app", "s0", 0)]


def test_a_container_that_is_starting_is_not_removed():
    operations = FakeOperations()

    async def scenario(worker, task):
        operations.held[StartContainer] = asyncio.Event()
        await wait_until(lambda: operations.performed_of(StartContainer))
        await wait_synced(worker, operations)
        operations.held[StartContainer].set()
        await wait_until(lambda: operations.now.live_containers)

    run_worker(operations, pod(), scenario)

    assert operations.performed_of(RemoveFromRuntime) == []


def test_a_container_created_by_an_earlier_agent_is_recreated():
    operations = FakeOperations(pod_status(instance("app", CREATED)))

    async def scenario(worker, task):
        await wait_until(lambda: operations.now.live_containers)

    run_worker(operations, pod(), scenario)

    assert operations.performed == [RemoveFromRuntime("app-0"), StartContainer("app", "s0", 0)]


def test_containers_wait_for_the_post_start_hook_of_a_sidecar():
    operations = FakeOperations(PodStatus(sandboxes=(sandbox(),), containers=()))
    first = replace(sidecar("first"), post_start=LifecycleHook(sleep=1))

    async def scenario(worker, task):
        operations.held[StartContainer] = asyncio.Event()
        await wait_until(lambda: operations.performed_of(StartContainer))
        operations.now = pod_status(instance("first"))
        await wait_synced(worker, operations)
        before = list(operations.performed)
        operations.held.pop(StartContainer).set()
        await wait_until(lambda: len(operations.performed_of(StartContainer)) > 1)
        return before

    before = run_worker(operations, pod(first, APP), scenario)

    assert before == [StartContainer("first", "s0", 0)]


def test_a_shorter_grace_period_replaces_a_longer_one():
    operations = FakeOperations(pod_status(instance("app")))

    async def scenario(worker, task):
        operations.held[StopContainer] = asyncio.Event()
        worker.terminate(TerminationRequest(since=NOW, grace=3600))
        await wait_until(lambda: operations.performed_of(StopContainer))
        worker.terminate(TerminationRequest(since=NOW, grace=0))
        await wait_until(lambda: len(operations.performed_of(StopContainer)) > 1)
        operations.held.pop(StopContainer).set()
        await task

    run_worker(operations, pod(), scenario)

    assert [action.grace for action in operations.performed_of(StopContainer)] == [3600, 2]


def test_a_clock_set_back_does_not_extend_the_grace_period():
    operations, time = FakeOperations(pod_status(instance("app"))), Time()

    async def scenario(worker, task):
        time.now = NOW - 86_400
        worker.terminate(TerminationRequest(since=NOW, grace=20))
        await task

    run_worker(operations, pod(), scenario, time=time)

    assert [action.grace for action in operations.performed_of(StopContainer)] == [20]


def test_a_clock_set_back_does_not_delay_a_start():
    operations, time = (
        FakeOperations(pod_status(instance("app", EXITED, 1, attempt=3, ran=(NOW - 5, NOW)))),
        Time(now=NOW - 86_400),
    )

    async def scenario(worker, task):
        await wait_until(lambda: operations.now.live_containers)

    run_worker(operations, pod(), scenario, time=time)

    assert operations.performed_of(StartContainer) == [StartContainer("app", "s0", 4)]


def test_a_pod_past_its_deadline_gets_its_whole_grace_period():
    operations, time = FakeOperations(pod_status(instance("app"))), Time(now=NOW + 500)

    async def scenario(worker, task):
        operations.held[StopContainer] = asyncio.Event()
        await wait_until(lambda: operations.performed_of(StopContainer))
        time.now += 10
        operations.held.pop(StopContainer).set()
        return await task, worker.termination_requested

    run, requested = run_worker(operations, pod(deadline=100), scenario, time=time)

    assert [action.grace for action in operations.performed_of(StopContainer)] == [30]
    assert (run.phase, run.reason) == ("Failed", "DeadlineExceeded")
    assert not requested


def test_a_pod_that_is_no_longer_allowed_runs_to_completion():
    operations = FakeOperations(pod_status(instance("app")))

    async def scenario(worker, task):
        await wait_until(lambda: operations.refreshes)
        operations.now = pod_status(instance("app", EXITED, 0))
        worker.wake_up()
        return await task

    run = run_worker(operations, pod(restart=NEVER), scenario, not_allowed="hostPID is not allowed")

    assert operations.performed == []
    assert (run.reason, run.message) == ("NotAllowed", "hostPID is not allowed")


def test_a_pod_that_is_no_longer_allowed_starts_nothing():
    operations = FakeOperations(pod_status())

    async def scenario(worker, task):
        await wait_synced(worker, operations)

    run_worker(operations, pod(), scenario, not_allowed="hostPID is not allowed")

    assert operations.performed == []
