"""Which pods to evict, as an extender tells kube-scheduler: up to 1.37, and from 1.38 on."""

import asyncio
from dataclasses import replace

import pytest

from alignup.kubernetes.api import Access, ApiClient
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.schedule.extender.preempt import CHOOSES_VICTIMS
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiServer, ServedResource
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import SERVED, api_pod
from tests.schedule.gang_objects import SERVED_GROUPS, gang
from tests.schedule.test_extender import PLAIN, WIDE, filtered, post

pytestmark = pytest.mark.anyio

BUDGETS = ServedResource(kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy", version="v1")
HIGH = replace(WIDE, priority=1000)  # 4 CPUs: all of NUMA node 1


async def fill(nodes, service, important):
    """A pod on each NUMA node of ``a`` and ``b``; *important* is the priority of those on ``b``."""
    for host, priority in (("a", 10), ("b", important)):
        for number, cpus in enumerate("34"):
            held = replace(pod(f"{host}-{number}", cpu=cpus, memory="1Gi"), priority=priority)
            nodes.create(held, host, priority=priority)
            nodes.admit(host, held)
    await until(lambda: not service.live.choose(WIDE) and len(service.live.pods.objects) >= 4)
    return service


@pytest.fixture
async def full(nodes, service):
    """Node ``a`` has a pod on each NUMA node, ``b`` an important one; each admits 2 more CPUs somewhere else."""
    return await fill(nodes, service, 2000)


async def victims(http, proposed, asked=HIGH):
    """What preempt answers: node → uids."""
    meta = {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in proposed.items()}
    document = asked if isinstance(asked, dict) else api_pod(asked, priority=asked.priority)
    message = {"Pod": document, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    answer = await post(http, "preempt", message)
    by_node = answer["NodeNameToMetaVictims"]
    return {
        node: ([victim["UID"] for victim in chosen["Pods"]], chosen["NumPDBViolations"])
        for node, chosen in by_node.items()
    }


async def test_victims_that_are_enough_are_kept(http, full):
    assert await victims(http, {"a": ["a-1"]}) == {"a": (["a-1"], 0)}


async def test_victims_that_free_the_wrong_numa_node_are_not_enough(http, full):
    assert await victims(http, {"a": ["a-0"]}) == {"a": (["a-0", "a-1"], 0)}


async def test_without_victims_ours_are_chosen(http, full):
    """As from Kubernetes 1.38 on, where the node as a whole has room."""
    assert await victims(http, {"a": [], "b": [], "gone": []}) == {"a": (["a-1"], 0)}


async def test_whole_pods_are_answered_with_uids(http, full):
    items = [{"metadata": {"name": "a-1", "uid": "a-1"}}]
    proposed = {"a": {"Pods": items, "NumPDBViolations": 1}}
    message = {"Pod": api_pod(HIGH, priority=1000), "NodeNameToVictims": proposed, "NodeNameToMetaVictims": None}

    assert await post(http, "preempt", message) == {
        "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "a-1"}], "NumPDBViolations": 1}}
    }


async def test_victims_for_a_pod_that_no_kubelet_aligns_are_kept(http, full):
    assert await victims(http, {"a": ["a-0"], "gone": ["x"], "b": []}, PLAIN) == {"a": (["a-0"], 0), "gone": (["x"], 0)}


async def test_disruption_budgets_count(http, full, nodes):
    spec = {"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "x"}, "spec": spec}
    nodes.server.serve(BUDGETS)
    nodes.server.put({**budget, "status": {"disruptionsAllowed": 0}})
    document = next(stored for stored in nodes.server.objects("pods") if stored["metadata"]["name"] == "a-1")
    nodes.server.put({**document, "metadata": {**document["metadata"], "labels": {"app": "x"}}})
    await until(lambda: full.live.find_pod("default", "a-1").metadata.labels)

    assert await victims(http, {"a": []}) == {"a": (["a-1"], 1)}  # there is no other way


@pytest.mark.parametrize(
    ("version", "failed"), [((1, 37), {}), (CHOOSES_VICTIMS, {"a": "not enough cpu on one NUMA node"})]
)
async def test_rejections_are_resolvable_where_the_scheduler_lets_us_choose(http, full, version, failed):
    full.live.scheduling.preemption.chooses = version >= CHOOSES_VICTIMS

    answer = await filtered(http, api_pod(HIGH, priority=1000))

    assert answer["FailedNodes"] == failed
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "b"} - set(failed)


@pytest.mark.parametrize(
    ("version", "option", "chooses"),
    [("1.37", None, False), ("1.38", None, True), ("1.38", False, False), ("1.37", True, True)],
)
async def test_the_version_of_the_api_server_tells_who_chooses_victims(timing, follow, version, option, chooses):
    async with ApiServer(version=version) as server:
        server.serve(SERVED)
        async with ApiClient(Access(server=server.url), timing=timing) as client:
            options = ExtenderOptions(chooses_victims=option)
            service = ScheduleService(client, extender=options)
            following = follow(service.run())
            await until(lambda: service.leading)
            following.cancel()
            await asyncio.wait([following])

    assert service.live.scheduling.preemption.chooses is chooses


async def test_only_some_nodes_are_searched_for_victims(full, monkeypatch):
    preemption = full.live.scheduling.preemption
    preemption.chooses = True
    huge = replace(pod("huge", cpu="64", memory="1Gi"), priority=1000)

    assert preemption.resolvable(huge, ["a", "b"]) == set()
    monkeypatch.setattr("alignup.placement.scheduling.preemption.MAX_SEARCHED", 0)
    assert preemption.resolvable(huge, ["a", "b"]) == {"a"}  # not searched; b has no pods of lower priority


# Gangs

TRAIN = [replace(each, priority=1000) for each in gang(2, 4)]  # with 4 CPUs each: all of NUMA node 1


@pytest.fixture
def nodes(nodes):
    for resource in SERVED_GROUPS:
        nodes.server.serve(resource)
    return nodes


@pytest.fixture
async def crowded(nodes, service, request):
    """A gang waits, and both nodes have a pod on each NUMA node; the parameter is the priority of the one on b."""
    for each in TRAIN:
        nodes.create(each, priority=1000)
    await fill(nodes, service, request.param)
    await until(lambda: len(service.live.pods.objects) == 6)
    return service


async def gang_victims(http, asked, names="ab"):
    return await victims(http, {name: [] for name in names}, asked=asked)


@pytest.mark.parametrize("crowded", [10], indirect=True)
async def test_each_pod_of_a_gang_is_told_the_victims_of_its_own_node(http, crowded):
    answers = [await gang_victims(http, each) for each in TRAIN]

    assert answers == [{"a": (["a-1"], 0)}, {"b": (["b-1"], 0)}]


@pytest.mark.parametrize("crowded", [10], indirect=True)
async def test_a_pod_of_a_gang_whose_victims_end_first_keeps_its_node(http, nodes, crowded):
    """Its own victims are the same as before, although there is more room now."""
    nodes.kubelets["a"].end("a-1")
    nodes.server.remove("pods", "a-1")
    nodes.report("a")
    await until(lambda: "a-1" not in crowded.live.cluster.record("a").ledger.pods)

    assert await gang_victims(http, TRAIN[0]) == {}
    assert await gang_victims(http, TRAIN[1]) == {"b": (["b-1"], 0)}


@pytest.mark.parametrize("crowded", [10], indirect=True)
async def test_the_victims_of_a_gang_are_on_nodes_that_the_scheduler_proposes(http, crowded):
    assert await gang_victims(http, TRAIN[0], "b") == {"b": (["b-1"], 0)}
    assert await victims(http, {"b": ["b-0"]}, TRAIN[0]) == {"b": (["b-0", "b-1"], 0)}


@pytest.mark.parametrize("crowded", [2000], indirect=True)
async def test_nothing_is_evicted_for_a_gang_that_cannot_start(http, crowded):
    """One of its pods would have room on a, and the other nowhere."""
    assert [await gang_victims(http, each) for each in TRAIN] == [{}, {}]


@pytest.mark.parametrize("crowded", [10], indirect=True)
async def test_nothing_is_evicted_for_a_gang_whose_pods_are_missing(http, nodes, crowded):
    nodes.server.remove("pods", TRAIN[1].name)
    await until(lambda: crowded.live.find_pod("default", TRAIN[1].name) is None)

    assert await gang_victims(http, TRAIN[0]) == {}


@pytest.mark.parametrize("crowded", [10, 2000], indirect=True)
async def test_a_refused_gang_is_resolvable_where_the_scheduler_lets_us_choose(http, crowded):
    crowded.live.scheduling.preemption.chooses = True
    possible = (crowded.live.cluster.record("b").ledger.pods["b-1"].pod.priority or 0) < 1000

    answer = await filtered(http, api_pod(TRAIN[0], priority=1000), "ab")

    assert not answer["NodeNames"]
    assert set(answer["FailedNodes"]) == ({"a"} if possible else set())
    assert {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]} == {"a", "b"}
