"""Restore the memory ledger.

How much a group of NUMA nodes has reserved follows from its blocks. How it is spread over the nodes of the group
depends on which pods came and went before, so the residue records it, and it is kept as long as the nodes are large
enough. A machine with slightly less memory after a reboot keeps all pods that still fit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import ParseError
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger, NodeMemory, Sizes
from alignup.schema.ledgers.documents import BlockDocument, MemoryResidue
from alignup.schema.ledgers.entries import HoldingConflict, PodEntry

Reserved = Mapping[int, Sizes]  #: NUMA node → type → bytes reserved there


class ChargedBlock(NamedTuple):
    """A block that counts against its nodes, and its owner."""

    entry: PodEntry
    container: str | None  #: ``None``: the pod as a whole
    block: Block

    @property
    def owner(self) -> str:
        return self.entry.owner(self.container)


def restore_memory(
    entries: Sequence[PodEntry], residue: MemoryResidue, *, idle: MemoryLedger, conflicts: list[HoldingConflict]
) -> MemoryLedger:
    """Return the ledger with the memory of *entries*; append what they can no longer hold to *conflicts*."""
    held: dict[str, Mapping[str, tuple[Block, ...]]] = {}
    pod_held: dict[str, tuple[Block, ...]] = {}
    charged: list[ChargedBlock] = []
    for entry in entries:
        holdings = entry.document.memory
        entry.check_containers(holdings.containers or ())
        own = {name: _blocks(blocks) for name, blocks in (holdings.containers or {}).items()}
        if holdings.containers is not None:
            held[entry.uid] = own
        if holdings.pod is not None:
            pod_held[entry.uid] = _blocks(holdings.pod)
            charged += [ChargedBlock(entry, None, block) for block in pod_held[entry.uid]]
        else:
            charged += [ChargedBlock(entry, name, block) for name, blocks in own.items() for block in blocks]
    found = [HoldingConflict(one.entry.uid, what) for one in charged for what in _problems(one, idle=idle)]
    conflicts += found
    nodes = {} if found else _nodes(charged, residue.reserved, idle=idle, conflicts=conflicts)
    reusable = residue.reusable
    return MemoryLedger(
        {**idle.nodes, **nodes},
        held,
        pod_held,
        reusable.pod if reusable else "",
        {bits.parse(group.nodes): group.bytes for group in reusable.groups} if reusable else {},
    )


def _blocks(blocks: Iterable[BlockDocument]) -> tuple[Block, ...]:
    return tuple(Block(bits.parse(one.nodes), one.type, one.bytes) for one in blocks)


def _problems(one: ChargedBlock, *, idle: MemoryLedger) -> Iterator[str]:
    """Yield why a block cannot exist on the idle machine; an empty block does not need memory of its type."""
    block, what = one.block, f"{one.block.type} of {one.owner}"
    if not idle.nodes:
        yield f"{what} cannot be kept: this host does not allocate memory now"
        return
    gone = bits.of(node for node in bits.members(block.nodes) if node not in idle.nodes)
    if gone:
        node, exist = ("nodes", "exist") if gone & gone - 1 else ("node", "exists")
        yield f"{what} is on NUMA {node} {bits.show(gone)}, which no longer {exist} on this machine"
    elif block.size and not any(block.type in idle.nodes[node].tables for node in bits.members(block.nodes)):
        yield f"{what} is on NUMA node {bits.show(block.nodes)}, which no longer has any"


def _nodes(
    charged: Sequence[ChargedBlock], reserved: Reserved, *, idle: MemoryLedger, conflicts: list[HoldingConflict]
) -> dict[int, NodeMemory]:
    """Return the nodes that have blocks, with what is reserved on them."""
    groups: dict[NodeSet, Counter[str]] = {}
    assignments: Counter[NodeSet] = Counter()
    for _, _, block in charged:
        groups.setdefault(block.nodes, Counter())[block.type] += block.size
        assignments[block.nodes] += 1
    nodes: dict[int, NodeMemory] = {}
    for group, sizes in groups.items():
        _check_disjoint(group, nodes)
        conflicts += _shortages(group, sizes, charged, idle=idle)
        kept: Reserved = {node: reserved.get(node, {}) for node in bits.members(group)}
        if not _fits(kept, sizes, idle=idle):
            kept = _reserve_in_order(kept, sizes, idle=idle)
        for node, own in kept.items():
            tables = idle.nodes[node].tables
            changed = {type_: tables[type_].take(size) for type_, size in own.items() if type_ in tables}
            nodes[node] = NodeMemory(group, assignments[group], {**tables, **changed})
    return nodes


def _check_disjoint(group: NodeSet, nodes: Mapping[int, NodeMemory]) -> None:
    for node in bits.members(group):
        if node in nodes:
            raise ParseError(
                f"memory is held on NUMA nodes {bits.show(nodes[node].cells)} and on {bits.show(group)}, "
                f"but node {node} can belong to one group only"
            )


def _shortages(
    group: NodeSet, sizes: Sizes, charged: Sequence[ChargedBlock], *, idle: MemoryLedger
) -> Iterator[HoldingConflict]:
    """Yield the newest blocks that exceed what *group* has."""
    for type_, size in sizes.items():
        available = idle.allocatable_on(group, type_)
        over = size - available
        for one in reversed(charged):
            if over > 0 and (one.block.nodes, one.block.type) == (group, type_) and one.block.size:
                over -= one.block.size
                where = f"{type_} on NUMA node{'s' if group & group - 1 else ''} {bits.show(group)}"
                what = f"{one.block.size} bytes of {one.owner}: {size} bytes are held there, but only {available} exist"
                yield HoldingConflict(one.entry.uid, f"{where} is too small for {what}")


def _fits(reserved: Reserved, sizes: Sizes, *, idle: MemoryLedger) -> bool:
    """Return whether *reserved* adds up to *sizes* and no node has more than it can hold."""
    total: Counter[str] = Counter()
    for node, own in reserved.items():
        total.update(own)
        tables = idle.nodes[node].tables
        if any(size > tables.get(type_, EMPTY_TABLE).allocatable for type_, size in own.items()):
            return False
    return +total == +Counter(sizes)


def _reserve_in_order(nodes: Iterable[int], sizes: Sizes, *, idle: MemoryLedger) -> dict[int, dict[str, int]]:
    """Spread *sizes* over *nodes* as if they were idle: fill the lowest node first."""
    left = dict(sizes)
    reserved: dict[int, dict[str, int]] = {}
    for node in nodes:
        tables = idle.nodes[node].tables
        reserved[node] = {type_: min(size, tables.get(type_, EMPTY_TABLE).allocatable) for type_, size in left.items()}
        left = {type_: size - reserved[node][type_] for type_, size in left.items()}
    return reserved
