"""PodResources on its socket: what is told, in which entries, how often, and what is counted."""

import json

import grpc
import grpc.aio
import pytest
from google.protobuf.json_format import MessageToDict

from alignup import rpc
from alignup.align import bits
from alignup.align.errors import ListenError
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.plugins.metrics import PluginMetrics
from alignup.plugins.pod_resources import RateLimiter, serve_pod_resources
from alignup.plugins.pod_resources_view import AllocatableResources, ContainerAllocation, PodAllocation
from alignup.wire import pod_resources_pb2 as wire

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"
DEVICES = (
    Device(GPU, "on-one", bits.of([1])),
    Device(GPU, "on-two", bits.of([0, 2])),
    Device(GPU, "says-nothing", None),
    Device(GPU, "says-nowhere", 0),
)
MEMORY = (Block(bits.of([0, 1]), "memory", 1 << 40),)
ENTRIES = [
    {"resource_name": GPU, "device_ids": ["on-one"], "topology": {"nodes": [{"ID": "1"}]}},
    {"resource_name": GPU, "device_ids": ["on-two"], "topology": {"nodes": [{}]}},
    {"resource_name": GPU, "device_ids": ["on-two"], "topology": {"nodes": [{"ID": "2"}]}},
    {"resource_name": GPU, "device_ids": ["says-nothing"]},
]
BLOCK = {"memory_type": "memory", "size": str(1 << 40), "topology": {"nodes": [{}, {"ID": "1"}]}}


class Told:
    """Books that say what they are told."""

    def __init__(self):
        app = ContainerAllocation(name="app", devices=DEVICES, cpus=bits.of([0, 5]), memory=MEMORY)
        self.all = [PodAllocation(name="a", namespace="n", containers=(app,), cpus=bits.of([7]), memory=MEMORY)]

    def pods(self):
        return self.all

    def pod(self, namespace, name):
        return next((pod for pod in self.all if (pod.namespace, pod.name) == (namespace, name)), None)

    def allocatable(self):
        return AllocatableResources(devices=DEVICES, cpus=bits.of([1, 2]), memory=MEMORY)


@pytest.fixture
def tally():
    return PluginMetrics()


@pytest.fixture
async def line(directory, tally):
    async with (
        serve_pod_resources(directory / "kubelet.sock", Told(), tally=tally),
        rpc.channel(directory / "kubelet.sock") as made,
    ):
        yield made


async def call(line, method, request, kind):
    raw = await line.unary_unary(f"/v1.PodResourcesLister/{method}")(request.SerializeToString(), timeout=5)
    return MessageToDict(kind.FromString(raw), preserving_proto_field_name=True)


def counted(tally):
    return {
        family.name.removeprefix("kubelet_pod_resources_endpoint_"): [
            (sample.labels, sample.value) for sample in family.samples
        ]
        for family in tally.collect()
    }


async def test_list_has_an_entry_for_each_device_and_node(line, tally):
    told = await call(line, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)

    nowhere = {"resource_name": GPU, "device_ids": ["says-nowhere"]}
    app = {"name": "app", "devices": [*ENTRIES, nowhere], "cpu_ids": ["0", "5"], "memory": [BLOCK]}
    pod = {"name": "a", "namespace": "n", "containers": [app], "cpu_ids": ["7"], "memory": [BLOCK]}
    assert told == {"pod_resources": [pod]}
    once = [({"server_api_version": "v1"}, 1)]
    assert counted(tally) == {"requests_total": once, "requests_list": once}


async def test_what_could_be_had_leaves_out_a_device_that_is_nowhere(line, tally):
    told = await call(
        line, "GetAllocatableResources", wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
    )

    assert told == {"devices": ENTRIES, "cpu_ids": ["1", "2"], "memory": [BLOCK]}
    assert counted(tally).keys() == {"requests_total", "requests_get_allocatable"}


async def test_one_pod_is_found_by_name_and_namespace(line, tally):
    request = wire.GetPodResourcesRequest(pod_name="a", pod_namespace="n")
    told = await call(line, "Get", request, wire.GetPodResourcesResponse)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(line, "Get", wire.GetPodResourcesRequest(pod_name="a", pod_namespace="m"), wire.PodResources)

    assert told["pod_resources"]["name"] == "a"
    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert refused.value.details() == "pod a in namespace m not found"
    version = {"server_api_version": "v1"}
    assert counted(tally) == {
        "requests_total": [(version, 2)],
        "requests_get": [(version, 2)],
        "errors_get": [(version, 1)],
    }


async def test_who_asks_too_often_is_refused(directory, tally):
    limit = RateLimiter(now=lambda: 0.0)
    path = directory / "kubelet.sock"
    request, kind = wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse
    async with serve_pod_resources(path, Told(), tally=tally, limit=limit), rpc.channel(path) as line:
        for _ in range(10):
            await call(line, "List", request, kind)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(line, "List", request, kind)

    assert (refused.value.code().name, refused.value.details()) == ("RESOURCE_EXHAUSTED", "rejected by rate limit")
    assert counted(tally)["requests_list"][0][1] == 10


def test_a_limit_fills_again():
    time = [0.0]
    limit = RateLimiter(now=lambda: time[0], rate=2, burst=3)

    took = []
    for seconds in (0, 0, 0, 0, 0.4, 0.5, 0.6, 100, 100, 100, 100):
        time[0] = max(time[0], seconds)
        took.append(limit.take())

    assert took == [True, True, True, False, False, True, False, True, True, True, False]


async def test_malformed_requests_are_refused(line):
    for rubbish in (b"\xff", b"\x0a\x05ab", b"\x0f"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await line.unary_unary("/v1.PodResourcesLister/Get")(rubbish, timeout=5)
        assert refused.value.code() is grpc.StatusCode.INTERNAL

    assert await call(line, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)


async def test_where_another_answers_nothing_is_touched(directory, line, tally):
    with pytest.raises(ListenError, match="somebody listens at"):
        async with serve_pod_resources(directory / "kubelet.sock", Told(), tally=tally):
            pass

    assert await call(line, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)


def test_field_numbers_are_the_public_ones():
    names = json.loads(
        """{"PodResources": ["name", "namespace", "containers", "cpu_ids", "memory"],
            "ContainerResources": ["name", "devices", "cpu_ids", "memory", "dynamic_resources"],
            "ContainerDevices": ["resource_name", "device_ids", "topology"],
            "ContainerMemory": ["memory_type", "size", "topology"],
            "AllocatableResourcesResponse": ["devices", "cpu_ids", "memory"],
            "DynamicResource": [null, "claim_name", "claim_namespace", "claim_resources"],
            "ClaimResource": ["cdi_devices", "driver_name", "pool_name", "device_name", "share_id"]}"""
    )
    for message, fields in names.items():
        numbers = {one.name: one.number for one in wire.DESCRIPTOR.message_types_by_name[message].fields}
        assert numbers == {name: number for number, name in enumerate(fields, start=1) if name}
