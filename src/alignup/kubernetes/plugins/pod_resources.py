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

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import AlignError, ListenError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.workload import Pod
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.resources import Clock
from alignup.wire import pod_resources_pb2 as wire

SOCKET = "kubelet.sock"  #: the name that tools expect
RATE, BURST = 100.0, 10.0  #: requests a second, and how many at once

CountCall = Callable[..., None]  #: of a method (``list``, ``get`` or ``get_allocatable``), and whether it ``failed=``
_SERVICE = wire.DESCRIPTOR.services_by_name["PodResourcesLister"]


class RateLimiter:
    """A token bucket of *burst* requests that refills at *rate* a second."""

    def __init__(self, *, now: Clock = time.monotonic, rate: float = RATE, burst: float = BURST) -> None:
        self._now = now
        self._rate = rate
        self._burst = self._tokens = burst
        self._updated = now()

    def take(self) -> bool:
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
    host: Callable[[], Host],
    *,
    count: CountCall = lambda *_, **__: None,
    limiter: RateLimiter | None = None,
) -> AsyncIterator[None]:
    """Serve the current ledger of *host* at *path*; raise ``ListenError`` if that is not possible.

    *count* is called with a method when a call begins, and with ``failed=True`` if it fails.
    """
    limiter = limiter or RateLimiter()

    def limited(method: str, respond: Callable[[Host, Any], Message]) -> Callable[[Any], Awaitable[Message]]:
        async def handle(request: Message) -> Message:
            if not limiter.take():
                raise unix_grpc.StatusError("rejected by rate limit", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
            count(method, failed=False)
            try:
                return respond(host(), request)
            except AlignError as error:
                count(method, failed=True)
                raise unix_grpc.StatusError(str(error)) from error

        return handle

    methods: dict[str, unix_grpc.Method] = {
        "List": (wire.ListPodResourcesRequest, limited("list", _list)),
        "Get": (wire.GetPodResourcesRequest, limited("get", _get)),
        "GetAllocatableResources": (wire.AllocatableResourcesRequest, limited("get_allocatable", _allocatable)),
    }
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise ListenError(f"cannot create the directory {path.parent}: {error.strerror}") from error
    async with unix_grpc.serve(path, _SERVICE, methods):
        yield


def _list(host: Host, _: wire.ListPodResourcesRequest) -> wire.ListPodResourcesResponse:
    return wire.ListPodResourcesResponse(pod_resources=[_pod(host, held.pod) for held in host.ledger.pods.values()])


def _get(host: Host, request: wire.GetPodResourcesRequest) -> wire.GetPodResourcesResponse:
    for admitted in host.ledger.pods.values():
        if (admitted.pod.namespace, admitted.pod.name) == (request.pod_namespace, request.pod_name):
            return wire.GetPodResourcesResponse(pod_resources=_pod(host, admitted.pod))
    raise AlignError(f"pod {request.pod_name} in namespace {request.pod_namespace} not found")


def _allocatable(host: Host, _: wire.AllocatableResourcesRequest) -> wire.AllocatableResourcesResponse:
    """Return healthy devices, and the CPUs and memory that are managed and not reserved."""
    ledger = host.ledger
    inventories = sorted(ledger.devices.inventories.items())
    devices = (device for _, inventory in inventories for device in inventory.devices)
    managed = host.settings.cpus.policy == CpuPolicy.STATIC
    return wire.AllocatableResourcesResponse(
        devices=_devices(device for device in devices if device.healthy and device.nodes != 0),
        cpu_ids=bits.members(host.view.all_cpus & ~ledger.cpus.reserved if managed else 0),
        memory=map(_memory, ledger.memory.allocatable()),
    )


def _pod(host: Host, pod: Pod) -> wire.PodResources:
    """Return what a pod and its long-running containers hold: sidecars, then the regular ones."""
    ledger = host.ledger
    sidecars = [container for container in pod.init if container.restartable]
    return wire.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            wire.ContainerResources(
                name=container.name,
                devices=_devices(_held_devices(ledger.devices, pod.uid, container.name)),
                cpu_ids=bits.members(ledger.cpus.holds(pod.uid, container.name) or 0),
                memory=map(_memory, ledger.memory.blocks(pod.uid, container.name) or ()),
            )
            for container in (*sidecars, *pod.containers)
        ],
        cpu_ids=bits.members(ledger.cpus.pod_held.get(pod.uid, 0)),
        memory=map(_memory, ledger.memory.pod_held.get(pod.uid, ())),
    )


def _held_devices(ledger: DeviceLedger, uid: str, container: str) -> Iterator[Device]:
    """Yield the devices of a container; one that its plugin no longer lists has no topology."""
    for resource, ids in ledger.holds(uid, container).items():
        inventory = ledger.inventories.get(resource)
        for id_ in ids:
            if inventory is not None and id_ in inventory.indexes:
                yield inventory.devices[inventory.indexes[id_]]
            else:
                yield Device(resource, id_, None, healthy=False)


def _devices(devices: Iterable[Device]) -> Iterator[wire.ContainerDevices]:
    """Yield one entry for each device and NUMA node, and one without topology for a device near no node."""
    for device in devices:
        for node in bits.members(device.nodes) if device.nodes else (None,):
            topology = None if node is None else _topology([node])
            yield wire.ContainerDevices(resource_name=device.resource, device_ids=[device.id], topology=topology)


def _memory(block: Block) -> wire.ContainerMemory:
    return wire.ContainerMemory(memory_type=block.type, size=block.size, topology=_topology(bits.members(block.nodes)))


def _topology(nodes: Iterable[int]) -> wire.TopologyInfo:
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])
