"""The connection to one device plugin: its options, its device list, and the calls to it.

A connection lasts as long as the plugin's ListAndWatch stream. When the stream ends for any reason, the plugin
counts as stopped; a plugin that comes back registers again and gets a new connection.

Every call has a timeout; the kubelet waits indefinitely for most of them (``docs/why/differences.md``).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup.align import bits
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.align.machine import MAX_NODE_ID, Device
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.allocate_response import AllocateResponse
from alignup.socket_paths import length_problem
from alignup.wire import device_plugin_pb2 as wire

HEALTHY = "Healthy"
MAX_DEVICES = 10_000  #: in one list
MAX_NODE_IDS = 100_000  #: NUMA node ids of all devices in one list

_SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"].full_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTimeouts:
    """Seconds."""

    dial: float = 10.0  #: to connect and to read the plugin's options
    preferred: float = 10.0
    allocate: float = 30.0
    pre_start: float = 30.0
    reconnect: float = 300.0  #: how long a resource is kept after its last plugin stopped


@dataclass(slots=True, eq=False)
class Endpoint:
    """A connection to the plugin that serves *resource* at *socket*."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    timeouts: PluginTimeouts
    options: wire.DevicePluginOptions = field(default_factory=wire.DevicePluginOptions)  #: calls that the plugin wants
    _closed: bool = False

    @classmethod
    async def dial(cls, resource: str, socket: Path, *, timeouts: PluginTimeouts) -> Self:
        """Connect to a plugin and read its options; raise ``PluginError`` if it does not answer."""
        if problem := length_problem(socket):
            raise PluginError(f"failed to dial device plugin: {socket}: {problem}")
        endpoint = cls(resource, socket, unix_grpc.channel(socket), timeouts)
        try:
            endpoint.options = await endpoint._call(
                "GetDevicePluginOptions", wire.Empty(), response=wire.DevicePluginOptions, seconds=timeouts.dial
            )
        except BaseException as error:
            connected = endpoint.channel.get_state() is grpc.ChannelConnectivity.READY
            await endpoint.close()
            if isinstance(error, PluginError) and not connected:
                raise PluginError(f"failed to dial device plugin: {error}") from error
            raise
        return endpoint

    def __str__(self) -> str:
        return f"{self.resource} at {self.socket}"

    async def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Yield complete device lists as the plugin sends them; raise ``PluginError`` if the stream breaks."""
        method, response = f"/{_SERVICE}/ListAndWatch", wire.ListAndWatchResponse
        async for message in unix_grpc.stream(
            self.channel, method, wire.Empty(), response=response, error=plugin_error
        ):
            yield parse_devices(self.resource, message)

    async def preferred(self, request: PreferenceRequest) -> tuple[str, ...]:
        """Return the device ids that the plugin prefers; empty if it does not implement the call."""
        if not self.options.get_preferred_allocation_available:
            return ()
        container_request = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=request.available,
            must_include_deviceIDs=request.must_include,
            allocation_size=request.size,
        )
        response = await self._call(
            "GetPreferredAllocation",
            wire.PreferredAllocationRequest(container_requests=[container_request]),
            response=wire.PreferredAllocationResponse,
            seconds=self.timeouts.preferred,
        )
        return tuple(response.container_responses[0].deviceIDs) if response.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        response = await self._call(
            "Allocate",
            wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)]),
            response=wire.AllocateResponse,
            seconds=self.timeouts.allocate,
        )
        if not response.container_responses:
            raise PluginError("no containers return in allocation response &AllocateResponse{}")
        return AllocateResponse.from_message(response.container_responses[0])

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Announce the start of a container with these devices, if the plugin requires it."""
        if self.options.pre_start_required:
            await self._call(
                "PreStartContainer",
                wire.PreStartContainerRequest(devices_ids=ids),
                response=wire.PreStartContainerResponse,
                seconds=self.timeouts.pre_start,
            )

    async def close(self, *, grace: float = 0.0) -> None:
        """Disconnect; pending calls get *grace* seconds to finish."""
        self._closed = True
        await self.channel.close(grace)

    async def _call(
        self, method: str, request: Message, *, response: type[unix_grpc.Response], seconds: float
    ) -> unix_grpc.Response:
        path, error = f"/{_SERVICE}/{method}", plugin_error
        try:
            if not self._closed:
                return await unix_grpc.call(
                    self.channel, path, request, response=response, seconds=seconds, error=error
                )
        except PluginError:
            if not self._closed:
                raise
        raise PluginError(f"endpoint {self} has been stopped")


def plugin_error(code: grpc.StatusCode, details: str) -> PluginError:
    return PluginError(unix_grpc.error_text(code, details))


def parse_devices(resource: str, response: wire.ListAndWatchResponse) -> tuple[Device, ...]:
    """Return the listed devices, sorted by id: plugins send equal lists in varying order.

    The last entry of an id wins; entries without a usable id are ignored, and so are invalid NUMA nodes, such as the
    kernel's -1 for "no node". Raise ``PluginError`` for a list that is too large.
    """
    if len(response.devices) > MAX_DEVICES:
        raise PluginError(f"the list has {len(response.devices)} devices; the limit is {MAX_DEVICES}")
    node_ids = sum(len(device.topology.nodes) for device in response.devices)
    if node_ids > MAX_NODE_IDS:
        raise PluginError(f"the list has {node_ids} NUMA node ids; the limit is {MAX_NODE_IDS}")
    devices = {}
    for device in response.devices:
        nodes = bits.of(node.ID for node in device.topology.nodes if 0 <= node.ID < MAX_NODE_ID)
        device_nodes = nodes if device.HasField("topology") else None
        devices[device.ID] = Device(resource, device.ID, device_nodes, healthy=device.health == HEALTHY)
    return tuple(device for id_, device in sorted(devices.items()) if _is_usable(id_))


def _is_usable(id_: str) -> bool:
    """Return whether a device id can be part of a list of ids, as decisions store them."""
    return bool(id_) and "," not in id_ and id_.isprintable()
