"""A kubelet for tests of the observer: a host that admits pods, and everything a real one shows of them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignup import atomic_files
from alignup.align import bits
from alignup.align.errors import PluginError
from alignup.align.host import Host
from alignup.align.machine import Device, Machine
from alignup.align.workload import Pod
from alignup.kubernetes import configuration
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.allocated_pods import ALLOCATED_PODS_FILE, AllocatedPod
from alignup.kubernetes.kubelet_files.ledger import export_ledger
from alignup.kubernetes.manifests.documents import to_json
from alignup.kubernetes.plugins.pod_resources import (
    ListedPod,
    ListedResources,
    PodResourcesClient,
)
from alignup.machines.synthetic import parse
from alignup.observe.observation import Sources
from alignup.placement.host_report import PodStage
from tests.align import hosts
from tests.kubernetes.kubelet_files.allocated_pods import dump_allocated_pods

if TYPE_CHECKING:
    from alignup.align.claims.resource_claims import DeviceId, Slice

GIB, GPU = hosts.GIB, hosts.GPU
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "cpuManagerPolicy": "static",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"cpu": "1", "memory": "64Mi"},
    "evictionHard": {"nodefs.available": "10%"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "64Mi"}}],
}
#: Two GPUs, one on each NUMA node.
DEVICES = (Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=2))


class SimulatedKubelet:
    """Two NUMA nodes of four CPUs, 16 GiB and a GPU, unless told otherwise; CPU 0 and 64 MiB are reserved."""

    def __init__(
        self,
        *,
        shape: str = "pack:2 numa:1 core:4 pu:1",
        devices: tuple[Device, ...] = DEVICES,
        machine: Machine | None = None,
        **changes: Any,
    ) -> None:
        self.machine = machine or parse(shape, memory=16 * GIB)
        self.text = to_json({**CONFIGURATION, **changes}).encode()
        self.configuration = configuration.read(self.text)
        settings = configuration.host_settings(self.configuration, self.machine)
        self.host = Host(self.machine.with_reported(devices), settings)
        self.pods: dict[str, KnownPod] = {}  #: as the API server has them
        self.allocated: dict[str, AllocatedPod] = {}
        self.claims: dict[str, dict[str, tuple[DeviceId, ...]]] = {}  #: uid → claim → devices, of the first container
        self.slices: tuple[Slice, ...] | None = None
        self.addresses: dict[str, str] = {}  #: of PCI devices; see ``Sources``
        self.ended: set[str] = set()  #: uids that the kubelet no longer lists, but has not removed from its files

    def admit(self, pod: Pod) -> None:
        """Admit a pod; entries of ended pods are removed first."""
        for uid in self.ended:
            self.host.release(uid)
            self.allocated.pop(uid, None)
        self.ended.clear()
        decision = self.host.admit(pod)
        assert decision.admitted, decision.rejection
        self.allocated[pod.uid] = AllocatedPod(
            {container.name: container.resources for container in pod.all_containers}
        )
        self.pods[pod.uid] = KnownPod(pod=pod, stage=PodStage.RUNNING, finished=False)

    def end(self, uid: str) -> None:
        """End a pod: PodResources and the API server forget it at once, the files at the next admission."""
        self.ended.add(uid)
        del self.pods[uid]

    @property
    def files(self):
        return replace(export_ledger(self.host), gaps=())

    @property
    def listed(self) -> tuple[ListedPod, ...]:
        ledger = self.host.ledger
        pods = []
        for uid, admitted in ledger.pods.items():
            pod = admitted.pod
            running = [
                container.name for container in (*pod.init, *pod.containers) if container.name not in pod.ordinary_init
            ]
            containers = {
                name: ListedResources(
                    ledger.cpus.holds(uid, name) or 0,
                    ledger.memory.blocks(uid, name) or (),
                    tuple(self._devices(uid, name)),
                    self.claims.get(uid, {}) if name == running[0] else {},
                )
                for name in running
            }
            if uid not in self.ended:
                pods.append(ListedPod(namespace=pod.namespace, name=pod.name, containers=containers))
        return tuple(pods)

    def _devices(self, uid, container):
        for resource, ids in self.host.ledger.devices.holds(uid, container).items():
            inventory = self.host.ledger.devices.inventories[resource]
            yield from (inventory.devices[index] for index in bits.members(inventory.find(ids)))

    @property
    def allocatable(self) -> ListedResources:
        ledger = self.host.ledger
        inventories = ledger.devices.inventories.values()
        return ListedResources(
            cpus=self.host.view.all_cpus & ~ledger.cpus.reserved,
            memory=ledger.memory.allocatable(),
            devices=tuple(device for inventory in inventories for device in inventory.devices if device.healthy),
        )

    def write(self, directory: Path) -> None:
        """Write the files as a kubelet does, ``allocated_pods_state`` last."""
        state_files.write_state_files(directory, self.files, gates=self.host.settings.gates)
        atomic_files.write(directory / ALLOCATED_PODS_FILE, dump_allocated_pods(self.allocated))

    def sources(self, **changes: Any) -> Sources:
        made = Sources(
            machine=self.machine,
            configuration=self.configuration,
            files=self.files,
            allocated=dict(self.allocated),
            listed=self.listed,
            allocatable=self.allocatable,
            pods=dict(self.pods),
            slices=self.slices,
            addresses=self.addresses,
            kubelet="1",
        )
        return replace(made, **changes)


class SimulatedPodResources(PodResourcesClient):
    """PodResources of a simulated kubelet."""

    def __init__(self, kubelet: SimulatedKubelet) -> None:
        self.kubelet = kubelet
        self.fails = False

    async def list(self) -> tuple[ListedPod, ...]:
        if self.fails:
            raise PluginError("no such socket")
        return self.kubelet.listed

    async def allocatable(self) -> ListedResources:
        return self.kubelet.allocatable
