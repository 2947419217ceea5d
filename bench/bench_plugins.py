"""Device plugins and PodResources on real sockets: registration, calls, lists, and memory."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from alignup.align.cpus.options import CpuSettings
from alignup.align.devices.provider import PreferenceRequest
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.kubernetes.plugins import unix_grpc
from alignup.kubernetes.plugins.manager import DevicePluginManager
from alignup.kubernetes.plugins.pod_resources import RateLimiter, serve_pod_resources
from alignup.kubernetes.plugins.resources import DevicesListed, PluginStopped
from alignup.machines import synthetic
from alignup.testing import Plugin, Preference
from alignup.wire import pod_resources_pb2 as wire
from bench.bench_admit import GPU, pod
from bench.harness import Figure, resident_megabytes
from tests.kubernetes.plugins.capacity import capacity_of

if TYPE_CHECKING:
    import grpc.aio

MACHINE = "pack:2 numa:4(memory=256GiB) core:80 pu:2"
PODS = 500
MANY = 10_000  #: devices


class Listener:
    """Sets an event for every device list."""

    def __init__(self, host: Host | None = None) -> None:
        self.listed = asyncio.Event()
        self._host = host

    @property
    def callbacks(self) -> tuple[DevicesListed, PluginStopped]:
        return self.devices_listed, self.plugin_stopped

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        del preferred_allocation
        if self._host is not None:
            self._host.update_devices(resource, devices)
        self.listed.set()

    async def plugin_stopped(self, resource: str, *, gone: bool) -> None:
        del resource, gone


def figures() -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))  # plugins stop all the time here
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        registration, preference, allocation = asyncio.run(_plugin(Path(place)))
        yield Figure("a plugin registers, to its first device in use", registration, 0.100, "8 devices")
        yield Figure("GetPreferredAllocation over the socket, p50", preference)
        yield Figure("Allocate over the socket, p50", allocation)
        listing, size = asyncio.run(_list(Path(place)))
        yield Figure(f"PodResources List with {PODS} pods", listing, 0.050, f"{size / 1000:.0f} kB")
    yield Figure(f"memory with {MANY:,} devices", _memory(), 150, unit="MB")


async def _plugin(directory: Path) -> tuple[float, float, float]:
    """Return the times of a registration with its first allocation, of a preference, and of an allocation."""
    registration = float("inf")
    wanted = PreferenceRequest(
        uid="u", container="c", resource=GPU, available=("gpu-0", "gpu-1"), must_include=(), size=1
    )
    listener = Listener()
    async with DevicePluginManager(directory, *listener.callbacks) as manager:
        for number in range(20):
            plugin = Plugin(
                GPU, "4@0,4@1", directory=directory, preference=Preference.LOWEST, endpoint=f"{number}.sock"
            )
            listener.listed.clear()
            start = time.perf_counter()
            async with plugin:
                await listener.listed.wait()
                await manager.allocate(GPU, ("gpu-0",))
                registration = min(registration, time.perf_counter() - start)
        async with Plugin(GPU, "4@0,4@1", directory=directory, preference=Preference.LOWEST) as plugin:
            await plugin.wait_registered()
            preference = await _median(lambda: manager.preferred(wanted))
            allocation = await _median(lambda: manager.allocate(GPU, ("gpu-0",)))
    return registration, preference, allocation


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(200):
        start = time.perf_counter()
        await call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


async def _list(directory: Path) -> tuple[float, int]:
    """Return the least time for a decoded List response, and its size."""
    host, path = _full_host(), directory / "list.sock"
    limiter = RateLimiter(now=time.monotonic, burst=1e9)
    least, size = float("inf"), 0
    async with (
        serve_pod_resources(path, lambda: host, limiter=limiter),
        unix_grpc.channel(path) as line,
    ):
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = line.unary_unary("/v1.PodResourcesLister/List")
        for _ in range(20):
            start = time.perf_counter()
            raw = await send(b"")
            response = wire.ListPodResourcesResponse.FromString(raw)
            least, size = min(least, time.perf_counter() - start), len(raw)
            assert len(response.pod_resources) == PODS
    return least, size


def _full_host() -> Host:
    """Return a host with PODS pods, each with two exclusive CPUs and two devices."""
    devices = tuple(Device(GPU, f"gpu-{number}", 1 << number % 8) for number in range(2 * PODS))
    settings = Settings(
        cpus=CpuSettings(policy="static", reservation=Quantity.parse("1")), max_pods=PODS, fit_check=False
    )
    host = Host(synthetic.parse(MACHINE), settings)
    host.update_devices(GPU, devices)
    for number in range(PODS):
        decision = host.admit(pod(f"pod-{number}", cpus=2, memory="1Gi", gpus=2))
        assert decision.admitted, decision.rejection
    return host


def _memory() -> float:
    """Return the resident megabytes of a process with MANY devices."""
    command = [sys.executable, "-m", "bench.bench_plugins"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - our own


async def _resident() -> float:
    """Run in that process: a host with all devices of ten plugins, which are other processes."""
    host = Host(synthetic.parse(MACHINE))
    listener = Listener(host)
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        plugins = []
        async with DevicePluginManager(Path(place), *listener.callbacks) as manager:
            for number in range(10):
                name = f"example.com/r{number}"
                command = ["-m", "alignup.testing.plugin", "--resource", name, "--dir", place]
                devices = ("--devices", f"{MANY // 10}@{number % 8}")
                plugins.append(
                    await asyncio.create_subprocess_exec(sys.executable, *command, *devices, stdout=subprocess.DEVNULL)
                )
            while sum(capacity_of(manager).allocatable.values()) < MANY:
                listener.listed.clear()
                await listener.listed.wait()
            await manager.settled()
            megabytes = resident_megabytes()
            for plugin in plugins:
                plugin.kill()
                await plugin.wait()
    return megabytes


if __name__ == "__main__":
    print(asyncio.run(_resident()))
