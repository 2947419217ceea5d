"""The book of memory put together again.

What nodes have reserved follows from the blocks on them, group by group. How it is spread inside a group does not: that
depends on what came and went, so it is noted, and taken over as long as the nodes are still large enough for it. A
machine that has a little less memory after a reboot is no reason to refuse anything that still fits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import ParseError
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger, NodeMemory, Sizes
from alignup.schema.ledgers.pieces import HoldingConflict, PodEntry, if_pod_exists
from alignup.schema.ledgers.values import amount, fields, items, members, text

Spread = Mapping[int, Sizes]  #: node → type → bytes reserved there


class ChargedBlock(NamedTuple):
    """A block that its nodes are charged with, and whose it is; a pod's own has no container."""

    piece: PodEntry
    container: str | None
    block: Block

    @property
    def owner(self) -> str:
        """As people call it."""
        return self.piece.owner(self.container)


def read_memory(
    pieces: Sequence[PodEntry], crumbs: Mapping[str, Any], *, idle: MemoryLedger, misfits: list[HoldingConflict]
) -> MemoryLedger:
    """The book with what the *pieces* hold; what cannot be is added to *misfits*."""
    held: dict[str, Mapping[str, tuple[Block, ...]]] = {}
    pod_held: dict[str, tuple[Block, ...]] = {}
    charged: list[ChargedBlock] = []
    for piece in pieces:
        said = piece.holds("memory")
        own = {name: _blocks(blocks) for name, blocks in piece.by_container(said.get("containers", {})).items()}
        if "containers" in said:
            held[piece.uid] = own
        if "pod" in said:
            pod_held[piece.uid] = _blocks(said["pod"])
            charged += [ChargedBlock(piece, None, block) for block in pod_held[piece.uid]]
        else:
            charged += [ChargedBlock(piece, name, block) for name, blocks in own.items() for block in blocks]
    found = [
        HoldingConflict(one.piece.uid, what) for one in charged for what in _problems(one.block, one.owner, idle=idle)
    ]
    misfits += found
    spread = {int(node): _sizes(sizes) for node, sizes in fields(crumbs["spread"]).items()}
    last = if_pod_exists(crumbs["reusable"], pieces) or {"pod": "", "groups": []}
    reusable = {members(one["nodes"]): _sizes(one["bytes"]) for one in map(fields, items(last["groups"]))}
    nodes = {} if found else _nodes(charged, spread, idle=idle, misfits=misfits)
    return MemoryLedger({**idle.nodes, **nodes}, held, pod_held, last["pod"], reusable)


def _blocks(document: object) -> tuple[Block, ...]:
    return tuple(
        Block(members(one["nodes"]), text(one["type"]), amount(one["bytes"])) for one in map(fields, items(document))
    )


def _sizes(document: object) -> dict[str, int]:
    return {type_: amount(size) for type_, size in fields(document).items()}


def _problems(block: Block, owner: str, *, idle: MemoryLedger) -> Iterator[str]:
    """Why a block cannot be on the idle machine, however much is free; an empty one needs nothing of its type."""
    if not idle.nodes:
        yield f"{block.type} of {owner} is not to be had: no memory is given out now"
        return
    gone = bits.of(node for node in bits.members(block.nodes) if node not in idle.nodes)
    if gone:
        exist = f"nodes {bits.show(gone)}, which do" if gone & gone - 1 else f"node {bits.show(gone)}, which does"
        yield f"{block.type} of {owner} is on NUMA {exist} not exist on this machine any more"
    elif block.size and not any(block.type in idle.nodes[node].tables for node in bits.members(block.nodes)):
        yield f"{block.type} of {owner} is on NUMA node {bits.show(block.nodes)}, which has none of it any more"


def _nodes(
    charged: Sequence[ChargedBlock], spread: Spread, *, idle: MemoryLedger, misfits: list[HoldingConflict]
) -> dict[int, NodeMemory]:
    """The nodes that blocks touch, with what is reserved on them."""
    groups: dict[NodeSet, Counter[str]] = {}
    touching: Counter[NodeSet] = Counter()
    for _, _, block in charged:
        groups.setdefault(block.nodes, Counter())[block.type] += block.size
        touching[block.nodes] += 1
    nodes: dict[int, NodeMemory] = {}
    for group, sizes in groups.items():
        _check_apart(group, nodes)
        misfits += _lacking(group, sizes, charged, idle=idle)
        kept: Spread = {node: spread.get(node, {}) for node in bits.members(group)}
        if not _fits(kept, sizes, idle=idle):
            kept = _spread_anew(kept, sizes, idle=idle)
        for node, reserved in kept.items():
            tables = idle.nodes[node].tables
            changed = {type_: tables[type_].take(size) for type_, size in reserved.items() if type_ in tables}
            nodes[node] = NodeMemory(group, touching[group], {**tables, **changed})
    return nodes


def _check_apart(group: NodeSet, nodes: Mapping[int, NodeMemory]) -> None:
    """Groups do not overlap, so what is on their nodes is known without who came first."""
    for node in bits.members(group):
        if node in nodes:
            raise ParseError(
                f"memory is held on NUMA nodes {bits.show(nodes[node].cells)} and on {bits.show(group)}, "
                f"but node {node} can belong to one group only"
            )


def _lacking(
    group: NodeSet, sizes: Sizes, charged: Sequence[ChargedBlock], *, idle: MemoryLedger
) -> Iterator[HoldingConflict]:
    """Of what a group has less than is held on it: those who came last would have to go."""
    for type_, size in sizes.items():
        there = idle.allocatable_on(group, type_)
        over = size - there
        for one in reversed(charged):
            if over > 0 and (one.block.nodes, one.block.type) == (group, type_) and one.block.size:
                over -= one.block.size
                where = f"{type_} on NUMA node{'s' if group & group - 1 else ''} {bits.show(group)}"
                what = f"{one.block.size} bytes of {one.owner}: {size} are held there, but there are only {there}"
                yield HoldingConflict(one.piece.uid, f"{where} is too little for {what}")


def _fits(spread: Spread, sizes: Sizes, *, idle: MemoryLedger) -> bool:
    """Whether a group can have its *sizes* reserved just so; a single node never needs to be told."""
    total: Counter[str] = Counter()
    for node, reserved in spread.items():
        total.update(reserved)
        tables = idle.nodes[node].tables
        if any(size > tables.get(type_, EMPTY_TABLE).allocatable for type_, size in reserved.items()):
            return False
    return +total == +Counter(sizes)


def _spread_anew(nodes: Iterable[int], sizes: Sizes, *, idle: MemoryLedger) -> dict[int, dict[str, int]]:
    """*sizes* on a group as if it had been idle: the lowest node is filled first."""
    left = dict(sizes)
    spread: dict[int, dict[str, int]] = {}
    for node in nodes:
        tables = idle.nodes[node].tables
        spread[node] = {type_: min(size, tables.get(type_, EMPTY_TABLE).allocatable) for type_, size in left.items()}
        left = {type_: size - spread[node][type_] for type_, size in left.items()}
    return spread
