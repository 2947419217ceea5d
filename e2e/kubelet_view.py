"""The kubelet's view of what its pods hold, and how a HostState and a NodeResourceTopology differ from it.

Everything is counted here from the JSON of the kubelet's files and of PodResources, independently of the observer.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xxhash import xxh64_intdigest

from alignup.align import bits
from alignup.align.errors import AlignError
from alignup.align.host import Host
from alignup.documents.codec import convert, decode, encode
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.schema import DeviceGroupDocument
from alignup.kubernetes.api.host_states import host_state_reader
from alignup.placement.host_report import HostReport
from e2e.api import Document
from e2e.guest import Shape

Nodes = tuple[int, ...]
Holdings = dict[str, dict[str, Any]]  #: container → ``cpus``, ``memory``, ``devices``, as far as it has them

EXCLUSIVE = "with-exclusive-resources"
NATIVE = ("cpu", "memory")
_QUANTITY = re.compile(r"(\d+)(Ki|Mi|Gi|)")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True)
class KubeletView:
    """The files and answers of a kubelet at one moment, as ``KubernetesNode.snapshot`` returns them."""

    snapshot: Document

    @property
    def listed(self) -> dict[str, Holdings]:
        """What PodResources lists: ``namespace/name`` → containers that hold something."""
        return {
            f"{pod['namespace']}/{pod['name']}": {
                container["name"]: held for container in pod["containers"] if (held := _listed_container(container))
            }
            for pod in self.snapshot["podresources_list"]["pod_resources"]
        }

    def containers(self) -> list[dict[str, Any]]:
        """Return what each container of :attr:`listed` holds."""
        return [held for containers in self.listed.values() for held in containers.values()]

    @property
    def stored(self) -> dict[str, Holdings]:
        """What the state files have, also of dead pods: uid → containers."""
        files = self.snapshot["files"]
        pods: dict[str, Holdings] = {}
        for uid, containers in ((files["cpu_manager_state"] or {}).get("entries") or {}).items():
            for name, cpus in containers.items():
                _container(pods, uid, name)["cpus"] = tuple(bits.members(bits.parse(cpus)))
        for uid, containers in ((files["memory_manager_state"] or {}).get("entries") or {}).items():
            for name, blocks in containers.items():
                _container(pods, uid, name)["memory"] = sorted(
                    (tuple(sorted(block["numaAffinity"])), block["type"], block["size"])
                    for block in blocks
                    if block["size"]
                )
        devices = (files["kubelet_internal_checkpoint"] or {}).get("Data", {})
        for entry in devices.get("PodDeviceEntries") or ():
            ids = {id_ for listed in entry["DeviceIDs"].values() for id_ in listed}
            held = _container(pods, entry["PodUID"], entry["ContainerName"]).setdefault("devices", {})
            held[entry["ResourceName"]] = sorted(ids)
        return pods

    @property
    def cpus(self) -> set[int]:
        """All CPUs that can be allocated, free or not."""
        return {int(cpu) for cpu in self._allocatable["cpu_ids"]}

    @property
    def memory(self) -> dict[tuple[Nodes, str], int]:
        """All memory that can be allocated, free or not."""
        sizes: dict[tuple[Nodes, str], int] = {}
        for block in self._allocatable["memory"]:
            if size := int(block["size"]):
                sizes[_topology(block), block["memory_type"]] = size
        return sizes

    @property
    def devices(self) -> dict[tuple[str, str], Nodes]:
        """The NUMA nodes of every healthy device, by resource and id."""
        return {key: tuple(sorted(nodes)) for key, nodes in _devices(self._allocatable["devices"]).items()}

    def free_memory(self, node: int, type_: str, ended: Collection[str]) -> int | None:
        """Return the free bytes of a NUMA node, with those that *ended* pods still hold; ``None``: unknown."""
        states: Mapping[str, Any] = (self.snapshot["files"]["memory_manager_state"] or {}).get("machineState") or {}
        table = states.get(str(node), {}).get("memoryMap", {}).get(type_)
        if table is None:
            return None
        freed = 0
        for uid in ended:
            for container in self.stored[uid].values():
                for nodes, held, size in container.get("memory", ()):
                    if held == type_ and node in nodes:
                        if len(nodes) > 1:
                            return None
                        freed += size
        return int(table["free"]) + freed

    @property
    def _allocatable(self) -> Document:
        response: Document = self.snapshot["podresources_allocatable"]
        return response


def host_state_differences(state: Document, kubelet: KubeletView, version: str) -> list[str]:
    """Return how a HostState differs from what its kubelet of this *version* says."""
    if state.get("ledger") is None:
        return [f"the ledger is unknown: {state.get('problems')}"]
    differences = [f"problem: {problem}" for problem in state.get("problems", ())]
    pods = {pod["uid"]: pod for pod in state["ledger"].get("pods", ())}
    names = {uid: _name(pod) for uid, pod in pods.items()}
    listed, stored = kubelet.listed, kubelet.stored
    if sorted(names.values()) != sorted(listed):
        differences.append(f"pods {sorted(names.values())} are published, but the kubelet lists {sorted(listed)}")
    for uid, pod in pods.items():
        published = _published_containers(pod)
        if published != stored.get(uid, {}):
            differences.append(f"{names[uid]} holds {published}, but {stored.get(uid)} in the files")
        shown = {name: held for name, held in published.items() if name in listed.get(names[uid], {})}
        if shown != listed.get(names[uid]):
            differences.append(f"{names[uid]} holds {published}, but PodResources lists {listed.get(names[uid])}")
    try:
        report = host_state_reader().read(decode(encode(state), HostStateObject), kubelet_version=version)
    except AlignError as error:
        return [*differences, f"the HostState cannot be read: {error}"]
    return [*differences, *_allocatable_differences(state, report, kubelet)]


def _allocatable_differences(state: Document, report: HostReport, kubelet: KubeletView) -> Iterator[str]:
    host = Host(report.machine, report.settings, ledger=report.ledger)
    devices = {
        (group["resource"], id_): tuple(bits.members(bits.parse(group.get("nodes", ""))))
        for group in state["ledger"].get("devices", ())
        for id_ in convert(group, DeviceGroupDocument).device_ids
        if group.get("healthy", True)
    }
    if devices != kubelet.devices:
        yield f"devices {devices} are published, but the kubelet has {kubelet.devices}"
    if kubelet.cpus:
        cpus = set(bits.members(host.view.all_cpus & ~report.ledger.cpus.reserved))
        if cpus != kubelet.cpus:
            yield f"CPUs {cpus} are published, but the kubelet allocates {kubelet.cpus}"
        taken = {cpu for held in kubelet.containers() for cpu in held.get("cpus", ())}
        free = set(bits.members(report.ledger.cpus.shared & ~report.ledger.cpus.reserved))
        init = {cpu for pod in _init_cpus(state, kubelet) for cpu in pod}
        if free != kubelet.cpus - taken - init:
            yield f"CPUs {free} are free in the HostState, but {kubelet.cpus - taken - init} by PodResources"
    if kubelet.memory:
        memory = {
            (tuple(bits.members(block.nodes)), block.type): block.size
            for block in report.ledger.memory.allocatable()
            if block.size
        }
        if memory != kubelet.memory:
            yield f"memory {memory} is published, but the kubelet allocates {kubelet.memory}"
    ended = kubelet.stored.keys() - {pod["uid"] for pod in state["ledger"].get("pods", ())}
    for node, table in report.ledger.memory.nodes.items():
        for type_, amounts in table.tables.items():
            expected = kubelet.free_memory(node, type_, ended)
            if expected is not None and expected != amounts.free:
                yield f"{amounts.free} bytes of {type_} are free on NUMA node {node}, but {expected} in the file"


def _init_cpus(state: Document, kubelet: KubeletView) -> Iterator[tuple[int, ...]]:
    """Return the CPUs of init containers, which PodResources does not list."""
    for pod in state["ledger"].get("pods", ()):
        listed = kubelet.listed.get(_name(pod), {})
        for name, held in kubelet.stored.get(pod["uid"], {}).items():
            if name not in listed and "cpus" in held:
                yield held["cpus"]


def topology_differences(
    topology: Document, kubelet: KubeletView, shape: Shape, pods: Iterable[Document], state: Document
) -> list[str]:
    """Return how a NodeResourceTopology differs from a recount as its consumers read it; *pods* are all of the node."""
    attributes = {attribute["name"]: attribute["value"] for attribute in topology["attributes"]}
    zones = {zone["name"]: zone for zone in topology["zones"]}
    differences = []
    if zones.keys() != {f"node-{node}" for node in range(len(shape.nodes))}:
        return [f"the zones are {sorted(zones)}"]
    named = {resource["name"] for zone in zones.values() for resource in zone["resources"]}
    expected = scheduler_fingerprint(pods, named)
    if attributes["nodeTopologyPodsFingerprintMethod"] != EXCLUSIVE:
        differences.append(f"the method is {attributes['nodeTopologyPodsFingerprintMethod']}")
    if attributes["nodeTopologyPodsFingerprint"] != expected:
        differences.append(f"the fingerprint is {attributes['nodeTopologyPodsFingerprint']}, of a scheduler {expected}")
    ended = kubelet.stored.keys() - {pod["uid"] for pod in state["ledger"].get("pods", ())}
    for node, hardware in enumerate(shape.nodes):
        amounts = {resource["name"]: resource for resource in zones[f"node-{node}"]["resources"]}
        cpus = set(bits.members(bits.parse(hardware.cpus)))
        for name, counted in _recount(kubelet, node, cpus, ended).items():
            shown = {key: int(amounts.get(name, {}).get(key, -1)) for key in counted}
            if shown != counted:
                differences.append(f"{name} of zone node-{node} is {shown}, counted {counted}")
        if unknown := amounts.keys() - {*NATIVE} - {name for name, _ in kubelet.devices}:
            differences += [f"zone node-{node} has {name}" for name in unknown if not name.startswith("hugepages-")]
    return differences


def _recount(kubelet: KubeletView, node: int, cpus: set[int], ended: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the amounts of each resource of one zone."""
    containers = kubelet.containers()
    counted: dict[str, dict[str, int]] = {}
    if kubelet.cpus:
        taken = {cpu for held in containers for cpu in held.get("cpus", ())}
        allocatable = kubelet.cpus & cpus
        counted["cpu"] = {"capacity": len(cpus), "allocatable": len(allocatable), "available": len(allocatable - taken)}
    for (nodes, type_), size in kubelet.memory.items():
        free = kubelet.free_memory(node, type_, ended)
        if nodes == (node,) and free is not None:
            counted[type_] = {"allocatable": size, "available": free}
    used = {(resource, id_) for held in containers for resource, ids in held.get("devices", {}).items() for id_ in ids}
    for resource in {name for name, _ in kubelet.devices}:
        here = {key for key, nodes in kubelet.devices.items() if key[0] == resource and node in nodes}
        if here:
            counted[resource] = {"allocatable": len(here), "available": len(here - used)}
    return counted


def scheduler_fingerprint(pods: Iterable[Document], named: Collection[str]) -> str:
    """Return the fingerprint that a scheduler plugin computes of the running pods with exclusive resources."""
    names = sorted(
        xxh64_intdigest(pod["metadata"]["name"].encode(), xxh64_intdigest(pod["metadata"]["namespace"].encode()))
        for pod in pods
        if pod["status"]["phase"] == "Running" and _is_exclusive(pod, named)
    )
    return f"pfp0v001{xxh64_intdigest(b''.join(name.to_bytes(8, 'little') for name in names)):016x}"


def _is_exclusive(pod: Document, named: Collection[str]) -> bool:
    spec = pod["spec"]
    sidecars = [init for init in spec.get("initContainers", ()) if init.get("restartPolicy") == "Always"]
    guaranteed = pod["status"]["qosClass"] == "Guaranteed"
    for container in (*spec["containers"], *sidecars):
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            if name == "cpu":
                if guaranteed and amount.isdecimal() and int(amount):
                    return True
            elif name == "memory" or name.startswith("hugepages-"):
                if guaranteed and quantity(amount):
                    return True
            elif name in named and int(amount):
                return True
    return False


def quantity(text: str) -> int:
    """Return a whole quantity, such as ``64Mi``."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not expected here")
    return int(match[1]) * _UNITS[match[2]]


def _name(pod: Document) -> str:
    """Return the name of a pod of a HostState; while it is unknown, its uid."""
    return f"{pod['namespace']}/{pod['name']}" if "namespace" in pod else str(pod["uid"])


def _published_containers(pod: Document) -> Holdings:
    holdings: dict[str, Holdings] = {}
    for name, cpus in pod.get("cpus", {}).get("containers", {}).items():
        _container(holdings, "", name)["cpus"] = tuple(bits.members(bits.parse(cpus)))
    for name, blocks in (pod.get("memory", {}).get("containers") or {}).items():
        _container(holdings, "", name)["memory"] = sorted(
            (tuple(bits.members(bits.parse(block["nodes"]))), block["type"], block["bytes"]) for block in blocks
        )
    for name, devices in pod.get("devices", {}).items():
        _container(holdings, "", name)["devices"] = {resource: sorted(ids) for resource, ids in devices.items()}
    return holdings.get("", {})


def _listed_container(container: Document) -> dict[str, Any]:
    holdings: dict[str, Any] = {}
    if container["cpu_ids"]:
        holdings["cpus"] = tuple(sorted(map(int, container["cpu_ids"])))
    if memory := sorted((_topology(block), block["memory_type"], int(block["size"])) for block in container["memory"]):
        holdings["memory"] = memory
    if devices := _devices(container["devices"]):
        by_resource: dict[str, list[str]] = {}
        for resource, id_ in sorted(devices):
            by_resource.setdefault(resource, []).append(id_)
        holdings["devices"] = by_resource
    return holdings


def _devices(listed: Iterable[Document]) -> dict[tuple[str, str], set[int]]:
    """Return the NUMA nodes of each device; PodResources lists a device near two of them twice."""
    nodes: dict[tuple[str, str], set[int]] = {}
    for device in listed:
        for id_ in device["device_ids"]:
            nodes.setdefault((device["resource_name"], id_), set()).update(_topology(device))
    return nodes


def _topology(resource: Document) -> Nodes:
    return tuple(sorted(int(node["ID"]) for node in resource.get("topology", {}).get("nodes", ())))


def _container(pods: dict[str, Holdings], uid: str, container: str) -> dict[str, Any]:
    return pods.setdefault(uid, {}).setdefault(container, {})
