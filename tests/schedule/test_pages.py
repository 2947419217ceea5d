"""The web pages of the cluster service."""

import json
import re
from dataclasses import replace

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.claims.resource_claims import NUMA_NODE, DeviceId, Slice, SliceDevice
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.kubernetes.api.objects import ApiPodSpec
from alignup.kubernetes.manifests.pod_decoder import pod_to_dict
from alignup.schedule import pages as cluster_pages
from alignup.schedule.cluster_snapshot import incomplete_release
from alignup.schedule.metrics import INTERVAL, PredictionHistory
from alignup.schedule.node_cards import NodeCard, group_unknown, read_query, select_cards
from alignup.schedule.pages import ROWS, ClusterPages
from alignup.schedule.service import schedule_app
from alignup.schedule.shared_manifests import EXAMPLES, read_shared, share
from alignup.web.authentication import AccessRules
from tests.deadlines import counted_turns, until
from tests.html_reader import HtmlReader
from tests.observe.api_objects import node
from tests.schedule.test_extender import OTHER, WIDE, create

pytestmark = pytest.mark.anyio

HOSTILE = "\"'><script>alert(1)</script>"


def text_of(response) -> str:
    return re.sub(r"\s+", " ", HtmlReader(response.text).text)


async def test_the_page_of_a_cluster_shows_every_node(http, nodes, service):
    nodes.add("dark", observed=False)
    await until(lambda: service.live.nodes.get("dark") is not None)
    response = await http.get("/")

    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert re.findall(r'<th scope="row"><a href="/nodes/([a-z]+)">', response.text) == ["a", "b", "dark"]
    text = text_of(response)
    assert "Nodes that report2 of 31 without a report" in text
    assert "no HostState1dark No observer reports this node. Run alignup observe there" in text
    assert re.search(r"Free CPUs\d+ of \d+largest aligned request: \d", text)
    assert re.search(r"What still fitscpu\d|What still fits", text)
    detail = await http.get("/nodes/a")
    assert "<h1>Node a<small>cluster at http" in detail.text
    assert "Largest aligned request" in text_of(detail)
    assert (await http.get("/nodes/dark")).status_code == 200
    assert (await http.get("/nodes/missing")).status_code == 404


async def test_pages_and_answers_say_how_far_the_release_of_a_kubelet_is_known(http, nodes, service):
    await create(nodes, service, OTHER)
    paths = ("/", "/nodes/a", "/pods/default/other", "/where?m=" + share(EXAMPLES["a pod"]))
    before = [text_of(await http.get(path)) for path in paths]
    nodes.server.put({**node("a"), "status": {"nodeInfo": {"kubeletVersion": "v1.38.0-alpha.2"}}})
    nodes.report("a")
    await until(lambda: (release := incomplete_release(service.live.cluster)) is not None and release.minor == 38)

    after = [text_of(await http.get(path)) for path in paths]
    answers = (await http.get("/v1/explain/default/other")).json()

    caveat = "Kubernetes 1.38 is not released; known up to alpha.2, 2026-10-07"
    assert [caveat in text for text in before] == [False] * 4
    assert [caveat in text for text in after] == [True] * 4
    assert caveat not in text_of(await http.get("/nodes/b"))
    assert answers["knownUpTo"] == "alpha.2, 2026-10-07"


async def test_devices_of_claims_are_on_the_pages_with_their_holders(http, nodes, service):
    device = SliceDevice(DeviceId("nic.example.com", "a", "nic-0"), {NUMA_NODE: 1})
    nodes.kubelets["a"].slices = (Slice("slice", "nic.example.com", "a", 1, 1, devices=(device,)),)
    nodes.kubelets["a"].claims["other"] = {"default/nic": (device.id,)}
    nodes.create(replace(OTHER, uid="other"), "a")
    nodes.admit("a", replace(OTHER, uid="other"))
    await until(lambda: (host := service.live.cluster.record("a")) is not None and "other" in host.report.ledger.pods)

    page = await http.get("/nodes/a")

    assert "nic.example.com (DRA) nic-0, claim default/nic" in text_of(page)
    assert "nic.example.com (DRA) nic-0, held by default/" in page.text
    assert "nic.example.com (DRA)1100" in text_of(await http.get("/"))


async def test_a_pod_on_a_node_is_one_file_for_a_ticket(http, nodes, service):
    demanding = replace(OTHER, name="demanding", uid="demanding", annotations={POLICY_ANNOTATION: "nonsense"})
    await create(nodes, service, OTHER, demanding)
    page = (await http.get("/pods/default/other")).text
    (link,) = re.findall(r'<a href="([^"]+)">One file for a ticket: a admits it</a>', page)
    response = await http.get(link)

    assert response.headers["content-disposition"] == 'attachment; filename="default-other-a.html"'
    assert "<h1>Pod default/other is admitted (node a, " in response.text
    assert "<script" not in response.text
    assert (await http.get("/pods/default/other/file?node=missing")).status_code == 404
    assert (await http.get("/pods/default/missing/file?node=a")).status_code == 404
    demanding = await http.get("/pods/default/demanding")
    assert "One file for a ticket" not in demanding.text
    assert "topology.alignup.dev/policy" in text_of(demanding)  # no node places it as it demands


async def test_the_script_gets_the_nodes_that_changed(http, nodes, service):
    whole = (await http.get("/nodes.json")).json()
    async with http.stream("GET", "/v1/events") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        nodes.create(WIDE, "a")
        nodes.admit("a", WIDE)
        while "event: changed" not in await anext(lines):
            pass

    part = (await http.get("/nodes.json", params={"since": whole["serial"]})).json()
    nothing = (await http.get("/nodes.json", params={"since": part["serial"]})).json()
    assert [(row[0], row[2]) for row in whole["nodes"]] == [("a", 0), ("b", 0)]
    assert (whole["resources"][:2], whole["resources"][0]) == (["cpu", "memory"], "cpu")
    assert [(row[0], row[2]) for row in part["nodes"]] == [("a", 1)]
    before, after = ([numa[0] for numa in rows["nodes"][0][6]] for rows in (whole, part))  # CPUs of each NUMA node
    assert list(map(sum, before)) == list(map(sum, after))
    assert sum(held for _, held, _, _ in after) == 4
    assert (nothing["nodes"], nothing["whole"]) == ([], False)
    assert "wide" in (await http.get("/nodes/a")).text
    nodes.server.remove("nodes", "b")
    await until(lambda: service.live.nodes.get("b") is None)
    rest = (await http.get("/nodes.json", params={"since": part["serial"]})).json()
    assert (rest["whole"], [row[0] for row in rest["nodes"]]) == (True, ["a"])


async def test_a_pasted_manifest_is_answered_for_groups_of_nodes(http, nodes, service):
    manifest = pod_to_dict(WIDE)
    headers = {"origin": str(http.base_url).rstrip("/")}
    text = json.dumps(manifest, indent=1).replace("\n", "\r\n")  # as browsers send it
    response = await http.post("/where", data={"manifest": text}, headers=headers)
    wrong = await http.post("/where", data={"manifest": "kind: [" + HOSTILE}, headers=headers)
    foreign = await http.post("/where", data={"manifest": "x"}, headers={"origin": "http://evil.example"})

    text = text_of(response)
    assert "✓ admitted Pod default/wide would be admitted by 2 of 2 nodes; the best is a" in text
    assert re.search(r"a\d+\.\dNUMA node 1every hint preferred \(25\); on 1 NUMA node \(20\)", text)
    assert re.search(r"a with the pod on it", text)
    assert re.search(r'<rect class="holder0"[^>]* data-cpu=', response.text)
    assert "✓ admitted2NUMA node" in text
    shared = re.search(r'<a href="(/where\?m=[^"]+)">Link to this question', response.text)
    assert shared is not None
    assert "would be admitted by 2 of 2 nodes" in text_of(await http.get(shared[1]))
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
    pages = ClusterPages(service.live, service.problems, service.searches, service.proposals.find)
    async with counted_turns() as turns:
        answers = await pages.ask_nodes(WIDE, ApiPodSpec())

    assert [len(group.nodes) for group in answers.groups] == [10]
    assert len(turns) >= 20  # between any two verdicts, and between any two answers


async def test_the_page_of_a_bound_pod_considers_the_nodes_that_its_scheduler_considered(http, nodes, service, server):
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    nodes.add("c")
    for name, labels in (("a", {"pool": "gpu"}), ("b", {}), ("c", {"pool": "gpu"})):
        document = node(name)
        server.put({**document, "metadata": {**document["metadata"], "labels": labels}, "spec": {"taints": [taint]}})
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    nodes.create(
        OTHER,
        "a",
        tolerations=[{"key": "dedicated", "operator": "Exists"}],
        nodeSelector={"pool": "gpu"},
        affinity={"nodeAffinity": terms},
    )
    nodes.admit("a", OTHER)
    await until(lambda: service.live.find_pod("default", OTHER.name) and service.live.nodes.get("c").spec.taints)

    text = text_of(await http.get(f"/pods/default/{OTHER.name}"))

    assert "✓ Running on a" in text
    assert "taint" not in text
    assert "node selector pool=gpu" in text
    assert "node affinity" in text


async def test_pods_are_found_and_explained(http, nodes, service):
    await create(nodes, service, OTHER)

    response = await http.get("/pods", params={"q": OTHER.name[:3]})
    assert f'<a href="/pods/default/{OTHER.name}">' in response.text
    assert "No pod matches" in (await http.get("/pods", params={"q": HOSTILE})).text
    assert f'<a href="/pods/default/{OTHER.name}">' in (await http.get("/pods", params={"namespace": "default"})).text
    assert "No pod matches" in (await http.get("/pods", params={"namespace": "kube-system"})).text
    assert '<option value="default">' in response.text
    assert "waiting" in HtmlReader((await http.get("/")).text).text.partition("Rejected and waiting pods")[2]
    assert "nodes" in text_of(await http.get(f"/pods/default/{OTHER.name}"))
    assert (await http.get("/pods/default/missing")).status_code == 404


async def test_hostile_labels_stay_text(http, nodes, service):
    document = node("x")
    document["metadata"]["labels"] = {"team": HOSTILE}
    nodes.server.put(document)
    await until(lambda: service.live.nodes.get("x") is not None)

    response = await http.get("/nodes/x", params={"label": HOSTILE})

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
        ({"q": "zone=b"}, ["n1", "n2"]),
        ({"q": "zone=b other"}, []),
        ({"q": "zone=b 1"}, ["n1"]),
        ({"free": "1"}, []),
        ({"stranded": "yes"}, []),
        ({"sort": "x", "policy": "x", "free": "x", "offset": "x"}, ["n0", "n1", "n2"]),
    ],
)
def test_nodes_are_sorted_and_filtered(parameters, names):
    assert [card.name for card in select_cards(CARDS, read_query(parameters))] == names


async def test_without_the_script_a_large_cluster_is_read_page_by_page(http, nodes, service):
    for number in range(2 * ROWS):
        nodes.server.put(node(f"n{number:03}"))
    await until(lambda: len(service.live.nodes.objects) == 2 * ROWS + 2)

    first = await http.get("/")
    last = await http.get("/", params={"offset": 2 * ROWS})

    def rows(response):
        return len(re.findall(r'<tr><th scope="row"><a href="/nodes/', response.text))

    assert (rows(first), rows(last)) == (ROWS, 2)
    assert (f'href="/?offset={ROWS}" rel="next"' in first.text, 'rel="next"' in last.text) == (True, False)


async def test_a_workload_is_placed_as_a_whole(http):
    response = await http.get(
        "/where", params={"m": share(EXAMPLES["eight pods of a Job"].replace("8", "3").replace("16Gi", "6Gi"))}
    )

    text = text_of(response)
    assert re.search(r"✓ fits Job default/trainer: all 3 pods fit together: \d on ", text)
    assert re.search(r"[ab] with (the pod|2 pods of it) on it", text)


async def test_a_page_without_a_question_has_examples(http):
    response = await http.get("/where", params={"m": "no such thing"})

    assert "kind: Pod" in response.text
    assert len(re.findall(r'<a href="/where\?m=[^"]+">Example: ', response.text)) == len(EXAMPLES)


async def test_an_unknown_page_is_a_page_for_browsers(http):
    page = await http.get("/nope", headers={"accept": "text/html"})
    document = await http.get("/nope")

    assert (page.status_code, document.status_code) == (404, 404)
    assert "There is no page /nope here." in text_of(page)
    assert "docs/scheduling.md" in document.json()["detail"]


async def test_a_browser_without_the_token_gets_a_page(service):
    app = schedule_app(service, access=AccessRules(token=b"secret"))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        page = await client.get("/", headers={"accept": "text/html"})
        document = await client.get("/")

    assert (page.status_code, document.status_code) == (401, 401)
    assert page.headers["www-authenticate"] == document.headers["www-authenticate"]
    assert "<h1>Unauthorized" in page.text
    assert "password of HTTP Basic" in text_of(page)
    assert "password of HTTP Basic" in document.json()["detail"]


@given(st.text(max_size=500))
def test_a_shared_manifest_is_read_again(text):
    assert read_shared(share(text)) == text.encode("utf-8", "replace").decode()
    assert isinstance(read_shared(text), str)


def test_nodes_without_a_report_are_grouped_with_what_to_do():
    cards = [NodeCard(name=name, unknown=why) for name, why in (("b", "none"), ("a", "none"), ("c", "bad"), ("d", ""))]

    groups = group_unknown(cards, no_report="none")

    assert [(group.reason, list(group.nodes)) for group in groups] == [("none", ["a", "b"]), ("bad", ["c"])]
    assert "Run alignup observe there" in groups[0].remedy
    assert "alignup doctor" in groups[1].remedy


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
