"""A kubelet for tests: it admits, ends and preempts pods as a real one does, and shows what they hold as one does.

    kubelet = SimulatedKubelet(topologyManagerPolicy="restricted")
    decision = kubelet.admit(pod)       # a rejection is a decision, too
    kubelet.write(directory)            # the state files, as below /var/lib/kubelet
    kubelet.end(pod.uid)                # the files have the pod until the next admission

It runs in the test itself, without sockets: ``serve_pod_resources`` of ``alignup.kubernetes.plugins`` serves its host.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignup import atomic_files
from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.decision import Decision
from alignup.align.errors import StateError
from alignup.align.fit import insufficient_resources, is_critical, may_preempt, still_missing
from alignup.align.host import Host
from alignup.align.machine import Device, Machine
from alignup.align.workload import Pod
from alignup.align.workload.demand import fit_request
from alignup.documents.host_state import HostStateDocument
from alignup.documents.host_state.writer import ledger_document, machine_document, to_object
from alignup.kubernetes import configuration
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.kubernetes.api.known_pods import KnownPod
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.allocated_pods import ALLOCATED_PODS_FILE, AllocatedPod, dump_allocated_pods
from alignup.kubernetes.kubelet_files.ledger import export_ledger
from alignup.kubernetes.kubelet_files.state_files import KubeletFiles
from alignup.kubernetes.manifests.documents import to_json
from alignup.kubernetes.plugins.pod_resources import ListedPod, ListedResources, list_allocatable, list_pod
from alignup.machines.synthetic import parse
from alignup.placement.host_report import PodStage
from alignup.placement.steered import ANYWHERE, decide_steered, withdraw_markers

if TYPE_CHECKING:
    from alignup.align.claims.resource_claims import DeviceId

GPU = "example.com/gpu"
#: Two GPUs, one on each NUMA node.
DEVICES = (Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=2))
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


class PodAdmission:
    """How a kubelet admits pods to *host*, ends them, and preempts some for critical ones."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.ended: set[str] = set()  #: uids of pods that have ended, and whose resources are not released yet

    def admit(self, pod: Pod, markers: NodeSet = ANYWHERE) -> Decision:
        """Release what ended pods hold, and admit or reject *pod*.

        *markers* are the NUMA nodes whose markers ``alignup observe --steer`` has not withdrawn.
        """
        self.remove_ended()
        decision = decide_steered(self.host, pod, markers)
        if decision.rejection and decision.rejection.provider == "host" and is_critical(pod):
            decision = self._admit_critical(pod, markers) or decision
        if decision.admitted:
            self.host.apply(decision)
        else:
            self.host.leave_residue(decision)
        return decision

    def end(self, uid: str) -> None:
        """End a pod; its resources are released by the next admission, or by :meth:`remove_ended`."""
        self.ended.add(uid)

    def remove_ended(self) -> None:
        """Release what ended pods hold, as a kubelet does every few seconds."""
        for uid in self.ended:
            self.host.release(uid)
        self.ended.clear()

    def preempt(self, uid: str) -> None:
        """End a pod for a critical one."""
        self.end(uid)

    def numa_nodes(self, uid: str) -> NodeSet:
        """Return the NUMA nodes of the exclusive CPUs, the memory and the devices of a pod."""
        ledger = self.host.ledger
        cpus = ledger.cpus.owned(uid)
        nodes = bits.of(node for node, node_cpus in ledger.cpus.node_cpus.items() if cpus & node_cpus)
        for blocks in ledger.memory.held.get(uid, {}).values():
            nodes |= bits.union(block.nodes for block in blocks)
        for devices in ledger.devices.held.get(uid, {}).values():
            for resource, ids in devices.items():
                inventory = ledger.devices.inventories[resource]
                nodes |= bits.union(inventory.devices[inventory.indexes[id_]].nodes or 0 for id_ in ids)
        return nodes

    def _admit_critical(self, pod: Pod, markers: NodeSet) -> Decision | None:
        """Preempt pods, the last ones first, so that the host as a whole has room for a critical one.

        The kubelet has placed the critical pod before it preempts others, so the pod gets nothing of theirs.
        """
        allocatable = self.host.rules.allocatable
        aligning_host = copy(self.host)
        aligning_host.rules = replace(self.host.rules, allocatable=None)
        decision = decide_steered(aligning_host, pod, markers)
        if allocatable is None or not decision.admitted:
            return None
        ledger = withdraw_markers(self.host.ledger, markers)
        room = allocatable.with_devices(ledger.devices.allocatable())
        insufficient = insufficient_resources(fit_request(pod), usage=ledger.used, allocatable=room)
        victims: list[Pod] = []
        for entry in reversed(list(ledger.pods.values())):
            if not still_missing(insufficient, victims):
                break
            if may_preempt(pod, entry.pod):
                victims.append(entry.pod)
        if still_missing(insufficient, victims):
            return None
        for victim in victims:
            self.preempt(victim.uid)
        return decision


class SimulatedKubelet(PodAdmission):
    """A kubelet of a machine. *fields* replace fields of the KubeletConfiguration ``CONFIGURATION``.

    The machine has two NUMA nodes with four CPUs, 16 GiB and a GPU each, unless *shape* (a synthetic description), or
    *machine* and *devices* say otherwise. CPU 0 and 64 MiB are reserved.
    """

    def __init__(
        self,
        *,
        shape: str = "pack:2 numa:1 core:4 pu:1",
        devices: Iterable[Device] = DEVICES,
        machine: Machine | None = None,
        **fields: Any,  # noqa: ANN401 - JSON
    ) -> None:
        self.machine = machine or parse(shape, memory=16 << 30)
        self.text = to_json({**CONFIGURATION, **fields}).encode()  #: the file with its configuration
        self.configuration = configuration.read(self.text)
        settings = configuration.host_settings(self.configuration, self.machine)
        super().__init__(Host(self.machine.with_reported(tuple(devices)), settings))
        self.pods: dict[str, KnownPod] = {}  #: as the API server has them: without those that have ended
        self.claims: dict[str, dict[str, tuple[DeviceId, ...]]] = {}  #: uid → claim → devices, of the first container

    def admit(self, pod: Pod, markers: NodeSet = ANYWHERE) -> Decision:
        decision = super().admit(pod, markers)
        if decision.admitted:
            self.pods.setdefault(pod.uid, KnownPod(pod=pod, stage=PodStage.RUNNING, finished=False))
        return decision

    def run(self, pod: Pod, markers: NodeSet = ANYWHERE) -> None:
        """Admit a pod; ``StateError`` if it is rejected."""
        decision = self.admit(pod, markers)
        if decision.rejection:
            raise StateError(f"pod {pod.name} is rejected: {decision.rejection.message}")

    def end(self, uid: str) -> None:
        super().end(uid)
        del self.pods[uid]

    # What it shows

    @property
    def files(self) -> KubeletFiles:
        return replace(export_ledger(self.host), gaps=())

    @property
    def allocated(self) -> dict[str, AllocatedPod]:
        """The contents of ``allocated_pods_state``, by uid."""
        return {
            uid: AllocatedPod({container.name: container.resources for container in entry.pod.all_containers})
            for uid, entry in self.host.ledger.pods.items()
        }

    def write(self, directory: Path) -> None:
        """Write the state files as a kubelet does, ``allocated_pods_state`` last."""
        state_files.write_state_files(directory, self.files, gates=self.host.settings.gates)
        atomic_files.write(directory / ALLOCATED_PODS_FILE, dump_allocated_pods(self.allocated))

    @property
    def listed(self) -> tuple[ListedPod, ...]:
        """What PodResources lists: pods that have not ended."""
        running_pods = [entry.pod for uid, entry in self.host.ledger.pods.items() if uid not in self.ended]
        return tuple(self._with_claims(pod.uid, list_pod(self.host, pod)) for pod in running_pods)

    @property
    def allocatable(self) -> ListedResources:
        """What PodResources lists as allocatable."""
        return list_allocatable(self.host)

    @property
    def published_state(self) -> HostStateDocument:
        """What ``alignup observe`` publishes about this node, but for its generation."""
        return HostStateDocument(
            kubelet="1",
            machine=machine_document(self.host.machine),
            configuration=configuration.alignment_fields(self.configuration),
            ledger=ledger_document(self.host.ledger, self.host.machine),
        )

    def host_state(self, name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - of a HostStateDocument
        """Return the HostState of this node, with *fields* instead of the published ones."""
        state = self.published_state.replace(**{"generation": 1, **fields})
        kind = {"apiVersion": HOST_STATES.api_version, "kind": HOST_STATES.kind}
        return {**kind, "metadata": {"name": name}, **to_object(state)}

    def _with_claims(self, uid: str, entry: ListedPod) -> ListedPod:
        if uid not in self.claims:
            return entry
        name, resources = next(iter(entry.containers.items()))
        return replace(entry, containers={**entry.containers, name: replace(resources, claims=self.claims[uid])})
