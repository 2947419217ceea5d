"""A listener for tests: it remembers what it heard, and can be waited for."""

import asyncio
from collections.abc import Callable

from alignup.align.machine import Device


class Ears:
    """Whoever keeps the books of devices, in the simplest form."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []  #: kind and resource
        self.devices: dict[str, tuple[Device, ...]] = {}  #: as announced last, unhealthy once stopped
        self.preferred: dict[str, bool] = {}
        self._news = asyncio.Event()

    async def announced(self, resource, devices, *, preferred_allocation):
        self.devices[resource], self.preferred[resource] = devices, preferred_allocation
        self._hear("announced", resource)

    async def stopped(self, resource):
        assert resource in self.devices, f"{resource} was never announced"
        self.devices[resource] = tuple(
            Device(one.resource, one.id, one.nodes, healthy=False) for one in self.devices[resource]
        )
        self._hear("stopped", resource)

    async def gone(self, resource):
        self.devices.pop(resource, None)
        self._hear("gone", resource)

    def healthy(self, resource: str) -> list[str]:
        return [device.id for device in self.devices.get(resource, ()) if device.healthy]

    async def until(self, true: Callable[[], object], *, seconds: float = 5.0) -> None:
        """Return when *true* is, which is looked at whenever something is heard."""
        async with asyncio.timeout(seconds):
            while not true():
                self._news.clear()
                await self._news.wait()

    def _hear(self, kind: str, resource: str) -> None:
        self.heard.append((kind, resource))
        self._news.set()
