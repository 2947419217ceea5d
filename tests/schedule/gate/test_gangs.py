"""Gangs behind the gate: released together when all of them fit.

Each node has 3 and 4 free CPUs on its NUMA nodes: two pods with 3 CPUs, or one with 4.
"""

from dataclasses import replace

import pytest

from alignup.placement.scheduling.gang_placement import NO_ORDER
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.controller import GateController
from alignup.schedule.pod_groups import KUBERNETES
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.schedule.gang_objects import SERVED_GROUPS, gang, member, pod_group
from tests.schedule.gate.simulated import settle
from tests.schedule.gate.test_controller import failures

pytestmark = pytest.mark.anyio

LICENSE = "example.com/license"


@pytest.fixture
def cluster(cluster):
    for resource in SERVED_GROUPS:
        cluster.server.serve(resource)
    return cluster


def with_license(asked):
    return replace(asked, containers=pod("licensed", None, cpu="3", memory="1Gi", **{LICENSE: "1"}).containers)


def messages(cluster, reason):
    return {(name, message) for name, event, message in cluster.events() if event == reason}


def gate_all(cluster, pods, **options):
    for each in pods:
        cluster.gate(each, **options)


def bound(cluster, pods):
    nodes = cluster.bound()
    return [nodes[each.name] for each in pods if nodes.get(each.name)]


async def test_a_gang_is_released_when_all_of_it_exists(cluster, controller, clock):
    pods = gang(4)
    gate_all(cluster, pods[:3])
    await until(lambda: len(controller.gate.incomplete) == 1)
    clock.advance(2, controller)
    waits = "gang default/train: 3 of 4 pods are behind the gate or released"
    await until(lambda: messages(cluster, "GangIncomplete") >= {(each.name, waits) for each in pods[:3]})
    assert bound(cluster, pods) == []

    cluster.gate(pods[3])
    await until(lambda: len(bound(cluster, pods)) == 4)
    assert sorted(bound(cluster, pods)) == ["a", "a", "b", "b"]
    await until(lambda: not controller.gate.releases)


async def test_a_gang_waits_as_a_whole_and_is_released_when_there_is_room(cluster, controller):
    holder = pod("holder", cpu="4", memory="1Gi")
    cluster.gate(holder)
    await until(lambda: bound(cluster, [holder]))
    pods = gang(4)
    gate_all(cluster, pods)
    waits = "gang default/train: 3 of 4 pods fit together; b lacks 2 CPUs on one NUMA node"
    await until(lambda: messages(cluster, "NoNode") >= {(each.name, waits) for each in pods})
    assert bound(cluster, pods) == []
    assert len(controller.gate.queue) == 1

    cluster.finish("holder")
    await until(lambda: len(bound(cluster, pods)) == 4)


def mixed():
    """2, 2 and 3 CPUs fit together on 3 and 4 only if the pod with 3 is the first."""
    return [member(f"train-{cpus}{place}", cpus, size=3) for cpus, place in ((2, 0), (2, 1), (3, 0))]


async def test_pods_of_one_node_are_released_in_the_order_that_its_kubelet_admits(cluster, controller):
    cluster.change("b", unschedulable=True)
    pods = mixed()
    cluster.paused = {pods[2].name}
    gate_all(cluster, pods)
    await until(lambda: pods[2].name not in cluster.gates())
    await settle()
    assert set(cluster.gates()) == {pods[0].name, pods[1].name}  # they wait for the binding of the first

    cluster.paused = set()
    cluster.change("a", labels={"changed": "yes"})  # the scheduler looks again
    await until(lambda: bound(cluster, pods) == ["a"] * 3)


async def test_a_pod_group_whose_order_of_binding_matters_waits_in_words(cluster, controller):
    """Its scheduler binds nothing before all are released, and then in any order."""
    cluster.change("b", unschedulable=True)
    cluster.server.put(pod_group(3, source=KUBERNETES))
    pods = [replace(each, labels={}) for each in mixed()]
    gate_all(cluster, pods, schedulingGroup={"podGroupName": "train"})
    waits = f"gang default/train: {NO_ORDER}"
    await until(lambda: messages(cluster, "NoNode") >= {(each.name, waits) for each in pods})
    await settle()
    tries = controller.gate.queue.tries
    await settle()
    assert controller.gate.queue.tries == tries  # the search itself is no change of a node

    cluster.change("b")
    await until(lambda: len(bound(cluster, pods)) == 3)


async def test_a_new_leader_releases_the_rest_of_a_gang_before_others(cluster, live, clocked, follow, run_controller):
    first = GateController(clocked, live, options=GateOptions(parallel=1))
    task = follow(first.run())
    cluster.paused = {"train-0", "train-1", "train-2", "train-3"}
    cluster.server.inject(ApiFault(delay=0.2, times=None), verb="patch", resource="pods")
    pods = gang(4)
    gate_all(cluster, pods)
    await until(lambda: len(cluster.gates()) == 2)
    task.cancel()
    single = pod("single", cpu="3", memory="1Gi")
    cluster.gate(single, priority=1000)
    cluster.server.inject(ApiFault(times=0), verb="patch", resource="pods")

    run_controller()
    await until(lambda: set(cluster.gates()) == {"single"})
    cluster.paused = set()
    cluster.change("a", labels={"changed": "yes"})
    await until(lambda: len(bound(cluster, pods)) == 4)


async def test_the_pods_of_a_released_gang_that_is_not_bound_are_replaced_together(cluster, run_controller, clock):
    controller = run_controller(options=GateOptions(replace_stuck=True))
    pods = gang(4)
    cluster.paused = {pods[3].name}
    for each in pods:
        cluster.gate(each)
        document = cluster.document(each.name)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
        cluster.server.put({**document, "metadata": {**document["metadata"], "ownerReferences": [owner]}})
    await until(lambda: len(bound(cluster, pods)) == 3 and len(controller.gate.releases) == 1)

    clock.advance(1000, controller)
    await until(lambda: all("deletionTimestamp" in each["metadata"] for each in cluster.server.objects("pods")))
    await until(lambda: messages(cluster, "NotScheduled"))
    ((name, message),) = messages(cluster, "NotScheduled")
    assert name == pods[3].name
    assert message.endswith("; 3 of 4 pods of gang default/train are bound, and replaced as well")


@pytest.fixture
async def kept_nodes(cluster, controller, clock):
    """A gang of pods with 3 CPUs for which both nodes are kept."""
    return await keep_nodes(cluster, controller, clock, gang(4))


async def keep_nodes(cluster, controller, clock, pods):
    """Let pods wait until both nodes are kept for them: on each, another pod holds the 4 CPUs of a NUMA node."""
    for name in ("left", "right"):
        cluster.gate(pod(name, cpu="4", memory="1Gi"))
    await until(lambda: sorted(cluster.bound().values()) == ["a", "b"])
    gate_all(cluster, pods, created="2026-11-16T00:00:01Z")
    await until(lambda: controller.gate.queue.blocked)
    clock.advance(61, controller)
    await until(lambda: len(controller.kept_nodes) == 2)
    return pods


@pytest.mark.parametrize("deleted", [pytest.param(4, id="all of its pods"), pytest.param(1, id="a pod that it needs")])
async def test_no_node_is_kept_for_a_gang_that_was_deleted(cluster, controller, clock, kept_nodes, deleted):
    for each in kept_nodes[:deleted]:
        cluster.finish(each.name)
    await until(lambda: not controller.gate.queue)
    clock.now += 2
    late = pod("late", cpu="3", memory="1Gi")
    cluster.gate(late, created="2026-11-16T00:00:02Z")
    await until(lambda: bound(cluster, [late]))
    assert len(controller.kept_nodes) == 0


async def test_a_gang_is_not_kept_out_of_its_nodes_after_its_first_pod_was_replaced(
    cluster, controller, clock, kept_nodes
):
    """It comes later in the queue then than the gang for which the nodes were kept."""
    cluster.finish(kept_nodes[0].name)
    pods = [*kept_nodes[1:], member("train-4", size=4)]
    cluster.gate(pods[3], created="2026-11-16T00:00:02Z")
    await until(lambda: [each for each in controller.gate.queue if pods[3].uid in {pod.uid for pod in each.members}])
    for name in ("left", "right"):
        cluster.finish(name)
    clock.advance(2, controller)
    await until(lambda: len(bound(cluster, pods)) == 4)


async def test_a_gang_waits_in_words_for_what_node_objects_lack(cluster, controller):
    """Kubelets admit two pods on each node: they know nothing of licenses, of which each node has one."""
    cluster.change("a", allocatable={LICENSE: "1"})
    await settle()
    pods = [with_license(each) for each in gang(2)]
    gate_all(cluster, pods)
    waits = "gang default/train: 1 of 2 pods fit together; too little left by the Node object (2 of 2 nodes)"
    await until(lambda: messages(cluster, "NoNode") >= {(each.name, waits) for each in pods})
    assert bound(cluster, pods) == []

    cluster.change("b", allocatable={LICENSE: "1"})
    await until(lambda: sorted(bound(cluster, pods)) == ["a", "b"])


async def test_nodes_are_kept_for_the_pods_that_a_gang_needs_to_start(cluster, controller, clock):
    """Of its 5 pods, 4 must start together; there is room for no more."""
    pods = await keep_nodes(cluster, controller, clock, gang(5, size=4))

    for name in ("left", "right"):
        cluster.finish(name)
    await until(lambda: len(bound(cluster, pods)) == 4 and not controller.gate.releases)
    clock.advance(2, controller)
    waits = "0/2 nodes will admit the pod: 2 not enough cpu on one NUMA node."
    await until(lambda: ("train-4", waits) in messages(cluster, "NoNode"))


async def test_whatever_a_gang_raises_it_is_put_off_and_all_others_are_placed(
    cluster, controller, live, clock, monkeypatch
):
    pods = gang(2)
    assumptions = live.scheduling.assumptions
    assume_gang = assumptions.assume_gang

    def fail(*args, **kwargs):
        assume_gang(*args, **kwargs)
        raise LookupError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(assumptions, "assume_gang", fail)
        gate_all(cluster, pods)
        await until(lambda: failures(live, "place") == 1)
        assert live.assumed == {}
        cluster.gate(pod("single", cpu="4"))
        await until(lambda: cluster.bound().get("single"))
        assert bound(cluster, pods) == []

    clock.advance(1, controller)
    await until(lambda: len(bound(cluster, pods)) == 2)
