"""The DevicePlugin service of a test plugin."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from alignup import rpc
from alignup.align import bits
from alignup.align.machine import Device
from alignup.testing.device_list import Preference
from alignup.testing.faults import InjectedError
from alignup.testing.recording_server import RecordingServer
from alignup.wire import device_plugin_pb2 as wire

_SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"]


@dataclass(kw_only=True)
class DevicePluginService:
    """The five methods of a device plugin."""

    calls: RecordingServer
    resource: str
    devices: dict[str, wire.Device]  #: by id, as listed
    preference: Preference = Preference.NONE
    pre_start: bool = False
    crash_after: int | None = None  #: how many Allocate calls it survives
    _streams: set[asyncio.Queue[wire.ListAndWatchResponse | None]] = field(default_factory=set)

    def handler(self) -> grpc.GenericRpcHandler:
        stream: rpc.Handler = grpc.unary_stream_rpc_method_handler(self._list_and_watch)
        return self.calls.service(_SERVICE, self, ListAndWatch=stream)

    def end_streams(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    def send_devices(self) -> None:
        """Send the current devices to every ListAndWatch stream."""
        for stream in self._streams:
            stream.put_nowait(self._list())

    def options(self) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(
            pre_start_required=self.pre_start,
            get_preferred_allocation_available=self.preference is not Preference.NONE,
        )

    async def _list_and_watch(self, raw: bytes, context: rpc.Context) -> AsyncIterator[bytes]:
        self.calls.record("ListAndWatch", wire.Empty.FromString(raw))
        changes: asyncio.Queue[wire.ListAndWatchResponse | None] = asyncio.Queue()
        changes.put_nowait(self._list())
        self._streams.add(changes)
        try:
            while (devices := await changes.get()) is not None:
                fault = self.calls.take_fault("ListAndWatch")
                await fault.apply(stopping=self.calls.stopping)
                yield fault.serialize(devices)
        except InjectedError as error:
            await context.abort(error.code, str(error))
        finally:
            self._streams.remove(changes)

    def _list(self) -> wire.ListAndWatchResponse:
        return wire.ListAndWatchResponse(devices=self.devices.values())

    async def get_device_plugin_options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        return self.options()

    async def get_preferred_allocation(
        self, request: wire.PreferredAllocationRequest
    ) -> wire.PreferredAllocationResponse:
        return wire.PreferredAllocationResponse(
            container_responses=[
                wire.ContainerPreferredAllocationResponse(
                    deviceIDs=self.preference.choose(
                        one.available_deviceIDs, must_include=one.must_include_deviceIDs, size=one.allocation_size
                    )
                )
                for one in request.container_requests
            ]
        )

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        if self.crash_after is not None and len(self.calls.requests("Allocate")) > self.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        return wire.AllocateResponse(
            container_responses=[self._allocated(one.devices_ids) for one in request.container_requests]
        )

    def _allocated(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        """Return a variable and an annotation that name the devices, and ``/dev/null`` as each device's node."""
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

    async def pre_start_container(self, _: wire.PreStartContainerRequest) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()


def device_messages(devices: Iterable[Device]) -> dict[str, wire.Device]:
    """Return devices as ListAndWatch sends them, by id."""
    return {device.id: _message(device) for device in devices}


def _message(device: Device) -> wire.Device:
    message = wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    if device.nodes is not None:
        nodes = [wire.NUMANode(ID=node) for node in bits.members(device.nodes)]
        message.topology.CopyFrom(wire.TopologyInfo(nodes=nodes))
    return message
