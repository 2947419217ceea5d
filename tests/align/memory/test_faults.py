"""Where the kubelet goes wrong with memory, and what is done here instead (``docs/why/differences.md``)."""

import pytest

from alignup.align import bits
from alignup.align.errors import ProviderError, StateError
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryProvider
from alignup.align.workload import Pod, Resources
from tests.align.memory.model import ANYWHERE, AS_ONE, FAULTY, GIB, MEMORY, PAGES, app, idle, nodes_of, on, placed, pod
from tests.strategies_pods import amounts

SHARED = pod("shared", app("c", "5Gi"))
SMALL = pod("small", app("c", "1Gi"))


def shares(ledger: MemoryLedger) -> list[tuple[str, int, int]]:
    """For each node its group, how many blocks touch it, and the GiB it has free."""
    return [
        (bits.show(node.cells), node.assignments, node.tables[MEMORY].free // GIB) for node in ledger.nodes.values()
    ]


def grouped() -> MemoryLedger:
    """Two nodes of 8 GiB that serve one pod together."""
    return placed(idle(8, 8), SHARED, on(0, 1))


def test_a_container_for_one_node_of_a_group_joins_the_group():
    ledger = placed(grouped(), SMALL, on(1))

    assert shares(ledger) == [("0-1", 2, 2), ("0-1", 2, 8)]


def test_a_node_split_from_its_group_frees_memory_in_use():
    """Why not to copy it: the group releases from its lowest node, which now holds another pod's memory."""
    ledger = placed(grouped(), pod("second", app("c", "5Gi")), on(0, 1)).release("shared", "c")
    assert shares(ledger) == [("0-1", 1, 5), ("0-1", 1, 6)]
    split = placed(ledger, pod("small", app("c", "5Gi")), on(0), settings=FAULTY)

    left = split.release("second", "c")

    assert shares(left) == [("0", 1, 5), ("1", 0, 6)], "5 of 8 GiB are in use on node 0, none on node 1"


def test_a_container_for_one_node_of_a_full_group_is_rejected():
    ledger = placed(grouped(), pod("filling", app("c", "11Gi")), on(0, 1))
    assert shares(ledger) == [("0-1", 2, 0), ("0-1", 2, 0)]

    with pytest.raises(ProviderError, match="failed to find NUMA nodes to extend the current topology hint"):
        placed(ledger, SMALL, on(0))


def test_a_restart_visits_groups_first():
    """The kubelet visits containers at random, and half of its starts on this state fail."""
    split = placed(grouped(), SMALL, on(0), settings=FAULTY)
    backwards = MemoryLedger(split.nodes, dict(reversed(list(split.held.items()))))

    assert split.restored(idle(8, 8)).nodes == split.nodes
    assert backwards.restored(idle(8, 8)).nodes == split.nodes


def test_a_split_group_is_rejected_at_every_start():
    split = placed(grouped(), SMALL, on(0), settings=FAULTY).release("small", "c")

    with pytest.raises(StateError, match="different from the real one"):
        split.restored(idle(8, 8))
    assert placed(grouped(), SMALL, on(0)).release("small", "c").restored(idle(8, 8))


def whole() -> Pod:
    requests = amounts({"cpu": "1", MEMORY: "3Gi"})
    return Pod(name="p", uid="p", containers=(app("c", "1Gi"),), resources=Resources(requests, requests))


def test_a_pod_placed_as_a_whole_is_placed_once():
    ledger = MemoryProvider(AS_ONE).allocate(idle(8, 8), whole(), None, affinity=on(1))

    again = MemoryProvider(AS_ONE).allocate(ledger, whole(), None, affinity=ANYWHERE)

    assert again == ledger


def test_huge_pages_of_a_size_that_one_node_does_not_list():
    ledger = idle(8, 8, pages={1: 512})
    made = pod("p", app("c", "1Gi", "512Mi"))

    assert nodes_of(placed(ledger, made), "p", "c") == bits.of([1])
    assert nodes_of(placed(ledger, made, on(0)), "p", "c") == bits.of([0, 1])
    both = placed(ledger, made, on(0, 1))
    assert both.nodes[0].tables.keys() == {MEMORY}
    assert both.nodes[1].tables[PAGES].reserved == GIB // 2
    assert both.release("p", "c").nodes == ledger.nodes
