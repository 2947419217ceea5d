"""Moves on the page of the cluster, and proposals for pods that wait long: nothing is evicted for either."""

import re
from dataclasses import replace

import pytest

from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiPod
from alignup.placement.scheduling.options import PATIENCE_SECONDS
from alignup.schedule.cluster_plan import JOBS, VOLUME_CLAIMS, VOLUMES
from alignup.schedule.disruption_budgets import POD_DISRUPTION_BUDGETS
from alignup.schedule.move_proposals import SEARCH_AGAIN
from alignup.schedule.move_searches import RENEW_SECONDS, choose_shapes
from alignup.schedule.object_events import EVENTS
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, served
from tests.schedule.gang_objects import SERVED_GROUPS, member
from tests.schedule.test_kept_nodes import UNSCHEDULABLE
from tests.schedule.test_pages import text_of
from tests.schedule.test_wake_up import clock, timing

__all__ = ["clock", "timing"]

pytestmark = pytest.mark.anyio

REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}


@pytest.fixture
def nodes(nodes):
    for resource in (POD_DISRUPTION_BUDGETS, JOBS, VOLUME_CLAIMS, VOLUMES, EVENTS):
        nodes.server.serve(served(resource))
    for group in SERVED_GROUPS:
        nodes.server.serve(group)
    return nodes


def run_on(nodes, name, host, **amounts):
    """A pod of a ReplicaSet runs on a node."""
    held = pod(name, memory="1Gi", **amounts)
    document = api_pod(held, host)
    document["metadata"]["ownerReferences"] = [REPLICA_SET]
    nodes.server.put(document)
    nodes.admit(host, held)


@pytest.fixture
async def crowded(nodes, service):
    """Each node has 2 CPUs and a GPU in use on both NUMA nodes; on ``b`` the pod of the second one is smaller."""
    run_on(nodes, "x", "a", cpu="3")
    run_on(nodes, "y", "a", cpu="2", gpu="1")
    run_on(nodes, "z", "b", cpu="4")
    await until(lambda: len(service.live.pods.objects) == 3)
    await until(lambda: all(service.live.cluster.record(name).ledger.pods for name in "ab"))
    return service


def wait_for_room(nodes, waiting, **spec):
    document = api_pod(waiting, phase="Pending", **spec)
    document["metadata"] |= {"creationTimestamp": "2026-11-16T00:00:00Z"}
    nodes.server.put({**document, "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]}})


# Proposals


async def proposed(service, clock, nodes, *waiting, seconds=PATIENCE_SECONDS):
    """Let pods wait for so long, and the service look for moves; return its proposal for the first."""
    for each in waiting:
        wait_for_room(nodes, each)
    names = [each.name for each in waiting]
    await until(
        lambda: all((known := service.live.find_pod("default", name)) and known.status.conditions for name in names)
    )
    clock[0] += seconds
    await service.proposals.propose_next()
    return service.proposals.find(waiting[0].uid)


async def test_moves_are_proposed_for_a_pod_that_waits_long(crowded, http, nodes, clock):
    waiting = pod("new", cpu="4", memory="1Gi")
    text = await proposed(crowded, clock, nodes, waiting)

    assert text == "'alignup cluster plan new -n default' would move 1 pod to make room for it: default/y on a"
    await until(lambda: any(event["reason"] == "MovesWouldHelp" for event in nodes.server.objects("events")))
    (event,) = [event for event in nodes.server.objects("events") if event["reason"] == "MovesWouldHelp"]
    assert (event["message"], event["involvedObject"]["name"]) == (text, "new")
    assert text in text_of(await http.get("/pods/default/new"))
    assert (await http.get("/v1/explain/default/new")).json()["proposal"] == text
    assert not [request for request in nodes.server.requests if "eviction" in request.path]


async def test_nothing_is_proposed_before_patience_ends(crowded, nodes, clock):
    assert await proposed(crowded, clock, nodes, pod("new", cpu="4", memory="1Gi"), seconds=PATIENCE_SECONDS - 1) == ""


async def test_nothing_is_proposed_for_a_pod_that_the_active_plan_serves(crowded, nodes, clock, monkeypatch):
    waiting = pod("new", cpu="4", memory="1Gi")
    plan = crowded.live.scheduling.plan
    monkeypatch.setattr(plan, "place_of", {waiting.uid: ""}.get)
    assert await proposed(crowded, clock, nodes, waiting) == ""

    monkeypatch.undo()
    await crowded.proposals.propose_next()
    assert crowded.proposals.find(waiting.uid).startswith("'alignup cluster plan new -n default'")


async def test_nothing_is_proposed_for_a_gang_of_which_the_active_plan_serves_a_pod(crowded, nodes, clock, monkeypatch):
    gang = [member(f"train-{number}", 4, size=2) for number in range(2)]
    monkeypatch.setattr(crowded.live.scheduling.plan, "place_of", {gang[1].uid: ""}.get)
    await proposed(crowded, clock, nodes, *gang)
    assert not any("persistentvolumes" in request.path for request in nodes.server.requests)

    monkeypatch.undo()
    await crowded.proposals.propose_next()
    assert any("persistentvolumes" in request.path for request in nodes.server.requests)


async def test_pods_of_lower_priority_may_end(crowded, nodes, clock):
    run_on(nodes, "w", "b", cpu="3")
    await until(lambda: "w" in crowded.live.cluster.record("b").ledger.pods)
    important = replace(pod("new", cpu="4", memory="1Gi"), priority=10)

    text = await proposed(crowded, clock, nodes, important)

    assert text.startswith("'alignup cluster plan new -n default --allow-preemption' would end 1 pod of lower priority")


async def test_a_proposal_is_for_the_whole_gang(crowded, nodes, clock):
    gang = [member(f"train-{number}", 4, size=2) for number in range(2)]
    assert await proposed(crowded, clock, nodes, *gang) == ""  # one of them would have room

    nodes.add("c")
    run_on(nodes, "v", "c", cpu="1")
    await until(lambda: crowded.live.cluster.record("c") is not None)
    await until(lambda: "v" in crowded.live.cluster.record("c").ledger.pods)
    clock[0] += SEARCH_AGAIN
    await crowded.proposals.propose_next()

    assert "for all 2 pods of its gang" in crowded.proposals.find(gang[0].uid)


async def test_the_same_pod_is_searched_for_again_only_after_a_while(crowded, nodes, clock):
    waiting = pod("new", cpu="64", memory="1Gi")
    assert await proposed(crowded, clock, nodes, waiting) == ""

    def lists() -> int:
        return sum("persistentvolumes" in request.path for request in nodes.server.requests)

    before = lists()
    await crowded.proposals.propose_next()
    assert lists() == before
    clock[0] += SEARCH_AGAIN
    await crowded.proposals.propose_next()
    assert lists() > before


# The page of the cluster


async def page_with_moves(http, service):
    await http.get("/")
    await until(lambda: service.searches.report is not None)
    return text_of(await http.get("/"))


@pytest.fixture
async def stranded(crowded, nodes, monkeypatch):
    """A pod with a GPU and 4 CPUs waits, which a move would let fit."""
    wait_for_room(nodes, pod("new", cpu="4", memory="1Gi", gpu="1"))
    await until(lambda: crowded.live.find_pod("default", "new") is not None)
    monkeypatch.setattr("alignup.schedule.pages.count_stranded_devices", lambda *_args, **_options: 1)
    return crowded


async def test_the_page_shows_what_moves_would_give_back(http, stranded):
    text = await page_with_moves(http, stranded)

    assert re.search(r"1 move let 1 more fit: 0 pods like default/new \(1 example.com/gpu, 4 cpu\) fit now", text)
    assert "evict default/y from a" in text
    assert "the replacement of default/y goes to b" in text
    assert "nothing is moved" in text


async def test_a_report_is_kept_while_nothing_changes(http, stranded, nodes, clock):
    await page_with_moves(http, stranded)
    report = stranded.searches.report

    clock[0] += RENEW_SECONDS
    await page_with_moves(http, stranded)
    assert stranded.searches.report is report  # no node has changed

    run_on(nodes, "u", "b", cpu="1")
    await until(lambda: "u" in stranded.live.cluster.record("b").ledger.pods)
    await http.get("/")
    await until(lambda: stranded.searches.report is not report)


async def test_a_page_without_permissions_says_so(http, stranded, nodes):
    plural = POD_DISRUPTION_BUDGETS.plural
    nodes.server.inject(
        ApiFault(status=403, reason="Forbidden", message="no", times=None), verb="list", resource=plural
    )

    text = await page_with_moves(http, stranded)

    assert "Moves were not searched for" in text
    assert plural in text


def test_room_is_searched_for_pods_that_wait_and_for_large_ones():
    pods = [
        convert(api_pod(made, host), ApiPod)
        for made, host in (
            (pod("small", cpu="1", gpu="1"), "a"),
            (pod("large", cpu="1", gpu="2"), "a"),
            (pod("plain", cpu="1"), "a"),
            (pod("waits", cpu="2", gpu="1"), ""),
        )
    ]

    assert [chosen.metadata.name for chosen in choose_shapes(pods)] == ["waits", "large"]
