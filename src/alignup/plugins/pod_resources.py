"""PodResources v1: who has which CPUs, memory and devices, for monitoring tools.

The surprising rules: a device near two NUMA nodes is listed twice, once for each; regular init containers never show;
and one that has topology without nodes is listed for the pod that has it, but not among those that could be had.
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
from alignup.plugins.metrics import PluginMetrics
from alignup.plugins.pod_resources_view import ContainerAllocation, PodAllocation, PodResourcesSource
from alignup.wire import pod_resources_pb2 as wire

SOCKET = "kubelet.sock"  #: as tools expect it, in a directory of its own
RATE, BURST = 100.0, 10.0  #: requests a second, and how many at once

_SERVICE = wire.DESCRIPTOR.services_by_name["PodResourcesLister"]


@asynccontextmanager
async def serve_pod_resources(
    path: Path, books: PodResourcesSource, *, tally: PluginMetrics, limit: "RateLimiter | None" = None
) -> AsyncIterator[None]:
    """Answer from *books* at *path* as long as this lasts; ``ListenError`` where that cannot be."""
    lister = _Lister(books, tally, limit or RateLimiter(now=time.monotonic))
    methods: dict[str, rpc.Method] = {
        "List": (wire.ListPodResourcesRequest, lister.limited("list", lister.list)),
        "Get": (wire.GetPodResourcesRequest, lister.limited("get", lister.get)),
        "GetAllocatableResources": (
            wire.AllocatableResourcesRequest,
            lister.limited("get_allocatable", lister.allocatable),
        ),
    }
    _make_place(path)
    async with rpc.serve(path, _SERVICE, methods):
        yield


class RateLimiter:
    """So many requests a second, and a few at once: a bucket that fills again as time goes by."""

    def __init__(self, *, now: Clock, rate: float = RATE, burst: float = BURST) -> None:
        self._now = now
        self._rate = rate
        self._burst = self._left = burst
        self._since = now()

    def take(self) -> bool:
        """Whether one more request may be answered now."""
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Lister:
    """The answers."""

    def __init__(self, books: PodResourcesSource, tally: PluginMetrics, limit: RateLimiter) -> None:
        self._books = books
        self._tally = tally
        self._limit = limit

    def limited(self, name: str, answer: Callable[[Any], Message]) -> Callable[[Any], Awaitable[Message]]:
        """*answer*, counted as *name*, unless there are too many requests."""

        async def respond(request: Any) -> Message:  # noqa: ANN401 - a request of whichever method it is
            if not self._limit.take():
                raise rpc.StatusError("rejected by rate limit", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
            self._tally.asked(name)
            try:
                return answer(request)
            except AlignError as error:
                self._tally.failed(name)
                raise rpc.StatusError(str(error)) from error

        return respond

    def list(self, _: wire.ListPodResourcesRequest) -> wire.ListPodResourcesResponse:
        """Every pod."""
        return wire.ListPodResourcesResponse(pod_resources=map(_pod, self._books.pods()))

    def get(self, request: wire.GetPodResourcesRequest) -> wire.GetPodResourcesResponse:
        """One pod."""
        found = self._books.pod(request.pod_namespace, request.pod_name)
        if found is None:
            raise AlignError(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        return wire.GetPodResourcesResponse(pod_resources=_pod(found))

    def allocatable(self, _: wire.AllocatableResourcesRequest) -> wire.AllocatableResourcesResponse:
        """What could be had at all."""
        all_of_it = self._books.allocatable()
        return wire.AllocatableResourcesResponse(
            devices=_devices(device for device in all_of_it.devices if device.nodes != 0),
            cpu_ids=bits.members(all_of_it.cpus),
            memory=map(_memory, all_of_it.memory),
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
    """One entry for each device and NUMA node; one without topology for a device on none."""
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


def _make_place(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise ListenError(f"there can be no directory {path.parent}: {error.strerror}") from error
