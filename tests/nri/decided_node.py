"""A node in decide mode: its pods as the API server and PodResources have them, and a runtime that obeys the plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alignup.align import bits
from alignup.align.cpus.options import CpuSettings
from alignup.align.devices.fixed import FixedDeviceProvider
from alignup.align.host import Host, Settings
from alignup.align.machine import Device, Machine
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.align.workload import Pod
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.api.node_tables import KnownSlices
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources
from alignup.machines.synthetic import parse
from alignup.nri.decide import DecidePlugin
from alignup.nri.durable_host import DurableHost
from alignup.nri.metrics import NriMetrics
from alignup.nri.node_pods import NodePods
from alignup.placement.host_report import PodStage
from alignup.store.state_store import StateStore
from alignup.wire import nri_pb2 as wire
from tests.align.hosts import GIB, RESERVATION

Sets = tuple[str, str]  #: CPUs and memory nodes


def build_host(machine: Machine, policy: Policy, scope: Scope = Scope.CONTAINER, **settings: Any) -> Host:
    """Return an idle host of decide mode; CPU 0 and 64 MiB of node 0 are reserved."""
    made = Settings(
        topology=TopologySettings(policy=policy, scope=scope, limit_nodes=False),
        cpus=CpuSettings(policy="static", reservation=RESERVATION["cpu"]),
        memory_policy="Static",
        reserved_memory=(ReservedMemory(0, {"memory": RESERVATION["memory"]}),),
        reservation=RESERVATION,
        fit_check=False,
    )
    return Host(machine, replace(made, **settings), others=[FixedDeviceProvider(machine.kubelet_view().all_nodes)])


@dataclass
class RunContainer:
    pod: wire.PodSandbox
    container: wire.Container
    sets: Sets


@dataclass
class DecidedNode:
    """Two NUMA nodes of four CPUs and 16 GiB, unless *shape* says otherwise."""

    directory: Path
    policy: Policy = Policy.SINGLE_NUMA_NODE
    scope: Scope = Scope.CONTAINER
    shape: str = "pack:2 numa:1 core:4 pu:1"
    settings: dict[str, Any] = field(default_factory=dict)
    memory_policy: str | None = None
    version: str = "2.3.4"
    nri: str = "v0.12.2"
    pods: dict[str, KnownPod] | None = field(default_factory=dict)
    listed: list[ListedPod] = field(default_factory=list)
    slices: KnownSlices = field(default_factory=KnownSlices)
    lists: int = 0  #: calls of PodResources
    containers: dict[str, RunContainer] = field(default_factory=dict)  #: by id
    sandboxes: dict[str, wire.PodSandbox] = field(default_factory=dict)  #: by uid

    def __post_init__(self) -> None:
        self.machine = parse(self.shape, memory=16 * GIB)

    async def start(self) -> None:
        """Start a plugin, and connect it."""
        self.load()
        await self.connect()

    def load(self) -> None:
        """Start a plugin, which loads what an earlier one stored."""
        self.metrics = NriMetrics()
        host = build_host(self.machine, self.policy, self.scope, **self.settings)
        self.store = StateStore(self.directory)
        self.durable = DurableHost(host, self.store)
        self.durable.load()
        self.node_pods = NodePods(
            self.machine, pods=lambda: self.pods, slices=lambda: self.slices, list_resources=self._list
        )
        self.plugin = DecidePlugin(self.durable, self.node_pods, self.metrics, memory_policy=self.memory_policy)

    async def connect(self) -> None:
        request = wire.ConfigureRequest(
            runtime_name="containerd", runtime_version=self.version, NRI_version=self.nri, request_timeout=2000
        )
        await self.plugin.configure(request)
        await self.synchronize()

    async def synchronize(self) -> list[wire.ContainerUpdate]:
        for run in self.containers.values():
            run.container.linux.resources.cpu.cpus, run.container.linux.resources.cpu.mems = run.sets
        containers = [run.container for run in self.containers.values()]
        updates = list(await self.plugin.synchronize(list(self.sandboxes.values()), containers))
        self._apply(updates)
        return updates

    async def _list(self) -> tuple[ListedPod, ...]:
        self.lists += 1
        return tuple(self.listed)

    def bind(self, pod: Pod, *, stage: PodStage = PodStage.RUNNING) -> wire.PodSandbox:
        """Let the API server have *pod*, and return its sandbox."""
        if self.pods is not None:
            self.pods[pod.uid] = KnownPod(pod=replace(pod, annotations={}), stage=stage, finished=False)
        sandbox = wire.PodSandbox(id=f"s-{pod.uid}", uid=pod.uid, name=pod.name, namespace=pod.namespace)
        sandbox.annotations.update(pod.annotations)
        return sandbox

    def give(self, pod: Pod, container: str = "app", *, claims: Mapping[str, Any] | None = None, **nodes: int) -> None:
        """Let PodResources list devices of *pod*: each on the NUMA node of this number."""
        devices = tuple(Device("example.com/gpu", name, nodes=1 << node) for name, node in nodes.items())
        resources = ListedResources(devices=devices, claims=claims or {})
        self.listed.append(ListedPod(namespace=pod.namespace, name=pod.name, containers={container: resources}))

    async def run(self, pod: Pod) -> dict[str, wire.ContainerAdjustment]:
        """Run *pod* as a runtime does; return what the plugin changes about each container."""
        sandbox = self.bind(pod)
        await self.plugin.run_pod_sandbox(sandbox)
        self.sandboxes[pod.uid] = sandbox
        return {container.name: await self.create(sandbox, container.name) for container in pod.all_containers}

    def run_without_plugin(self, pod: Pod) -> None:
        """Run *pod* as a runtime does without plugins."""
        sandbox = self.sandboxes[pod.uid] = self.bind(pod)
        for spec in pod.all_containers:
            container = wire.Container(
                id=f"{pod.uid}-{spec.name}", pod_sandbox_id=sandbox.id, name=spec.name, state=wire.CONTAINER_RUNNING
            )
            self.containers[container.id] = RunContainer(sandbox, container, ("", ""))

    async def create(self, sandbox: wire.PodSandbox, name: str) -> wire.ContainerAdjustment:
        id_ = f"{sandbox.uid}-{name}"
        container = wire.Container(id=id_, pod_sandbox_id=sandbox.id, name=name, state=wire.CONTAINER_RUNNING)
        container.linux.resources.cpu.shares.value = 102
        response = await self.plugin.create_container(sandbox, container)
        cpu = response.adjust.linux.resources.cpu
        self.containers[id_] = RunContainer(sandbox, container, (cpu.cpus, cpu.mems))
        self._apply(response.update)
        await self.plugin.post_create_container(sandbox, container)
        return response.adjust

    async def stop(self, pod: Pod, *, deleted: bool = True) -> None:
        """Stop the containers of *pod* and its sandbox."""
        for id_, run in list(self.containers.items()):
            if run.pod.uid == pod.uid:
                del self.containers[id_]
                self._apply(await self.plugin.stop_container(run.pod, run.container))
        if deleted and self.pods is not None:
            del self.pods[pod.uid]
        await self.plugin.stop_pod_sandbox(self.sandboxes[pod.uid])

    async def remove(self, pod: Pod) -> None:
        await self.plugin.remove_pod_sandbox(self.sandboxes.pop(pod.uid))

    def _apply(self, updates: Any) -> None:
        for update in updates:
            run, cpu = self.containers[update.container_id], update.linux.resources.cpu
            run.sets = (cpu.cpus or run.sets[0], cpu.mems or run.sets[1])

    def shown(self) -> dict[str, Sets]:
        return {id_: run.sets for id_, run in sorted(self.containers.items())}

    def check_exclusive(self) -> None:
        """Check that no two containers of different pods overlap where one has exclusive CPUs."""
        held = self.durable.host.ledger.cpus.held
        for run in self.containers.values():
            exclusive = held.get(run.pod.uid, {}).get(run.container.name, 0)
            for other in self.containers.values():
                if exclusive and other.pod.uid != run.pod.uid:
                    assert not exclusive & bits.parse(other.sets[0]), (self.shown(), held)
