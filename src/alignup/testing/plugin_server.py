"""A device plugin on its socket, registered with the kubelet or agent of a directory."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from alignup import rpc
from alignup.align.machine import Device
from alignup.testing.device_list import Preference, parse_device_list
from alignup.testing.plugin_service import DevicePluginService, device_messages
from alignup.testing.recording_server import RecordingServer
from alignup.wire import device_plugin_pb2 as wire

REGISTRY = "kubelet.sock"
POLL_INTERVAL = 0.05  #: seconds between looks at the directory
RETRY_DELAY = 0.5  #: seconds until a failed registration is retried
REGISTER_TIMEOUT = 30.0  #: seconds

_REGISTER = f"/{wire.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"


class Plugin:
    """A device plugin of *resource* that serves and registers while entered.

    It registers again whenever ``kubelet.sock`` in *directory* is recreated, and recreates its own socket first if that
    was removed, as well-behaved plugins do. *devices* are devices or text for :func:`parse_device_list`. Further
    behavior can be set on ``service``.
    """

    def __init__(
        self,
        resource: str,
        devices: Iterable[Device] | str,
        *,
        directory: Path,
        preference: Preference = Preference.NONE,
        endpoint: str = "",
    ) -> None:
        self.socket = directory / (endpoint or f"{resource.replace('/', '_')}.sock")
        self.calls = RecordingServer(self.socket)
        self.inject, self.requests = self.calls.inject, self.calls.requests
        self.service = DevicePluginService(
            calls=self.calls, resource=resource, devices=_messages(resource, devices), preference=preference
        )
        self.registrations = 0  #: successful ones
        self.rejections: list[str] = []  #: error messages of failed registrations
        self._registry = directory / REGISTRY
        self._registered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.calls.serve(self.service.handler())
        self._task = asyncio.create_task(self._keep_registered(), name=f"register {self.service.resource}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._stop()

    def set_devices(self, devices: Iterable[Device] | str) -> None:
        """Replace the device list."""
        self.service.devices = _messages(self.service.resource, devices)
        self.service.send_devices()

    def set_health(self, id_: str, health: str) -> None:
        self.service.devices[id_].health = health
        self.service.send_devices()

    def remove(self, id_: str) -> None:
        """Remove a device from the list."""
        del self.service.devices[id_]
        self.service.send_devices()

    async def wait_registered(self, times: int = 1) -> None:
        """Return once the plugin has registered *times* times."""
        while self.registrations < times:
            self._registered.clear()
            await self._registered.wait()

    async def register(self) -> None:
        """Register, possibly again; raise ``StatusError`` if that fails."""
        request = wire.RegisterRequest(
            version="v1beta1",
            endpoint=self.socket.name,
            resource_name=self.service.resource,
            options=self.service.options(),
        )
        async with rpc.channel(self._registry) as channel:
            await rpc.call(
                channel,
                _REGISTER,
                request,
                response=wire.Empty,
                seconds=REGISTER_TIMEOUT,
                error=lambda code, details: rpc.StatusError(details, code=code),
                wait_for_ready=False,
            )
        self.registrations += 1
        self._registered.set()

    async def restart(self) -> None:
        """Break every connection and serve again, unregistered."""
        await self._stop()
        await self.calls.serve(self.service.handler())

    async def _keep_registered(self) -> None:
        known: tuple[int, int] | None = None
        while True:
            found = _identity(self._registry)
            if found is not None and found != known:
                known = found if await self._try_register() else None
            await asyncio.sleep(POLL_INTERVAL)

    async def _try_register(self) -> bool:
        if _identity(self.socket) is None:
            await self.restart()
        try:
            await self.register()
        except rpc.StatusError as error:
            self.rejections.append(str(error))
            await asyncio.sleep(RETRY_DELAY)
            return False
        return True

    async def _stop(self) -> None:
        self.service.end_streams()
        await self.calls.stop()


def _messages(resource: str, devices: Iterable[Device] | str) -> dict[str, wire.Device]:
    return device_messages(parse_device_list(resource, devices) if isinstance(devices, str) else devices)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is recreated; ``None`` if it does not exist."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
