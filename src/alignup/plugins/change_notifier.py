"""Notify a listener of device changes, at the listener's pace.

Each resource has its own task: while the listener is busy, changes of a resource collapse into its latest status, and
other resources are not held up. A notification that fails is retried.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from alignup.align.machine import Device
from alignup.plugins.endpoint_store import UNKNOWN_RESOURCE, ResourceState, ResourceStatus, all_unhealthy

_LOG = logging.getLogger(__name__)


class DeviceListener(Protocol):
    """Receives device changes; an exception from a method makes the notifier retry."""

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """Replace all devices of *resource*."""

    async def plugin_stopped(self, resource: str, *, gone: bool) -> None:
        """Mark all devices of *resource* as unhealthy until they are listed again; remove them if it is *gone*."""


@dataclass(slots=True)
class ChangeNotifier:
    """Brings *listener* up to date with *status* whenever a resource changes."""

    listener: DeviceListener
    status: Callable[[str], ResourceStatus]
    retry_delay: float = 1.0  #: seconds until a failed notification is retried
    _notified: dict[str, ResourceStatus] = field(default_factory=dict)  #: the last status the listener accepted
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  #: for each resource with pending changes

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
            while (status := self.status(resource)) != self._notified.get(resource, UNKNOWN_RESOURCE):
                try:
                    await self._notify(resource, status)
                except Exception as error:  # noqa: BLE001 - the listener must see every change in the end
                    _LOG.warning("device update failed: resource=%s error=%s", resource, error)
                    await asyncio.sleep(self.retry_delay)
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
            await self.listener.devices_listed(resource, status.devices, preferred_allocation=preferred)
            notified = self._notified[resource] = ResourceStatus(
                state=ResourceState.SERVED, devices=status.devices, preferred_allocation=preferred
            )
        if status.state is ResourceState.GONE:
            await self.listener.plugin_stopped(resource, gone=True)
            self._notified.pop(resource, None)
            return
        if status.state is ResourceState.STOPPED and notified.state is ResourceState.SERVED:
            await self.listener.plugin_stopped(resource, gone=False)
        self._notified[resource] = status
