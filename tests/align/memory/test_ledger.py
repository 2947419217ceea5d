"""The memory ledger: charging, giving back, using again, and reading a stored one."""

from dataclasses import replace

import pytest

from alignup.align.errors import StateError
from alignup.align.machine import NumaNode
from alignup.align.memory.ledger import Block, MemoryLedger, NodeMemory
from tests.align.memory.model import GIB, MEMORY, idle

BOTH = 0b11
DIFFERENT = "the expected machine state is different from the real one"


def test_reserving_more_than_there_is_wraps_around_as_in_the_kubelet():
    ledger = MemoryLedger.of_machine([NumaNode(0, GIB)], {0: {MEMORY: GIB + 1}})

    assert ledger.nodes[0].tables[MEMORY].allocatable == (1 << 64) - 1


def test_a_block_without_bytes_takes_no_reusable_memory():
    ledger = idle(8).give("a", "init", blocks=[Block(1, MEMORY, 5 * GIB)], init=True)

    after = ledger.give("a", "nothing", blocks=[Block(1, MEMORY, 0)], earlier=["init"])

    assert after.nodes[0].tables == ledger.nodes[0].tables
    assert after.held["a"]["init"] == ledger.held["a"]["init"]


def test_releasing_an_unknown_pod_changes_nothing():
    ledger = idle(8).give("a", "app", blocks=[Block(1, MEMORY, GIB)])

    assert ledger.release("a", "other") == ledger
    assert ledger.release("b", "app") == ledger


def held(*blocks: Block) -> MemoryLedger:
    """Two nodes of 4 GiB, and each block held by a different pod."""
    ledger = idle(4, 4)
    for number, block in enumerate(blocks):
        ledger = ledger.give(f"p{number}", "app", blocks=[block])
    return ledger


def test_an_empty_ledger_starts_as_an_idle_machine():
    assert MemoryLedger().restored(idle(4)) == idle(4)


def test_the_spread_of_a_block_over_its_group_is_not_compared():
    """Given back and taken again, the group's bytes lie elsewhere than a fresh count would put them."""
    stored = held(Block(BOTH, MEMORY, 3 * GIB), Block(BOTH, MEMORY, 3 * GIB)).release("p0", "app")
    moved = {node: replace_free(facts, by=GIB if node == 0 else -GIB) for node, facts in stored.nodes.items()}

    assert replace(stored, nodes=moved).restored(idle(4, 4)).nodes == moved


def replace_free(facts: NodeMemory, *, by: int) -> NodeMemory:
    table = facts.tables[MEMORY]
    return facts._replace(tables={MEMORY: table._replace(reserved=table.reserved + by, free=table.free - by)})


def test_blocks_of_whole_pods_count_only_with_pod_level_allocation():
    stored = idle(4, 4).give_pod("a", [Block(1, MEMORY, 2 * GIB)], containers={"c": (Block(1, MEMORY, GIB),)})

    assert stored.restored(idle(4, 4), pod_level=True).pod_held == stored.pod_held
    with pytest.raises(StateError, match=DIFFERENT):
        stored.restored(idle(4, 4))
