"""What recorded kubelets told through PodResources, held against what is told here of a host that went the same way.

Devices are compared as counts a resource and NUMA node, since the kubelet picks among equals at random.
"""

import asyncio
from collections import Counter

import pytest
from google.protobuf.json_format import MessageToDict

from alignup import rpc
from alignup.plugins.metrics import PluginMetrics
from alignup.plugins.pod_resources import RateLimiter, serve_pod_resources
from alignup.plugins.pod_resources_view import HostPodResources
from alignup.wire import pod_resources_pb2 as wire
from tests.recorded.replay import Course, LostError, SkippedError, load

pytestmark = pytest.mark.anyio


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    recorded = sorted(metafunc.config.getoption("--recorded").glob("*.json.gz"))
    metafunc.parametrize("recorded", [pytest.param(path, id=path.name.removesuffix(".json.gz")) for path in recorded])


async def test_a_recorded_kubelet_told_the_same(recorded, directory):
    recording = load(recorded)
    course = Course(recording, kubelet_faults=True, compare=False)
    path, limit = directory / "kubelet.sock", RateLimiter(now=lambda: 0.0, burst=1e9)
    compared = 0

    async with (
        serve_pod_resources(path, HostPodResources(lambda: course.host), tally=PluginMetrics(), limit=limit),
        rpc.channel(path) as line,
    ):
        for number, step in course.steps():
            try:
                course.follow(number, step)
            except SkippedError:
                continue
            except LostError:
                break
            if "podresources_list" in step:
                await compare(line, step)
                compared += 1

    assert compared or recorded.name.startswith("bad-configs")


async def compare(line, step):
    """Ask both questions, and the one about each pod; hold the answers against the recorded ones."""
    ours = await call(line, "List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
    pods = by_name(ours["pod_resources"])
    assert pods == by_name(step["podresources_list"]["pod_resources"])
    for name, namespace in pods:
        request = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        told = await call(line, "Get", request, wire.GetPodResourcesResponse)
        assert pod(told["pod_resources"]) == pods[name, namespace]

    ours = await call(
        line, "GetAllocatableResources", wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
    )
    assert holding(ours) == holding(step["podresources_allocatable"])


async def call(line, method, request, kind):
    ask = line.unary_unary(f"/v1.PodResourcesLister/{method}")
    raw = await asyncio.wait_for(ask(request.SerializeToString()), 5)
    return MessageToDict(
        kind.FromString(raw), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def by_name(pods):
    return {(one["name"], one["namespace"]): pod(one) for one in pods}


def pod(told):
    own = holding({"devices": (), **told})
    return own, {one["name"]: holding(one) for one in told["containers"]}, [one["name"] for one in told["containers"]]


def holding(told):
    """What a pod, a container or the host has, without order."""
    return {
        "cpus": sorted(map(int, told.get("cpu_ids", ()))),
        "memory": sorted((one["memory_type"], one["size"], nodes(one)) for one in told.get("memory", ())),
        "devices": Counter((one["resource_name"], len(one["device_ids"]), nodes(one)) for one in told["devices"]),
        "claims": told.get("dynamic_resources", []),
    }


def nodes(told):
    """The NUMA nodes; ``None`` where nothing is said of them."""
    topology = told.get("topology")
    return None if topology is None else str(sorted(int(node["ID"]) for node in topology["nodes"]))
