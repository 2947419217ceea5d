"""Sets of possible choices: counted, listed, drawn from and compared without listing them."""

import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.devices.choices import DeviceChoices, Pool, RandomChooser, format_ids
from alignup.align.devices.hints import natural_sort_key

GPU = "example.com/gpu"


def choices(*options: tuple[Pool, ...], crashes: bool = False) -> DeviceChoices:
    return DeviceChoices("app", GPU, options, crashes)


def gpus(*numbers: int) -> tuple[str, ...]:
    return tuple(f"gpu-{number}" for number in numbers)


@st.composite
def pools(draw: st.DrawFn) -> DeviceChoices:
    """One option with up to three disjoint pools."""
    option, first = [], 0
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        option.append(Pool(draw(st.integers(0, size)), gpus(*range(first, first + size))))
        first += size
    return choices(tuple(option))


@given(pools(), st.integers(0, 99))
def test_every_choice_is_counted_listed_and_drawn_from(possible, seed):
    every = list(possible.sets())

    assert possible.count == len(set(every)) == len(every)
    assert possible.first() in set(every)
    assert tuple(sorted(possible.draw(random.Random(seed)))) in {tuple(sorted(ids)) for ids in every}
    universe, size = sorted(possible.ids, key=natural_sort_key), len(every[0])
    assert [ids for ids in combinations(universe, size) if ids in possible] == sorted(
        every, key=universe_order(universe)
    )


def universe_order(universe):
    return lambda ids: [universe.index(id_) for id_ in ids]


@given(pools(), st.lists(st.sampled_from((1, 2, 3, None)), min_size=12, max_size=12))
def test_representatives_have_all_numbers_of_devices_by_numa_nodes(possible, places):
    nodes = {f"gpu-{number}": place for number, place in enumerate(places)}

    representatives = possible.representatives(nodes.__getitem__, 1000)

    expected = {frozenset(Counter(map(nodes.get, ids)).items()) for ids in possible.sets()}
    assert {frozenset(Counter(map(nodes.get, ids)).items()) for ids in representatives} == expected
    assert len(representatives) == len(expected)
    assert representatives[0] == possible.first()


@pytest.mark.parametrize(
    ("possible", "text"),
    [
        (choices((Pool(2, gpus(0, 1)),)), "gpu-0, gpu-1"),
        (choices((Pool(2, gpus(*range(8))),)), "any 2 of gpu-0…7"),
        (choices((Pool(1, gpus(0)), Pool(1, gpus(2, 4)))), "gpu-0 and any 1 of gpu-2, gpu-4"),
        (choices((Pool(2, gpus(0, 3)),), (Pool(2, gpus(1, 2)),)), "{gpu-0, gpu-3} or {gpu-1, gpu-2}"),
        (
            choices((Pool(2, gpus(*range(5))),), (Pool(2, gpus(8, 9)),)),
            "one of 11 sets of 2 of gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-8, gpu-9",
        ),
        (choices(crashes=True), "nothing: the device plugin crashes"),
    ],
)
def test_choices_are_named(possible, text):
    assert str(possible) == text


def test_only_one_choice_that_cannot_fail_is_certain():
    assert choices((Pool(2, gpus(0, 1)),)).is_certain
    assert not choices((Pool(1, gpus(0, 1)),)).is_certain
    assert not choices((Pool(2, gpus(0, 1)),), crashes=True).is_certain


def test_devices_of_choices_can_be_renamed():
    assert choices((Pool(1, gpus(0, 1)),)).renamed(str.upper) == choices((Pool(1, ("GPU-0", "GPU-1")),))


def test_a_pod_gets_the_same_devices_again():
    possible = choices((Pool(2, gpus(*range(8))),))

    drawn = {seed: RandomChooser(seed)("uid", [possible])[GPU] for seed in range(20)}

    assert drawn == {seed: RandomChooser(seed)("uid", [possible])[GPU] for seed in range(20)}
    assert len(set(drawn.values())) > 1


def test_consecutive_numbers_are_a_range():
    assert format_ids(("GPU-a", "GPU-b")) == "GPU-a, GPU-b"
    assert format_ids(gpus(8, 9, 10, 11)) == "gpu-8…11"
    assert format_ids(gpus(0, 2, 4)) == "gpu-0, gpu-2, gpu-4"
