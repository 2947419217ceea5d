"""A client of CRI v1 container runtimes: containerd, CRI-O and others.

    async with RuntimeClient(parse_endpoint("unix:///run/containerd/containerd.sock")) as runtime:
        sandbox = await runtime.run_sandbox(sandbox_config)
        container = await runtime.create(sandbox, container_config, sandbox=sandbox_config)
        await runtime.start(container)

Every call has a timeout and raises ``CriError``, which names what failed. A call fails at once if the runtime does not
listen. After a restart of the runtime, the client reconnects by itself.
"""

import asyncio
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup.align.errors import CriError, EnforceError
from alignup.kubernetes.plugins import rpc
from alignup.run.cri import convert
from alignup.run.cri.types import (
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

#: Method → the service it belongs to.
_SERVICES = {
    method.name: service.full_name
    for service in wire.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_MAX_RESPONSE = 16 << 20  #: bytes; the kubelet's limit
_V1ALPHA2 = "runtime.v1alpha2.RuntimeService"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_STARTING = "server is not initialized yet"  #: containerd's error while it starts
_BY_AGE = attrgetter("created", "attempt", "id")
_EXEC_TIMEOUT = b"command timed out"  #: CRI-O's output for a command that timed out


@dataclass(frozen=True, slots=True, kw_only=True)
class CriTimeouts:
    """Seconds; the kubelet's values, except for ``pull``."""

    request: float = 120.0
    sandbox: float = 240.0  #: to create a sandbox, including its network
    pull: float = 900.0  #: the kubelet waits indefinitely


def parse_endpoint(text: str) -> Path:
    """Return the socket of ``unix:///path``, ``unix:/path`` or ``/path``; raise ``EnforceError`` for anything else."""
    path = text
    if scheme := _SCHEME.match(text):
        if scheme[1].lower() != "unix":
            raise EnforceError(f"{text} is not a Unix socket\nuse an endpoint such as unix://{CONTAINERD_SOCKET}")
        path = text[scheme.end() :]
        # Two slashes introduce a host name, which a Unix socket does not have.
        path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//") or path == "/":
        what = f"endpoint {text!r} is not the absolute path of a socket"
        raise EnforceError(f"{what}\nuse an endpoint such as unix://{CONTAINERD_SOCKET}")
    return Path(path)


class RuntimeClient:
    """A connection to the container runtime at *path*, usable while entered."""

    def __init__(self, path: Path, *, timeouts: CriTimeouts | None = None, sysfs: Path = Path("/sys")) -> None:
        self.path = path
        self._timeouts = timeouts or CriTimeouts()
        self._sysfs = sysfs
        self._masked: tuple[str, ...] = convert.MASKED_PATHS
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        """Prepare the connection; the first call connects, preferably ``version``."""
        self._masked = (*convert.MASKED_PATHS, *await asyncio.to_thread(_thermal_paths, self._sysfs))
        self._channel = rpc.channel(self.path, max_response=_MAX_RESPONSE)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect; pending calls fail."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def version(self) -> RuntimeVersion:
        """Return the runtime's name and version; the error explains a server that does not implement CRI v1."""
        try:
            return convert.parse_version(await self._call(wire.VersionRequest(), "get its version"))
        except CriError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            why = "it implements only CRI v1alpha2\nupgrade to containerd 1.6, CRI-O 1.26 or later"
            try:
                await self._call(wire.VersionRequest(), "", service=_V1ALPHA2)
            except CriError:
                why = "it does not implement CRI\nthe cri plugin may be listed in containerd's disabled_plugins"
            raise CriError(f"{self.path} is not a CRI v1 runtime: {why}", code=error.code) from error

    async def conditions(self) -> tuple[RuntimeCondition, ...]:
        return convert.parse_conditions(await self._call(wire.StatusRequest(), "get its status"))

    async def cgroup_driver(self) -> str | None:
        """Return ``cgroupfs`` or ``systemd``; ``None`` if the runtime does not report it (containerd before 2.0)."""
        try:
            return convert.parse_cgroup_driver(await self._call(wire.RuntimeConfigRequest(), "get its cgroup driver"))
        except CriError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED.name:
                raise
            return None

    async def run_sandbox(self, config: SandboxConfig) -> str:
        response: wire.RunPodSandboxResponse = await self._call(
            wire.RunPodSandboxRequest(config=convert.sandbox_config(config), runtime_handler=config.handler),
            f"create a sandbox for pod {config.namespace}/{config.name}",
            seconds=self._timeouts.sandbox,
        )
        return response.pod_sandbox_id

    async def stop_sandbox(self, id_: str) -> None:
        """Stop a sandbox and kill its containers; succeed if it is stopped or gone."""
        request = wire.StopPodSandboxRequest(pod_sandbox_id=id_)
        await self._call(request, f"stop sandbox {short_id(id_)}", missing_ok=True)

    async def remove_sandbox(self, id_: str) -> None:
        """Remove a sandbox and its containers; succeed if it is gone."""
        request = wire.RemovePodSandboxRequest(pod_sandbox_id=id_)
        await self._call(request, f"remove sandbox {short_id(id_)}", missing_ok=True)

    async def sandboxes(self, labels: Mapping[str, str] | None = None) -> tuple[CriSandbox, ...]:
        """Return all sandboxes with these *labels*, including stopped ones, oldest first; without IPs."""
        request = wire.ListPodSandboxRequest(filter=wire.PodSandboxFilter(label_selector=labels or {}))
        response: wire.ListPodSandboxResponse = await self._call(request, "list sandboxes")
        return tuple(sorted(map(convert.parse_sandbox, response.items), key=_BY_AGE))

    async def sandbox(self, id_: str) -> CriSandbox:
        """Return a sandbox with its IPs; raise an error with ``not_found`` if there is none."""
        request = wire.PodSandboxStatusRequest(pod_sandbox_id=id_)
        response: wire.PodSandboxStatusResponse = await self._call(request, f"get sandbox {short_id(id_)}")
        return convert.parse_sandbox(response.status)

    async def create(self, sandbox_id: str, config: ContainerConfig, *, sandbox: SandboxConfig) -> str:
        """Create a container in the sandbox that was created from *sandbox*, and return its id.

        The error has ``image_missing`` if the runtime does not have the image.
        """
        request = wire.CreateContainerRequest(
            pod_sandbox_id=sandbox_id,
            config=convert.container_config(config, masked=self._masked),
            sandbox_config=convert.sandbox_config(sandbox),
        )
        doing = f"create container {config.name}"
        try:
            response: wire.CreateContainerResponse = await self._call(request, doing)
        except CriError as error:
            # Each runtime has its own message for this, under codes that mean other things as well.
            if error.unavailable or error.timed_out or await self.image(config.image) is not None:
                raise
            text = _failed(doing, f"the image {config.requested_image or config.image} is missing")
            raise CriError(text, code=error.code, details=error.details, image_missing=True) from error
        return response.container_id

    async def start(self, id_: str) -> None:
        await self._call(wire.StartContainerRequest(container_id=id_), f"start container {short_id(id_)}")

    async def stop(self, id_: str, *, grace: float) -> None:
        """Stop a container, kill it after *grace* seconds, and return when it has exited.

        Succeeds if it has already exited or is gone.
        """
        grace_seconds = math.ceil(max(0.0, grace))
        await self._call(
            wire.StopContainerRequest(container_id=id_, timeout=grace_seconds),
            f"stop container {short_id(id_)}",
            seconds=grace_seconds + self._timeouts.request,
            missing_ok=True,
        )

    async def remove(self, id_: str) -> None:
        """Remove a container, killing it if it runs; succeed if it is gone."""
        request = wire.RemoveContainerRequest(container_id=id_)
        await self._call(request, f"remove container {short_id(id_)}", missing_ok=True)

    async def containers(self, labels: Mapping[str, str] | None = None) -> tuple[CriContainer, ...]:
        """Return all containers with these *labels*, including exited ones, oldest first, without status details."""
        return await self._list_containers(wire.ContainerFilter(label_selector=labels or {}))

    async def container(self, id_: str) -> CriContainer:
        """Return a container with its status; raise an error with ``not_found`` if there is none."""
        request = wire.ContainerStatusRequest(container_id=id_, verbose=True)
        container = convert.parse_container_status(await self._call(request, f"get container {short_id(id_)}"))
        if not container.sandbox:
            listed = await self._list_containers(wire.ContainerFilter(id=id_))
            return replace(container, sandbox=listed[0].sandbox if listed else "")
        return container

    async def update(self, id_: str, resources: LinuxResources) -> None:
        """Change the resources of a container; values that are 0 or empty stay as they are."""
        await self._call(
            wire.UpdateContainerResourcesRequest(container_id=id_, linux=convert.linux_resources(resources)),
            f"update the resources of container {short_id(id_)}",
        )

    async def reopen_log(self, id_: str) -> None:
        """Make a running container log to a new file, after the old one was moved away."""
        request = wire.ReopenContainerLogRequest(container_id=id_)
        await self._call(request, f"reopen the log of container {short_id(id_)}")

    async def execute(self, id_: str, command: Sequence[str], *, seconds: float) -> ExecResult:
        """Run a command in a container; the error has ``timed_out`` after *seconds*, rounded up to an integer."""
        limit = max(1, math.ceil(seconds))
        doing = f"run {command[0] if command else 'an empty command'} in container {short_id(id_)}"
        request = wire.ExecSyncRequest(container_id=id_, cmd=command, timeout=limit)
        response: wire.ExecSyncResponse = await self._call(request, doing, seconds=limit + self._timeouts.request)
        # CRI-O reports a timeout in this way instead of with a status code.
        if response.exit_code == -1 and response.stderr == _EXEC_TIMEOUT:
            code = grpc.StatusCode.DEADLINE_EXCEEDED.name
            raise CriError(_failed(doing, f"it took more than {limit} s"), code=code)
        return convert.parse_exec_result(response)

    async def image(self, name: str) -> CriImage | None:
        """Return a local image; ``None`` if the runtime does not have it."""
        request = wire.ImageStatusRequest(image=wire.ImageSpec(image=name))
        return convert.parse_image(await self._call(request, f"get image {name}", missing_ok=True))

    async def pull(self, name: str, *, sandbox: SandboxConfig | None = None) -> str:
        """Pull an image, and return the runtime's reference; the error has ``image_missing`` for an unknown image."""
        config = None if sandbox is None else convert.sandbox_config(sandbox)
        request = wire.PullImageRequest(image=wire.ImageSpec(image=name), sandbox_config=config)
        response: wire.PullImageResponse
        try:
            response = await self._call(request, f"pull image {name}", seconds=self._timeouts.pull)
        except CriError as error:
            error.image_missing = error.not_found
            raise
        return response.image_ref

    async def _list_containers(self, wanted: wire.ContainerFilter) -> tuple[CriContainer, ...]:
        request = wire.ListContainersRequest(filter=wanted)
        response: wire.ListContainersResponse = await self._call(request, "list containers")
        return tuple(sorted(map(convert.parse_container, response.containers), key=_BY_AGE))

    async def _call(
        self, request: Message, doing: str, *, seconds: float | None = None, missing_ok: bool = False, service: str = ""
    ) -> Any:  # noqa: ANN401 - the response to *request*
        """Send *request* to its method; ``CriError`` says what the runtime failed to do, and why.

        With *missing_ok*, the response is empty for a sandbox, container or image that does not exist.
        """
        if self._channel is None:
            raise CriError(_failed(doing, "the connection is closed"), code=grpc.StatusCode.CANCELLED.name)

        def cri_error(code: grpc.StatusCode, details: str) -> CriError:
            # containerd opens its socket before it is ready, and has no status code for that.
            actual = grpc.StatusCode.UNAVAILABLE if _STARTING in details else code
            return CriError(_failed(doing, details), code=actual.name, details=details)

        method = type(request).__name__.removesuffix("Request")
        response: type[Message] = getattr(wire, f"{method}Response")
        try:
            return await rpc.call(
                self._channel,
                f"/{service or _SERVICES[method]}/{method}",
                request,
                response=response,
                seconds=seconds or self._timeouts.request,
                error=cri_error,
                wait_for_ready=False,
            )
        except CriError as error:
            if missing_ok and error.not_found:
                return response()
            why = await asyncio.to_thread(_explain_unavailable, self.path) if error.unavailable else ""
            if not why:
                raise
            raise CriError(_failed(doing, why), code=error.code, details=error.details) from error


def short_id(id_: str) -> str:
    return id_[:13]


def _failed(doing: str, why: str) -> str:
    return f"the container runtime failed to {doing}: {why}"


def _explain_unavailable(path: Path) -> str:
    """Return why no runtime can be reached at *path*; empty if one can."""
    advice = "start the runtime, or set its socket with --runtime-endpoint"
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return f"{path} is not a socket\n{advice}"
        with socket(AF_UNIX, SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except FileNotFoundError:
        return f"{path} does not exist\n{advice}"
    except PermissionError:
        return f"user {os.geteuid()} may not use {path}\nrun this as root, or as a user with access"
    except OSError as error:
        return f"no server listens at {path} ({error.strerror or error})\n{advice}"
    return ""


def _thermal_paths(sysfs: Path) -> tuple[str, ...]:
    """Return the paths of CPU temperatures, which are hidden from containers."""
    found = sysfs.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle")
    return tuple(sorted(f"/sys/{path.relative_to(sysfs)}" for path in found))
