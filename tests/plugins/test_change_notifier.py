"""Telling: in order, the newest first, and again when it could not be taken in."""

import asyncio
from dataclasses import replace

import pytest

from alignup.align.errors import FileError
from alignup.align.machine import Device
from alignup.plugins.change_notifier import ChangeNotifier
from alignup.plugins.endpoint_store import UNKNOWN_RESOURCE, ResourceState, ResourceStatus

pytestmark = pytest.mark.anyio

GPU, NIC = "example.com/gpu", "example.com/nic"
ONE = (Device(GPU, "gpu-0", 1),)
TWO = (*ONE, Device(GPU, "gpu-1", 1))


def ill(devices):
    return tuple(replace(device, healthy=False) for device in devices)


def served(devices, *, preferred=False):
    return ResourceStatus(state=ResourceState.SERVED, devices=devices, preferred_allocation=preferred)


def stopped(devices):
    return ResourceStatus(state=ResourceState.STOPPED, devices=devices)


class Slow:
    """A listener that takes its time, and may have had enough."""

    def __init__(self):
        self.heard = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails = 0

    async def _hear(self, what):
        await self.open.wait()
        if self.fails:
            self.fails -= 1
            raise FileError("the disk is full")
        self.heard.append(what)

    async def announced(self, resource, devices, *, preferred_allocation):
        await self._hear((resource, devices, preferred_allocation))

    async def stopped(self, resource):
        await self._hear((resource, "stopped"))

    async def gone(self, resource):
        await self._hear((resource, "gone"))


@pytest.fixture
def listener():
    return Slow()


@pytest.fixture
def views():
    return {}


@pytest.fixture
async def tell(listener, views):
    teller = ChangeNotifier(listener, view=lambda resource: views.get(resource, UNKNOWN_RESOURCE), again=0.01)

    async def change(*course, settle=True):
        for view in course:
            views[GPU] = view
            teller.changed(GPU)
        if settle:
            await asyncio.wait_for(teller.settled(), 2)

    yield change
    await teller.close()


@pytest.mark.parametrize(
    ("before", "course", "told"),
    [
        pytest.param([], [served(ONE)], [(GPU, ONE, False)], id="devices"),
        pytest.param([served(ONE)], [served(ONE)], [], id="no news"),
        pytest.param([served(ONE)], [served(ONE, preferred=True)], [(GPU, ONE, True)], id="another wish"),
        pytest.param([served(ONE)], [served(TWO), served(ONE)], [], id="a change taken back"),
        pytest.param([served(ONE)], [stopped(ill(ONE))], [(GPU, "stopped")], id="stopped"),
        pytest.param([], [served(ONE), stopped(ill(ONE))], [(GPU, ill(ONE), False), (GPU, "stopped")], id="at once"),
        pytest.param(
            [served(ONE)],
            [served(TWO), stopped(ill(TWO))],
            [(GPU, ill(TWO), False), (GPU, "stopped")],
            id="others, and stopped",
        ),
        pytest.param([served(ONE), stopped(ill(ONE))], [served(ONE)], [(GPU, ONE, False)], id="back as before"),
        pytest.param([served(ONE), stopped(ill(ONE))], [UNKNOWN_RESOURCE], [(GPU, "gone")], id="gone"),
        pytest.param([stopped(None)], [], [], id="expected is nothing to tell"),
        pytest.param([stopped(None)], [UNKNOWN_RESOURCE], [(GPU, "gone")], id="expected, and did not come"),
        pytest.param([served(ONE), UNKNOWN_RESOURCE], [served(ONE)], [(GPU, ONE, False)], id="gone, and back"),
    ],
)
async def test_what_is_told(tell, listener, before, course, told):
    for view in before:
        await tell(view)
    listener.heard.clear()

    await tell(*course)

    assert listener.heard == told


async def test_a_busy_listener_hears_the_newest_next(tell, listener):
    listener.open.clear()
    await tell(served(ONE), settle=False)
    await asyncio.sleep(0)
    await tell(*(served(TWO if turn % 2 else ()) for turn in range(100)), settle=False)
    listener.open.set()
    await tell(served(TWO))

    assert listener.heard == [(GPU, ONE, False), (GPU, TWO, False)]


async def test_what_could_not_be_taken_in_is_told_again(tell, listener, caplog):
    listener.fails = 2

    await tell(served(ONE))

    assert listener.heard == [(GPU, ONE, False)]
    assert [record.getMessage() for record in caplog.records] == [
        f"the devices of {GPU} could not be taken in: the disk is full"
    ] * 2


async def test_one_resource_does_not_wait_for_another(listener, views):
    class Stuck(Slow):
        async def announced(self, resource, devices, *, preferred_allocation):
            if resource == GPU:
                await asyncio.Event().wait()
            await super().announced(resource, devices, preferred_allocation=preferred_allocation)

    stuck = Stuck()
    teller = ChangeNotifier(stuck, view=lambda _: served(ONE))
    teller.changed(GPU)
    teller.changed(NIC)
    await asyncio.sleep(0.01)
    await teller.close()

    assert stuck.heard == [(NIC, ONE, False)]
