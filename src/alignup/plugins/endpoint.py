"""The connection to one device plugin: what it can do, the devices it lists, and the calls made to it.

It lasts as long as the plugin's list of devices is being sent. When that ends, for whatever reason, the plugin counts
as gone, and a plugin that comes back registers again and gets a connection of its own.

Every call has a deadline; the kubelet waits for most of them for ever (``docs/why/differences.md``).
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup import rpc
from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices import PreferenceRequest
from alignup.align.errors import PluginError
from alignup.align.machine import Device
from alignup.plugins.allocate_response import AllocateResponse
from alignup.wire import device_plugin_pb2 as wire

HEALTHY = "Healthy"

_SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"].full_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTimeouts:
    """How long a plugin may take, in seconds."""

    dial: float = 10.0  #: until it can be reached and has said what it can do
    preferred: float = 10.0
    allocate: float = 30.0
    pre_start: float = 30.0
    comeback: float = 300.0  #: how long a resource outlives its last plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """What a plugin wants to be asked."""

    preferred_allocation: bool = False
    pre_start: bool = False


class Endpoint:
    """A connection to a plugin of *resource* at *socket*."""

    def __init__(self, resource: str, socket: Path, *, line: grpc.aio.Channel, deadlines: PluginTimeouts) -> None:
        self.resource = resource
        self.socket = socket
        self.options = PluginOptions()
        self._line = line
        self._deadlines = deadlines
        self._closed = False

    @classmethod
    async def dial(cls, resource: str, socket: Path, *, deadlines: PluginTimeouts) -> Self:
        """Connect to a plugin and hear what it can do; ``PluginError`` when it cannot be reached or does not say."""
        made = cls(resource, socket, line=rpc.channel(socket), deadlines=deadlines)
        try:
            made.options = await made._ask_options()
        except BaseException:
            await made.close()
            raise
        return made

    def __str__(self) -> str:
        return f"{self.resource} at {self.socket}"

    async def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """The devices the plugin lists, each list in place of the one before; ``PluginError`` when that ends badly."""
        lists = rpc.stream(
            self._line, _method("ListAndWatch"), wire.Empty(), answer=wire.ListAndWatchResponse, failure=plugin_error
        )
        async for told in lists:
            yield parse_devices(self.resource, told)

    async def preferred(self, ask: PreferenceRequest) -> tuple[str, ...]:
        """Which devices the plugin would have taken; nothing when it does not want to be asked."""
        if not self.options.preferred_allocation:
            return ()
        question = wire.ContainerPreferredAllocationRequest(
            available_deviceIDs=ask.available,
            must_include_deviceIDs=ask.must_include,
            allocation_size=ask.size,
        )
        answer = await self._call(
            "GetPreferredAllocation",
            wire.PreferredAllocationRequest(container_requests=[question]),
            answer=wire.PreferredAllocationResponse,
            seconds=self._deadlines.preferred,
        )
        return tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> AllocateResponse:
        """Have the plugin prepare devices for a container, and say what the container needs to use them."""
        answer = await self._call(
            "Allocate",
            wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)]),
            answer=wire.AllocateResponse,
            seconds=self._deadlines.allocate,
        )
        if not answer.container_responses:
            raise PluginError("no containers return in allocation response &AllocateResponse{}")
        return AllocateResponse.from_message(answer.container_responses[0])

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with these devices starts; nothing when it does not want to know."""
        if self.options.pre_start:
            await self._call(
                "PreStartContainer",
                wire.PreStartContainerRequest(devices_ids=ids),
                answer=wire.PreStartContainerResponse,
                seconds=self._deadlines.pre_start,
            )

    async def close(self, *, grace: float = 0.0) -> None:
        """Hang up; calls under way fail if they take longer than *grace* seconds."""
        self._closed = True
        await self._line.close(grace)

    async def _ask_options(self) -> PluginOptions:
        """What the plugin wants to be asked, as soon as it can be reached."""
        try:
            told = await rpc.call(
                self._line,
                _method("GetDevicePluginOptions"),
                wire.Empty(),
                answer=wire.DevicePluginOptions,
                seconds=self._deadlines.dial,
                failure=plugin_error,
            )
        except PluginError as error:
            if self._line.get_state() is grpc.ChannelConnectivity.READY:
                raise
            raise PluginError(f"failed to dial device plugin: {error}") from error
        return PluginOptions(
            preferred_allocation=told.get_preferred_allocation_available, pre_start=told.pre_start_required
        )

    async def _call(self, method: str, request: Message, *, answer: type[rpc.Response], seconds: float) -> rpc.Response:
        try:
            if not self._closed:
                return await rpc.call(
                    self._line, _method(method), request, answer=answer, seconds=seconds, failure=plugin_error
                )
        except PluginError:
            if not self._closed:
                raise
        raise PluginError(f"endpoint {self} has been stopped")


def plugin_error(code: grpc.StatusCode, details: str) -> PluginError:
    """A failed call in the words of the kubelet."""
    return PluginError(rpc.error_text(code, details))


def parse_devices(resource: str, told: wire.ListAndWatchResponse) -> tuple[Device, ...]:
    """The devices in a list, by id; of two with one id the later counts, and one without an id is none.

    Plugins send the same list in another order each time, so order means nothing.
    """
    found = {one.ID: one for one in told.devices if one.ID}
    return tuple(
        Device(
            resource,
            id_,
            _nodes(node.ID for node in one.topology.nodes) if one.HasField("topology") else None,
            healthy=one.health == HEALTHY,
        )
        for id_, one in sorted(found.items())
    )


def _nodes(ids: Iterable[int]) -> NodeSet:
    """A set of NUMA nodes; what cannot be one, such as the kernel's -1 for none, is left out."""
    return bits.of(id_ for id_ in ids if 0 <= id_ < bits.MAX_MEMBER)


def _method(name: str) -> str:
    return f"/{_SERVICE}/{name}"
