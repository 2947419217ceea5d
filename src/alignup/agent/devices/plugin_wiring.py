"""Connects the device plugin manager and the PodResources API to the admission queue."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from alignup.agent.devices.allocator import DeviceAllocator
from alignup.agent.metrics import Metrics
from alignup.agent.queue import AdmissionQueue
from alignup.agent.transaction import Transaction
from alignup.align.machine import Device
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.pod_resources import serve_pod_resources


def plugin_manager(queue: AdmissionQueue, directory: Path, **options: Any) -> DevicePluginManager:  # noqa: ANN401
    """Return a manager of the device plugins in *directory* that passes changes of their devices to the queue."""

    async def devices_listed(resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        await queue.run(Transaction.set_devices, resource, devices, preferred_allocation=preferred_allocation)

    async def plugin_stopped(resource: str, *, gone: bool) -> None:
        await queue.run(Transaction.plugin_stopped, resource, gone=gone)

    return DevicePluginManager(directory, devices_listed, plugin_stopped, **options)


@asynccontextmanager
async def serve_plugins(
    queue: AdmissionQueue, *, directory: Path, pod_resources: Path, metrics: Metrics, log: FilteringBoundLogger
) -> AsyncIterator[DeviceAllocator]:
    """Serve device plugins in *directory* and the PodResources API at *pod_resources*; raise ``ListenError``.

    A read-only queue accepts no plugins.
    """
    count_registration, observe_allocation = metrics.count_registration, metrics.observe_allocation
    manager = plugin_manager(
        queue, directory, count_registration=count_registration, observe_allocation=observe_allocation
    )
    allocator = DeviceAllocator(queue, manager, log=log)
    async with AsyncExitStack() as stack:
        if not queue.read_only:
            await stack.enter_async_context(manager)
            manager.expect(expected_resources(queue))
        served = serve_pod_resources(
            pod_resources,
            lambda: queue.settled_host,
            count_request=metrics.count_request,
            count_error=metrics.count_error,
        )
        await stack.enter_async_context(served)
        stack.push_async_callback(allocator.close)
        yield allocator


def expected_resources(queue: AdmissionQueue) -> tuple[str, ...]:
    """Return the resources whose plugins were registered before a restart."""
    known = queue.host.ledger.devices.inventories
    return tuple(name for name in sorted(queue.state.plugins) if name in known and known[name].registered)
