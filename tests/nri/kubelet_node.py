"""A kubelet with a static CPU manager and a runtime that applies what plugins say, for tests of assist mode."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from alignup import atomic_files
from alignup.align import bits
from alignup.align.machine import Machine
from alignup.align.memory.ledger import Block, MemoryTable, NodeMemory
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.state_files import (
    CPU_FILE,
    MEMORY_FILE,
    CpuState,
    MemoryState,
    dump_cpu_state,
    dump_memory_state,
)
from alignup.nri.assist import AssistPlugin
from alignup.nri.kubelet_pool import KubeletPoolReader
from alignup.nri.metrics import NriMetrics
from alignup.nri.ttrpc import Code, ConnectionClosedError, RpcError
from alignup.wire import nri_pb2 as wire

GIB = 1 << 30


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
    machine: Machine
    state: CpuState
    memory: MemoryState | None = None
    containers: dict[str, RunningContainer] = field(default_factory=dict)
    creating: set[str] = field(default_factory=set)  #: containers that the runtime does not update yet
    failing: set[str] = field(default_factory=set)
    synchronized: bool = True
    meanwhile: Callable[[], Awaitable[None]] | None = None  #: what happens while the next update is on its way
    sent: int = 0  #: unsolicited updates
    nri: str = "v0.12.1"

    @classmethod
    def started(cls, directory: Path, machine: Machine, *, policy: str = "static") -> "KubeletNode":
        default = bits.of(cpu.id for cpu in machine.cpus) if policy == "static" else 0
        node = cls(directory, machine, CpuState(policy=policy, default=default))
        node.restart_plugin()
        return node

    def write(self) -> None:
        atomic_files.write(self.directory / CPU_FILE, dump_cpu_state(self.state, gates=FeatureGates()))
        if self.memory is not None:
            atomic_files.write(self.directory / MEMORY_FILE, dump_memory_state(self.memory, gates=FeatureGates()))

    def reserve_memory(self, uid: str, name: str, node: int, size: int) -> None:
        """Reserve memory as the static memory manager does."""
        tables = {
            numa.id: NodeMemory(
                1 << numa.id, 0, {"memory": MemoryTable(numa.memory or 0, 0, numa.memory or 0, 0, numa.memory or 0)}
            )
            for numa in self.machine.nodes
        }
        tables[node] = NodeMemory(1 << node, 1, {"memory": tables[node].tables["memory"].take(size)})
        block = Block(1 << node, "memory", size)
        self.memory = MemoryState(policy="Static", machine_state=tables, entries={uid: {name: (block,)}})
        self.write()

    def restart_plugin(self) -> None:
        """Start a new process of the plugin, which knows nothing but what the runtime and the files tell."""
        self.write()
        self.plugin = AssistPlugin(KubeletPoolReader(self.directory, self.machine).read, NriMetrics())
        asyncio.run(self.plugin.configure(wire.ConfigureRequest(NRI_version=self.nri)))
        pods = {run.pod.id: run.pod for run in self.containers.values()}
        listed = []
        for run in self.containers.values():
            container = wire.Container()
            container.CopyFrom(run.container)
            container.linux.resources.cpu.cpus, container.linux.resources.cpu.mems = run.cpus, run.mems
            listed.append(container)
        self._apply(asyncio.run(self.plugin.synchronize(list(pods.values()), listed)))

    def give_away(self, uid: str, count: int) -> bool:
        """Take the highest shared CPUs for a pod, as in its admission; return whether there are enough."""
        cpus = bits.of(list(bits.members(self.state.default))[-count:])
        if cpus.bit_count() != count or cpus == self.state.default:
            return False
        entries = {**self.state.entries, uid: {"app": cpus}}
        self.state = replace(self.state, default=self.state.default & ~cpus, entries=entries)
        self.write()
        return True

    def take_back(self, uid: str) -> None:
        cpus = self.state.entries[uid]["app"]
        entries = {other: held for other, held in self.state.entries.items() if other != uid}
        self.state = replace(self.state, default=self.state.default | cpus, entries=entries)
        self.write()

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
        held = self.state.entries.get(uid, {}).get(name)
        cpus = bits.show(self.state.default if held is None else held)
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
            cpus = self.state.entries.get(run.pod.uid, {}).get(run.container.name, self.state.default)
            self.update(id_, cpus=bits.show(cpus))

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
