"""The observer as a process on a node of 128 CPUs and 8 GPUs, from its files: at rest, and while pods come and go."""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path

from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.plugins.pod_resources import serve_pod_resources
from alignup.machines.synthetic import parse
from alignup.testing.api_server import ApiServer
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.bench_admit import GIB, GPU, pod
from bench.harness import Figure, peak_megabytes, user_environment
from tests.discover import kernel
from tests.observe import api_objects

HOST = "host-a"
RUNNING = 40  #: pods
REST_SECONDS = 62.0  #: with one full check, which comes every minute
BUSY_SECONDS, POD_SECONDS = 30.0, 2.0
SETTLE_SECONDS = 3.0


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        rest, busy, megabytes = asyncio.run(Node(Path(scratch)).measure())
    yield Figure("observer at rest, share of a core", rest, 0.01, unit="cores")
    yield Figure(f"observer, a pod every {POD_SECONDS:g} s, share of a core", busy, 0.01, unit="cores")
    yield Figure("observer, most memory", megabytes, 76, unit="MB")


class Node:
    """A node with everything that an observer reads: files, PodResources and an API server."""

    def __init__(self, scratch: Path) -> None:
        machine = parse("pack:2 numa:1 core:32 pu:2", memory=256 * GIB, distances=(10, 21))
        self.root = kernel.describe(machine).write(scratch / "root")
        self.directory = scratch / "kubelet"
        (self.directory / "pod-resources").mkdir(parents=True)
        (self.directory / "device-plugins").mkdir()
        gpus = tuple(Device(GPU, f"gpu-{number}", nodes=1 << number // 4) for number in range(8))
        self.kubelet = SimulatedKubelet(machine=machine, devices=gpus)
        (self.directory / "config.yaml").write_bytes(self.kubelet.text)
        self.server = ApiServer()
        self.server.serve(api_objects.SERVED)
        self.server.put(api_objects.node(HOST))
        self.server.serve(api_objects.SLICES)
        self.server.put(api_objects.resource_slice(host=HOST, devices=8))
        for number in range(RUNNING):
            self.kubelet.run(self.show(new_pod(number, exclusive=number % 4 == 0), "Running"))
        self.kubelet.write(self.directory)

    def show(self, shown: Pod, phase: str) -> Pod:
        self.server.put(api_objects.api_pod(shown, HOST, phase=phase))
        return shown

    async def measure(self) -> tuple[float, float, float]:
        """Return the shares of a core at rest and with pods, and the most megabytes."""
        config, socket = self.directory.parent / "kubeconfig", self.directory / "pod-resources" / "kubelet.sock"
        async with self.server, serve_pod_resources(socket, lambda: self.kubelet.host):
            self.server.write_kubeconfig(config)
            arguments = ("observe", "--kubeconfig", config, "--node", HOST, "--no-configz", "--host-root", self.root)
            await (await self.start(*arguments, "--once")).wait()  # compiles its modules, as they are for a user
            process = await self.start(*arguments)
            try:
                await self.server.wait_watches(2)
                await asyncio.sleep(SETTLE_SECONDS)
                rest = await share_of_core(process.pid, asyncio.sleep(REST_SECONDS), REST_SECONDS)
                busy = await share_of_core(process.pid, self.run_pods(), BUSY_SECONDS)
                most = peak_megabytes(process.pid)
            finally:
                process.terminate()
                await process.wait()
        return rest, busy, most

    async def start(self, *arguments: str | Path) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "alignup", *map(str, arguments), "--kubelet-dir", str(self.directory))
        return await asyncio.create_subprocess_exec(*command, env=user_environment(), stderr=asyncio.subprocess.DEVNULL)

    async def run_pods(self) -> None:
        """Run a pod for each interval; like a kubelet, write the files and the status step by step."""
        generations = {document["generation"] for document in self.server.objects(HOST_STATES.plural)}
        for number in range(int(BUSY_SECONDS / POD_SECONDS)):
            arrived = new_pod(RUNNING + number, exclusive=True)
            self.show(arrived, "Pending")
            self.kubelet.run(arrived)
            self.kubelet.write(self.directory)
            await asyncio.sleep(POD_SECONDS / 4)
            self.show(arrived, "Pending")
            await asyncio.sleep(POD_SECONDS / 4)
            self.show(arrived, "Running")
            await asyncio.sleep(POD_SECONDS / 4)
            self.show(arrived, "Succeeded")
            self.kubelet.end(arrived.uid)
            self.server.remove("pods", arrived.name)
            await asyncio.sleep(POD_SECONDS / 4)
        (state,) = self.server.objects(HOST_STATES.plural)
        assert state["generation"] - max(generations) >= BUSY_SECONDS / POD_SECONDS / 2


def new_pod(number: int, *, exclusive: bool) -> Pod:
    made = pod(f"pod-{number}", cpus=2 if exclusive else 0.1, memory="2Gi" if exclusive else "100Mi", gpus=0)
    return replace(made, uid=f"{number:08x}-0000-4000-8000-000000000000")


async def share_of_core(pid: int, work: Awaitable[None], seconds: float) -> float:
    """Return the share of a core that a process needs during *work*, which takes *seconds*."""
    before = cpu_seconds(pid)
    await work
    return (cpu_seconds(pid) - before) / seconds


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text("ascii").split()[0]) for thread in threads) / 1e9
