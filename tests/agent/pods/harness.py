"""An admission queue, a pod runner, and a runtime whose containers are processes, in one event loop."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from alignup.agent.pods.pod_state import PodIntervals
from alignup.agent.pods.runner import PodRunner
from alignup.agent.pods.wiring import PodRuntimeOptions, run_pods
from alignup.agent.pods.worker import EventSink
from alignup.agent.queue import AdmissionQueue, SaveState
from alignup.agent.service import AgentService, read_pod
from alignup.agent.state import AgentEvent, AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.documents.api import LogQuery, PodView
from alignup.documents.run_status import PodRunStatus
from alignup.kubernetes.podspec.types import Permission
from alignup.testing.runtime import Runtime
from alignup.web import log as logs
from tests.agent.agent_process import FAST
from tests.agent.states import empty_state

IMAGE = "busybox:1"
SLEEP = ("sleep", "1000")
ALL = frozenset(Permission)
TIMEOUT = 60.0  #: seconds

_CLOCK = Clock(now=time.time, monotonic=time.perf_counter)


def container(name: str = "app", *command: str, **more: Any) -> dict[str, Any]:
    """A container of a manifest; without a *command* it sleeps."""
    return {"name": name, "image": IMAGE, "command": list(command or SLEEP), **more}


def exclusive(cpus: int = 1) -> dict[str, Any]:
    """Resources of a container with exclusive CPUs."""
    return {"limits": {"cpu": str(cpus), "memory": "64Mi"}}


def manifest(uid: str, *containers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod with a grace period of two seconds."""
    made = [dict(one) for one in containers] or [container()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "uid": uid},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": made, **spec},
    }


@dataclass
class PreStartRecorder:
    """Record the containers that start, in place of the device allocator."""

    started: list[tuple[str, str]] = field(default_factory=list)

    async def __call__(self, uid: str, container: str) -> None:
        self.started.append((uid, container))


@dataclass
class PodHarness:
    """A running agent without its HTTP server and device plugins."""

    queue: AdmissionQueue
    runtime: Runtime
    runner: PodRunner
    pre_start: PreStartRecorder
    events: list[AgentEvent]
    out: io.StringIO
    directory: Path

    def _service(self) -> AgentService:
        # The other dependencies are not used.
        return AgentService(self.queue, None, None, None, None, self.runner)  # type: ignore[arg-type]

    async def admit(self, document: Mapping[str, Any], *, source: str = "api") -> None:
        """Admit a pod, which starts to run."""
        pod = read_pod(json.dumps(document).encode(), keep=True)
        if source == "api":
            await self.queue.run(Transaction.admit, pod)
        else:
            await self.queue.run(Transaction.replace_pods, (), [(pod, source)])
        self.runner.wake_up()

    async def end(self, uid: str, grace: int | None = None) -> PodView | None:
        return await self._service().release(uid, grace=grace)

    def run(self, uid: str) -> PodRunStatus | None:
        """The run status of a pod."""
        entry = self._service().pod_view(uid)
        return None if entry is None else entry.run

    def pids(self, *uids: str) -> dict[str, int | None]:
        """The main process of every container of some pods."""
        runs = filter(None, map(self.run, uids))
        return {one.name: one.pid for run in runs for one in run.containers}

    def states(self, uid: str) -> dict[str, str]:
        run = self.run(uid)
        return {} if run is None else {one.name: one.reason or one.state for one in run.containers}

    async def wait_until(self, what: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + TIMEOUT
        while not what():
            assert time.monotonic() < deadline, f"{self.out.getvalue()}\n{self.queue.state.pod_views()}"
            await asyncio.sleep(0.02)

    async def wait_running(self, uid: str, *names: str) -> None:
        """Wait until containers run, by default ``app``."""
        wanted = names or ("app",)
        await self.wait_until(lambda: all(self.states(uid).get(name) == "running" for name in wanted))

    async def wait_passed(self) -> None:
        """Wait for a maintenance pass that begins after the call: passes end with the removal of old directories."""
        for number in range(2):  # the first one may be removed by a pass that began before
            old = self.directory / "root" / "pods" / f"old-{number}"
            old.mkdir(parents=True)
            await self.wait_until(partial(_is_gone, old))

    async def wait_polled(self) -> None:
        """Wait for a refresh of the runtime's status that begins after the call, and for what follows from it."""

        def polls() -> int:
            lists = self.runtime.requests("ListPodSandbox")
            return sum(not request.filter.label_selector for request in lists)  # workers list a single pod

        before = polls()
        await self.wait_until(lambda: polls() > before + 2)

    async def wait_log(self, uid: str, text: str) -> None:
        """Wait until this is the log of the pod's container."""
        async with asyncio.timeout(TIMEOUT):
            while await self.log(uid) != text:  # noqa: ASYNC110 - a file cannot notify
                await asyncio.sleep(0.02)

    async def log(self, uid: str, **query: Any) -> str:
        """The log of a container."""
        pieces = [piece async for piece in await self._service().logs(uid, LogQuery(**query))]
        return b"".join(pieces).decode()

    def log_details(self) -> list[str]:
        """The details of the agent's log lines."""
        return [json.loads(line)["detail"] for line in self.out.getvalue().splitlines()]

    def cpus(self, name: str) -> str:
        """The CPUs a container was last put on in the runtime."""
        one = self.runtime.container(name)
        updates = [
            ask.linux.cpuset_cpus
            for ask in self.runtime.requests("UpdateContainerResources")
            if ask.container_id == one.id
        ]
        made = [
            ask.config.linux.resources.cpuset_cpus
            for ask in self.runtime.requests("CreateContainer")
            if ask.config.metadata.name == name
        ]
        return str((made[-1:] + updates)[-1])


def _is_gone(path: Path) -> bool:
    return not path.exists()


def runtime_in(directory: Path) -> Runtime:
    """A runtime with an image."""
    return Runtime(directory / "cri.sock", directory=directory / "boxes", images=[IMAGE])


@asynccontextmanager
async def pod_harness_on(
    directory: Path,
    runtime: Runtime,
    state: AgentState,
    *,
    allowed: frozenset[Permission] = ALL,
    save: SaveState = lambda _: None,
    emit: EventSink | None = None,
    intervals: PodIntervals = FAST,
    retry_seconds: float = 0.05,
    cgroup_root: str | None = None,
    **options: Any,
) -> AsyncIterator[PodHarness]:
    """Run an agent with these options of pod runtimes on *runtime*; containers keep running afterwards."""
    out, events, pre_start = io.StringIO(), list[AgentEvent](), PreStartRecorder()
    queue = AdmissionQueue(state, save, clock=_CLOCK, dispatch=events.extend, retry_seconds=retry_seconds)
    runtime_options = PodRuntimeOptions(
        endpoint=runtime.socket,
        log_root=directory / "logs",
        allowed=allowed,
        intervals=intervals,
        cgroup_root=cgroup_root,
        **options,
    )
    try:
        async with run_pods(
            runtime_options,
            queue,
            root=directory / "root",
            pre_start=pre_start,
            clock=_CLOCK,
            emit=emit or events.append,
            log=logs.make_logger(out, readable=False),
        ) as runner:
            yield PodHarness(queue, runtime, runner, pre_start, events, out, directory)
    finally:
        await asyncio.to_thread(queue.close)


@asynccontextmanager
async def pod_harness(directory: Path, *, state: AgentState | None = None, **options: Any) -> AsyncIterator[PodHarness]:
    """Run an agent on a new runtime with an image."""
    async with (
        runtime_in(directory) as runtime,
        pod_harness_on(directory, runtime, state or empty_state(wait_enabled=True), **options) as made,
    ):
        yield made
