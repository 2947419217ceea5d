"""``memory_manager_state``: the memory of each NUMA node, and the memory of each container."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import StateError
from alignup.align.memory.ledger import Block, MemoryTable, NodeMemory
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files import checkpoint
from alignup.kubernetes.kubelet_files.checkpoint import CHECKSUM, PODS_GATE, Contents, OlderVersion, StateFileFormat
from alignup.kubernetes.kubelet_files.go_types import GoField, GoInteger, GoMap, GoSlice, GoString, GoStruct

NAME = "memory_manager_state"
VERSION = 3  #: the one that is written

_TEXT = GoString()
_TYPE = GoString("v1.ResourceName")
_INT = GoInteger("int", signed=True)
_INTS = GoSlice("[]int", _INT)
_SIZE = GoInteger("uint64")
_TABLE_KEYS = {
    "total": "TotalMemSize",
    "systemReserved": "SystemReserved",
    "allocatable": "Allocatable",
    "reserved": "Reserved",
    "free": "Free",
}
_TABLE = GoStruct("state.MemoryTable", tuple(GoField(key, go, _SIZE) for key, go in _TABLE_KEYS.items()))
_TABLES = GoMap("map[v1.ResourceName]*state.MemoryTable", _TEXT, _TABLE, pointers=True)
_NODE = GoStruct(
    "state.NUMANodeState",
    (
        GoField("numberOfAssignments", "NumberOfAssignments", _INT),
        GoField("memoryMap", "MemoryMap", _TABLES),
        GoField("cells", "Cells", _INTS),
    ),
)
_BLOCK = GoStruct(
    "state.Block",
    (GoField("numaAffinity", "NUMAAffinity", _INTS), GoField("type", "Type", _TYPE), GoField("size", "Size", _SIZE)),
)
_BLOCKS = GoSlice("[]state.Block", _BLOCK)
_HELD = GoMap("state.ContainerMemoryAssignments", _TEXT, GoMap("map[string][]state.Block", _TEXT, _BLOCKS))
_PLAIN = (
    GoField("policyName", "PolicyName", _TEXT),
    GoField("machineState", "MachineState", GoMap("state.NUMANodeMap", _INT, _NODE, pointers=True)),
    GoField("entries", "Entries", _HELD, omit_empty=True),
)
_POD = GoStruct("state.PodEntry", (GoField("memoryBlocks", "MemoryBlocks", _BLOCKS, omit_empty=True),))
_PODS = GoField("podEntries", "PodEntries", GoMap("state.PodMemoryAssignments", _TEXT, _POD), omit_empty=True)

FORMAT = StateFileFormat(
    title="memory manager",
    called="memory manager",
    prefix="[memorymanager] ",
    number=VERSION,
    data=GoStruct("state.MemoryManagerCheckpointData", (*_PLAIN, _PODS)),
    name="state.MemoryManagerCheckpoint",
    older=(
        OlderVersion(2, GoStruct("state.MemoryManagerCheckpointV2", (*_PLAIN, _PODS, CHECKSUM))),
        OlderVersion(1, GoStruct("state.MemoryManagerCheckpointV1", (*_PLAIN, CHECKSUM)), checksum_optional=True),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    policy: str
    machine_state: Mapping[int, NodeMemory] = field(default_factory=dict)
    #: pod uid → container → blocks
    entries: Mapping[str, Mapping[str, tuple[Block, ...]]] = field(default_factory=dict)
    #: pod uid → blocks of the pod as a whole
    pod_entries: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    version: int = field(default=VERSION, compare=False)  #: in which the file was written


def dump(state: MemoryState, *, gates: FeatureGates) -> bytes:
    pods = state.pod_entries if gates.on(PODS_GATE) else {}
    nodes = {
        id_: {
            "numberOfAssignments": node.assignments,
            "memoryMap": {type_: dict(zip(_TABLE_KEYS, table, strict=True)) for type_, table in node.tables.items()},
            "cells": tuple(bits.members(node.cells)),
        }
        for id_, node in state.machine_state.items()
    }
    entries = {uid: {name: _block_contents(own[name]) for name in own} for uid, own in state.entries.items()}
    return checkpoint.encode_state_file(
        FORMAT,
        {
            "policyName": state.policy,
            "machineState": nodes,
            "entries": entries,
            "podEntries": {uid: {"memoryBlocks": _block_contents(blocks)} for uid, blocks in pods.items()},
        },
    )


def _block_contents(blocks: Sequence[Block]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"numaAffinity": tuple(bits.members(nodes)), "type": type_, "size": size} for nodes, type_, size in blocks
    )


def _state(version: int, contents: Contents, gates: FeatureGates) -> MemoryState:
    machine = contents["machineState"] or {}
    pods = (contents["podEntries"] or {}) if gates.on(PODS_GATE) else {}
    return MemoryState(
        policy=contents["policyName"],
        machine_state={id_: _node(id_, machine[id_]) for id_ in sorted(machine)},
        entries={
            uid: {name: _blocks(blocks) for name, blocks in (own or {}).items()}
            for uid, own in (contents["entries"] or {}).items()
        },
        pod_entries={uid: _blocks(own["memoryBlocks"]) for uid, own in pods.items()},
        version=version,
    )


def _node(id_: int, node: dict[str, Any] | None) -> NodeMemory:
    """Return a node's memory; a null node or table, with which the kubelet crashes, is an error."""
    tables = (node or {}).get("memoryMap") or {}
    if node is None or None in tables.values():
        raise StateError(f"NUMA node {id_}, or one of its memory types, is null")
    return NodeMemory(
        _nodes(node["cells"]),
        node["numberOfAssignments"],
        {type_: MemoryTable(*(table[key] for key in _TABLE_KEYS)) for type_, table in tables.items()},
    )


def _blocks(blocks: Sequence[dict[str, Any]] | None) -> tuple[Block, ...]:
    return tuple(Block(_nodes(one["numaAffinity"]), one["type"], one["size"]) for one in blocks or ())


def _nodes(ids: Sequence[int] | None) -> NodeSet:
    for id_ in ids or ():
        if not 0 <= id_ < bits.MAX_MEMBER:
            raise StateError(f"{id_} is not a NUMA node")
    return bits.of(ids or ())


parse = partial(checkpoint.parse_state_file, FORMAT, _state)
