"""Memory kept back for the system: what is rejected, and what is proposed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import SettingsError
from alignup.align.machine import Cpu, HugePages, KubeletView, Machine, NumaNode, hugepages_resource
from alignup.align.memory import reserved_memory
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from tests.align.memory.model import GIB, MEMORY, PAGE, PAGES
from tests.strategies import machines
from tests.strategies_pods import amounts


def entry(node: int, **texts: str) -> ReservedMemory:
    return ReservedMemory(node, amounts({name.replace("_", "-"): text for name, text in texts.items()}))


def machine(*gib: int, without_cpus: tuple[int, ...] = (), pages: int = 0) -> KubeletView:
    """Nodes 0, 1, … with that many GiB, huge pages in them, and one CPU each unless said otherwise."""
    nodes = tuple(NumaNode(node, size * GIB, (HugePages(PAGE, pages),)) for node, size in enumerate(gib))
    ids = [node.id for node in nodes if node.id not in without_cpus]
    cpus = tuple(Cpu(id=node, core=node, socket=0, node=node) for node in ids)
    return Machine(cpus=cpus, nodes=nodes).kubelet_view()


def test_of_several_entries_for_one_node_the_last_one_counts():
    entries = [entry(0, memory="1Gi"), entry(0, memory="2Gi"), entry(1, memory="1Gi")]

    kept = reserved_memory.reserved_by_node(entries, amounts({MEMORY: "4Gi"}), nodes=machine(8, 8).nodes)

    assert kept == {0: {MEMORY: 2 * GIB}, 1: {MEMORY: GIB}}
    assert tuple(reserved_memory.reservation_problems(entries)) == (
        'invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "memory"',
    )


def test_excess_reservations_are_listed():
    nodes = machine(4, 4, pages=512).nodes

    assert reserved_memory.excess_reservations(nodes, {0: {MEMORY: 3 * GIB, PAGES: GIB}}) == ()
    assert reserved_memory.excess_reservations(nodes, {0: {MEMORY: 4 * GIB}, 1: {PAGES: GIB + PAGE, "cpu": 1}}) == (
        "4Gi of memory is reserved on NUMA node 0, which has 3Gi",
        "1026Mi of hugepages-2Mi is reserved on NUMA node 1, which has 1Gi",
    )


@pytest.mark.parametrize(
    ("view", "reservation", "proposed"),
    [
        pytest.param(
            machine(4, 4), {MEMORY: "2Gi"}, {0: {MEMORY: "1Gi"}, 1: {MEMORY: "1Gi"}}, id="alike on equal nodes"
        ),
        pytest.param(
            machine(12, 4), {MEMORY: "1000Mi"}, {0: {MEMORY: "750Mi"}, 1: {MEMORY: "250Mi"}}, id="more on larger nodes"
        ),
        pytest.param(machine(4, 4), {MEMORY: "1000001"}, {0: {MEMORY: "1000001"}}, id="small amounts stay together"),
        pytest.param(
            machine(4, 4, 64, without_cpus=(2,)),
            {MEMORY: "4Gi"},
            {0: {MEMORY: "2Gi"}, 1: {MEMORY: "2Gi"}},
            id="memory of GPUs is left alone",
        ),
        pytest.param(
            machine(4, 4, 8, without_cpus=(2,)),
            {MEMORY: "12Gi"},
            {0: {MEMORY: "3Gi"}, 1: {MEMORY: "3Gi"}, 2: {MEMORY: "6Gi"}},
            id="unless the other nodes are too small",
        ),
        pytest.param(
            machine(4, 4, pages=4),
            {MEMORY: "100Mi", PAGES: "6Mi", "cpu": "1"},
            {0: {MEMORY: "50Mi", PAGES: "4Mi"}, 1: {MEMORY: "50Mi", PAGES: "2Mi"}},
            id="huge pages are not torn",
        ),
    ],
)
def test_a_reservation_is_spread_over_the_nodes(view, reservation, proposed):
    entries = reserved_memory.propose_reserved_memory(amounts(reservation), view)

    shown = {entry.node: {type_: str(amount) for type_, amount in entry.limits.items()} for entry in entries}
    assert shown == proposed


@pytest.mark.parametrize(
    ("reservation", "error"),
    [
        pytest.param(
            {MEMORY: "9Gi"}, "9Gi of memory cannot be reserved: the NUMA nodes have 6Gi", id="more than there is"
        ),
        pytest.param(
            {MEMORY: "1Gi", "hugepages-1Gi": "1Gi"},
            "1Gi of hugepages-1Gi cannot be reserved: the NUMA nodes have 0",
            id="huge pages of a size there is not",
        ),
        pytest.param(
            {MEMORY: "1500m"}, "1500m of memory cannot be reserved: it is not a whole number of bytes", id="a fraction"
        ),
        pytest.param(
            {PAGES: "2Mi"}, "[memorymanager] you should specify the system reserved memory", id="no memory at all"
        ),
    ],
)
def test_an_impossible_reservation_is_an_error(reservation, error):
    with pytest.raises(SettingsError) as caught:
        reserved_memory.propose_reserved_memory(amounts(reservation), machine(4, 4, pages=512))

    assert str(caught.value) == error


@given(machines(), st.data())
def test_a_proposal_satisfies_the_kubelet(machine, data):
    """Whatever the machine has can be reserved, down to the last byte, without faults and without excess."""
    view = machine.kubelet_view()
    room: dict[str, int] = {}
    for node in view.nodes:
        room[MEMORY] = room.get(MEMORY, 0) + (node.memory or 0)
        for pages in node.hugepages:
            type_ = hugepages_resource(pages.size)
            room[type_] = room.get(type_, 0) + pages.bytes
            room[MEMORY] -= pages.bytes
    if not room[MEMORY]:
        return
    sizes = {type_: data.draw(st.integers(type_ == MEMORY, most)) for type_, most in room.items()}
    reservation = {type_: Quantity(size) for type_, size in sizes.items()}

    entries = reserved_memory.propose_reserved_memory(reservation, view)

    kept = reserved_memory.reserved_by_node(entries, reservation, nodes=view.nodes)
    assert tuple(reserved_memory.reservation_problems(entries)) == ()
    assert reserved_memory.excess_reservations(view.nodes, kept) == ()
    assert {type_: sum(node_sizes.get(type_, 0) for node_sizes in kept.values()) for type_ in sizes} == sizes
