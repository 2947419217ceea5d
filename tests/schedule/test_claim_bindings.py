"""Pods with claims in the extender: which nodes are offered, and which bindings are refused."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from alignup.align.workload.names import DEVICE_CLASS_PREFIX
from alignup.placement.scheduling.claim_bindings import MAX_TRIES
from alignup.placement.scheduling.node_offers import NOT_ALIGNED
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, node
from tests.schedule.claim_objects import ENDLESS_SELECTOR, claim, claiming, device_class, resource_slice, template
from tests.schedule.test_extender import bound, filtered, post

pytestmark = pytest.mark.anyio

#: Four CPUs: they fit on NUMA node 1 only, since CPU 0 is reserved.
WIDE = pod("wide", cpu="4", memory="1Gi")


@pytest.fixture
async def claims(server, service):
    """Node ``a`` has a device on NUMA node 0, node ``b`` on each NUMA node."""
    for document in (device_class(), template(), resource_slice("a", (0,)), resource_slice("b", (0, 1))):
        server.put(document)
    known = service.live.claims
    await until(lambda: known.devices == 3 and known.objects.templates and known.objects.classes)
    return known


async def create(nodes, service, asked, claims=("wide-gpu",)):
    """The API server has a pod, whose claims from templates have these names."""
    document = api_pod(asked, phase="Pending")
    document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": name} for name in claims]
    nodes.server.put(document)
    await until(lambda: service.live.find_pod("default", asked.name))
    return document


def counted(service, alignment):
    name = "alignup_claimed_pods_total"
    return service.metrics.registry.get_sample_value(name, {"alignment": alignment})


def events(server):
    return [(event["reason"], event["message"]) for event in server.objects("events")]


async def test_a_node_where_the_devices_can_be_beside_the_cpus_comes_first(http, claims):
    ignoring, other = claiming(WIDE, preference="ignore"), replace(claiming(WIDE), name="other", uid="other")
    assert (await filtered(http, other))["NodeNames"] == ["b"]
    assert (await filtered(http, other, names=["a"]))["NodeNames"] == ["a"]  # rather than nowhere
    assert (await filtered(http, ignoring, names=["a"]))["NodeNames"] == ["a"]
    asked = {"Pod": api_pod(claiming(WIDE), phase="Pending"), "Nodes": None, "NodeNames": ["a", "b"]}
    scores = {row["Host"]: row["Score"] for row in await post(http, "prioritize", asked)}
    assert scores["b"] > scores["a"]


async def test_claims_do_not_change_the_scores_for_a_pod_that_ignores_them(http, claims):
    scores = [
        await post(http, "prioritize", {"Pod": api_pod(asked, phase="Pending"), "Nodes": None, "NodeNames": ["a", "b"]})
        for asked in (WIDE, claiming(WIDE, preference="ignore"))
    ]
    assert scores[0] == scores[1]


async def test_a_pod_that_requires_it_is_offered_no_other_node(http, claims):
    answer = await filtered(http, claiming(WIDE, preference="require"), names=["a"])
    assert answer["NodeNames"] == []
    assert answer["FailedAndUnresolvableNodes"] == {"a": NOT_ALIGNED}
    answer = await filtered(http, claiming(WIDE, preference="require"))
    assert answer["NodeNames"] == ["b"]


async def test_a_binding_is_refused_if_the_devices_are_elsewhere_and_the_pod_requires_it(
    server, nodes, http, service, claims
):
    asked = claiming(WIDE, preference="require")
    await create(nodes, service, asked)
    server.put(claim("wide-gpu", ["gpu-0"], "b"))  # on NUMA node 0

    problem = await bound(http, asked, "b")

    sentence = "device gpu-0 is on NUMA node 0, the CPUs and memory will be on NUMA node 1: not aligned"
    assert problem == f"node b is refused, since topology.alignup.dev/claims is require: {sentence}"
    assert nodes.bound()["wide"] == ""
    assert service.live.assumed == {}
    await until(lambda: events(server))
    assert events(server) == [("ClaimsNotAligned", problem)]
    assert counted(service, "refused") == 1
    # The scheduler takes the device back if no node is offered, and allocates another.
    await until(lambda: service.live.claims.objects.claims["default", "wide-gpu"].allocated)
    document = api_pod(asked, phase="Pending")
    document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "wide-gpu"}]
    assert (await filtered(http, document))["NodeNames"] == []
    server.put(claim("wide-gpu", ["gpu-1"], "b"))

    assert await bound(http, asked, "b") == ""
    assert nodes.bound()["wide"] == "b"
    assert counted(service, "aligned") == 1


async def test_after_some_tries_the_pod_waits_and_an_event_says_so(server, nodes, http, service, claims):
    asked = claiming(WIDE, preference="require")
    await create(nodes, service, asked)
    server.put(claim("wide-gpu", ["gpu-0"], "b"))

    problems = [await bound(http, asked, "b") for _ in range(MAX_TRIES)]

    assert "waits" not in problems[-2]
    assert "after 5 tries the pod waits for 10 minutes: delete its claims, or change" in problems[-1]
    await until(lambda: any("waits for 10 minutes" in message for _, message in events(server)))
    answer = await filtered(http, asked)
    assert set(answer["FailedAndUnresolvableNodes"].values()) == {
        "its claims got no devices beside its CPUs in 5 tries"
    }
    assert (await filtered(http, claiming(WIDE)))["NodeNames"] == ["b"]  # without the annotation


@pytest.mark.parametrize(
    ("device", "preference", "alignment"),
    [
        ("gpu-1", "", "aligned"),
        ("gpu-0", "", "unaligned"),
        ("gone", "prefer", "unknown"),
        ("gpu-0", "sure", "unaligned"),
    ],
)
@pytest.mark.usefixtures("claims")
async def test_other_pods_are_bound_and_counted(nodes, http, service, *, device, preference, alignment):
    server = nodes.server
    asked = claiming(WIDE, preference=preference)
    await create(nodes, service, asked)
    server.put(claim("wide-gpu", [device], "b"))

    with capture_logs() as logs:
        assert await bound(http, asked, "b") == ""

    assert counted(service, alignment) == 1
    assert [entry["alignment"] for entry in logs if entry["event"] == "claims"] == [alignment]
    if preference == "sure":
        await until(lambda: events(server))
        message = "annotation topology.alignup.dev/claims is 'sure'; use require, prefer, ignore"
        assert events(server) == [("UnknownClaimPreference", message)]


async def test_a_claim_that_the_watch_has_not_shown_yet_is_read(server, nodes, http, service, claims):
    asked = claiming(WIDE, preference="require")
    await create(nodes, service, asked)
    server.hold()
    server.put(claim("wide-gpu", ["gpu-1"], "b"))
    assert await bound(http, asked, "b") == ""
    server.hold(held=False)


async def test_a_claim_that_cannot_be_read_stops_only_a_pod_that_requires_it(server, nodes, http, service, claims):
    asked = claiming(WIDE, preference="require")
    await create(nodes, service, asked)
    server.inject(ApiFault(status=403, times=1000), verb="get", resource="resourceclaims")
    assert "cannot read the claims" in await bound(http, asked, "b")
    assert events(server) == []
    easy = replace(claiming(pod("easy", cpu="2")), uid="easy")
    await create(nodes, service, easy, ("easy-gpu",))
    assert await bound(http, easy, "a") == ""
    assert counted(service, "unknown") == 1


async def test_a_pod_without_cpus_of_its_own_is_never_aligned(nodes, http, service, claims):
    shared = claiming(
        replace(
            WIDE, containers=(replace(WIDE.containers[0], resources=replace(WIDE.containers[0].resources, limits={})),)
        ),
        preference="require",
    )
    answer = await filtered(http, shared)
    assert answer["NodeNames"] == []
    easy = claiming(replace(shared, annotations={}))
    assert (await filtered(http, easy))["NodeNames"] == ["a", "b"]


async def test_the_claim_of_an_extended_resource_is_found_in_the_status(server, nodes, http, service, claims):
    resource = f"{DEVICE_CLASS_PREFIX}gpu"
    asked = pod("wide", None, cpu="4", memory="1Gi", **{resource: "1"})
    asked = replace(asked, annotations={"topology.alignup.dev/claims": "require"})
    document = api_pod(asked, phase="Pending")
    server.put(document)
    await until(lambda: service.live.find_pod("default", "wide"))
    assert (await filtered(http, document))["NodeNames"] == ["b"]
    server.hold()
    mapping = {"containerName": "app", "resourceName": resource, "requestName": "gpu"}
    status = {"resourceClaimName": "made", "requestMappings": [mapping]}
    server.put({**document, "status": {"phase": "Pending", "extendedResourceClaimStatus": status}})
    server.put(claim("made", ["gpu-0"], "b"))
    assert "not aligned" in await bound(http, asked, "b")
    server.put(claim("made", ["gpu-1"], "b"))
    assert await bound(http, asked, "b") == ""
    server.hold(held=False)


async def test_explanations_have_the_claims_of_a_pod(server, nodes, http, service, claims):
    asked = claiming(WIDE)
    await create(nodes, service, asked, ())
    answer = (await http.get("/v1/explain/default/wide")).json()
    rows = {row["node"]: row["claims"] for row in answer["nodes"]}
    assert rows["a"]["claims"][0]["aligned"] is False
    assert rows["b"]["claims"][0]["sentence"].endswith("aligned or not, as the scheduler chooses")
    assert [device["device"] for device in rows["b"]["claims"][0]["devices"]] == ["gpu-0", "gpu-1"]
    server.put(claim("other", ["gpu-0"], "a"))
    await until(lambda: not service.live.claim_fit(asked, "a").possible)
    answer = (await http.get("/v1/explain/default/wide?node=a")).json()
    assert answer["nodes"][0]["claims"]["reason"] == "not enough free devices for its claims"


async def test_a_node_without_a_report_is_not_known_to_align(server, nodes, http, service, claims):
    service.live.scheduling.offers.options = replace(service.live.scheduling.offers.options, allow_unknown=True)
    server.put(node("new"))
    await until(lambda: service.live.nodes.get("new"))
    assert (await filtered(http, claiming(WIDE, preference="require"), names=["new"]))["NodeNames"] == []


async def test_a_selector_that_fails_says_nothing_against_a_node_and_ends_nothing(server, nodes, http, service, claims):
    server.put(template("endless", selector=ENDLESS_SELECTOR))
    await until(lambda: ("default", "endless") in claims.objects.templates)
    asked = claiming(WIDE, template="endless")
    await create(nodes, service, asked)

    assert (await filtered(http, asked))["NodeNames"] == ["a"]
    assert await bound(http, asked, "a") == ""
    required = replace(claiming(WIDE, template="endless", preference="require"), name="required", uid="required")
    assert (await filtered(http, required, names=["b"]))["FailedAndUnresolvableNodes"] == {"b": NOT_ALIGNED}
    assert (await filtered(http, pod("healthy", cpu="4"), names=["b"]))["NodeNames"] == ["b"]
