"""The plugin's side of the device plugin API (v1beta1): a device plugin that stays registered with a kubelet.

The open ListAndWatch stream is the sign that the kubelet knows the plugin. When it ends, for example since the kubelet
restarts, the plugin serves at a new socket and registers that. A kubelet that gets a second registration of a socket
before it has noticed the end of the first connection would reject it, and keep neither.
"""

import asyncio
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

import structlog

from alignup.align import bits
from alignup.align.errors import ListenError
from alignup.align.machine import Device
from alignup.kubernetes.plugins import unix_grpc
from alignup.socket_paths import length_problem
from alignup.wire import device_plugin_pb2 as wire

REGISTRY = "kubelet.sock"
REGISTER_TIMEOUT = 30.0  #: seconds
_END_SECONDS = 1.0  #: for streams to end

_SERVICE = wire.DESCRIPTOR.services_by_name["DevicePlugin"]
_REGISTER = f"/{wire.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"

_log = structlog.get_logger()


class DevicePlugin:
    """A device plugin of *resource* in *directory*; its devices need nothing in a container but their presence.

    *allocated* is called with the ids of every container that gets devices, *registered* after every registration with
    ``success=``. A kubelet that is not there is tried again after *retry* seconds.
    """

    def __init__(
        self,
        resource: str,
        directory: Path,
        *,
        allocated: Callable[[Sequence[str]], object] = lambda _ids: None,
        registered: Callable[..., object] = lambda **_: None,
        retry: float = 0.5,
    ) -> None:
        self.resource = resource
        self.listed = 0  #: how often a kubelet has asked for the list
        #: answers GetPreferredAllocation, with the arguments of ``near_choice.preferred_devices`` after the machine
        self.preferred: Callable[..., Sequence[str]] | None = None
        self._directory = directory
        self._allocated = allocated
        self._registered = registered
        self._retry = retry
        self._devices: tuple[Device, ...] = ()
        self._streams: set[asyncio.Event] = set()  #: set an event to send the list again
        self._streams_changed = asyncio.Event()
        self._ending = False  #: whether streams are to end

    @property
    def connected(self) -> bool:
        """Whether a kubelet follows the list of devices."""
        return bool(self._streams)

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def set_devices(self, devices: Iterable[Device]) -> None:
        """Report other devices, or other health; nothing is sent if nothing changed."""
        new_devices = tuple(devices)
        if new_devices != self._devices:
            self._devices = new_devices
            for stream in self._streams:
                stream.set()

    async def run(self) -> None:
        """Serve, and keep registered, until cancelled."""
        problem = ""
        while True:
            try:
                if self._listens():
                    await self._serve_once()
                    problem = ""
            except (ListenError, OSError, RuntimeError, unix_grpc.StatusError) as error:
                self._registered(success=False)
                if str(error) != problem:
                    _log.warning("cannot register with the kubelet", resource=self.resource, problem=str(error))
                problem = str(error)
            await asyncio.sleep(self._retry)

    def _listens(self) -> bool:
        """Return whether something listens at the kubelet's socket: else no socket is created for nothing."""
        registry = self._directory / REGISTRY
        if problem := length_problem(registry):
            raise OSError(f"{registry}: {problem}")
        with socket(AF_UNIX, SOCK_STREAM) as probe:
            probe.settimeout(0)  # a Unix socket is connected at once, or not at all
            return probe.connect_ex(str(registry)) == 0

    async def _serve_once(self) -> None:
        """Serve at a new socket, register it, and return after the kubelet has stopped following the list."""
        stem = self.resource.replace("/", "_")
        _remove_dead_sockets(self._directory, stem)
        path = self._directory / f"{stem}-{secrets.token_hex(4)}.sock"
        async with self._serving(path):
            listed_before = self.listed
            options = await self._options(wire.Empty())
            await register(self._directory / REGISTRY, path.name, resource=self.resource, options=options)
            self._registered(success=True)
            _log.info("registered with the kubelet", resource=self.resource, socket=path.name)
            with suppress(TimeoutError):
                async with asyncio.timeout(REGISTER_TIMEOUT):
                    while self.listed == listed_before:
                        await self._wait_streams()
            while self._streams:
                await self._wait_streams()
        _log.warning("the kubelet has disconnected", resource=self.resource)

    async def _wait_streams(self) -> None:
        self._streams_changed.clear()
        await self._streams_changed.wait()

    @asynccontextmanager
    async def _serving(self, path: Path) -> AsyncIterator[None]:
        methods: dict[str, unix_grpc.Method] = {
            "GetDevicePluginOptions": (wire.Empty, self._options),
            "GetPreferredAllocation": (wire.PreferredAllocationRequest, self._get_preferred),
            "Allocate": (wire.AllocateRequest, self._allocate),
        }
        streams: dict[str, unix_grpc.StreamMethod] = {"ListAndWatch": (wire.Empty, self._list)}
        async with unix_grpc.serve(path, _SERVICE, methods, streams=streams):
            self._ending = False
            try:
                yield
            finally:
                self._ending = True
                for stream in self._streams:
                    stream.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_SECONDS):
                        while self._streams:
                            await self._wait_streams()

    async def _options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(get_preferred_allocation_available=self.preferred is not None)

    async def _get_preferred(self, request: wire.PreferredAllocationRequest) -> wire.PreferredAllocationResponse:
        response = wire.PreferredAllocationResponse()
        choose_preferred = self.preferred or (lambda *_, **_named: ())
        for container in request.container_requests:
            ids = choose_preferred(
                container.available_deviceIDs,
                required=container.must_include_deviceIDs,
                size=container.allocation_size,
                devices=[device.id for device in self._devices],
            )
            response.container_responses.add(deviceIDs=ids)
        return response

    async def _list(self, _: wire.Empty) -> AsyncIterator[wire.ListAndWatchResponse]:
        change = asyncio.Event()
        self._streams.add(change)
        self.listed += 1
        self._streams_changed.set()
        try:
            while not self._ending:
                change.clear()
                yield wire.ListAndWatchResponse(devices=map(device_message, self._devices))
                await change.wait()
        finally:
            self._streams.discard(change)
            self._streams_changed.set()

    async def _allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        for container in request.container_requests:
            self._allocated(tuple(container.devices_ids))
        return wire.AllocateResponse(
            container_responses=[wire.ContainerAllocateResponse() for _ in request.container_requests]
        )


async def register(registry: Path, endpoint: str, *, resource: str, options: wire.DevicePluginOptions) -> None:
    """Register the plugin at the socket *endpoint*, in the directory of *registry*; ``StatusError`` if that fails."""
    async with unix_grpc.channel(registry) as channel:
        await unix_grpc.call(
            channel,
            _REGISTER,
            wire.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource, options=options),
            response=wire.Empty,
            seconds=REGISTER_TIMEOUT,
            error=lambda code, details: unix_grpc.StatusError(details, code=code),
            wait_for_ready=False,
        )


def device_message(device: Device) -> wire.Device:
    message = wire.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    if device.nodes is not None:
        nodes = [wire.NUMANode(ID=node) for node in bits.members(device.nodes)]
        message.topology.CopyFrom(wire.TopologyInfo(nodes=nodes))
    return message


def _remove_dead_sockets(directory: Path, stem: str) -> None:
    """Remove the sockets of plugins that were killed."""
    for path in directory.glob(f"{stem}-*.sock"):
        with suppress(FileNotFoundError), socket(AF_UNIX, SOCK_STREAM) as probe:
            probe.settimeout(0)
            if stat.S_ISSOCK(path.lstat().st_mode) and probe.connect_ex(str(path)) != 0:
                path.unlink()
