"""A simulated kubelet beside a runtime that applies what plugins say, for tests of assist mode."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.machine import Machine
from alignup.align.workload import Pod
from alignup.nri.assist import AssistPlugin
from alignup.nri.kubelet_pool import KubeletPoolReader
from alignup.nri.metrics import NriMetrics
from alignup.nri.ttrpc import Code, ConnectionClosedError, RpcError
from alignup.testing.simulated_kubelet import CONFIGURATION, SimulatedKubelet
from alignup.wire import nri_pb2 as wire
from tests.strategies_pods import guaranteed

GIB = 1 << 30
#: Fields of a KubeletConfiguration.
STATIC_MEMORY = {"memoryManagerPolicy": "Static", "reservedMemory": CONFIGURATION["reservedMemory"]}


def resources(*, cpus: str = "", milli: int = 0, memory: int = 0) -> wire.LinuxResources:
    """Return resources as runtimes send them: with 0 for what is not set."""
    return wire.LinuxResources(
        cpu=wire.LinuxCPU(cpus=cpus, shares=wire.OptionalUInt64(value=milli * 1024 // 1000)),
        memory=wire.LinuxMemory(limit=wire.OptionalInt64(value=memory)),
    )


@dataclass
class RunningContainer:
    pod: wire.PodSandbox
    container: wire.Container
    cpus: str  #: that its processes may use; empty: all
    mems: str = ""


@dataclass
class KubeletNode:
    """A node; ``failing`` are containers that the runtime fails to update, ``synchronized`` whether it is connected."""

    directory: Path
    kubelet: SimulatedKubelet
    containers: dict[str, RunningContainer] = field(default_factory=dict)
    creating: set[str] = field(default_factory=set)  #: containers that the runtime does not update yet
    failing: set[str] = field(default_factory=set)
    synchronized: bool = True
    meanwhile: Callable[[], Awaitable[None]] | None = None  #: what happens while the next update is on its way
    sent: int = 0  #: unsolicited updates
    nri: str = "v0.12.1"

    @classmethod
    def started(cls, directory: Path, machine: Machine, **fields: Any) -> "KubeletNode":
        """Start a kubelet with a static CPU manager only, unless *fields* say otherwise; it keeps CPU 0 shared."""
        fields = {"topologyManagerPolicy": "none", "memoryManagerPolicy": "None", "reservedMemory": None} | fields
        node = cls(directory, SimulatedKubelet(machine=machine, devices=(), **fields))
        node.kubelet.write(directory)
        node.restart_plugin()
        return node

    @property
    def exclusive(self) -> Mapping[str, Mapping[str, CpuSet]]:
        """Pod uid → container → its exclusive CPUs."""
        return self.kubelet.host.ledger.cpus.held

    def cpus_of(self, uid: str, container: str) -> str:
        """Return the CPUs that the kubelet sets for a container."""
        return bits.show(self.exclusive.get(uid, {}).get(container, self.kubelet.host.ledger.cpus.shared))

    def restart_plugin(self) -> None:
        """Start a new process of the plugin, which knows nothing but what the runtime and the files tell."""
        self.plugin = AssistPlugin(KubeletPoolReader(self.directory, self.kubelet.machine).read, NriMetrics())
        asyncio.run(self.plugin.configure(wire.ConfigureRequest(NRI_version=self.nri)))
        pods = {run.pod.id: run.pod for run in self.containers.values()}
        listed = []
        for run in self.containers.values():
            container = wire.Container()
            container.CopyFrom(run.container)
            container.linux.resources.cpu.cpus, container.linux.resources.cpu.mems = run.cpus, run.mems
            listed.append(container)
        self._apply(asyncio.run(self.plugin.synchronize(list(pods.values()), listed)))

    def admit(self, uid: str, cpus: int | str, memory: str = "1Mi") -> bool:
        """Let the kubelet admit a Guaranteed pod; return whether it does."""
        amounts = {"cpu": str(cpus), "memory": memory}
        decision = self.kubelet.admit(Pod(name=uid, uid=uid, containers=(guaranteed("app", amounts),)))
        self.kubelet.write(self.directory)
        return decision.admitted

    def end(self, uid: str) -> None:
        self.kubelet.end(uid)
        self.kubelet.remove_ended()
        self.kubelet.write(self.directory)

    def create(self, uid: str, name: str = "app", **amounts: int) -> str:
        """Create a container with the CPUs that the kubelet says, and return its id."""
        id_ = asyncio.run(self.begin(uid, name, **amounts))
        self.finish(id_)
        return id_

    def finish(self, id_: str) -> None:
        """End the creation of a container."""
        self.creating.remove(id_)
        run = self.containers[id_]
        asyncio.run(self.plugin.post_create_container(run.pod, run.container))

    async def begin(self, uid: str, name: str = "app", *, milli: int = 0, memory: int = 0) -> str:
        """Create a container that the runtime does not update before :meth:`finish`."""
        cpus = self.cpus_of(uid, name)
        pod = wire.PodSandbox(id=f"sandbox-{uid}", uid=uid, name=uid)
        container = wire.Container(id=f"{uid}-{name}", pod_sandbox_id=pod.id, name=name)
        container.linux.resources.CopyFrom(resources(cpus=cpus, milli=milli, memory=memory))
        self.creating.add(container.id)
        answer = await self.plugin.create_container(pod, container)
        cpu = answer.adjust.linux.resources.cpu
        self.containers[container.id] = RunningContainer(pod, container, cpu.cpus or cpus, cpu.mems)
        self._apply(answer.update)
        return container.id

    def update(self, id_: str, *, cpus: str = "", milli: int = 0, memory: int = 0) -> None:
        run = self.containers[id_]
        wanted = resources(cpus=cpus, milli=milli, memory=memory)
        updates = asyncio.run(self.plugin.update_container(run.pod, run.container, wanted))
        run.cpus = cpus or run.cpus
        if milli:
            run.container.linux.resources.cpu.shares.value = wanted.cpu.shares.value
        self._apply(updates)

    def reconcile(self) -> None:
        """Send every container its CPUs, as the kubelet's loop does after a change of the pool."""
        for id_, run in list(self.containers.items()):
            self.update(id_, cpus=self.cpus_of(run.pod.uid, run.container.name))

    def stop(self, id_: str) -> None:
        run = self.containers.pop(id_)
        self._apply(asyncio.run(self.plugin.stop_container(run.pod, run.container)))
        asyncio.run(self.plugin.remove_container(run.pod, run.container))

    def check_pool(self) -> None:
        """Let the plugin look at the pool, as it does every second."""
        asyncio.run(self.plugin.rebalance(self))  # type: ignore[arg-type] # it stands in for the connection

    async def update_containers(self, updates: Iterable[wire.ContainerUpdate]) -> list[wire.ContainerUpdate]:
        if not self.synchronized:
            raise ConnectionClosedError
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        updates = list(updates)
        self.sent += len(updates)
        self._apply(update for update in updates if update.container_id not in self.failing)
        if any(update.container_id in self.failing for update in updates):
            raise RpcError(Code.UNKNOWN, "NRI update of some containers failed")
        return []

    def _apply(self, updates: Iterable[wire.ContainerUpdate]) -> None:
        for update in updates:
            if update.container_id not in self.creating and update.container_id in self.containers:
                run, cpu = self.containers[update.container_id], update.linux.resources.cpu
                run.cpus, run.mems = cpu.cpus or run.cpus, cpu.mems or run.mems

    def shown(self) -> dict[str, str]:
        return {id_: run.cpus for id_, run in sorted(self.containers.items())}
