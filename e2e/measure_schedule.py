"""Measure how fast a real kube-scheduler binds pods on thousands of fake nodes, without and with Alignup.

    ALIGNUP_KUBERNETES_BIN=DIR python -m e2e.measure_schedule [--nodes 5000] [--pods 1000] [--offered 16 --offered 1]

Both schedulers consider all nodes (``percentageOfNodesToScore: 100``). The nodes have HostStates and no kubelets, and
are in three zones. Pods without preferences are measured, and those of a ReplicaSet, which the scheduler spreads. With
several numbers of offered nodes, each is measured after the other, and after the default. The gate comes last: its pods
are created behind the gate, and the scheduler is that without Alignup.

Many pods that are created at once give the rate, and pods that come one after the other the time from the request that
creates a pod until a watch shows it bound. On a busy machine, the CPU time of each process for one pod tells more than
the rate. The memory is the most that a process has had since its start.
"""

import argparse
import asyncio
import os
import re
import statistics
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any

from alignup.kubernetes.api import NODES, PODS, ApiClient, EventType, Informer, Resource, find_access
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.objects import ApiPod, PartialObject
from alignup.schedule.cluster_facts import GATE
from alignup.testing.simulated_kubelet import SimulatedKubelet
from e2e.control_plane import ControlPlane, extenders, missing
from e2e.definitions import define_host_states
from e2e.fake_nodes import ALLOCATABLE
from e2e.simulated_cluster import FLAGS, pod, running_service

REPLICA_SETS = Resource(type=PartialObject, group="apps", kind="ReplicaSet", plural="replicasets", namespaced=True)
ALL_NODES = {"percentageOfNodesToScore": 100}
WARM_UP = 50  #: pods before the measured ones
SINGLE = 200  #: pods that come one after the other


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
    kubelet = SimulatedKubelet()
    names = [f"host-{number:04}" for number in range(count)]
    await together(client.create(NODES, {"metadata": _node(name), "status": status}) for name in names)
    await together(client.create(HOST_STATES, kubelet.host_state(name)) for name in names)


def _node(name: str) -> dict[str, Any]:
    """Return the metadata of a node in one of three zones."""
    zone = "abc"[int(name[-4:]) % 3]
    return {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}}


async def create_replica_set(client: ApiClient) -> dict[str, Any]:
    """Create a ReplicaSet, and return the metadata of its pods; no controller creates them."""
    labels = {"app": "replica"}
    template = {"metadata": {"labels": labels}, "spec": pod("replica", 2)["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    document = {"metadata": {"name": "replicas"}, "spec": spec}
    replica_set = await client.create(REPLICA_SETS, document, namespace="default")
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "replicas", "uid": replica_set.metadata.uid}
    return {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}


class BoundPods:
    """When pods were bound."""

    def __init__(self, client: ApiClient) -> None:
        self.times: dict[str, float] = {}
        self._changed = asyncio.Event()
        self.informer: Informer[ApiPod] = Informer(client, PODS)
        self.informer.subscribe(lambda change: self._note(change.object, change.type))

    def _note(self, pod: ApiPod, kind: EventType) -> None:
        if pod.spec.node_name and kind is not EventType.DELETED:
            self.times.setdefault(pod.metadata.name, time.monotonic())
        self._changed.set()

    async def wait(self, names: Iterable[str]) -> None:
        """Wait until pods with all these names are bound."""
        awaited = set(names)
        while not self.times.keys() >= awaited:
            await self._next_change()

    async def wait_none(self) -> None:
        """Wait until there is no pod, and forget when they were bound."""
        while self.informer.objects:
            await self._next_change()
        self.times.clear()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def cpu_milliseconds(process: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(process: int) -> float:
    """Return the most memory that a process has had."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(match[1]) / 1024 if match else 0


class Measurement:
    """One control plane whose scheduler is measured; *pods* of each kind."""

    def __init__(self, client: ApiClient, *, pods: int, kinds: dict[str, dict[str, Any]]) -> None:
        self.bound = BoundPods(client)
        self._client, self._pods, self._kinds = client, pods, kinds
        self._gates: list[dict[str, str]] = []  #: of new pods

    async def report(self, label: str, processes: dict[str, int], *, gate: bool = False) -> None:
        """Print the rate and the latency of each kind of pod, and the memory of the processes."""
        self._gates = [{"name": GATE}] if gate else []
        for kind, metadata in self._kinds.items():
            await self._bind("warm", WARM_UP, metadata)
            print(f"{label}, {kind}: {await self._rate(metadata, processes)}", flush=True)
            print(f"{label}, {kind}: {await self._latency(metadata)}", flush=True)
            names = list(self.bound.times)
            await together(self._client.delete(PODS.at(name, namespace="default"), grace_period=0) for name in names)
            await self.bound.wait_none()
        each = ", ".join(f"{name} {peak_megabytes(process):.0f} MB" for name, process in processes.items())
        print(f"{label}: memory: {each}", flush=True)

    async def _bind(self, part: str, count: int, metadata: dict[str, Any]) -> list[float]:
        """Create pods at once, and return when each was bound."""
        names = [f"{part}-{number}" for number in range(count)]
        await together(self._create(name, metadata) for name in names)
        await self.bound.wait(names)
        return sorted(self.bound.times[name] for name in names)

    async def _create(self, name: str, metadata: dict[str, Any]) -> None:
        spec = {**pod(name, 2)["spec"], "schedulingGates": self._gates}
        await self._client.create(PODS, {"metadata": {"name": name, **metadata}, "spec": spec}, namespace="default")

    async def _rate(self, metadata: dict[str, Any], processes: dict[str, int]) -> str:
        """Return the pods per second that are bound, and the CPU time for one."""
        used = {name: cpu_milliseconds(process) for name, process in processes.items()}
        times = await self._bind("measured", self._pods, metadata)
        spent = {name: (cpu_milliseconds(process) - used[name]) / self._pods for name, process in processes.items()}
        each = ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in spent.items())
        total = f"{sum(spent.values()):.1f} ms"
        return f"{(len(times) - 1) / (times[-1] - times[0]):.0f} pods/s; CPU time for a pod: {each}, sum {total}"

    async def _latency(self, metadata: dict[str, Any]) -> str:
        """Return the time from the creation of a pod until it is bound, when pods come one after the other."""
        taken = []
        for name in (f"single-{number}" for number in range(SINGLE)):
            begun = time.monotonic()
            await self._create(name, metadata)
            await self.bound.wait([name])
            taken.append(1000 * (self.bound.times[name] - begun))
        median, high = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
        return f"one after the other: bound after {median:.0f} ms (median), {high:.0f} ms (99th percentile)"


async def measure(directory: Path, nodes: int, pods: int, offered: Sequence[int], *, gate_only: bool) -> None:
    with ControlPlane(directory, nodes=("none",), flags=FLAGS) as plane:
        async with ApiClient(find_access(plane.kubeconfig(directory / "admin.json"))) as client:
            await define_host_states(client)
            print(f"creating {nodes} nodes", flush=True)
            await create_nodes(client, nodes)
            kinds = {"no preferences": {}, "of a ReplicaSet": await create_replica_set(client)}
            measured = Measurement(client, pods=pods, kinds=kinds)
            following = asyncio.ensure_future(measured.bound.informer.run())
            plane.start_scheduler(ALL_NODES)
            names = {"scheduler": "kube-scheduler", "API server": "kube-apiserver", "etcd": "etcd"}
            watched = {name: plane.process(program) for name, program in names.items()}
            runs: dict[str, list[str]] = {}
            if not gate_only:
                await measured.report("without", watched)
                runs["extender"] = []
                runs |= {f"extender, {count} offered": [f"--offered={count}"] for count in offered}
            for label, options in {**runs, "gate": ["--gate"]}.items():
                async with running_service(plane, *options) as service:
                    plane.start_scheduler(ALL_NODES if label == "gate" else ALL_NODES | extenders(service.port))
                    watched |= {"scheduler": plane.process("kube-scheduler"), "alignup": service.process.pid}
                    await measured.report(label, watched, gate=label == "gate")
            following.cancel()
            print((directory / "alignup-schedule.log").read_text().count('"bound": false'), "bindings refused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--offered", type=int, action="append", default=[])
    parser.add_argument("--gate-only", action="store_true", help="measure nothing but the gate")
    options = parser.parse_args()
    if min(options.nodes, *options.offered, options.pods - 1) < 1:
        parser.error("a rate needs at least one node, one offered node and two pods")
    if problem := missing(("kube-apiserver", "kube-scheduler")):
        parser.error(problem)
    with tempfile.TemporaryDirectory() as directory:
        work = measure(Path(directory), options.nodes, options.pods, options.offered, gate_only=options.gate_only)
        asyncio.run(work)


if __name__ == "__main__":
    main()
