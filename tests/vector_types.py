"""Machines and pods in the format of the conformance vectors."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.machine import CadvisorReport, Cpu, Distances, HugePages, KubeletView, Machine, NumaNode
from alignup.align.quantity import Quantity
from alignup.align.workload import Container, Pod, QoS, Resources


@lru_cache(maxsize=4096)
def list_of(nodes: NodeSet) -> list[int]:
    """Return a set of nodes as the vectors write it; not to be changed."""
    return list(bits.members(nodes))


quantity_of = lru_cache(maxsize=4096)(Quantity.parse)


def view_of(topology: Mapping[str, Any]) -> KubeletView:
    """Return the view that a ``topology`` of the CPU vectors describes, with the totals it states."""
    cpus = tuple(Cpu(*row) for row in sorted(topology["cpus"]))
    return KubeletView(
        cpus=cpus,
        num_cpus=len(cpus),
        num_cores=topology["num_cores"],
        num_sockets=topology["num_sockets"],
        nodes=tuple(NumaNode(node) for node in sorted({cpu.node for cpu in cpus if cpu.node is not None})),
    )


def machine_of(described: Mapping[str, Any]) -> Machine:
    """Return the machine of an end-to-end vector: cAdvisor's report and the hardware it implies."""
    nodes = sorted(described["topology"], key=lambda node: node["node_id"])
    cpus = tuple(cpu for node in nodes for core in node["cores"] for cpu in _threads(node["node_id"], core))
    rows = {node["node_id"]: node["distances"] for node in nodes if node["distances"]}
    return Machine(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        nodes=tuple(NumaNode(node["node_id"], node["memory"], hugepages_of(node["hugepages"])) for node in nodes),
        distances=Distances.of_rows(rows) if len(rows) == len(nodes) else None,
        report=CadvisorReport(cpus=cpus, num_cpus=described["num_cpus"], num_sockets=described["num_sockets"]),
    )


def hugepages_of(listed: Sequence[Mapping[str, int]]) -> tuple[HugePages, ...]:
    """Return the huge pages of a ``hugepages`` list in the end-to-end and memory vectors."""
    return tuple(HugePages(size=pages["page_size_kb"] * 1024, count=pages["num_pages"]) for pages in listed)


def _threads(node: int, core: Mapping[str, Any]) -> tuple[Cpu, ...]:
    """Return the CPUs of one core, identified by its lowest CPU, since core ids repeat on other sockets."""
    threads = core["threads"]
    return tuple(
        Cpu(id=thread, core=min(threads), socket=core["socket_id"], node=node, cache=core["uncore_cache_id"])
        for thread in threads
    )


def pod_of(pod: Mapping[str, Any]) -> Pod:
    """Return the pod that a ``pod`` of the CPU and memory vectors describes."""
    return Pod(
        name=pod["uid"],
        uid=pod["uid"],
        init=tuple(map(container_of, pod["init"])),
        containers=tuple(map(container_of, pod["containers"])),
        resources=resources_of(pod.get("pod_resources") or {}),
        recorded_qos=QoS(pod["qos"]),
    )


def container_of(container: Mapping[str, Any]) -> Container:
    return Container(container["name"], resources_of(container), restartable=container.get("restartable", False))


def resources_of(resources: Mapping[str, Any]) -> Resources:
    return Resources(requests=amounts_of(resources.get("requests")), limits=amounts_of(resources.get("limits")))


def amounts_of(texts: Mapping[str, str] | None) -> dict[str, Quantity]:
    return {name: quantity_of(text) for name, text in (texts or {}).items()}


def named(pod: Pod, name: str) -> Container:
    return next(container for container in pod.all_containers if container.name == name)
