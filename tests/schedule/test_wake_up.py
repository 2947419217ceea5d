"""Rejected pods are woken when a node has room for them."""

import pytest

from alignup.kubernetes.api import Timing
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod
from tests.schedule.test_extender import WIDE, filtered, occupy

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def timing(timing, clock):
    """Of clients, whose clock stands still unless a test says otherwise."""
    return Timing(retry=0.0, sleep=timing.sleep, clock=lambda: clock[0])


def woken(nodes):
    """The pods that were woken, in order."""
    patches = [
        request for request in nodes.server.requests if request.method == "PATCH" and request.path.endswith("/status")
    ]
    return [request.path.split("/")[-2] for request in patches]


async def fill(nodes, service):
    for host in "ab":
        occupy(nodes, host, pod(f"on-{host}", cpu="4", memory="1Gi"))
    await until(lambda: not service.live.choose(WIDE))


async def test_a_pod_is_woken_when_a_node_admits_it(http, nodes, service):
    await fill(nodes, service)
    nodes.create(WIDE)
    assert (await filtered(http))["NodeNames"] == []

    nodes.server.remove("pods", "on-b")

    await until(lambda: woken(nodes) == ["wide"])
    assert (await filtered(http))["NodeNames"] == ["b"]


async def test_one_node_wakes_the_most_important_pod_only(http, nodes, service):
    await fill(nodes, service)
    for name, priority in (("low", 0), ("high", 1000), ("other", 0)):
        nodes.create(pod(name, cpu="4", memory="1Gi"), priority=priority)
        await filtered(http, api_pod(pod(name, cpu="4", memory="1Gi"), priority=priority))

    nodes.server.remove("pods", "on-b")
    await until(lambda: woken(nodes))
    nodes.server.remove("pods", "on-a")

    await until(lambda: len(woken(nodes)) == 2)
    assert woken(nodes) == ["high", "low"]


async def test_a_pod_is_not_woken_for_nodes_that_the_scheduler_did_not_ask_about(http, nodes, service):
    await fill(nodes, service)
    nodes.create(WIDE)
    nodes.create(pod("second", cpu="4", memory="1Gi"))
    await filtered(http, names=["a"])
    await filtered(http, pod("second", cpu="4", memory="1Gi"), names=["b"])

    nodes.server.remove("pods", "on-b")

    await until(lambda: woken(nodes) == ["second"])


async def test_a_pod_that_is_gone_is_forgotten(http, nodes, service):
    await fill(nodes, service)
    await filtered(http)  # and deleted meanwhile
    nodes.server.inject(ApiFault(status=404, reason="NotFound"), verb="patch", resource="pods")

    nodes.server.remove("pods", "on-b")

    numbers = service.numbers
    await until(lambda: numbers()["alignup_schedule_waiting_pods"][1] == 0)
    assert numbers()["alignup_schedule_woken_pods_total"][1] == 0


async def test_a_pod_that_is_deleted_while_no_node_has_room_is_forgotten(http, nodes, service):
    await fill(nodes, service)
    nodes.create(WIDE)
    await filtered(http)
    assert service.numbers()["alignup_schedule_waiting_pods"][1] == 1

    nodes.server.remove("pods", "wide")

    await until(lambda: service.numbers()["alignup_schedule_waiting_pods"][1] == 0)
    assert woken(nodes) == []
