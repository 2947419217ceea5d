"""How few nodes touch enough: the same as trying all sets, quickly on large machines, and never a guess."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.devices import hints
from alignup.align.errors import WorkLimitError
from tests.align.devices.plain import GPU

SIX = 0b111111
masks = st.integers(1, SIX)
singles = st.integers(0, 5).map(lambda node: 1 << node)
#: a node, a socket of three, the whole board
levels = st.sampled_from([*(1 << node for node in range(6)), 0b111, 0b111000, SIX])


@pytest.mark.parametrize(
    ("weights", "need", "fewest"),
    [
        pytest.param({0b101: 2, 0b110: 2, 0b1: 1, 0b10: 1}, 6, 2, id="two others touch what the richest node leaves"),
        pytest.param({0b1001: 1, 0b101: 1, 0b10: 1, 0b100: 1}, 4, 3, id="a bound allows two nodes, no two touch all"),
    ],
)
def test_the_richest_node_may_be_the_wrong_one(weights, need, fewest):
    assert hints.fewest_nodes(weights, need, source=GPU) == fewest


@given(st.dictionaries(masks | singles, st.integers(1, 3), max_size=9), st.integers(-1, 20))
def test_the_fewest_nodes_equal_brute_force(weights, need):
    assert hints.fewest_nodes(weights, need, source=GPU) == tried(weights, need)


@given(st.dictionaries(levels, st.integers(1, 3), max_size=9), st.integers(1, 20))
def test_where_sets_are_nested_no_search_is_needed(weights, need):
    assert hints.are_nested(weights)
    assert hints.fewest_nodes(weights, need, source=GPU) == tried(weights, need)


@given(st.sets(masks, max_size=14))
def test_nested_means_any_two(sets):
    assert hints.are_nested(sets) == all(a & b in {0, a, b} for a, b in combinations(sets, 2))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 0.95, 1.0])
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param({bits.of([node, (node + 1) % 64]): 2 for node in range(64)}, id="a ring"),
        pytest.param(
            {bits.of(range(row * 8, row * 8 + 8)): 2 for row in range(8)}
            | {bits.of(range(column, 64, 8)): 2 for column in range(8)},
            id="rows and columns",
        ),
    ],
)
def test_sixty_four_nodes_that_share_devices_in_patterns_stay_within_the_limit(groups, share):
    weights = groups | {1 << node: 1 for node in range(64)}
    need = int(sum(weights.values()) * share)

    count = hints.fewest_nodes(weights, need, source=GPU)

    # Both patterns can be served in full by nodes that share nothing, and after that each node adds its own device.
    each, full = (5, 32) if len(groups) == 64 else (5, 8)
    assert count == (-(-need // each) if need <= each * full else full + need - each * full)


def test_beyond_the_limit_an_error_names_the_resource():
    """Three hundred devices between random pairs of nodes: no real machine is like that."""
    pairs = [(node * 37 % 64, (node * node * 11 + node * 5 + 3) % 64) for node in range(300)]
    weights: dict[bits.NodeSet, int] = {}
    for pair in pairs:
        weights[bits.of(pair)] = weights.get(bits.of(pair), 0) + 1

    with pytest.raises(
        WorkLimitError, match=r"within 2000 steps how few NUMA nodes touch enough devices of example\.com/gpu"
    ) as error:
        hints.fewest_nodes(weights, sum(weights.values()) * 4 // 5, source=GPU)

    assert error.value.sources == (GPU,)


def tried(weights: hints.Weights, need: int) -> int | None:
    """The fewest nodes, by trying all sets of them."""
    nodes = [1 << node for node in range(6)]
    for count in range(1, 7):
        for chosen in combinations(nodes, count):
            if sum(weight for mask, weight in weights.items() if mask & sum(chosen)) >= need:
                return count
    return None
