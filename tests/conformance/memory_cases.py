"""What the memory vectors write, as our values, and back."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.hint import Hint, HintList, HintsByResource
from alignup.align.machine import NumaNode
from alignup.align.memory.ledger import Block, MemoryLedger, MemoryTable, NodeMemory, Sizes
from alignup.align.memory.provider import MemoryPolicy, MemorySettings
from alignup.align.settings import FeatureGates
from tests.vector_types import hugepages_of, list_of

Json = Mapping[str, Any]


@lru_cache(maxsize=4096)
def set_of(*nodes: int) -> NodeSet:
    return bits.of(nodes)


def settings_of(case: Json, *, kubelet_faults: bool = False) -> MemorySettings:
    gates = FeatureGates(dict.fromkeys(case.get("gates", ()), True), case["release"])
    return MemorySettings.of_gates(MemoryPolicy(case.get("policy", "Static")), gates, kubelet_faults=kubelet_faults)


def nodes_of(nodes: Sequence[Json]) -> tuple[NumaNode, ...]:
    return tuple(NumaNode(node["id"], node["memory"], hugepages_of(node["hugepages"])) for node in nodes)


def idle_of(machine: Json) -> MemoryLedger:
    reserved = {int(node): sizes for node, sizes in machine["system_reserved"].items()}
    return MemoryLedger.of_machine(nodes_of(machine["nodes"]), reserved)


def state_of(state: Json) -> dict[int, NodeMemory]:
    return {
        int(node): NodeMemory(
            set_of(*facts["cells"]),
            facts["assignments"],
            {type_: MemoryTable(**table) for type_, table in facts["memory"].items()},
        )
        for node, facts in sorted(state.items(), key=lambda entry: int(entry[0]))
    }


def blocks_of(blocks: Sequence[Json]) -> tuple[Block, ...]:
    return tuple(Block(set_of(*block["numa"]), block["type"], block["size"]) for block in blocks)


def held_of(held: Json) -> dict[str, dict[str, tuple[Block, ...]]]:
    return {pod: {name: blocks_of(blocks) for name, blocks in containers.items()} for pod, containers in held.items()}


def reusable_of(groups: Sequence[Json]) -> dict[NodeSet, Sizes]:
    return {bits.of(group["numa"]): group["memory"] for group in groups}


def affinity_of(event: Json) -> Hint:
    nodes = None if event.get("affinity_none") else bits.of(event["affinity"])
    return Hint(nodes, event["affinity_preferred"])


def listed(answer: HintsByResource) -> dict[str, list] | None:
    """An answer in the form of the vectors: type → [[nodes, preferred], …]."""
    if answer is None:
        return None
    lists: dict[str, list] = {}
    for type_, options in answer.items():
        if options is None or isinstance(options, Sequence):
            lists[type_] = list(options or ())
            continue
        spelled = options if isinstance(options, HintList) else HintList.of_family(options)
        lists[type_] = [[list_of(mask), preferred] for mask, preferred in spelled if mask is not None]
    return lists
