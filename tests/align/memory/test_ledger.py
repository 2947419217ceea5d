"""The memory ledger: charging, giving back, using again, and reading a stored one."""

from dataclasses import replace

import pytest

from alignup.align.errors import StateError
from alignup.align.machine import HugePages, NumaNode
from alignup.align.memory.ledger import Block, MemoryLedger, MemoryTable, NodeMemory
from tests.align.memory.model import GIB, MEMORY, PAGE, PAGES, idle

BOTH = 0b11
DIFFERENT = "the expected machine state is different from the real one"


def test_an_idle_machine_keeps_huge_pages_and_reservations_out_of_its_memory():
    nodes = [NumaNode(5, 8 * GIB, (HugePages(PAGE, 512), HugePages(GIB, 2))), NumaNode(2, None)]

    ledger = MemoryLedger.of_machine(nodes, {5: {MEMORY: GIB, "hugepages-1Gi": GIB}})

    assert list(ledger.nodes) == [2, 5]
    assert ledger.nodes[2] == NodeMemory(1 << 2, 0, {MEMORY: MemoryTable(0, 0, 0, 0, 0)})
    assert ledger.nodes[5].tables == {
        PAGES: MemoryTable(GIB, 0, GIB, 0, GIB),
        "hugepages-1Gi": MemoryTable(2 * GIB, GIB, GIB, 0, GIB),
        MEMORY: MemoryTable(8 * GIB, GIB, 4 * GIB, 0, 4 * GIB),
    }
    assert ledger.allocatable() == (
        Block(1 << 5, "hugepages-1Gi", GIB),
        Block(1 << 5, PAGES, GIB),
        Block(1 << 5, MEMORY, 4 * GIB),
    )


def test_reserving_more_than_there_is_wraps_around_as_in_the_kubelet():
    ledger = MemoryLedger.of_machine([NumaNode(0, GIB)], {0: {MEMORY: GIB + 1}})

    assert ledger.nodes[0].tables[MEMORY].allocatable == (1 << 64) - 1


def test_a_group_is_charged_and_released_from_its_lowest_node():
    ledger = idle(4, 4)

    first = ledger.give("a", "app", blocks=[Block(BOTH, MEMORY, 5 * GIB)])
    second = first.give("b", "app", blocks=[Block(BOTH, MEMORY, 2 * GIB)])

    assert [(node.cells, node.assignments, node.tables[MEMORY].free) for node in second.nodes.values()] == [
        (BOTH, 2, 0),
        (BOTH, 2, GIB),
    ]
    left = second.release("a", "app")
    assert [(node.cells, node.assignments, node.tables[MEMORY].free) for node in left.nodes.values()] == [
        (BOTH, 1, 4 * GIB),
        (BOTH, 1, 2 * GIB),
    ]
    assert left.release("b", "app") == replace(ledger, last_pod="b")
    assert ledger == idle(4, 4), "a ledger never changes"


def test_reused_memory_is_charged_once():
    ledger = idle(8).give("a", "init", blocks=[Block(1, MEMORY, 5 * GIB)], init=True)

    ledger = ledger.give("a", "one", blocks=[Block(1, MEMORY, 3 * GIB)], earlier=["init"])
    ledger = ledger.give("a", "two", blocks=[Block(1, MEMORY, 4 * GIB)], earlier=["init"])

    assert {name: blocks[0].size // GIB for name, blocks in ledger.held["a"].items()} == {"init": 0, "one": 3, "two": 4}
    assert ledger.nodes[0].tables[MEMORY].reserved == 7 * GIB
    assert ledger.reusable == {1: {MEMORY: 0}}
    assert ledger.give("a", "nothing", blocks=[Block(1, MEMORY, 0)], earlier=["init"]).nodes[0].tables == (
        ledger.nodes[0].tables
    )


def test_memory_is_reusable_only_on_the_same_nodes_by_the_same_pod():
    ledger = idle(8, 8).give("a", "init", blocks=[Block(1, MEMORY, 5 * GIB)], init=True)

    elsewhere = ledger.give("a", "app", blocks=[Block(2, MEMORY, 3 * GIB)], earlier=["init"])
    stranger = ledger.give("b", "app", blocks=[Block(1, MEMORY, 3 * GIB)])

    assert elsewhere.nodes[1].tables[MEMORY].reserved == 3 * GIB
    assert elsewhere.reusable_by("a") == {1: {MEMORY: 5 * GIB}}
    assert stranger.nodes[0].tables[MEMORY].reserved == 8 * GIB
    assert stranger.reusable_by("a") == {}


def test_a_pods_own_blocks_go_with_its_last_container():
    whole = [Block(1, MEMORY, 4 * GIB)]
    ledger = idle(8).give_pod("a", whole, containers={"one": (Block(1, MEMORY, GIB),), "two": tuple(whole)})

    less = ledger.release("a", "one")

    assert less.nodes == ledger.nodes
    assert less.release("a", "stranger") == less
    assert less.release("a", "two") == idle(8)


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


def test_a_restored_ledger_has_no_reusable_memory():
    stored = idle(4, 4).give("a", "init", blocks=[Block(BOTH, MEMORY, GIB)], init=True)

    restored = stored.restored(idle(4, 4))

    assert (restored.nodes, restored.held) == (stored.nodes, stored.held)
    assert restored.reusable_by("a") == {}


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


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        pytest.param(
            MemoryLedger(held={"p": {"c": ()}}),
            "[memorymanager] machine state can not be empty when it has memory assignments",
            id="assignments without a machine",
        ),
        pytest.param(
            replace(idle(4, 4), held={"p": {"c": (Block(1 << 7, MEMORY, 1),)}}),
            "[memorymanager] (pod: p, container: c) the memory assignment uses the NUMA that does not exist",
            id="a block on a node that is gone",
        ),
        pytest.param(idle(4, 8), f"[memorymanager] {DIFFERENT}", id="a node of another size"),
    ],
)
def test_an_invalid_stored_ledger_raises_the_kubelets_error(stored, message):
    with pytest.raises(StateError) as caught:
        stored.restored(idle(4, 4))

    assert str(caught.value) == message


def test_blocks_of_whole_pods_count_only_with_pod_level_allocation():
    stored = idle(4, 4).give_pod("a", [Block(1, MEMORY, 2 * GIB)], containers={"c": (Block(1, MEMORY, GIB),)})

    assert stored.restored(idle(4, 4), pod_level=True).pod_held == stored.pod_held
    with pytest.raises(StateError, match=DIFFERENT):
        stored.restored(idle(4, 4))
