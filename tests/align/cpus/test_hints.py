"""Where CPUs could come from."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.cpus.provider import CpuNodes
from alignup.align.hint import HintList, subsets
from alignup.machines import synthetic
from tests.strategies import cpu_sets, machines

#: 2 sockets of 2 nodes of 4 CPUs.
VIEW = synthetic.parse("pack:2 numa:2 core:4 pu:1").kubelet_view()


@given(machines(max_nodes=5), st.data())
def test_hints_are_the_sets_that_hold_enough(machine, data):
    """Every set with enough free CPUs, preferred if no smaller set of the empty machine would do, and no other."""
    view = machine.kubelet_view()
    free = data.draw(cpu_sets(view.all_cpus.bit_length())) & view.all_cpus
    request = data.draw(st.integers(1, view.num_cpus))
    nodes = CpuNodes(view, by_socket=False)

    hints = tuple(HintList.of_family(nodes.hints(request, free=nodes.count(free))))

    every = subsets(bits.of(view.node_cpus))
    width = min(mask.bit_count() for mask in every if nodes.near(mask).bit_count() >= request)
    assert hints == tuple(
        (mask, mask.bit_count() == width) for mask in every if (nodes.near(mask) & free).bit_count() >= request
    )


@given(machines(max_nodes=5), st.data())
def test_sockets_only_add_preferred_sets(machine, data):
    """With align-by-socket the same sets fit, and what was preferred still is."""
    view = machine.kubelet_view()
    free = data.draw(cpu_sets(view.all_cpus.bit_length())) & view.all_cpus
    request = data.draw(st.integers(1, view.num_cpus))

    plain, wider = (
        HintList.of_family(nodes.hints(request, free=nodes.count(free)))
        for nodes in (CpuNodes(view, by_socket=False), CpuNodes(view, by_socket=True))
    )

    assert wider.masks == plain.masks
    assert wider.preferred >= plain.preferred


@pytest.mark.parametrize(
    ("by_socket", "cpus"),
    [
        pytest.param(False, "4-7", id="those of the node"),
        pytest.param(True, "0-7", id="those of the node's socket, where sockets count"),
    ],
)
def test_cpus_near_a_node(by_socket, cpus):
    assert bits.show(CpuNodes(VIEW, by_socket=by_socket).near(bits.of([1]))) == cpus


def test_hints_do_not_depend_on_other_threads():
    """Another thread may ask about another ledger between any two lines."""
    nodes = CpuNodes(VIEW, by_socket=False)
    free, other = nodes.count(bits.parse("0-3")), nodes.count(bits.parse("4-7"))

    def interrupt(frame, event, _):
        if frame.f_code is not CpuNodes.hints.__code__:
            return None
        sys.settrace(None)
        nodes.hints(4, free=other)
        sys.settrace(interrupt)
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        first, second = nodes.hints(4, free=free), nodes.hints(4, free=other)
    finally:
        sys.settrace(before)

    assert [hints.amounts for hints in (first, second)] == [free, other]
