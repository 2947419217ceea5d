"""Telling somebody what becomes of the devices of each resource, at the pace of whoever listens.

Each resource is told of by itself: however often a plugin changes its mind while the listener is busy, the listener
hears the newest next, and hears of other resources meanwhile. What it could not take in is told again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from alignup.align.machine import Device
from alignup.plugins.endpoint_store import UNKNOWN_RESOURCE, ResourceState, ResourceStatus, all_unhealthy

RETRY_DELAY = 1.0  #: seconds until what the listener could not take in is told again

_LOG = logging.getLogger(__name__)


class DeviceListener(Protocol):
    """Whoever keeps the books of devices; an error of it means that it is to be told again."""

    async def announced(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """These are the devices there are, in place of all that was said before."""
        ...

    async def stopped(self, resource: str) -> None:
        """The plugin is gone: none of the devices announced last is healthy until it comes back."""
        ...

    async def gone(self, resource: str) -> None:
        """The plugin did not come back in time: the resource is given up."""
        ...


class ChangeNotifier:
    """Tells *listener* what *view* has to say of a resource, whenever that has changed."""

    def __init__(
        self, listener: DeviceListener, *, view: Callable[[str], ResourceStatus], again: float = RETRY_DELAY
    ) -> None:
        self._listener = listener
        self._view = view
        self._again = again
        self._told: dict[str, ResourceStatus] = {}  #: what the listener knows
        self._tasks: dict[str, asyncio.Task[None]] = {}  #: one for each resource there is something to tell of

    def changed(self, resource: str) -> None:
        """There is something new to tell of a resource."""
        if resource not in self._tasks:
            self._tasks[resource] = asyncio.create_task(self._keep_up(resource), name=f"tell of {resource}")

    async def settled(self) -> None:
        """Return when the listener knows everything."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Tell nothing more."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_up(self, resource: str) -> None:
        """Tell until there is nothing new."""
        try:
            while (view := self._view(resource)) != self._told.get(resource, UNKNOWN_RESOURCE):
                try:
                    await self._tell(resource, view)
                except Exception as error:  # noqa: BLE001 - whatever it is, the listener has to hear it in the end
                    _LOG.warning("the devices of %s could not be taken in: %s", resource, error)
                    await asyncio.sleep(self._again)
        finally:
            del self._tasks[resource]

    async def _tell(self, resource: str, view: ResourceStatus) -> None:
        """Bring the listener from what it was told to *view*, step by step, so that it can go on at each."""
        told = self._told.get(resource, UNKNOWN_RESOURCE)
        if view.devices is not None and _news(told, view):
            await self._listener.announced(resource, view.devices, preferred_allocation=view.preferred_allocation)
            told = self._told[resource] = ResourceStatus(
                state=ResourceState.SERVED, devices=view.devices, preferred_allocation=view.preferred_allocation
            )
        if view.state is ResourceState.GONE:
            await self._listener.gone(resource)
            self._told.pop(resource, None)
            return
        if view.state is ResourceState.STOPPED and told.state is ResourceState.SERVED:
            await self._listener.stopped(resource)
        self._told[resource] = view


def _news(told: ResourceStatus, view: ResourceStatus) -> bool:
    """Whether the devices are others than were told; that they are unhealthy once stopped goes without saying."""
    if view.state is ResourceState.SERVED:
        return told != view
    return told.devices is None or all_unhealthy(told.devices) != view.devices
