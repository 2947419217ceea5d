import asyncio

import pytest

from alignup.align.claims.resource_claims import DeviceId
from alignup.align.errors import PluginError
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources
from alignup.machines.synthetic import parse
from alignup.nri import node_pods
from alignup.nri.node_pods import NodePods, UnknownPodError
from alignup.placement.host_report import PodStage
from alignup.wire import nri_pb2 as wire
from tests.align.hosts import make_pod

pytestmark = pytest.mark.anyio

SANDBOX = wire.PodSandbox(uid="a", name="a", namespace="default")


def known(pod, stage=PodStage.RUNNING):
    return {pod.uid: KnownPod(pod=pod, stage=stage, finished=False)}


def make(pods, *listed):
    async def list_resources():
        return listed

    return NodePods(parse("numa:2 core:2 pu:1"), pods=lambda: pods, list_resources=list_resources)


async def test_it_waits_for_a_pod_that_the_kubelet_got_earlier():
    pods: dict[str, KnownPod] = {}
    node = make(pods)
    finding = asyncio.ensure_future(node.find(SANDBOX))
    await asyncio.sleep(0)
    node.notify()  # about another pod
    await asyncio.sleep(0)
    assert not finding.done()
    pods.update(known(make_pod("a")))
    node.notify()
    requested = await finding
    assert (requested.pod.uid, requested.devices) == ("a", {})


async def test_it_gives_up_before_the_runtime_does(monkeypatch):
    monkeypatch.setattr(node_pods, "_WAIT", 0.0)
    with pytest.raises(UnknownPodError, match="pod default/a is unknown: the API server has not sent it yet"):
        await make(None).find(SANDBOX)


async def test_a_static_pod_without_a_mirror_pod_is_not_waited_for():
    static = wire.PodSandbox(uid="x", annotations={"kubernetes.io/config.source": "file"})

    assert await make({}).find(static) is None


async def test_a_device_of_a_claim_that_no_slice_has_restricts_nothing():
    id_ = DeviceId("driver", "pool", "gpu-0")
    resources = ListedResources(claims={"default/gpu": (id_,)})
    listed = ListedPod(namespace="default", name="a", containers={"app": resources})
    requested = await make(known(make_pod("a", gpu="1")), listed).find(SANDBOX)

    (device,) = requested.devices["app"]["claim default/gpu"]
    assert (device.id, device.nodes) == ("driver/pool/gpu-0", None)


async def test_a_pod_with_devices_that_the_kubelet_does_not_list_is_not_decided_on():
    with pytest.raises(UnknownPodError, match="lists no devices of pod default/a yet"):
        await make(known(make_pod("a", gpu="1"))).find(SANDBOX)


async def test_a_kubelet_that_does_not_answer_is_an_error():
    async def fail():
        raise PluginError("List at kubelet.sock: no such socket")

    pods = known(make_pod("a", gpu="1"))
    with pytest.raises(PluginError, match="no such socket"):
        await NodePods(parse("numa:2 core:2 pu:1"), pods=lambda: pods, list_resources=fail).find(SANDBOX)


@pytest.mark.parametrize(
    ("pods", "ended"),
    [(None, False), ({}, True), (known(make_pod("a")), False), (known(make_pod("a"), PodStage.TERMINATING), True)],
)
def test_which_pods_have_ended(pods, ended):
    assert make(pods).ended(["a"]) == (["a"] if ended else [])
