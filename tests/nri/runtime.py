"""A container runtime's side of NRI on a real socket, scripted call by call."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from alignup.nri.frames import PLUGIN_CHANNEL, RUNTIME_CHANNEL
from alignup.nri.nri_plugin import PLUGIN_SERVICE, RUNTIME_SERVICE
from alignup.nri.ttrpc import Code, RpcError, Service, TtrpcConnection
from alignup.wire import nri_pb2 as wire

T = TypeVar("T", bound=Message)


class ScriptedRuntime:
    """Accepts plugins, and calls them as the test says; ``updates`` are the changes that plugins ask for by themselves.

    ``rejects`` is an error for the next registration; ``failing`` are containers whose updates fail, and
    ``names_failures`` whether it says which those are: containerd does not. With ``answers_garbage``, its responses to
    updates cannot be decoded.
    """

    def __init__(self) -> None:
        self.registered: list[wire.RegisterPluginRequest] = []
        self.updates: list[wire.ContainerUpdate] = []
        self.failing: set[str] = set()
        self.names_failures = False
        self.answers_garbage = False
        self.rejects: RpcError | None = None
        self.connections: list[TtrpcConnection] = []
        self.plugins: asyncio.Queue[TtrpcConnection] = asyncio.Queue()  #: those that have registered

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator["ScriptedRuntime"]:
        server = await asyncio.start_unix_server(self.accept, path)
        try:
            yield self
        finally:
            server.close()
            self.disconnect()
            path.unlink()  # noqa: ASYNC240 - at once

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve(method: str, payload: bytes) -> bytes:
            return await self._serve(connection, method, payload)

        service = Service(RUNTIME_SERVICE, RUNTIME_CHANNEL, serve)
        connection = TtrpcConnection(reader, writer, service=service, channel=PLUGIN_CHANNEL)
        self.connections.append(connection)
        await connection.run()

    async def _serve(self, connection: TtrpcConnection, method: str, payload: bytes) -> bytes:
        if method == "RegisterPlugin":
            if (error := self.rejects) is not None:
                self.rejects = None
                raise error
            self.registered.append(wire.RegisterPluginRequest.FromString(payload))
            self.plugins.put_nowait(connection)
            return b""
        if method != "UpdateContainers":
            raise RpcError(Code.UNIMPLEMENTED, method)
        if self.answers_garbage:
            return b"\xff"
        updates = wire.UpdateContainersRequest.FromString(payload).update
        self.updates += updates
        failed = [update for update in updates if update.container_id in self.failing]
        if failed and not self.names_failures:
            raise RpcError(Code.UNKNOWN, "NRI update of some containers failed")
        return wire.UpdateContainersResponse(failed=failed).SerializeToString()

    def disconnect(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()


@dataclass
class CalledPlugin:
    """A registered plugin, as the runtime calls it."""

    connection: TtrpcConnection
    events: int = field(default=0, init=False)

    async def call(self, method: str, request: Message, answer: type[T], *, timeout: float = 30.0) -> T:  # noqa: ASYNC109
        payload = request.SerializeToString()
        return answer.FromString(await self.connection.call(PLUGIN_SERVICE, method, payload, timeout=timeout))

    async def configure(self, *, version: str = "2.1.9", nri: str = "") -> int:
        """Configure the plugin; return the mask of events that it subscribes to."""
        request = wire.ConfigureRequest(
            runtime_name="containerd", runtime_version=version, request_timeout=2000, NRI_version=nri
        )
        self.events = (await self.call("Configure", request, wire.ConfigureResponse)).events
        return self.events

    async def synchronize(
        self, pods: Sequence[wire.PodSandbox] = (), containers: Sequence[wire.Container] = (), *, more: bool = False
    ) -> wire.SynchronizeResponse:
        request = wire.SynchronizeRequest(pods=pods, containers=containers, more=more)
        return await self.call("Synchronize", request, wire.SynchronizeResponse)

    async def create(self, pod: wire.PodSandbox, container: wire.Container) -> wire.CreateContainerResponse:
        request = wire.CreateContainerRequest(pod=pod, container=container)
        return await self.call("CreateContainer", request, wire.CreateContainerResponse)

    async def update(
        self, pod: wire.PodSandbox, container: wire.Container, resources: wire.LinuxResources
    ) -> list[wire.ContainerUpdate]:
        request = wire.UpdateContainerRequest(pod=pod, container=container, linux_resources=resources)
        return list((await self.call("UpdateContainer", request, wire.UpdateContainerResponse)).update)

    async def stop(self, pod: wire.PodSandbox, container: wire.Container) -> list[wire.ContainerUpdate]:
        request = wire.StopContainerRequest(pod=pod, container=container)
        return list((await self.call("StopContainer", request, wire.StopContainerResponse)).update)

    async def notify(self, event: int, pod: wire.PodSandbox, container: wire.Container | None = None) -> None:
        """Send an event as runtimes do up to NRI 0.11."""
        change = wire.StateChangeEvent(event=wire.Event.Name(event), pod=pod, container=container)
        await self.call("StateChange", change, wire.Empty)


async def next_plugin(runtime: ScriptedRuntime) -> CalledPlugin:
    async with asyncio.timeout(60):
        return CalledPlugin(await runtime.plugins.get())
