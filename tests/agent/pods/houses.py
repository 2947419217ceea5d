"""A desk, a runtime whose containers are processes, and a runner between them, in one event loop."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignup.agent import log as logs
from alignup.agent.pods.runner import PodRunner
from alignup.agent.pods.wiring import PodRuntimeOptions, run_pods
from alignup.agent.queue import AdmissionQueue, SaveState
from alignup.agent.service import AgentService, read_pod
from alignup.agent.state import AgentEvent, AgentState, Clock
from alignup.align.workload import Amounts
from alignup.enforce.cri.client import CriTimeouts
from alignup.kube.configuration import ContainerSettings
from alignup.kube.podspec.types import Permission
from alignup.schema.api import LogQuery, PodRunStatus, PodView
from alignup.testing.runtime import Runtime
from tests.agent.rooms import standing

IMAGE = "busybox:1"
SLEEP = ("sleep", "1000")
ALL = frozenset(Permission)
PATIENCE = 25.0  #: seconds

_CLOCK = Clock(now=time.time, watch=time.perf_counter)


def container(name: str = "app", *command: str, **more: Any) -> dict[str, Any]:
    """A container as a manifest has it; without a *command* it sleeps."""
    return {"name": name, "image": IMAGE, "command": list(command or SLEEP), **more}


def exclusive(cpus: int = 1) -> dict[str, Any]:
    """Resources of a container that has so many CPUs of its own."""
    return {"limits": {"cpu": str(cpus), "memory": "64Mi"}}


def manifest(uid: str, *containers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod that is killed after two seconds of grace."""
    made = [dict(one) for one in containers] or [container()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": uid, "uid": uid},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": made, **spec},
    }


@dataclass
class Errands:
    """Tells nobody that containers start, and remembers them."""

    started: list[tuple[str, str]] = field(default_factory=list)

    async def pre_start(self, uid: str, container: str) -> None:
        self.started.append((uid, container))


@dataclass
class House:
    """All of it."""

    desk: AdmissionQueue
    runtime: Runtime
    runner: PodRunner
    errands: Errands
    told: list[AgentEvent]
    out: io.StringIO
    directory: Path

    def _front(self) -> AgentService:
        # Nobody else is asked here.
        return AgentService(self.desk, None, None, None, self.runner)  # type: ignore[arg-type]

    async def admit(self, document: Mapping[str, Any], *, source: str = "api") -> None:
        """A pod is admitted, and begins to run."""
        pod = read_pod(json.dumps(document).encode(), "", keep=True)
        if source == "api":
            await self.desk.admit(pod)
        else:
            await self.desk.exchange((), [(pod, source)])
        self.runner.nudge()

    async def end(self, uid: str, grace: int | None = None) -> PodView | None:
        return await self._front().release(uid, grace=grace)

    def run(self, uid: str) -> PodRunStatus | None:
        """How a pod is."""
        entry = self._front().entry(uid)
        return None if entry is None else entry.run

    def pids(self, *uids: str) -> dict[str, int | None]:
        """The first process of every container of pods."""
        runs = filter(None, map(self.run, uids))
        return {one.name: one.pid for run in runs for one in run.containers}

    def states(self, uid: str) -> dict[str, str]:
        run = self.run(uid)
        return {} if run is None else {one.name: one.reason or one.state for one in run.containers}

    async def until(self, what: Callable[[], object], *, seconds: float = PATIENCE) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"{self.out.getvalue()}\n{self.desk.entries()}"
            await asyncio.sleep(0.02)

    async def running(self, uid: str, *names: str) -> None:
        """Wait until containers run."""
        wanted = names or ("app",)
        await self.until(lambda: all(self.states(uid).get(name) == "running" for name in wanted))

    async def log(self, uid: str, **query: Any) -> str:
        """What a container printed."""
        pieces = [piece async for piece in await self._front().logs(uid, LogQuery(**query))]
        return b"".join(pieces).decode()

    def said(self) -> list[str]:
        """What was logged, a text each."""
        return [json.loads(line)["detail"] for line in self.out.getvalue().splitlines()]

    def cpus(self, name: str) -> str:
        """The CPUs the runtime was told last that a container is on."""
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


def runtime_in(directory: Path) -> Runtime:
    """A runtime that has an image."""
    return Runtime(directory / "cri.sock", directory=directory / "boxes", images=[IMAGE])


@asynccontextmanager
async def moved_in(
    directory: Path,
    runtime: Runtime,
    stood: AgentState,
    *,
    allowed: frozenset[Permission] = ALL,
    deadlines: CriTimeouts | None = None,
    save: SaveState = lambda _: None,
    clock: Clock = _CLOCK,
    cgroup_root: str | None = None,
    settings: ContainerSettings | None = None,
    limits: Amounts | None = None,
) -> AsyncIterator[House]:
    """An agent's inner life on a runtime, as long as this lasts; what runs goes on afterwards."""
    out, told, errands = io.StringIO(), list[AgentEvent](), Errands()
    desk = AdmissionQueue(stood, save, clock=clock, tell=told.extend)
    containers = PodRuntimeOptions(
        endpoint=runtime.socket,
        log_root=directory / "logs",
        allowed=allowed,
        cgroup_root=cgroup_root,
        settings=settings or ContainerSettings(),
        limits=limits or {},
        timeouts=deadlines or CriTimeouts(),
    )
    try:
        async with run_pods(
            containers,
            desk,
            root=directory / "root",
            pre_start=errands.pre_start,
            clock=clock,
            emit=told.append,
            log=logs.make_logger(out, readable=False),
        ) as runner:
            yield House(desk, runtime, runner, errands, told, out, directory)
    finally:
        await asyncio.to_thread(desk.close)


@asynccontextmanager
async def house(directory: Path, *, stood: AgentState | None = None, **options: Any) -> AsyncIterator[House]:
    """The same with a new runtime that has an image."""
    async with (
        runtime_in(directory) as runtime,
        moved_in(directory, runtime, stood or standing(wait=True), **options) as made,
    ):
        yield made
