"""An admission queue with device plugins on real sockets, in one process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from alignup.agent.admission_queue import AdmissionQueue, SaveState
from alignup.agent.device_allocator import DeviceAllocator, expected_resources
from alignup.agent.state import AgentState, Clock
from alignup.agent.transaction import Transaction
from alignup.align.workload import Pod
from alignup.kubernetes.plugins.endpoint import PluginTimeouts
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.testing import Preference
from tests.agent.states import empty_state
from tests.align.hosts import GPU
from tests.deadlines import until, wait_for
from tests.kubernetes.plugins.pausable import PausablePlugin

DEVICES = "2@0,2@1"
GPUS = ("--devices", DEVICES)  #: options of a plugin process
PATIENT = PluginTimeouts()


@dataclass(frozen=True)
class PluginRig:
    """The parts of an agent without HTTP."""

    queue: AdmissionQueue
    manager: DevicePluginManager
    allocator: DeviceAllocator
    directory: Path

    def free(self, resource: str = GPU) -> int:
        """The number of free devices."""
        return self.queue.state.host.ledger.devices.free[resource].bit_count()

    def healthy(self, resource: str = GPU) -> int:
        inventory = self.queue.state.host.ledger.devices.inventories.get(resource)
        return inventory.healthy.bit_count() if inventory and resource in self.queue.state.plugins else 0

    def devices(self, uid: str, container: str = "app") -> dict[str, tuple[str, ...]]:
        return dict(self.queue.state.host.ledger.devices.holds(uid, container))

    async def admit(self, pod: Pod) -> Any:
        """What became of a pod."""
        return await self.allocator.admit(pod)

    def pod_view(self, uid: str) -> Any:
        """A pod that has to be known."""
        return self.queue.state.pod_view(uid)

    def status(self, uid: str) -> str:
        entry = self.queue.state.pod_view(uid)
        return str(entry.status) if entry else ""

    @asynccontextmanager
    async def plugin(
        self, devices: str = DEVICES, *, resource: str = GPU, preference: Preference = Preference.NONE
    ) -> AsyncIterator[PausablePlugin]:
        """A plugin whose devices are all healthy."""
        async with PausablePlugin(resource, devices, directory=self.directory, preference=preference) as plugin:
            await until(lambda: self.healthy(resource) == len(plugin.devices))
            yield plugin


@asynccontextmanager
async def start_rig(
    directory: Path,
    *,
    now: AgentState | None = None,
    save: SaveState = lambda *_: None,
    timeouts: PluginTimeouts = PATIENT,
    clock: Callable[[], float] = time.monotonic,
    stopwatch: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[PluginRig]:
    """A queue that serves plugins in *directory*; *clock* measures how long they are gone, *stopwatch* decisions."""
    queue = AdmissionQueue(
        now or empty_state(),
        save,
        clock=Clock(now=time.time, monotonic=stopwatch),
        dispatch=lambda _: None,
    )
    manager = DevicePluginManager(
        directory,
        lambda *devices, **options: queue.run(Transaction.set_devices, *devices, **options),
        lambda resource, **options: queue.run(Transaction.plugin_stopped, resource, **options),
        timeouts=timeouts,
        now=clock,
    )
    allocator = DeviceAllocator(queue, manager, log=structlog.get_logger(), backoff=0.01)
    try:
        async with manager:
            manager.expect(expected_resources(queue))
            yield PluginRig(queue, manager, allocator, directory)
    finally:
        await allocator.close()
        await asyncio.to_thread(queue.close)


def wait_for_devices(agent: Any, count: int = 4, resource: str = GPU) -> None:
    """Wait until an agent has *count* healthy devices."""

    def healthy() -> bool:
        devices = agent.get("/v1/machine").get("devices", ())
        return (
            len([device for device in devices if device["resource"] == resource and device.get("healthy", True)])
            == count
        )

    wait_for(healthy, describe=lambda: f"{count} devices of {resource}")
