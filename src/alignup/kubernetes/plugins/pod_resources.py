"""The PodResources v1 endpoint, its server and its client: which CPUs, memory and devices each pod holds.

Surprising rules of the kubelet: a device near two NUMA nodes is listed twice, once for each node; regular init
containers are never listed; and a device whose topology has no nodes is listed for the pod that holds it, but not
among the allocatable ones. The endpoint knows pods by name only, and lists CPUs in any order. Devices of claims are
read, and not served: nothing here prepares claims.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.claims.resource_claims import DeviceId
from alignup.align.cpus.options import CpuPolicy
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import AlignError, ListenError, PluginError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.workload import Pod
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.resources import Clock
from alignup.socket_paths import length_problem
from alignup.wire import pod_resources_pb2 as wire

SOCKET = "kubelet.sock"  #: the name that tools expect
TIMEOUT = 5.0  #: seconds for a call of the client
MAX_RESPONSE = 16 << 20  #: bytes, as the kubelet's own clients accept
MAX_ENTRIES = 100_000  #: pods, containers, devices, blocks of memory and their nodes in a response
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
    return wire.ListPodResourcesResponse(
        pod_resources=[_pod(host, admitted_pod.pod) for admitted_pod in host.ledger.pods.values()]
    )


def _get(host: Host, request: wire.GetPodResourcesRequest) -> wire.GetPodResourcesResponse:
    for admitted_pod in host.ledger.pods.values():
        if (admitted_pod.pod.namespace, admitted_pod.pod.name) == (request.pod_namespace, request.pod_name):
            return wire.GetPodResourcesResponse(pod_resources=_pod(host, admitted_pod.pod))
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


# The client


@dataclass(frozen=True, slots=True)
class ListedResources:
    """What a container holds, or everything that can be allocated: without CPUs or memory if nothing manages them."""

    cpus: CpuSet = 0  #: exclusive
    memory: tuple[Block, ...] = ()
    devices: tuple[Device, ...] = ()  #: of any health for a container, only the healthy ones if they can be allocated
    claims: Mapping[str, tuple[DeviceId, ...]] = field(default_factory=dict)  #: namespace/name → devices of a container


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPod:
    namespace: str
    name: str
    containers: Mapping[str, ListedResources] = field(default_factory=dict)
    cpus: CpuSet = 0  #: exclusive to the pod as a whole
    memory: tuple[Block, ...] = ()


class PodResourcesClient:
    """Methods raise ``PluginError`` if the kubelet does not answer."""

    def __init__(self, channel: grpc.aio.Channel, path: Path, *, timeout: float = TIMEOUT) -> None:
        self._channel = channel
        self._path = path
        self._timeout = timeout
        self._listed: dict[bytes, ListedPod] = {}  #: by their messages in the last list; most pods do not change

    async def list(self) -> tuple[ListedPod, ...]:
        response = await self._call("List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
        messages = [(pod.SerializeToString(deterministic=True), pod) for pod in response.pod_resources]
        self._listed = {message: self._listed.get(message) or _listed_pod(pod) for message, pod in messages}
        return tuple([self._listed[message] for message, _ in messages])

    async def get(self, namespace: str, name: str) -> ListedPod:
        request = wire.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        return _listed_pod((await self._call("Get", request, wire.GetPodResourcesResponse)).pod_resources)

    async def allocatable(self) -> ListedResources:
        request, kind = wire.AllocatableResourcesRequest(), wire.AllocatableResourcesResponse
        response = await self._call("GetAllocatableResources", request, kind)
        return _listed_resources(response, {})

    async def read(self) -> tuple[tuple[ListedPod, ...], ListedResources]:
        """Return the pods, and what can be allocated."""
        listed_pods, allocatable = await asyncio.gather(self.list(), self.allocatable())
        return listed_pods, allocatable

    async def _call(self, method: str, request: Any, response: type[Any]) -> Any:  # noqa: ANN401 - generated messages
        return await unix_grpc.call(
            self._channel,
            f"/{_SERVICE.full_name}/{method}",
            request,
            response=response,
            seconds=self._timeout,
            error=lambda code, text: PluginError(f"{method} at {self._path}: {self._reason(code, text)}"),
            wait_for_ready=False,
            max_messages=MAX_ENTRIES,
        )

    def _reason(self, code: grpc.StatusCode, text: str) -> str:
        if problem := length_problem(self._path):
            return problem
        missing = code is grpc.StatusCode.UNAVAILABLE and not self._path.exists()
        return "no such socket" if missing else unix_grpc.error_text(code, text)


@asynccontextmanager
async def pod_resources_client(path: Path, *, seconds: float = TIMEOUT) -> AsyncIterator[PodResourcesClient]:
    """Yield a client of the endpoint at *path*, which need not exist yet."""
    async with unix_grpc.channel(path, max_response=MAX_RESPONSE) as channel:
        yield PodResourcesClient(channel, path, timeout=seconds)


def list_pod(host: Host, pod: Pod) -> ListedPod:
    """Return what a client of the endpoint gets about an admitted pod."""
    return _listed_pod(_pod(host, pod))


def list_allocatable(host: Host) -> ListedResources:
    """Return what a client of the endpoint gets as allocatable."""
    return _listed_resources(_allocatable(host, wire.AllocatableResourcesRequest()), {})


def _listed_pod(pod: wire.PodResources) -> ListedPod:
    return ListedPod(
        namespace=pod.namespace,
        name=pod.name,
        containers={
            container.name: _listed_resources(container, _listed_claims(container.dynamic_resources))
            for container in pod.containers
        },
        cpus=_members(pod.cpu_ids),
        memory=_blocks(pod.memory),
    )


def _listed_resources(
    message: wire.ContainerResources | wire.AllocatableResourcesResponse, claims: Mapping[str, tuple[DeviceId, ...]]
) -> ListedResources:
    return ListedResources(_members(message.cpu_ids), _blocks(message.memory), _listed_devices(message.devices), claims)


def _listed_claims(claims: Iterable[wire.DynamicResource]) -> dict[str, tuple[DeviceId, ...]]:
    """Return the claims with devices; a claim that is being prepared has no devices yet."""
    return {
        f"{claim.claim_namespace}/{claim.claim_name}": tuple(
            dict.fromkeys(
                DeviceId(device.driver_name, device.pool_name, device.device_name) for device in claim.claim_resources
            )
        )
        for claim in claims
        if claim.claim_resources
    }


def _members(ids: Iterable[int]) -> int:
    return bits.of(id_ for id_ in ids if 0 <= id_ < bits.MAX_MEMBER)


def _nodes(topology: wire.TopologyInfo) -> NodeSet:
    return _members(node.ID for node in topology.nodes)


def _blocks(memory: Iterable[wire.ContainerMemory]) -> tuple[Block, ...]:
    return tuple(Block(_nodes(block.topology), block.memory_type, block.size) for block in memory)


def _listed_devices(entries: Iterable[wire.ContainerDevices]) -> tuple[Device, ...]:
    """Return each device once, with all its NUMA nodes; ``None`` if it has no topology."""
    devices: dict[tuple[str, str], NodeSet | None] = {}
    for entry in entries:
        nodes = _nodes(entry.topology) if entry.HasField("topology") else None
        for id_ in entry.device_ids:
            earlier = devices.get((entry.resource_name, id_))
            both = nodes if earlier is None else earlier if nodes is None else earlier | nodes
            devices[entry.resource_name, id_] = both
    return tuple(Device(resource, id_, nodes) for (resource, id_), nodes in devices.items())
