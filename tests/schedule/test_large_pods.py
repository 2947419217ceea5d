"""Pods with many containers: a limit, and decisions that leave the event loop."""

import asyncio
import json
import threading

import pytest

from alignup.kubernetes.api.known_pods import MAX_CONTAINERS, bound_pod
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.placement.host_model import HostModel
from alignup.placement.pod_shape import LARGE
from alignup.schedule import large_pods
from alignup.schedule.extender.messages import ExtenderArgs
from tests.align.hosts import pod
from tests.deadlines import SECONDS, counted_turns, until
from tests.observe.api_objects import api_pod
from tests.schedule.test_extender import WIDE, create, filtered, post
from tests.schedule.test_pages import text_of

pytestmark = pytest.mark.anyio


def large(name="large", *, count=LARGE + 1, field="initContainers", **spec):
    """A pod of the API server with so many containers in all."""
    document = api_pod(pod(name, cpu="4", memory="1Gi"), phase="Pending", **spec)
    (container,) = document["spec"]["containers"]
    more = [{**container, "name": f"more-{number}"} for number in range(count - 1)]
    document["spec"][field] = [*document["spec"].get(field, ()), *more]
    return document


@pytest.fixture
def decisions(monkeypatch):
    """The threads in which hosts decided; a decision in another than this one waits until ``go`` is set."""
    made: list[bool] = []
    go, here, decide = threading.Event(), threading.get_ident(), HostModel.align

    def noted(self, ledger, asked):
        in_loop = threading.get_ident() == here
        made.append(in_loop)
        if not in_loop:
            assert go.wait(SECONDS)
        return decide(self, ledger, asked)

    monkeypatch.setattr(HostModel, "align", noted)
    yield made, go
    go.set()


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_others_are_answered_while_hosts_decide_on_a_large_pod(http, nodes, service, decisions, verb):
    made, go = decisions
    message = {"Pod": large(), "NodeNames": ["a", "b"]}
    answer = asyncio.create_task(post(http, verb, message))
    await until(lambda: False in made)

    assert (await filtered(http))["NodeNames"] == ["a"]
    assert (await http.get("/readyz")).status_code == 200
    assert not answer.done()
    go.set()

    expected = {"filter": ["b"], "prioritize": ["a", "b"]}[verb]  # node a was just offered to the other pod
    names = [row["Host"] for row in answered] if isinstance(answered := await answer, list) else answered["NodeNames"]
    assert names == expected
    assert made.count(True) == 1  # that of the small pod


async def test_explanations_and_pages_about_a_large_pod_leave_the_event_loop(http, nodes, service, decisions):
    made, go = decisions
    go.set()
    await create(nodes, service, large())

    assert (await http.get("/v1/explain/default/large")).json()["counts"]["admits"] == 2
    await create(nodes, service, large("other", count=LARGE + 2))
    assert (await http.get("/pods/default/other")).status_code == 200

    assert made
    assert not any(made)


async def test_a_waiting_large_pod_is_decided_on_outside_the_event_loop_when_a_node_changes(
    http, nodes, service, decisions
):
    made, go = decisions
    go.set()
    for host in "ab":
        nodes.create(pod(f"on-{host}", cpu="4", memory="1Gi"), host)
        nodes.admit(host, pod(f"on-{host}", cpu="4", memory="1Gi"))
    await until(lambda: not service.live.choose(WIDE))
    await create(nodes, service, large())
    assert (await filtered(http, large()))["NodeNames"] == []
    made.clear()

    nodes.kubelets["b"].end("on-b")
    nodes.server.remove("pods", "on-b")

    await until(lambda: service.numbers()["alignup_schedule_woken_pods_total"][1] == 1)
    assert not any(made)


async def test_critical_large_pods_are_decided_on_a_few_nodes_at_a_time(service, nodes, monkeypatch):
    """Their decisions depend on the pods of each node, so they stay in the event loop, which goes on between them."""
    monkeypatch.setattr(large_pods, "SLICE_SECONDS", 0.0)
    for number in range(8):
        nodes.add(f"more-{number}")
    await until(lambda: len(service.live.cluster.hosts) == 10)
    asked = service.live.read(ExtenderArgs.read(json.dumps({"Pod": large(priority=2_000_001_000)}).encode()).pod)
    async with counted_turns() as turns:
        await service.live.large_pods.decide(asked)

    assert len(turns) >= 10
    before = service.live.cluster.renewed_verdicts
    assert len(service.live.choose(asked)) == 10
    assert service.live.cluster.renewed_verdicts == before


@pytest.mark.parametrize("field", ["containers", "initContainers"])
async def test_a_pod_with_too_many_containers_is_refused_before_anything_is_computed(
    http, nodes, service, decisions, field
):
    made, go = decisions
    go.set()
    document = large(count=6000, field=field)
    words = "spec: the pod has 6000 containers and init containers; alignup decides on pods with 500 at most"

    assert (await filtered(http, document))["Error"] == f"alignup cannot read the pod: {words}"
    await create(nodes, service, document)
    answer = await http.get("/v1/explain/default/large")
    assert (answer.status_code, answer.json()["detail"]) == (422, f"Invalid pod: {words}")
    assert (await http.get("/pods/default/large")).status_code == 422
    message = {"PodName": "large", "PodNamespace": "default", "PodUID": "large", "Node": "a"}
    assert words in (await post(http, "bind", message))["Error"]
    assert not made


async def test_the_largest_pod_that_is_read_is_decided_on(http, decisions):
    _, go = decisions
    go.set()

    assert (await filtered(http, large(count=MAX_CONTAINERS)))["NodeNames"] == ["a"]


async def test_a_pasted_manifest_with_too_many_containers_is_refused(http):
    manifest = pod_to_dict(WIDE)
    manifest["spec"]["initContainers"] = [{"name": f"x{number}"} for number in range(MAX_CONTAINERS)]
    headers = {"origin": str(http.base_url).rstrip("/")}

    response = await http.post("/where", data={"manifest": json.dumps(manifest)}, headers=headers)

    assert "501 containers and init containers" in text_of(response)


def test_a_bound_pod_with_too_many_containers_counts_without_its_requests():
    document = {**large(count=MAX_CONTAINERS + 1), "status": {"phase": "Running"}}
    document["spec"]["nodeName"] = "a"
    bound = ExtenderArgs.read(json.dumps({"Pod": document}).encode()).pod

    known, problem = bound_pod(bound)

    assert (known.pod.containers, "501 containers" in problem) == ((), True)
