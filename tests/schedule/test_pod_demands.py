"""Pods that demand a policy, over HTTP: which nodes a scheduler is offered, and what users are told."""

from dataclasses import replace

import pytest

from alignup.align.workload.names import POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.placement.scheduling.options import ExtenderOptions
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.kubelets import ObservedKubelet
from tests.schedule.test_extender import PLAIN, bound, create, filtered, occupy

pytestmark = pytest.mark.anyio

UNKNOWN = "annotation topology.alignup.dev/policy is 'strict'; use none, best-effort, restricted, single-numa-node"
NOT_PLACED = "the kubelet would not place the pod as single-numa-node demands"


def demanding(name, cpu="3", policy="single-numa-node", **asked):
    return replace(pod(name, cpu=cpu, memory="1Gi", **asked), annotations={POLICY_ANNOTATION: policy})


async def set_policy(nodes, service, name, policy):
    nodes.kubelets[name] = ObservedKubelet(topologyManagerPolicy=policy)
    nodes.report(name)
    await until(lambda: service.live.cluster.record(name).report.settings.topology.policy == policy)


async def test_only_nodes_that_place_the_pod_as_it_demands_are_offered(http, nodes, service):
    for name in "ab":
        await set_policy(nodes, service, name, "none")
    occupy(nodes, "a", pod("small", cpu="1", memory="1Gi"))  # now 3 CPUs would be on both NUMA nodes
    await until(lambda: "small" in service.live.cluster.record("a").ledger.pods)

    assert (await filtered(http, demanding("x")))["NodeNames"] == ["b"]
    assert (await filtered(http, demanding("x"), names=["a"]))["FailedAndUnresolvableNodes"] == {"a": NOT_PLACED}
    assert (await filtered(http, demanding("y", policy="best-effort"), names=["a"]))["NodeNames"] == ["a"]
    assert (await filtered(http, pod("z", cpu="3", memory="1Gi"), names=["a"]))["NodeNames"] == ["a"]


async def test_a_pod_with_an_unknown_policy_waits_with_an_event(http, nodes, service):
    metadata = {"name": "plain", "namespace": "default", "uid": "plain", "annotations": {POLICY_ANNOTATION: "strict"}}
    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": PLAIN["spec"]}
    pending = {**plain, "status": {"phase": "Pending"}}  # what no kubelet aligns is not ignored either
    await create(nodes, service, pending, demanding("x", policy="strict"))

    for asked in (demanding("x", policy="strict"), plain):
        answer = await filtered(http, asked)
        assert answer["FailedAndUnresolvableNodes"] == {"a": UNKNOWN, "b": UNKNOWN}

    def events():
        made = nodes.server.objects("events")
        return {(event["involvedObject"]["name"], event["reason"], event["message"]) for event in made}

    await until(lambda: len(events()) == 2)
    assert events() == {("x", "UnknownDemand", UNKNOWN), ("plain", "UnknownDemand", UNKNOWN)}
    assert "UnknownDemand" not in await bound(http, demanding("x", policy="strict"))
    assert not nodes.bound()["x"]


async def test_nodes_that_are_not_observed_are_not_offered(http, nodes, service):
    nodes.add("new", observed=False)
    service.live.scheduling.offers.options = ExtenderOptions(offered=2, allow_unknown=True)
    await until(lambda: service.live.nodes.get("new"))

    assert (await filtered(http, demanding("x"), names=["new"]))["NodeNames"] == []
    assert (await filtered(http, demanding("y", policy="best-effort"), names=["new"]))["NodeNames"] == ["new"]


async def test_the_answer_of_a_node_names_container_resource_and_change(http, nodes, service):
    await set_policy(nodes, service, "a", "none")
    annotations = {SCOPE_ANNOTATION: "pod", POLICY_ANNOTATION: "restricted"}
    await create(nodes, service, replace(demanding("x", gpu="1"), annotations=annotations))

    rows = (await http.get("/v1/explain/default/x")).json()["nodes"]

    (row,) = [row for row in rows if row["node"] == "a"]
    assert row["reason"] == "the kubelet may choose devices that restricted does not accept"
    assert row["detail"].startswith("the pod may be on NUMA nodes 0-1 (cpu on 0, memory on 0, example.com/gpu on 1)")
    assert "topologyManagerPolicy restricted" in row["detail"]
