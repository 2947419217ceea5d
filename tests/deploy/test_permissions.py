"""The roles grant what the programs need, and nothing else."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trustme

from alignup.align.policy_overrides import PolicyOverrides
from alignup.kubernetes.api import Access, ApiClient
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.nri.decide_service import DecideOptions
from alignup.nri.decide_service import decide as nri_decide
from alignup.nri.service import NriOptions
from alignup.observe.service import observe
from alignup.schedule.cluster_plan import JOBS, VOLUME_CLAIMS, VOLUMES
from alignup.schedule.disruption_budgets import POD_DISRUPTION_BUDGETS
from alignup.schedule.gate.authority_installation import (
    WARNING_CONFIGURATIONS,
    WEBHOOK_CONFIGURATIONS,
    install_authority,
)
from alignup.schedule.gate.certificates import renew_authority, secret_data
from alignup.schedule.gate.service import GateServiceOptions, WebhookOptions, add_gate
from alignup.schedule.pod_groups import RESOURCES
from alignup.schedule.service import LeaseOptions, ScheduleService
from alignup.testing.api_server import ApiServer
from tests.align.hosts import pod
from tests.deadlines import until
from tests.deploy.manifests import (
    BASE,
    KUBERNETES,
    NRI_DECIDE,
    PLANS,
    SCHEDULE,
    SCHEDULER,
    STEER,
    by_name,
    of_kind,
    read_documents,
    read_kustomization,
)
from tests.deploy.permissions import granted, used
from tests.kubernetes.api.conftest import client, follow, server, timing
from tests.nri.runtime import ScriptedRuntime
from tests.observe.api_objects import SERVED, SLICES, api_pod, node, served
from tests.observe.observed_machine import observe_once
from tests.observe.steered_kubelet import PATIENT, ClusterService, SteeredKubelet, marker_pod, steering_observer
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template
from tests.schedule.conftest import http, service, start_service
from tests.schedule.gate.conftest import cluster
from tests.schedule.gate.test_authority_installation import SECRET, configuration, warning_configuration
from tests.schedule.gate.test_authority_installation import secret as webhook_secret
from tests.schedule.nodes import SimulatedNodes
from tests.schedule.plan_cluster import PlanCluster
from tests.schedule.test_extender import WIDE, bound, filtered, occupy, post
from tests.short_paths import short_directory

__all__ = ["client", "cluster", "follow", "http", "server", "service", "start_service", "timing"]

pytestmark = pytest.mark.anyio

OBJECTS = by_name(
    manifest for directory in (BASE, SCHEDULE, SCHEDULER, NRI_DECIDE) for manifest in read_kustomization(directory)
)
AGENT = "alignup-schedule"
NAMES = ("alignup-webhook.alignup.svc",)

#: What the gate controller does only in cases that the test below does not bring about.
STEERING = {("patch", "alignup.dev", "steeringinstructions")}  #: of pods with markers
SELDOM = STEERING | {
    ("get", "", "pods"),  # after a lost response
    ("patch", "", "events"),  # a reason that comes again
}


def serve_pod_groups(server: ApiServer) -> None:
    for resource in (resource for resources in RESOURCES.values() for resource in resources):
        server.serve(served(resource))


@pytest.fixture
def nodes(server):
    """Two nodes of a server without lists in watches."""
    server.streamed_lists = False
    serve_pod_groups(server)
    simulated = SimulatedNodes(server)
    for name in "ab":
        simulated.add(name)
    return simulated


@pytest.fixture
async def servers(anyio_backend):
    """A server with lists in watches, and an older one without."""
    async with ApiServer() as new, ApiServer() as old:
        old.streamed_lists = False
        yield [new, old]


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
async def kubelet(authority, anyio_backend):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with ApiServer(tls=context) as made:
        made.respond("/configz", b'{"kubeletconfig":{}}')
        yield made


async def test_the_observer_has_the_permissions_that_it_uses(servers, kubelet, authority, tmp_path):
    address = kubelet.url.removeprefix("https://")
    for api_server in servers:
        api_server.serve(SERVED)
        api_server.serve(SLICES)
        api_server.put(node("host-a"))
        options = observe_once(tmp_path / str(id(api_server)), configz=True, kubelet_address=address)
        access = Access(server=api_server.url, authority=authority.cert_pem.bytes())
        assert await observe(access, options) == ()

    needed = used(servers)
    assert {request.path for request in kubelet.requests} == {"/configz"}  # which the kubelet authorizes like this:
    needed.add(("get", "", "nodes/configz"))
    assert granted(OBJECTS["ClusterRole /alignup-observer"]) == needed


async def test_the_nri_plugin_has_the_permissions_that_it_uses(servers, kubelet, authority, short_path, tmp_path):
    """It runs until it has registered."""
    path = short_path / "nri.sock"
    address = kubelet.url.removeprefix("https://")
    decide_options = DecideOptions(host="host-a", policies=PolicyOverrides(), kubelet_address=address)
    async with ScriptedRuntime().listening(path) as runtime:
        for api_server in servers:
            api_server.serve(SLICES)
            api_server.put(node("host-a"))
            state = short_path / str(id(api_server))
            options = NriOptions(
                path=path,
                index="90",
                kubelet_dir=tmp_path,
                host_root=Path("/"),
                state_dir=state,
                listen=None,
                names=(),
                period=1.0,
            )
            access = Access(server=api_server.url, authority=authority.cert_pem.bytes())
            running = asyncio.ensure_future(nri_decide(access, options, decide_options, state))
            registered = asyncio.ensure_future(runtime.plugins.get())
            done, _ = await asyncio.wait({running, registered}, return_when=asyncio.FIRST_COMPLETED)
            assert registered in done, running.exception()
            running.cancel()
            await asyncio.wait({running})

    needed = used(servers) | {("get", "", "nodes/configz")}
    assert granted(OBJECTS["ClusterRole /alignup-nri"]) == needed


async def test_steering_has_the_permissions_that_it_uses(servers):
    """The cluster service writes the spec only, and the observer the status."""
    roles = by_name(read_documents((STEER / "access.yaml").read_text("utf-8")))
    for api_server in servers:
        service = ClusterService(api_server)
        with short_directory() as directory:
            kubelet = SteeredKubelet(directory)  # a new one: the markers of an earlier plugin are never "at rest"
            await kubelet.start()
            async with ApiClient(Access(server=api_server.url)) as client, steering_observer(kubelet, client, PATIENT):
                await until(partial(getattr, kubelet, "at_rest"))
                await until(partial(getattr, service, "object"))  # which the observer has created
                generation = service.instruct(marker_pod("any"), "1")
                await service.reached(generation, "Ready")
            await kubelet.stop()

    assert granted(roles["ClusterRole /alignup-observer-steer"]) == used(servers)


async def search_for_moves(server, service, name):
    """Let the service look for moves for a pod, as for its page and its events."""
    for resource in (POD_DISRUPTION_BUDGETS, JOBS, VOLUME_CLAIMS, VOLUMES):
        server.serve(served(resource))
    await until(lambda: service.live.find_pod("default", name) is not None)
    await service.searches.plan(service.live.find_pod("default", name), EvictionRules())


async def test_the_gate_controller_has_the_permissions_that_it_uses(server, cluster, timing, follow):
    server.put(webhook_secret(secret_data(renew_authority(None, names=(), now=datetime.now(UTC)))))
    server.streamed_lists = False
    serve_pod_groups(server)
    lease = LeaseOptions(namespace="alignup", identity="one")
    options = GateServiceOptions(webhook=WebhookOptions(listen=("127.0.0.1", 0), namespace=SECRET.namespace))
    async with ApiClient(Access(server=server.url, user_agent=AGENT), timing=timing) as client:
        service = ScheduleService(client, lease=lease)
        with add_gate(service, options):
            running = follow(service.run())
            cluster.gate(pod("wide", cpu="4"))
            await until(lambda: cluster.bound().get("wide") == "a")
            cluster.gate(pod("huge", cpu="5"))
            await until(cluster.events)
            await search_for_moves(server, service, "huge")
            running.cancel()
            await asyncio.wait([running])  # the lease is given up

    names = ("ClusterRole /alignup-schedule", "Role alignup/alignup-schedule", "ClusterRole /alignup-gate")
    roles = [OBJECTS[name] for name in (*names, "Role alignup/alignup-gate")]
    needed = used([server], AGENT)
    assert not needed & SELDOM
    assert granted(*roles) == needed | SELDOM


async def test_a_service_that_carries_out_plans_has_the_permissions_that_it_uses(server, client, follow, timing):
    server.streamed_lists = False
    serve_pod_groups(server)
    for resource in (JOBS, VOLUME_CLAIMS, VOLUMES, POD_DISRUPTION_BUDGETS):
        server.serve(served(resource))
    cluster = PlanCluster(server, client, gated=True)
    follow(cluster.replace_pods())
    follow(cluster.schedule())
    lease = LeaseOptions(namespace="alignup", identity="one")
    async with ApiClient(Access(server=server.url, user_agent=AGENT), timing=timing) as agent:
        service = ScheduleService(agent, lease=lease, plans=True, serves_extender=False)
        with add_gate(service, GateServiceOptions()):
            running = follow(service.run())
            cluster.create_plan()
            await until(lambda: cluster.plan().status.phase == "Succeeded")
            running.cancel()
            await asyncio.wait([running])

    (role,) = of_kind(read_documents((PLANS / "access.yaml").read_text("utf-8")), "ClusterRole")
    names = ("ClusterRole /alignup-schedule", "Role alignup/alignup-schedule", "ClusterRole /alignup-gate")
    without = granted(*(OBJECTS[name] for name in names))
    in_conflict = {("get", "alignup.dev", "plans")}  #: after a change of the object before its status is written
    assert granted(role) == (used([server], AGENT) - without) | in_conflict


async def test_the_installation_of_the_webhook_has_the_permissions_that_it_uses(server, client):
    """It creates the Secret, and replaces an authority that expires."""
    server.put(configuration())
    server.put(warning_configuration())
    refs = {
        "configuration": WEBHOOK_CONFIGURATIONS.at("alignup-gate"),
        "warnings": WARNING_CONFIGURATIONS.at("alignup-warnings"),
    }
    await install_authority(client, secret=SECRET, names=NAMES, **refs)
    old = renew_authority(None, names=(), now=datetime.now(UTC) - timedelta(days=3600))
    server.put(webhook_secret(secret_data(old)))
    await install_authority(client, secret=SECRET, names=NAMES, **refs)

    roles = [OBJECTS["ClusterRole /alignup-certificates"], OBJECTS["Role alignup/alignup-certificates"]]
    assert granted(*roles) == used([server])


#: What a stolen token must not be able to write: with any of it, one has other accounts, or every object.
DANGEROUS = {
    *("secrets", "serviceaccounts/token", "pods/exec", "pods/attach", "pods/ephemeralcontainers", "nodes/proxy"),
    *("nodes", "configmaps", "namespaces", "serviceaccounts", "daemonsets", "deployments", "jobs"),
    *("roles", "rolebindings", "clusterroles", "clusterrolebindings", "customresourcedefinitions"),
    *("mutatingwebhookconfigurations", "validatingwebhookconfigurations", "validatingadmissionpolicies"),
    *("mutatingadmissionpolicies", "certificatesigningrequests", "pods/eviction"),
}
#: Role → what it may write of these all the same, and to which names only; see SECURITY.md.
NAMED = {
    ("alignup-gate", "secrets", "patch"): ["alignup-webhook"],
    ("alignup-certificates", "secrets", "patch"): ["alignup-webhook"],
    ("alignup-certificates", "secrets", "create"): None,  # names cannot be required
    ("alignup-certificates", "mutatingwebhookconfigurations", "patch"): ["alignup-gate"],
    ("alignup-certificates", "validatingwebhookconfigurations", "patch"): ["alignup-warnings"],
    ("alignup-plans", "pods/eviction", "create"): None,  # of any namespace; only with schedule.plans
}
READING = {"get", "list", "watch"}


def test_no_account_but_that_of_the_installation_may_write_what_gives_away_the_cluster():
    components = [
        manifest for path in (STEER, PLANS) for manifest in read_documents((path / "access.yaml").read_text("utf-8"))
    ]
    kueue = read_kustomization(KUBERNETES / "kueue")
    writes = {
        (role["metadata"]["name"], resource, verb): rule.get("resourceNames")
        for role in of_kind([*OBJECTS.values(), *components, *kueue], "Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in READING and resource in DANGEROUS
    }
    wildcards = [
        role["metadata"]["name"]
        for role in of_kind(OBJECTS.values(), "Role", "ClusterRole")
        for rule in role["rules"]
        if "*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
    ]

    assert writes == NAMED
    assert wildcards == []


def test_only_the_secret_of_the_webhook_is_readable():
    readable = [
        (role["metadata"]["name"], rule.get("resourceNames"))
        for role in of_kind(OBJECTS.values(), "Role", "ClusterRole")
        for rule in role["rules"]
        if "secrets" in rule["resources"] and READING & {*rule["verbs"]}
    ]

    assert readable == [("alignup-gate", ["alignup-webhook"]), ("alignup-certificates", ["alignup-webhook"])]


async def test_the_extender_has_the_permissions_that_it_uses(server, nodes, http, service):
    for host in "ab":
        occupy(nodes, host, pod(f"on-{host}", cpu="4", memory="1Gi"))
    await until(lambda: not service.live.choose(WIDE))
    nodes.create(WIDE)
    assert (await filtered(http))["NodeNames"] == []
    victims = {"a": {"Pods": [{"UID": "on-a"}], "NumPDBViolations": 0}}
    await post(http, "preempt", {"Pod": api_pod(WIDE, phase="Pending"), "NodeNameToMetaVictims": victims})
    server.remove("pods", "on-b")
    await until(lambda: any(request.path.endswith("/pods/wide/status") for request in server.requests))
    assert await bound(http, node="b") == ""

    for document in (device_class(), template(), resource_slice("a"), claim("own-gpu", ["gpu-1"], "a")):
        server.put(document)
    asked = claiming(pod("claiming", cpu="1"), preference="require")
    nodes.create(asked)
    await until(lambda: service.live.find_pod("default", "claiming") and service.live.claims.devices)
    document = api_pod(asked, phase="Pending")
    document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "own-gpu"}]
    server.hold()
    server.put(document)
    assert "node a is refused" in await bound(http, asked, "a")
    await until(lambda: server.objects("events"))
    await search_for_moves(server, service, WIDE.name)

    assert granted(OBJECTS["ClusterRole /alignup-scheduler"]) == used([server]) | STEERING | {("patch", "", "events")}
