"""Containers are moved out of the way before somebody starts on CPUs of its own, whatever was seen of them by then."""

import asyncio
import io
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from alignup.agent import log as logs
from alignup.agent.pods.cpusets import CpusetReconciler, cpu_ledger
from alignup.agent.pods.pod_state import PodStatus
from alignup.agent.transaction import Transaction
from alignup.align.bits import CpuSet
from alignup.align.errors import CriError
from alignup.enforce.cri.types import CriContainer, LinuxResources
from tests.agent.pods.lives import CREATED, EXITED, RUNNING, box, instance
from tests.agent.rooms import clock, standing
from tests.align.hosts import pod

SHARES, OWNS = ("shares", "app"), ("owns", "app")


@dataclass
class Mover:
    """Tells on which CPUs containers were put, and refuses what it does not want."""

    moved: dict[str, CpuSet] = field(default_factory=dict)
    refuses: str = ""
    shows: CriContainer | None = None  #: ``None``: it is gone

    async def update(self, id_: str, resources: LinuxResources) -> None:
        if self.refuses:
            raise CriError(self.refuses, code="UNKNOWN")
        self.moved[id_] = resources.cpus

    async def container(self, id_: str) -> CriContainer:
        if self.shows is None:
            raise CriError(f"there is no {id_}", code="NOT_FOUND")
        return self.shows


@dataclass
class Floor:
    """A ledger, what is seen of the runtime, and whoever keeps the two together."""

    mover: Mover = field(default_factory=Mover)
    pods: dict[str, PodStatus] = field(default_factory=dict)
    out: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self._now = standing()
        log = logs.make_logger(self.out, readable=False)
        runtime = cast("Any", self.mover)
        self.cpusets = CpusetReconciler(lambda: self._now.host, lambda: self.pods, runtime, log)

    @property
    def shared(self) -> CpuSet:
        return cpu_ledger(self._now.host).shared

    def admit(self, uid: str, **asked: Any) -> None:
        draft = Transaction(self._now, clock())
        draft.admit(pod(uid, **asked))
        self._now = draft.standing()

    def shows(self, uid: str, *containers: CriContainer) -> None:
        self.pods[uid] = PodStatus(sandboxes=(box(),), containers=containers)

    async def make(self, name: tuple[str, str], id_: str) -> CpuSet:
        """Make a container; the CPUs it is on from its first moment."""
        async with self.cpusets.creating(*name) as place:
            self.cpusets.created_in(id_, name, place)
        return place.cpus


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param((), id="nobody has looked since"),
        pytest.param((instance("app", CREATED),), id="it was not started when somebody looked"),
        pytest.param((instance("app", RUNNING),), id="it is seen to run"),
    ],
)
def test_whoever_was_just_made_on_shared_cpus_leaves_those_of_an_owner(shown):
    floor = Floor()

    async def story():
        floor.admit("shares", cpu="100m", memory="1Mi")
        await floor.make(SHARES, "app-0")
        floor.shows("shares", *shown)
        floor.admit("owns", cpu="2")
        return await floor.make(OWNS, "owner")

    own = asyncio.run(story())

    assert own.bit_count() == 2
    assert floor.mover.moved["app-0"] == floor.shared
    assert not floor.mover.moved["app-0"] & own


def test_one_made_while_the_ledger_changed_is_put_right_soon():
    floor = Floor()

    async def story():
        floor.admit("shares", cpu="100m", memory="1Mi")
        await floor.cpusets.reconcile()
        async with floor.cpusets.creating(*SHARES) as place:
            floor.admit("owns", cpu="2")
            floor.cpusets.created_in("app-0", SHARES, place)
        stale = floor.cpusets.is_stale
        await floor.cpusets.reconcile()
        return place.cpus, stale

    made_on, stale = asyncio.run(story())

    assert stale
    assert made_on != floor.shared
    assert floor.mover.moved == {"app-0": floor.shared}


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        pytest.param(None, False, id="it is gone"),
        pytest.param(instance("app", EXITED), False, id="it has ended"),
        pytest.param(instance("app", RUNNING), True, id="it runs on"),
    ],
)
def test_only_of_who_runs_is_it_said_that_it_is_not_where_it_should_be(shown, said):
    floor = Floor(Mover(refuses="no", shows=shown))

    async def story():
        floor.admit("shares", cpu="100m", memory="1Mi")
        floor.shows("shares", instance("app", RUNNING))
        await floor.cpusets.reconcile()
        await floor.cpusets.reconcile()

    asyncio.run(story())

    text = floor.out.getvalue()
    assert text.count("is not on its CPUs") == said
    assert ("default/shares" in text) is said


def test_what_is_remembered_of_containers_goes_with_them():
    floor = Floor()

    async def story():
        floor.admit("shares", cpu="100m", memory="1Mi")
        for attempt in range(50):
            await floor.make(SHARES, f"app-{attempt}")
            floor.shows("shares", instance("app", RUNNING, attempt=attempt))
            await floor.cpusets.reconcile()

    asyncio.run(story())

    assert floor.cpusets._applied.ids.keys() == {"app-49"}  # noqa: SLF001 - nobody else needs to know
