from dataclasses import replace

import pytest

from alignup.kubernetes.api import Access, ApiClient
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.controller import GateController
from alignup.schedule.live_cluster import LiveCluster
from tests.kubernetes.api.tasks import running
from tests.observe.conftest import client, server, timing
from tests.schedule.gate.simulated import GatedCluster

__all__ = [
    "client",
    "clock",
    "clocked",
    "cluster",
    "controller",
    "follow",
    "live",
    "nodes",
    "run_controller",
    "server",
    "timing",
]


class ManualClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float, controller: GateController) -> None:
        """Let time pass, and the controller notice it."""
        self.now += seconds
        controller.notify()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def clocked(server, timing, clock):
    """A client with the clock of the test."""
    async with ApiClient(Access(server=server.url, source="the test"), timing=replace(timing, clock=clock)) as made:
        yield made


@pytest.fixture
async def follow(client, clocked):
    """Run tasks until the end of the test, before the clients are closed."""
    async with running() as start:
        yield start


@pytest.fixture
async def cluster(server, client, follow):
    """Two empty nodes, ``a`` and ``b``, whose kubelets admit what the scheduler binds: they never reject a pod."""
    made = GatedCluster(server, client)
    for name in "ab":
        made.add(name)
    follow(made.schedule())
    yield made
    assert made.rejected == []


@pytest.fixture
def nodes(cluster):
    """The nodes that ``live`` follows."""
    return cluster


@pytest.fixture
async def live(nodes, clocked, follow):
    """A cluster that follows the nodes, and has read them."""
    made = LiveCluster(clocked)
    follow(made.run())
    await made.ready.wait()
    return made


@pytest.fixture
def run_controller(clocked, live, follow):
    """Start a controller with other options; it runs until the end of the test."""

    def run(**options):
        made = GateController(clocked, live, **options)
        follow(made.run())
        return made

    return run


@pytest.fixture
async def controller(run_controller):
    """A controller that runs."""
    return run_controller(options=GateOptions(patience=60.0))
