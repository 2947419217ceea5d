"""Sandboxes and containers without isolation: a container is a process of this machine, a sandbox a name for several.

They see each other, the host's files and its network. What a mount would show is told to a container in its
environment instead: ``MOUNT_dev_termination_log`` is the host's path for ``/dev/termination-log``.
"""

import asyncio
import os
import re
import secrets
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.rpc import StatusError
from alignup.testing.runtime.images import Image
from alignup.testing.runtime.logs import ContainerLog
from alignup.testing.runtime.process import ChildProcess, OutputHandler, ProcessOptions, ProcessStartError
from alignup.wire import cri_pb2 as wire

CREATED = wire.ContainerState.CONTAINER_CREATED
RUNNING = wire.ContainerState.CONTAINER_RUNNING
EXITED = wire.ContainerState.CONTAINER_EXITED
NOT_STARTED = 128  #: the exit code of what could not be

#: How containerd and runc begin to say it.
_NO_TASK = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed"
_NO_EXEC = "failed to exec in container: failed to start exec"


def new_id() -> str:
    """As long as containerd's."""
    return secrets.token_hex(32)


@dataclass(slots=True)
class Sandbox:
    """What the containers of a pod have in common."""

    config: wire.PodSandboxConfig
    handler: str = ""
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=time.time_ns)
    ready: bool = True
    wired: bool = False  #: it has a network of its own, or a part of one, that has to be taken down

    @property
    def name(self) -> str:
        """No two sandboxes have the same."""
        its = self.config.metadata
        return f"{its.name}_{its.namespace}_{its.uid}_{its.attempt}"

    @property
    def on_host_network(self) -> bool:
        """Whether it has no address of its own."""
        return self.config.linux.security_context.namespace_options.network == wire.NamespaceMode.NODE


@dataclass(slots=True, kw_only=True)
class ContainerOptions:
    """Where containers run."""

    directory: Path  #: in which they do, unless they say otherwise
    affinity: bool = False  #: they are bound to their CPUs, as far as this machine has them


@dataclass(slots=True)
class RuntimeContainer:
    """A container: created, then running, then exited."""

    sandbox: Sandbox
    config: wire.ContainerConfig
    image: Image
    place: ContainerOptions
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=time.time_ns)
    started: int = 0
    finished: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    resources: wire.LinuxContainerResources = field(default_factory=wire.LinuxContainerResources)
    process: ChildProcess | None = None  #: while it runs
    fate: str = ""  #: the reason it will have ended for; empty: as its exit code says
    _log: ContainerLog | None = None
    _beside: set[ChildProcess] = field(default_factory=set)  #: of ``ExecSync``
    _minding: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        _cpus(self.config.linux.resources.cpuset_cpus)  # what is no list is refused before there is a container
        self.resources.CopyFrom(self.config.linux.resources)

    @property
    def name(self) -> str:
        """No two containers have the same."""
        pod, its = self.sandbox.config.metadata, self.config.metadata
        return f"{its.name}_{pod.name}_{pod.namespace}_{pod.uid}_{its.attempt}"

    @property
    def state(self) -> wire.ContainerState:
        """How far it is."""
        if self.finished:
            return EXITED
        return RUNNING if self.started else CREATED

    @property
    def command(self) -> tuple[str, ...]:
        """What it runs: as it says, or else as its image does, and its own arguments after that."""
        return (*(self.config.command or self.image.command), *self.config.args)

    @property
    def log_path(self) -> Path | None:
        """``None``: nobody wants it."""
        return Path(self.sandbox.config.log_directory, self.config.log_path) if self.config.log_path else None

    @property
    def pid(self) -> int:
        """0 when it does not run."""
        return self.process.pid if self.process else 0

    def start(self) -> None:
        """Run its command; where that cannot be it has exited, and the caller hears why."""
        if self.state != CREATED:
            raise StatusError(f'failed to set starting state for container "{self.id}": {self._in_state()}')
        try:
            self.process = self._begun()
        except ProcessStartError as error:
            self._not_started(str(error))
            raise StatusError(self.message) from error
        self.started = time.time_ns()
        self._minding = asyncio.create_task(self._mind(self.process), name=f"container {self.name}")

    async def stop(self, grace: float) -> None:
        """Tell it to end, and see to it after *grace* seconds; nothing where it does not run."""
        if not self.process or not self._minding:
            return
        if grace > 0:
            self.process.signal(signal.SIGTERM)
            await asyncio.wait([self._minding], timeout=grace)
        if self.process:
            self.process.signal(signal.SIGKILL)
        await asyncio.wait([self._minding])

    async def ended(self) -> None:
        """Return when it does not run any more."""
        if self._minding:
            await asyncio.wait([self._minding])

    async def execute(self, command: tuple[str, ...], *, seconds: float) -> wire.ExecSyncResponse:
        """Run *command* beside it, for so long at most; 0: for as long as it takes."""
        if not self.process:
            raise StatusError(f"failed to exec in container: {self._in_state()}")
        heard: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def take(stream: str, data: bytes) -> None:
            heard[stream] += data

        try:
            process = self._run(command, take=take)
        except ProcessStartError as error:
            raise StatusError(f'{_NO_EXEC} "{new_id()}": OCI runtime exec failed: exec failed: {error}') from error
        self._beside.add(process)
        try:
            code = await asyncio.wait_for(process.ended(), seconds or None)
        except TimeoutError as error:
            process.signal(signal.SIGKILL)
            await process.ended()
            what = f"failed to exec in container: timeout {seconds:g}s exceeded: context deadline exceeded"
            raise StatusError(what, code=grpc.StatusCode.DEADLINE_EXCEEDED) from error
        finally:
            process.signal(signal.SIGKILL)
            self._beside.discard(process)
        return wire.ExecSyncResponse(stdout=heard["stdout"], stderr=heard["stderr"], exit_code=code)

    def update(self, resources: wire.LinuxContainerResources) -> None:
        """Hold it to what is said of them; what is 0 or empty stays as it is."""
        cpus = _cpus(resources.cpuset_cpus)
        if resources.hugepage_limits:
            del self.resources.hugepage_limits[:]
        self.resources.MergeFrom(resources)
        if self.process and self.place.affinity and cpus:
            for process in (self.process, *self._beside):
                process.move(cpus)

    def reopen_log(self) -> None:
        """Go on in a new file."""
        if not self.process:
            raise StatusError("container is not running")
        if self._log:
            self._log.reopen()

    def _begun(self) -> ChildProcess:
        """Its process; ``ProcessStartError`` says why there can be none."""
        if not self.sandbox.ready:
            raise ProcessStartError(f'sandbox container "{self.sandbox.id}" is not running')
        if path := self.log_path:
            self._log = _log(path)
        try:
            return self._run(self.command, take=self._log.take if self._log else _nowhere)
        except ProcessStartError as error:
            raise ProcessStartError(f"{_NO_TASK}: {error}") from error

    def _not_started(self, why: str) -> None:
        self.finished, self.exit_code, self.reason, self.message = time.time_ns(), NOT_STARTED, "StartError", why
        if self._log:
            self._log.close()

    async def _mind(self, process: ChildProcess) -> None:
        """Wait for its end, and write that down."""
        self.exit_code = await process.ended()
        self.reason = self.fate or ("Error" if self.exit_code else "Completed")
        self.finished, self.process = time.time_ns(), None
        for other in self._beside:
            other.signal(signal.SIGKILL)
        if self._log:
            self._log.close()

    def _run(self, command: tuple[str, ...], *, take: OutputHandler) -> ChildProcess:
        wanted = Path(self.config.working_dir or self.place.directory)
        around = ProcessOptions(
            cwd=wanted if wanted.is_dir() else self.place.directory,
            env=self._environment(),
            cpus=_cpus(self.resources.cpuset_cpus) if self.place.affinity else frozenset(),
            stdin=self.config.stdin,
            one_stream=self.config.tty,
        )
        return ChildProcess(command, around, take=take)

    def _environment(self) -> dict[str, str]:
        mounts = {_variable(mount.container_path): mount.host_path for mount in self.config.mounts}
        given = {one.key: os.fsdecode(one.value) for one in self.config.envs}
        return {"PATH": os.environ.get("PATH", os.defpath)} | mounts | given

    def _in_state(self) -> str:
        return f"container is in {wire.ContainerState.Name(self.state)} state"


def _log(path: Path) -> ContainerLog:
    try:
        return ContainerLog(path)
    except OSError as error:
        what = (
            "failed to create containerd task: failed to create container loggers: failed to create and open log file"
        )
        raise ProcessStartError(f"{what}: {path}: {error.strerror}") from error


def _nowhere(_stream: str, _data: bytes) -> None:
    """For output that nobody wants."""


def _cpus(text: str) -> frozenset[int]:
    """Those of them that this machine has; what is no list of CPUs is refused."""
    try:
        wanted = bits.members(bits.parse(text))
    except ParseError as error:
        raise StatusError(f"invalid cpuset: {error}") from error
    return frozenset(wanted) & os.sched_getaffinity(0)


def _variable(path: str) -> str:
    return f"MOUNT_{re.sub('[^0-9A-Za-z]', '_', path.strip('/'))}"
