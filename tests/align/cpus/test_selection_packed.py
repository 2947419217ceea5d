"""The order in which CPUs are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.selection import PackedSelection, lowest_cpus
from alignup.align.machine import Cpu, KubeletView, NumaNode
from alignup.machines import synthetic
from tests.strategies import cpu_sets, machines

#: 2 sockets, a node each, 4 cores of 2 threads each; siblings are 8 apart.
SMALL = synthetic.parse("pack:2 numa:1 core:4 pu:2(indexes=2*8:1*2)").kubelet_view()
#: 1 socket, a node, 4 caches of 2 cores of 2 threads; siblings are neighbors.
CACHES = synthetic.parse("pack:1 numa:1 l3:4 core:2 pu:2").kubelet_view()
#: 2 sockets of 2 nodes of 4 CPUs each.
FOUR = synthetic.parse("pack:2 numa:2 core:4 pu:1").kubelet_view()

#: 1 socket, 2 cores of 2 threads (0, 4 and 1, 5) and 2 of one: 1.5 threads a core on average, so 1.
HYBRID = KubeletView(
    cpus=tuple(Cpu(cpu, core=core, socket=0, node=0, cache=0) for cpu, core in enumerate((0, 1, 2, 3, 0, 1))),
    num_cpus=6,
    num_cores=4,
    num_sockets=1,
    nodes=(NumaNode(0),),
)


SPREAD, BY_CACHE = PackedSelection(SMALL, spread=True), PackedSelection(CACHES, by_cache=True)


@pytest.mark.parametrize(
    ("selection", "free", "count", "taken"),
    [
        pytest.param(PackedSelection(SMALL), "0-15", 2, "0,8", id="a core before two halves"),
        pytest.param(PackedSelection(SMALL), "1-15", 1, "8", id="a thread of a broken core before one of a whole core"),
        pytest.param(PackedSelection(SMALL), "1-15", 2, "1,9", id="but a whole core before a broken one"),
        pytest.param(PackedSelection(SMALL), "1-15", 8, "4-7,12-15", id="a whole socket before a broken one"),
        pytest.param(PackedSelection(SMALL), "2-15", 4, "2-3,10-11", id="cores of the socket that is used most"),
        pytest.param(PackedSelection(FOUR), "1-15", 3, "1-3", id="of the socket used most the node used most"),
        pytest.param(PackedSelection(FOUR), "1-15", 4, "4-7", id="a whole node where there is one"),
        pytest.param(PackedSelection(HYBRID), "0-5", 1, "2", id="a core as big as the average counts as whole"),
        pytest.param(PackedSelection(HYBRID), "1-5", 2, "2-3", id="one that is bigger does not, whatever is free"),
        pytest.param(SPREAD, "0-15", 3, "0-2", id="spread: threads in numeric order, cores are no matter"),
        pytest.param(SPREAD, "0-15", 8, "0-3,8-11", id="spread: but a whole socket is still taken as one"),
        pytest.param(SPREAD, "5-15", 3, "8-10", id="spread: of the socket used most"),
        pytest.param(BY_CACHE, "1-15", 4, "4-7", id="by cache: a whole cache before a broken one"),
        pytest.param(BY_CACHE, "2-15", 2, "2-3", id="by cache: inside the cache used most"),
        pytest.param(BY_CACHE, "2-15", 6, "2-7", id="by cache: what is left after whole caches fits into one cache"),
        pytest.param(BY_CACHE, "0-15", 3, "0-2", id="by cache: an odd number leaves the highest thread"),
    ],
)
def test_packed(selection, free, count, taken):
    assert bits.show(selection.take(bits.parse(free), count)) == taken


@given(machines(max_nodes=5), st.data())
def test_exactly_the_requested_number_of_free_cpus_is_taken(machine, data):
    """Whatever the machine: a choice is what was asked for, of what was offered."""
    view = machine.kubelet_view()
    free = data.draw(cpu_sets(view.all_cpus.bit_length())) & view.all_cpus
    count = data.draw(st.integers(0, free.bit_count()))
    way = data.draw(st.sampled_from([{}, {"spread": True}, {"by_cache": True}]))

    taken = PackedSelection(view, **way).take(free, count)

    assert taken & ~free == 0
    assert taken.bit_count() == count


@given(machines(max_nodes=4), st.data())
def test_a_request_for_a_whole_node_takes_it(machine, data):
    """A request the size of some node that is entirely free breaks no other node of a machine with a node a socket."""
    view = machine.kubelet_view()
    node = data.draw(st.sampled_from(sorted(view.node_cpus)))
    count = view.node_cpus[node].bit_count()
    same_size = [cpus for cpus in view.node_cpus.values() if cpus.bit_count() == count]
    if view.num_sockets < view.num_nodes or any(cpus.bit_count() < count for cpus in view.node_cpus.values()):
        return

    assert PackedSelection(view).take(view.all_cpus, count) in same_size


@given(cpu_sets(64), st.integers(0, 70))
def test_lowest(cpus, count):
    members = list(bits.members(cpus))

    assert list(bits.members(lowest_cpus(cpus, count))) == members[:count]
