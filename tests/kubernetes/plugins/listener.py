"""A device listener for tests: it records its notifications and can be waited for."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alignup.align.machine import Device


class RecordingListener:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []  #: kind and resource
        self.devices: dict[str, tuple[Device, ...]] = {}  #: as last listed, unhealthy once stopped
        self.preferred: dict[str, bool] = {}
        self._notified = asyncio.Event()

    @property
    def callbacks(self):
        """Return the first arguments of a device plugin manager after its directory."""
        return self.devices_listed, self.plugin_stopped

    async def devices_listed(self, resource, devices, *, preferred_allocation):
        self.devices[resource], self.preferred[resource] = devices, preferred_allocation
        self._record("listed", resource)

    async def plugin_stopped(self, resource, *, gone):
        if gone:
            self.devices.pop(resource, None)
        else:
            assert resource in self.devices, f"{resource} was never listed"
            self.devices[resource] = tuple(replace(device, healthy=False) for device in self.devices[resource])
        self._record("removed" if gone else "stopped", resource)

    def healthy(self, resource: str) -> list[str]:
        return [device.id for device in self.devices.get(resource, ()) if device.healthy]

    async def until(self, condition: Callable[[], object], *, seconds: float = 60.0) -> None:
        """Return once *condition* holds, which is checked after every notification."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._notified.clear()
                await self._notified.wait()

    def _record(self, kind: str, resource: str) -> None:
        self.events.append((kind, resource))
        self._notified.set()


class RecordingMetrics:
    """Metrics that keep every value."""

    def __init__(self) -> None:
        self.registrations: list[str] = []
        self.allocations: list[str] = []
        self.requests: list[str] = []
        self.errors: list[str] = []

    def count_registration(self, resource):
        self.registrations.append(resource)

    def observe_allocation(self, resource, seconds):
        assert seconds > 0
        self.allocations.append(resource)

    def count_pod_resources(self, method, *, failed):
        (self.errors if failed else self.requests).append(method)

    @property
    def callbacks(self):
        """Return the keyword arguments of a device plugin manager."""
        return {"count_registration": self.count_registration, "observe_allocation": self.observe_allocation}
