"""Measure how many pods a real kube-scheduler binds per second on thousands of fake nodes, without and with us.

    ALIGNUP_KUBERNETES_BIN=DIR python -m e2e.measure_schedule [--nodes 5000] [--pods 1000] [--offered 16 --offered 1]

Both schedulers consider all nodes (``percentageOfNodesToScore: 100``). The nodes have HostStates and no kubelets, and
are in three zones. Pods without preferences are measured, and those of a ReplicaSet, which the scheduler spreads. With
several numbers of offered nodes, each is measured after the other, and after the default. On a busy machine, the CPU
time of each process for one pod tells more than the rate.
"""
# ruff: noqa: ASYNC110, T201

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any

from alignup.cluster.host_states import HOST_STATES, host_state, to_object
from alignup.cluster.join import join
from alignup.kubeapi import NODES, PODS, ApiClient, EventType, Informer, Resource, find_access
from alignup.kubeapi.objects import ApiPod, PartialObject
from e2e.control_plane import ControlPlane, extenders, free_ports
from e2e.definitions import define_host_states
from e2e.fake_nodes import ALLOCATABLE
from e2e.test_schedule import is_ready, pod, service
from tests.cluster.kubelets import SimulatedKubelet

FLAGS = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
REPLICA_SETS = Resource(type=PartialObject, group="apps", kind="ReplicaSet", plural="replicasets", namespaced=True)
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
    await together(client.create(NODES, {"metadata": _node(name), "status": status}) for name in names)
    await together(client.create(HOST_STATES, {"metadata": {"name": name}, **state}) for name in names)


def _node(name: str) -> dict[str, Any]:
    """The metadata of a node in one of three zones."""
    zone = "abc"[int(name[-4:]) % 3]
    return {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}}


async def create_replica_set(client: ApiClient) -> dict[str, Any]:
    """Create a ReplicaSet, and return the metadata of its pods; no controller creates them."""
    labels = {"app": "replica"}
    template = {"metadata": {"labels": labels}, "spec": pod("replica", 2)["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    made = await client.create(REPLICA_SETS, {"metadata": {"name": "replicas"}, "spec": spec}, namespace="default")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "replicas", "uid": made.metadata.uid}
    return {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}


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


class Measurement:
    """One control plane whose scheduler is measured; *pods* of each kind."""

    def __init__(self, client: ApiClient, *, pods: int, kinds: dict[str, dict[str, Any]]) -> None:
        self.bound = BoundPods(client)
        self._client, self._pods, self._kinds = client, pods, kinds

    async def report(self, label: str, processes: dict[str, int]) -> None:
        """Print the rate of each kind of pod."""
        for kind, metadata in self._kinds.items():
            print(f"{label}, {kind}: {await self._rate(metadata, processes)}", flush=True)

    async def _rate(self, metadata: dict[str, Any], processes: dict[str, int]) -> str:
        """The pods per second that are bound, once the scheduler is warm, and the CPU time for one."""
        client, bound = self._client, self.bound
        used: dict[str, float] = {}
        for part, size in (("warm", WARM_UP), ("measured", self._pods)):
            used = {name: cpu_milliseconds(process) for name, process in processes.items()}
            names = [f"{part}-{number}" for number in range(size)]
            documents = ({**pod(name, 2), "metadata": {"name": name, **metadata}} for name in names)
            await together(client.create(PODS, one, namespace="default") for one in documents)
            while not bound.times.keys() >= set(names):
                await asyncio.sleep(0.1)
        spent = {name: (cpu_milliseconds(own) - used[name]) / self._pods for name, own in processes.items()}
        times = sorted(bound.times[name] for name in names)
        await together(client.delete(PODS.at(name, namespace="default"), grace_period=0) for name in bound.times)
        while bound.informer.objects:
            await asyncio.sleep(0.1)
        bound.times.clear()
        each = ", ".join(f"{name} {own:.1f} ms" for name, own in spent.items())
        total = f"{sum(spent.values()):.1f} ms"
        return f"{(len(times) - 1) / (times[-1] - times[0]):.0f} pods/s; CPU time for a pod: {each}, sum {total}"


async def measure(directory: Path, nodes: int, pods: int, offered: Sequence[int]) -> None:
    with ControlPlane(directory, nodes=("none",), flags=FLAGS) as plane:
        async with ApiClient(find_access(plane.kubeconfig(directory / "admin.json"))) as client:
            await define_host_states(client)
            await create_nodes(client, nodes)
            kinds = {"no preferences": {}, "of a ReplicaSet": await create_replica_set(client)}
            measured = Measurement(client, pods=pods, kinds=kinds)
            following = asyncio.ensure_future(measured.bound.informer.run())
            plane.start_scheduler(ALL_NODES)
            watched = {"scheduler": plane.process("kube-scheduler"), "API server": plane.process("kube-apiserver")}
            await measured.report("without", watched)
            for label, options in (("with", ()), *((f"with {one} offered", (f"--offered={one}",)) for one in offered)):
                (port,) = free_ports(1)
                with service(plane, port, *options) as own:
                    while not is_ready(port):
                        await asyncio.sleep(0.2)
                    plane.start_scheduler(ALL_NODES | extenders(port))
                    await measured.report(
                        label, {**watched, "scheduler": plane.process("kube-scheduler"), "alignup": own.pid}
                    )
            following.cancel()
            print((directory / "alignup.log").read_text().count("bound=False"), "bindings refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--offered", type=int, action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), given.nodes, given.pods, given.offered))


if __name__ == "__main__":
    main()
