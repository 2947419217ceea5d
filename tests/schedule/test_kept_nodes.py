"""A pod that others overtake gets a node of its own after a while."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from alignup.placement.scheduling.kept_nodes import UNSUITABLE_SECONDS
from alignup.placement.scheduling.options import PATIENCE_SECONDS
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, node
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice
from tests.schedule.test_extender import PLAIN, WIDE, bound, create, filtered, post
from tests.schedule.test_wake_up import clock, timing, woken

__all__ = ["clock", "timing"]

pytestmark = pytest.mark.anyio

UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
DEVICE: dict[str, Any] = {"example.com/other": "1"}
OTHER_DEVICE = pod("wide", cpu="1", memory="1Gi", **DEVICE)
KEPT = "kept for default/wide, which has waited longer"


def small(number, cpus=2, **spec):
    return pod(f"small-{number}", cpu=str(cpus), memory="1Gi", **spec)


async def mark_unschedulable(nodes, service, asked=WIDE, **spec):
    """The scheduler has found no node for a pod."""
    document = api_pod(asked, phase="Pending", **spec)
    document["metadata"] |= {"creationTimestamp": "2026-11-16T00:00:00Z"}
    nodes.server.put({**document, "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]}})
    await until(lambda: (stored := service.live.find_pod("default", asked.name)) and stored.status.conditions)


async def place(http, nodes, service, asked, names="a"):
    """Let the scheduler place a pod, and its kubelet admit it; return whether there was a node."""
    answer = await filtered(http, asked, names)
    if not answer["NodeNames"]:
        return False
    (host,) = answer["NodeNames"]
    await create(nodes, service, asked)
    assert await bound(http, asked, host) == ""
    nodes.admit(host, asked)
    await until(lambda: asked.uid in service.live.cluster.record(host).ledger.pods)
    return True


async def end(nodes, service, asked, host="a"):
    nodes.kubelets[host].end(asked.uid)
    nodes.server.remove("pods", asked.name)
    await until(lambda: not service.live.find_pod("default", asked.name))
    await until(lambda: service.live.cluster.record(host).states().ledgers)
    await until(lambda: asked.uid not in service.live.cluster.record(host).states().ledgers[0].pods)


async def test_a_large_pod_starts_although_small_ones_come_without_end(http, nodes, service, clock):
    """Node a has 3 and 4 CPUs on its NUMA nodes: room for three small pods, or a large one and a small one."""
    nodes.server.remove("nodes", "b", namespace="")
    stream = [small(number) for number in range(100)]
    running = []
    while await place(http, nodes, service, stream[0]):
        running.append(stream.pop(0))
    assert len(running) == 3
    await mark_unschedulable(nodes, service)

    started = None
    for _ in range(30):  # every ten seconds a small pod ends, and the next one comes before the large one is tried
        clock[0] += 10
        await end(nodes, service, running.pop(0))
        if await place(http, nodes, service, stream[0]):
            running.append(stream.pop(0))
        if (await filtered(http, names="a"))["NodeNames"]:
            started = clock[0]
            break

    assert started is not None
    assert started <= PATIENCE_SECONDS + 3 * 10  # those that ran then have ended


async def keep(http, nodes, service, clock):
    """Keep node a, which has a small pod on each NUMA node, for the large one."""
    nodes.server.put(node("b", taints=[{"key": "x", "effect": "NoSchedule"}]))
    for number in (1, 2):
        assert await place(http, nodes, service, small(number))
    await mark_unschedulable(nodes, service)
    clock[0] += PATIENCE_SECONDS
    await filtered(http, small("first"), names="b")
    assert service.numbers()["alignup_schedule_kept_nodes"][1] == 1


async def test_a_pod_that_no_kubelet_aligns_does_not_take_a_kept_node(http, nodes, service, clock):
    await keep(http, nodes, service, clock)
    burstable = {**PLAIN, "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "4"}}}]}}

    answer = await post(http, "filter", {"Pod": burstable, "NodeNames": ["a", "b"]})

    assert answer["NodeNames"] == ["b"]
    assert answer["FailedAndUnresolvableNodes"] == {"a": KEPT}
    assert (await filtered(http, PLAIN, names=["a", "b"]))["NodeNames"] == ["a", "b"]


async def test_the_waiting_pod_is_woken_before_others_that_the_node_admits(http, nodes, service, clock):
    other = small(3, 4)
    nodes.create(other)
    assert await place(http, nodes, service, WIDE)
    await filtered(http, other, names="a")  # the first that was rejected, but it has not waited long
    await end(nodes, service, WIDE)
    await until(lambda: woken(nodes) == [other.name])
    await keep(http, nodes, service, clock)
    clock[0] += 10

    await end(nodes, service, small(1))
    await end(nodes, service, small(2))

    await until(lambda: len(woken(nodes)) == 2)
    assert woken(nodes) == [other.name, "wide"]


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        pytest.param(WIDE, {"schedulerName": "other"}, id="another scheduler"),
        pytest.param(WIDE, {"nodeSelector": {"x": "y"}}, id="another node"),
        pytest.param(WIDE, {"tolerations": []}, id="a taint"),
        pytest.param(pod("wide", cpu="8", memory="1Gi"), {}, id="never fits"),
        pytest.param(OTHER_DEVICE, {}, id="no such device"),
        pytest.param(WIDE, {}, id="usable"),
    ],
)
async def test_a_node_is_kept_only_for_a_pod_that_can_use_it(http, nodes, service, clock, *, asked, spec):
    for name in "ab":
        nodes.server.put(node(name, taints=[{"key": "x", "effect": "NoSchedule"}]))
    await until(lambda: all(service.live.nodes.get(name).spec.taints for name in "ab"))
    await mark_unschedulable(nodes, service, asked, **{"tolerations": [{"operator": "Exists"}], **spec})
    clock[0] += PATIENCE_SECONDS

    await filtered(http, small(3), names="ab")

    assert service.numbers()["alignup_schedule_kept_nodes"][1] == (asked is WIDE and not spec)


@pytest.mark.parametrize(("devices", "kept"), [((0, 1), 1), ((), 0)], ids=["in use", "none"])
async def test_a_node_is_kept_for_a_pod_whose_devices_others_have_now(http, nodes, service, clock, *, devices, kept):
    asked, live = claiming(WIDE, claim="mine"), service.live
    held = [f"gpu-{number}" for number in range(len(devices))]
    documents = [device_class(), claim("mine"), claim("other", held, "a"), resource_slice("a", devices)]
    for document in documents:
        nodes.server.put(document)
    await until(lambda: live.claims.devices == len(devices) and len(live.claims.objects.claims) == 2)
    await mark_unschedulable(nodes, service, asked)
    assert not live.claim_fit(asked, "a").possible
    clock[0] += PATIENCE_SECONDS

    await filtered(http, small(3), names="ab")

    assert service.numbers()["alignup_schedule_kept_nodes"][1] == kept


async def test_a_node_is_not_kept_any_longer_when_its_pod_is_gone_or_may_not_go_there(http, nodes, service, clock):
    await keep(http, nodes, service, clock)
    with capture_logs() as log:
        nodes.server.put(node("a", unschedulable=True))
        await until(lambda: service.live.nodes.get("a").spec.unschedulable)
    clock[0] += 10
    await filtered(http, small(3), names="b")
    assert service.numbers()["alignup_schedule_kept_nodes"][1] == 0
    (entry,) = [entry for entry in log if entry["event"] == "node no longer kept"]
    assert (entry["pod"], entry["node"]) == ("default/wide", "a")

    nodes.server.put(node("a"))
    await until(lambda: not service.live.nodes.get("a").spec.unschedulable)
    clock[0] += UNSUITABLE_SECONDS
    await filtered(http, small(3), names="b")
    assert service.numbers()["alignup_schedule_kept_nodes"][1] == 1
    nodes.server.remove("pods", "wide")
    await until(lambda: service.numbers()["alignup_schedule_kept_nodes"][1] == 0)
