"""PodResources of recorded kubelets, compared with ours for the same course of events.

Devices are compared as counts by resource and NUMA node, since the kubelet picks among equal devices at random.
"""

import asyncio
from collections import Counter

import pytest
from google.protobuf.json_format import MessageToDict

from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.pod_resources import RateLimiter, serve_pod_resources
from alignup.wire import pod_resources_pb2 as wire
from tests.recorded.replay import Course, LostError, SkippedError, load

pytestmark = pytest.mark.anyio


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


async def test_pod_resources_are_those_of_the_recorded_kubelet(recorded, directory):
    recording = load(recorded)
    course = Course(recording, compare=False)
    path, limiter = directory / "kubelet.sock", RateLimiter(now=lambda: 0.0, burst=1e9)
    compared = 0

    async with (
        serve_pod_resources(path, lambda: course.host, limiter=limiter),
        unix_grpc.channel(path) as channel,
    ):
        for number, step in course.steps():
            try:
                course.follow(number, step)
            except SkippedError:
                continue
            except LostError:
                break
            if "podresources_list" in step:
                await compare(channel, step)
                compared += 1

    assert compared or recorded.name.startswith("bad-configs")


async def compare(channel, step):
    """Compare the responses of all three methods with the recorded ones."""
    ours = await call(channel, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
    pods = by_name(ours["pod_resources"])
    assert pods == by_name(step["podresources_list"]["pod_resources"])
    for name, namespace in pods:
        request = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        response = await call(channel, "Get", request, wire.GetPodResourcesResponse)
        assert pod(response["pod_resources"]) == pods[name, namespace]

    ours = await call(
        channel, "GetAllocatableResources", wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
    )
    assert holding(ours) == holding(step["podresources_allocatable"])


async def call(channel, method, request, kind):
    send = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
    raw = await asyncio.wait_for(send(request.SerializeToString()), 5)
    return MessageToDict(
        kind.FromString(raw), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def by_name(pods):
    return {(listed["name"], listed["namespace"]): pod(listed) for listed in pods}


def pod(response):
    held = holding({"devices": (), **response})
    return (
        held,
        {container["name"]: holding(container) for container in response["containers"]},
        [container["name"] for container in response["containers"]],
    )


def holding(response):
    """Return what a pod, a container or the host holds, without order."""
    return {
        "cpus": sorted(map(int, response.get("cpu_ids", ()))),
        "memory": sorted((item["memory_type"], item["size"], nodes(item)) for item in response.get("memory", ())),
        "devices": Counter(
            (item["resource_name"], len(item["device_ids"]), nodes(item)) for item in response["devices"]
        ),
        "claims": response.get("dynamic_resources", []),
    }


def nodes(response):
    """Return the NUMA nodes; ``None`` without topology."""
    topology = response.get("topology")
    return None if topology is None else str(sorted(int(node["ID"]) for node in topology["nodes"]))
