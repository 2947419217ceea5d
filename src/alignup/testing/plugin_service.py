"""What a plugin for tests answers: its devices, as they are listed now, and what it was asked."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from alignup.align import bits
from alignup.align.machine import Device
from alignup.testing.call_log import CallLog, Context, Handler
from alignup.testing.device_list import Preference
from alignup.testing.faults import InjectedError
from alignup.wire import device_plugin_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"].full_name


@dataclass(kw_only=True)
class DevicePluginService:
    """The five methods of a plugin."""

    resource: str
    devices: dict[str, wire.Device]  #: by id, as they are listed
    advice: Preference = Preference.NONE
    pre_start: bool = False
    crash_after: int | None = None  #: how many calls of Allocate it survives
    calls: CallLog = field(default_factory=CallLog)
    _streams: set[asyncio.Queue[wire.ListAndWatchResponse | None]] = field(default_factory=set)

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server, until :meth:`end`."""
        self.calls.again()
        one = self.calls.answered
        methods: dict[str, Handler] = {
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._lists),
            "GetDevicePluginOptions": one("GetDevicePluginOptions", wire.Empty, self._options),
            "GetPreferredAllocation": one("GetPreferredAllocation", wire.PreferredAllocationRequest, self._preferred),
            "Allocate": one("Allocate", wire.AllocateRequest, self._allocate),
            "PreStartContainer": one("PreStartContainer", wire.PreStartContainerRequest, self._pre_start),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def end(self) -> None:
        """Bring all calls to an end."""
        for stream in self._streams:
            stream.put_nowait(None)
        await self.calls.end()

    def list_again(self) -> None:
        """Send the devices, as they are now, to everybody who listens."""
        for stream in self._streams:
            stream.put_nowait(self._list())

    def options(self) -> wire.DevicePluginOptions:
        """What the plugin wants to be asked."""
        return wire.DevicePluginOptions(
            pre_start_required=self.pre_start,
            get_preferred_allocation_available=self.advice is not Preference.NONE,
        )

    async def _lists(self, raw: bytes, context: Context) -> AsyncIterator[bytes]:
        """The devices, and again whenever they change."""
        self.calls.begin("ListAndWatch", wire.Empty.FromString(raw))
        changes: asyncio.Queue[wire.ListAndWatchResponse | None] = asyncio.Queue()
        changes.put_nowait(self._list())
        self._streams.add(changes)
        try:
            while (listed := await changes.get()) is not None:
                fault = self.calls.faults.take("ListAndWatch")
                await fault.apply(over=self.calls.over)
                yield fault.raw(listed)
        except InjectedError as error:
            await context.abort(error.code, str(error))
        finally:
            self._streams.remove(changes)

    def _list(self) -> wire.ListAndWatchResponse:
        return wire.ListAndWatchResponse(devices=self.devices.values())

    async def _options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        return self.options()

    async def _preferred(self, request: wire.PreferredAllocationRequest) -> wire.PreferredAllocationResponse:
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

    async def _allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        """A variable that names the devices, a note that does, and for each device a node that takes anything."""
        if self.crash_after is not None and len(self.calls.of("Allocate")) > self.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return wire.AllocateResponse(
            container_responses=[self._prepared(one.devices_ids) for one in request.container_requests]
        )

    def _prepared(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        unknown = [id_ for id_ in ids if id_ not in self.devices]
        if unknown:
            raise InjectedError(f"there is no device {unknown[0]} of {self.resource}")
        name = self.resource.rpartition("/")[2]
        return wire.ContainerAllocateResponse(
            envs={f"{name.upper().replace('-', '_').replace('.', '_')}_DEVICES": ",".join(ids)},
            annotations={f"testing.alignup/{name}": ",".join(ids)},
            devices=[
                wire.DeviceSpec(container_path=f"/dev/{name}/{id_}", host_path="/dev/null", permissions="rw")
                for id_ in ids
            ],
        )

    async def _pre_start(self, _: wire.PreStartContainerRequest) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()


def device_messages(devices: Iterable[Device]) -> dict[str, wire.Device]:
    """Devices as they are listed, by id."""
    return {device.id: _device(device) for device in devices}


def _device(device: Device) -> wire.Device:
    told = wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    if device.nodes is not None:
        told.topology.CopyFrom(wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in bits.members(device.nodes)]))
    return told
