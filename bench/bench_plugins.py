"""Device plugins and PodResources on real sockets: registering, being called, listing, and memory."""

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from alignup import rpc
from alignup.align import synthetic
from alignup.align.cpus.options import CpuSettings
from alignup.align.devices import PreferenceRequest
from alignup.align.host import Host, Settings
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, Resources
from alignup.plugins.manager import DevicePluginManager
from alignup.plugins.pod_resources import RateLimiter, serve_pod_resources
from alignup.plugins.pod_resources_view import HostPodResources
from alignup.testing import Plugin, Preference
from alignup.wire import pod_resources_pb2 as wire
from bench.harness import Figure

if TYPE_CHECKING:
    import grpc.aio

GPU = "example.com/gpu"
MACHINE = "pack:2 numa:4(memory=256GiB) core:80 pu:2"
PODS = 500
MANY = 10_000  #: devices


class Ears:
    """Hears of devices and remembers that it did."""

    def __init__(self, host: Host | None = None) -> None:
        self.heard = asyncio.Event()
        self._host = host

    async def devices_listed(self, resource: str, devices: tuple[Device, ...], *, preferred_allocation: bool) -> None:
        """They may be used from now on."""
        del preferred_allocation
        if self._host is not None:
            self._host.update_devices(resource, devices)
        self.heard.set()

    async def plugin_stopped(self, resource: str) -> None:
        """Nothing to be done."""

    async def resource_removed(self, resource: str) -> None:
        """Nothing to be done."""


def figures() -> Iterator[Figure]:
    """Every budget of plugins and PodResources."""
    logging.getLogger("alignup.plugins").setLevel(logging.ERROR)  # plugins go all the time here
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        registering, asking, allocating = asyncio.run(_plugin(Path(place)))
        yield Figure("a plugin registers, to its first device in use", registering, 0.100, "8 devices")
        yield Figure("GetPreferredAllocation over the socket, p50", asking)
        yield Figure("Allocate over the socket, p50", allocating)
        listing, size = asyncio.run(_list(Path(place)))
        yield Figure(f"PodResources List with {PODS} pods", listing, 0.050, f"{size / 1000:.0f} kB")
    yield Figure(f"memory with {MANY:,} devices, in GB", _memory() / 1e9, 0.150, "printed as seconds")


async def _plugin(directory: Path) -> tuple[float, float, float]:
    """Registering to the first device in use; a question; an allocation."""
    registering = float("inf")
    ask = PreferenceRequest(uid="u", container="c", resource=GPU, available=("gpu-0", "gpu-1"), must_include=(), size=1)
    ears = Ears()
    async with DevicePluginManager(directory, ears) as exchange:
        for number in range(20):
            plugin = Plugin(
                GPU, "4@0,4@1", directory=directory, preference=Preference.LOWEST, endpoint=f"{number}.sock"
            )
            ears.heard.clear()
            start = time.perf_counter()
            async with plugin:
                await ears.heard.wait()
                await exchange.allocate(GPU, ("gpu-0",))
                registering = min(registering, time.perf_counter() - start)
        async with Plugin(GPU, "4@0,4@1", directory=directory, preference=Preference.LOWEST) as plugin:
            await plugin.wait_registered()
            asking = await _median(lambda: exchange.preferred(ask))
            allocating = await _median(lambda: exchange.allocate(GPU, ("gpu-0",)))
    return registering, asking, allocating


async def _median(call: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(200):
        start = time.perf_counter()
        await call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


async def _list(directory: Path) -> tuple[float, int]:
    """The least time for an answer to be there and read, and its size."""
    host, path = _full_host(), directory / "list.sock"
    limiter = RateLimiter(now=time.monotonic, burst=1e9)
    least, size = float("inf"), 0
    async with (
        serve_pod_resources(path, HostPodResources(lambda: host), limiter=limiter),
        rpc.channel(path) as line,
    ):
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = line.unary_unary("/v1.PodResourcesLister/List")
        for _ in range(20):
            start = time.perf_counter()
            raw = await ask(b"")
            told = wire.ListPodResourcesResponse.FromString(raw)
            least, size = min(least, time.perf_counter() - start), len(raw)
            assert len(told.pod_resources) == PODS
    return least, size


def _full_host() -> Host:
    """A host with as many pods, each with two CPUs and two devices of its own."""
    devices = tuple(Device(GPU, f"gpu-{number}", 1 << number % 8) for number in range(2 * PODS))
    settings = Settings(
        cpus=CpuSettings(policy="static", reservation=Quantity.parse("1")), max_pods=PODS, fit_check=False
    )
    host = Host(synthetic.parse(MACHINE), settings)
    host.update_devices(GPU, devices)
    amounts = {"cpu": Quantity.parse("2"), "memory": Quantity.parse("1Gi"), GPU: Quantity.parse("2")}
    for number in range(PODS):
        app = Container("app", Resources(requests=amounts, limits=amounts))
        decision = host.admit(Pod(uid=f"u{number}", name=f"pod-{number}", namespace="default", containers=(app,)))
        assert decision.admitted, decision.rejection
    return host


def _memory() -> int:
    """Bytes of a process that knows as many devices."""
    command = [sys.executable, "-m", "bench.bench_plugins"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603 - our own


async def _resident() -> int:
    """Be that process: ten plugins elsewhere, a host and all their devices here."""
    host = Host(synthetic.parse(MACHINE))
    ears = Ears(host)
    with tempfile.TemporaryDirectory(prefix="alignup-") as place:
        plugins = []
        async with DevicePluginManager(Path(place), ears) as exchange:
            for number in range(10):
                name = f"example.com/r{number}"
                command = ["-m", "alignup.testing.plugin", "--resource", name, "--dir", place]
                devices = ("--devices", f"{MANY // 10}@{number % 8}")
                plugins.append(
                    await asyncio.create_subprocess_exec(sys.executable, *command, *devices, stdout=subprocess.DEVNULL)
                )
            while sum(exchange.capacity().allocatable.values()) < MANY:
                ears.heard.clear()
                await ears.heard.wait()
            await exchange.settled()
            status = Path("/proc/self/status").read_text().splitlines()  # noqa: ASYNC240 - nobody waits
            for plugin in plugins:
                plugin.kill()
                await plugin.wait()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


if __name__ == "__main__":
    print(asyncio.run(_resident()))
