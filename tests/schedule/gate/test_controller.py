"""The gate controller, with a scheduler and kubelets."""

from dataclasses import replace

import pytest

from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.events import TimePassed
from alignup.placement.scheduling.facts import FIRST, PodFacts, WaitState
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.releases import AvoidedNodes, ReleasePhase
from alignup.schedule.cluster_facts import GATE
from alignup.schedule.gate.controller import GateController
from alignup.schedule.gate.metrics import GateMetrics
from alignup.schedule.gate.release_patch import NODE_ANNOTATION, scheduled_condition
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.kubernetes.api.tasks import running
from tests.observe.api_objects import ALLOCATABLE, api_pod, node, overflowing_pod
from tests.placement.located_hosts import device_pod
from tests.schedule.gate.simulated import settle
from tests.schedule.located_kubelets import located_kubelet

pytestmark = pytest.mark.anyio

WIDE = pod("wide", cpu="4", memory="1Gi")  # all CPUs of NUMA node 1
OTHER = pod("other", cpu="4", memory="1Gi")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LICENSE = "example.com/license"
THIRD = pod("third", cpu="4", memory="1Gi")


def pinned_to(*nodes):
    """The affinity of a pod that one of *nodes* would do for."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


async def written(controller, count=1):
    """Wait until so many pods are released, and the controller knows it."""
    await until(lambda: sum((release.phase is ReleasePhase.WRITTEN) for release in controller.gate.releases) == count)


async def bound(cluster, name):
    """Wait until a pod is bound to node ``a``."""
    await until(lambda: cluster.bound()[name] == "a")


async def blocked(controller):
    """Wait until no node admits one of the pods."""
    await until(lambda: any(controller.gate.queue.heads(blocked=True)))


async def wait_for_kept_node(controller, clock):
    """Let a pod that no node admits wait until a node is kept for it."""
    await blocked(controller)
    clock.advance(61, controller)
    await until(lambda: len(controller.kept_nodes))


async def test_a_gated_pod_is_released_to_the_best_node_and_bound_there(cluster, controller):
    cluster.gate(WIDE)
    await until(lambda: cluster.bound() == {"wide": "a"})

    document = cluster.document("wide")
    assert "schedulingGates" not in document["spec"]
    assert document["metadata"]["annotations"] == {NODE_ANNOTATION: "a"}
    await until(lambda: not controller.gate.releases)


async def test_a_pod_that_no_node_admits_stays_gated_with_an_event_until_room_appears(cluster, controller, clock):
    for created in (WIDE, OTHER, THIRD):
        cluster.gate(created)
    await until(lambda: sorted(cluster.bound().values()) == ["", "a", "b"])
    (left,) = [name for name, host in cluster.bound().items() if not host]
    assert cluster.gates() == {left: [GATE]}

    await blocked(controller)
    clock.advance(2, controller)
    await until(cluster.events)
    text = "0/2 nodes will admit the pod: 2 not enough cpu on one NUMA node."
    assert cluster.events() == [(left, "NoNode", text)]

    cluster.finish(next(name for name, host in cluster.bound().items() if host == "b"))
    await until(lambda: cluster.bound().get(left) == "b")


@pytest.mark.parametrize(
    ("change", "spec"),
    [
        pytest.param({}, {"nodeSelector": {"disk": "ssd"}}, id="its node selector"),
        pytest.param({"taints": [{"key": "x", "effect": "NoSchedule"}]}, {}, id="a taint"),
        pytest.param({"unschedulable": True}, {}, id="an unschedulable node"),
        pytest.param({"allocatable": {"cpu": "3"}}, {}, id="the allocatable CPUs of the Node object"),
        pytest.param({"allocatable": {"pods": "0"}}, {}, id="the number of pods"),
    ],
)
async def test_the_best_node_is_not_chosen_against(cluster, controller, change, spec):
    cluster.change("b", labels={"disk": "ssd"})
    cluster.change("a", **change)
    await settle()
    cluster.gate(WIDE, **spec)

    await until(lambda: cluster.bound() == {"wide": "b"})


async def test_an_extended_resource_that_kubelets_ignore_decides(cluster, controller):
    """The kubelets know nothing of licenses, and admit the pod anywhere."""
    licensed = pod("licensed", None, **{"cpu": "4", LICENSE: "1"})
    cluster.gate(licensed)
    await blocked(controller)

    cluster.change("b", allocatable={LICENSE: "1"})
    await until(lambda: cluster.bound() == {"licensed": "b"})


async def test_a_pod_that_is_resized_leaves_more_to_others(cluster, controller):
    """By the Node object, there is room for 4 CPUs; the kubelet has more."""
    cluster.change("a", allocatable={"cpu": "4"})
    cluster.change("b", unschedulable=True)
    await settle()
    for name in ("first", "second"):
        cluster.gate(pod(name, cpu="3", memory="1Gi"))
    await bound(cluster, "first")
    await blocked(controller)

    document = cluster.document("first")
    resized = pod("first", cpu="1", memory="1Gi")
    cluster.server.put({**document, "spec": document["spec"] | {"containers": api_pod(resized)["spec"]["containers"]}})
    await bound(cluster, "second")


async def test_a_pod_with_another_gate_is_decided_when_ours_is_the_last(cluster, controller):
    cluster.gate(WIDE, "example.com/quota")
    cluster.gate(OTHER)
    await bound(cluster, "other")
    assert cluster.gates() == {"wide": ["example.com/quota", GATE]}

    cluster.gate(WIDE)
    await until(lambda: cluster.bound() == {"other": "a", "wide": "b"})


async def test_priority_goes_first_and_then_age(cluster, live, run_controller):
    cluster.add("c")
    await until(lambda: live.verdict(WIDE, "c").admits)
    cluster.paused = {"young", "old", "urgent", "late"}
    for name, hour, priority in (("young", 3, 0), ("old", 1, 0), ("urgent", 4, 7), ("late", 5, 0)):
        made = pod(name, cpu="4", memory="1Gi")
        cluster.gate(made, created=f"2026-11-16T0{hour}:00:00Z", priority=priority)
    await until(lambda: len(live.pods.objects) == 4)
    run_controller()

    await until(lambda: cluster.gates() == {"late": [GATE]})
    released = ("urgent", "old", "young")
    nodes = [cluster.document(name)["metadata"]["annotations"][NODE_ANNOTATION] for name in released]
    assert nodes == ["a", "b", "c"]


async def test_a_deleted_pod_frees_what_was_kept_for_it(cluster, controller):
    cluster.paused = {"wide"}
    cluster.change("b", unschedulable=True)
    await settle()
    cluster.gate(WIDE)
    await written(controller)
    cluster.gate(OTHER)
    await blocked(controller)

    cluster.server.remove("pods", "wide")
    await until(lambda: cluster.bound() == {"other": "a"})


async def test_a_gate_that_someone_removes_ends_the_wait(cluster, controller):
    cluster.paused = {"wide"}
    cluster.gate(WIDE, nodeSelector={"disk": "ssd"})
    await blocked(controller)

    document = cluster.document("wide")
    cluster.server.put({**document, "spec": {**document["spec"], "schedulingGates": []}})
    await until(lambda: not len(controller.gate.queue))


# The API server fails


async def test_a_pod_that_changes_meanwhile_is_decided_again(cluster, live, run_controller, server):
    """Its selector was restricted after it was read, so the first release is refused."""
    cluster.gate(WIDE)
    await until(lambda: live.find_pod("default", "wide"))
    server.hold()
    cluster.change("b", labels={"disk": "ssd"})
    cluster.gate(WIDE, nodeSelector={"disk": "ssd"})
    run_controller()
    await server.wait_requests("PATCH", "/pods/wide")
    assert cluster.gates() == {"wide": [GATE]}

    server.hold(held=False)
    await until(lambda: cluster.bound() == {"wide": "b"})
    assert live.cluster.record("a").bindings == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(ApiFault(disconnect=True, done=True), id="released, but the response is lost"),
        pytest.param(ApiFault(disconnect=True), id="the connection breaks"),
        pytest.param(ApiFault(garbage=True, done=True), id="released, but the response cannot be read"),
        pytest.param(ApiFault(status=503), id="the server fails"),
        pytest.param(ApiFault(status=504, done=True), id="released after a time-out"),
        pytest.param(ApiFault(status=429, times=10), id="throttled"),
    ],
)
async def test_a_lost_response_neither_loses_the_pod_nor_the_capacity(cluster, controller, server, fault):
    server.inject(fault, verb="patch", resource="pods")
    for created in (WIDE, OTHER):
        cluster.gate(created)

    await until(lambda: sorted(cluster.bound().values()) == ["a", "b"])
    assert cluster.events() == []


async def test_a_release_that_is_refused_is_told_and_tried_again(cluster, controller, server, clock):
    server.inject(ApiFault(status=403, message="pods is forbidden"), verb="patch", resource="pods")
    cluster.gate(WIDE)
    await until(cluster.events)
    text = "cannot release the pod: patch pods default/wide: pods is forbidden"
    assert cluster.events() == [("wide", "ReleaseFailed", text)]
    assert cluster.gates() == {"wide": [GATE]}

    clock.advance(10, controller)
    await until(lambda: cluster.bound() == {"wide": "a"})


async def test_nothing_is_decided_while_the_api_server_is_not_followed(cluster, controller, live, server):
    server.inject(ApiFault(status=503, times=None), verb="watch")
    server.end_watches()
    await until(lambda: live.problems)
    controller.gate.queue.add(PodFacts(pod=WIDE, order=FIRST, state=WaitState.GATED, since=0.0))
    controller.notify()
    await settle()

    assert len(controller.gate.queue) == 1
    assert not controller.gate.releases


async def test_a_thread_decides_on_a_large_pod(cluster, controller, live, monkeypatch):
    """When its node is chosen in the event loop, all decisions on it are made; other pods go on meanwhile."""
    (container,) = pod("x", cpu="1", memory="1Mi").containers
    large = replace(pod("large"), containers=tuple(replace(container, name=f"c{number}") for number in range(3)))
    large = replace(large, init=tuple(replace(container, name=f"i{number}") for number in range(20)))
    undecided = []
    choose = controller.gate._choose  # noqa: SLF001 - the decision itself

    def count_undecided(waiting, pod_class):
        undecided.append(len(live.cluster.undecided(pod_class.pod)))
        return choose(waiting, pod_class)

    monkeypatch.setattr(controller.gate, "_choose", count_undecided)
    cluster.gate(large)
    await until(lambda: cluster.bound() == {"large": "a"})

    assert undecided == [0]


# Wrong choices


async def test_a_pod_that_its_scheduler_cannot_place_is_given_up_and_told(cluster, controller, clock, live):
    cluster.paused = {"wide"}
    cluster.gate(WIDE)
    await written(controller)
    cluster.change("a", unschedulable=True)  # after the choice
    cluster.paused = set()
    cluster.server.bookmark()
    document = cluster.document("wide")
    cluster.server.put({**document, "metadata": {**document["metadata"], "labels": {"a": "b"}}})
    await until(lambda: scheduled_condition(live.find_pod("default", "wide")))
    clock.now += 29
    live.schedule(TimePassed())
    assert len(controller.gate.releases) == 1

    clock.now += 1
    live.schedule(TimePassed())
    assert len(controller.gate.releases) == 0
    assert live.cluster.record("a").bindings == []
    await until(cluster.events)
    text = (
        "released to node a, but its scheduler cannot place it there (0/2 nodes fit); a released pod cannot go "
        "elsewhere: delete it, so that its controller creates another"
    )
    assert cluster.events() == [("wide", "NotScheduled", text)]


async def test_a_silent_scheduler_may_bind_a_pod_long_after(cluster, controller, clock, live):
    cluster.paused = {"wide"}
    cluster.gate(WIDE)
    await written(controller)
    clock.now += 29
    live.schedule(TimePassed())
    assert len(controller.gate.releases) == 1

    clock.now += 1
    live.schedule(TimePassed())
    assert len(controller.gate.releases) == 0
    cluster.paused = set()
    document = cluster.document("wide")
    cluster.server.put({**document, "metadata": {**document["metadata"], "labels": {"a": "b"}}})
    await until(lambda: cluster.bound() == {"wide": "a"})


async def test_a_pod_whose_node_is_gone_is_replaced_if_that_is_allowed(cluster, run_controller):
    controller = run_controller(options=GateOptions(replace_stuck=True))
    cluster.paused = {"wide", "bare"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "9", "controller": True}
    cluster.gate(WIDE)
    document = cluster.document("wide")
    cluster.server.put({**document, "metadata": {**document["metadata"], "ownerReferences": [owner]}})
    cluster.gate(pod("bare", cpu="4", memory="1Gi"))
    await written(controller, 2)
    for name in "ab":
        cluster.server.remove("nodes", name)

    await until(lambda: cluster.bound() == {"bare": ""})
    await until(lambda: len(cluster.events()) == 2)
    assert {(name, text.rpartition(": ")[2]) for name, _, text in cluster.events()} == {
        ("wide", "it is replaced"),
        ("bare", "delete it, so that its controller creates another"),
    }


async def test_the_next_pod_of_a_controller_avoids_the_node_where_one_was_not_scheduled(clock):
    bare = PodFacts(pod=WIDE, order=FIRST, state=WaitState.GATED, since=0.0)
    owned = replace(bare, controllers=frozenset({"9"}))
    avoided = AvoidedNodes(600.0)
    avoided.add(owned, "a", now=0.0)

    assert avoided.of(owned, now=599.0) == {"a"}
    assert avoided.of(owned, now=600.0) == set()
    assert avoided.of(bare, now=1.0) == set()


async def test_a_pod_that_was_bound_elsewhere_is_counted_there(cluster, controller, live):
    cluster.paused = {"wide"}
    cluster.gate(WIDE)
    await written(controller)
    document = cluster.document("wide")
    cluster.server.put({**document, "spec": {**document["spec"], "nodeName": "b"}})

    await until(lambda: not controller.gate.releases)
    assert [binding.uid for binding in live.cluster.record("b").bindings] == [WIDE.uid]
    assert live.cluster.record("a").bindings == []


# Leadership


@pytest.fixture
async def released(cluster, live, clocked, follow):
    """The object of a pod that a controller has released to node ``a``, the only one, and that is not bound."""
    cluster.paused = {"wide"}
    cluster.change("b", unschedulable=True)
    await until(lambda: live.nodes.get("b").spec.unschedulable)
    cluster.gate(WIDE)
    first = GateController(clocked, live)
    task = follow(first.run())
    await written(first)
    task.cancel()
    await settle()
    return cluster.document("wide")


async def test_a_new_leader_counts_on_what_the_last_one_released(cluster, live, released, run_controller):
    assert live.cluster.record("a").bindings == []
    second = run_controller()
    cluster.gate(OTHER)
    await blocked(second)
    assert [binding.uid for binding in live.cluster.record("a").bindings] == [WIDE.uid]
    assert cluster.gates() == {"other": [GATE]}


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"affinity": None}, id="without node affinity"),
        pytest.param({"affinity": pinned_to("b")}, id="pinned to another node"),
        pytest.param({"affinity": pinned_to("a", "b")}, id="pinned to one of two nodes"),
        pytest.param({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}}, id="selects no node"),
        pytest.param({"schedulingGates": [{"name": "example.com/mine"}]}, id="behind a gate of its own"),
        pytest.param({"schedulerName": "none"}, id="of a scheduler that does not exist"),
    ],
)
async def test_a_forged_release_takes_nothing_from_others(cluster, live, clocked, released, forged):
    document = {**released, "spec": {**released["spec"], **forged}}
    cluster.server.put(document)
    await until(lambda: live.find_pod("default", "wide") == convert(cluster.document("wide"), ApiPod))
    second = GateController(clocked, live)
    async with running() as start:
        start(second.run())
        cluster.gate(OTHER)
        await until(lambda: cluster.bound().get("other") == "a")
        assert WIDE.uid not in second.gate.releases


async def test_a_pod_of_a_scheduler_that_pods_are_not_released_to_keeps_its_gate(cluster, controller):
    cluster.gate(WIDE, schedulerName="batch")
    await until(cluster.events)

    text = "pods are released to default-scheduler only; the scheduler of the pod is batch"
    assert cluster.events() == [("wide", "OtherScheduler", text)]
    assert cluster.gates() == {"wide": [GATE]}


async def test_schedulers_that_pods_are_released_to_can_be_named(cluster, run_controller):
    run_controller(options=GateOptions(schedulers=frozenset({"batch"})))
    cluster.gate(WIDE, schedulerName="batch")

    await until(lambda: cluster.bound() == {"wide": "a"})


# Fairness


def of_namespace(namespace, name):
    return replace(pod(name, cpu="4", memory="1Gi"), namespace=namespace)


async def test_a_namespace_leaves_slots_to_pods_of_others_that_wait(cluster, live, run_controller):
    """Its pods are first in the queue, and their scheduler binds none of them."""
    for name in "cd":
        cluster.add(name)
    await until(lambda: live.verdict(WIDE, "d").admits)
    greedy = [of_namespace("greedy", f"g{number}") for number in range(6)]
    cluster.paused = {created.name for created in greedy}
    for created in greedy:
        cluster.gate(created)
    for number in range(2):
        cluster.gate(of_namespace("ml", f"m{number}"), created="2026-11-16T01:00:00Z")
    await until(lambda: len(live.pods.objects) == 8)
    controller = run_controller()

    await until(lambda: cluster.bound()["m0"] and cluster.bound()["m1"])
    assert controller.gate.releases.by_namespace["greedy"] == 2  # half of four nodes


async def test_while_the_scheduler_does_not_answer_a_namespace_gets_a_release_at_a_time(
    cluster, live, run_controller, clock
):
    cluster.add("c")
    await until(lambda: live.verdict(WIDE, "c").admits)
    pods = [of_namespace("ml", f"m{number}") for number in range(4)]
    cluster.paused = {created.name for created in pods}
    controller = run_controller()
    cluster.gate(pods[0])
    await written(controller)
    clock.advance(30, controller)
    await until(lambda: controller.gate.releases.unanswered)
    for created in pods[1:]:
        cluster.gate(created)
    await written(controller)
    await settle()
    assert len(controller.gate.releases) == 1

    cluster.paused = set()
    cluster.server.bookmark()
    cluster.change("a", labels={"x": "y"})
    await until(lambda: sum(map(bool, cluster.bound().values())) >= 3)


async def test_a_pod_after_the_waiting_one_gets_no_cpus_that_it_needs(cluster, controller, clock):
    """The 2 CPUs that are free on ``a`` are on the only NUMA node with room for the pod that waits."""
    cluster.change("b", unschedulable=True)
    await settle()
    for name, cpus in (("left", "3"), ("right", "2")):  # on NUMA node 0, on node 1
        cluster.gate(pod(name, cpu=cpus, memory="1Gi"))
        await bound(cluster, name)
    cluster.gate(WIDE, created="2026-11-16T01:00:00Z")
    await wait_for_kept_node(controller, clock)
    cluster.gate(pod("late", cpu="2", memory="1Gi"), created="2026-11-16T02:00:00Z")
    await until(lambda: len(list(controller.gate.queue.heads(blocked=True))) == 2)
    clock.advance(2, controller)
    await until(lambda: len(cluster.events()) == 2)
    (text,) = [text for name, _, text in cluster.events() if name == "late"]
    assert text == "0/2 nodes will admit the pod: 1 kept for default/wide, which has waited longer, 1 unschedulable."

    cluster.finish("right")
    await bound(cluster, "wide")
    assert cluster.bound()["late"] == ""


async def test_the_node_that_is_kept_has_what_the_pod_needs(cluster, controller, clock):
    """It is the only one with licenses, and it has more pods than the others."""
    cluster.change("b", allocatable={LICENSE: "1"})
    await settle()
    cluster.gate(WIDE, nodeSelector={"zone": "x"})
    cluster.change("b", allocatable={LICENSE: "1"}, labels={"zone": "x"})
    await until(lambda: cluster.bound() == {"wide": "b"})
    cluster.gate(pod("licensed", None, **{"cpu": "4", "memory": "1Gi", LICENSE: "1"}))
    await wait_for_kept_node(controller, clock)

    assert controller.kept_nodes.describe("b") == "kept for default/licensed, which has waited longer"
    cluster.finish("wide")
    await until(lambda: cluster.bound() == {"licensed": "b"})


async def test_pods_after_the_waiting_one_do_not_take_its_licenses_together(cluster, controller, clock):
    """There are three, and the pod that waits needs two of them. Kubelets know nothing of licenses."""
    cluster.change("b", unschedulable=True)
    cluster.change("a", allocatable={LICENSE: "3"})
    await settle()
    cluster.gate(OTHER)
    await bound(cluster, "other")
    cluster.gate(pod("wide", None, **{"cpu": "4", "memory": "1Gi", LICENSE: "2"}), created="2026-11-16T01:00:00Z")
    await wait_for_kept_node(controller, clock)

    licensed = [pod(name, None, **{"cpu": "1", "memory": "1Gi", LICENSE: "1"}) for name in ("first", "second")]
    cluster.gate(licensed[0], created="2026-11-16T02:00:00Z")
    await bound(cluster, "first")
    cluster.gate(licensed[1], created="2026-11-16T03:00:00Z")
    await until(lambda: len(list(controller.gate.queue.heads(blocked=True))) == 2)
    cluster.finish("first")
    await bound(cluster, "second")
    cluster.finish("other")
    await bound(cluster, "wide")


async def test_the_time_behind_the_gate_is_counted_if_the_response_is_lost(cluster, run_controller, clock):
    """The scheduler has bound the pod when it is read again."""
    metrics = GateMetrics()
    controller = run_controller(metrics=metrics)
    cluster.gate(WIDE, nodeSelector={"disk": "ssd"})
    await blocked(controller)
    clock.now += 30
    cluster.server.inject(ApiFault(disconnect=True, done=True), verb="patch", resource="pods")
    cluster.change("b", labels={"disk": "ssd"})

    await until(lambda: metrics.registry.get_sample_value("alignup_gate_wait_seconds_count"))
    assert metrics.registry.get_sample_value("alignup_gate_wait_seconds_sum") == 30


async def test_pods_whose_amounts_overflow_stop_no_other(cluster, controller):
    """Gated, released and bound ones: each is left alone, and the others are released."""
    cluster.paused |= {"released", "wide"}  # of the scheduler
    cluster.server.put(overflowing_pod("gated", schedulingGates=[{"name": GATE}]))
    released = overflowing_pod("released", schedulerName="other")
    released["metadata"]["annotations"] = {NODE_ANNOTATION: "a"}
    cluster.server.put(released)
    cluster.server.put(overflowing_pod("bound", "b"))
    cluster.gate(WIDE)
    await until(lambda: "wide" not in cluster.gates())
    assert cluster.document("wide")["metadata"]["annotations"] == {NODE_ANNOTATION: "a"}
    await until(cluster.events)
    assert [(name, reason) for name, reason, _ in cluster.events()] == [("gated", "InvalidPod")]


def failing_for(monkeypatch, owner, method, name, *, after=False):
    """Let a method raise an error of an unexpected type for the pod *name*, perhaps after it was done."""
    call = getattr(owner, method)

    def fail(subject, *args, **kwargs):
        metadata = getattr(subject, "metadata", subject)
        if metadata.name != name:
            return call(subject, *args, **kwargs)
        if after:
            call(subject, *args, **kwargs)
        raise LookupError("a defect")

    monkeypatch.setattr(owner, method, fail)


def failures(live, step):
    return live.metrics.registry.get_sample_value("alignup_schedule_failed_steps_total", {"step": step})


@pytest.mark.parametrize(
    ("method", "step"),
    [pytest.param("read", "queue", id="reading it"), pytest.param("assume", "place", id="placing it")],
)
async def test_whatever_a_pod_raises_it_is_put_off_and_all_others_are_placed(
    cluster, controller, live, clock, monkeypatch, *, method, step
):
    owner = live if method == "read" else live.scheduling.assumptions
    with monkeypatch.context() as patch:
        failing_for(patch, owner, method, "wide", after=True)
        cluster.gate(WIDE)
        await until(lambda: failures(live, step) == 1)
        cluster.gate(OTHER)
        await until(lambda: cluster.bound().get("other") == "a")

        assert "wide" not in live.assumed
        assert cluster.gates() == {"wide": [GATE]}
        await until(cluster.events)
        text = "alignup failed on the pod, and tries again: LookupError: a defect"
        assert cluster.events() == [("wide", "InternalError", text)]
        clock.advance(1, controller)
        await until(lambda: failures(live, step) == 2)

    clock.now += 1.9  # the second wait is twice as long
    controller.notify()
    await settle()
    assert cluster.gates() == {"wide": [GATE]}
    clock.advance(0.1, controller)
    await until(lambda: cluster.bound() == {"wide": "b", "other": "a"})


async def test_whatever_a_release_raises_the_pod_is_put_off(cluster, controller, live, clock, monkeypatch, *, clocked):
    """The task of a release has nobody who waits for it."""
    with monkeypatch.context() as patch:
        failing_for(patch, clocked, "patch", "wide")
        cluster.gate(WIDE)
        await until(lambda: failures(live, "release") == 1)
        assert (len(controller.gate.releases), live.assumed) == (0, {})
        cluster.gate(OTHER)
        await until(lambda: cluster.bound().get("other") == "a")

    clock.advance(1, controller)
    await until(lambda: cluster.bound() == {"wide": "b", "other": "a"})


async def test_a_gated_pod_waits_for_a_node_with_near_devices(cluster, controller):
    for name in "ab":
        cluster.server.put({**node(name), "status": {"allocatable": {**ALLOCATABLE, "nvidia.com/gpu": "8"}}})
        cluster.kubelets[name] = located_kubelet()
        cluster.report(name)
    cluster.gate(device_pod("x", demand="same-switch"))
    await blocked(controller)

    cluster.kubelets["b"] = located_kubelet(switches=1, gpus=4)
    cluster.report("b")

    await until(lambda: cluster.bound()["x"] == "b")


async def test_a_gated_pod_with_an_unknown_policy_waits_until_it_is_known(cluster, controller):
    unknown = replace(WIDE, annotations={POLICY_ANNOTATION: "strict"})
    cluster.gate(unknown)
    await until(cluster.events)
    ((name, reason, message),) = cluster.events()
    assert (name, reason) == ("wide", "UnknownDemand")
    assert message.startswith("annotation topology.alignup.dev/policy is 'strict'; use ")
    assert cluster.gates() == {"wide": [GATE]}

    cluster.gate(replace(WIDE, annotations={POLICY_ANNOTATION: "restricted"}))

    await until(lambda: cluster.bound()["wide"])
