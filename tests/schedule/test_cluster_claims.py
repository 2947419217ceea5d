"""What the cluster service knows of claims: devices of nodes, allocations, and objects that are wrong or missing."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from alignup.align.workload.names import DEVICE_CLASS_PREFIX
from alignup.placement.scheduling.facts import ClaimFit
from alignup.schedule import known_claims, selector_results
from alignup.schedule.live_cluster import LiveCluster
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, node
from tests.schedule.claim_objects import DRIVER, allocation, claim, claiming, device_class, resource_slice, template

pytestmark = pytest.mark.anyio

WANTING = claiming(pod("wanting"))


def device_names(live, host):
    record = live.cluster.record(host)
    return [device.id.device for device in live.claims.devices_of(host, record.model.machine)]


def fits(live, host, asked=WANTING):
    return live.claim_fit(asked, host).possible


def served_by_class(live, name):
    known = live.find_pod("default", name)
    return known is not None and live.read(known).class_resources


@pytest.fixture
async def claims(server, live):
    """A class, a template, and two devices of node ``a``, which the service knows."""
    for document in (device_class(), template(), resource_slice("a")):
        server.put(document)
    await until(lambda: live.claims.devices == 2 and live.claims.objects.templates and live.claims.objects.classes)
    return live.claims


async def test_a_pod_fits_where_devices_for_its_claims_are_free(server, live, claims):
    assert (fits(live, "a"), fits(live, "b")) == (True, False)
    assert live.claim_fit(WANTING, "b").reason == "not enough free devices for its claims"

    server.put(claim("other", ["gpu-0", "gpu-1"], "a"))
    await until(lambda: not fits(live, "a"))
    server.put(claim("other", ["gpu-0"], "a"))
    await until(lambda: fits(live, "a"))
    server.remove("resourceclaims", "other")
    server.remove("resourceslices", "slice-a")
    await until(lambda: not fits(live, "a"))


async def test_an_allocated_claim_belongs_to_its_node(server, live, claims):
    asked = claiming(pod("sharing"), claim="shared")
    assert live.claim_fit(asked, "a").reason == "ResourceClaim default/shared is not known"
    server.put(claim("shared", ["gpu-0"], "a"))
    await until(lambda: fits(live, "a", asked))
    assert live.claim_fit(asked, "b").reason == "default/shared has devices of another node"


async def test_devices_of_all_nodes_and_of_selected_nodes_are_usable_there(server, live, claims):
    server.put(node("b", labels={"rack": "1"}))
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}]}
    server.put(resource_slice("", (0,), name="rack", pool={"name": "rack"}, nodeSelector=terms))
    await until(lambda: device_names(live, "b") == ["gpu-0"])
    assert len(device_names(live, "a")) == 2
    server.put(resource_slice("", (0,), name="fabric", pool={"name": "fabric"}, allNodes=True))
    await until(lambda: len(device_names(live, "a")) == 3 and len(device_names(live, "b")) == 2)
    server.put(node("b", labels={}))
    await until(lambda: len(device_names(live, "b")) == 1)


async def test_devices_that_name_their_nodes_themselves_are_a_complete_pool(server, live, claims):
    devices = [{"name": "x", "nodeName": "a"}, {"name": "y", "nodeName": "b"}]
    pool = {"name": "each", "generation": 1, "resourceSliceCount": 1}
    server.put(resource_slice("", name="each", pool=pool, perDeviceNodeSelection=True, devices=devices))
    await until(lambda: device_names(live, "b") == ["y"])
    assert "x" in device_names(live, "a")


async def test_an_extended_resource_of_a_class_needs_no_device_plugin(server, live, claims):
    server.put(device_class(extended="example.com/card"))
    for resource in ("example.com/card", f"{DEVICE_CLASS_PREFIX}gpu"):
        document = api_pod(pod("asking", None, **{resource: "1"}), phase="Pending")
        name = resource.replace("/", "-")
        document["metadata"] |= {"name": name, "uid": resource}
        server.put(document)
        await until(partial(served_by_class, live, name))
        asked = live.read(live.find_pod("default", name))
        assert live.verdict(asked, "a").admits
        assert (fits(live, "a", asked), fits(live, "b", asked)) == (True, False)


async def test_without_the_api_group_everything_else_goes_on_with_one_line_in_the_log(server, nodes, client, follow):
    server.inject(ApiFault(status=404, times=10_000), resource="deviceclasses")
    live = LiveCluster(client)
    with capture_logs() as logs:
        follow(live.run())
        await live.ready.wait()
        fit = live.claim_fit(WANTING, "a")
    assert live.verdict(WANTING, "a").admits
    assert (fit.possible, fit.certain) == (True, False)
    assert live.problems == ()
    assert live.warnings[0].startswith("claims of pods are not known: deviceclasses.resource.k8s.io are not followed: ")
    assert len([entry for entry in logs if entry["event"] == "cannot follow the API server"]) == 1

    server.inject(ApiFault(), resource="deviceclasses")
    await until(lambda: live.claims.known)
    assert live.warnings == ()


async def test_objects_that_are_too_large_or_wrong_are_named_and_keep_nobody_from_a_node(server, live, claims):
    many = [{"name": f"d{number}"} for number in range(known_claims.MAX_SLICE_DEVICES + 1)]
    server.put(resource_slice("b", devices=many))
    bad = [{"name": "d", "capacity": {"memory": {"value": "much"}}}]
    server.put(resource_slice("c", devices=bad))
    wide = template("wide")
    wide["spec"]["spec"]["devices"]["requests"] *= known_claims.MAX_REQUESTS + 1
    server.put(wide)
    huge = claim("huge")
    huge["spec"]["devices"]["requests"] *= known_claims.MAX_REQUESTS + 1
    server.put(huge)
    await until(lambda: len(live.unreadable) == 4)
    assert set(live.unreadable) == {
        "ResourceSlice slice-b",
        "ResourceSlice slice-c",
        "ResourceClaimTemplate default/wide",
        "ResourceClaim default/huge",
    }
    assert live.warnings[0].startswith("4 objects cannot be read: ")
    fit = live.claim_fit(WANTING, "b")
    assert (fit.possible, fit.certain) == (True, False)
    server.put(resource_slice("b", (0,)))
    await until(lambda: len(live.unreadable) == 3)
    assert device_names(live, "b") == ["gpu-0"]
    server.remove("resourceslices", "slice-c")
    server.remove("resourceclaimtemplates", "wide")
    server.remove("resourceclaims", "huge")
    await until(lambda: not live.unreadable)


async def test_a_numa_node_that_does_not_exist_and_a_device_with_two_claims_are_reported(server, live, claims):
    server.put(resource_slice("b", (0, 7)))
    for name in ("one", "two"):
        server.put(claim(name, ["gpu-0"], "b"))
    await until(lambda: len(live.claims.objects.claims) == 2 and live.claims.devices == 4)
    devices = live.claims.devices_of("b", live.cluster.record("b").model.machine)
    assert [device.nodes for device in devices] == [1, None]
    assert live.warnings == (
        f"device {DRIVER}/b/gpu-0 is allocated to default/one and default/two",
        f"node b: this machine does not have NUMA node 7 of device {DRIVER}/b/gpu-1 in its ResourceSlice",
    )
    server.remove("resourceclaims", "two")
    await until(lambda: len(live.warnings) == 1)


async def test_a_claim_that_is_deleted_under_a_pod_is_logged_and_its_device_is_free(server, live, claims):
    server.put(claim("held", ["gpu-0", "gpu-1"], "a", uid="running"))
    await until(lambda: not fits(live, "a"))
    with capture_logs() as logs:
        server.remove("resourceclaims", "held")
        await until(lambda: fits(live, "a"))
    assert [entry["pod_uids"] for entry in logs if entry["event"] == "claim deleted while pods use it"] == [["running"]]


async def test_devices_that_others_may_use_too_are_left_to_the_scheduler(server, live, claims):
    shared = [{"name": "gpu-0", "allowMultipleAllocations": True}]
    server.put(resource_slice("b", devices=shared))
    server.put(claim("other", ["gpu-0"], "b"))
    await until(lambda: live.claims.devices == 3 and live.claims.objects.claims)
    fit = live.claim_fit(WANTING, "b")
    assert (fit.possible, fit.certain) == (True, False)
    admin = claim("admin", ["gpu-0", "gpu-1"], "a")
    admin["status"]["allocation"] = allocation(["gpu-0", "gpu-1"], "a")
    for result in admin["status"]["allocation"]["devices"]["results"]:
        result["adminAccess"] = True
    server.put(admin)
    await until(lambda: len(live.claims.objects.claims) == 2)
    assert live.claim_fit(WANTING, "a") == ClaimFit(possible=True)


async def test_a_part_of_a_device_that_is_in_use_is_not_free(server, live, claims):
    counters = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    parts = [{"name": f"part-{number}", "consumesCounters": counters} for number in range(2)]
    server.put(resource_slice("b", devices=parts))
    await until(lambda: live.claims.devices == 4)
    fit = live.claim_fit(WANTING, "b")
    assert (fit.possible, fit.certain) == (True, False)
    server.put(claim("other", ["part-0", "part-1"], "b"))
    await until(lambda: live.claims.objects.claims)
    assert not live.claim_fit(WANTING, "b").possible


async def test_selectors_that_take_long_do_not_block_the_service(server, live, claims):
    """A decision computes one slice; the rest is computed in the background, and then decisions are made again."""
    serials = [{"name": f"d{number}", "attributes": {"serial": {"int": number}}} for number in range(30)]
    server.put(resource_slice("b", devices=serials))
    server.put(template(selector=f'device.attributes["{DRIVER}"].serial == 29'))
    await until(lambda: len(device_names(live, "b")) == 30)
    await until(lambda: claims.objects.templates["default", "gpus"].requests[0][0].selectors)
    times = itertools.count(step=0.01)
    claims.selectors.clock = lambda: next(times)

    fit = live.claim_fit(WANTING, "b")

    assert fit == ClaimFit(possible=True, reason="the selectors of its claims are still being evaluated", certain=False)
    assert next(times) < 0.3
    await until(lambda: live.claim_fit(WANTING, "b") == ClaimFit(possible=True))


async def test_selectors_over_budget_leave_the_choice_to_the_scheduler(server, live, claims):
    times = itertools.count(step=20.0)
    claims.selectors.clock = lambda: next(times)
    server.put(template(selector="device.allowMultipleAllocations || true"))
    await until(lambda: claims.objects.templates["default", "gpus"].requests[0][0].selectors)

    with capture_logs() as logs:
        live.claim_fit(WANTING, "a")
        fits = {live.claim_fit(WANTING, "a") for _ in range(3)}

    (fit,) = fits
    assert (fit.possible, fit.certain) == (True, False)
    assert "take more than 10 s of computing in 10 minutes; only the scheduler can tell" in fit.reason
    assert len([entry for entry in logs if entry["event"] == "selectors take too long"]) == 1


async def test_claims_that_need_long_searches_do_not_block_the_service(server, live, claims, monkeypatch):
    """Each node would take tens of milliseconds, and a cluster has thousands; nothing of it can be kept."""
    monkeypatch.setattr(selector_results, "SEARCH_SECONDS", 0.1)
    attributes = [{"serial": {"int": number}} for number in range(6)]
    devices = [{"name": f"d{number}", "attributes": values} for number, values in enumerate(attributes)]
    server.put(resource_slice("b", devices=devices))
    requests = [{"name": f"r{number}", "exactly": {"deviceClassName": "gpu"}} for number in range(6)]
    constraint = {"matchAttribute": f"{DRIVER}/serial", "requests": ["r4", "r5"]}
    document = template("bomb")
    document["spec"]["spec"] = {"devices": {"requests": requests, "constraints": [constraint]}}
    other = template()
    other["metadata"]["namespace"] = "other"
    server.put(other)
    server.put(document)
    await until(lambda: len(device_names(live, "b")) == 6 and ("default", "bomb") in claims.objects.templates)
    bomb = claiming(pod("bomb"), template="bomb")
    with capture_logs() as logs:
        decisions = (live.claim_fit(bomb, "b") for _ in range(2_000))
        assert next(decisions).reason == "not enough free devices for its claims"
        uncertain = next(decision for decision in decisions if not decision.certain)

    assert uncertain.possible
    assert "takes more than 0.1 s of computing in 10 minutes; only the scheduler can tell" in uncertain.reason
    assert [entry["namespace"] for entry in logs if entry["event"] == "searching devices takes too long"] == ["default"]
    assert live.explain_claims(replace(bomb, uid="another"), "a") == ()
    others = replace(WANTING, namespace="other")
    assert live.claim_fit(others, "a") == ClaimFit(possible=True)
    assert live.explain_claims(others, "a") != ()
