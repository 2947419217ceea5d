"""NRI plugins: the events of a container runtime as methods, and the connection to the runtime.

Subclass :class:`NriPlugin`, override the methods of the events that matter, and run it with :class:`PluginConnection`:

    class Logger(NriPlugin):
        async def create_container(self, pod, container):
            print(pod.name, container.name)
            return wire.CreateContainerResponse()

    await PluginConnection(Logger(), name="logger", index="10").run()

Up to NRI 0.11 most events of pods and containers arrive as ``StateChange``, from 0.12 as calls of their own. Both end
in the same method. An error from a method fails the pod or container that it is about; the kubelet tries again later.
"""
# ruff: noqa: ARG002 - a plugin that changes nothing needs none of its arguments

import asyncio
import os
import random
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import DecodeError, Message

from alignup.nri.frames import PLUGIN_CHANNEL, RUNTIME_CHANNEL, FrameError
from alignup.nri.ttrpc import Code, ConnectionClosedError, RpcError, Service, TtrpcConnection
from alignup.wire import nri_pb2 as wire

SOCKET = Path("/var/run/nri/nri.sock")
VERSION = "v0.12.0"  #: of NRI, whose messages are understood

PLUGIN_SERVICE = wire.DESCRIPTOR.services_by_name["Plugin"].full_name
RUNTIME_SERVICE = wire.DESCRIPTOR.services_by_name["Runtime"].full_name

#: Method of the plugin service → event. The methods of :class:`NriPlugin` have the names of events in lower case.
EVENTS = {name.title().replace("_", ""): event for name, event in wire.Event.items() if event}

_POD_NOTIFICATIONS = {
    *(wire.RUN_POD_SANDBOX, wire.POST_UPDATE_POD_SANDBOX, wire.STOP_POD_SANDBOX, wire.REMOVE_POD_SANDBOX),
}
_CONTAINER_NOTIFICATIONS = {
    *(wire.POST_CREATE_CONTAINER, wire.START_CONTAINER, wire.POST_START_CONTAINER, wire.POST_UPDATE_CONTAINER),
    wire.REMOVE_CONTAINER,
}
_FIRST_EVENTS = (1 << wire.REMOVE_CONTAINER) - 1  #: the mask of events that every runtime knows
_ALL_EVENTS = (1 << wire.VALIDATE_CONTAINER_ADJUSTMENT) - 1
_CONTAINERD_WITH_ALL = (2, 2, 0)
_VERSION_NUMBERS = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.+-]+", re.ASCII)
_INDEX = re.compile(r"[0-9]{2}", re.ASCII)

_log = structlog.get_logger()


class NriPlugin:
    """A plugin that changes nothing; it subscribes to the events whose methods a subclass overrides."""

    async def configure(self, request: wire.ConfigureRequest) -> None:
        """Take the plugin's configuration, and the runtime's name, version and time limits."""

    async def synchronize(
        self, pods: Sequence[wire.PodSandbox], containers: Sequence[wire.Container]
    ) -> Sequence[wire.ContainerUpdate]:
        """Take all pods and containers of the runtime, after each connection; return changes to them."""
        return ()

    async def disconnected(self) -> None:
        """Take note that no events come until the next :meth:`synchronize`."""

    async def run_pod_sandbox(self, pod: wire.PodSandbox) -> None: ...

    async def update_pod_sandbox(
        self, pod: wire.PodSandbox, overhead: wire.LinuxResources, resources: wire.LinuxResources
    ) -> None: ...

    async def post_update_pod_sandbox(self, pod: wire.PodSandbox) -> None: ...

    async def stop_pod_sandbox(self, pod: wire.PodSandbox) -> None: ...

    async def remove_pod_sandbox(self, pod: wire.PodSandbox) -> None: ...

    async def create_container(self, pod: wire.PodSandbox, container: wire.Container) -> wire.CreateContainerResponse:
        """Return changes to the new container, and to others."""
        return wire.CreateContainerResponse()

    async def post_create_container(self, pod: wire.PodSandbox, container: wire.Container) -> None: ...

    async def start_container(self, pod: wire.PodSandbox, container: wire.Container) -> None: ...

    async def post_start_container(self, pod: wire.PodSandbox, container: wire.Container) -> None: ...

    async def update_container(
        self, pod: wire.PodSandbox, container: wire.Container, resources: wire.LinuxResources
    ) -> Sequence[wire.ContainerUpdate]:
        """Return changes to what *container* is about to get, *resources*, and to other containers."""
        return ()

    async def post_update_container(self, pod: wire.PodSandbox, container: wire.Container) -> None: ...

    async def stop_container(self, pod: wire.PodSandbox, container: wire.Container) -> Sequence[wire.ContainerUpdate]:
        """Return changes to other containers."""
        return ()

    async def remove_container(self, pod: wire.PodSandbox, container: wire.Container) -> None: ...

    async def validate_container_adjustment(self, request: wire.ValidateContainerAdjustmentRequest) -> str:
        """Return why what all plugins change about a new container is not allowed; empty if it is."""
        return ""


def subscription(plugin: NriPlugin, request: wire.ConfigureRequest) -> int:
    """Return the mask of the events of *plugin* that the runtime knows; it rejects plugins that want others."""
    methods = {event: name.lower() for name, event in wire.Event.items() if event}
    event_mask = sum(
        1 << event - 1 for event, name in methods.items() if getattr(type(plugin), name) is not getattr(NriPlugin, name)
    )
    return event_mask & (_ALL_EVENTS if _knows_all_events(request) else _FIRST_EVENTS)


def _knows_all_events(request: wire.ConfigureRequest) -> bool:
    """Return whether the runtime has NRI 0.10 or later; it says so from 0.12 on."""
    version = parse_version(request.runtime_version)
    return bool(request.NRI_version) or (request.runtime_name == "containerd" and version >= _CONTAINERD_WITH_ALL)


def parse_version(text: str) -> tuple[int, ...]:
    """Return the three numbers of a version such as ``v0.12.0`` or ``2.1.9~ds1``; zeros if *text* is no version."""
    match = _VERSION_NUMBERS.match(text)
    return tuple(int(number or 0) for number in match.groups()) if match else (0, 0, 0)


class PluginDispatcher:
    """The plugin service: turns the calls of a runtime into calls of *plugin*."""

    def __init__(self, plugin: NriPlugin, *, synchronized: Callable[[], None] = lambda: None) -> None:
        self._plugin = plugin
        self._synchronized = synchronized
        self._pods: list[wire.PodSandbox] = []  #: of requests that announce more
        self._containers: list[wire.Container] = []
        self._methods: dict[str, tuple[type[Message], Callable[[Any], Awaitable[Message]]]] = {
            "Configure": (wire.ConfigureRequest, self._configure),
            "Synchronize": (wire.SynchronizeRequest, self._synchronize),
            "Shutdown": (wire.Empty, self._shut_down),
            "CreateContainer": (wire.CreateContainerRequest, self._create_container),
            "UpdateContainer": (wire.UpdateContainerRequest, self._update_container),
            "StopContainer": (wire.StopContainerRequest, self._stop_container),
            "UpdatePodSandbox": (wire.UpdatePodSandboxRequest, self._update_pod_sandbox),
            "ValidateContainerAdjustment": (wire.ValidateContainerAdjustmentRequest, self._validate),
            "StateChange": (wire.StateChangeEvent, self._change_state),
        }

    async def call(self, method: str, payload: bytes) -> bytes:
        """Handle a request; ``RpcError`` if it is malformed, or for a method that does not exist."""
        try:
            if method in self._methods:
                request_type, handle = self._methods[method]
                response = await handle(request_type.FromString(payload))
            elif method in EVENTS:
                request = wire.NotificationRequest.FromString(payload)
                event = wire.Event.Name(EVENTS[method])
                change = wire.StateChangeEvent(event=event, pod=request.pod, container=request.container)
                response = await self._change_state(change)
            else:
                raise RpcError(Code.UNIMPLEMENTED, f"method {method} does not exist")
        except DecodeError:
            raise RpcError(Code.INVALID_ARGUMENT, f"the request of {method} cannot be decoded") from None
        return response.SerializeToString()

    async def _configure(self, request: wire.ConfigureRequest) -> wire.ConfigureResponse:
        await self._plugin.configure(request)
        return wire.ConfigureResponse(events=subscription(self._plugin, request))

    async def _synchronize(self, request: wire.SynchronizeRequest) -> wire.SynchronizeResponse:
        self._pods += request.pods
        self._containers += request.containers
        if request.more:
            return wire.SynchronizeResponse(more=True)
        pods, self._pods = self._pods, []
        containers, self._containers = self._containers, []
        updates = await self._plugin.synchronize(pods, containers)
        self._synchronized()
        return wire.SynchronizeResponse(update=updates)

    async def _shut_down(self, _request: wire.Empty) -> wire.Empty:
        return wire.Empty()  # the end of the connection follows

    async def _create_container(self, request: wire.CreateContainerRequest) -> wire.CreateContainerResponse:
        return await self._plugin.create_container(request.pod, request.container)

    async def _update_container(self, request: wire.UpdateContainerRequest) -> wire.UpdateContainerResponse:
        updates = await self._plugin.update_container(request.pod, request.container, request.linux_resources)
        return wire.UpdateContainerResponse(update=updates)

    async def _stop_container(self, request: wire.StopContainerRequest) -> wire.StopContainerResponse:
        return wire.StopContainerResponse(update=await self._plugin.stop_container(request.pod, request.container))

    async def _update_pod_sandbox(self, request: wire.UpdatePodSandboxRequest) -> wire.Empty:
        overhead, resources = request.overhead_linux_resources, request.linux_resources
        await self._plugin.update_pod_sandbox(request.pod, overhead, resources)
        return wire.Empty()

    async def _validate(
        self, request: wire.ValidateContainerAdjustmentRequest
    ) -> wire.ValidateContainerAdjustmentResponse:
        reason = await self._plugin.validate_container_adjustment(request)
        return wire.ValidateContainerAdjustmentResponse(reject=bool(reason), reason=reason)

    async def _change_state(self, change: wire.StateChangeEvent) -> wire.Empty:
        """Call the method of an event that needs no answer; ignore events that are not known."""
        if change.event in _POD_NOTIFICATIONS:
            await getattr(self._plugin, wire.Event.Name(change.event).lower())(change.pod)
        elif change.event in _CONTAINER_NOTIFICATIONS:
            await getattr(self._plugin, wire.Event.Name(change.event).lower())(change.pod, change.container)
        return wire.Empty()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTiming:
    """Time limits in seconds, and how the connection waits before it tries again."""

    register: float = 60.0  #: a busy runtime accepts one plugin after the other
    update: float = 30.0
    retry: float = 0.5  #: the first delay after a failure; it doubles with every further one
    longest_retry: float = 10.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class PluginConnection:
    """Keeps *plugin* connected to the runtime at *path*.

    A runtime that starts the plugin itself gives it a name, an index and an open socket in the environment.
    """

    def __init__(
        self,
        plugin: NriPlugin,
        *,
        name: str,
        index: str,
        path: Path = SOCKET,
        timing: ConnectionTiming = ConnectionTiming(),  # noqa: B008 - immutable
    ) -> None:
        self._plugin = plugin
        self._path = path
        self._timing = timing
        self._name = os.environ.get("NRI_PLUGIN_NAME", name)
        self._index = os.environ.get("NRI_PLUGIN_IDX", index)
        if not _NAME.fullmatch(self._name) or not _INDEX.fullmatch(self._index):
            raise ValueError(f"{self._index}-{self._name} is no plugin: expected two digits, and a name")
        self._connection: TtrpcConnection | None = None
        self.synchronized = False  #: whether events come
        self.problem = "not connected yet"  #: the last reason why not

    async def run(self) -> None:
        """Serve the runtime, and connect again whenever it closes the connection; never return."""
        delay = self._timing.retry
        while True:
            try:
                await self.run_once()
                self.problem = "the runtime closed the connection"
            except (OSError, FrameError, RpcError) as error:
                self.problem = f"{self._path}: {error}"
            if self.synchronized:
                self.synchronized = False
                delay = self._timing.retry
                await self._plugin.disconnected()
            _log.warning("not connected to the runtime", problem=self.problem, retry_after=delay)
            await self._timing.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - not cryptography
            delay = min(2 * delay, self._timing.longest_retry)

    async def run_once(self) -> None:
        """Connect, register, and serve until the connection ends.

        ``OSError`` if there is no runtime, ``RpcError`` if it does not accept the plugin, ``FrameError`` if its
        bytes make no sense.
        """
        dispatcher = PluginDispatcher(self._plugin, synchronized=self._mark_synchronized)
        service = Service(PLUGIN_SERVICE, PLUGIN_CHANNEL, dispatcher.call)
        connection = TtrpcConnection(*await self._open(), service=service, channel=RUNTIME_CHANNEL)
        connection_task = asyncio.ensure_future(connection.run())
        self._connection = connection
        request = wire.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index, NRI_version=VERSION)
        try:
            await self._call("RegisterPlugin", request, self._timing.register)
            await connection_task
        except ConnectionClosedError:
            await connection_task  # which may know why
            raise
        finally:
            self._connection = None
            connection.close()
            connection_task.cancel()
            with suppress(asyncio.CancelledError, FrameError):
                await connection_task

    async def update_containers(self, updates: Sequence[wire.ContainerUpdate]) -> list[wire.ContainerUpdate]:
        """Change containers without being asked; return the updates that failed.

        ``RpcError`` if the runtime does not say which, for example only that some failed. It skips unknown containers,
        and containers that are being created. Up to NRI 0.12.0 it can block the runtime for good, if an event comes at
        the same time.
        """
        request = wire.UpdateContainersRequest(update=updates)
        payload = await self._call("UpdateContainers", request, self._timing.update)
        try:
            return list(wire.UpdateContainersResponse.FromString(payload).failed)
        except DecodeError:
            raise RpcError(Code.INTERNAL, "the response of UpdateContainers cannot be decoded") from None

    async def _call(self, method: str, request: Message, seconds: float) -> bytes:
        if self._connection is None:
            raise ConnectionClosedError
        payload = request.SerializeToString()
        return await self._connection.call(RUNTIME_SERVICE, method, payload, timeout=seconds)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if descriptor := os.environ.pop("NRI_PLUGIN_SOCKET", ""):  # it serves for one connection
            return await asyncio.open_unix_connection(sock=socket.socket(fileno=int(descriptor)))
        return await asyncio.open_unix_connection(os.fspath(self._path))

    def _mark_synchronized(self) -> None:
        self.synchronized = True
        self.problem = ""
        _log.info("synchronized with the runtime", plugin=f"{self._index}-{self._name}")
