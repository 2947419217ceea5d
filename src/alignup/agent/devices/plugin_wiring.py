"""The sockets of device plugins and of PodResources, and what comes and goes there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.queue import AdmissionQueue
from alignup.align.machine import Device
from alignup.plugins.manager import DevicePluginManager
from alignup.plugins.pod_resources import serve_pod_resources
from alignup.serve.metrics import Metrics
from alignup.serve.plugin_metrics import DevicePluginMetrics


class PluginEvents:
    """Hears what plugins say of their devices, and has the desk write it down."""

    def __init__(self, desk: AdmissionQueue) -> None:
        self._desk = desk

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """These are the devices there are."""
        await self._desk.announce(resource, devices, preferred_allocation=preferred_allocation)

    async def plugin_stopped(self, resource: str) -> None:
        """The plugin is gone."""
        await self._desk.stop(resource)

    async def resource_removed(self, resource: str) -> None:
        """And did not come back in time."""
        await self._desk.give_up(resource)


@asynccontextmanager
async def serve_plugins(
    desk: AdmissionQueue, *, directory: Path, lister: Path, metrics: Metrics, log: FilteringBoundLogger
) -> AsyncIterator[DeviceAllocator]:
    """Take device plugins in *directory*, and tell at *lister* who has what; ``ListenError`` where that cannot be.

    A desk at which nothing may be decided takes no plugins.
    """
    plugin_metrics = DevicePluginMetrics(metrics.registry)
    exchange = DevicePluginManager(directory, PluginEvents(desk), metrics=plugin_metrics)
    errands = DeviceAllocator(desk, exchange, log=log)
    async with AsyncExitStack() as stack:
        if not desk.barred:
            await stack.enter_async_context(exchange)
            exchange.expect(expected_resources(desk))
        await stack.enter_async_context(serve_pod_resources(lister, lambda: desk.settled, metrics=plugin_metrics))
        stack.push_async_callback(errands.close)
        yield errands


def expected_resources(desk: AdmissionQueue) -> tuple[str, ...]:
    """The resources whose plugins were there before a restart."""
    known = desk.host.ledger.devices.inventories
    return tuple(name for name in sorted(desk.standing.plugins) if name in known and known[name].registered)
