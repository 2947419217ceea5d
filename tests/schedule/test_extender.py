"""The scheduler extender over HTTP, as kube-scheduler speaks it: filter, prioritize and bind."""

import asyncio
import json
import tracemalloc
from collections.abc import Callable

import httpx2
import pytest
from structlog.testing import capture_logs

from alignup.kubernetes.api.objects import Toleration
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.scheduling.options import ExtenderOptions
from alignup.schedule.cluster_facts import PLACEMENT_ANNOTATION
from alignup.schedule.extender.messages import MAX_SEARCHES, ExtenderArgs, TooLargeError
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.node_selection import SoftTaints
from alignup.schedule.service import schedule_app
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, node

pytestmark = pytest.mark.anyio

WIDE = pod("wide", cpu="4", memory="1Gi")
OTHER = pod("other", cpu="4", memory="1Gi")
PLAIN = {
    "metadata": {"name": "plain", "namespace": "default", "uid": "plain"},
    "spec": {"containers": [{"name": "app", "resources": {"requests": {"cpu": "1"}}}]},
}
JSON = {"Content-Type": "application/json"}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


async def post(http, verb, message):
    answer = await http.post(f"/v1/extender/{verb}", content=json.dumps(message), headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def filtered(http, asked=WIDE, names=("a", "b")):
    """What filter answers when the scheduler sends names."""
    document = asked if isinstance(asked, dict) else api_pod(asked, phase="Pending")
    return await post(http, "filter", {"Pod": document, "Nodes": None, "NodeNames": list(names)})


async def bound(http, asked=WIDE, node="a"):
    message = {"PodName": asked.name, "PodNamespace": "default", "PodUID": asked.uid, "Node": node}
    return (await post(http, "bind", message))["Error"]


async def create(nodes, service, *created, **options):
    """The API server has pods, or documents of pods, and the service has read them."""
    documents = [each if isinstance(each, dict) else api_pod(each, phase="Pending", **options) for each in created]
    for document in documents:
        nodes.server.put(document)
    names = [(document["metadata"]["namespace"], document["metadata"]["name"]) for document in documents]
    await until(lambda: all(service.live.find_pod(*name) for name in names))


def occupy(nodes, host, asked=OTHER):
    nodes.create(asked, host)
    nodes.admit(host, asked)


async def test_only_nodes_that_admit_the_pod_pass(http, nodes, service):
    occupy(nodes, "a")
    await until(lambda: not service.live.verdict(WIDE, "a").admits)

    assert await filtered(http) == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


async def test_an_answer_is_remembered_for_as_long_as_its_pod_exists(http, nodes, service):
    """Without the pod itself once it is bound: it takes some kilobytes."""
    await filtered(http)
    assert service.filter.records[WIDE.uid].pod
    await create(nodes, service, WIDE)
    assert await bound(http) == ""
    await until(lambda: service.live.find_pod("default", WIDE.name).spec.node_name)

    assert service.filter.records[WIDE.uid].pod is None
    assert (await http.get("/v1/explain/default/wide")).json()["lastFilter"]["offered"]
    nodes.server.remove("pods", WIDE.name)
    await until(lambda: not service.filter.records)
    assert not vars(service.live)["_decoded"]


async def test_whole_nodes_are_answered_with_nodes(http):
    items = [{"metadata": {"name": name, "labels": {"x": "y"}}, "status": {"phase": 1}} for name in "ab"]
    answer = await post(http, "filter", {"Pod": api_pod(WIDE), "Nodes": {"items": items}, "NodeNames": None})

    assert answer["Nodes"] == {"items": [{"metadata": {"name": "a"}}]}
    assert answer["NodeNames"] is None


async def test_rejections_have_reasons_that_group(http, nodes, service):
    for host in "ab":
        occupy(nodes, host, pod(f"on-{host}", cpu="4", memory="1Gi"))
    nodes.add("new", observed=False)
    await until(lambda: not service.live.choose(WIDE) and service.live.nodes.get("new"))

    answer = await filtered(http, names=["a", "b", "new", "gone"])

    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {
        "a": "not enough cpu on one NUMA node",
        "b": "not enough cpu on one NUMA node",
        "new": "no HostState",
        "gone": "no such node",
    }


async def test_at_most_the_best_nodes_are_offered(http, nodes, service):
    for name in "cdef":
        nodes.add(name)
    await until(lambda: len(service.live.choose(WIDE)) == 6)
    service.live.scheduling.offers.options = ExtenderOptions(offered=2)

    first = (await filtered(http, names="abcdef"))["NodeNames"]
    second = (await filtered(http, OTHER, names="abcdef"))["NodeNames"]

    assert first == [ranked.host for ranked in service.live.choose(WIDE, limit=2)]
    assert not {*first} & {*second}  # which the scheduler may have chosen already
    assert (await filtered(http, names="abcdef"))["NodeNames"] == first


async def test_a_pod_without_preferences_gets_the_best_node_only(http, nodes, service):
    """A scheduler asks about the next pod before it binds the one before: it must not get the same node."""
    for name in "cd":
        nodes.add(name)
    await until(lambda: len(service.live.choose(WIDE)) == 4)
    asked = [pod(f"wide-{number}", cpu="4", memory="1Gi") for number in range(4)]
    for wide in asked:
        nodes.create(wide)

    offered = [(await filtered(http, wide, names="abcd"))["NodeNames"] for wide in asked]
    problems = await asyncio.gather(*(bound(http, wide, node) for wide, (node,) in zip(asked, offered, strict=True)))

    assert sorted(node for (node,) in offered) == ["a", "b", "c", "d"]
    assert problems == [""] * 4


async def test_a_pod_that_was_not_bound_may_get_another_node(http, nodes):
    assert len((await filtered(http))["NodeNames"]) == 1

    assert (await filtered(http))["NodeNames"] == ["a", "b"]


@pytest.mark.parametrize(
    ("spec", "owner", "choice"),
    [
        pytest.param({}, "Job", False, id="none"),
        pytest.param({}, "ReplicaSet", True, id="spread by default"),
        pytest.param({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, "", True, id="spread"),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "ReplicaSet", False, id="required"
        ),
        pytest.param({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1}]}}}, "", True, id="nodes"),
        pytest.param({"affinity": {"podAffinity": {PREFERRED: [{"weight": 1}]}}}, "", True, id="near pods"),
        pytest.param({"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1}]}}}, "", True, id="far from pods"),
        pytest.param({"affinity": {"nodeAffinity": {}, "podAffinity": {}}}, "", False, id="affinity without any"),
    ],
)
async def test_a_scheduler_chooses_for_pods_with_preferences(http, spec, owner, choice):
    document = api_pod(WIDE, phase="Pending", **spec)
    document["metadata"]["ownerReferences"] = [{"kind": owner, "name": "x", "uid": "x", "controller": True}]

    assert (await filtered(http, document))["NodeNames"] == (["a", "b"] if choice else ["a"])


async def test_nodes_that_a_pod_avoids_come_last(http, nodes, service):
    nodes.server.put(node("a", taints=[{"key": "spare", "effect": "PreferNoSchedule"}]))
    await until(lambda: service.live.nodes.get("a").spec.taints)

    assert (await filtered(http))["NodeNames"] == ["b"]
    assert (await filtered(http, names=["a"]))["NodeNames"] == ["a"]


async def test_a_pod_avoids_nodes_with_taints_that_it_does_not_tolerate(live, nodes):
    soft = SoftTaints(live.nodes)
    taints = [{"key": key, "effect": "PreferNoSchedule"} for key in ("spare", "slow")]
    nodes.server.put(node("a", taints=taints))
    nodes.server.put(node("b", taints=taints[:1]))
    nodes.server.put(node("c", taints=[{"key": "gone", "effect": "NoSchedule"}]))
    await until(lambda: live.nodes.get("c"))

    assert soft.avoided_by([]) == {"a", "b"}
    assert soft.avoided_by([Toleration("spare", "Exists")]) == {"a"}
    assert soft.avoided_by([Toleration("", "Exists")]) == set()
    nodes.server.put(node("a"))
    nodes.server.remove("nodes", "b", namespace="")
    await until(lambda: not live.nodes.get("b"))
    assert soft.avoided_by([]) == set()


async def test_a_pod_that_no_kubelet_aligns_passes_everywhere(http, nodes):
    nodes.add("new", observed=False)

    assert (await filtered(http, PLAIN, names=["a", "new"]))["NodeNames"] == ["a", "new"]


@pytest.mark.parametrize(
    ("resources", "needed"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"requests": {"cpu": "2", "memory": "1Gi"}}, False, id="burstable"),
        pytest.param({"limits": {"cpu": "2", "memory": "1Gi"}}, True, id="guaranteed"),
        pytest.param({"limits": {"cpu": "500m", "memory": "1Gi"}}, True, id="guaranteed memory"),
        pytest.param({"limits": {"example.com/gpu": "1"}}, True, id="devices"),
    ],
)
def test_needs_alignment(resources, needed):
    document = {**PLAIN, "spec": {"containers": [{"name": "app", "resources": resources}]}}

    assert needs_alignment(read_pod({"apiVersion": "v1", "kind": "Pod", **document})) is needed


async def test_nodes_without_host_state_pass_where_that_is_allowed(http, nodes, service):
    nodes.add("new", observed=False)
    service.live.scheduling.offers.options = ExtenderOptions(offered=2, allow_unknown=True)
    await until(lambda: service.live.nodes.get("new"))

    assert (await filtered(http, names=["new", "b"]))["NodeNames"] == ["b", "new"]


async def test_scores_follow_the_rank_of_nodes(http, nodes, service):
    occupy(nodes, "a", pod("small", cpu="2", memory="1Gi"))
    await until(lambda: "small" in service.live.cluster.record("a").ledger.pods)
    asked = pod("x", cpu="1", memory="1Gi")
    ranked = service.live.choose(asked)

    answer = await post(http, "prioritize", {"Pod": api_pod(asked), "Nodes": None, "NodeNames": ["a", "b", "gone"]})

    scores = {priority["Host"]: priority["Score"] for priority in answer}
    assert ranked[0].score.total > ranked[1].score.total
    assert scores == {ranked[0].host: 10, ranked[1].host: 0, "gone": 0}
    plain = await post(http, "prioritize", {"Pod": PLAIN, "Nodes": None, "NodeNames": ["a", "b"]})
    assert plain == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 0}]


async def test_a_binding_carries_the_predicted_placement(http, nodes):
    nodes.create(WIDE)
    await filtered(http)

    assert await bound(http) == ""

    assert nodes.bound() == {"wide": "a"}
    (document,) = nodes.server.objects("pods")
    (placement,) = json.loads(document["metadata"]["annotations"][PLACEMENT_ANNOTATION])
    assert placement["container"] == "app"
    assert placement["given"]["cpu"] == {"cpu": "4-7"}


async def test_a_node_that_no_longer_admits_the_pod_is_not_bound(http, nodes, service):
    await create(nodes, service, WIDE, OTHER)
    first, second = await asyncio.gather(bound(http), bound(http, OTHER))

    assert first == ""
    assert second.startswith("node a does not admit the pod any more: ")
    assert nodes.bound() == {"wide": "a", "other": ""}


async def test_a_pod_that_no_kubelet_aligns_is_bound_to_any_node(http, nodes, service):
    nodes.add("new", observed=False)
    await create(nodes, service, {"apiVersion": "v1", "kind": "Pod", **PLAIN, "status": {"phase": "Pending"}})

    message = {"PodName": "plain", "PodNamespace": "default", "PodUID": "plain", "Node": "new"}
    assert await post(http, "bind", message) == {"Error": ""}
    assert nodes.bound() == {"plain": "new"}


async def test_a_failed_binding_is_forgotten_and_an_uncertain_one_is_not(http, nodes, service):
    await create(nodes, service, WIDE)
    nodes.server.inject(ApiFault(status=409, reason="Conflict"), verb="create", resource="pods")
    assert "injected" in await bound(http)
    assert service.live.verdict(OTHER, "a").admits

    nodes.server.inject(ApiFault(disconnect=True, done=True), verb="create", resource="pods")
    assert (await bound(http)).startswith("it is unknown whether the pod was bound to a: ")
    assert not service.live.verdict(OTHER, "a").admits
    await until(lambda: service.live.find_pod("default", "wide").spec.node_name == "a")


async def test_a_pod_that_is_unknown_or_another_one_is_not_bound(http, nodes, service):
    assert await bound(http) == "alignup does not know pod default/wide with uid wide"
    await create(nodes, service, WIDE)

    message = {"PodName": "wide", "PodNamespace": "default", "PodUID": "earlier", "Node": "a"}
    assert (await post(http, "bind", message))["Error"].endswith("with uid earlier")
    assert nodes.bound() == {"wide": ""}


async def test_bindings_to_one_node_are_written_in_the_order_of_the_predictions(nodes, start_service):
    small = [pod(f"small-{number}", cpu="500m", memory="1Mi") for number in range(4)]
    for created in small:
        nodes.create(created)
    service = await start_service(live=LiveClusterOptions(max_unconfirmed=None))
    nodes.server.inject(ApiFault(delay=0.05), verb="create", resource="pods")  # the first one is slow

    app = schedule_app(service)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        await asyncio.gather(*(bound(http, created) for created in small))

    by_version = sorted(nodes.server.objects("pods"), key=lambda stored: int(stored["metadata"]["resourceVersion"]))
    assert [created["metadata"]["name"] for created in by_version] == [created.name for created in small]
    assert set(nodes.bound().values()) == {"a"}


async def test_filter_refuses_to_guess_while_the_cluster_is_not_followed(http, nodes, service):
    nodes.server.inject(ApiFault(status=503, times=None), verb="watch")
    nodes.server.inject(ApiFault(status=503, times=None), verb="list")
    nodes.server.disconnect()
    await until(lambda: service.live.problems)

    assert (await filtered(http))["Error"].startswith("alignup cannot tell what nodes have: ")
    assert (await bound(http)).startswith("alignup cannot tell what nodes have: ")
    answer = await http.get("/readyz")
    assert (answer.status_code, "are not followed" in answer.text) == (503, True)

    nodes.create(OTHER, "a")  # by another scheduler, unseen
    for verb in ("watch", "list"):
        nodes.server.inject(ApiFault(), verb=verb)
    await until(lambda: not service.live.problems and service.live.pods.objects)  # its event follows the resumed watch
    assert (await filtered(http))["NodeNames"] == ["b"]


async def test_every_decision_is_one_line_of_the_log(http, nodes, service):
    await create(nodes, service, WIDE, pod("huge", cpu="64", memory="1Gi"))
    with capture_logs() as log:
        await filtered(http)
        await filtered(http, pod("huge", cpu="64", memory="1Gi"))
        await bound(http)
        await bound(http, OTHER, node="b")
        await filtered(http, pod("odd", cpu="1", memory="-1"))

    assert all(entry.pop("seconds") >= 0 for entry in log if entry["event"] == "bind")
    huge = {"pod": "default/huge", "uid": "huge", "nodes": 2, "offered": 0}
    unknown = "alignup does not know pod default/other with uid other"
    assert [{name: entry[name] for name in entry if name != "log_level"} for entry in log[:-1]] == [
        {"event": "filter", "pod": "default/wide", "uid": "wide", "nodes": 2, "offered": 1},
        {"event": "filter", **huge, "reasons": {"not enough cpu on one NUMA node": 2}},
        {"event": "bind", "pod": "default/wide", "uid": "wide", "node": "a", "bound": True},
        {"event": "bind", "pod": "default/other", "uid": "other", "node": "b", "bound": False, "problem": unknown},
    ]
    assert (log[-1]["event"], log[-1]["uid"], log[-1]["log_level"]) == ("filter", "odd", "warning")
    assert log[-1]["problem"].startswith("alignup cannot read the pod: ")


async def test_a_rejection_is_logged_once_and_when_its_reasons_change(http, nodes, service):
    """A scheduler asks about a rejected pod again and again."""
    for host in "ab":
        occupy(nodes, host, pod(f"on-{host}", cpu="4", memory="1Gi"))
    await until(lambda: not service.live.choose(WIDE))
    odd = pod("odd", cpu="1", memory="-1")
    with capture_logs() as log:
        for _ in range(50):
            await filtered(http)
            await filtered(http, odd)
        nodes.add("new", observed=False)
        await until(lambda: service.live.nodes.get("new"))
        await filtered(http, names=["a", "b", "new"])
        nodes.create(pod("passing", cpu="2", memory="1Gi"), "b")  # until its kubelet has admitted it
        await until(lambda: service.live.cluster.record("b").holds("passing"))
        await filtered(http, names=["a", "b", "new"])
        nodes.add("c")
        await until(lambda: service.live.verdict(WIDE, "c").admits)
        await filtered(http, names=["a", "c"])
        await filtered(http, names=["a"])

    lines = [(entry["pod"], entry.get("offered"), len(entry.get("reasons", ()))) for entry in log]
    wide = "default/wide"
    assert lines == [(wide, 0, 1), ("default/odd", None, 0), (wide, 0, 2), (wide, 1, 0), (wide, 0, 1)]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="no pod"),
        pytest.param(b'{"Pod":{"spec":7}}', id="another type"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
async def test_malformed_messages_are_refused(http, verb, body):
    answer = await http.post(f"/v1/extender/{verb}", content=body, headers=JSON)

    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("not a message of the scheduler extender protocol: ")


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize("names", [7, {"a": 1}, ["x", 7], [["x"]], ["b", 7], [["b"]], [{"b": 7}]])
async def test_malformed_names_are_refused(http, verb, names):
    content = json.dumps({"Pod": api_pod(WIDE), "NodeNames": names})

    assert (await http.post(f"/v1/extender/{verb}", content=content, headers=JSON)).status_code == 400


async def test_names_are_found_however_they_are_written_and_however_many_are_asked_for(http, nodes, service):
    """A few are searched for in the text of the request, many are decoded."""
    others = [f"z-{number}" for number in range(3 * MAX_SEARCHES)]
    for name in others:
        nodes.add(name)
    await until(lambda: len(service.live.choose(WIDE)) == 2 + len(others))
    plain = json.dumps({"Pod": api_pod(WIDE), "NodeNames": ["b"]}).encode()

    for content in (plain, plain.replace(b'"b"', b'"\\u0062"')):
        answer = await http.post("/v1/extender/filter", content=content, headers=JSON)
        assert answer.json()["NodeNames"] == ["b"]
    assert (await filtered(http, OTHER, names=others[-1:]))["NodeNames"] == others[-1:]
    assert service.filter.records["other"].asked == 1


async def test_an_invalid_pod_is_an_error_of_the_attempt(http):
    broken = api_pod(WIDE)
    broken["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "many"

    assert "alignup cannot read the pod: " in (await filtered(http, broken))["Error"]
    answer = await post(http, "prioritize", {"Pod": broken, "NodeNames": ["a"]})
    assert answer == [{"Host": "a", "Score": 0}]


async def test_no_nodes_are_no_error(http):
    assert (await filtered(http, names=[]))["NodeNames"] == []
    answer = await post(http, "filter", {"Pod": api_pod(WIDE)})
    assert answer["Nodes"] == {"items": []}


async def test_other_requests_are_answered_clearly(http):
    assert (await http.get("/v1/extender/filter")).status_code == 405
    assert (await http.post("/v1/extender/guess", content="{}", headers=JSON)).status_code == 404
    assert (
        await http.post("/v1/extender/filter", content="{}", headers={"Content-Type": "text/plain"})
    ).status_code == 415
    assert (await http.get("/healthz")).text == "ok\n"
    assert (await http.get("/readyz")).text == "ok\n"


async def test_a_body_of_ten_megabytes_is_read(http):
    filler = "x" * (10 << 20)
    document = api_pod(WIDE)
    document["metadata"]["annotations"] = {"filler": filler}

    assert (await filtered(http, document))["NodeNames"] == ["a"]


async def test_a_body_that_is_too_large_is_not_read(service):
    app = schedule_app(service, max_body=2048)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
        answer = await http.post("/v1/extender/filter", content=b" " * 2049, headers=JSON)

    assert answer.status_code == 413


async def test_a_body_above_the_limit_is_answered_even_while_it_is_sent(http):
    """The connection is not reset before a client that sends everything first has read the response."""
    answer = await http.post("/v1/extender/filter", content=b" " * (65 << 20), headers=JSON)

    assert (answer.status_code, answer.json()["detail"]) == (413, "The document is larger than 64 MiB.")


def many(element: bytes, head: bytes, tail: bytes, count: int = 7_000_000) -> Callable[[], bytes]:
    """Return a function that makes a body: this module is imported by every worker."""
    return lambda: head + (element + b",") * (count - 1) + element + tail


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(many(b'"n"', b'{"Pod":{},"NodeNames":[', b"]}", 100_000), "50,000 node names", id="names"),
        pytest.param(many(b"{}", b'{"Pod":{},"Nodes":{"items":[', b"]}}"), "6,000,000 values", id="nodes"),
        pytest.param(many(b"{}", b'{"Pod":{"spec":{"containers":[', b"]}}}"), "200,000 values", id="pod"),
        pytest.param(many(b"{}", b'{"Pod":{},"Nodes":{"items":[', b"]}}", 60_000), "50,000 nodes", id="few nodes"),
    ],
)
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_a_request_with_too_many_values_is_refused(http, verb, body, problem):
    answer = await http.post(f"/v1/extender/{verb}", content=body(), headers=JSON)

    assert answer.status_code == 413
    assert answer.json()["detail"].startswith(f"the request has more than {problem}")


@pytest.mark.parametrize("field", ["NodeNameToVictims", "NodeNameToMetaVictims"])
async def test_a_preemption_with_too_many_values_is_refused(http, field):
    body = many(b"{}", b'{"Pod":{},"%s":{"a":{"Pods":[' % field.encode(), b"]}}}")

    answer = await http.post("/v1/extender/preempt", content=body(), headers=JSON)

    assert (answer.status_code, "values in its victims" in answer.json()["detail"]) == (413, True)


def test_names_that_are_too_many_are_counted_before_they_are_decoded():
    """Four million names would take a gigabyte."""
    data = b'{"Pod":{},"NodeNames":["x"' + b',"node-1234567"' * 500_000 + b"]}"
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        ExtenderArgs.read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1.5 * len(data)
