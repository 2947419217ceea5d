"""Searching sets in rank order finds what sorting all of them would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.hint import subsets
from alignup.align.merging.search import BudgetExceededError, SearchQuery, WorkBudget, find_best
from tests.strategies_hints import distances_between, node_sets


def query(width, among, *, accept, budget=10**9):
    return SearchQuery(
        width=width,
        among=among,
        completing_nodes=lambda _: among,
        accept=accept,
        promising=lambda _beginning, _more, _below: True,
        budget=WorkBudget(budget),
    )


@given(st.data())
def test_the_first_set_found_is_the_best_of_all(data):
    nodes = data.draw(node_sets(most=6))
    width = data.draw(st.integers(1, nodes.bit_count()))
    sets = [mask for mask in subsets(nodes) if mask.bit_count() == width]
    wanted = data.draw(st.sets(st.sampled_from(sets)))
    distances = data.draw(st.none() | distances_between(nodes))

    best = find_best(query(width, nodes, accept=wanted.__contains__), distances)

    in_order = sorted(wanted, key=lambda mask: (distances.total(mask) if distances else 0, mask))
    assert best[:1] == in_order[:1]
    assert set(best) <= wanted
    assert len(best) <= 4


def test_a_width_beyond_the_number_of_nodes_finds_nothing():
    assert find_best(query(3, 0b101, accept=lambda _: True), None) == []


def test_hopeless_branches_are_skipped():
    tried = []

    def reject(mask):
        tried.append(mask)
        return False

    only_low = SearchQuery(
        width=3,
        among=bits.of(range(40)),
        completing_nodes=lambda _: bits.of(range(40)),
        accept=reject,
        promising=lambda beginning, _more, _below: beginning < 1 << 5,
        budget=WorkBudget(1_000),
    )

    assert find_best(only_low, None) == []
    assert sorted(tried) == [mask for mask in range(1 << 5) if mask.bit_count() == 3]


def test_work_is_charged():
    with pytest.raises(BudgetExceededError):
        find_best(query(4, bits.of(range(40)), accept=lambda _: False, budget=1_000), None)
