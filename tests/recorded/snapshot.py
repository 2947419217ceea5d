"""What a recording shows after a step, held against what a host knows.

The kubelet's files may still name pods that are gone, since it removes them late. Until then what is free there
cannot be compared, only what the pods have that are left.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.host import Host
from alignup.align.memory.ledger import Block
from alignup.align.workload import Container, Pod
from tests.soundness import by_group

Document = Mapping[str, Any]
Places = Mapping[tuple[str, str], str]  #: resource and id of a device → its NUMA nodes

LATE = "the kubelet's files still contain removed pods"
SPREAD = "memory of a group lies elsewhere in it after a pod was rejected; the sum is the same"
STUCK = "memory allocated again after a restart without state files is not enforced"


@dataclass
class Comparison:
    """One snapshot beside a host; each method asserts one part and notes in ``apart`` what could not be compared."""

    host: Host
    shown: Document
    places: Places
    stuck: Collection[str] = ()  #: uids of pods whose memory moved on paper only
    rejected: bool = False  #: whether a pod was rejected already
    apart: set[str] = field(default_factory=set)

    def whole(self) -> set[str]:
        """Everything; what comes back are the labels of what could not be compared."""
        self.cpus()
        self.memory()
        self.devices()
        self.listed()
        self.allocatable()
        self.confined()
        return self.apart

    def cpus(self) -> None:
        """The CPU manager's file."""
        state = json.loads(self.shown["cpu_manager_state"])
        ledger = self.host.ledger.cpus
        held = {
            uid: {name: bits.show(cpus) for name, cpus in containers.items()} for uid, containers in ledger.held.items()
        }
        if self.same_owners("CPUs", held, state.get("entries", {})):
            shared = bits.show(ledger.shared) if self.host.settings.cpus.policy == CpuPolicy.STATIC else ""
            self.same("shared CPUs", shared, state["defaultCpuSet"])

    def memory(self) -> None:
        """The memory manager's file; there is none under policy None."""
        state = json.loads(self.shown["memory_manager_state"] or "{}")
        ledger = self.host.ledger.memory
        held = {uid: {name: _blocks(blocks) for name, blocks in pod.items()} for uid, pod in ledger.held.items()}
        recorded = {
            uid: {name: _blocks(map(_stored, blocks)) for name, blocks in pod.items()}
            for uid, pod in state.get("entries", {}).items()
        }
        if self.same_owners("memory", held, recorded):
            ours = {
                str(id_): _memory(bits.members(node.cells), node.assignments, node.tables)
                for id_, node in ledger.nodes.items()
            }
            theirs = {
                id_: _memory(node["cells"], node["numberOfAssignments"], _recorded_tables(node["memoryMap"]))
                for id_, node in state.get("machineState", {}).items()
            }
            if self.rejected and ours != theirs:
                ours, theirs = by_group(ours), by_group(theirs)
                self.apart.add(SPREAD)
            self.same("memory of the nodes", ours, theirs)

    def devices(self) -> None:
        """The device manager's file: whose devices, as counts a node."""
        recorded: dict[str, dict[str, dict[str, Any]]] = {}
        for entry in json.loads(self.shown["kubelet_internal_checkpoint"])["Data"]["PodDeviceEntries"] or ():
            ids = {id_ for node in entry["DeviceIDs"].values() for id_ in node}  # once for each of its nodes
            resources = recorded.setdefault(entry["PodUID"], {}).setdefault(entry["ContainerName"], {})
            resources[entry["ResourceName"]] = self.counted(entry["ResourceName"], ids)
        held = {
            uid: {name: self.counts(device_ids) for name, device_ids in pod.items()}
            for uid, pod in self.host.ledger.devices.held.items()
        }
        self.same_owners("devices", held, recorded)

    def listed(self) -> None:
        """List of PodResources."""
        ours = {
            resident.pod.name: {
                container.name: self.has(resident.pod, container) for container in _lasting(resident.pod)
            }
            for resident in self.host.ledger.pods.values()
        }
        theirs = {
            pod["name"]: {container["name"]: self.recorded_allocation(container) for container in pod["containers"]}
            for pod in self.shown["podresources_list"]["pod_resources"]
        }
        self.same("PodResources list", ours, theirs)

    def allocatable(self) -> None:
        """GetAllocatableResources of PodResources."""
        ledger, view = self.host.ledger, self.host.view
        static = self.host.settings.cpus.policy == CpuPolicy.STATIC
        ours = {
            "cpus": bits.show(view.all_cpus & ~ledger.cpus.reserved if static else 0),
            "memory": _blocks(ledger.memory.allocatable()),
            "devices": self.counts(
                {name: inventory.names(inventory.healthy) for name, inventory in ledger.devices.inventories.items()}
            ),
        }
        self.same("allocatable", ours, self.recorded_allocation(self.shown["podresources_allocatable"]))

    def confined(self) -> None:
        """The cgroups of the containers that run."""
        ledger = self.host.ledger
        uids = {resident.pod.name: uid for uid, resident in self.host.ledger.pods.items()}
        for group in self.shown["cgroups"]:
            uid, name = uids[group["pod"]], group["container"]
            subject = f"of {group['pod']} {name} "
            if self.host.settings.cpus.policy == CpuPolicy.STATIC:
                cpus = ledger.cpus.holds(uid, name)
                self.same(
                    subject + "CPUs", bits.show(ledger.cpus.shared if cpus is None else cpus), group["cpuset.cpus"]
                )
            if uid in self.stuck:
                self.apart.add(STUCK)
                continue
            nodes = 0
            for block in ledger.memory.blocks(uid, name) or ():
                nodes |= block.nodes
            self.same(subject + "memory nodes", bits.show(nodes), group["cpuset.mems"])

    def same_owners(self, subject: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
        """Assert that the pods that are there have the same; whether the other side knows of no other pods."""
        there = self.host.ledger.pods.keys()
        self.same(subject, ours, {uid: held for uid, held in theirs.items() if uid in there})
        clear = theirs.keys() <= there
        if not clear:
            self.apart.add(LATE)
        return clear

    def same(self, subject: str, ours: object, theirs: object) -> None:
        assert ours == theirs, f"{subject} {ours}, recorded {theirs}"

    def has(self, pod: Pod, container: Container) -> dict[str, Any]:
        """What a container has, in the words of PodResources."""
        ledger = self.host.ledger
        return {
            "cpus": bits.show(ledger.cpus.holds(pod.uid, container.name) or 0),
            "memory": _blocks(ledger.memory.blocks(pod.uid, container.name) or ()),
            "devices": self.counts(ledger.devices.holds(pod.uid, container.name)),
        }

    def recorded_allocation(self, recorded: Document) -> dict[str, Any]:
        """The same of a part of a PodResources answer."""
        ids: dict[str, set[str]] = {}
        for device in recorded["devices"]:
            ids.setdefault(device["resource_name"], set()).update(device["device_ids"])
        return {
            "cpus": bits.show(bits.of(map(int, recorded["cpu_ids"]))),
            "memory": _blocks(
                Block(_nodes(block["topology"]["nodes"]), block["memory_type"], int(block["size"]))
                for block in recorded["memory"]
            ),
            "devices": self.counts(ids),
        }

    def counts(self, held: Mapping[str, Iterable[str]]) -> dict[str, Any]:
        """Resource → NUMA nodes → how many devices; a resource without any is left out."""
        return {resource: counted for resource, ids in held.items() if (counted := self.counted(resource, ids))}

    def counted(self, resource: str, ids: Iterable[str]) -> Mapping[str, int]:
        return dict(Counter(self.places[resource, id_] for id_ in ids))


def _lasting(pod: Pod) -> list[Container]:
    """The containers that run as long as the pod does."""
    return [container for container in pod.all_containers if container in pod.containers or container.restartable]


def _blocks(blocks: Iterable[Block]) -> list[str]:
    return sorted(f"{block.type} {bits.show(block.nodes)}={block.size}" for block in blocks)


def _stored(block: Document) -> Block:
    return Block(bits.of(block["numaAffinity"]), block["type"], block["size"])


def _nodes(recorded: Iterable[Document]) -> int:
    return bits.of(int(node["ID"]) for node in recorded)


def _memory(cells: Iterable[int], assignments: int, tables: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    return {
        "cells": list(cells),
        "assignments": assignments,
        "tables": {type_: list(table) for type_, table in tables.items()},
    }


def _recorded_tables(tables: Mapping[str, Mapping[str, int]]) -> dict[str, list[int]]:
    columns = ("total", "systemReserved", "allocatable", "reserved", "free")
    return {type_: [table[column] for column in columns] for type_, table in tables.items()}
