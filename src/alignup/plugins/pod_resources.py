"""The PodResources v1 endpoint: which CPUs, memory and devices each pod holds, for monitoring tools.

Surprising rules of the kubelet: a device near two NUMA nodes is listed twice, once for each node; regular init
containers are never listed; and a device whose topology has no nodes is listed for the pod that holds it, but not
among the allocatable ones.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from alignup import rpc
from alignup.align import bits
from alignup.align.errors import AlignError, ListenError
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.plugins.endpoint_store import Clock
from alignup.plugins.metrics import NoMetrics, PluginMetrics, PodResourcesMethod
from alignup.plugins.pod_resources_view import ContainerAllocation, PodAllocation, PodResourcesSource
from alignup.wire import pod_resources_pb2 as wire

SOCKET = "kubelet.sock"  #: the name that tools expect, in a directory of its own
RATE, BURST = 100.0, 10.0  #: requests a second, and how many at once

_SERVICE = wire.DESCRIPTOR.services_by_name["PodResourcesLister"]


class RateLimiter:
    """A token bucket of *burst* requests that refills at *rate* a second."""

    def __init__(self, *, now: Clock = time.monotonic, rate: float = RATE, burst: float = BURST) -> None:
        self._now = now
        self._rate = rate
        self._burst = self._tokens = burst
        self._updated = now()

    def take(self) -> bool:
        """Take a token; return whether one was left."""
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@asynccontextmanager
async def serve_pod_resources(
    path: Path,
    source: PodResourcesSource,
    *,
    metrics: PluginMetrics | None = None,
    limiter: RateLimiter | None = None,
) -> AsyncIterator[None]:
    """Serve the content of *source* at *path*; raise ``ListenError`` if that is not possible."""
    metrics, limiter = metrics or NoMetrics(), limiter or RateLimiter()

    def limited(
        method: PodResourcesMethod, respond: Callable[[PodResourcesSource, Any], Message]
    ) -> Callable[[Any], Awaitable[Message]]:
        async def handle(request: Message) -> Message:
            if not limiter.take():
                raise rpc.StatusError("rejected by rate limit", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
            metrics.count_request(method)
            try:
                return respond(source, request)
            except AlignError as error:
                metrics.count_error(method)
                raise rpc.StatusError(str(error)) from error

        return handle

    methods: dict[str, rpc.Method] = {
        "List": (wire.ListPodResourcesRequest, limited("list", _list)),
        "Get": (wire.GetPodResourcesRequest, limited("get", _get)),
        "GetAllocatableResources": (wire.AllocatableResourcesRequest, limited("get_allocatable", _allocatable)),
    }
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise ListenError(f"cannot create the directory {path.parent}: {error.strerror}") from error
    async with rpc.serve(path, _SERVICE, methods):
        yield


def _list(source: PodResourcesSource, _: wire.ListPodResourcesRequest) -> wire.ListPodResourcesResponse:
    return wire.ListPodResourcesResponse(pod_resources=map(_pod, source.pods()))


def _get(source: PodResourcesSource, request: wire.GetPodResourcesRequest) -> wire.GetPodResourcesResponse:
    pod = source.pod(request.pod_namespace, request.pod_name)
    if pod is None:
        raise AlignError(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
    return wire.GetPodResourcesResponse(pod_resources=_pod(pod))


def _allocatable(source: PodResourcesSource, _: wire.AllocatableResourcesRequest) -> wire.AllocatableResourcesResponse:
    allocatable = source.allocatable()
    return wire.AllocatableResourcesResponse(
        devices=_devices(device for device in allocatable.devices if device.nodes != 0),
        cpu_ids=bits.members(allocatable.cpus),
        memory=map(_memory, allocatable.memory),
    )


def _pod(pod: PodAllocation) -> wire.PodResources:
    return wire.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=map(_container, pod.containers),
        cpu_ids=bits.members(pod.cpus),
        memory=map(_memory, pod.memory),
    )


def _container(container: ContainerAllocation) -> wire.ContainerResources:
    return wire.ContainerResources(
        name=container.name,
        devices=_devices(container.devices),
        cpu_ids=bits.members(container.cpus),
        memory=map(_memory, container.memory),
    )


def _devices(devices: Iterable[Device]) -> Iterator[wire.ContainerDevices]:
    """Yield one entry for each device and NUMA node, and one without topology for a device near no node."""
    for device in devices:
        if not device.nodes:
            yield wire.ContainerDevices(resource_name=device.resource, device_ids=[device.id])
            continue
        for node in bits.members(device.nodes):
            yield wire.ContainerDevices(
                resource_name=device.resource, device_ids=[device.id], topology=_topology([node])
            )


def _memory(block: Block) -> wire.ContainerMemory:
    return wire.ContainerMemory(memory_type=block.type, size=block.size, topology=_topology(bits.members(block.nodes)))


def _topology(nodes: Iterable[int]) -> wire.TopologyInfo:
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])
