"""Text for pictures: escaped, measured, shortened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.picture import text_format
from tests.strategies import cpu_sets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("gpu-0", "gpu-0", id="printable text stays"),
        pytest.param("a\nb\x1b[31m", "a\\nb\\x1b[31m", id="control characters are escaped"),
        pytest.param("abc\u202edcb", "abc\\u202edcb", id="direction changes are escaped"),
        pytest.param("e\u0301", "é", id="a composable accent is composed"),
        pytest.param("x\u0301", "x\\u0301", id="other accents are escaped"),
        pytest.param("\ud800", "\\ud800", id="surrogates are escaped"),
    ],
)
def test_unprintable_characters_are_escaped(text, shown):
    assert text_format.clean(text) == shown


@given(st.text(), st.integers(5, 60))
def test_a_shortened_text_fits_and_keeps_its_ends(text, most):
    whole = text_format.clean(text)

    short = text_format.shorten(whole, most)

    assert text_format.display_width(short) <= most
    assert short == whole or ("…" in short and short[0] == whole[0])


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (64 << 30, "64 GiB"),
        (5193142272, "4.8 GiB"),
        (1 << 70, "1024 EiB"),
    ],
)
def test_sizes_use_a_suitable_unit(amount, shown):
    assert text_format.format_size(amount) == shown


@given(cpu_sets())
def test_list_parts_contain_every_member(cpus):
    listed = 0
    for piece in text_format.list_parts(cpus):
        run, _, step = piece.partition(" by ")
        listed |= bits.of(list(bits.members(bits.parse(run)))[:: int(step or 1)])

    assert listed == cpus


def test_evenly_spaced_cpus_are_abbreviated():
    assert text_format.format_list(range(0, 64, 2)) == "0-62 by 2"
    assert text_format.format_list([-1, 0, 1]) == "-1,0-1"
