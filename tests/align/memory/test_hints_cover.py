"""Covering: the fewest and the lowest nodes, compared with trying all of them."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import WorkLimitError
from alignup.align.memory import hints
from alignup.align.memory.hints import NodeAmounts
from tests.effort import SEED, did, rounds


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[NodeAmounts], NodeAmounts]:
    """Up to seven stocks of up to three kinds, often alike, and a need near what some of them hold."""
    kinds = draw(st.integers(1, 3))
    amounts = st.tuples(*[st.integers(0, 6)] * kinds)
    few = draw(st.lists(amounts, min_size=1, max_size=4))
    stocks = draw(st.lists(st.sampled_from(few) | amounts, max_size=7))
    return stocks, draw(st.tuples(*[st.integers(-1, 15)] * kinds))


def add_up(stocks: list[NodeAmounts], need: NodeAmounts) -> bool:
    return all(sum(stock[kind] for stock in stocks) >= wanted for kind, wanted in enumerate(need))


@given(questions())
def test_the_fewest_and_lowest_nodes_equal_brute_force(request_of):
    stocks, need = request_of
    places = range(len(stocks))
    fitting = [
        chosen
        for width in range(1, len(stocks) + 1)
        for chosen in combinations(places, width)
        if add_up([stocks[place] for place in chosen], need)
    ]

    count = hints.fewest_nodes(stocks, need)

    assert count == (len(fitting[0]) if fitting else None)
    if count:
        lowest = min(bits.of(chosen) for chosen in fitting if len(chosen) == count)
        assert hints.lowest_nodes(list(enumerate(stocks)), need, count=count) == lowest


@given(questions(), st.integers(0, 8))
def test_is_enough_if_some_choice_holds_the_need(request_of, count):
    stocks, need = request_of

    answer = hints.is_enough(stocks, need, count=count)

    assert answer is any(add_up(list(chosen), need) for chosen in combinations(stocks, min(count, len(stocks))))


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [2, 3, 4])
def test_many_different_nodes_give_an_exact_result_or_an_error(kinds):
    """Any answer holds what is needed, and one node less is not enough for the weighted need of some weights."""
    random = Random(SEED + kinds)
    for _ in range(rounds(2, soak=100)):
        stocks = [tuple(random.randrange(10**10) for _ in range(kinds)) for _ in range(64)]
        share = random.uniform(0.2, 0.8)
        need = tuple(int(share * sum(column)) for column in zip(*stocks, strict=True))

        count = hints.fewest_nodes(stocks, need)

        assert count is not None
        assert hints.is_enough(stocks, need, count=count)
        assert not hints.is_enough(stocks, need, count=count - 1)
        chosen = hints.lowest_nodes(list(enumerate(stocks)), need, count=count)
        assert chosen.bit_count() == count
        assert add_up([stocks[node] for node in bits.members(chosen)], need)
        did("machines with 64 different nodes")


def test_a_search_that_takes_too_long_is_an_error():
    """Nodes that hold a lot of one kind or of the other: half of them would have to add up to the very byte."""
    random = Random(7)
    stocks = [(first := random.randrange(1, 1000), 1000 - first) for _ in range(40)]
    need = (10_007, 9_993)

    with pytest.raises(WorkLimitError, match="cannot decide within 10 steps") as caught:
        hints.is_enough(stocks, need, count=20, work_limit=10)

    assert caught.value.sources == ("memory",)
