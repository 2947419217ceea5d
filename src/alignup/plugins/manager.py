"""The device plugin manager: registers device plugins, follows their device lists, and calls them.

    async with DevicePluginManager(directory, listener, metrics=metrics) as manager:
        ids = await manager.preferred(wanted)
        response = await manager.allocate("example.com/gpu", ids)
        await manager.pre_start("example.com/gpu", ids)

Each plugin has its own connection and tasks, so a slow or hanging plugin delays only the callers that wait for it.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from alignup.align.devices import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.plugins.allocate_response import AllocateResponse
from alignup.plugins.change_notifier import ChangeNotifier, DeviceListener
from alignup.plugins.endpoint import Endpoint, PluginTimeouts
from alignup.plugins.endpoint_store import Capacity, Clock, EndpointStore, ResourceStatus
from alignup.plugins.metrics import PluginMetrics
from alignup.plugins.registry import serve_registry

EXPIRY_INTERVAL = 10.0  #: seconds between checks for resources whose grace period is over

_LOG = logging.getLogger(__name__)


class DevicePluginManager:
    """Serves the registry in *directory* while entered, and reports device changes to *listener*."""

    def __init__(
        self,
        directory: Path,
        listener: DeviceListener,
        *,
        metrics: PluginMetrics,
        timeouts: PluginTimeouts | None = None,
        now: Clock = time.monotonic,
    ) -> None:
        self._directory = directory
        self._metrics = metrics
        self._timeouts = timeouts or PluginTimeouts()
        self._notifier = ChangeNotifier(listener, status=self.status)
        self._store = EndpointStore(now=now, changed=self._notifier.changed, grace=self._timeouts.reconnect)
        self._watchers: dict[Endpoint, asyncio.Task[None]] = {}
        self._closing: dict[Endpoint, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start listening; raise ``ListenError`` if that is not possible."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._notifier.close)
            stack.push_async_callback(self._disconnect_all)
            expiry = asyncio.create_task(self._expire(), name="expire device resources")
            stack.callback(expiry.cancel)
            registry = serve_registry(self._directory, connect=self._connect, metrics=self._metrics)
            await stack.enter_async_context(registry)
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

    def capacity(self) -> Capacity:
        return self._store.capacity()

    async def settled(self) -> None:
        """Return once the listener knows every change so far."""
        await self._notifier.settled()

    async def preferred(self, wanted: PreferenceRequest) -> tuple[str, ...]:
        """Return the device ids that the plugin prefers; empty if it does not implement the call."""
        return await self._primary(wanted.resource).preferred(wanted)

    async def allocate(self, resource: str, ids: Sequence[str]) -> AllocateResponse:
        """Let the plugin prepare devices for a container."""
        start = time.perf_counter()
        try:
            endpoint = self._store.primary(resource)
            if endpoint is None:
                raise PluginError(f"unknown Device Plugin {resource}")
            return await endpoint.allocate(ids)
        finally:
            self._metrics.observe_allocation(resource, time.perf_counter() - start)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Announce the start of a container to the plugin, if the plugin requires it."""
        if not self._store.needs_pre_start(resource):
            return
        endpoint = self._primary(resource)
        try:
            await endpoint.pre_start(ids)
        except PluginError as error:
            raise PluginError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _primary(self, resource: str) -> Endpoint:
        endpoint = self._store.primary(resource)
        if endpoint is None:
            raise PluginError(f"endpoint not found in cache for a registered resource: {resource}")
        return endpoint

    async def _connect(self, resource: str, socket: Path) -> None:
        endpoint = await Endpoint.dial(resource, socket, timeouts=self._timeouts)
        replaced = self._store.connect(endpoint)
        self._watchers[endpoint] = asyncio.create_task(self._watch(endpoint), name=f"watch {endpoint}")
        _LOG.info("device plugin connected: resource=%s socket=%s", endpoint.resource, endpoint.socket)
        if replaced is not None:
            self._retire(replaced)

    def _retire(self, endpoint: Endpoint) -> None:
        """Stop watching a replaced connection, and close it when its pending calls are done."""
        self._watchers.pop(endpoint).cancel()
        task = asyncio.create_task(endpoint.close(grace=self._timeouts.allocate), name=f"close {endpoint}")
        self._closing[endpoint] = task
        task.add_done_callback(lambda _: self._closing.pop(endpoint))

    async def _watch(self, endpoint: Endpoint) -> None:
        """Follow the plugin's device list until the stream ends."""
        reason = "its device list ended"
        try:
            async for devices in endpoint.watch():
                self._store.list(endpoint, devices)
        except PluginError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a bad plugin must not affect others
            reason = f"internal error: {type(error).__name__}: {error}"
        if self._store.is_connected(endpoint):
            _LOG.warning(
                "device plugin stopped: resource=%s socket=%s reason=%s", endpoint.resource, endpoint.socket, reason
            )
            self._store.disconnect(endpoint)
        del self._watchers[endpoint]
        await endpoint.close()

    async def _disconnect_all(self) -> None:
        tasks = self._watchers | self._closing
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for endpoint in tasks:
            await endpoint.close()

    async def _expire(self) -> None:
        """Remove expired resources even if nothing reads the capacity."""
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL)
            for resource in self._store.expire():
                _LOG.warning("device plugin did not come back in time: resource=%s removed", resource)
