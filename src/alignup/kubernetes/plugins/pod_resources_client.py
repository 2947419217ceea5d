"""A client of the PodResources v1 endpoint of a kubelet: what its pods hold, and what it can allocate.

The endpoint knows pods by name only. It leaves out init containers that are no sidecars, and devices that are unhealthy
or have a topology without NUMA nodes. It lists a device near two NUMA nodes twice, and CPUs in any order.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.kubernetes.plugins import unix_grpc
from alignup.wire import pod_resources_pb2 as wire

TIMEOUT = 5.0  #: seconds for a call
MAX_RESPONSE = 16 << 20  #: bytes, as the kubelet's own clients accept

_SERVICE = wire.DESCRIPTOR.services_by_name["PodResourcesLister"].full_name


@dataclass(frozen=True, slots=True)
class ListedContainer:
    cpus: CpuSet = 0  #: exclusive
    memory: tuple[Block, ...] = ()
    devices: tuple[Device, ...] = ()  #: of any health


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    namespace: str
    name: str
    containers: Mapping[str, ListedContainer] = field(default_factory=dict)
    cpus: CpuSet = 0  #: exclusive to the pod as a whole
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatableResources:
    """Everything that can be allocated, free or not; without CPUs or memory if nothing manages them."""

    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()
    devices: tuple[Device, ...] = ()  #: the healthy ones


class PodResourcesClient:
    """Methods raise ``PluginError`` if the kubelet does not answer."""

    def __init__(self, channel: grpc.aio.Channel, path: Path, *, timeout: float = TIMEOUT) -> None:
        self._channel, self._path, self._timeout = channel, path, timeout

    async def list(self) -> tuple[ListedPod, ...]:
        response = await self._call("List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
        return tuple(map(_pod, response.pod_resources))

    async def get(self, namespace: str, name: str) -> ListedPod:
        request = wire.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        return _pod((await self._call("Get", request, wire.GetPodResourcesResponse)).pod_resources)

    async def allocatable(self) -> AllocatableResources:
        request, kind = wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
        response = await self._call("GetAllocatableResources", request, kind)
        return AllocatableResources(
            cpus=_members(response.cpu_ids), memory=_blocks(response.memory), devices=_devices(response.devices)
        )

    async def _call(self, method: str, request: Any, response: type[Any]) -> Any:  # noqa: ANN401 - generated messages
        return await unix_grpc.call(
            self._channel,
            f"/{_SERVICE}/{method}",
            request,
            response=response,
            seconds=self._timeout,
            error=lambda code, text: PluginError(f"{method} at {self._path}: {self._reason(code, text)}"),
            wait_for_ready=False,
        )

    def _reason(self, code: grpc.StatusCode, text: str) -> str:
        missing = code is grpc.StatusCode.UNAVAILABLE and not self._path.exists()
        return "no such socket" if missing else unix_grpc.error_text(code, text)


@asynccontextmanager
async def pod_resources_client(path: Path, *, seconds: float = TIMEOUT) -> AsyncIterator[PodResourcesClient]:
    """Yield a client of the endpoint at *path*, which need not exist yet."""
    async with unix_grpc.channel(path, max_response=MAX_RESPONSE) as channel:
        yield PodResourcesClient(channel, path, timeout=seconds)


def _pod(pod: wire.PodResources) -> ListedPod:
    return ListedPod(
        namespace=pod.namespace,
        name=pod.name,
        containers={
            container.name: ListedContainer(
                _members(container.cpu_ids), _blocks(container.memory), _devices(container.devices)
            )
            for container in pod.containers
        },
        cpus=_members(pod.cpu_ids),
        memory=_blocks(pod.memory),
    )


def _members(ids: Iterable[int]) -> int:
    return bits.of(id_ for id_ in ids if 0 <= id_ < bits.MAX_MEMBER)


def _topology(topology: wire.TopologyInfo) -> NodeSet:
    return _members(node.ID for node in topology.nodes)


def _blocks(memory: Iterable[wire.ContainerMemory]) -> tuple[Block, ...]:
    return tuple(Block(_topology(block.topology), block.memory_type, block.size) for block in memory)


def _devices(entries: Iterable[wire.ContainerDevices]) -> tuple[Device, ...]:
    """Return each device once, with all its NUMA nodes; ``None`` if it has no topology."""
    devices: dict[tuple[str, str], NodeSet | None] = {}
    for entry in entries:
        nodes = _topology(entry.topology) if entry.HasField("topology") else None
        for id_ in entry.device_ids:
            known = devices.get((entry.resource_name, id_))
            both = nodes if known is None else known if nodes is None else known | nodes
            devices[entry.resource_name, id_] = both
    return tuple(Device(resource, id_, nodes) for (resource, id_), nodes in devices.items())
