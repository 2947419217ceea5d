"""Failed, rejected and waiting pods on the pages of the cluster service."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

from alignup.documents.codec import convert
from alignup.kubernetes.api import PODS
from alignup.schedule import pages as cluster_pages
from alignup.schedule.pod_states import group_pods, summarize_pod
from tests.align.hosts import pod
from tests.cli.commands import in_process
from tests.deadlines import until
from tests.html_reader import HtmlReader, rows_of
from tests.observe.api_objects import api_pod, overflowing_pod
from tests.schedule.test_extender import OTHER, WIDE, create, occupy
from tests.schedule.test_pages import HOSTILE, text_of

pytestmark = pytest.mark.anyio

REJECTED = "✗ Failed: TopologyAffinityError"
MESSAGE = "Pod was rejected: Resources cannot be allocated with Topology locality"
UNSCHEDULABLE = "0/2 nodes are available: 2 not enough cpu on one NUMA node."
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9f", "uid": "web", "controller": True}
RUNNING = pod("running", cpu="1", memory="1Gi")


def failed_pod(
    name, host="a", *, reason="TopologyAffinityError", message=MESSAGE, at="2026-01-02T03:04:05Z", **metadata
):
    document = api_pod(pod(name, cpu="2", memory="1Gi"), host, phase="Failed")
    document["metadata"] |= metadata
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    document["status"] |= {"reason": reason, "message": message, "conditions": [condition]}
    return document


def waiting_pod(asked, message=UNSCHEDULABLE, **spec):
    document = api_pod(asked, phase="Pending", **spec)
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    document["metadata"]["creationTimestamp"] = "2026-01-02T03:00:00Z"
    return {**document, "status": {**document["status"], "conditions": conditions if message else []}}


@pytest.fixture
def failed_before(nodes):
    """Pods that failed before the service starts: two of one owner were rejected, another has run."""
    for number, host in enumerate("ab"):
        at = f"2026-01-02T03:04:0{number}Z"
        nodes.server.put(failed_pod(f"web-7d9f-{number}", host, at=at, ownerReferences=[OWNER]))
    exited = failed_pod("exited", reason="", message="", at="2026-01-02T02:00:00Z")
    exited["status"]["containerStatuses"] = [{"name": "app", "state": {"terminated": {"exitCode": 3}}}]
    nodes.server.put(exited)


@pytest.fixture
async def states(failed_before, nodes, service):
    """A cluster with failed pods, one that its kubelet rejects now, one that waits, and one that runs."""
    nodes.create(RUNNING, "b")
    nodes.create(OTHER, "a")
    nodes.server.put(waiting_pod(WIDE))
    await until(lambda: service.live.find_pod("default", "wide") and service.live.find_pod("default", "other"))
    nodes.reject(OTHER, "a")
    await until(lambda: service.live.find_pod("default", "other").status.phase == "Failed")


def attention(response):
    """The rows of the failed and waiting pods, which come before everything else."""
    before, tiles, _ = response.text.partition('<ul class="tiles"')
    assert tiles
    return rows_of(before)


async def test_failed_rejected_and_waiting_pods_stand_at_the_top(states, http):
    response = await http.get("/")

    rows = attention(response)
    assert [(row[0].strip(), row[1], row[2]) for row in rows[1:]] == [
        (REJECTED, "default/other", "a"),
        (REJECTED, "default/web-7d9f-1and 1 more of ReplicaSet web-7d9f", "b and 1 more"),
        ("✗ Failed", "default/exited", "a"),
        ("… Waiting", "default/wide", ""),
    ]
    assert rows[2][3] == f"The kubelet of node b rejected the pod: TopologyAffinityError: {MESSAGE}"
    assert [row[3] for row in rows[3:]] == ["container app ended with exit code 3", UNSCHEDULABLE]
    assert [row[4] for row in rows[2:]] == [
        "2026-01-02 03:04:01 UTC",
        "2026-01-02 02:00:00 UTC",
        "2026-01-02 03:00:00 UTC",
    ]
    assert 'href="/pods?q=default%2Fweb-7d9f"' in response.text
    assert re.search(
        r'<li class="tile bad"><span class="label">Rejected by kubelets</span>.{0,40}>3 <small>', response.text
    )
    assert re.search(r'<li class="tile wait"><span class="label">Waiting pods</span>.{0,40}>1<', response.text)


async def test_a_cluster_without_failed_and_waiting_pods_has_no_table_of_them(http):
    response = await http.get("/")

    assert attention(response) == []
    assert re.search(r'<li class="tile good"><span class="label">Rejected by kubelets</span>', response.text)


async def test_the_page_is_renewed_when_a_pod_begins_to_wait(http, nodes):
    async with http.stream("GET", "/v1/events") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        nodes.server.put(waiting_pod(WIDE))
        while "event: changed" not in await anext(lines):
            pass

    assert [row[1] for row in attention(await http.get("/"))[1:]] == ["default/wide"]


async def test_all_pods_are_listed_failed_ones_first(states, http, nodes, service, monkeypatch):
    await create(nodes, service, api_pod(pod("done"), "a", phase="Succeeded"))

    def listed(response):
        return [(row[0].strip(), row[1]) for row in rows_of(response.text)[1:]]

    response = await http.get("/pods")
    assert listed(response) == [
        (REJECTED, "default/other"),
        (REJECTED, "default/web-7d9f-1and 1 more of ReplicaSet web-7d9f"),
        ("✗ Failed", "default/exited"),
        ("… Waiting", "default/wide"),
        ("✓ Running", "default/running"),
        ("· Completed", "default/done"),
    ]
    assert "3 rejected by kubelets, 1 failed for other reasons, 1 waiting, 1 running, 1 completed" in text_of(response)
    searched = await http.get("/pods", params={"q": "default/web-7d9f"})
    assert listed(searched) == [(REJECTED, "default/web-7d9f-1"), (REJECTED, "default/web-7d9f-0")]
    assert listed(await http.get("/pods", params={"q": "running"})) == [("✓ Running", "default/running")]
    monkeypatch.setattr(cluster_pages, "MAX_LISTED", 2)
    short = await http.get("/pods")
    assert listed(short) == listed(response)[:2]
    assert "4 more pods are not listed: search for a part of the name" in text_of(short)


async def test_pods_are_found_by_their_owner(http, nodes, service):
    await create(nodes, service, failed_pod("renamed", ownerReferences=[OWNER]))

    assert "default/renamed" in (await http.get("/pods", params={"q": "default/web-7d9f"})).text


@pytest.mark.parametrize(
    ("name", "state", "why"),
    [
        ("web-7d9f-0", REJECTED, f"The kubelet of node a rejected the pod: TopologyAffinityError: {MESSAGE}"),
        ("wide", "… Waiting", UNSCHEDULABLE),
        ("running", "✓ Running on b", ""),
    ],
)
async def test_the_state_of_a_pod_and_the_prediction_stand_apart(states, http, name, state, why):
    response = await http.get(f"/pods/default/{name}")

    lead = re.search(r'<p class="lead">(.*?)</p>', response.text)
    assert lead is not None
    assert HtmlReader(lead[1]).text.strip().startswith(state)
    assert "admit" not in HtmlReader(lead[1]).text
    assert why in text_of(response)
    assert re.search(rf"Pod default/{name} would be admitted by (2|1|none) of 2 nodes", text_of(response))
    document = (await http.get(f"/v1/explain/default/{name}")).json()["state"]
    assert (document["title"], document["why"]) == (state[2:], why)


async def test_the_remedies_of_the_page_are_those_of_the_command(http, nodes, service, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_pages, "SEARCH_SECONDS", 600.0)
    for host in "ab":
        occupy(nodes, host, replace(OTHER, name=f"first-{host}", uid=f"first-{host}"))
        occupy(nodes, host, pod(f"second-{host}", cpu="2", memory="1Gi"))
    nodes.reject(WIDE, "a")
    await until(lambda: not any(service.live.verdict(WIDE, host).admits for host in "ab"))
    await until(lambda: service.live.find_pod("default", "wide"))

    page = await http.get("/pods/default/wide")

    config = tmp_path / "config"
    nodes.server.write_kubeconfig(config)
    words = ("cluster", "why", "wide", "--kubeconfig", config, "--search", "600", "-o", "json")
    run = await asyncio.to_thread(in_process, *words)
    (answer,) = json.loads(run.stdout)["answers"]
    sentences = [proposal["sentence"] for group in answer["groups"] for proposal in group["proposals"]]
    (remedies,) = re.findall(r'<ul class="remedies">(.*?)</ul>', page.text)
    changes = [HtmlReader(item).text.partition(" → ")[0] for item in re.findall("<li>(.*?)</li>", remedies)]
    assert changes == sentences
    assert any("evict" in change for change in changes)
    assert answer["verdict"] in text_of(page)
    assert "What would admit it on a (each change was tried):" in text_of(page)


async def test_a_pod_that_cannot_be_read_is_listed_and_its_page_says_what_is_wrong(http, nodes, service):
    await create(nodes, service, overflowing_pod("huge"))

    assert [row[1] for row in attention(await http.get("/"))[1:]] == ["default/huge"]
    response = await http.get("/pods/default/huge")
    assert response.status_code == 422
    assert "amounts 19998 digits apart cannot be added" in text_of(response)


async def test_hostile_reasons_and_owners_stay_text(http, nodes, service):
    await create(nodes, service, failed_pod("hostile", reason=HOSTILE, ownerReferences=[{**OWNER, "name": HOSTILE}]))

    for place in ("/", "/pods", "/pods/default/hostile"):
        response = await http.get(place)
        assert HOSTILE in HtmlReader(response.text).text
        assert "<script>alert" not in response.text


def summary(document):
    return summarize_pod(convert(document, PODS.type))


@pytest.mark.parametrize(
    ("document", "title", "why"),
    [
        (
            waiting_pod(WIDE, schedulingGates=[{"name": "alignup.dev/aligned"}]),
            "Waiting",
            "No scheduler considers the pod before its scheduling gates are removed: alignup.dev/aligned",
        ),
        (
            waiting_pod(WIDE, "", schedulerName="alignup"),
            "Waiting",
            "Scheduler alignup has not reported on the pod yet",
        ),
        (
            failed_pod("x", reason="Evicted", message="The node was low on memory."),
            "Failed: Evicted",
            "The node was low",
        ),
        (api_pod(WIDE, "b", phase="Pending"), "Starting on b", ""),
        (api_pod(WIDE, "b", deleting=True), "Terminating on b", ""),
        (api_pod(WIDE, "b", phase="Succeeded"), "Completed", ""),
    ],
)
def test_states_are_told_in_words(document, title, why):
    told = summary(document)

    assert told.title == title
    assert told.why.startswith(why)
    assert bool(told.why) is bool(why)


def test_pods_of_one_owner_that_failed_alike_are_one_group():
    rejected = [
        failed_pod(f"web-{number:03}", at=f"2026-01-02T03:{number // 60:02}:{number % 60:02}Z") for number in range(300)
    ]
    for document in rejected:
        document["metadata"]["ownerReferences"] = [OWNER]
    evicted = failed_pod("web-evicted", reason="Evicted", message="", ownerReferences=[OWNER])
    elsewhere = failed_pod("web-000", namespace="other", ownerReferences=[OWNER])
    node = {"apiVersion": "v1", "kind": "Node", "name": "a"}
    static = [failed_pod(f"static-{number}", ownerReferences=[node]) for number in range(2)]

    groups = group_pods(convert(document, PODS.type) for document in (*rejected, evicted, elsewhere, *static))

    assert sorted((group.pod.metadata.full_name, group.count) for group in groups) == [
        ("default/static-0", 1),
        ("default/static-1", 1),
        ("default/web-299", 300),
        ("default/web-evicted", 1),
        ("other/web-000", 1),
    ]
