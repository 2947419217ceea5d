"""A device plugin that lies, changes its mind, and sends what no plugin should send; dice decide when."""

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from alignup.kubernetes.plugins import unix_grpc
from alignup.testing import Fault, Plugin
from alignup.wire import device_plugin_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ODD_IDS = (
    "",
    "gpu-0",
    "gpu-0",
    "gpu-1",
    "a,b",
    "a\nb",
    "\0",
    "x" * 10_000,
    "é\u202e",
    "-1",
    "../../gpu",
    "<svg>",
    "a b",
)
ODD_NODES = ((), (0,), (1,), (0, 1), (-1,), (7,), (1 << 40,), (1_023,), (5,) * 3_000)
HEALTH = ("Healthy", "Healthy", "Healthy", "Unhealthy", "healthy", "", "x" * 1_000)
ENDPOINTS = ("", "..", "../x.sock", "/etc/passwd", "kubelet.sock", "none.sock", "x" * 200)
RESOURCES = ("", "gpu", "kubernetes.io/gpu", "a/b/c", "example.com/" + "x" * 100)
METHODS = ("Allocate", "GetPreferredAllocation", "GetDevicePluginOptions", "ListAndWatch")
FAULTS = (
    Fault(garbage=True),
    Fault(error="x" * 3_000),
    Fault(error="no", code="UNIMPLEMENTED"),
    Fault(error="lost", done=True),
    Fault(hang=True, times=1),
    Fault(delay=0.05),
    Fault(),
)


class HostilePlugin(Plugin):
    def __init__(self, resource: str, *, dice: random.Random, **options: Any) -> None:
        super().__init__(resource, "2@0,2@1", **options)
        self.dice: random.Random | None = dice  #: ``None``: it behaves
        self.retry_delay = 0.01

    async def misbehave(self) -> None:
        """Do one hostile thing."""
        assert self.dice is not None
        actions: tuple[Callable[[random.Random], Awaitable[None]], ...] = (
            self._send_lists,
            self._inject_fault,
            self._end_streams,
            self._restart,
            self._register_again,
            self._register_nonsense,
        )
        await self.dice.choice(actions)(self.dice)

    async def behave(self) -> None:
        """Serve four healthy devices again."""
        self.dice = None
        for method in METHODS:
            self.inject(method, Fault())
        self.set_devices("2@0,2@1")
        await self.restart()
        await self.register()

    async def get_device_plugin_options(self, _: wire.Empty | None = None) -> wire.DevicePluginOptions:
        if self.dice is None:
            return await super().get_device_plugin_options()
        return wire.DevicePluginOptions(get_preferred_allocation_available=self.dice.random() < 0.7)

    async def get_preferred_allocation(
        self, request: wire.PreferredAllocationRequest
    ) -> wire.PreferredAllocationResponse:
        if self.dice is None:
            return await super().get_preferred_allocation(request)
        available = list(request.container_requests[0].available_deviceIDs)
        ids = self.dice.choice(([], available, ["gpu-99"], available[:1] * 5, list(ODD_IDS), ["x"] * 10_000))
        responses = [wire.ContainerPreferredAllocationResponse(deviceIDs=ids)] * self.dice.choice((0, 1, 1, 1, 3))
        return wire.PreferredAllocationResponse(container_responses=responses)

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        if self.dice is None:
            return await super().allocate(request)
        mishap = self.dice.choice(
            (
                wire.ContainerAllocateResponse(),
                wire.ContainerAllocateResponse(envs={"": "", "A=B": "\0", "x" * 10_000: "y"}),
                wire.ContainerAllocateResponse(envs={"A": "x" * (3 << 20)}),
                wire.ContainerAllocateResponse(envs={"A": "x" * (5 << 20)}),
                wire.ContainerAllocateResponse(mounts=[wire.Mount(container_path="../..", host_path="")] * 100),
                wire.ContainerAllocateResponse(devices=[wire.DeviceSpec(permissions="rwxyz")] * 100),
                wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name="\n")] * 1_000),
            )
        )
        return wire.AllocateResponse(container_responses=[mishap] * self.dice.choice((0, 1, 1, 1, 2)))

    async def _send_lists(self, dice: random.Random) -> None:
        for _ in range(dice.choice((1, 1, 1, 20))):
            listed = [self._odd_device(dice) for _ in range(dice.randrange(12))]
            if dice.random() < 0.1:
                count, length = dice.choice(((200, 10), (10_001, 1), (500, 10_000)))
                listed += [wire.Device(ID=f"{number}{'x' * length}", health="Healthy") for number in range(count)]
            self.devices = {str(number): device for number, device in enumerate(listed)}
            self.send_devices()

    async def _inject_fault(self, dice: random.Random) -> None:
        self.inject(dice.choice(METHODS), dice.choice(FAULTS))

    async def _end_streams(self, _dice: random.Random) -> None:
        self.end_streams()

    async def _restart(self, _dice: random.Random) -> None:
        await self.restart()

    async def _register_again(self, _dice: random.Random) -> None:
        with suppress(unix_grpc.StatusError):
            await self.register()

    async def _register_nonsense(self, dice: random.Random) -> None:
        request = wire.RegisterRequest(
            version=dice.choice(("v1beta1", "v1beta1", "v1alpha1", "")),
            endpoint=dice.choice((*ENDPOINTS, self.socket.name)),
            resource_name=dice.choice((*RESOURCES, self.resource)),
        )
        async with unix_grpc.channel(self._registry) as channel:
            with suppress(unix_grpc.StatusError):
                await unix_grpc.call(
                    channel,
                    "/v1beta1.Registration/Register",
                    request,
                    response=wire.Empty,
                    seconds=60,
                    error=lambda code, details: unix_grpc.StatusError(details, code=code),
                )

    @staticmethod
    def _odd_device(dice: random.Random) -> wire.Device:
        topology = wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in dice.choice(ODD_NODES)])
        known = topology if dice.random() < 0.8 else None
        return wire.Device(ID=dice.choice(ODD_IDS), health=dice.choice(HEALTH), topology=known)
