"""The PodResources client against our endpoint, which answers as a kubelet does."""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.kubernetes.plugins.pod_resources import (
    list_allocatable,
    list_pod,
    pod_resources_client,
    serve_pod_resources,
)
from tests.align import hosts

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"


@pytest.fixture
def host():
    made = hosts.host()
    devices = (Device(GPU, "one", bits.of([1])), Device(GPU, "two", bits.of([0, 1])), Device(GPU, "none", None))
    made = type(made)(replace(made.machine, devices=devices), made.settings)
    assert made.admit(hosts.pod("a", gpu="2")).admitted
    return made


@pytest.fixture
async def client(directory, host, metrics):
    path = directory / "kubelet.sock"
    async with (
        serve_pod_resources(path, lambda: host, count=metrics.count_pod_resources),
        pod_resources_client(path) as made,
    ):
        yield made


async def test_list_has_each_device_once_with_all_its_nodes(client, host):
    (pod,) = await client.list()

    container = pod.containers["app"]
    assert (pod.namespace, pod.name) == ("default", "a")
    assert container.cpus == host.ledger.cpus.holds("a", "app")
    assert container.memory == host.ledger.memory.blocks("a", "app")
    assert {device.id: device.nodes for device in container.devices} == {
        id_: {"one": 2, "two": 3, "none": None}[id_] for id_ in host.ledger.devices.holds("a", "app")[GPU]
    }
    assert await client.get("default", "a") == pod == list_pod(host, host.ledger.pods["a"].pod)


async def test_allocatable_resources_are_those_of_the_host(client, host):
    allocatable = await client.allocatable()

    assert allocatable.cpus == host.view.all_cpus & ~host.ledger.cpus.reserved
    assert allocatable.memory == host.ledger.memory.allocatable()
    assert sorted((device.id, device.nodes) for device in allocatable.devices if device.nodes) == [
        ("one", 2),
        ("two", 3),
    ]
    assert allocatable == list_allocatable(host)


async def test_a_kubelet_that_does_not_answer_is_an_error(directory, client):
    with pytest.raises(PluginError, match=r"^Get at .*: rpc error: code = Unknown desc = pod x in namespace y not"):
        await client.get("y", "x")
    async with pod_resources_client(directory / "no.sock") as other:
        with pytest.raises(PluginError, match=r"^List at .*no\.sock: no such socket$"):
            await other.list()
