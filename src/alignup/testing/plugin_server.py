"""A device plugin on its socket, registered with the kubelet or agent of a directory.

It records the calls that it gets, and injects faults into them.
"""

import asyncio
import os
import re
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from alignup.align import bits
from alignup.align.devices.hints import natural_sort_key
from alignup.align.devices.near_choice import preferred_devices
from alignup.align.errors import ParseError
from alignup.align.machine import Device, Machine
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.device_plugin import REGISTRY, device_message, register
from alignup.testing.faulty_server import FaultyServer, Methods
from alignup.wire import device_plugin_pb2 as wire

POLL_INTERVAL = 0.05  #: seconds between looks at the directory

_SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"]
_GROUP = re.compile(r"(?P<count>[0-9]{1,6})(?:@(?P<nodes>[0-9]{1,4}(?:\+[0-9]{1,4})*|))?", re.ASCII)


class Preference(StrEnum):
    """Which devices a plugin returns from GetPreferredAllocation."""

    NONE = "none"  #: it does not implement the call
    LOWEST = "lowest"
    HIGHEST = "highest"
    NEAR = "near"  #: by ``alignup.preferred_devices``; the plugin needs a machine

    def choose(self, available: Sequence[str], *, must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """Return *size* of the *available* device ids, the ids in *must_include* first."""
        rest = set(available).difference(must_include)
        ordered_ids = sorted(rest, key=natural_sort_key, reverse=self is Preference.HIGHEST)
        return (*must_include, *ordered_ids)[:size]


def parse_device_list(resource: str, text: str) -> tuple[Device, ...]:
    """Return the devices of a list such as ``4@0,4@1,1@2+3``.

    That is four devices near NUMA node 0, four near node 1, and one near nodes 2 and 3. ``2`` are two devices without
    topology, ``2@`` two whose topology has no nodes. Devices are named after their resource: ``gpu-0``, ``gpu-1``.
    """
    name = resource.rpartition("/")[2]
    devices: list[Device] = []
    for group in text.split(",") if text else ():
        match = _GROUP.fullmatch(group)
        if not match:
            raise ParseError(f"{bits.quote(group)} is not a device list; write it like 4@0,4@1,1@2+3")
        node_list = match["nodes"]
        nodes = None if node_list is None else bits.of(int(node) for node in node_list.split("+") if node)
        first = len(devices)
        devices += [Device(resource, f"{name}-{number}", nodes) for number in range(first, first + int(match["count"]))]
    return tuple(devices)


class Plugin(FaultyServer):
    """A device plugin of *resource* that serves and registers while entered.

    It registers again whenever ``kubelet.sock`` in *directory* is recreated, and recreates its own socket first if that
    was removed, as well-behaved plugins do. *devices* are devices or text for :func:`parse_device_list`.
    """

    def __init__(
        self,
        resource: str,
        devices: Iterable[Device] | str,
        *,
        directory: Path,
        preference: Preference = Preference.NONE,
        endpoint: str = "",
    ) -> None:
        super().__init__()
        self.resource = resource
        self.devices = _messages(resource, devices)  #: by id; call ``send_devices`` after changes
        self.preference = preference
        self.machine: Machine | None = None  #: for devices that are near each other
        self.pre_start = False  #: whether it requires PreStartContainer calls
        self.crash_after: int | None = None  #: how many Allocate calls it survives
        self.retry_delay = 0.5  #: seconds until a failed registration is retried
        self.socket = directory / (endpoint or f"{resource.replace('/', '_')}.sock")
        self.registrations = 0  #: successful ones
        self.rejections: list[str] = []  #: error messages of failed registrations
        self._registry = directory / REGISTRY
        self._registered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._start()
        self._task = asyncio.create_task(self._keep_registered(), name=f"register {self.resource}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._stop(self.socket)

    def set_devices(self, devices: Iterable[Device] | str) -> None:
        self.devices = _messages(self.resource, devices)
        self.send_devices()

    def set_health(self, id_: str, health: str) -> None:
        self.devices[id_].health = health
        self.send_devices()

    def remove(self, id_: str) -> None:
        del self.devices[id_]
        self.send_devices()

    def send_devices(self) -> None:
        self._send_changes()

    async def wait_registered(self, times: int = 1) -> None:
        while self.registrations < times:
            self._registered.clear()
            await self._registered.wait()

    async def register(self) -> None:
        """Register, possibly again; raise ``StatusError`` if that fails."""
        options = await self.get_device_plugin_options()
        await register(self._registry, self.socket.name, resource=self.resource, options=options)
        self.registrations += 1
        self._registered.set()

    async def restart(self) -> None:
        """Break every connection and serve again, unregistered."""
        await self._stop(self.socket)
        await self._start()

    async def get_device_plugin_options(self, _: wire.Empty | None = None) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=self.preference is not Preference.NONE
        )

    async def get_preferred_allocation(
        self, request: wire.PreferredAllocationRequest
    ) -> wire.PreferredAllocationResponse:
        response = wire.PreferredAllocationResponse()
        for container in request.container_requests:
            available, must_include = container.available_deviceIDs, container.must_include_deviceIDs
            size = container.allocation_size
            devices = self.preference.choose(available, must_include=must_include, size=size)
            if self.preference is Preference.NEAR and self.machine is not None:
                devices = preferred_devices(
                    self.machine, available, required=must_include, size=size, devices=self.devices
                )
            response.container_responses.add(deviceIDs=devices)
        return response

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        if self.crash_after is not None and len(self.requests("Allocate")) > self.crash_after:
            os.kill(os.getpid(), signal.SIGKILL)
        responses = [self._allocated(container.devices_ids) for container in request.container_requests]
        return wire.AllocateResponse(container_responses=responses)

    async def _pre_start(self, _: wire.PreStartContainerRequest) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()

    def _list(self) -> wire.ListAndWatchResponse:
        return wire.ListAndWatchResponse(devices=self.devices.values())

    def _allocated(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        """Return a variable and an annotation that name the devices, and ``/dev/null`` as each device's node."""
        unknown_ids = [id_ for id_ in ids if id_ not in self.devices]
        if unknown_ids:
            raise unix_grpc.StatusError(f"there is no device {unknown_ids[0]} of {self.resource}")
        name = self.resource.rpartition("/")[2]
        variable = f"{name.upper().replace('-', '_').replace('.', '_')}_DEVICES"
        nodes = (
            wire.DeviceSpec(container_path=f"/dev/{name}/{id_}", host_path="/dev/null", permissions="rw") for id_ in ids
        )
        annotations = {f"testing.alignup/{name}": ",".join(ids)}
        return wire.ContainerAllocateResponse(envs={variable: ",".join(ids)}, annotations=annotations, devices=nodes)

    async def _keep_registered(self) -> None:
        last_registry: tuple[int, int] | None = None
        while True:
            registry = _identity(self._registry)
            if registry is not None and registry != last_registry:
                if _identity(self.socket) is None:
                    await self.restart()
                try:
                    await self.register()
                    last_registry = registry
                except unix_grpc.StatusError as error:
                    self.rejections.append(str(error))
                    last_registry = None
                    await asyncio.sleep(self.retry_delay)
            await asyncio.sleep(POLL_INTERVAL)

    async def _start(self) -> None:
        methods: Methods = {
            "GetDevicePluginOptions": (wire.Empty, self.get_device_plugin_options),
            "ListAndWatch": (wire.Empty, self._list),
            "GetPreferredAllocation": (wire.PreferredAllocationRequest, self.get_preferred_allocation),
            "Allocate": (wire.AllocateRequest, self.allocate),
            "PreStartContainer": (wire.PreStartContainerRequest, self._pre_start),
        }
        await self._serve(self.socket, {_SERVICE: methods})


def _messages(resource: str, devices: Iterable[Device] | str) -> dict[str, wire.Device]:
    device_list = parse_device_list(resource, devices) if isinstance(devices, str) else devices
    return {device.id: device_message(device) for device in device_list}


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is recreated; ``None`` if it does not exist."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        return status.st_ino, status.st_ctime_ns
    return None
