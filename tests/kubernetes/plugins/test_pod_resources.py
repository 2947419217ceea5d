"""The PodResources endpoint on its socket: its entries, its rate limit and its metrics."""

import json
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from google.protobuf.json_format import MessageToDict

from alignup.align import bits
from alignup.align.claims.resource_claims import DeviceId
from alignup.align.errors import ListenError
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.workload import Container, Pod
from alignup.align.workload.demand import fit_request
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.pod_resources import (
    ListedResources,
    RateLimiter,
    pod_resources_client,
    serve_pod_resources,
)
from alignup.wire import pod_resources_pb2 as wire
from tests.align import hosts

pytestmark = pytest.mark.anyio

GPU = "example.com/gpu"
DEVICES = (
    Device(GPU, "0-one-node", bits.of([1])),
    Device(GPU, "1-two-nodes", bits.of([0, 2])),
    Device(GPU, "2-no-topology", None),
    Device(GPU, "3-no-nodes", 0),
)
MEMORY = (Block(bits.of([0, 1]), "memory", 1 << 40),)
ENTRIES = [
    {"resource_name": GPU, "device_ids": ["0-one-node"], "topology": {"nodes": [{"ID": "1"}]}},
    {"resource_name": GPU, "device_ids": ["1-two-nodes"], "topology": {"nodes": [{}]}},
    {"resource_name": GPU, "device_ids": ["1-two-nodes"], "topology": {"nodes": [{"ID": "2"}]}},
    {"resource_name": GPU, "device_ids": ["2-no-topology"]},
]
BLOCK = {"memory_type": "memory", "size": str(1 << 40), "topology": {"nodes": [{}, {"ID": "1"}]}}


@pytest.fixture
def host():
    """A host whose only pod holds all devices, and CPUs and memory both for its container and as a pod."""
    three_nodes = hosts.host(shape="pack:3 numa:1 core:3 pu:1")
    host = Host(replace(three_nodes.machine, devices=DEVICES), three_nodes.settings)
    pod = Pod(uid="u", name="a", namespace="n", containers=(Container("app"),))
    ids = tuple(device.id for device in DEVICES)
    ledger = host.ledger
    host.ledger = replace(
        ledger,
        cpus=replace(ledger.cpus, held={"u": {"app": bits.of([1, 5])}}, pod_held={"u": bits.of([7])}),
        memory=replace(ledger.memory, held={"u": {"app": MEMORY}}, pod_held={"u": MEMORY}),
        devices=replace(ledger.devices, held={"u": {"app": {GPU: ids}}}),
        pods={"u": AdmittedPod(pod, {}, fit_request(pod))},
    )
    return host


@pytest.fixture
async def channel(directory, host, metrics):
    async with (
        serve_pod_resources(directory / "kubelet.sock", lambda: host, count=metrics.count_pod_resources),
        unix_grpc.channel(directory / "kubelet.sock") as made,
    ):
        yield made


async def call(channel, method, request, kind):
    raw = await channel.unary_unary(f"/v1.PodResourcesLister/{method}")(request.SerializeToString(), timeout=60)
    return MessageToDict(kind.FromString(raw), preserving_proto_field_name=True)


async def test_list_has_an_entry_for_each_device_and_node(channel, metrics):
    listed = await call(channel, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)

    no_nodes = {"resource_name": GPU, "device_ids": ["3-no-nodes"]}
    app = {"name": "app", "devices": [*ENTRIES, no_nodes], "cpu_ids": ["1", "5"], "memory": [BLOCK]}
    pod = {"name": "a", "namespace": "n", "containers": [app], "cpu_ids": ["7"], "memory": [BLOCK]}
    assert listed == {"pod_resources": [pod]}
    assert (metrics.requests, metrics.errors) == (["list"], [])


async def test_devices_with_an_empty_topology_are_not_allocatable(channel, metrics):
    allocatable = await call(
        channel, "GetAllocatableResources", wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
    )

    assert allocatable["devices"] == ENTRIES
    assert allocatable["cpu_ids"] == [str(cpu) for cpu in range(1, 9)]  # CPU 0 is reserved
    assert [int(block["size"]) >> 20 for block in allocatable["memory"]] == [16 * 1024 - 64, 16 * 1024, 16 * 1024]
    assert metrics.requests == ["get_allocatable"]


async def test_claims_of_another_kubelet_are_read(directory):
    devices = [
        wire.ClaimResource(driver_name="gpu.example.com", pool_name="host-a", device_name=name, share_id=share)
        for name, share in (("gpu-0", "1"), ("gpu-0", "2"), ("gpu-1", "3"))
    ]
    claims = [
        wire.DynamicResource(claim_name="gpus", claim_namespace="ml", claim_resources=devices),
        wire.DynamicResource(claim_name="pending", claim_namespace="ml"),
    ]
    container = wire.ContainerResources(name="app", cpu_ids=[3], dynamic_resources=claims)
    pod = wire.PodResources(name="a", namespace="ml", containers=[container, wire.ContainerResources(name="b")])

    async def list_pods(_request):
        return wire.ListPodResourcesResponse(pod_resources=[pod])

    async def list_allocatable(_request):
        return wire.AllocatableResourcesResponse()

    methods = {
        "List": (wire.ListPodResourcesRequest, list_pods),
        "GetAllocatableResources": (wire.AllocatableResourcesRequest, list_allocatable),
    }
    path = directory.parent / "kubelet.sock"
    async with (
        unix_grpc.serve(path, wire.DESCRIPTOR.services_by_name["PodResourcesLister"], methods),
        pod_resources_client(path) as client,
    ):
        (listed,), allocatable = await client.read()

    gpus = tuple(DeviceId("gpu.example.com", "host-a", name) for name in ("gpu-0", "gpu-1"))
    assert listed.containers == {"app": ListedResources(cpus=8, claims={"ml/gpus": gpus}), "b": ListedResources()}
    assert allocatable == ListedResources()


async def test_get_finds_a_pod_by_name_and_namespace(channel, metrics):
    request = wire.GetPodResourcesRequest(pod_name="a", pod_namespace="n")
    response = await call(channel, "Get", request, wire.GetPodResourcesResponse)
    with pytest.raises(grpc.aio.AioRpcError) as rejected:
        await call(channel, "Get", wire.GetPodResourcesRequest(pod_name="a", pod_namespace="m"), wire.PodResources)

    assert response["pod_resources"]["name"] == "a"
    assert rejected.value.code() is grpc.StatusCode.UNKNOWN
    assert rejected.value.details() == "pod a in namespace m not found"
    assert (metrics.requests, metrics.errors) == (["get", "get"], ["get"])


async def test_requests_beyond_the_rate_limit_are_rejected(directory, host, metrics):
    limiter = RateLimiter(now=lambda: 0.0)
    path = directory / "kubelet.sock"
    request, kind = wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse
    async with (
        serve_pod_resources(path, lambda: host, count=metrics.count_pod_resources, limiter=limiter),
        unix_grpc.channel(path) as channel,
    ):
        for _ in range(10):
            await call(channel, "List", request, kind)
        with pytest.raises(grpc.aio.AioRpcError) as rejected:
            await call(channel, "List", request, kind)

    assert (rejected.value.code().name, rejected.value.details()) == ("RESOURCE_EXHAUSTED", "rejected by rate limit")
    assert metrics.requests == ["list"] * 10


def test_the_rate_limiter_refills():
    time = [0.0]
    limiter = RateLimiter(now=lambda: time[0], rate=2, burst=3)

    taken = []
    for seconds in (0, 0, 0, 0, 0.4, 0.5, 0.6, 100, 100, 100, 100):
        time[0] = max(time[0], seconds)
        taken.append(limiter.take())

    assert taken == [True, True, True, False, False, True, False, True, True, True, False]


async def test_malformed_requests_are_rejected(channel):
    for garbage in (b"\xff", b"\x0a\x05ab", b"\x0f"):
        with pytest.raises(grpc.aio.AioRpcError) as rejected:
            await channel.unary_unary("/v1.PodResourcesLister/Get")(garbage, timeout=60)
        assert rejected.value.code() is grpc.StatusCode.INTERNAL

    assert await call(channel, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)


async def test_a_socket_in_use_is_left_alone(directory, channel, host, metrics):
    with pytest.raises(ListenError, match="another process listens at"):
        async with serve_pod_resources(directory / "kubelet.sock", lambda: host, count=metrics.count_pod_resources):
            pass

    assert await call(channel, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)


def test_field_numbers_are_those_of_the_public_api():
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
        numbers = {field.name: field.number for field in wire.DESCRIPTOR.message_types_by_name[message].fields}
        assert numbers == {name: number for number, name in enumerate(fields, start=1) if name}
