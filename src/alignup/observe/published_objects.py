"""The objects that describe an observed host: HostState, and NodeResourceTopology as NFD and its consumers have it.

NodeResourceTopology (v1alpha2) has one zone for each NUMA node. Counts are exact where others approximate: a device
near several NUMA nodes counts in each of their zones, and is subtracted from each; memory of a container on several
NUMA nodes is subtracted where the kubelet subtracts it. A resource that no manager allocates by NUMA node is available
as a whole in its zone.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.host import Host
from alignup.align.settings import Policy, Scope
from alignup.align.workload.names import CPU, MEMORY
from alignup.documents.host_state import HostStateDocument
from alignup.documents.host_state.writer import ledger_document, machine_document
from alignup.kubernetes import configuration as kubelet_configuration
from alignup.kubernetes.api.pod_fingerprint import pod_fingerprint
from alignup.kubernetes.configuration import Configuration
from alignup.observe.observation import Observation, Sources

MAX_PROBLEMS = 20  #: of one host in its object


def host_state(observation: Observation, *, machine: dict[str, Any] | None = None) -> HostStateDocument:
    """Return the object without its metadata and generations; *machine* is the description of its machine, if known."""
    host = observation.host
    problems = [*observation.contradictions, *observation.gaps]
    more = len(problems) - MAX_PROBLEMS  # an object must stay small
    return HostStateDocument(
        kubelet=observation.kubelet,
        machine=machine or machine_document(host.machine),
        configuration=kubelet_configuration.alignment_fields(observation.configuration),
        sub_ids=dict(observation.sub_ids),
        ledger=ledger_document(host.ledger, host.machine),
        problems=[*problems[:MAX_PROBLEMS], f"and {more} more"] if more > 0 else problems,
    )


def unknown_host_state(sources: Sources | None, problem: str) -> HostStateDocument:
    """Return the object of a host whose ledger cannot be determined."""
    if sources is None:
        return HostStateDocument(problems=[problem])
    return HostStateDocument(
        kubelet=sources.kubelet,
        machine=machine_document(sources.machine),
        configuration=kubelet_configuration.alignment_fields(sources.configuration),
        sub_ids=dict(sources.sub_ids),
        problems=[problem],
    )


_POLICIES = {
    Policy.BEST_EFFORT: "BestEffort",
    Policy.RESTRICTED: "Restricted",
    Policy.SINGLE_NUMA_NODE: "SingleNUMANode",
}
_LEVELS = {Scope.CONTAINER: "ContainerLevel", Scope.POD: "PodLevel"}


class ResourceAmounts(NamedTuple):
    """A resource of one NUMA node, in base units."""

    resource: str
    capacity: int
    allocatable: int
    available: int


NumaAmounts = Mapping[int, Sequence[ResourceAmounts]]  #: by NUMA node


class FingerprintMethod(StrEnum):
    """Which pods the fingerprint is about; a scheduler plugin has to count the same ones."""

    EXCLUSIVE = "with-exclusive-resources"
    ALL = "all"


def node_topology(
    observation: Observation,
    amounts: NumaAmounts | None = None,
    *,
    method: FingerprintMethod = FingerprintMethod.EXCLUSIVE,
) -> dict[str, Any]:
    """Return the object without its metadata; *amounts* are the amounts of the host, if they are computed already."""
    host = observation.host
    topology = host.settings.topology
    level = f"{_POLICIES[topology.policy]}{_LEVELS[topology.scope]}" if topology.policy in _POLICIES else "None"
    pod_names = [
        (admitted_pod.pod.namespace, admitted_pod.pod.name)
        for uid, admitted_pod in host.ledger.pods.items()
        if method is FingerprintMethod.ALL or _has_exclusive_resources(host, uid)
    ]
    attributes = {
        **_policy_attributes(observation.configuration, max_nodes=topology.options.max_nodes),
        "nodeTopologyPodsFingerprint": pod_fingerprint(pod_names),
        "nodeTopologyPodsFingerprintMethod": str(method),
    }
    return {
        "topologyPolicies": [level],
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [_zone(host, node, resources) for node, resources in (amounts or numa_amounts(host)).items()],
    }


def numa_amounts(host: Host) -> NumaAmounts:
    """Return the resources of each NUMA node, by its id."""
    nodes = [node.id for node in host.view.nodes if node.id >= 0]
    return {node: [_cpus(host, node), *_memory(host, node), *_devices(host, node)] for node in nodes}


def _policy_attributes(configuration: Configuration, *, max_nodes: int) -> dict[str, str]:
    options = {
        "topologyManagerPolicyOptions": configuration.topology_manager_policy_options,
        "cpuManagerPolicyOptions": configuration.cpu_manager_policy_options,
    }
    return {
        "topologyManagerPolicy": configuration.topology_manager_policy,
        "topologyManagerScope": configuration.topology_manager_scope,
        "topologyManagerMaxNUMANodes": str(max_nodes),
        "cpuManagerPolicy": configuration.cpu_manager_policy,
        "memoryManagerPolicy": configuration.memory_manager_policy,
        **{
            name: ",".join(f"{key}={value}" for key, value in sorted(values.items()))
            for name, values in options.items()
            if values
        },
    }


def _has_exclusive_resources(host: Host, uid: str) -> bool:
    """Return whether PodResources, which omits ordinary init containers, lists a resource with a NUMA node."""
    ledger = host.ledger
    pod = ledger.pods[uid].pod
    if ledger.cpus.pod_held.get(uid) or ledger.memory.pod_held.get(uid):
        return True
    for container in pod.all_containers:
        if pod.is_ordinary_init(container.name):
            continue
        if ledger.cpus.holds(uid, container.name) or ledger.memory.blocks(uid, container.name):
            return True
        for resource, ids in ledger.devices.holds(uid, container.name).items():
            inventory = ledger.devices.inventories[resource]
            if any(inventory.devices[index].nodes for index in bits.members(inventory.find(ids))):
                return True
    return False


def _zone(host: Host, node: int, amounts: Sequence[ResourceAmounts]) -> dict[str, Any]:
    zone: dict[str, Any] = {"name": f"node-{node}", "type": "Node"}
    if (distances := host.machine.distances) is not None:
        others = [other.id for other in host.view.nodes if other.id in distances.ids]
        zone["costs"] = [{"name": f"node-{other}", "value": distances.between(node, other)} for other in others]
    zone["resources"] = [
        {
            "name": amount.resource,
            "capacity": str(amount.capacity),
            "allocatable": str(amount.allocatable),
            "available": str(amount.available),
        }
        for amount in amounts
    ]
    return zone


def _cpus(host: Host, node: int) -> ResourceAmounts:
    cpus = host.view.node_cpus.get(node, 0)
    ledger = host.ledger.cpus
    capacity = cpus.bit_count()
    if host.settings.cpus.policy != CpuPolicy.STATIC:
        return ResourceAmounts(CPU, capacity, capacity, capacity)
    allocatable = (cpus & ~ledger.reserved).bit_count()
    return ResourceAmounts(CPU, capacity, allocatable, ledger.free.get(node, 0))


def _memory(host: Host, node: int) -> Iterator[ResourceAmounts]:
    numa_node = next(numa_node for numa_node in host.view.nodes if numa_node.id == node)
    pages = {pages.resource: pages.bytes for pages in numa_node.hugepages}
    node_memory = host.ledger.memory.nodes.get(node)
    for name, capacity in ((MEMORY, numa_node.memory or 0), *sorted(pages.items())):
        if node_memory is None:
            unmanaged_size = capacity - sum(pages.values()) if name == MEMORY else capacity
            yield ResourceAmounts(name, capacity, unmanaged_size, unmanaged_size)
        elif name in node_memory.tables:
            table = node_memory.tables[name]
            yield ResourceAmounts(name, capacity, table.allocatable, table.free)


def _devices(host: Host, node: int) -> Iterator[ResourceAmounts]:
    ledger = host.ledger.devices
    for resource, inventory in sorted(ledger.inventories.items()):
        here = bits.of(index for index, device in enumerate(inventory.devices) if (device.nodes or 0) >> node & 1)
        if inventory.registered and here:
            healthy = (inventory.healthy & here).bit_count()
            available = (ledger.free[resource] & here).bit_count()
            yield ResourceAmounts(resource, here.bit_count(), healthy, available)
