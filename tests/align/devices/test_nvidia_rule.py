"""NVIDIA's choice, compared with a plain enumeration of all partitions in every order."""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.devices import nvidia_rule
from alignup.align.devices.nvidia_rule import PluginCrashError, answer, possible_answers

#: The links of KEP-693's example: NVLink only between these pairs.
KEP_PAIRS = ((0, 3), (1, 2), (4, 7), (5, 6))


@st.composite
def tables(draw: st.DrawFn, *, most: int = 6) -> list[list[int]]:
    count = draw(st.integers(2, most))
    table = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        table[a][b] = table[b][a] = draw(st.sampled_from((10, 20, 50, 110)))
    return table


def partitions(gpus: Sequence[int | None], size: int) -> Iterator[list[tuple[int | None, ...]]]:
    """Yield all partitions in the plugin's order."""
    if not gpus:
        yield []
        return
    padding = gpus.count(None)
    for others in combinations(gpus[1:], size - 1):
        group = (gpus[0], *others)
        if group.count(None) in (0, padding):
            left = [gpu for gpu in gpus if gpu not in group]
            for rest in partitions(left, size):
                yield [group, *rest]


def plain_answer(
    table: list[list[int]], order: Sequence[int], required: Sequence[int], size: int
) -> tuple[int | None, ...]:
    def score(group: Sequence[int | None]) -> int:
        return sum(table[a][b] for a, b in combinations([gpu for gpu in group if gpu is not None], 2))

    padded: list[int | None] = [*order, *[None] * (-len(order) % size)]
    allowed = [
        sets
        for sets in partitions(padded, size)
        if any(None not in group and set(required).issubset(group) for group in sets)
    ]
    best = max(allowed, key=lambda sets: sum(map(score, sets)))
    return max((group for group in best if set(required).issubset(group)), key=score)


def listed(possible: nvidia_rule.PossiblePicks | None) -> set[tuple[int, ...]]:
    assert possible is not None
    return {
        tuple(sorted(gpu for part in parts for gpu in part))
        for picks in possible.picks
        for parts in product(*(combinations(gpus, count) for count, gpus in picks))
    }


@given(tables(most=7), st.data())
def test_answer_for_an_order_is_the_first_best_partition(table, data):
    order = data.draw(st.permutations(range(len(table))))
    size = data.draw(st.integers(2, len(table)))
    required = data.draw(st.lists(st.sampled_from(order), max_size=size, unique=True))

    assert answer(table, order, required=required, size=size) == plain_answer(table, order, required, size)


@given(tables(most=5), st.data())
def test_possible_answers_are_those_of_all_orders(table, data):
    size = data.draw(st.integers(2, len(table)))
    required = data.draw(st.lists(st.sampled_from(range(len(table))), max_size=1))
    real = {plain_answer(table, order, required, size) for order in permutations(range(len(table)))}

    possible = possible_answers(table, range(len(table)), required=required, size=size)

    assert listed(possible) == {
        tuple(sorted(gpu for gpu in group if gpu is not None)) for group in real if None not in group
    }
    assert possible is not None
    assert possible.crashes == any(None in group for group in real)


def test_pairs_of_kep_693_are_the_possible_choices():
    table = [[10 if a != b else 0 for b in range(8)] for a in range(8)]
    for a, b in KEP_PAIRS:
        table[a][b] = table[b][a] = 110

    assert listed(possible_answers(table, range(8), size=2)) == set(KEP_PAIRS)
    assert listed(possible_answers(table, (0, 1, 2, 4, 5), size=2)) == {(1, 2)}


def test_a_question_without_an_answer():
    for required, size in (((0,), 5), ((0, 1, 2), 2)):
        assert answer([[0] * 3] * 3, (0, 1, 2), required=required, size=size) == ()
        assert listed(possible_answers([[0] * 3] * 3, (0, 1, 2), required=required, size=size)) == {()}


def test_one_gpu_is_any_of_the_free_ones():
    assert listed(possible_answers([[0] * 4] * 4, (1, 3), size=1)) == {(1,), (3,)}
    assert answer([[0] * 4] * 4, (3, 1), size=1) == (3,)


def test_rest_with_padding_can_win_and_crash_the_plugin():
    """Two bridged GPUs, and three under one switch."""
    table = [[10] * 5 for _ in range(5)]
    table[0][1] = table[1][0] = 400
    for a, b in combinations((2, 3, 4), 2):
        table[a][b] = table[b][a] = 50

    assert answer(table, range(5), size=3) == (0, 1, None)
    possible = possible_answers(table, range(5), size=3)
    assert possible is not None
    assert possible.crashes


def test_plugin_overwrites_its_best_sets_from_13_gpus_on():
    table = [[10] * 14 for _ in range(14)]
    for a, b in ((10, 11), (12, 13)):
        table[a][b] = table[b][a] = 810

    assert answer(table, range(14), size=2) == (0, 1)
    assert answer(table, range(14), required=(10,), size=2) == (10, 13)
    assert possible_answers(table, range(14), size=2) is None
    assert nvidia_rule.overwritten_sets(12, 2) == (6, 6)


def pair_scores(links):
    """The scores of a table of links; the list of the GPU that comes first counts."""
    ids = range(len(links))
    score = nvidia_rule.pair_score
    return [[score(links[a][b]) if len(links[a][b]) == len(links[b][a]) else None for b in ids] for a in ids]


def test_links_that_only_one_gpu_reports_crash_the_plugin():
    links = [[["SYS"] if a != b else [] for b in range(4)] for a in range(4)]
    links[0][1] = ["SYS", "NV2"]
    table = pair_scores(links)

    with pytest.raises(PluginCrashError):
        answer(table, range(4), size=2)
    assert answer(table, range(4), required=(0, 2), size=2) == (0, 2)
    assert possible_answers(table, range(4), size=2) is None


@pytest.mark.parametrize(("available", "size", "count"), [(8, 2, 105), (8, 3, 280), (16, 7, 205_920), (10, 3, 2_800)])
def test_partitions_are_counted(available, size, count):
    assert nvidia_rule.count_partitions(available, size) == count
