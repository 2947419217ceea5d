"""Reachable sets: three ways to find them, one answer."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.hint import DONT_CARE, AmountFamily, Hint, HintList, subsets
from alignup.align.merging import search
from alignup.align.merging.search import BudgetExceededError, WorkBudget
from tests.strategies_hints import families, lists, node_sets

PLENTY = 10**9


def by_product(inputs, nodes):
    """Every intersection of one allowed set each, the long way."""
    reached = set()
    for chosen in product(*(search.allowed_sets(options, nodes) for options in inputs)):
        common = nodes
        for mask in chosen:
            common &= mask
        reached.add(common)
    return reached - {0}


@given(st.data())
def test_all_algorithms_agree_with_the_product(data):
    nodes = data.draw(node_sets(most=4))
    inputs = [
        data.draw(lists(nodes, unknown_nodes=True) | families(nodes)) for _ in range(data.draw(st.integers(1, 3)))
    ]

    expected = by_product(inputs, nodes)

    assert set(search.count_reachable_sets(inputs, nodes)) == expected
    assert set(search.reachable_sets(inputs, nodes)) == expected
    assert search.intersect_lists(inputs, nodes, WorkBudget(PLENTY)) == expected
    for mask in subsets(nodes):
        assert search.is_reachable(mask, inputs, nodes=nodes, budget=WorkBudget(PLENTY)) is (mask in expected)


@given(st.data())
def test_no_set_outside_the_allowed_nodes_is_reachable(data):
    nodes = data.draw(node_sets(most=5))
    options = data.draw(lists(nodes, unknown_nodes=True) | families(nodes))

    assert all(not mask & ~search.allowed_nodes(options, nodes) for mask in search.allowed_sets(options, nodes))


@given(st.data())
def test_dropped_nodes_are_distributed_exactly(data):
    """Sharing nodes out between families that tell their room is a packing problem; the answer must be exact."""
    amounts = st.dictionaries(st.integers(0, 6), st.integers(0, 6), min_size=3, max_size=6)
    shape = data.draw(amounts)
    nodes = sum(1 << node for node in shape)
    inputs = [
        AmountFamily(
            {node: data.draw(st.integers(0, 6)) for node in shape}, data.draw(st.integers(1, 12)), preferred_width=1
        )
        for _ in range(data.draw(st.integers(2, 3)))
    ]
    if not all(family.min_width for family in inputs):
        return

    for mask in subsets(nodes):
        expected = mask in set(search.count_reachable_sets(inputs, nodes))
        assert search.is_reachable(mask, inputs, nodes=nodes, budget=WorkBudget(PLENTY)) is expected


@pytest.mark.parametrize(("slack", "expected"), [(10, True), (9, False)])
def test_nodes_are_distributed_where_the_obvious_way_fails(slack, expected):
    """5 and 5, 4 and 3 and 3 fill two slacks of 10; taking turns from the largest down does not."""
    amounts = {0: 100, 1: 5, 2: 5, 3: 4, 4: 3, 5: 3}
    family = AmountFamily(amounts, 120 - slack, preferred_width=1)

    reachable = search.is_reachable(0b1, [family, family], nodes=0b111111, budget=WorkBudget(PLENTY))

    assert reachable is expected
    assert (0b1 in search.count_reachable_sets([family, family], 0b111111)) is expected


def test_without_inputs_all_nodes_are_reachable():
    assert search.count_reachable_sets([], 0b1011) == [0b1011]
    assert search.intersect_lists([], 0b1011, WorkBudget(0)) == {0b1011}


def test_an_input_without_preference_changes_nothing():
    pair = HintList.of([Hint(0b0110, preferred=False)])

    assert search.count_reachable_sets([pair, DONT_CARE], 0b1111) == [0b0110]


def test_work_is_charged():
    everything = HintList.of(Hint(mask, preferred=False) for mask in range(1, 32))

    with pytest.raises(BudgetExceededError):
        search.intersect_lists([everything, everything], 31, WorkBudget(100))
