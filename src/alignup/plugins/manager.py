"""The exchange: device plugins register here, are listened to, and are called.

    async with Exchange(directory, listener) as exchange:
        ids = await exchange.preferred(ask)
        grant = await exchange.allocate("example.com/gpu", ids)
        await exchange.pre_start("example.com/gpu", ids)

Whoever keeps the books of devices is the *listener*. Each plugin has a connection and tasks of its own, so one that is
slow, or never answers, holds up nobody but those who wait for it.
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

EXPIRY_INTERVAL = 10.0  #: seconds between two looks for resources to be given up

_LOG = logging.getLogger(__name__)


class DevicePluginManager:
    """Open as long as it is entered."""

    def __init__(
        self,
        directory: Path,
        listener: DeviceListener,
        *,
        deadlines: PluginTimeouts | None = None,
        now: Clock = time.monotonic,
    ) -> None:
        self.tally = PluginMetrics()
        self._directory = directory
        self._deadlines = deadlines or PluginTimeouts()
        self._teller = ChangeNotifier(listener, view=self.view)
        self._roster = EndpointStore(now=now, changed=self._teller.changed, grace=self._deadlines.comeback)
        self._watching: dict[Endpoint, asyncio.Task[None]] = {}
        self._retiring: dict[Endpoint, asyncio.Task[None]] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen for plugins; ``ListenError`` where that cannot be."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._teller.close)
            stack.push_async_callback(self._hang_up)
            sweeping = asyncio.create_task(self._sweep(), name="give up resources")
            stack.callback(sweeping.cancel)
            await stack.enter_async_context(serve_registry(self._directory, connect=self._connect, tally=self.tally))
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up; the listener is not told, since the plugins are as healthy as before."""
        await self._open.aclose()

    def expect(self, resources: Iterable[str]) -> None:
        """After a restart: these were served before, and are given up if nobody serves them in time.

        To be called when the exchange is open.
        """
        self._roster.expect(resources)

    def view(self, resource: str) -> ResourceStatus:
        """What is known of a resource."""
        return self._roster.view(resource)

    def capacity(self) -> Capacity:
        """How many devices there are of each resource, as a node's status has it."""
        return self._roster.capacity()

    async def settled(self) -> None:
        """Return when the listener knows all that plugins have said until now."""
        await self._teller.settled()

    async def preferred(self, ask: PreferenceRequest) -> tuple[str, ...]:
        """Which devices the plugin would have taken; nothing when it does not want to be asked."""
        return await self._find(ask.resource).preferred(ask)

    async def allocate(self, resource: str, ids: Sequence[str]) -> AllocateResponse:
        """Have devices prepared for a container."""
        start = time.perf_counter()
        try:
            endpoint = self._roster.primary(resource)
            if endpoint is None:
                raise PluginError(f"unknown Device Plugin {resource}")
            return await endpoint.allocate(ids)
        finally:
            self.tally.allocated(resource, time.perf_counter() - start)

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """A container with these devices starts; its plugin is told if it wants to know, and has to be there then."""
        if not self._roster.told_of_starts(resource):
            return
        endpoint = self._find(resource)
        try:
            await endpoint.pre_start(ids)
        except PluginError as error:
            raise PluginError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _find(self, resource: str) -> Endpoint:
        endpoint = self._roster.primary(resource)
        if endpoint is None:
            raise PluginError(f"endpoint not found in cache for a registered resource: {resource}")
        return endpoint

    async def _connect(self, resource: str, socket: Path) -> None:
        """A plugin registers."""
        endpoint = await Endpoint.dial(resource, socket, deadlines=self._deadlines)
        replaced = self._roster.connect(endpoint)
        self._watching[endpoint] = asyncio.create_task(self._watch(endpoint), name=f"watch {endpoint}")
        _LOG.info("device plugin of %s is connected", endpoint)
        if replaced is not None:
            self._retire(replaced)

    def _retire(self, endpoint: Endpoint) -> None:
        """Listen to an earlier connection no more, and close it when the calls under way are done."""
        self._watching.pop(endpoint).cancel()
        task = asyncio.create_task(endpoint.close(grace=self._deadlines.allocate), name=f"close {endpoint}")
        self._retiring[endpoint] = task
        task.add_done_callback(lambda _: self._retiring.pop(endpoint))

    async def _watch(self, endpoint: Endpoint) -> None:
        """Hear what devices a plugin has until it stops telling."""
        why = "its list of devices ended"
        try:
            async for devices in endpoint.watch():
                self._roster.list(endpoint, devices)
        except PluginError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - whatever one plugin can do is the end of that one alone
            why = f"a fault of alignup: {type(error).__name__}: {error}"
        if self._roster.connected(endpoint):
            _LOG.warning("device plugin of %s is gone: %s", endpoint, why)
            self._roster.disconnect(endpoint)
        del self._watching[endpoint]
        await endpoint.close()

    async def _hang_up(self) -> None:
        """End every connection."""
        tasks = self._watching | self._retiring
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for endpoint in tasks:
            await endpoint.close()

    async def _sweep(self) -> None:
        """Give up resources in time, also when nobody asks for the capacity."""
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL)
            for resource in self._roster.expire():
                _LOG.warning("no device plugin of %s came back in time: it is given up", resource)
