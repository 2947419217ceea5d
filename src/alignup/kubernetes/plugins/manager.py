"""The device plugin manager: registers device plugins, follows their device lists, and calls them.

    async with DevicePluginManager(directory, devices_listed, plugin_stopped) as manager:
        ids = await manager.preferred(wanted)
        response = await manager.allocate("example.com/gpu", ids)
        await manager.pre_start("example.com/gpu", ids)

Each plugin has its own connection and tasks, so a slow or hanging plugin delays only the callers that wait for it.

Plugins register at ``kubelet.sock`` in the directory, and watch the directory: when ``kubelet.sock`` is recreated and
their own socket is gone, they register again.
"""

import asyncio
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import structlog

from alignup.align.bits import quote
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import ListenError, PluginError
from alignup.align.workload import names
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.kubernetes.plugins.endpoint import Endpoint, PluginTimeouts
from alignup.kubernetes.plugins.resources import (
    ChangeNotifier,
    Clock,
    DevicesListed,
    EndpointStore,
    PluginStopped,
    ResourceStatus,
)
from alignup.tasks import cancel_tasks
from alignup.wire import device_plugin_pb2 as wire

SOCKET = "kubelet.sock"
VERSION = "v1beta1"
EXPIRY_INTERVAL = 10.0  #: seconds between checks for resources whose grace period is over

_NOT_FOUND = "endpoint not found in cache for a registered resource:"
_REGISTRATION = wire.DESCRIPTOR.services_by_name["Registration"]

_log = structlog.get_logger()


class DevicePluginManager:
    """Accepts plugins in *directory* while entered; see ``ChangeNotifier`` for *devices_listed* and *plugin_stopped*.

    *count_registration* is called with the resource of every registration, *observe_allocation* with that of every
    Allocate call and its seconds, of failed ones too.
    """

    def __init__(  # noqa: PLR0913 - each can be left out but the first three
        self,
        directory: Path,
        devices_listed: DevicesListed,
        plugin_stopped: PluginStopped,
        *,
        count_registration: Callable[[str], object] = lambda _resource: None,
        observe_allocation: Callable[[str, float], object] = lambda _resource, _seconds: None,
        timeouts: PluginTimeouts | None = None,
        now: Clock = time.monotonic,
    ) -> None:
        self._directory = directory
        self._count_registration = count_registration
        self._observe_allocation = observe_allocation
        self._timeouts = timeouts or PluginTimeouts()
        self._notifier = ChangeNotifier(devices_listed, plugin_stopped, self.status)
        self._store = EndpointStore(now=now, changed=self._notifier.changed, grace=self._timeouts.reconnect)
        self._watchers: dict[Endpoint, asyncio.Task[None]] = {}
        self._closing: dict[Endpoint, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Remove all sockets in the directory, and listen; raise ``ListenError`` if another server listens."""
        socket = self._directory / SOCKET
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._notifier.close)
            stack.push_async_callback(self._disconnect_all)
            expiry = asyncio.create_task(self._expire(), name="expire device resources")
            stack.callback(expiry.cancel)
            unix_grpc.check_socket_path(socket)
            _clear_sockets(self._directory)
            methods: dict[str, unix_grpc.Method] = {"Register": (wire.RegisterRequest, self._register)}
            await stack.enter_async_context(unix_grpc.serve(socket, _REGISTRATION, methods))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect without notifying the listener: the devices are as healthy as before."""
        await self._stack.aclose()

    def expect(self, resources: Iterable[str]) -> None:
        """After a restart: remove these *resources* unless their plugins register within the grace period.

        Call this while the manager is entered.
        """
        self._store.expect(resources)

    def status(self, resource: str) -> ResourceStatus:
        return self._store.status(resource)

    async def settled(self) -> None:
        """Return once the listener knows every change so far."""
        while tasks := self._notifier.tasks.values():
            await asyncio.wait(tasks)

    async def preferred(self, request: PreferenceRequest) -> tuple[str, ...]:
        return await self._primary(request.resource, request.available).preferred(request)

    async def allocate(self, resource: str, ids: Sequence[str]) -> AllocateResponse:
        start = time.perf_counter()
        try:
            return await self._primary(resource, ids, problem="unknown Device Plugin").allocate(ids)
        finally:
            self._observe_allocation(resource, time.perf_counter() - start)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        if not self._store.needs_pre_start(resource):
            return
        endpoint = self._primary(resource, ids)
        try:
            await endpoint.pre_start(ids)
        except PluginError as error:
            raise PluginError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _primary(self, resource: str, ids: Sequence[str], *, problem: str = _NOT_FOUND) -> Endpoint:
        endpoint = self._store.primary(resource, ids)
        if endpoint is None:
            raise PluginError(f"{problem} {resource}")
        return endpoint

    async def _register(self, request: wire.RegisterRequest) -> wire.Empty:
        resource = request.resource_name
        self._count_registration(resource)
        try:
            _check_request(request)
            socket = socket_path(self._directory, request.endpoint)
            endpoint = await Endpoint.dial(resource, socket, timeouts=self._timeouts)
        except PluginError as error:
            _log.warning("device plugin rejected", resource=resource, error=str(error))
            raise unix_grpc.StatusError(str(error)) from error
        replaced_endpoint = self._store.connect(endpoint)
        self._watchers[endpoint] = asyncio.create_task(self._watch(endpoint), name=f"watch {endpoint}")
        _log.info("device plugin connected", resource=resource, socket=str(socket))
        if replaced_endpoint is not None:  # close it when its pending calls are done
            self._watchers.pop(replaced_endpoint).cancel()
            task = asyncio.create_task(
                replaced_endpoint.close(grace=self._timeouts.allocate), name=f"close {replaced_endpoint}"
            )
            self._closing[replaced_endpoint] = task
            task.add_done_callback(lambda _: self._closing.pop(replaced_endpoint))
        return wire.Empty()

    async def _watch(self, endpoint: Endpoint) -> None:
        reason = "its device list ended"
        try:
            async for devices in endpoint.watch():
                self._store.list(endpoint, devices)
        except PluginError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a bad plugin must not affect others
            reason = f"internal error: {type(error).__name__}: {error}"
        if self._store.is_connected(endpoint):
            _log.warning(
                "device plugin stopped", resource=endpoint.resource, socket=str(endpoint.socket), reason=reason
            )
            self._store.disconnect(endpoint)
        del self._watchers[endpoint]
        await endpoint.close()

    async def _disconnect_all(self) -> None:
        tasks = self._watchers | self._closing
        await cancel_tasks(tasks.values())
        for endpoint in tasks:
            await endpoint.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL)
            for resource in self._store.expire():
                _log.warning("device plugin did not come back in time: resource removed", resource=resource)


def _check_request(request: wire.RegisterRequest) -> None:
    """Raise ``PluginError``, with the kubelet's text, for a plugin that the kubelet rejects."""
    if request.version != VERSION:
        problem = f"requested API version {quote(request.version)} is not supported by kubelet"
        raise PluginError(f"{problem}. Supported version is [{quote(VERSION)}]")
    if not names.is_extended(request.resource_name):
        raise PluginError(f"the ResourceName {quote(request.resource_name)} is invalid")


def socket_path(directory: Path, endpoint: str) -> Path:
    """Return the socket of a plugin; raise ``PluginError`` unless *endpoint* is the name of a file in *directory*."""
    if endpoint in {"", ".", "..", SOCKET} or "/" in endpoint or "\0" in endpoint:
        problem = f"the endpoint {quote(endpoint)} is not the name of a socket of a device plugin"
        raise PluginError(f"{problem}: it must be a file in the plugin directory, without a path")
    return directory.absolute() / endpoint


def _clear_sockets(directory: Path) -> None:
    """Create *directory* if needed, and remove every socket in it; other files stay."""
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ListenError(
            f"cannot use the device plugin directory {directory}: {error.strerror}\n"
            "choose a directory that this user may write to"
        ) from error
