"""Nodes without HostState are judged by their NodeResourceTopology: approximately, and never too well."""

import random
from dataclasses import replace
from itertools import product

import pytest

from alignup.align.workload import Pod
from alignup.align.workload.names import CPU
from alignup.documents.codec import convert
from alignup.kubernetes.api import NODE_RESOURCE_TOPOLOGIES
from alignup.observe.observation import join
from alignup.observe.published_objects import FingerprintMethod, node_topology
from alignup.placement.score import POINT
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.schedule.node_resource_topology import charge, read_zones, zones_verdict
from alignup.testing.api_server import ServedResource
from tests.align.hosts import GPU, pod
from tests.deadlines import until
from tests.effort import SEED, did, rounds
from tests.observe.api_objects import overflowing_pod
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.assumptions import assume, forget
from tests.strategies_pods import guaranteed

SERVED = ServedResource(
    kind="NodeResourceTopology",
    plural="noderesourcetopologies",
    group="topology.node.k8s.io",
    version="v1alpha2",
    namespaced=False,
)
WIDE = pod("wide", cpu="4", memory="1Gi")  # only NUMA node 1 has four CPUs
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def topology(kubelet, method=FingerprintMethod.EXCLUSIVE, name="a"):
    document = node_topology(join(kubelet.sources()), method=method)
    kind = {"apiVersion": NODE_RESOURCE_TOPOLOGIES.api_version, "kind": NODE_RESOURCE_TOPOLOGIES.kind}
    return {**kind, "metadata": {"name": name}, **document}


def zones(kubelet):
    return read_zones(convert(topology(kubelet), NODE_RESOURCE_TOPOLOGIES.type))


def kubelet(*pods: Pod, policy="single-numa-node", scope="container"):
    made = ObservedKubelet(topologyManagerPolicy=policy, topologyManagerScope=scope)
    for held in pods:
        made.run(held)
    return made


def pair(*cpus: str) -> Pod:
    containers = tuple(guaranteed(f"c{number}", {"cpu": cpu, "memory": "1Gi"}) for number, cpu in enumerate(cpus))
    return Pod(name="pair", uid="pair", containers=containers)


@pytest.mark.parametrize(
    ("asked", "policy", "scope", "kind", "reason"),
    [
        pytest.param(WIDE, "single-numa-node", "container", "admits", "", id="fits"),
        pytest.param(
            pod("x", cpu="5"), "single-numa-node", "pod", "rejects", "not enough cpu on one NUMA node", id="no"
        ),
        pytest.param(pod("x", cpu="5"), "best-effort", "container", "admits", "", id="best effort"),
        pytest.param(pod("x", cpu="5"), "none", "container", "admits", "", id="no policy"),
        pytest.param(
            pod("x", cpu="5"),
            "restricted",
            "container",
            "unknown",
            "needs several NUMA nodes, and has no HostState",
            id="several nodes",
        ),
        pytest.param(pair("3", "2"), "single-numa-node", "pod", "rejects", "not enough cpu on one NUMA node", id="sum"),
        pytest.param(pair("2", "2"), "single-numa-node", "container", "admits", "", id="two containers"),
        pytest.param(
            pod("x", cpu="3", memory="1Gi", gpu="2"),
            "single-numa-node",
            "container",
            "rejects",
            "not enough example.com/gpu on one NUMA node",
            id="devices",
        ),
        pytest.param(pod("x", cpu="500m", memory="1Gi"), "single-numa-node", "container", "admits", "", id="fraction"),
    ],
)
def test_verdicts_of_an_idle_node(asked, policy, scope, kind, reason):
    verdict = zones_verdict(zones(kubelet(policy=policy, scope=scope)), asked)

    assert (str(verdict.kind), verdict.reason) == (kind, reason)
    assert verdict.approximate is (kind != "unknown")
    assert verdict.code == ("" if kind == "admits" else "NotPredicted")


def test_nodes_without_devices_are_best_for_pods_without_devices():
    with_devices = zones(kubelet())
    plain = replace(with_devices, allocatable=tuple({CPU: zone[CPU]} for zone in with_devices.allocatable))

    best, other = (zones_verdict(node_zones, pod("x", cpu="1")).score for node_zones in (plain, with_devices))

    assert best
    assert other
    assert 50 > best.total > other.total
    assert sum(best.points) == round(POINT * best.total)


def test_what_no_object_shows_counts_on_every_numa_node():
    seen = zones(kubelet())

    assert zones_verdict(seen, WIDE).admits
    assert not zones_verdict(seen, WIDE, [charge(pod("other", cpu="1"), seen.resources)]).admits


@pytest.mark.parametrize(
    "policies", ["SingleNUMANodePodLevel", "Restricted", "BestEffortContainerLevel", "None", "odd"]
)
def test_the_deprecated_field_counts_without_attributes(policies):
    document = {**topology(kubelet()), "topologyPolicies": [policies], "attributes": []}
    read = read_zones(convert(document, NODE_RESOURCE_TOPOLOGIES.type))

    names = {"S": "single-numa-node", "R": "restricted", "B": "best-effort"}
    assert read.policy == names.get(policies[0], "none")
    assert read.pod_scope is policies.endswith("PodLevel")


def test_a_node_without_zones_is_unknown():
    document = {**topology(kubelet()), "zones": [{"name": "x", "type": "pool"}]}

    assert str(zones_verdict(read_zones(convert(document, NODE_RESOURCE_TOPOLOGIES.type)), WIDE).kind) == "unknown"


@pytest.mark.soak
def test_what_is_admitted_by_totals_is_admitted_by_the_kubelet():
    """Never the other way round: totals of NUMA nodes do not tell everything. Schedulers check those of the node."""
    chance = random.Random(SEED)
    admitted = 0
    for policy, scope, _ in product(POLICIES, ("container", "pod"), range(rounds(2, soak=200))):
        host = kubelet(policy=policy, scope=scope)
        for number in range(chance.randrange(5)):
            candidate = pod(f"p{number}", cpu=chance.choice(["1", "2", "500m"]), memory="1Gi", gpu=chance.choice("01"))
            if host.host.decide(candidate).admitted:
                host.admit(candidate)
        seen = zones(host)
        for number in range(8):
            parts = [
                guaranteed(f"c{part}", {"cpu": chance.choice("1234"), "memory": "1Gi", GPU: chance.choice("01")})
                for part in range(chance.randrange(1, 3))
            ]
            asked = replace(pod(f"asked-{number}"), containers=tuple(parts))
            if zones_verdict(seen, asked).admits and policy not in {"none", "best-effort"}:
                admitted += 1
                rejection = host.host.decide(asked).rejection
                assert rejection is None or rejection.reason == "OutOfcpu", (policy, scope, asked)
    did("pods admitted by totals", admitted)
    assert admitted


@pytest.fixture
async def approximate(server, nodes, start_live):
    """A cluster with node ``a`` whose exporter publishes totals only."""
    server.serve(SERVED)
    server.remove("hoststates", "a")
    server.put(topology(kubelet()))
    return await start_live(options=LiveClusterOptions(approximate=True))


@pytest.mark.anyio
async def test_a_node_is_unknown_while_a_pod_there_cannot_be_read(approximate, nodes):
    nodes.server.put(overflowing_pod("huge", "a"))
    await until(lambda: approximate.verdict(WIDE, "a").kind == "unknown")
    assert approximate.verdict(WIDE, "a").reason == "a pod that is bound there cannot be read"

    nodes.server.remove("pods", "huge")
    await until(lambda: approximate.verdict(WIDE, "a").kind == "admits")


async def test_a_node_without_host_state_is_judged_by_its_totals(approximate, nodes):
    assert approximate.verdict(WIDE, "a").approximate
    assert [ranked.host for ranked in approximate.choose(WIDE)] == ["b", "a"]  # exact verdicts first

    nodes.report("a")
    await until(lambda: not approximate.verdict(WIDE, "a").approximate)
    nodes.server.remove("nodes", "a")
    await until(lambda: approximate.verdict(WIDE, "a").reason == "no such node")


@pytest.mark.anyio
@pytest.mark.parametrize("fingerprint", [True, False])
async def test_a_bound_pod_counts_everywhere_until_the_totals_contain_it(approximate, nodes, fingerprint):
    small, host = pod("small", cpu="1", memory="1Gi"), kubelet()
    assert assume(approximate, small, "a").admits
    assert not approximate.verdict(WIDE, "a").admits
    forget(approximate, "small")
    assert approximate.verdict(WIDE, "a").admits

    nodes.create(small, "a")
    await until(lambda: not approximate.verdict(WIDE, "a").admits)
    nodes.server.put(without_fingerprint(topology(host), fingerprint))  # read before the pod was admitted
    await until(lambda: approximate.topologies.get("a").metadata.resource_version == version(nodes))
    assert not approximate.verdict(WIDE, "a").admits

    host.admit(small)
    nodes.server.put(without_fingerprint(topology(host), fingerprint))
    await until(lambda: approximate.verdict(WIDE, "a").admits)


def without_fingerprint(document, kept):
    return (
        document
        if kept
        else {
            **document,
            "attributes": [attribute for attribute in document["attributes"] if "Pods" not in attribute["name"]],
        }
    )


def version(nodes):
    return nodes.server.objects("noderesourcetopologies")[0]["metadata"]["resourceVersion"]
