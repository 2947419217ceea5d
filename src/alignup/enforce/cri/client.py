"""A container runtime, spoken to through CRI v1: containerd, CRI-O, or whoever else listens.

    async with Runtime(parse_endpoint("unix:///run/containerd/containerd.sock")) as runtime:
        sandbox = await runtime.run_sandbox(plan)
        container = await runtime.create(sandbox, container_plan, sandbox=plan)
        await runtime.start(container)

Every call has a deadline, and fails with ``CriError``, which names what was to be done. A call fails at once where
nobody listens. The same client goes on when the runtime has come back: it connects again by itself.
"""

import asyncio
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup import rpc
from alignup.align.errors import CriError, EnforceError
from alignup.enforce.cri import convert
from alignup.enforce.cri.types import (
    ContainerConfig,
    CriContainer,
    CriImage,
    CriSandbox,
    ExecResult,
    LinuxResources,
    RuntimeCondition,
    RuntimeVersion,
    SandboxConfig,
)
from alignup.wire import cri_pb2 as wire

CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")

_RUNTIME = wire.DESCRIPTOR.services_by_name["RuntimeService"].full_name
_IMAGES = wire.DESCRIPTOR.services_by_name["ImageService"].full_name
_LARGEST = 16 << 20  #: bytes of an answer, as the kubelet has it
_OLD = "runtime.v1alpha2.RuntimeService"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NOT_YET = "server is not initialized yet"  #: containerd, while it starts
_TIMED_OUT = b"command timed out"  #: CRI-O, of a command in a container


@dataclass(frozen=True, slots=True, kw_only=True)
class CriTimeouts:
    """How long the runtime may take, in seconds; all but ``pull`` are the kubelet's."""

    usual: float = 120.0
    sandbox: float = 240.0  #: to make one, the network included
    pull: float = 900.0  #: the kubelet waits for ever


def parse_endpoint(text: str) -> Path:
    """The socket that ``unix:///path``, ``unix:/path`` or ``/path`` names; ``EnforceError`` for anything else."""
    path = text
    if scheme := _SCHEME.match(text):
        if scheme[1].lower() != "unix":
            raise EnforceError(f"{text} is no unix socket\nsay where the runtime listens: unix://{CONTAINERD_SOCKET}")
        path = text[scheme.end() :]
        # Two slashes begin the name of a host, of which a unix socket has none.
        path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//") or path == "/":
        raise EnforceError(
            f"{text or 'nothing'} names no socket by its whole path\nsay it so: unix://{CONTAINERD_SOCKET}"
        )
    return Path(path)


class RuntimeClient:
    """A container runtime that listens at *path*; of use while it is entered."""

    def __init__(self, path: Path, *, deadlines: CriTimeouts | None = None, sysfs: Path = Path("/sys")) -> None:
        self.path = path
        self._deadlines = deadlines or CriTimeouts()
        self._sysfs = sysfs
        self._masked: tuple[str, ...] = convert.MASKED_PATHS
        self._line: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        """Nobody is called yet: whether somebody listens shows with the first call, best ``identity``."""
        self._masked = (*convert.MASKED_PATHS, *await asyncio.to_thread(_thermal_paths, self._sysfs))
        self._line = rpc.channel(self.path, largest=_LARGEST)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up; calls under way fail."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def identity(self) -> RuntimeVersion:
        """Who the runtime is; a clear error where nobody listens, or somebody who does not speak CRI v1."""
        try:
            told = await self._call("Version", wire.VersionRequest(), wire.VersionResponse, doing="say who it is")
        except CriError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            why = await self._strangeness()
            raise CriError(f"{self.path} is no runtime to work with: {why}", code=error.code) from error
        return convert.parse_version(told)

    async def conditions(self) -> tuple[RuntimeCondition, ...]:
        """What the runtime says of itself: ``RuntimeReady``, ``NetworkReady``."""
        told = await self._call("Status", wire.StatusRequest(), wire.StatusResponse, doing="say how it is")
        return convert.parse_conditions(told)

    async def cgroup_driver(self) -> str | None:
        """``cgroupfs`` or ``systemd``; ``None`` where the runtime is too old to tell (containerd before 2.0)."""
        request = wire.RuntimeConfigRequest()
        try:
            told = await self._call("RuntimeConfig", request, wire.RuntimeConfigResponse, doing="tell its driver")
        except CriError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            return None
        return convert.parse_cgroup_driver(told)

    async def run_sandbox(self, plan: SandboxConfig) -> str:
        """Make and start a sandbox; its id."""
        told = await self._call(
            "RunPodSandbox",
            wire.RunPodSandboxRequest(config=convert.sandbox_config(plan), runtime_handler=plan.handler),
            wire.RunPodSandboxResponse,
            doing=f"make a sandbox for pod {plan.namespace}/{plan.name}",
            seconds=self._deadlines.sandbox,
        )
        return told.pod_sandbox_id

    async def stop_sandbox(self, id_: str) -> None:
        """Stop a sandbox and kill what runs in it; one that is stopped, or gone, is as it should be."""
        request = wire.StopPodSandboxRequest(pod_sandbox_id=id_)
        with _gone_is_fine():
            await self._call(
                "StopPodSandbox", request, wire.StopPodSandboxResponse, doing=f"stop sandbox {short_id(id_)}"
            )

    async def remove_sandbox(self, id_: str) -> None:
        """Remove a sandbox and all in it; one that is gone is as it should be."""
        request, doing = wire.RemovePodSandboxRequest(pod_sandbox_id=id_), f"remove sandbox {short_id(id_)}"
        with _gone_is_fine():
            await self._call("RemovePodSandbox", request, wire.RemovePodSandboxResponse, doing=doing)

    async def sandboxes(self, labels: Mapping[str, str] | None = None) -> tuple[CriSandbox, ...]:
        """All sandboxes with these *labels*, those that have ended too, the oldest first; without addresses."""
        request = wire.ListPodSandboxRequest(filter=wire.PodSandboxFilter(label_selector=labels or {}))
        told = await self._call("ListPodSandbox", request, wire.ListPodSandboxResponse, doing="list its sandboxes")
        return tuple(sorted(map(convert.parse_sandbox, told.items), key=_age))

    async def sandbox(self, id_: str) -> CriSandbox:
        """A sandbox, with its addresses; ``CriError.not_found`` when there is none."""
        request, doing = wire.PodSandboxStatusRequest(pod_sandbox_id=id_), f"show sandbox {short_id(id_)}"
        told = await self._call("PodSandboxStatus", request, wire.PodSandboxStatusResponse, doing=doing)
        return convert.parse_sandbox(told.status)

    async def create(self, sandbox_id: str, plan: ContainerConfig, *, sandbox: SandboxConfig) -> str:
        """Make a container in the sandbox that was made of *sandbox*; its id.

        ``CriError.image_missing`` when the runtime does not have the image.
        """
        request = wire.CreateContainerRequest(
            pod_sandbox_id=sandbox_id,
            config=convert.container_config(plan, masked=self._masked),
            sandbox_config=convert.sandbox_config(sandbox),
        )
        doing = f"create container {plan.name}"
        try:
            told = await self._call("CreateContainer", request, wire.CreateContainerResponse, doing=doing)
        except CriError as error:
            # Runtimes word this as they like, and under codes that mean other things too.
            if error.unavailable or error.timed_out or await self.image(plan.image) is not None:
                raise
            text = f"the runtime could not {doing}: it does not have the image {plan.named or plan.image}"
            raise CriError(text, code=error.code, details=error.details, image_missing=True) from error
        return told.container_id

    async def start(self, id_: str) -> None:
        """Start a container that was made."""
        request, doing = wire.StartContainerRequest(container_id=id_), f"start container {short_id(id_)}"
        await self._call("StartContainer", request, wire.StartContainerResponse, doing=doing)

    async def stop(self, id_: str, *, grace: float) -> None:
        """Tell a container to stop, kill it after *grace* seconds, and return when it has ended.

        One that has ended, or is gone, is as it should be.
        """
        wait = math.ceil(max(0.0, grace))
        request = wire.StopContainerRequest(container_id=id_, timeout=wait)
        with _gone_is_fine():
            await self._call(
                "StopContainer",
                request,
                wire.StopContainerResponse,
                doing=f"stop container {short_id(id_)}",
                seconds=wait + self._deadlines.usual,
            )

    async def remove(self, id_: str) -> None:
        """Remove a container, killing it if it runs; one that is gone is as it should be."""
        request, doing = wire.RemoveContainerRequest(container_id=id_), f"remove container {short_id(id_)}"
        with _gone_is_fine():
            await self._call("RemoveContainer", request, wire.RemoveContainerResponse, doing=doing)

    async def containers(self, labels: Mapping[str, str] | None = None) -> tuple[CriContainer, ...]:
        """All containers with these *labels*, those that have ended too, the oldest first; less than all is told."""
        return await self._containers(wire.ContainerFilter(label_selector=labels or {}))

    async def container(self, id_: str) -> CriContainer:
        """A container with all there is to know; ``CriError.not_found`` when there is none."""
        request = wire.ContainerStatusRequest(container_id=id_, verbose=True)
        doing = f"show container {short_id(id_)}"
        told = await self._call("ContainerStatus", request, wire.ContainerStatusResponse, doing=doing)
        seen = convert.parse_container_status(told)
        if not seen.sandbox:
            listed = await self._containers(wire.ContainerFilter(id=id_))
            return replace(seen, sandbox=listed[0].sandbox if listed else "")
        return seen

    async def update(self, id_: str, resources: LinuxResources) -> None:
        """Hold a container to other resources, as far as something is said; it may run."""
        await self._call(
            "UpdateContainerResources",
            wire.UpdateContainerResourcesRequest(container_id=id_, linux=convert.linux_resources(resources)),
            wire.UpdateContainerResourcesResponse,
            doing=f"change what container {short_id(id_)} is held to",
        )

    async def reopen_log(self, id_: str) -> None:
        """Have the log of a running container go on in a new file, after the old one was moved away."""
        request, doing = (
            wire.ReopenContainerLogRequest(container_id=id_),
            f"reopen the log of container {short_id(id_)}",
        )
        await self._call("ReopenContainerLog", request, wire.ReopenContainerLogResponse, doing=doing)

    async def execute(self, id_: str, command: Sequence[str], *, seconds: float) -> ExecResult:
        """Run a command in a running container; ``CriError.timed_out`` after *seconds*, rounded up to whole ones."""
        wait = max(1, math.ceil(seconds))
        doing = f"run {command[0] if command else 'nothing'} in container {short_id(id_)}"
        told = await self._call(
            "ExecSync",
            wire.ExecSyncRequest(container_id=id_, cmd=command, timeout=wait),
            wire.ExecSyncResponse,
            doing=doing,
            seconds=wait + self._deadlines.usual,
        )
        # CRI-O says in this way what others say with a code.
        if told.exit_code == -1 and told.stderr == _TIMED_OUT:
            code = grpc.StatusCode.DEADLINE_EXCEEDED.name
            raise CriError(f"the runtime could not {doing}: it took more than {wait} s", code=code)
        return convert.parse_exec_result(told)

    async def image(self, name: str) -> CriImage | None:
        """An image that the runtime has; ``None`` when it does not."""
        request = wire.ImageStatusRequest(image=wire.ImageSpec(image=name))
        doing = f"look for image {name}"
        try:
            told = await self._call("ImageStatus", request, wire.ImageStatusResponse, doing=doing, service=_IMAGES)
        except CriError as error:
            if error.not_found:
                return None
            raise
        return convert.parse_image(told)

    async def pull(self, name: str, *, sandbox: SandboxConfig | None = None) -> str:
        """Fetch an image; how the runtime refers to it. ``CriError.image_missing`` when there is no such image."""
        request = wire.PullImageRequest(
            image=wire.ImageSpec(image=name),
            sandbox_config=None if sandbox is None else convert.sandbox_config(sandbox),
        )
        try:
            told = await self._call(
                "PullImage",
                request,
                wire.PullImageResponse,
                doing=f"pull image {name}",
                seconds=self._deadlines.pull,
                service=_IMAGES,
            )
        except CriError as error:
            error.image_missing = error.not_found
            raise
        return told.image_ref

    async def _containers(self, wanted: wire.ContainerFilter) -> tuple[CriContainer, ...]:
        request = wire.ListContainersRequest(filter=wanted)
        told = await self._call("ListContainers", request, wire.ListContainersResponse, doing="list its containers")
        return tuple(sorted(map(convert.parse_container, told.containers), key=_age))

    async def _call(  # noqa: PLR0913 - a call has these parts
        self,
        method: str,
        request: Message,
        answer: type[rpc.Response],
        *,
        doing: str,
        seconds: float | None = None,
        service: str = _RUNTIME,
    ) -> rpc.Response:
        """Call a method; ``CriError`` says what the runtime could not do, and why."""
        if self._line is None:
            raise CriError(f"the runtime could not {doing}: it was hung up on", code=grpc.StatusCode.CANCELLED.name)

        def failure(code: grpc.StatusCode, details: str) -> CriError:
            # containerd has opened its socket by then, and gives this no code of its own.
            away = _NOT_YET in details
            named = grpc.StatusCode.UNAVAILABLE if away else code
            return CriError(f"the runtime could not {doing}: {details}", code=named.name, details=details)

        try:
            return await rpc.call(
                self._line,
                f"/{service}/{method}",
                request,
                answer=answer,
                seconds=seconds or self._deadlines.usual,
                failure=failure,
                patient=False,
            )
        except CriError as error:
            why = await asyncio.to_thread(_absence, self.path) if error.unavailable else ""
            if not why:
                raise
            text = f"the runtime could not {doing}: {why}"
            raise CriError(text, code=error.code, details=error.details) from error

    async def _strangeness(self) -> str:
        """Why somebody who listens does not know CRI v1."""
        try:
            await self._call("Version", wire.VersionRequest(), wire.VersionResponse, doing="", service=_OLD)
        except CriError:
            hint = "in containerd's configuration, the cri plugin may be among disabled_plugins"
            return f"it does not speak CRI v1\n{hint}"
        return "it speaks CRI v1alpha2 only\ncontainerd 1.6, CRI-O 1.26 and whatever is newer speak v1"


def short_id(id_: str) -> str:
    """An id as people are shown it."""
    return id_[:13]


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    """What was to go and is not there has gone."""
    try:
        yield
    except CriError as error:
        if not error.not_found:
            raise


def _age(seen: CriSandbox | CriContainer) -> tuple[float, int, str]:
    return seen.created, seen.attempt, seen.id


def _absence(path: Path) -> str:
    """Why nobody can be reached at *path*; empty when somebody can."""
    advice = "start the runtime, or say where it listens with --runtime-endpoint"
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return f"{path} is no socket\n{advice}"
        with socket(AF_UNIX, SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except FileNotFoundError:
        return f"there is no {path}\n{advice}"
    except PermissionError:
        return f"{path} may not be used by user {os.geteuid()}\nrun this as root, or as a user who may"
    except OSError as error:
        return f"nobody listens at {path} ({error.strerror or error})\n{advice}"
    return ""


def _thermal_paths(sysfs: Path) -> tuple[str, ...]:
    """Where the kernel tells how hot each CPU is, which containers do not see."""
    found = sysfs.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle")
    return tuple(sorted(f"/sys/{path.relative_to(sysfs)}" for path in found))
