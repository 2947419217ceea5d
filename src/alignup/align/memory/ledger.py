"""The memory ledger of one machine: the memory of every NUMA node, and the blocks of every container.

A type is ``memory`` or a size of huge pages. A block is on one node or on a *group* of nodes. Each node of a group has
the whole group as its *cells*, and serves only this group until its last block is gone. How a block is spread over its
group does not matter: nodes are charged from the lowest up, and released in the same order.

A ledger is immutable: every change returns a new one.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.errors import StateError
from alignup.align.layered_map import with_item, with_items, without_item
from alignup.align.machine import NumaNode
from alignup.align.workload.names import MEMORY

_WRAP = 1 << 64  # the kubelet uses unsigned 64-bit integers, so a reservation that is too large wraps around

Sizes = Mapping[str, int]  #: type → bytes


class MemoryTable(NamedTuple):
    """The bytes of one type on one node; ``allocatable`` is the sum of ``reserved`` (by containers) and ``free``."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int

    def take(self, size: int) -> "MemoryTable":
        return MemoryTable(self.total, self.system_reserved, self.allocatable, self.reserved + size, self.free - size)


EMPTY_TABLE = MemoryTable(0, 0, 0, 0, 0)  #: for a type that a node does not list


class NodeMemory(NamedTuple):
    cells: NodeSet  #: its group, including itself
    assignments: int  #: the number of its blocks
    tables: Mapping[str, MemoryTable]  #: by type


class Block(NamedTuple):
    nodes: NodeSet
    type: str
    size: int  #: bytes; 0 if later containers took over all of it


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """The memory of a machine and its holders; empty if memory is not managed."""

    PROVIDER: ClassVar = "memory"

    nodes: Mapping[int, NodeMemory] = field(default_factory=dict)  #: by id, ascending
    held: Mapping[str, Mapping[str, tuple[Block, ...]]] = field(default_factory=dict)  #: pod → container → blocks
    pod_held: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)  #: blocks of pods as a whole
    last_pod: str = ""  #: the last pod handled
    #: what later containers of ``last_pod`` may reuse of its init containers: group → type → bytes
    reusable: Mapping[NodeSet, Sizes] = field(default_factory=dict)
    #: (group, type) → how many of the first ordinary init containers of ``last_pod`` have none of it any more
    handed_over: Mapping[tuple[NodeSet, str], int] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of_machine(nodes: Iterable[NumaNode], reserved_sizes: Mapping[int, Sizes]) -> "MemoryLedger":
        """Return an idle ledger; *reserved_sizes* is node → type → bytes; more than a node has wraps around."""
        idle = {}
        for node in sorted(nodes, key=lambda node: node.id):
            node_reserved = reserved_sizes.get(node.id, {})
            usable = {pages.resource: pages.bytes for pages in node.hugepages}
            totals = {**usable, MEMORY: node.memory or 0}
            usable[MEMORY] = totals[MEMORY] - sum(pages.bytes for pages in node.hugepages)
            tables = {}
            for type_, total in totals.items():
                system = node_reserved.get(type_, 0)
                allocatable = (usable[type_] - system) % _WRAP
                tables[type_] = MemoryTable(total, system, allocatable, 0, allocatable)
            idle[node.id] = NodeMemory(1 << node.id, 0, tables)
        return MemoryLedger(idle)

    def alignment_key(self) -> Hashable:
        """Return a key that is equal for ledgers of one machine that place new pods alike."""
        return tuple(
            [
                (id_, cells, assignments > 0, *sorted([(type_, *table[2:]) for type_, table in tables.items()]))
                for id_, (cells, assignments, tables) in self.nodes.items()
            ]
        )

    def allocatable(self) -> tuple[Block, ...]:
        return tuple(
            Block(1 << id_, type_, table.allocatable)
            for id_, node in self.nodes.items()
            for type_, table in sorted(node.tables.items())
            if table.allocatable
        )

    def blocks(self, pod: str, container: str) -> tuple[Block, ...] | None:
        """Return what a container holds; ``None`` if nothing was ever allocated to it."""
        return self.held.get(pod, {}).get(container)

    def reusable_by(self, pod: str) -> Mapping[NodeSet, Sizes]:
        return self.reusable if pod == self.last_pod else {}

    def free(self, nodes: NodeSet, type_: str) -> int:
        if nodes and nodes & nodes - 1 == 0:
            return self.nodes[nodes.bit_length() - 1].tables.get(type_, EMPTY_TABLE).free
        return sum([self.nodes[node].tables.get(type_, EMPTY_TABLE).free for node in bits.members(nodes)])

    def allocatable_on(self, nodes: NodeSet, type_: str) -> int:
        """Return the bytes of one type on *nodes* if nothing is allocated."""
        return sum([self.nodes[node].tables.get(type_, EMPTY_TABLE).allocatable for node in bits.members(nodes)])

    def keeps_groups(self, nodes: NodeSet) -> bool:
        """Return whether a block on *nodes* splits no group: each node is idle or already in exactly this group."""
        if nodes & nodes - 1 == 0:
            return self.nodes[nodes.bit_length() - 1].cells == nodes
        return all(
            node.cells == nodes or not node.assignments for node in map(self.nodes.__getitem__, bits.members(nodes))
        )

    def give(
        self, pod: str, container: str, *, blocks: Sequence[Block], init: bool = False, earlier: Sequence[str] = ()
    ) -> "MemoryLedger":
        """Give *blocks*, all on the same nodes; memory reused from *earlier* init containers is not charged again."""
        again = self.reusable_by(pod).get(blocks[0].nodes, {})
        nodes = dict(self.nodes)
        _charge(nodes, blocks, [max(0, block.size - again.get(block.type, 0)) for block in blocks])
        blocks_by_container = self.held.get(pod, {})
        changes = {container: tuple(blocks)}
        handed_over = dict(self.handed_over) if earlier and pod == self.last_pod else {}
        for block in blocks if earlier else ():
            if block.size:
                start = handed_over.get(block[:2], 0)
                later = map(earlier.__getitem__, range(start, len(earlier)))
                start += _hand_over(blocks_by_container, changes, block, later)
                handed_over[block[:2]] = min(start, len(earlier)) if init else start
        reusable = self._reusable_after(pod, blocks, init=init) if init or again else self.reusable_by(pod)
        holdings = with_item(
            self.held, pod, with_items(blocks_by_container, changes) if blocks_by_container else changes
        )
        return MemoryLedger(nodes, holdings, self.pod_held, pod, reusable, handed_over)

    def give_again(self, pod: str, container: str, *, init: bool = False) -> "MemoryLedger":
        """Give a container what it holds already: only the reusable memory changes."""
        reusable = self._reusable_after(pod, self.held[pod][container], init=init)
        handed_over = self.handed_over if pod == self.last_pod else {}
        return MemoryLedger(self.nodes, self.held, self.pod_held, pod, reusable, handed_over)

    def give_pod(
        self, pod: str, blocks: Sequence[Block], *, containers: Mapping[str, tuple[Block, ...]]
    ) -> "MemoryLedger":
        """Give *blocks*, all on the same nodes, to a pod as a whole; *containers* are the shares of its containers."""
        nodes = dict(self.nodes)
        _charge(nodes, blocks, [block.size for block in blocks])
        shares = {**self.held.get(pod, {}), **containers}
        pods = with_item(self.pod_held, pod, tuple(blocks))
        return MemoryLedger(nodes, with_item(self.held, pod, shares), pods, self.last_pod, self.reusable)

    def release(self, pod: str, *names: str) -> "MemoryLedger":
        """Release the blocks of these containers; the blocks of a whole pod are released with its last container."""
        containers = dict(self.held.get(pod, {}))
        blocks = [block for name in names for block in containers.pop(name, ())]
        pod_held = self.pod_held
        if pod in pod_held:
            blocks = []
            if not containers:
                blocks = list(pod_held[pod])
                pod_held = without_item(pod_held, pod)
        nodes = dict(self.nodes)
        for group, type_, size in blocks:
            # What the nodes have reserved is released, the lowest first.
            rest = size
            for id_ in bits.members(group):
                cells, assignments, tables = nodes[id_]
                table = tables.get(type_, EMPTY_TABLE)
                released_size = min(rest, table.reserved)
                rest -= released_size
                if released_size:
                    tables = {**tables, type_: table.take(-released_size)}
                nodes[id_] = NodeMemory(cells if assignments > 1 else 1 << id_, assignments - 1, tables)
        holdings = self.held
        if containers:
            holdings = with_item(holdings, pod, containers)
        elif pod in holdings:
            holdings = without_item(holdings, pod)
        return MemoryLedger(nodes, holdings, pod_held, self.last_pod, self.reusable, self.handed_over)

    def without_reusable(self) -> "MemoryLedger":
        """Return this ledger after its last pod is gone, which can reuse nothing any more."""
        return MemoryLedger(self.nodes, self.held, self.pod_held)

    def restored(self, idle: "MemoryLedger", *, pod_level: bool = False) -> "MemoryLedger":
        """Return this stored ledger; ``StateError`` if its blocks cannot lead from *idle* to it.

        Blocks of pods as a whole count only with *pod_level*.

        The kubelet visits blocks in random order, which matters if a single node was split from a group. Here groups
        come first: a block on one node can come after its group, never before it.
        """
        if not self.nodes:
            if self.held:
                raise StateError("[memorymanager] machine state can not be empty when it has memory assignments")
            return idle
        ledger = MemoryLedger(self.nodes, self.held, self.pod_held if pod_level else {})
        nodes = dict(idle.nodes)
        for pod, container, block in _charged(ledger):
            # One node of a group must list the type.
            lists_type = any(block.type in nodes[node].tables for node in bits.members(block.nodes) if node in nodes)
            for node in bits.members(block.nodes):
                if node not in nodes or not lists_type:
                    missing_thing = "memory resource" if node in nodes else "the NUMA"
                    raise StateError(
                        f"[memorymanager] (pod: {pod}, container: {container}) "
                        f"the memory assignment uses {missing_thing} that does not exist"
                    )
            _charge(nodes, (block,), [block.size])
        if not _same(self.nodes, nodes):
            raise StateError("[memorymanager] the expected machine state is different from the real one")
        return ledger

    def moved_to(self, idle: "MemoryLedger") -> "MemoryLedger":
        """Return this ledger on the same machine with another reservation; ``StateError`` if the blocks do not fit."""
        nodes = dict(idle.nodes)
        for _, _, block in _charged(self):
            sizes = [block.size]
            _charge(nodes, (block,), sizes)
            if sizes != [0]:
                raise StateError("the reservation takes memory that running pods hold")
        return MemoryLedger(nodes, self.held, self.pod_held, self.last_pod, self.reusable)

    def _reusable_after(self, pod: str, blocks: Sequence[Block], *, init: bool) -> Mapping[NodeSet, Sizes]:
        """Return the reusable memory of *pod* after *blocks*: *init* containers add memory, others use it up."""
        groups = {group: dict(sizes) for group, sizes in self.reusable_by(pod).items()}
        if not init and not groups:
            return groups
        for block in blocks:
            sizes = groups.setdefault(block.nodes, {}) if init else groups.get(block.nodes, {})
            again = sizes.get(block.type, 0)
            if init and block.size > again:
                sizes[block.type] = block.size
            elif again and not init:
                sizes[block.type] = max(0, again - block.size)
        return groups


def _charge(nodes: dict[int, NodeMemory], blocks: Sequence[Block], sizes: list[int]) -> None:
    """Count *blocks*, all on the same nodes, and reserve *sizes* there, the lowest node first."""
    group = blocks[0].nodes
    single = group and group & group - 1 == 0
    for id_ in (group.bit_length() - 1,) if single else bits.members(group):
        _, assignments, tables = nodes[id_]
        new_tables = dict(tables)
        for index, (_, type_, _) in enumerate(blocks):
            table = tables.get(type_, EMPTY_TABLE)
            size = min(sizes[index], table.free)
            if size:
                new_tables[type_] = table.take(size)
                sizes[index] -= size
        nodes[id_] = NodeMemory(group, assignments + len(blocks), new_tables)


def _hand_over(
    blocks_by_container: Mapping[str, tuple[Block, ...]],
    changes: dict[str, tuple[Block, ...]],
    reused_block: Block,
    earlier: Iterable[str],
) -> int:
    """Reduce the blocks of *earlier* init containers by *reused_block*; return how many have none left."""
    rest = reused_block.size
    used_up = 0
    for name in earlier:
        blocks = changes.get(name) or blocks_by_container.get(name, ())
        for index, block in enumerate(blocks):
            if block.size and block[:2] == reused_block[:2]:
                amount = min(rest, block.size)
                rest -= amount
                changes[name] = (*blocks[:index], block._replace(size=block.size - amount), *blocks[index + 1 :])
                break
        if not rest:
            break
        used_up += 1
    return used_up


def _charged(ledger: MemoryLedger) -> list[tuple[str, str, Block]]:
    """Return every charged block with its pod and container (empty for a whole pod), large groups first."""
    whole = {pod: {"": blocks} for pod, blocks in ledger.pod_held.items()}
    charges = [
        (pod, container, block)
        for pod, containers in {**whole, **ledger.held, **whole}.items()
        for container, blocks in containers.items()
        for block in blocks
    ]
    return sorted(charges, key=lambda charge: -charge[2].nodes.bit_count())


def _same(stored_tables: Mapping[int, NodeMemory], rebuilt_tables: Mapping[int, NodeMemory]) -> bool:
    """Return whether two states are equivalent: free and reserved bytes are compared per group, not per node."""
    if stored_tables.keys() != rebuilt_tables.keys():
        return False
    for id_, node in stored_tables.items():
        other = rebuilt_tables[id_]
        if (node.assignments, node.cells, node.tables.keys()) != (other.assignments, other.cells, other.tables.keys()):
            return False
        for type_, table in node.tables.items():
            if table[:3] != other.tables[type_][:3]:
                return False
            in_group = []
            for nodes in (stored_tables, rebuilt_tables):
                tables = [nodes[member].tables.get(type_, EMPTY_TABLE) for member in bits.members(node.cells)]
                in_group.append((sum(table.reserved for table in tables), sum(table.free for table in tables)))
            if in_group[0] != in_group[1]:
                return False
    return True
