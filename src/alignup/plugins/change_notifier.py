"""Notify a listener of device changes, at the listener's pace.

Each resource has its own task: while the listener is busy, changes of a resource collapse into its latest status, and
other resources are not held up. A notification that fails is retried.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from alignup.align.machine import Device
from alignup.plugins.endpoint_store import UNKNOWN_RESOURCE, ResourceState, ResourceStatus, all_unhealthy

RETRY_DELAY = 1.0  #: seconds until a failed notification is retried

_LOG = logging.getLogger(__name__)


class DeviceListener(Protocol):
    """Receives device changes; an exception from a method makes the notifier retry."""

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """Replace all devices of *resource*."""

    async def plugin_stopped(self, resource: str) -> None:
        """Mark all devices of *resource* as unhealthy until the plugin lists them again."""

    async def resource_removed(self, resource: str) -> None:
        """Remove *resource*: its plugin did not come back in time."""


class ChangeNotifier:
    """Brings *listener* up to date with *status* whenever a resource changes."""

    def __init__(
        self, listener: DeviceListener, *, status: Callable[[str], ResourceStatus], retry_delay: float = RETRY_DELAY
    ) -> None:
        self._listener = listener
        self._status = status
        self._retry_delay = retry_delay
        self._notified: dict[str, ResourceStatus] = {}  #: the last status the listener accepted
        self._tasks: dict[str, asyncio.Task[None]] = {}  #: one for each resource with pending changes

    def changed(self, resource: str) -> None:
        if resource not in self._tasks:
            self._tasks[resource] = asyncio.create_task(self._synchronize(resource), name=f"notify of {resource}")

    async def settled(self) -> None:
        """Return once the listener is up to date."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _synchronize(self, resource: str) -> None:
        try:
            while (status := self._status(resource)) != self._notified.get(resource, UNKNOWN_RESOURCE):
                try:
                    await self._notify(resource, status)
                except Exception as error:  # noqa: BLE001 - the listener must see every change in the end
                    _LOG.warning("device update failed: resource=%s error=%s", resource, error)
                    await asyncio.sleep(self._retry_delay)
        finally:
            del self._tasks[resource]

    async def _notify(self, resource: str, status: ResourceStatus) -> None:
        """Bring the listener to *status* in steps, recording each one, so that a retry continues after the last."""
        notified = self._notified.get(resource, UNKNOWN_RESOURCE)
        if status.state is ResourceState.SERVED:
            differs = notified != status
        else:  # plugin_stopped alone already implies that devices are unhealthy
            differs = notified.devices is None or all_unhealthy(notified.devices) != status.devices
        if status.devices is not None and differs:
            preferred = status.preferred_allocation
            await self._listener.devices_listed(resource, status.devices, preferred_allocation=preferred)
            notified = self._notified[resource] = ResourceStatus(
                state=ResourceState.SERVED, devices=status.devices, preferred_allocation=preferred
            )
        if status.state is ResourceState.GONE:
            await self._listener.resource_removed(resource)
            self._notified.pop(resource, None)
            return
        if status.state is ResourceState.STOPPED and notified.state is ResourceState.SERVED:
            await self._listener.plugin_stopped(resource)
        self._notified[resource] = status
