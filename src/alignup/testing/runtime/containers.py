"""Images, sandboxes and containers without isolation: a container is a process, a sandbox groups several.

Containers see each other, and the host's files and network. Instead of a mount, a container gets an environment
variable: ``MOUNT_dev_termination_log`` is the host path for ``/dev/termination-log``.
"""

import asyncio
import hashlib
import os
import re
import secrets
import shlex
import signal
import time
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import grpc

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.kubernetes.plugins.rpc import StatusError
from alignup.testing.runtime.process import ChildProcess, ContainerLog, OutputHandler, ProcessStartError
from alignup.wire import cri_pb2 as wire

CREATED = wire.ContainerState.CONTAINER_CREATED
RUNNING = wire.ContainerState.CONTAINER_RUNNING
EXITED = wire.ContainerState.CONTAINER_EXITED
START_FAILED = 128  #: the exit code of a container that could not be started
POD_IP = "127.0.0.1"  #: of every pod that is not on the host network: its processes really listen there

#: The beginnings of containerd's and runc's error messages.
_NO_TASK = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed"
_NO_EXEC = "failed to exec in container: failed to start exec"
_NO_LOG = "failed to create containerd task: failed to create container loggers: failed to create and open log file"


def new_id() -> str:
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Image:
    name: str  #: in full
    command: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"sha256:{hashlib.sha256(self.name.encode()).hexdigest()}"

    def to_message(self) -> wire.Image:
        digests, tags = ([self.name], []) if "@" in self.name else ([], [self.name])
        return wire.Image(id=self.id, repo_tags=tags, repo_digests=digests, size=1)


class ImageStore:
    def __init__(self) -> None:
        self._local: dict[str, Image] = {}  #: by full name
        self._pullable: dict[str, Image] = {}

    def add(self, text: str, *, pullable: bool = False) -> None:
        """Add ``busybox``, an image without a command, or ``registry.test/app:1=sleep 60``, one with a command."""
        name, _, command = text.partition("=")
        images = self._pullable if pullable else self._local
        images[full_name(name)] = Image(full_name(name), tuple(shlex.split(command)))

    def remove(self, name: str) -> None:
        self._local.pop(full_name(name), None)

    def find(self, name: str) -> Image | None:
        by_id = (image for image in self._local.values() if name in {image.id, image.id.removeprefix("sha256:")})
        return self._local.get(full_name(name)) or next(by_id, None)

    def pull(self, name: str) -> Image | None:
        """Make a pullable image local, and return it; ``None`` if there is none of that name."""
        image = self._pullable.get(full_name(name))
        if image is not None:
            self._local[image.name] = image
        return image


def full_name(name: str) -> str:
    """Complete a name: ``busybox`` is ``docker.io/library/busybox:latest``."""
    host, slash, rest = name.partition("/")
    if not slash:
        host, rest = "docker.io", f"library/{name}"
    elif not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name
    tagged = "@" in rest or ":" in rest.rpartition("/")[2]
    return f"{host}/{rest}" if tagged else f"{host}/{rest}:latest"


@dataclass(slots=True)
class Sandbox:
    config: wire.PodSandboxConfig
    handler: str = ""
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=time.time_ns)
    ready: bool = True
    has_network: bool = False  #: whether a network, or a part of one, must be torn down

    @property
    def name(self) -> str:
        metadata = self.config.metadata
        return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"

    @property
    def state(self) -> wire.PodSandboxState:
        return wire.PodSandboxState.SANDBOX_READY if self.ready else wire.PodSandboxState.SANDBOX_NOTREADY

    @property
    def on_host_network(self) -> bool:
        return self.config.linux.security_context.namespace_options.network == wire.NamespaceMode.NODE

    def summary(self) -> wire.PodSandbox:
        return wire.PodSandbox(runtime_handler=self.handler, **_common_fields(self))

    def status(self) -> wire.PodSandboxStatus:
        network = wire.PodSandboxNetworkStatus(ip=POD_IP if self.ready and not self.on_host_network else "")
        return wire.PodSandboxStatus(network=network, runtime_handler=self.handler, **_common_fields(self))


@dataclass(slots=True)
class RuntimeContainer:
    sandbox: Sandbox
    config: wire.ContainerConfig
    image: Image
    directory: Path  #: the default working directory
    _: KW_ONLY
    affinity: bool = False  #: bind its processes to their CPUs, as far as this machine has them
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=time.time_ns)
    started: int = 0
    finished: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    resources: wire.LinuxContainerResources = field(default_factory=wire.LinuxContainerResources)
    process: ChildProcess | None = None  #: while it runs
    exit_reason: str = ""  #: the reason to report at its end; empty: derived from the exit code
    _log: ContainerLog | None = None
    _execs: set[ChildProcess] = field(default_factory=set)  #: processes of ``ExecSync``
    _watcher: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        _cpus(self.config.linux.resources.cpuset_cpus)  # rejects an invalid list before the container exists
        self.resources.CopyFrom(self.config.linux.resources)

    @property
    def name(self) -> str:
        pod, metadata = self.sandbox.config.metadata, self.config.metadata
        return f"{metadata.name}_{pod.name}_{pod.namespace}_{pod.uid}_{metadata.attempt}"

    @property
    def state(self) -> wire.ContainerState:
        if self.finished:
            return EXITED
        return RUNNING if self.started else CREATED

    @property
    def command(self) -> tuple[str, ...]:
        return (*(self.config.command or self.image.command), *self.config.args)

    @property
    def log_path(self) -> Path | None:
        return Path(self.sandbox.config.log_directory, self.config.log_path) if self.config.log_path else None

    @property
    def pid(self) -> int:
        """0 unless it runs."""
        return self.process.pid if self.process else 0

    def summary(self) -> wire.Container:
        sandbox, image = self.sandbox.id, self.config.image
        return wire.Container(pod_sandbox_id=sandbox, image=image, image_ref=self.image.id, **_common_fields(self))

    def status(self) -> wire.ContainerStatus:
        return wire.ContainerStatus(
            started_at=self.started,
            finished_at=self.finished,
            exit_code=self.exit_code,
            image=wire.ImageSpec(image=self.image.name),
            image_ref=self.image.id,
            reason=self.reason,
            message=self.message,
            mounts=self.config.mounts,
            log_path=str(self.log_path or ""),
            resources=wire.ContainerResources(linux=self.resources),
            **_common_fields(self),
        )

    def start(self) -> None:
        """Run its command; if that fails, the container has exited and ``StatusError`` says why."""
        if self.state != CREATED:
            raise StatusError(f'failed to set starting state for container "{self.id}": {self._state_text()}')
        try:
            self.process = self._start_process()
        except ProcessStartError as error:
            self.finished, self.exit_code = time.time_ns(), START_FAILED
            self.reason, self.message = "StartError", str(error)
            if self._log:
                self._log.close()
            raise StatusError(self.message) from error
        self.started = time.time_ns()
        self._watcher = asyncio.create_task(self._watch(self.process), name=f"container {self.name}")

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after *grace* seconds; do nothing if it does not run."""
        if not self.process or not self._watcher:
            return
        if grace > 0:
            self.process.signal(signal.SIGTERM)
            await asyncio.wait([self._watcher], timeout=grace)
        if self.process:
            self.process.signal(signal.SIGKILL)
        await asyncio.wait([self._watcher])

    async def wait_exited(self) -> None:
        if self._watcher:
            await asyncio.wait([self._watcher])

    async def execute(self, command: tuple[str, ...], *, seconds: float) -> wire.ExecSyncResponse:
        """Run *command* beside the container for at most *seconds*; 0 means without a limit."""
        if not self.process:
            raise StatusError(f"failed to exec in container: {self._state_text()}")
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def take(stream: str, data: bytes) -> None:
            output[stream] += data

        try:
            process = self._run(command, take=take)
        except ProcessStartError as error:
            raise StatusError(f'{_NO_EXEC} "{new_id()}": OCI runtime exec failed: exec failed: {error}') from error
        self._execs.add(process)
        try:
            code = await asyncio.wait_for(process.wait(), seconds or None)
        except TimeoutError as error:
            process.signal(signal.SIGKILL)
            await process.wait()
            what = f"failed to exec in container: timeout {seconds:g}s exceeded: context deadline exceeded"
            raise StatusError(what, code=grpc.StatusCode.DEADLINE_EXCEEDED) from error
        finally:
            process.signal(signal.SIGKILL)
            self._execs.discard(process)
        return wire.ExecSyncResponse(**output, exit_code=code)

    def update(self, resources: wire.LinuxContainerResources) -> None:
        """Change its resources; values that are 0 or empty keep the current ones."""
        cpus = _cpus(resources.cpuset_cpus)
        if resources.hugepage_limits:
            del self.resources.hugepage_limits[:]
        self.resources.MergeFrom(resources)
        if self.process and self.affinity and cpus:
            for process in (self.process, *self._execs):
                process.set_affinity(cpus)

    def reopen_log(self) -> None:
        if not self.process:
            raise StatusError("container is not running")
        if self._log:
            self._log.reopen()

    def _start_process(self) -> ChildProcess:
        if not self.sandbox.ready:
            raise ProcessStartError(f'sandbox container "{self.sandbox.id}" is not running')
        if path := self.log_path:
            try:
                self._log = ContainerLog(path)
            except OSError as error:
                raise ProcessStartError(f"{_NO_LOG}: {path}: {error.strerror}") from error
        try:
            return self._run(self.command, take=self._log.take if self._log else lambda *_: None)
        except ProcessStartError as error:
            raise ProcessStartError(f"{_NO_TASK}: {error}") from error

    async def _watch(self, process: ChildProcess) -> None:
        self.exit_code = await process.wait()
        self.reason = self.exit_reason or ("Error" if self.exit_code else "Completed")
        self.finished, self.process = time.time_ns(), None
        for other in self._execs:
            other.signal(signal.SIGKILL)
        if self._log:
            self._log.close()

    def _run(self, command: tuple[str, ...], *, take: OutputHandler) -> ChildProcess:
        wanted = Path(self.config.working_dir or self.directory)
        env = {"PATH": os.environ.get("PATH", os.defpath)}
        for mount in self.config.mounts:
            env[f"MOUNT_{re.sub('[^0-9A-Za-z]', '_', mount.container_path.strip('/'))}"] = mount.host_path
        return ChildProcess(
            command,
            cwd=wanted if wanted.is_dir() else self.directory,
            env=env | {one.key: os.fsdecode(one.value) for one in self.config.envs},
            cpus=_cpus(self.resources.cpuset_cpus) if self.affinity else frozenset(),
            stdin=self.config.stdin,
            merge_output=self.config.tty,
            take=take,
        )

    def _state_text(self) -> str:
        return f"container is in {wire.ContainerState.Name(self.state)} state"


def _common_fields(one: Sandbox | RuntimeContainer) -> dict[str, Any]:
    return {
        "id": one.id,
        "metadata": one.config.metadata,
        "state": one.state,
        "created_at": one.created,
        "labels": one.config.labels,
        "annotations": one.config.annotations,
    }


def _cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list that this machine has; raise ``StatusError`` for an invalid list."""
    try:
        wanted = bits.members(bits.parse(text))
    except ParseError as error:
        raise StatusError(f"invalid cpuset: {error}") from error
    return frozenset(wanted) & os.sched_getaffinity(0)
