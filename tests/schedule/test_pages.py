"""The web pages of the cluster service."""

import asyncio
import json
import re
from dataclasses import replace

import httpx2
import pytest

from alignup.align.claims.alignment import NUMA_NODE
from alignup.align.claims.resource_claims import DeviceId, Slice, SliceDevice
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.schedule import pages as cluster_pages
from alignup.schedule.metrics import INTERVAL, PredictionHistory
from alignup.schedule.pages import CHUNK, ClusterPages, NodeCard, read_query, select_cards
from alignup.schedule.service import schedule_app
from alignup.web.asgi_server import serve_app
from alignup.web.sockets import tcp_socket
from tests.deadlines import until
from tests.html_reader import HtmlReader
from tests.observe.api_objects import node
from tests.schedule.test_extender import OTHER, WIDE

pytestmark = pytest.mark.anyio

HOSTILE = "\"'><script>alert(1)</script>"


@pytest.fixture
async def pages(service):
    """A client of the pages on a real socket."""
    stopping = asyncio.Event()
    app = schedule_app(service, stopping=stopping)
    with tcp_socket(0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            serve_app(app, listener, stopping=stopping),
            httpx2.AsyncClient(base_url=url, trust_env=False, verify=False) as client,
        ):
            yield client


def text_of(response) -> str:
    return re.sub(r"\s+", " ", HtmlReader(response.text).text)


async def test_the_page_of_a_cluster_shows_every_node(pages, nodes, service):
    nodes.add("dark", observed=False)
    await until(lambda: service.live.nodes.get("dark") is not None)
    response = await pages.get("/")

    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.text.count('class="card"') == 3
    assert "3, of which 2 report their state" in text_of(response)
    assert "unknown: no HostState" in text_of(response)
    assert re.search(r'<svg class="alignup" role="img" aria-label="NUMA node 0: cpu \d+: ', response.text)
    detail = await pages.get("/nodes/a")
    assert "<h1>Node a</h1>" in detail.text
    assert (await pages.get("/nodes/dark")).status_code == 200
    assert (await pages.get("/nodes/missing")).status_code == 404


async def test_devices_of_claims_are_on_the_pages_with_their_holders(pages, nodes, service):
    device = SliceDevice(DeviceId("nic.example.com", "a", "nic-0"), {NUMA_NODE: 1})
    nodes.kubelets["a"].slices = (Slice("slice", "nic.example.com", "a", 1, 1, devices=(device,)),)
    nodes.kubelets["a"].claims["other"] = {"default/nic": (device.id,)}
    nodes.create(replace(OTHER, uid="other"), "a")
    nodes.admit("a", replace(OTHER, uid="other"))
    await until(lambda: (host := service.live.cluster.record("a")) is not None and "other" in host.report.ledger.pods)

    page = await pages.get("/nodes/a")

    assert "nic.example.com (DRA) nic-0, claim default/nic" in text_of(page)
    assert "nic.example.com (DRA) nic-0, held by default/" in page.text
    assert "NUMA node 1: " in (cards := (await pages.get("/")).text)
    assert "nic.example.com (DRA) 1: 1 held" in cards


async def test_a_card_follows_its_node(pages, nodes):
    before = text_of(await pages.get("/nodes?q=a"))
    async with pages.stream("GET", "/v1/events") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        nodes.create(WIDE, "a")
        nodes.admit("a", WIDE)
        while "event: changed" not in await anext(lines):
            pass

    after = text_of(await pages.get("/nodes?q=a"))
    assert ("0 pods" in before, "1 pod" in after) == (True, True)
    assert "wide" in (await pages.get("/nodes/a")).text


async def test_a_pasted_manifest_is_answered_for_groups_of_nodes(pages, nodes, service):
    manifest = pod_to_dict(WIDE)
    headers = {"origin": str(pages.base_url).rstrip("/")}
    text = json.dumps(manifest, indent=1).replace("\n", "\r\n")  # as browsers send it
    response = await pages.post("/where", data={"manifest": text}, headers=headers)
    wrong = await pages.post("/where", data={"manifest": "kind: [" + HOSTILE}, headers=headers)
    foreign = await pages.post("/where", data={"manifest": "x"}, headers={"origin": "http://evil.example"})

    assert "✓ admitted2 nodes" in text_of(response)
    assert "\ufffd" not in response.text
    assert '<a href="/nodes/a">a</a>' in response.text
    assert 'role="alert"' in wrong.text
    assert "<script>alert" not in wrong.text
    assert foreign.status_code == 403
    assert service.live.find_pod("default", "wide") is None


async def test_other_requests_are_served_while_many_nodes_are_asked(service, nodes, monkeypatch):
    monkeypatch.setattr(cluster_pages, "AT_ONCE", 1)
    for number in range(8):
        nodes.add(f"more-{number}")
    await until(lambda: len(service.live.cluster.hosts) == 10)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    (group,) = await ClusterPages(service.live, service.problems, PredictionHistory(), service.large_pods).ask_nodes(
        WIDE, ApiPodSpec()
    )
    counting.cancel()

    assert len(group.nodes) == 10
    assert turns >= 20  # between any two verdicts, and between any two answers


async def test_pods_are_found_and_explained(pages, nodes, service):
    nodes.create(OTHER)
    await until(lambda: service.live.find_pod("default", OTHER.name))

    response = await pages.get("/pods", params={"q": OTHER.name[:3]})
    assert f'<a href="/pods/default/{OTHER.name}">' in response.text
    assert "No pod matches" in (await pages.get("/pods", params={"q": HOSTILE})).text
    assert "nodes" in text_of(await pages.get(f"/pods/default/{OTHER.name}"))
    assert (await pages.get("/pods/default/missing")).status_code == 404


async def test_names_of_other_sites_for_this_machine_are_refused(pages):
    """A page of another site whose name leads to 127.0.0.1 must not read the cluster."""
    statuses = [
        (await pages.get("/", headers={"host": host})).status_code
        for host in ("evil.example", "localhost:8890", "127.0.0.1", "[::1]:80")
    ]

    assert statuses == [421, 200, 200, 200]


async def test_hostile_labels_stay_text(pages, nodes, service):
    document = node("x")
    document["metadata"]["labels"] = {"team": HOSTILE}
    nodes.server.put(document)
    await until(lambda: service.live.nodes.get("x") is not None)

    response = await pages.get("/nodes/x", params={"label": HOSTILE})

    assert HOSTILE in HtmlReader(response.text).text
    assert "<script>alert" not in response.text


CARDS = [
    NodeCard(name=f"n{number}", policy=policy, labels={"zone": zone}, pods=number)
    for number, (policy, zone) in enumerate([("restricted", "a"), ("none", "b"), ("restricted", "b")])
]


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({}, ["n0", "n1", "n2"]),
        ({"sort": "pods"}, ["n2", "n1", "n0"]),
        ({"policy": "restricted"}, ["n0", "n2"]),
        ({"label": "zone=b"}, ["n1", "n2"]),
        ({"label": "zone=b,other"}, []),
        ({"label": "zone", "q": "1"}, ["n1"]),
        ({"free": "1"}, []),
        ({"stranded": "yes"}, []),
        ({"sort": "x", "policy": "x", "free": "x", "offset": "x"}, ["n0", "n1", "n2"]),
    ],
)
def test_nodes_are_sorted_and_filtered(parameters, names):
    assert [card.name for card in select_cards(CARDS, read_query(parameters))] == names


async def test_a_large_cluster_is_sent_in_chunks(pages, nodes, service):
    for number in range(2 * CHUNK):
        nodes.server.put(node(f"n{number:03}"))
    await until(lambda: len(service.live.nodes.objects) == 2 * CHUNK + 2)

    whole = await pages.get("/")
    last = await pages.get("/nodes", params={"offset": 2 * CHUNK})

    assert whole.text.count('class="card"') == CHUNK
    assert re.findall(r'data-chunk="([^"]+)"', whole.text) == [
        "/nodes",
        f"/nodes?offset={CHUNK}",
        f"/nodes?offset={2 * CHUNK}",
    ]
    assert 'rel="next"' in whole.text
    assert last.text.count('class="card"') == 2


def test_predictions_are_counted_by_interval():
    now = [1_800_000_000.0]
    history = PredictionHistory(now=lambda: now[0])
    assert history.plot() == ""
    history.add("as_predicted")
    now[0] += 3 * INTERVAL
    history.add("rejected")

    assert dict(history.totals) == {"as_predicted": 1, "rejected": 1}
    assert re.findall(r"<title>[^<]*: (1 [a-z ]+)</title>", history.plot()) == ["1 as predicted", "1 rejected"]


def test_predictions_are_counted_when_the_time_of_day_jumps():
    now = [1_800_000_000.0]
    history = PredictionHistory(now=lambda: now[0])
    for jump in (0, 3 * INTERVAL, -3 * INTERVAL, 10 * 365 * 86_400, -10 * 365 * 86_400, 0):
        now[0] += jump
        history.add("as_predicted")

    assert dict(history.totals) == {"as_predicted": 6}
    # Those of the wrong decade are not drawn; all others are, at the time of the day at which they were counted.
    drawn = re.findall(r"<title>[^<]*: ([0-9]+) as predicted</title>", history.plot())
    assert sum(map(int, drawn)) == 4
    now[0] -= 86_400  # everything is in the future now
    assert "as predicted" in history.plot()
