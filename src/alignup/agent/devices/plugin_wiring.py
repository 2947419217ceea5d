"""Connects the device plugin manager and the PodResources API to the admission queue."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.metrics import Metrics
from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.align.machine import Device
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.pod_resources import serve_pod_resources


@dataclass(frozen=True, slots=True)
class PluginEvents:
    """The listener of device plugins, which passes changes of the devices to the admission queue.

    It implements ``kubernetes.plugins.resources.DeviceListener``.
    """

    queue: AdmissionQueue

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        await self.queue.run(Transaction.set_devices, resource, devices, preferred_allocation=preferred_allocation)

    async def plugin_stopped(self, resource: str, *, gone: bool) -> None:
        await self.queue.run(Transaction.plugin_stopped, resource, gone=gone)


@asynccontextmanager
async def serve_plugins(
    queue: AdmissionQueue, *, directory: Path, pod_resources: Path, metrics: Metrics, log: FilteringBoundLogger
) -> AsyncIterator[DeviceAllocator]:
    """Serve device plugins in *directory* and the PodResources API at *pod_resources*; raise ``ListenError``.

    A read-only queue accepts no plugins.
    """
    manager = DevicePluginManager(directory, PluginEvents(queue), metrics=metrics)
    allocator = DeviceAllocator(queue, manager, log=log)
    async with AsyncExitStack() as stack:
        if not queue.read_only:
            await stack.enter_async_context(manager)
            manager.expect(expected_resources(queue))
        await stack.enter_async_context(serve_pod_resources(pod_resources, lambda: queue.settled_host, metrics=metrics))
        stack.push_async_callback(allocator.close)
        yield allocator


def expected_resources(queue: AdmissionQueue) -> tuple[str, ...]:
    """Return the resources whose plugins were registered before a restart."""
    known = queue.host.ledger.devices.inventories
    return tuple(name for name in sorted(queue.state.plugins) if name in known and known[name].registered)
