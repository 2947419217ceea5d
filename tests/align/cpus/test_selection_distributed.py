"""Spreading CPUs evenly over NUMA nodes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.selection import (
    ENDLESS,
    MAX_EXACT_NODES,
    DistributedSelection,
    PackedSelection,
    plan_distribution,
)
from alignup.align.errors import ProviderError
from alignup.align.machine import Cpu, KubeletView, NumaNode
from alignup.machines import synthetic
from tests.align.cpus import naive
from tests.strategies import cpu_sets, machines

#: 1 socket of 4 nodes of 8 CPUs.
FOUR = synthetic.parse("pack:1 numa:4 core:8 pu:1").kubelet_view()


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        pytest.param("0-31", 4, "0-3", id="what one node can hold goes to one"),
        pytest.param("0-31", 12, "0-5,8-13", id="more goes to two in equal shares"),
        pytest.param("4-31", 12, "8-13,16-21", id="to the two that have most, so that all have about as much left"),
        pytest.param("0-2,8-10,16-18,24-26", 8, "0-2,8-10,16-17", id="to more nodes where they are too small"),
    ],
)
def test_distributed(free, count, taken):
    assert bits.show(DistributedSelection(FOUR).take(bits.parse(free), count)) == taken


@given(st.data())
def test_the_search_equals_brute_force(data):
    """The first of all best combinations and dealings, as the kubelet goes through them, without going through them."""
    sizes = data.draw(st.lists(st.integers(1, data.draw(st.sampled_from([3, 9, 40]))), min_size=1, max_size=5))
    group = data.draw(st.sampled_from([1, 1, 2, 4]))
    count = data.draw(st.integers(1, sum(sizes))) // group * group
    assume(count > 0)
    fewest = data.draw(st.integers(1, 3))
    sockets = data.draw(st.none() | st.lists(st.sampled_from([1, 2, 3]), min_size=len(sizes), max_size=len(sizes)))

    plan = plan_distribution(sizes, count, group=group, fewest=fewest, sockets=sockets)
    tried = naive.plan(sizes, count, group=group, fewest=fewest, sockets=sockets)

    assert (plan is None) == (tried is None)
    if plan and tried:
        nodes, share, dealers = tried
        left = {place: sizes[place] - share for place in dealers}
        rounds = [place for number in range(count) for place in dealers if left[place] // group > number]
        assert plan[:3] == (nodes, share, tuple(rounds[: (count - share * len(nodes)) // group]))


@given(st.lists(st.integers(1, 64), min_size=MAX_EXACT_NODES + 1, max_size=24), st.data())
def test_on_many_nodes_the_richest_nodes_are_used(sizes, data):
    """Above the limit no search: still as few nodes as can, the richest ones, and every CPU accounted for."""
    count = data.draw(st.integers(1, sum(sizes)))

    plan = plan_distribution(sizes, count)

    if plan is None:
        return
    nodes, share, dealt = plan[:3]
    poorest = min(sizes[place] for place in nodes)
    assert all(size <= poorest for place, size in enumerate(sizes) if place not in nodes)
    assert share * len(nodes) + len(dealt) == count
    assert len(dealt) < len(nodes)
    assert all(share + dealt.count(place) <= sizes[place] for place in nodes)


@given(machines(max_nodes=6), st.data())
def test_exactly_the_requested_number_of_free_cpus_is_taken(machine, data):
    """Whatever the machine, also where the kubelet would deal for ever."""
    view = machine.kubelet_view()
    free = data.draw(cpu_sets(view.all_cpus.bit_length())) & view.all_cpus
    count = data.draw(st.integers(0, free.bit_count()))
    group = data.draw(st.sampled_from([1, max(view.cpus_per_core, 1)]))

    taken = DistributedSelection(view, group=group, by_socket=data.draw(st.booleans())).take(free, count)

    assert taken & ~free == 0
    assert taken.bit_count() == count


def test_a_node_on_two_sockets_counts_once():
    rows = [(0, 0), (0, 0), (0, 1), (1, 1), (1, 1), (1, 2), (1, 2), (1, 2)]
    view = KubeletView(
        cpus=tuple(Cpu(cpu, core=cpu, socket=socket, node=node, cache=0) for cpu, (socket, node) in enumerate(rows)),
        num_cpus=8,
        num_cores=8,
        num_sockets=2,
        nodes=(NumaNode(0), NumaNode(1), NumaNode(2)),
    )

    assert bits.show(DistributedSelection(view).take(view.all_cpus, 7)) == "0-6"


def test_a_request_that_is_not_a_multiple_of_the_group_is_packed():
    free = FOUR.all_cpus

    assert DistributedSelection(FOUR, group=2).take(free, 13) == PackedSelection(FOUR).take(free, 13)


class TestDefects:
    """With the kubelet's defects; ``tests/conformance/test_cpu_take.py`` compares all of them."""

    VIEW = synthetic.parse("pack:2 numa:2 core:3 pu:2").kubelet_view()

    def test_a_perfect_combination_ends_the_search(self):
        free = bits.parse("0,6-10,12,18-22")  # 1, 5, 1 and 5 CPUs of the nodes: 4 of the large ones leave 1 each
        selection = DistributedSelection(self.VIEW, group=2, kubelet_faults=True)

        assert selection.take(free, 8) == DistributedSelection(self.VIEW, group=2).take(free, 8)

    def test_turns_that_give_nothing_do_not_end(self):
        selection = DistributedSelection(self.VIEW, group=2, kubelet_faults=True)

        with pytest.raises(ProviderError, match=ENDLESS):
            selection._take_in_turns(0, [0b1], 2)  # noqa: SLF001 - no combination with this effect is known
