"""Who serves which resource, and what was last said of its devices.

A plugin may serve a resource at several sockets at once, as while it is replaced by a newer version. The one that
connected last is called; each list of devices replaces the whole list, whoever sends it. When the last one goes, its
devices are all unhealthy, and after a grace period the resource is given up.

Nothing is waited for here: whoever keeps a roster tells it what happened, and hears which resource has changed.

One that registers again at the same socket takes the place of its earlier connection. The kubelet refuses it, forgets
the earlier one at the same time, and takes neither until it is started again (``docs/why/differences.md``).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.plugins.endpoint import Endpoint

Clock = Callable[[], float]


class ResourceState(StrEnum):
    """How a resource stands."""

    SERVED = "served"  #: a plugin is there and has listed its devices
    STOPPED = "stopped"  #: its plugin is gone, or is back and has not listed its devices again
    GONE = "gone"  #: and was not back in time; or nobody ever heard of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceStatus:
    """What is known of a resource."""

    state: ResourceState
    devices: tuple[Device, ...] | None = None  #: as last listed, all unhealthy once stopped; ``None``: never listed
    preferred_allocation: bool = False  #: whether the plugin wants to be asked which devices go well together


UNKNOWN_RESOURCE = ResourceStatus(state=ResourceState.GONE)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many devices there are, by resource, as a node's status has it."""

    capacity: Mapping[str, int]  #: all
    allocatable: Mapping[str, int]  #: healthy ones
    deleted: tuple[str, ...]  #: resources given up just now


@dataclass(slots=True)
class _Entry:
    """One resource."""

    endpoints: dict[Path, Endpoint] = field(default_factory=dict)  #: connected, the one that is called last
    devices: tuple[Device, ...] | None = None
    listed: bool = False  #: whether somebody who is connected said so
    expected: bool = False  #: whether it was there before a restart
    stopped_at: float | None = None  #: since when nobody serves it; ``None``: somebody does
    last: str = ""  #: who served it then
    told_of_starts: bool = False  #: whether who served it last wants to know when containers start


class EndpointStore:
    """All resources; *changed* hears the name of one whose :meth:`view` is another than before."""

    def __init__(self, *, now: Clock, changed: Callable[[str], None], grace: float) -> None:
        self._now = now
        self._changed = changed
        self._grace = grace
        self._entries: dict[str, _Entry] = {}

    def expect(self, resources: Iterable[str]) -> None:
        """After a restart: plugins of these were there before, and have the grace period to come back."""
        for resource in resources:
            entry = self._entries.setdefault(resource, _Entry())
            entry.expected = True
            if not entry.endpoints and entry.stopped_at is None:
                entry.stopped_at = self._now()
                self._changed(resource)

    def connect(self, endpoint: Endpoint) -> Endpoint | None:
        """A plugin is connected, and the one to call from now on; its earlier connection, if any, is to be closed."""
        entry = self._entries.setdefault(endpoint.resource, _Entry())
        before = self.view(endpoint.resource)
        replaced = entry.endpoints.pop(endpoint.socket, None)
        entry.endpoints[endpoint.socket] = endpoint
        entry.told_of_starts = endpoint.options.pre_start
        entry.stopped_at = None
        self._tell(endpoint.resource, before)
        return replaced

    def list(self, endpoint: Endpoint, devices: tuple[Device, ...]) -> None:
        """A plugin says which devices there are; one that is not connected any more is not heard."""
        if self.connected(endpoint):
            before = self.view(endpoint.resource)
            entry = self._entries[endpoint.resource]
            entry.devices, entry.listed = devices, True
            self._tell(endpoint.resource, before)

    def disconnect(self, endpoint: Endpoint) -> None:
        """A plugin is gone."""
        if not self.connected(endpoint):
            return
        entry = self._entries[endpoint.resource]
        before = self.view(endpoint.resource)
        del entry.endpoints[endpoint.socket]
        if not entry.endpoints:
            self._stop(entry, str(endpoint))
        if entry.devices is None and not entry.endpoints and not entry.expected:
            del self._entries[endpoint.resource]  # it came and went without a word: nobody knows the resource
        else:
            self._tell(endpoint.resource, before)

    def connected(self, endpoint: Endpoint) -> bool:
        """Whether this very connection is in use."""
        entry = self._entries.get(endpoint.resource)
        return entry is not None and entry.endpoints.get(endpoint.socket) is endpoint

    def primary(self, resource: str) -> Endpoint | None:
        """Whom to call; ``None`` when nobody ever served the resource, ``PluginError`` when nobody does any more."""
        entry = self._entries.get(resource)
        if entry is None:
            return None
        if not entry.endpoints:
            raise PluginError(f"endpoint {entry.last or resource} has been stopped")
        return next(reversed(entry.endpoints.values()))

    def told_of_starts(self, resource: str) -> bool:
        """Whether somebody has to be told that a container starts: not when who is away never wanted to know.

        What a plugin wanted that has not come back since a restart is not known, and then nobody is told.
        """
        entry = self._entries.get(resource)
        return entry is None or entry.told_of_starts

    def view(self, resource: str) -> ResourceStatus:
        """What is known of a resource; it is gone when nothing is."""
        entry = self._entries.get(resource)
        if entry is None:
            return UNKNOWN_RESOURCE
        if not entry.listed:
            return ResourceStatus(state=ResourceState.STOPPED, devices=entry.devices)
        primary = next(reversed(entry.endpoints.values()))
        return ResourceStatus(
            state=ResourceState.SERVED,
            devices=entry.devices,
            preferred_allocation=primary.options.preferred_allocation,
        )

    def capacity(self) -> Capacity:
        """How many devices there are now; resources whose grace period is over are given up."""
        deleted = self.expire()
        listed = {
            name: entry.devices or ()
            for name, entry in sorted(self._entries.items())
            if entry.expected or entry.devices is not None
        }
        return Capacity(
            capacity={name: len(devices) for name, devices in listed.items()},
            allocatable={name: sum(device.healthy for device in devices) for name, devices in listed.items()},
            deleted=deleted,
        )

    def expire(self) -> tuple[str, ...]:
        """Give up resources whose grace period is over; their names."""
        now = self._now()
        late = [
            name
            for name, entry in self._entries.items()
            if entry.stopped_at is not None and now - entry.stopped_at > self._grace
        ]
        for name in late:
            del self._entries[name]
            self._changed(name)
        return tuple(sorted(late))

    def _stop(self, entry: _Entry, last: str) -> None:
        """Nobody serves a resource any more."""
        entry.stopped_at, entry.last, entry.listed = self._now(), last, False
        if entry.devices is not None:
            entry.devices = all_unhealthy(entry.devices)

    def _tell(self, resource: str, before: ResourceStatus) -> None:
        if self.view(resource) != before:
            self._changed(resource)


def all_unhealthy(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The same devices, none of them healthy."""
    return tuple(replace(device, healthy=False) for device in devices)
