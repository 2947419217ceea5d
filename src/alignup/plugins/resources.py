"""The resources that plugins serve, the devices they listed last, and a listener that is notified of changes.

A plugin may serve a resource on several sockets at once, for example during an upgrade. The endpoint that connected
last gets the calls; a device list from any endpoint replaces the whole list. When the last endpoint disconnects, all
devices become unhealthy, and after a grace period the resource is removed.

A plugin that registers again on the same socket replaces its earlier connection. The kubelet rejects the second
registration, drops the first connection as well, and needs a restart to recover (``docs/why/differences.md``).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.plugins.endpoint import Endpoint

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]


class ResourceState(StrEnum):
    SERVED = "served"  #: a plugin is connected and has listed its devices
    STOPPED = "stopped"  #: no plugin is connected, or it has not listed its devices yet
    GONE = "gone"  #: no plugin came back in time, or the resource was never registered


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    state: ResourceState
    devices: tuple[Device, ...] | None = None  #: as last listed, all unhealthy once stopped; ``None``: never listed
    preferred_allocation: bool = False  #: whether the plugin implements GetPreferredAllocation


UNKNOWN_RESOURCE = ResourceStatus(state=ResourceState.GONE)


@dataclass(slots=True)
class _Entry:
    endpoints: dict[Path, Endpoint] = field(default_factory=dict)  #: by socket; the last one gets the calls
    devices: tuple[Device, ...] | None = None
    listed: bool = False  #: whether a connected plugin has sent its devices
    expected: bool = False  #: whether the resource was served before a restart
    stopped_at: float | None = None  #: ``None`` while an endpoint is connected
    last_endpoint: str = ""  #: for the error after it disconnected
    pre_start: bool = False  #: whether the last plugin requires PreStartContainer


@dataclass(slots=True, kw_only=True)
class EndpointStore:
    """All resources; calls *changed* with a resource whenever its :meth:`status` changes."""

    now: Clock
    changed: Callable[[str], None]
    grace: float  #: seconds
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def expect(self, resources: Iterable[str]) -> None:
        """After a restart: give the plugins of these *resources* the grace period to register again."""
        for resource in resources:
            entry = self._entries.setdefault(resource, _Entry())
            entry.expected = True
            if not entry.endpoints and entry.stopped_at is None:
                entry.stopped_at = self.now()
                self.changed(resource)

    def connect(self, endpoint: Endpoint) -> Endpoint | None:
        """Add *endpoint* as the one to call; return the connection that it replaces, for the caller to close."""
        entry = self._entries.setdefault(endpoint.resource, _Entry())
        before = self.status(endpoint.resource)
        replaced = entry.endpoints.pop(endpoint.socket, None)
        entry.endpoints[endpoint.socket] = endpoint
        entry.pre_start = endpoint.options.pre_start_required
        entry.stopped_at = None
        self._notify(endpoint.resource, before)
        return replaced

    def list(self, endpoint: Endpoint, devices: tuple[Device, ...]) -> None:
        """Replace the devices of a resource; ignored if *endpoint* is no longer connected."""
        if self.is_connected(endpoint):
            before = self.status(endpoint.resource)
            entry = self._entries[endpoint.resource]
            entry.devices, entry.listed = devices, True
            self._notify(endpoint.resource, before)

    def disconnect(self, endpoint: Endpoint) -> None:
        if not self.is_connected(endpoint):
            return
        entry = self._entries[endpoint.resource]
        before = self.status(endpoint.resource)
        del entry.endpoints[endpoint.socket]
        if not entry.endpoints:
            entry.stopped_at, entry.last_endpoint, entry.listed = self.now(), str(endpoint), False
            if entry.devices is not None:
                entry.devices = all_unhealthy(entry.devices)
        if entry.devices is None and not entry.endpoints and not entry.expected:
            del self._entries[endpoint.resource]  # it never listed a device
        else:
            self._notify(endpoint.resource, before)

    def is_connected(self, endpoint: Endpoint) -> bool:
        """Whether this very connection is in use."""
        entry = self._entries.get(endpoint.resource)
        return entry is not None and entry.endpoints.get(endpoint.socket) is endpoint

    def primary(self, resource: str) -> Endpoint | None:
        """Return the endpoint to call; ``None`` for an unknown resource, ``PluginError`` if its plugin stopped."""
        entry = self._entries.get(resource)
        if entry is None:
            return None
        if not entry.endpoints:
            raise PluginError(f"endpoint {entry.last_endpoint or resource} has been stopped")
        return next(reversed(entry.endpoints.values()))

    def needs_pre_start(self, resource: str) -> bool:
        """Whether a container start must be announced, which fails while the plugin is stopped.

        False for a plugin that has not registered since a restart: its options are unknown.
        """
        entry = self._entries.get(resource)
        return entry is None or entry.pre_start

    def status(self, resource: str) -> ResourceStatus:
        entry = self._entries.get(resource)
        if entry is None:
            return UNKNOWN_RESOURCE
        if not entry.listed:
            return ResourceStatus(state=ResourceState.STOPPED, devices=entry.devices)
        options = next(reversed(entry.endpoints.values())).options
        preferred = options.get_preferred_allocation_available
        return ResourceStatus(state=ResourceState.SERVED, devices=entry.devices, preferred_allocation=preferred)

    def expire(self) -> tuple[str, ...]:
        """Remove resources whose grace period is over, and return their names."""
        oldest = self.now() - self.grace
        expired = [
            name for name, one in self._entries.items() if one.stopped_at is not None and one.stopped_at < oldest
        ]
        for name in expired:
            del self._entries[name]
            self.changed(name)
        return tuple(sorted(expired))

    def _notify(self, resource: str, before: ResourceStatus) -> None:
        if self.status(resource) != before:
            self.changed(resource)


def all_unhealthy(devices: Iterable[Device]) -> tuple[Device, ...]:
    return tuple(replace(device, healthy=False) for device in devices)


class DeviceListener(Protocol):
    """Receives device changes; an exception from a method makes the notifier retry."""

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """Replace all devices of *resource*."""

    async def plugin_stopped(self, resource: str, *, gone: bool) -> None:
        """Mark all devices of *resource* as unhealthy until they are listed again; remove them if it is *gone*."""


@dataclass(slots=True)
class ChangeNotifier:
    """Brings *listener* up to date with *status* whenever a resource changes.

    While the listener is busy, changes of a resource collapse into its latest status; other resources are not held up.
    A notification that fails is retried.
    """

    listener: DeviceListener
    status: Callable[[str], ResourceStatus]
    retry_delay: float = 1.0  #: seconds until a failed notification is retried
    _notified: dict[str, ResourceStatus] = field(default_factory=dict)  #: the last status the listener accepted
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  #: for each resource with pending changes

    def changed(self, resource: str) -> None:
        if resource not in self.tasks:
            self.tasks[resource] = asyncio.create_task(self._synchronize(resource), name=f"notify of {resource}")

    async def close(self) -> None:
        tasks = tuple(self.tasks.values())
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
            del self.tasks[resource]

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
