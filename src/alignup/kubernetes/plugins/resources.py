"""The resources that plugins serve, the devices they listed last, and a listener that is notified of changes.

A resource may be served on several sockets at once, for example while a plugin is upgraded. The endpoint that connected
last replaces the others as soon as it has listed its devices: its list is the list of the resource, and it gets the
calls. When it disconnects, the one before replaces it, with its own list. When no endpoint is left, all devices become
unhealthy, and after a grace period the resource is removed. In the kubelet, a list from any endpoint replaces the list,
and stays when that endpoint disconnects (``docs/why/differences.md``).

A plugin that registers again on the same socket replaces its earlier connection. The kubelet rejects the second
registration, drops the first connection as well, and needs a restart to recover.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import structlog

from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.kubernetes.plugins.endpoint import Endpoint
from alignup.tasks import cancel_tasks

_log = structlog.get_logger()

Clock = Callable[[], float]
DevicesListed = Callable[..., Awaitable[None]]  #: of a resource, its devices, and ``preferred_allocation=``
PluginStopped = Callable[..., Awaitable[None]]  #: of a resource, and whether it is ``gone=``


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
class _Connection:
    endpoint: Endpoint
    devices: tuple[Device, ...] | None = None  #: as last listed; ``None``: never

    def lists(self, ids: Iterable[str]) -> bool:
        return self.devices is not None and {device.id for device in self.devices}.issuperset(ids)


@dataclass(slots=True)
class _Entry:
    connections: dict[Path, _Connection] = field(default_factory=dict)  #: by socket, in order of registration
    devices: tuple[Device, ...] | None = None  #: of the serving endpoint, or of the last one, all unhealthy
    expected: bool = False  #: whether the resource was served before a restart
    stopped_at: float | None = None  #: ``None`` while an endpoint is connected
    last_endpoint: str = ""  #: for the error after it disconnected
    pre_start: bool = False  #: whether the last plugin requires PreStartContainer

    @property
    def serving(self) -> _Connection | None:
        """The latest connection that has listed its devices."""
        latest = reversed(self.connections.values())
        return next((connection for connection in latest if connection.devices is not None), None)

    @property
    def primary(self) -> _Connection | None:
        return self.serving or next(reversed(self.connections.values()), None)

    def update(self) -> None:
        """Take over devices and options of the serving endpoint after a change of the connections."""
        if (served_endpoint := self.serving) is not None:
            self.devices = served_endpoint.devices
        elif self.devices is not None:
            self.devices = all_unhealthy(self.devices)
        if (primary := self.primary) is not None:
            self.pre_start = primary.endpoint.options.pre_start_required


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
            if not entry.connections and entry.stopped_at is None:
                entry.stopped_at = self.now()
                self.changed(resource)

    def connect(self, endpoint: Endpoint) -> Endpoint | None:
        """Add *endpoint*; return the connection at the same socket that it replaces, for the caller to close.

        The devices of a connection that is replaced stay until the next list.
        """
        entry = self._entries.setdefault(endpoint.resource, _Entry())
        old_status = self.status(endpoint.resource)
        replaced_connection = entry.connections.pop(endpoint.socket, None)
        entry.connections[endpoint.socket] = _Connection(
            endpoint, replaced_connection.devices if replaced_connection else None
        )
        entry.stopped_at = None
        entry.update()
        self._notify(endpoint.resource, old_status)
        return replaced_connection.endpoint if replaced_connection else None

    def list(self, endpoint: Endpoint, devices: tuple[Device, ...]) -> None:
        """Replace the devices of an endpoint; ignored if it is no longer connected."""
        if self.is_connected(endpoint):
            old_status = self.status(endpoint.resource)
            entry = self._entries[endpoint.resource]
            entry.connections[endpoint.socket].devices = devices
            entry.update()
            self._notify(endpoint.resource, old_status)

    def disconnect(self, endpoint: Endpoint) -> None:
        if not self.is_connected(endpoint):
            return
        entry = self._entries[endpoint.resource]
        old_status = self.status(endpoint.resource)
        del entry.connections[endpoint.socket]
        entry.update()
        if not entry.connections:
            entry.stopped_at = self.now()
            entry.last_endpoint = str(endpoint)
        if entry.devices is None and not entry.connections and not entry.expected:
            del self._entries[endpoint.resource]  # it never listed a device
        else:
            self._notify(endpoint.resource, old_status)

    def is_connected(self, endpoint: Endpoint) -> bool:
        """Whether this very connection is in use."""
        entry = self._entries.get(endpoint.resource)
        connection = entry.connections.get(endpoint.socket) if entry is not None else None
        return connection is not None and connection.endpoint is endpoint

    def primary(self, resource: str, ids: Iterable[str] = ()) -> Endpoint | None:
        """Return the endpoint to call about devices with these *ids*: the latest one that lists all of them.

        If there is none, it is the endpoint that serves the resource. ``None`` for an unknown resource; raise
        ``PluginError`` if its plugin stopped.
        """
        entry = self._entries.get(resource)
        if entry is None:
            return None
        if entry.primary is None:
            raise PluginError(f"endpoint {entry.last_endpoint or resource} has been stopped")
        ids = tuple(ids)
        latest = reversed(entry.connections.values())
        listing = (connection for connection in latest if ids and connection.lists(ids))
        return next(listing, entry.primary).endpoint

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
        if (served_endpoint := entry.serving) is None:
            return ResourceStatus(state=ResourceState.STOPPED, devices=entry.devices)
        has_preference = served_endpoint.endpoint.options.get_preferred_allocation_available
        return ResourceStatus(state=ResourceState.SERVED, devices=entry.devices, preferred_allocation=has_preference)

    def expire(self) -> tuple[str, ...]:
        """Remove resources whose grace period is over, and return their names."""
        oldest = self.now() - self.grace
        stop_times = {name: entry.stopped_at for name, entry in self._entries.items()}
        expired_names = [name for name, at in stop_times.items() if at is not None and at < oldest]
        for name in expired_names:
            del self._entries[name]
            self.changed(name)
        return tuple(sorted(expired_names))

    def _notify(self, resource: str, old_status: ResourceStatus) -> None:
        if self.status(resource) != old_status:
            self.changed(resource)


def all_unhealthy(devices: Iterable[Device]) -> tuple[Device, ...]:
    return tuple(replace(device, healthy=False) for device in devices)


@dataclass(slots=True)
class ChangeNotifier:
    """Brings listeners up to date with *status* whenever a resource changes.

    ``devices_listed(resource, devices, preferred_allocation=…)`` has to replace all devices of a resource.
    ``plugin_stopped(resource, gone=…)`` has to mark them as unhealthy until they are listed again, or to remove them if
    the plugin is gone. While a listener is busy, changes of a resource collapse into its latest status; other resources
    are not held up. A notification that raises an exception is retried.
    """

    devices_listed: DevicesListed
    plugin_stopped: PluginStopped
    status: Callable[[str], ResourceStatus]
    retry_delay: float = 1.0  #: seconds until a failed notification is retried
    _notified: dict[str, ResourceStatus] = field(default_factory=dict)  #: the last status that the listeners accepted
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  #: for each resource with pending changes

    def changed(self, resource: str) -> None:
        if resource not in self.tasks:
            self.tasks[resource] = asyncio.create_task(self._synchronize(resource), name=f"notify of {resource}")

    async def close(self) -> None:
        tasks = tuple(self.tasks.values())
        await cancel_tasks(tasks)

    async def _synchronize(self, resource: str) -> None:
        try:
            while (status := self.status(resource)) != self._notified.get(resource, UNKNOWN_RESOURCE):
                try:
                    await self._notify(resource, status)
                except Exception as error:  # noqa: BLE001 - the listener must see every change in the end
                    _log.warning("device update failed", resource=resource, error=str(error))
                    await asyncio.sleep(self.retry_delay)
        finally:
            del self.tasks[resource]

    async def _notify(self, resource: str, status: ResourceStatus) -> None:
        """Bring the listener to *status* in steps, recording each one, so that a retry continues after the last."""
        last_status = self._notified.get(resource, UNKNOWN_RESOURCE)
        if status.state is ResourceState.SERVED:
            differs = last_status != status
        else:  # plugin_stopped alone already implies that devices are unhealthy
            differs = last_status.devices is None or all_unhealthy(last_status.devices) != status.devices
        if status.devices is not None and differs:
            has_preference = status.preferred_allocation
            await self.devices_listed(resource, status.devices, preferred_allocation=has_preference)
            last_status = self._notified[resource] = ResourceStatus(
                state=ResourceState.SERVED, devices=status.devices, preferred_allocation=has_preference
            )
        if status.state is ResourceState.GONE:
            await self.plugin_stopped(resource, gone=True)
            self._notified.pop(resource, None)
            return
        if status.state is ResourceState.STOPPED and last_status.state is ResourceState.SERVED:
            await self.plugin_stopped(resource, gone=False)
        self._notified[resource] = status
