"""The known facts of a recorded machine, and the comparison with a discovered one.

``NAME.json`` has the hardware, ``NAME.kubelet.json`` the kubelet's view. Groups of CPUs are compared as partitions,
since their numbers are arbitrary; where several results are valid, any of ``accept`` matches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from alignup.align import bits
from alignup.align.machine import CadvisorNode, Cpu, HugePages, Machine, NumaNode, PciDevice
from alignup.machines.cadvisor import MachineInfo

Facts = Mapping[str, Any]
Partition = frozenset[frozenset[int]]


@dataclass
class Verdict:
    """The result for one machine."""

    name: str
    view: str
    differences: list[str] = field(default_factory=list)

    def line(self) -> str:
        return f"{self.name:<32}{self.view:<10}{'passed' if not self.differences else 'FAILED'}"


VERDICTS = pytest.StashKey[list[Verdict]]()


def hardware(machine: Machine, facts: Facts) -> Iterator[str]:
    """Every difference between *machine* and *facts*."""
    yield from _same("online CPUs", sorted(cpu.id for cpu in machine.cpus), facts["cpus"]["online"])
    yield from _same("offline CPUs", list(bits.members(machine.offline)), facts["cpus"]["offline_with_dir"])
    for kind, key in _KINDS.items():
        yield from _same_partition(kind, _partition(machine.cpus, key), facts["partitions"][kind])
    lost = sorted(cpu.id for cpu in machine.cpus if cpu.node is None)
    yield from _same("CPUs without a node", lost if machine.nodes else None, facts["cpus_without_node"])
    yield from _same("NUMA nodes", [_node(machine, node) for node in machine.nodes], _nodes(facts["numa_nodes"]))
    with_cpus = {cpu.node for cpu in machine.cpus}
    bare = {node.id for node in machine.nodes if node.id not in with_cpus}
    yield from _same("nodes of memory only", set(facts["memory_only_nodes"]) - bare, set())
    empty = {node.id for node in machine.nodes if node.memory == 0}
    yield from _same("nodes without memory", set(facts["memoryless_nodes"]) - empty, set())
    yield from _same("distances", _distances(machine), _matrix(facts["distances"]))
    yield from _same("huge pages in all", _pages(machine.hugepages), _counts(facts["hugepages_global"]))
    memory = None if machine.memory is None else machine.memory // 1024
    yield from _same("memory in all", memory, facts["meminfo_total_kib"])
    devices = {device.address: _device(device) for device in machine.pci}
    wanted = {device["addr"]: _wanted_device(device) for device in facts["pci"] or ()}
    yield from _same("addresses of PCI devices", sorted(devices), sorted(wanted))
    for address in sorted(devices.keys() & wanted.keys()):
        yield from _same(f"PCI device {address}", devices[address], wanted[address])
    if any(_unknown(facts)) and not machine.gaps:
        yield "something is unknown, but the machine lists no gaps"


def kubelet(machine: Machine, facts: Facts) -> Iterator[str]:
    """Every difference between the kubelet's view of *machine* and *facts*."""
    view = machine.kubelet_view()
    assert machine.report is not None
    reported, wanted_nodes = machine.report.nodes or (), facts["nodes"] or ()
    wanted_cpus = facts["cpus"] or {}
    seen = {str(cpu.id): [cpu.socket, cpu.node, cpu.core, cpu.cache] for cpu in view.cpus}
    yield from _same("numbers of CPUs", sorted(seen, key=int), sorted(wanted_cpus, key=int))
    for cpu in seen.keys() & wanted_cpus.keys():
        yield from _same(f"socket, node, core, cache of CPU {cpu}", seen[cpu], wanted_cpus[cpu])
    counted = {name: getattr(view, attribute) for name, attribute in _COUNTS.items()}
    yield from _same("counts", counted, {name: facts[name] for name in _COUNTS})
    yield from _same("order of nodes", [node.id for node in reported], [node["id"] for node in wanted_nodes])
    for node, wanted in zip(reported, wanted_nodes, strict=False):
        yield from _same(
            f"NUMA node {node.id}", _reported_facts(node), {name: wanted[name] for name in _REPORTED_FACTS}
        )
    memory = machine.memory or 0
    yield from _same("memory in all", memory, facts["memory_capacity"])
    in_kib = sorted((pages.size // 1024, pages.count) for pages in machine.hugepages)
    wanted_pages = sorted((pages["page_size"], pages["num_pages"]) for pages in facts["hugepages"] or ())
    yield from _same("huge pages in all", in_kib, wanted_pages)
    yield from _same("CPU manager's error", view.discovery_error, facts["discover_error"])
    if closest := (facts.get("topologymanager") or {}).get("prefer-closest-numa-nodes"):
        rejected = "cannot discover NUMA topology" in closest
        yield from _same("distances are missing", view.distances is None, rejected)


def cores(info: MachineInfo, facts: Facts) -> Iterator[str]:
    """Every difference between cAdvisor's cores of a machine and *facts*.

    Only recordings of cAdvisor itself have them.
    """
    for node, wanted in zip(info.topology or (), facts["nodes"], strict=True):
        reported = [
            (core.core_id, core.socket_id, core.thread_ids, [cache.id for cache in core.uncore_caches or ()])
            for core in node.cores or ()
        ]
        listed = [
            (core["core_id"], core["socket"], core["threads"], core.get("uncore", [])) for core in wanted["cores"]
        ]
        yield from _same(f"cores of NUMA node {node.node_id}", reported, listed)


_KINDS: dict[str, Callable[[Cpu], int | None]] = {
    "socket": lambda cpu: cpu.socket,
    "core": lambda cpu: cpu.core,
    "numa": lambda cpu: cpu.node,
    "l3": lambda cpu: cpu.cache,
}
_COUNTS = {
    "num_cpus": "num_cpus",
    "num_cores": "num_cores",
    "num_sockets": "num_sockets",
    "num_numa_nodes_with_cpus": "num_nodes",
    "num_uncore_caches": "num_caches",
}
_REPORTED_FACTS = ("memory_bytes", "hugepages", "distances")


def _same(kind: str, actual: object, wanted: object) -> Iterator[str]:
    if actual != wanted:
        yield f"{kind}: found {str(actual)[:600]}, expected {str(wanted)[:600]}"


def _partition(cpus: Sequence[Cpu], key: Callable[[Cpu], int | None]) -> Partition | None:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        number = key(cpu)
        if number is not None:
            groups.setdefault(number, set()).add(cpu.id)
    return frozenset(map(frozenset, groups.values())) or None


def _same_partition(kind: str, actual: Partition | None, facts: Facts) -> Iterator[str]:
    accepted = [facts["partition"], *facts.get("accept", ())]
    wanted = [each and frozenset(map(frozenset, each)) for each in accepted]
    if actual not in wanted:
        yield f"partition by {kind}: found {_shown(actual)}, expected {_shown(wanted[0])}"


def _shown(partition: Partition | None) -> str:
    return " | ".join(sorted(map(bits.show, map(bits.of, partition or ()))))[:600]


def _node(machine: Machine, node: NumaNode) -> tuple[object, ...]:
    cpus = sorted(cpu.id for cpu in machine.cpus if cpu.node == node.id)
    return node.id, cpus, None if node.memory is None else node.memory // 1024, _pages(node.hugepages)


def _nodes(facts: Sequence[Facts]) -> list[tuple[object, ...]]:
    """The expected nodes; a CPU in several of them belongs to the lowest."""
    taken: set[int] = set()
    wanted: list[tuple[object, ...]] = []
    for node in sorted(facts, key=lambda node: node["id"]):
        cpus = [cpu for cpu in node["cpus_online"] if cpu not in taken]
        taken.update(cpus)
        wanted.append((node["id"], cpus, node["memory_kib"], _counts(node["hugepages"])))
    return wanted


def _pages(pages: Sequence[HugePages]) -> dict[str, int]:
    return {str(each.size // 1024): each.count for each in pages}


def _counts(facts: Facts | None) -> dict[str, int]:
    return {size: counts["nr"] for size, counts in (facts or {}).items()}


def _distances(machine: Machine) -> object:
    if machine.distances is None:
        return None
    return list(machine.distances.ids), [list(row) for row in machine.distances.matrix]


def _matrix(facts: Facts | None) -> object:
    return facts and (facts["node_ids"], facts["matrix"])


def _device(device: PciDevice) -> tuple[object, ...]:
    return device.kind, device.vendor, device.device, device.node, device.cpus


def _wanted_device(facts: Facts) -> tuple[object, ...]:
    codes = [None if facts[name] is None else int(facts[name], 16) for name in ("class", "vendor", "device")]
    node = facts["numa_node"]
    cpus = None if facts["local_cpulist"] is None else bits.parse(facts["local_cpulist"])
    return (*codes, None if node in {None, -1} else node, cpus)


def _reported_facts(node: CadvisorNode) -> dict[str, object]:
    pages = [{"page_size": each.size // 1024, "num_pages": each.count} for each in node.hugepages]
    distances = None if node.distances is None else list(node.distances)
    return {"memory_bytes": node.memory, "hugepages": pages or None, "distances": distances}


def _unknown(facts: Facts) -> Iterator[bool]:
    yield facts["meminfo_total_kib"] is None
    yield facts["distances"] is None
    yield any(node["memory_kib"] is None or node["hugepages"] is None for node in facts["numa_nodes"])
