"""Pods that demand near devices, through HostState objects: which nodes they get, and what users are told."""

from dataclasses import replace

import pytest

from alignup.align.claims.resource_claims import PCI_BUS_ID
from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.workload.names import DEVICES_ANNOTATION
from alignup.documents.codec import convert
from alignup.kubernetes.api.objects import ApiNode
from alignup.kubernetes.manifests.claims import ResourceSlice, slices_from
from alignup.placement.scheduling.node_offers import NO_NEAR_DEVICES
from alignup.schedule.cluster_snapshot import build_view
from alignup.schedule.live_cluster_options import LiveClusterOptions
from alignup.testing.replay import replay
from tests.align.hosts import pod
from tests.deadlines import until
from tests.observe.api_objects import api_pod, node, received
from tests.observe.kubelets import ObservedKubelet
from tests.placement.located_hosts import GPU, GPU_CLASS, device_pod, located_machine
from tests.schedule.claim_objects import claim, claiming, device_class, resource_slice, template
from tests.schedule.located_kubelets import located_kubelet
from tests.schedule.test_extender import bound, create, filtered, occupy

pytestmark = pytest.mark.anyio

NOT_NEAR = "the kubelet may choose devices that are not same-switch"


def demanding(name, gpus=2, demand="same-switch", **more):
    return device_pod(name, gpus, demand=demand, **more)


async def locate(nodes, service_or_live, name, **shape):
    """Give a node devices with places below its NUMA nodes."""
    nodes.kubelets[name] = located_kubelet(**shape)
    nodes.report(name)
    cluster = getattr(service_or_live, "live", service_or_live).cluster
    await until(lambda: (record := cluster.record(name)) and record.report.machine.pci)


async def test_only_nodes_with_near_devices_are_offered(http, nodes, service):
    await locate(nodes, service, "a")
    await locate(nodes, service, "b", switches=1, gpus=4)

    assert (await filtered(http, demanding("x")))["NodeNames"] == ["b"]
    assert (await filtered(http, demanding("x"), names=["a"]))["FailedAndUnresolvableNodes"] == {"a": NOT_NEAR}
    assert (await filtered(http, demanding("y", demand="same-root"), names=["a"]))["NodeNames"] == ["a"]


async def test_a_binding_checks_the_demand_again(http, nodes, service):
    await locate(nodes, service, "a")
    occupy(nodes, "a", device_pod("taken"))
    await create(nodes, service, demanding("x"))
    await until(lambda: "taken" in service.live.cluster.record("a").ledger.pods)
    assert (await filtered(http, demanding("x"), names=["a"]))["NodeNames"] == ["a"]
    nodes.server.remove("pods", "taken")  # now one GPU of each switch may be chosen
    await until(lambda: not service.live.verdict(demanding("y"), "a").admits)

    problem = await bound(http, demanding("x"))

    assert problem.startswith(f"node a does not admit the pod any more: {NOT_NEAR} (container app: gpu-0 and gpu-2 ")
    assert nodes.bound()["x"] == ""


async def test_rules_of_plugins_hold_for_all_nodes(start_live, nodes, tmp_path):
    options = LiveClusterOptions(plugin_rules={GPU: PluginRule.NVIDIA}, record=tmp_path)
    live = await start_live(options=options)
    await locate(nodes, live, "a")

    assert live.verdict(demanding("x", demand="nvlink"), "a").admits
    assert not live.verdict(demanding("x", gpus=3, demand="nvlink"), "a").admits
    (recording,) = tmp_path.iterdir()
    assert replay(recording).difference is None
    assert '{"$":"PluginRule","=":"nvidia"}' in recording.read_text("utf-8")


@pytest.mark.parametrize(("rules", "admits"), [({}, False), ({GPU: PluginRule.NVIDIA}, True)])
def test_cluster_why_counts_every_choice_of_the_plugins(rules, admits):
    state = received(located_kubelet().host_state("a"))

    view = build_view([received_node("a")], [state], [], plugin_rules=rules)

    assert view.cluster.verdict(demanding("x", demand="nvlink"), "a").admits is admits


def received_node(name):
    return convert(node(name), ApiNode)


def test_an_older_host_state_cannot_say():
    state = located_kubelet().host_state("a")
    for name in ("pci", "links"):
        state["ledger"].pop(name)
    view = build_view([received_node("a")], [received(state)], [])

    verdict = view.cluster.verdict(demanding("x"), "a")

    assert "the PCI address of gpu-0 (nvidia.com/gpu) is not known" in verdict.detail
    assert view.cluster.verdict(replace(pod("y", cpu="1"), annotations={}), "a").admits


def located_slice(name, *numbers):
    """A slice whose devices are these GPUs of a ``located_machine`` with two switches for each root complex."""
    addresses = [pci.address for pci in located_machine().pci if pci.kind == GPU_CLASS]
    attributes = [{"resource.kubernetes.io/pciBusID": {"string": addresses[number]}} for number in numbers]
    devices = [{"name": f"gpu-{number}", "attributes": each} for number, each in zip(numbers, attributes, strict=True)]
    return resource_slice(name, devices=devices)


async def claim_devices(nodes, service, **slices):
    """Give nodes devices for claims, whose places their observers report, and none of plugins."""
    documents = [located_slice(name, *numbers) for name, numbers in slices.items()]
    for document in (device_class(), template(count=2), *documents):
        nodes.server.put(document)
    for name, document in zip(slices, documents, strict=True):
        kubelet = ObservedKubelet(machine=located_machine().with_reported(()))
        kubelet.slices = slices_from(convert(document, ResourceSlice))
        nodes.kubelets[name] = kubelet
        nodes.report(name)
    known, cluster = service.live.claims, service.live.cluster
    await until(lambda: known.devices == sum(map(len, slices.values())) and known.objects.templates)
    await until(lambda: all((record := cluster.record(name)) and record.report.machine.pci for name in slices))


def claiming_near(demand="same-switch", name="x", **annotations):
    return claiming(replace(pod(name, cpu="2"), annotations={DEVICES_ANNOTATION: demand}), **annotations)


async def test_a_node_is_offered_if_claims_can_get_near_devices(http, nodes, service):
    await claim_devices(nodes, service, a=(0, 2), b=(0, 1, 4))

    assert (await filtered(http, claiming_near()))["NodeNames"] == ["b"]
    answer = await filtered(http, claiming_near(preference="ignore"), names=["a"])
    assert answer["FailedAndUnresolvableNodes"] == {"a": NO_NEAR_DEVICES}
    assert (await filtered(http, claiming_near("same-root"), names=["a"]))["NodeNames"] == ["a"]


async def test_a_binding_is_refused_if_the_devices_of_a_claim_are_far(http, nodes, service):
    await claim_devices(nodes, service, b=(0, 1, 4))
    asked = claiming_near(preference="ignore")
    document = api_pod(asked, phase="Pending")
    document["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "x-gpu"}]
    await create(nodes, service, document)
    nodes.server.put(claim("x-gpu", ["gpu-0", "gpu-4"], "b", count=2))

    problem = await bound(http, asked, "b")

    assert problem.startswith(f"node b is refused, since {DEVICES_ANNOTATION} is same-switch: container app: ")
    assert problem.endswith("have no PCIe switch in common (SYS)")
    assert nodes.bound()["x"] == ""
    await until(lambda: nodes.server.objects("events"))
    assert [event["reason"] for event in nodes.server.objects("events")] == ["DemandNotMet"]
    await until(lambda: service.live.claims.objects.claims["default", "x-gpu"].allocated)
    assert (await filtered(http, document, names=["b"]))["NodeNames"] == []  # so the scheduler takes them back
    rows = (await http.get("/v1/explain/default/x?node=b")).json()["nodes"]
    assert "the devices do not satisfy same-switch" in rows[0]["claims"]["claims"][0]["sentence"]
    nodes.server.put(claim("x-gpu", ["gpu-0", "gpu-1"], "b", count=2))

    assert await bound(http, asked, "b") == ""
    assert nodes.bound()["x"] == "b"


async def test_without_the_places_of_devices_no_node_is_offered(http, nodes, service):
    await claim_devices(nodes, service, b=(0, 1))
    nodes.server.put(resource_slice("b", (0, 0)))
    await until(lambda: not service.live.claims.devices_of("b", None)[0].attributes.get(PCI_BUS_ID))

    assert (await filtered(http, claiming_near(), names=["b"]))["NodeNames"] == []
