"""Notifications: in order, the latest status first, and retried after a failure."""

import asyncio
from dataclasses import replace

import pytest
import structlog

from alignup.align.errors import FileError
from alignup.align.machine import Device
from alignup.kubernetes.plugins.resources import (
    UNKNOWN_RESOURCE,
    ChangeNotifier,
    ResourceState,
    ResourceStatus,
)
from tests.deadlines import until

pytestmark = pytest.mark.anyio

GPU, NIC = "example.com/gpu", "example.com/nic"
ONE = (Device(GPU, "gpu-0", 1),)
TWO = (*ONE, Device(GPU, "gpu-1", 1))


def unhealthy(devices):
    return tuple(replace(device, healthy=False) for device in devices)


def served(devices, *, preferred=False):
    return ResourceStatus(state=ResourceState.SERVED, devices=devices, preferred_allocation=preferred)


def stopped(devices):
    return ResourceStatus(state=ResourceState.STOPPED, devices=devices)


class SlowListener:
    """A listener that can be blocked, and can fail a number of times."""

    def __init__(self):
        self.events = []
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.failures = 0
        self.notified = asyncio.Event()

    async def _record(self, event):
        await self.unblocked.wait()
        if self.failures:
            self.failures -= 1
            raise FileError("the disk is full")
        self.events.append(event)
        self.notified.set()

    async def devices_listed(self, resource, devices, *, preferred_allocation):
        await self._record((resource, devices, preferred_allocation))

    async def plugin_stopped(self, resource, *, gone):
        await self._record((resource, "removed" if gone else "stopped"))


@pytest.fixture
def listener():
    return SlowListener()


@pytest.fixture
async def change(listener):
    statuses: dict[str, ResourceStatus] = {}
    notifier = ChangeNotifier(
        listener.devices_listed,
        listener.plugin_stopped,
        status=lambda resource: statuses.get(resource, UNKNOWN_RESOURCE),
        retry_delay=0.01,
    )

    async def apply(*course, settle=True):
        for status in course:
            statuses[GPU] = status
            notifier.changed(GPU)
        if settle:
            await until(lambda: not notifier.tasks)

    yield apply
    await notifier.close()


@pytest.mark.parametrize(
    ("before", "course", "events"),
    [
        pytest.param([], [served(ONE)], [(GPU, ONE, False)], id="devices"),
        pytest.param([served(ONE)], [served(ONE)], [], id="no change"),
        pytest.param([served(ONE)], [served(ONE, preferred=True)], [(GPU, ONE, True)], id="other options"),
        pytest.param([served(ONE)], [served(TWO), served(ONE)], [], id="a reverted change"),
        pytest.param([served(ONE)], [stopped(unhealthy(ONE))], [(GPU, "stopped")], id="stopped"),
        pytest.param(
            [],
            [served(ONE), stopped(unhealthy(ONE))],
            [(GPU, unhealthy(ONE), False), (GPU, "stopped")],
            id="served and stopped at once",
        ),
        pytest.param(
            [served(ONE)],
            [served(TWO), stopped(unhealthy(TWO))],
            [(GPU, unhealthy(TWO), False), (GPU, "stopped")],
            id="changed and stopped at once",
        ),
        pytest.param(
            [served(ONE), stopped(unhealthy(ONE))], [served(ONE)], [(GPU, ONE, False)], id="back with the same devices"
        ),
        pytest.param(
            [served(ONE), stopped(unhealthy(ONE))], [UNKNOWN_RESOURCE], [(GPU, "removed")], id="removed after a stop"
        ),
        pytest.param([stopped(None)], [], [], id="expected"),
        pytest.param([stopped(None)], [UNKNOWN_RESOURCE], [(GPU, "removed")], id="expected and removed"),
        pytest.param([served(ONE), UNKNOWN_RESOURCE], [served(ONE)], [(GPU, ONE, False)], id="removed and back"),
    ],
)
async def test_changes_become_notifications(change, listener, before, course, events):
    for status in before:
        await change(status)
    listener.events.clear()

    await change(*course)

    assert listener.events == events


async def test_a_busy_listener_gets_the_latest_status_next(change, listener):
    listener.unblocked.clear()
    await change(served(ONE), settle=False)
    await asyncio.sleep(0)
    await change(*(served(TWO if turn % 2 else ()) for turn in range(100)), settle=False)
    listener.unblocked.set()
    await change(served(TWO))

    assert listener.events == [(GPU, ONE, False), (GPU, TWO, False)]


async def test_a_failed_notification_is_retried(change, listener):
    listener.failures = 2

    with structlog.testing.capture_logs() as logged:
        await change(served(ONE))

    assert listener.events == [(GPU, ONE, False)]
    failed = {"event": "device update failed", "log_level": "warning", "resource": GPU, "error": "the disk is full"}
    assert logged == [failed] * 2


async def test_resources_do_not_wait_for_each_other():
    class StuckListener(SlowListener):
        async def devices_listed(self, resource, devices, *, preferred_allocation):
            if resource == GPU:
                await asyncio.Event().wait()
            await super().devices_listed(resource, devices, preferred_allocation=preferred_allocation)

    stuck = StuckListener()
    notifier = ChangeNotifier(stuck.devices_listed, stuck.plugin_stopped, status=lambda _: served(ONE))
    notifier.changed(GPU)
    notifier.changed(NIC)
    async with asyncio.timeout(60):
        await stuck.notified.wait()
    await notifier.close()

    assert stuck.events == [(NIC, ONE, False)]
