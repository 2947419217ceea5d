"""Gangs in the extender: offered nodes together, bound together, or not at all.

Each node has 3 and 4 free CPUs on its NUMA nodes: two pods with 3 CPUs, or one with 4.
"""

import asyncio
import json
from dataclasses import replace

import pytest

from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.placement.scheduling.claim_rules import ClaimSuitability
from alignup.placement.scheduling.events import TimePassed
from alignup.placement.scheduling.options import PATIENCE_SECONDS, ExtenderOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.tentative_gangs import (
    KEPT_SECONDS,
    PAUSE_SECONDS,
    TENTATIVE_SECONDS,
    UNBOUND_SECONDS,
)
from alignup.schedule.extender.messages import BindingArgs, ExtenderArgs
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.pod_groups import COSCHEDULING, KAI, KUBERNETES, VOLCANO
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template
from tests.schedule.gang_objects import SERVED_GROUPS, Scheduler, gang, member, pod_group
from tests.schedule.test_extender import PLAIN, create
from tests.schedule.test_kept_nodes import end, mark_unschedulable
from tests.schedule.test_node_resource_topology import SERVED as SERVED_TOPOLOGIES
from tests.schedule.test_node_resource_topology import topology
from tests.schedule.test_wake_up import clock, timing

__all__ = ["clock", "timing"]

pytestmark = pytest.mark.anyio

SINGLE = pod("single", cpu="3", memory="1Gi")


@pytest.fixture
def nodes(nodes):
    for resource in SERVED_GROUPS:
        nodes.server.serve(resource)
    return nodes


@pytest.fixture
async def service(nodes, start_service, request):
    """The service, which leads; with other options as a parameter."""
    return await start_service(**getattr(request, "param", {}))


@pytest.fixture
def scheduler(http):
    return Scheduler(http)


def assumed(service):
    return {uid: hosts[0] for uid, hosts in service.live.assumed.items()}


def admit_bound(nodes, server, pods):
    """Let the kubelets admit the pods in the order of their bindings; return those that they reject."""
    by_uid, rejected = {each.uid: each for each in pods}, []
    bound = [document for document in server.objects("pods") if document["spec"].get("nodeName")]
    for document in sorted(bound, key=lambda document: int(document["metadata"]["resourceVersion"])):
        each, host = by_uid[document["metadata"]["uid"]], document["spec"]["nodeName"]
        kubelet = nodes.kubelets[host]
        if kubelet.host.decide_without_plugins(each).admitted:
            kubelet.run(each)
        else:
            rejected.append(each.name)
    return rejected


async def test_pods_of_a_gang_share_nodes_and_are_bound_in_parallel(nodes, service, scheduler, server):
    """A node gets one pod at a time otherwise, and then waits for a report."""
    pods = gang(4)
    await create(nodes, service, *pods)

    assert await scheduler.schedule(pods) == [""] * 4

    assert sorted(nodes.bound().values()) == ["a", "a", "b", "b"]
    assert admit_bound(nodes, server, pods) == []
    await until(lambda: not service.live.assumed)
    assert len(service.live.scheduling.gangs) == 0


async def test_a_gang_that_does_not_fit_waits_as_a_whole_and_leaves_no_trace(nodes, service, scheduler):
    pods = gang(5)
    await create(nodes, service, *pods, SINGLE)

    assert [await scheduler.ask(each) for each in pods] == [[]] * 5

    assert scheduler.reasons == dict.fromkeys(
        "ab", "gang default/train: 4 of 5 pods fit together; a lacks 2 CPUs on one NUMA node"
    )
    assert assumed(service) == {}
    assert await scheduler.ask(SINGLE)


async def test_a_gang_waits_in_words_until_all_its_pods_exist(nodes, service, scheduler):
    pods = gang(4)
    await create(nodes, service, *pods[:3])

    assert await scheduler.ask(pods[0]) == []
    assert set(scheduler.reasons.values()) == {"gang default/train: 3 of 4 pods exist"}

    nodes.create(pods[3], schedulingGates=[{"name": "example.com/wait"}])
    await until(lambda: service.live.find_pod("default", pods[3].name))
    assert await scheduler.ask(pods[0]) == []
    assert set(scheduler.reasons.values()) == {"gang default/train: 4 of 4 pods exist, 1 of them behind gates"}

    nodes.create(pods[3])
    await until(lambda: not service.live.find_pod("default", pods[3].name).spec.scheduling_gates)
    assert await scheduler.schedule(pods) == [""] * 4


async def test_others_cannot_take_the_places_of_a_gang_until_they_are_given_back(nodes, service, scheduler, clock):
    pods = gang(4)
    await create(nodes, service, *pods, SINGLE)
    assert await scheduler.ask(pods[0])
    assert assumed(service).keys() == {each.uid for each in pods}

    assert await scheduler.ask(SINGLE) == []

    clock[0] += TENTATIVE_SECONDS
    await until(lambda: not service.live.assumed)
    assert await scheduler.ask(SINGLE)


async def test_a_gang_that_its_scheduler_never_binds_does_not_keep_others_out(nodes, service, scheduler, clock):
    """Something else prevents it, and the scheduler asks about it again and again."""
    pods = gang(4)
    await create(nodes, service, *pods, SINGLE)
    for _ in range(int(UNBOUND_SECONDS) // 10):
        assert await scheduler.ask(pods[0])
        clock[0] += 10

    assert await scheduler.ask(pods[0]) == []
    waits = "gang default/train had places, but its scheduler did not bind it within 60 s"
    assert set(scheduler.reasons.values()) == {waits}
    assert await scheduler.ask(SINGLE)
    clock[0] += PAUSE_SECONDS
    assert await scheduler.ask(pods[0])


async def test_more_pods_for_a_gang_that_runs_do_not_keep_others_out_either(nodes, service, scheduler, clock):
    pods = gang(4, size=2)
    for each in pods[:2]:
        nodes.create(each, "a")
        nodes.admit("a", each)
    await create(nodes, service, *pods[2:], SINGLE)
    await until(lambda: len(service.live.cluster.record("a").ledger.pods) == 2)
    for _ in range(int(UNBOUND_SECONDS) // 10):
        assert [await scheduler.ask(each) for each in pods[2:]] == [["b"]] * 2
        clock[0] += 10

    assert await scheduler.ask(pods[2]) == []
    assert assumed(service) == {}
    assert await scheduler.ask(SINGLE) == ["b"]


async def test_a_gang_that_no_longer_fits_is_refused_before_its_first_binding(nodes, service, scheduler):
    """Another scheduler binds a pod to a node while ours asks about the gang."""
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    nodes.create(SINGLE, "a")
    await until(lambda: service.live.find_pod("default", "single"))

    problems = await asyncio.gather(*(scheduler.bind(each, node) for each, node in zip(pods, offered, strict=True)))

    assert all(problems)
    assert {node for name, node in nodes.bound().items() if name != "single"} == {""}
    assert assumed(service) == {}


async def test_after_the_first_binding_the_rest_keeps_its_places(nodes, service, scheduler, clock):
    pods = gang(4)
    await create(nodes, service, *pods, SINGLE)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    assert await scheduler.bind(pods[0], offered[0]) == ""

    clock[0] += KEPT_SECONDS - 1
    assert await scheduler.ask(SINGLE) == []
    assert await scheduler.bind(pods[1], offered[1]) == ""

    clock[0] += KEPT_SECONDS - 1
    assert await scheduler.ask(pods[2]) == [offered[2]]  # a question is no binding
    clock[0] += 1
    service.live.schedule(TimePassed())
    assert assumed(service).keys().isdisjoint({pods[2].uid, pods[3].uid})
    await until(lambda: [event["reason"] for event in nodes.server.objects("events")] == ["GangIncomplete"] * 2)


async def test_pods_are_bound_to_a_node_in_an_order_that_its_kubelet_admits(nodes, service, scheduler, server):
    """2, 2 and 3 CPUs fit together on 3 and 4 only if the pod with 3 is the first."""
    pods = [member(f"train-{cpus}{place}", cpus, size=3) for cpus, place in ((2, 0), (2, 1), (3, 0))]
    await create(nodes, service, *pods)
    scheduler.names = "a"

    assert await scheduler.schedule(pods) == [""] * 3
    assert admit_bound(nodes, server, pods) == []


async def test_a_binding_does_not_wait_for_ever_for_those_before_it(nodes, service, scheduler, monkeypatch):
    monkeypatch.setattr("alignup.placement.scheduling.bindings.TURN_SECONDS", 0.0)
    pods = [member(f"train-{cpus}{place}", cpus, size=3) for cpus, place in ((2, 0), (2, 1), (3, 0))]
    await create(nodes, service, *pods)
    scheduler.names = "a"
    for each in pods:
        assert await scheduler.ask(each) == ["a"]

    assert await scheduler.bind(pods[0], "a") == "other pods of gang default/train must be bound to node a before"
    assert [await scheduler.bind(each, "a") for each in reversed(pods)] == [""] * 3


async def test_a_pod_that_is_deleted_before_the_first_binding_stops_the_gang(nodes, service, scheduler):
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    nodes.server.remove("pods", pods[2].name)
    await until(lambda: service.live.find_pod("default", pods[2].name) is None)

    assert assumed(service) == {}
    assert await scheduler.bind(pods[0], offered[0]) == "gang default/train: 3 of 4 pods exist"


async def test_a_pod_that_is_deleted_midway_makes_room_and_does_not_stop_the_rest(nodes, service, scheduler):
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    assert await scheduler.bind(pods[0], offered[0]) == ""
    nodes.server.remove("pods", pods[2].name)
    await until(lambda: pods[2].uid not in service.live.assumed)

    assert [await scheduler.bind(pods[number], offered[number]) for number in (1, 3)] == ["", ""]
    replacement = member("train-new", size=4)
    await create(nodes, service, replacement)
    for host in "ab":
        for each, node in zip(pods, offered, strict=True):
            if node == host and each is not pods[2]:
                nodes.admit(host, each)
    await until(lambda: service.live.verdict(replacement, offered[2]).admits)
    assert await scheduler.schedule([replacement]) == [""]


async def test_the_scheduler_may_consider_other_nodes_for_later_pods(nodes, service, scheduler):
    nodes.add("c")
    await until(lambda: service.live.cluster.record("c"))
    pods = gang(4)
    await create(nodes, service, *pods)
    first = await scheduler.ask(pods[0], "ab")

    offered = [first, *[await scheduler.ask(each, "bc") for each in pods[1:]]]

    assert all(offered)
    assert not {node for nodes in offered[1:] for node in nodes} & {"a"}
    hosts = zip(pods, offered, strict=True)
    assert await asyncio.gather(*(scheduler.bind(each, host) for each, (host,) in hosts)) == [""] * 4


async def test_a_refusal_about_the_nominated_node_does_not_hold_for_all_nodes(nodes, service, scheduler):
    """kube-scheduler asks about the nominated node of a pod first, then about all."""
    pods = gang(4)
    await create(nodes, service, *pods)

    assert await scheduler.ask(pods[0], "a") == []
    assert scheduler.reasons["a"].startswith("gang default/train: 2 of 4 pods fit together")
    assert await scheduler.ask(pods[0], "ab") == ["a"]


async def test_a_question_about_fewer_nodes_leaves_a_gang_its_places(nodes, service, scheduler):
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    last, place = pods[-1], offered[-1]
    other = "a" if place == "b" else "b"
    before = assumed(service)

    assert await scheduler.ask(last, other) == []
    assert assumed(service) == before
    assert await scheduler.ask(last, "ab") == [place]

    assert [await scheduler.ask(last, other) for _ in range(2)] == [[], []]
    assert assumed(service) == {}, "the scheduler does not consider its node any more"


async def test_a_new_leader_continues_with_a_half_bound_gang(nodes, service, scheduler, start_service):
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    assert await scheduler.bind(pods[0], offered[0]) == ""
    next_leader = await start_service()
    assert assumed(next_leader).keys() == {each.uid for each in pods[1:]}
    assert not next_leader.live.choose(SINGLE)
    await until(lambda: sum("room-found" in str(document) for document in nodes.server.objects("pods")) == 3)
    nodes.admit(offered[0], pods[0])
    await until(lambda: pods[0].uid in next_leader.live.cluster.record(offered[0]).ledger.pods)

    for each, node in zip(pods[1:], offered[1:], strict=True):
        assert not (await next_leader.bind.respond(BindingArgs(each.name, "default", node))).error
    assert "" not in nodes.bound().values()


async def ask_next(leader, asked, **spec):
    """Ask another service than that of the scheduler."""
    message = {"Pod": api_pod(asked, phase="Pending", **spec), "NodeNames": ["a", "b"]}
    return leader.filter.answer(ExtenderArgs.read(json.dumps(message).encode())).node_names


@pytest.mark.parametrize(("asks", "kept"), [("volcano", True), ("default-scheduler", False)])
async def test_a_new_leader_keeps_no_places_for_schedulers_that_never_ask(nodes, start_service, asks, kept):
    pods = gang(4)
    for each in pods:
        nodes.create(each, "a" if each is pods[0] else "", schedulerName="volcano")
    nodes.admit("a", pods[0])
    leader = await start_service()
    assert assumed(leader) == {}

    offered = await ask_next(leader, SINGLE, schedulerName=asks)

    assert bool(offered) is not kept
    assert assumed(leader).keys() == ({each.uid for each in pods[1:]} if kept else set())
    assert len(leader.live.scheduling.wake_ups) == (4 if kept else 0)


async def test_a_new_leader_keeps_places_beside_a_bound_launcher_when_its_scheduler_asks(
    nodes, service, scheduler, start_service
):
    """A pod without resources of its own has no annotation that tells who bound it."""
    workers = gang(4, size=5)
    launcher = make_launcher(workers)
    await create(nodes, service, *workers, launcher)
    assert [bool(await scheduler.ask(each)) for each in (*workers, launcher)] == [True] * 5
    assert await scheduler.bind(launcher, "a") == ""
    leader = await start_service()

    assert await ask_next(leader, SINGLE) == []


@pytest.mark.parametrize("kept", [{}, {"c": "kept for another pod"}], ids=["", "a kept node"])
async def test_nodes_are_asked_once_about_the_devices_of_equal_pods(nodes, service, scheduler, monkeypatch, kept):
    """Each pod has a claim of its own from one template; node c rejects them all."""
    monkeypatch.setattr(SchedulingState, "refusals", lambda _state, _pod: kept)
    nodes.add("c")
    full = [pod(f"full-{cpus}", cpu=str(cpus), memory="1Gi") for cpus in (4, 3)]
    for each in full:
        nodes.create(each, "c")
        nodes.admit("c", each)
    pods = [claiming(each, preference="require") for each in gang(4)]
    documents = [device_class(), template(), *(resource_slice(name, (0, 0, 1, 1)) for name in "abc")]
    for document in (*documents, *(claim(f"{each.name}-gpu") for each in pods)):
        nodes.server.put(document)
    for each in pods:
        document = api_pod(each, phase="Pending")
        document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"{each.name}-gpu"}]
        nodes.server.put(document)
    live = service.live
    await until(lambda: live.claims.devices == 12 and len(live.claims.objects.claims) == 4)
    await until(lambda: len(live.cluster.record("c").ledger.pods) == 2 and live.find_pod("default", pods[3].name))
    asked: list[str] = []
    suits = ClaimSuitability.suits

    def ask(claims, pod, node):
        asked.append(node)
        return suits(claims, pod, node)

    monkeypatch.setattr(ClaimSuitability, "suits", ask)

    assert sorted([(await scheduler.ask(each, "abc"))[0] for each in pods]) == ["a", "a", "b", "b"]
    assert sorted(asked) == ["a", "b"]


async def test_a_group_of_another_namespace_is_another_group(nodes, service, scheduler):
    pods = gang(4)
    forged = [member(f"forged-{number}", size=1, namespace="other") for number in range(3)]
    await create(nodes, service, *pods[:3], *forged)

    assert await scheduler.ask(pods[0]) == []
    assert set(scheduler.reasons.values()) == {"gang default/train: 3 of 4 pods exist"}


@pytest.mark.parametrize("done", [True, False])
async def test_a_lost_response_of_a_binding_keeps_the_place(nodes, service, scheduler, done):
    pods = gang(4)
    await create(nodes, service, *pods)
    offered = [(await scheduler.ask(each))[0] for each in pods]
    nodes.server.inject(ApiFault(disconnect=True, done=done), verb="create", resource="pods")

    assert "unknown whether" in await scheduler.bind(pods[0], offered[0])
    if not done:
        assert await scheduler.ask(pods[0]) == [offered[0]]
        assert await scheduler.bind(pods[0], offered[0]) == ""
    for each, node in zip(pods[1:], offered[1:], strict=True):
        assert await scheduler.bind(each, node) == ""
    assert "" not in nodes.bound().values()


@pytest.mark.parametrize("first", ["worker", "launcher"])
async def test_a_pod_whose_binding_was_lost_is_not_bound_alone_later(nodes, service, scheduler, clock, first):
    """The others have no places any more when the scheduler tries it again."""
    workers = gang(4, size=5)
    pods = {"worker": workers[0], "launcher": make_launcher(workers)}
    await create(nodes, service, *workers, pods["launcher"], SINGLE)
    offered = await scheduler.ask(pods[first])
    nodes.server.inject(ApiFault(disconnect=True, done=False), verb="create", resource="pods")
    assert "unknown whether" in await scheduler.bind(pods[first], offered[0])
    clock[0] += KEPT_SECONDS
    nodes.create(SINGLE, "a")
    await until(lambda: service.live.find_pod("default", "single").spec.node_name)

    assert await scheduler.ask(pods[first]) == []
    assert "of 5 pods fit together" in await scheduler.bind(pods[first], offered[0])


async def test_pods_that_no_kubelet_rejects_wait_with_their_gang(nodes, service, scheduler):
    workers = gang(5, size=6)
    launcher = make_launcher(workers)
    await create(nodes, service, *workers, launcher)
    assert await scheduler.ask(launcher) == []

    nodes.add("c")
    await until(lambda: service.live.cluster.record("c"))
    scheduler.names = "abc"
    assert await scheduler.ask(launcher) == ["a", "b", "c"]
    assert await scheduler.bind(launcher, "a") == ""
    assert await scheduler.schedule(workers) == [""] * 5


UNKNOWN_NODES = {
    "--allow-unknown": {"extender": ExtenderOptions(allow_unknown=True)},
    "--approximate": {"live": LiveClusterOptions(approximate=True)},
}


@pytest.fixture
async def more_nodes(nodes, service):
    """Nodes c and d, without HostState."""
    nodes.server.serve(SERVED_TOPOLOGIES)
    for name in "cd":
        nodes.server.put(topology(nodes.add(name, observed=False), name=name))
    await until(lambda: service.live.nodes.get("d"))
    await until(lambda: service.live.topologies.get("d") or not service.live.options.approximate)


@pytest.mark.parametrize("service", UNKNOWN_NODES.values(), ids=UNKNOWN_NODES, indirect=True)
@pytest.mark.usefixtures("more_nodes")
async def test_a_gang_that_does_not_fit_goes_to_nodes_without_host_state_one_by_one(nodes, service, scheduler):
    workers = gang(6, size=7)
    pods = [make_launcher(workers), *workers]
    await create(nodes, service, *pods)
    offered = []
    for each in pods:
        offered.append((await scheduler.ask(each, "abcd"))[0])
        assert await scheduler.bind(each, offered[-1]) == ""
        await until(lambda: service.live.find_pod("default", each.name).spec.node_name)  # noqa: B023 - now

    assert set(offered[:3]) <= {"c", "d"}
    assert sorted(offered[3:]) == ["a", "a", "b", "b"], "the rest fits together"


@pytest.mark.parametrize("service", UNKNOWN_NODES.values(), ids=UNKNOWN_NODES, indirect=True)
@pytest.mark.usefixtures("more_nodes")
async def test_a_gang_that_does_not_fit_is_not_bound_to_nodes_with_host_state(nodes, service, scheduler):
    pods = gang(6)
    await create(nodes, service, *pods)
    assert set(await scheduler.ask(pods[0], "abcd")) <= {"c", "d"}

    assert await scheduler.ask(pods[0], "ab") == []
    assert await scheduler.bind(pods[0], "a") == scheduler.reasons["a"]


@pytest.mark.parametrize("service", UNKNOWN_NODES.values(), ids=UNKNOWN_NODES, indirect=True)
@pytest.mark.usefixtures("more_nodes")
async def test_a_gang_of_which_pods_are_missing_goes_nowhere(nodes, service, scheduler):
    pods = gang(6)
    await create(nodes, service, *pods[:5])

    assert await scheduler.ask(pods[0], "abcd") == []
    assert await scheduler.bind(pods[0], "c") == "gang default/train: 5 of 6 pods exist"


@pytest.mark.usefixtures("more_nodes")
async def test_a_gang_waits_for_nodes_with_host_state_by_default(nodes, service, scheduler):
    pods = gang(6)
    await create(nodes, service, *pods)

    assert await scheduler.ask(pods[0], "abcd") == []
    assert "4 of 6 pods fit together" in await scheduler.bind(pods[0], "c")


def make_launcher(workers):
    """A pod of their gang that no kubelet rejects because of NUMA nodes."""
    plain = read_pod({**PLAIN, "apiVersion": "v1", "kind": "Pod"})
    return replace(plain, labels=workers[0].labels, annotations=workers[0].annotations)


@pytest.mark.parametrize(
    ("fault", "kept"),
    [(ApiFault(status=409), 0), (ApiFault(disconnect=True, done=False), 4), (ApiFault(), 4)],
    ids=["it failed", "its outcome is unknown", "it succeeded"],
)
async def test_places_are_kept_after_the_binding_of_a_launcher(nodes, service, scheduler, clock, *, fault, kept):
    workers = gang(4, size=5)
    launcher = make_launcher(workers)
    await create(nodes, service, *workers, launcher)
    offered = [(await scheduler.ask(each))[0] for each in (*workers, launcher)]
    nodes.server.inject(fault, verb="create", resource="pods")
    await scheduler.bind(launcher, "a")
    clock[0] += TENTATIVE_SECONDS
    service.live.schedule(TimePassed())

    assert len(assumed(service).keys() & {each.uid for each in workers}) == kept
    if kept:
        assert [await scheduler.bind(*place) for place in zip(workers, offered, strict=False)] == [""] * 4
        assert len(service.live.scheduling.gangs) == 0


@pytest.mark.parametrize(
    ("source", "version"), [(KUBERNETES, 0), (KUBERNETES, 1), (COSCHEDULING, 0), (VOLCANO, 0), (KAI, 0)]
)
async def test_the_object_of_a_group_has_the_minimum(nodes, service, scheduler, source, version):
    """Four of five pods fit, and three suffice."""
    nodes.server.put(pod_group(3, source=source, version=version))
    spec = {"schedulingGroup": {"podGroupName": "train"}} if source == KUBERNETES else {}
    pods = [replace(each, labels={} if spec else {source: "train"}, annotations={}) for each in gang(5)]
    await create(nodes, service, *pods, **spec)
    key = service.live.pod_groups.key(pods[0].uid)
    await until(lambda: service.live.pod_groups.members(key).minimum == 3)

    offered = [await scheduler.ask(each, **spec) for each in pods]

    assert sorted(map(len, offered)) == [0, 1, 1, 1, 1]


async def test_without_a_minimum_all_pods_that_exist_are_needed(nodes, service, scheduler):
    pods = [replace(each, labels={}, annotations={VOLCANO: "train"}) for each in gang(5)]
    await create(nodes, service, *pods)
    assert await scheduler.ask(pods[0]) == []

    nodes.server.remove("pods", pods[4].name)
    await until(lambda: service.live.find_pod("default", pods[4].name) is None)
    assert await scheduler.schedule(pods[:4]) == [""] * 4


async def test_room_for_a_whole_gang_wakes_all_of_it(nodes, service, scheduler, clock):
    holder = pod("holder", cpu="4", memory="1Gi")
    nodes.create(holder, "a")
    nodes.admit("a", holder)
    pods = gang(4)
    await create(nodes, service, *pods)
    await until(lambda: holder.uid in service.live.cluster.record("a").ledger.pods)
    assert [await scheduler.ask(each) for each in pods] == [[]] * 4
    clock[0] += 100

    nodes.kubelets["a"].end(holder.uid)
    nodes.server.remove("pods", "holder")
    nodes.report("a")

    await until(lambda: sum("room-found" in str(document) for document in nodes.server.objects("pods")) == 4)
    assert await scheduler.schedule(pods) == [""] * 4


async def test_a_gang_is_not_overtaken_for_ever(nodes, service, scheduler, http, clock):
    """Small pods come as others end. The gang fits once those have ended that ran when its nodes were kept."""
    small = [pod(f"small-{number}", cpu="2", memory="1Gi") for number in range(30)]
    running: list[tuple] = []
    came = 0

    async def come():
        nonlocal came
        each, came = small[came], came + 1
        if offered := await scheduler.ask(each):
            await create(nodes, service, each)
            assert await scheduler.bind(each, offered[0]) == ""
            nodes.admit(offered[0], each)
            await until(lambda: each.uid in service.live.cluster.record(offered[0]).ledger.pods)
            running.append((each, offered[0]))

    async def end_oldest():
        each, host = running.pop(0)
        await end(nodes, service, each, host)

    for _ in range(6):
        await come()
    assert len(running) == 6
    pods = gang(4)
    for each in pods:
        await mark_unschedulable(nodes, service, each)
        assert await scheduler.ask(each) == []
    for _ in range(8):
        await end_oldest()
        await come()
        assert await scheduler.ask(pods[0]) == []
    assert len(running) == 6

    clock[0] += PATIENCE_SECONDS
    await come()
    assert len(service.live.scheduling.kept_nodes) == 2
    for _ in range(len(running)):
        await end_oldest()
        await come()
    assert running == []
    assert scheduler.reasons["a"] == "kept for gang default/train, which has waited longer"
    assert await scheduler.schedule(pods) == [""] * 4


async def test_no_pod_is_bound_to_a_node_after_one_whose_binding_is_unknown(nodes, service, scheduler, monkeypatch):
    """It could be bound before or after it, and the kubelet admits in this order."""
    monkeypatch.setattr("alignup.placement.scheduling.bindings.TURN_SECONDS", 0.0)
    pods = gang(2)
    await create(nodes, service, *pods)
    scheduler.names = "a"
    for each in pods:
        assert await scheduler.ask(each) == ["a"]
    nodes.server.inject(ApiFault(disconnect=True, done=False), verb="create", resource="pods")
    assert "unknown whether" in await scheduler.bind(pods[0], "a")

    assert await scheduler.bind(pods[1], "a") == "other pods of gang default/train must be bound to node a before"
    assert [await scheduler.bind(each, "a") for each in pods] == ["", ""]
