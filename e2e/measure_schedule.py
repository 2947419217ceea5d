"""Measure how many pods a real kube-scheduler binds per second on thousands of fake nodes, without and with us.

    ALIGNUP_KUBERNETES_BIN=DIR python -m e2e.measure_schedule [--nodes 5000] [--pods 1000] [--offered 16 --offered 1]

Both schedulers consider all nodes (``percentageOfNodesToScore: 100``). The nodes have HostStates and no kubelets. With
several numbers of offered nodes, each is measured after the other. On a busy machine, the CPU time of each process for
one pod tells more than the rate.
"""
# ruff: noqa: ASYNC110, T201

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path

from alignup.cluster.host_states import HOST_STATES, host_state, to_object
from alignup.cluster.join import join
from alignup.kubeapi import NODES, PODS, ApiClient, EventType, Informer, find_access
from alignup.kubeapi.objects import ApiPod
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.definitions import define_host_states
from e2e.fake_nodes import ALLOCATABLE
from e2e.test_schedule import is_ready, pod, service
from tests.cluster.kubelets import SimulatedKubelet

FLAGS = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
ALL_NODES = {"percentageOfNodesToScore": 100}
WARM_UP = 50  #: pods before the measured ones


async def together(calls: Iterable[Awaitable[object]], *, width: int = 16) -> None:
    """Await many calls, a few at a time."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call

    await asyncio.gather(*(work() for _ in range(width)))


async def create_nodes(client: ApiClient, count: int) -> None:
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"allocatable": ALLOCATABLE, "capacity": ALLOCATABLE, "conditions": ready}
    state = to_object(host_state(join(SimulatedKubelet().sources())).replace(generation=1))
    names = [f"host-{number:04}" for number in range(count)]
    await together(client.create(NODES, {"metadata": {"name": name}, "status": status}) for name in names)
    await together(client.create(HOST_STATES, {"metadata": {"name": name}, **state}) for name in names)


class BoundPods:
    """When pods were bound."""

    def __init__(self, client: ApiClient) -> None:
        self.times: dict[str, float] = {}
        self.informer: Informer[ApiPod] = Informer(client, PODS)
        self.informer.subscribe(lambda change: self._note(change.object, change.type))

    def _note(self, found: ApiPod, kind: EventType) -> None:
        if found.spec.node_name and kind is not EventType.DELETED:
            self.times.setdefault(found.metadata.name, time.monotonic())


def cpu_milliseconds(process: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(client: ApiClient, bound: BoundPods, label: str, count: int, *, processes: dict[str, int]) -> str:
    """The pods per second that are bound, once the scheduler is warm, and the CPU time for one."""
    used: dict[str, float] = {}
    for part, size in ((f"{label}-warm", WARM_UP), (label, count)):
        used = {name: cpu_milliseconds(process) for name, process in processes.items()}
        names = [f"{part}-{number}" for number in range(size)]
        await together(client.create(PODS, pod(name, 2), namespace="default") for name in names)
        while not bound.times.keys() >= set(names):
            await asyncio.sleep(0.1)
    spent = [f"{name} {(cpu_milliseconds(own) - used[name]) / count:.1f} ms" for name, own in processes.items()]
    times = sorted(bound.times[name] for name in names)
    await together(client.delete(PODS.at(name, namespace="default"), grace_period=0) for name in bound.times)
    while bound.informer.objects:
        await asyncio.sleep(0.1)
    bound.times.clear()
    return f"{label}: {(len(times) - 1) / (times[-1] - times[0]):.0f} pods/s; CPU time for a pod: {', '.join(spent)}"


async def measure(directory: Path, nodes: int, pods: int, offered: list[int]) -> None:
    with ControlPlane(directory, nodes=("none",), flags=FLAGS) as plane:
        async with ApiClient(find_access(plane.kubeconfig(directory / "admin.json"))) as client:
            await define_host_states(client)
            await create_nodes(client, nodes)
            bound = BoundPods(client)
            following = asyncio.ensure_future(bound.informer.run())
            plane.start_scheduler(ALL_NODES)
            watched = {"scheduler": plane.process("kube-scheduler"), "API server": plane.process("kube-apiserver")}
            print(await rate(client, bound, "without", pods, processes=watched), flush=True)
            for number in offered:
                (port,) = free_ports(1)
                with service(plane, port, f"--offered={number}") as own:
                    while not is_ready(port):
                        await asyncio.sleep(0.2)
                    plane.start_scheduler(ALL_NODES | extenders(port))
                    watched |= {"scheduler": plane.process("kube-scheduler"), "alignup": own.pid}
                    label = f"with-{number}-offered"
                    print(await rate(client, bound, label, pods, processes=watched), flush=True)
            following.cancel()
            print((directory / "alignup.log").read_text().count("bound=False"), "bindings refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--offered", type=int, action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), given.nodes, given.pods, given.offered or [16]))


if __name__ == "__main__":
    main()
