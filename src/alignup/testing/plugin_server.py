"""A plugin for tests on its socket, registered wherever there is somebody to register with."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import grpc.aio
from google.protobuf.message import Message

from alignup.align.machine import Device
from alignup.testing.device_list import Preference, parse_device_list
from alignup.testing.faults import Fault
from alignup.testing.plugin_service import DevicePluginService, device_messages
from alignup.wire import device_plugin_pb2 as wire

REGISTRY = "kubelet.sock"
POLL_INTERVAL = 0.05  #: seconds between two looks at the directory
RETRY_DELAY = 0.5  #: seconds until a registration that failed is tried again

_REGISTER = f"/{wire.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"
_CHANNEL = (("grpc.use_local_subchannel_pool", 1),)


class Plugin:
    """A device plugin of *resource* that serves and registers as long as it is entered.

    Whenever ``kubelet.sock`` in *directory* is made anew it registers again, and where its own socket was removed it
    makes that anew first, as well-behaved plugins do. *devices* are devices, or a text (:func:`parse_device_list`). More about
    how it answers can be set in ``service``.
    """

    def __init__(
        self,
        resource: str,
        devices: Iterable[Device] | str,
        *,
        directory: Path,
        advice: Preference = Preference.NONE,
        endpoint: str = "",
    ) -> None:
        self.service = DevicePluginService(resource=resource, devices=_listed(resource, devices), advice=advice)
        self.socket = directory / (endpoint or f"{resource.replace('/', '_')}.sock")
        self.registrations = 0  #: that were taken
        self.rejections: list[str] = []  #: what was said to those that were not
        self._registry = directory / REGISTRY
        self._taken = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._serve()
        self._task = asyncio.create_task(self._keep_registered(), name=f"register {self.service.resource}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._stop()

    def set_devices(self, devices: Iterable[Device] | str) -> None:
        """List these from now on."""
        self.service.devices = _listed(self.service.resource, devices)
        self.service.list_again()

    def set_health(self, id_: str, health: str) -> None:
        """List a device with this health from now on."""
        self.service.devices[id_].health = health
        self.service.list_again()

    def remove(self, id_: str) -> None:
        """List a device no more."""
        del self.service.devices[id_]
        self.service.list_again()

    def misbehave(self, method: str, fault: Fault) -> None:
        """Spoil the answers to *method* from now on; a plain ``Fault()`` ends that.

        ``ListAndWatch`` is spoilt at the next list.
        """
        self.service.calls.faults.set(method, fault)

    def asked(self, method: str) -> tuple[Any, ...]:
        """The requests of one kind, in the order they came."""
        return self.service.calls.of(method)

    async def registered(self, times: int = 1) -> None:
        """Return when so many registrations were taken."""
        while self.registrations < times:
            self._taken.clear()
            await self._taken.wait()

    async def register(self) -> None:
        """Register, once more if need be; ``grpc.aio.AioRpcError`` when that is refused."""
        request = wire.RegisterRequest(
            version="v1beta1",
            endpoint=self.socket.name,
            resource_name=self.service.resource,
            options=self.service.options(),
        )
        async with grpc.aio.insecure_channel(_address(self._registry), options=_CHANNEL) as line:
            ask: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = line.unary_unary(
                _REGISTER, request_serializer=_bytes
            )
            await ask(request, timeout=30)
        self.registrations += 1
        self._taken.set()

    async def restart(self) -> None:
        """End every connection and serve again; whoever listened has to be registered with anew."""
        await self._stop()
        await self._serve()

    async def _keep_registered(self) -> None:
        """Look after both sockets for ever."""
        known: tuple[int, int] | None = None
        while True:
            found = _identity(self._registry)
            if found is not None and found != known:
                known = found if await self._try() else None
            await asyncio.sleep(POLL_INTERVAL)

    async def _try(self) -> bool:
        """Register; whether that was taken."""
        if _identity(self.socket) is None:
            await self.restart()
        try:
            await self.register()
        except grpc.aio.AioRpcError as error:
            self.rejections.append(error.details() or "")
            await asyncio.sleep(RETRY_DELAY)
            return False
        return True

    async def _serve(self) -> None:
        _make_room(self.socket)
        self._server = grpc.aio.server(handlers=[self.service.handler()])
        self._server.add_insecure_port(_address(self.socket))
        await self._server.start()

    async def _stop(self) -> None:
        if self._server is not None:
            await self.service.end()
            await self._server.stop(grace=0)
            self._server = None


def _listed(resource: str, devices: Iterable[Device] | str) -> dict[str, wire.Device]:
    return device_messages(parse_device_list(resource, devices) if isinstance(devices, str) else devices)


def _make_room(path: Path) -> None:
    """See to it that a socket can be made at *path*."""
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another that took its place; ``None`` when there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


def _address(path: Path) -> str:
    return f"unix:{quote(str(path.absolute()))}"


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()
