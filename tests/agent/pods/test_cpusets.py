"""Containers leave shared CPUs before another starts on them exclusively, whatever the last refresh showed."""

import asyncio
import io
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from alignup.agent.pods.cpusets import CpusetReconciler
from alignup.agent.pods.pod_state import PodStatus
from alignup.agent.transaction import Transaction
from alignup.align.bits import CpuSet
from alignup.align.errors import CriError
from alignup.run.cri.types import CriContainer, LinuxResources
from alignup.web import log as logs
from tests.agent.pods.statuses import CREATED, EXITED, RUNNING, instance, sandbox
from tests.agent.states import clock, empty_state
from tests.align.hosts import pod

SHARED, EXCLUSIVE = ("shares", "app"), ("owns", "app")


@dataclass
class FakeRuntime:
    """A runtime that records cpuset updates and can reject them."""

    updates: dict[str, CpuSet] = field(default_factory=dict)
    error: str = ""
    shows: CriContainer | None = None  #: ``None``: it was removed

    async def update(self, id_: str, resources: LinuxResources) -> None:
        if self.error:
            raise CriError(self.error, code="UNKNOWN")
        self.updates[id_] = resources.cpus

    async def container(self, id_: str) -> CriContainer:
        if self.shows is None:
            raise CriError(f"there is no {id_}", code="NOT_FOUND")
        return self.shows


@dataclass
class Fixture:
    """A ledger, the status of the runtime, and a reconciler."""

    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    pods: dict[str, PodStatus] = field(default_factory=dict)
    out: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self._now = empty_state()
        log = logs.make_logger(self.out, readable=False)
        runtime = cast("Any", self.runtime)
        self.cpusets = CpusetReconciler(lambda: self._now.host, lambda: self.pods, runtime, log)

    @property
    def shared(self) -> CpuSet:
        return self._now.host.ledger.cpus.shared

    def admit(self, uid: str, **asked: Any) -> None:
        transaction = Transaction(self._now, clock())
        transaction.admit(pod(uid, **asked))
        self._now = transaction.state()

    def shows(self, uid: str, *containers: CriContainer) -> None:
        self.pods[uid] = PodStatus(sandboxes=(sandbox(),), containers=containers)

    async def make(self, name: tuple[str, str], id_: str) -> CpuSet:
        """Create a container; return the CPUs it is created on."""
        async with self.cpusets.creating(*name) as place:
            self.cpusets.created_in(id_, name, place)
        return place.cpus


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param((), id="no refresh since"),
        pytest.param((instance("app", CREATED),), id="it was not started at the last refresh"),
        pytest.param((instance("app", RUNNING),), id="it is running"),
    ],
)
def test_a_new_container_leaves_cpus_that_become_exclusive(shown):
    fixture = Fixture()

    async def scenario():
        fixture.admit("shares", cpu="100m", state="1Mi")
        await fixture.make(SHARED, "app-0")
        fixture.shows("shares", *shown)
        fixture.admit("owns", cpu="2")
        return await fixture.make(EXCLUSIVE, "owner")

    own = asyncio.run(scenario())

    assert own.bit_count() == 2
    assert fixture.runtime.updates["app-0"] == fixture.shared
    assert not fixture.runtime.updates["app-0"] & own


def test_an_update_waits_for_the_start_of_its_container():
    """containerd 1.6 stores an update of a container that is starting, but does not apply it."""
    fixture = Fixture()

    async def scenario():
        fixture.admit("shares", cpu="100m", state="1Mi")
        await fixture.make(SHARED, "app-0")
        fixture.admit("owns", cpu="2")
        async with fixture.cpusets.alone("app-0"):
            creation = asyncio.create_task(fixture.make(EXCLUSIVE, "owner"))
            for _ in range(100):  # no more than a few steps are due
                await asyncio.sleep(0)
            during = dict(fixture.runtime.updates), creation.done()
        return during, await creation

    during, own = asyncio.run(scenario())

    assert during == ({}, False)
    assert fixture.runtime.updates == {"app-0": fixture.shared}
    assert not fixture.shared & own


def test_uses_of_one_container_never_overlap():
    fixture = Fixture()
    active: list[int] = []

    async def use(number):
        async with fixture.cpusets.alone("app-0"):
            active.append(number)
            assert active == [number]
            await asyncio.sleep(0)
            active.remove(number)

    async def scenario():
        async with fixture.cpusets.alone("app-0"):
            second = asyncio.create_task(use(2))
            await asyncio.sleep(0)
        await asyncio.gather(second, use(3))  # the third comes when the first has ended and the second has not begun

    asyncio.run(scenario())

    assert active == []


def test_a_container_created_during_a_ledger_change_is_moved_soon():
    fixture = Fixture()

    async def scenario():
        fixture.admit("shares", cpu="100m", state="1Mi")
        await fixture.cpusets.reconcile()
        async with fixture.cpusets.creating(*SHARED) as place:
            fixture.admit("owns", cpu="2")
            fixture.cpusets.created_in("app-0", SHARED, place)
        stale = fixture.cpusets.is_stale
        await fixture.cpusets.reconcile()
        return place.cpus, stale

    made_on, stale = asyncio.run(scenario())

    assert stale
    assert made_on != fixture.shared
    assert fixture.runtime.updates == {"app-0": fixture.shared}


@pytest.mark.parametrize(
    ("shown", "logged"),
    [
        pytest.param(None, False, id="it was removed"),
        pytest.param(instance("app", EXITED), False, id="it has exited"),
        pytest.param(instance("app", RUNNING), True, id="it still runs"),
    ],
)
def test_a_failed_update_is_logged_only_for_a_running_container(shown, logged):
    fixture = Fixture(FakeRuntime(error="no", shows=shown))

    async def scenario():
        fixture.admit("shares", cpu="100m", state="1Mi")
        fixture.shows("shares", instance("app", RUNNING))
        await fixture.cpusets.reconcile()
        await fixture.cpusets.reconcile()

    asyncio.run(scenario())

    text = fixture.out.getvalue()
    assert text.count("is not on its CPUs") == logged
    assert ("default/shares" in text) is logged


def test_removed_containers_are_forgotten():
    fixture = Fixture()

    async def scenario():
        fixture.admit("shares", cpu="100m", state="1Mi")
        for attempt in range(50):
            await fixture.make(SHARED, f"app-{attempt}")
            fixture.shows("shares", instance("app", RUNNING, attempt=attempt))
            await fixture.cpusets.reconcile()

    asyncio.run(scenario())

    assert fixture.cpusets._applied.ids.keys() == {"app-49"}  # noqa: SLF001
    assert not fixture.cpusets._busy  # noqa: SLF001
