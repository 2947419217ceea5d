"""What a plugin for tests answers: its devices, as they are listed now, and what it was asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from alignup.align import bits
from alignup.align.machine import Device
from alignup.testing.faults import NONE, Fault, SpoiltError
from alignup.testing.offer import Advice
from alignup.wire import device_plugin_pb2 as wire

GRACE = 1.0  #: seconds for calls under way to end
SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # which is generic for the type checker only


@dataclass(kw_only=True)
class Service:
    """The five methods of a plugin."""

    resource: str
    devices: dict[str, wire.Device]  #: by id, as they are listed
    advice: Advice = Advice.NONE
    pre_start: bool = False
    faults: dict[str, Fault] = field(default_factory=dict)  #: by method
    crash_after: int | None = None  #: how many calls of Allocate it survives
    asked: list[tuple[str, Any]] = field(default_factory=list)  #: methods and requests, in the order they came
    _streams: set[asyncio.Queue[wire.ListAndWatchResponse | None]] = field(default_factory=set)
    _over: asyncio.Event = field(default_factory=asyncio.Event)  #: nothing is answered any more
    _under_way: set[asyncio.Task[Any]] = field(default_factory=set)  #: calls that are

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server, until :meth:`end`."""
        self._over.clear()
        methods: dict[str, _Handler] = {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._lists),
            "GetDevicePluginOptions": self._one("GetDevicePluginOptions", wire.Empty, self._options),
            "GetPreferredAllocation": self._one(
                "GetPreferredAllocation", wire.PreferredAllocationRequest, self._preferred
            ),
            "Allocate": self._one("Allocate", wire.AllocateRequest, self._allocate),
            "PreStartContainer": self._one("PreStartContainer", wire.PreStartContainerRequest, self._pre_start),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def end(self) -> None:
        """Bring all calls to an end: the library complains about those under way when a server stops."""
        self._over.set()
        for stream in self._streams:
            stream.put_nowait(None)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=GRACE)

    def list_again(self) -> None:
        """Send the devices, as they are now, to everybody who listens."""
        for stream in self._streams:
            stream.put_nowait(self._list())

    def options(self) -> wire.DevicePluginOptions:
        """What the plugin wants to be asked."""
        return wire.DevicePluginOptions(
            pre_start_required=self.pre_start,
            get_preferred_allocation_available=self.advice is not Advice.NONE,
        )

    def _one(self, method: str, kind: type[Message], answer: Callable[[Any], Message]) -> _Handler:
        """A method with one answer."""

        async def respond(raw: bytes, context: _Context) -> bytes:
            request = kind.FromString(raw)
            self._begin(method, request)
            try:
                return await self._fault(method).spoil(answer(request), over=self._over)
            except SpoiltError as error:
                await context.abort(error.code, str(error))

        return grpc.unary_unary_rpc_method_handler(respond)

    async def _lists(self, raw: bytes, context: _Context) -> AsyncIterator[bytes]:
        """The devices, and again whenever they change."""
        self._begin("ListAndWatch", wire.Empty.FromString(raw))
        changes: asyncio.Queue[wire.ListAndWatchResponse | None] = asyncio.Queue()
        changes.put_nowait(self._list())
        self._streams.add(changes)
        try:
            while (listed := await changes.get()) is not None:
                yield await self.faults.get("ListAndWatch", NONE).spoil(listed, over=self._over)
        except SpoiltError as error:
            await context.abort(error.code, str(error))
        finally:
            self._streams.remove(changes)

    def _begin(self, method: str, request: Message) -> None:
        """Remember a call: that it was made, and that it is under way."""
        self.asked.append((method, request))
        task = asyncio.current_task()
        if task is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    def _list(self) -> wire.ListAndWatchResponse:
        return wire.ListAndWatchResponse(devices=self.devices.values())

    def _fault(self, method: str) -> Fault:
        if method == "Allocate" and self.crash_after is not None:
            calls = Counter(name for name, _ in self.asked)[method]
            if calls > self.crash_after:
                return Fault(crash=True)
        return self.faults.get(method, NONE)

    def _options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        return self.options()

    def _preferred(self, request: wire.PreferredAllocationRequest) -> wire.PreferredAllocationResponse:
        return wire.PreferredAllocationResponse(
            container_responses=[
                wire.ContainerPreferredAllocationResponse(
                    deviceIDs=self.advice.choose(
                        one.available_deviceIDs, must_include=one.must_include_deviceIDs, size=one.allocation_size
                    )
                )
                for one in request.container_requests
            ]
        )

    def _allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        """A variable that names the devices, a note that does, and for each device a node that takes anything."""
        return wire.AllocateResponse(
            container_responses=[self._prepared(one.devices_ids) for one in request.container_requests]
        )

    def _prepared(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        unknown = [id_ for id_ in ids if id_ not in self.devices]
        if unknown:
            raise SpoiltError(f"there is no device {unknown[0]} of {self.resource}")
        name = self.resource.rpartition("/")[2]
        return wire.ContainerAllocateResponse(
            envs={f"{name.upper().replace('-', '_').replace('.', '_')}_DEVICES": ",".join(ids)},
            annotations={f"testing.alignup/{name}": ",".join(ids)},
            devices=[
                wire.DeviceSpec(container_path=f"/dev/{name}/{id_}", host_path="/dev/null", permissions="rw")
                for id_ in ids
            ],
        )

    def _pre_start(self, _: wire.PreStartContainerRequest) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()


def listed(devices: Iterable[Device]) -> dict[str, wire.Device]:
    """Devices as they are listed, by id."""
    return {device.id: _device(device) for device in devices}


def _device(device: Device) -> wire.Device:
    told = wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    if device.nodes is not None:
        told.topology.CopyFrom(wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in bits.members(device.nodes)]))
    return told
