"""Texts for pictures: harmless, measured, short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.picture import text_format
from tests.strategies import cpu_sets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("gpu-0", "gpu-0", id="what is harmless stays"),
        pytest.param("a\nb\x1b[31m", "a\\nb\\x1b[31m", id="control characters are spelt out"),
        pytest.param("abc\u202edcb", "abc\\u202edcb", id="nothing turns the direction of writing"),
        pytest.param("e\u0301", "é", id="an accent that can be part of its letter is"),
        pytest.param("x\u0301", "x\\u0301", id="one that cannot is spelt out"),
        pytest.param("\ud800", "\\ud800", id="half a character is spelt out"),
    ],
)
def test_names_are_made_harmless(text, shown):
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
def test_amounts_are_shown_in_the_unit_that_fits(amount, shown):
    assert text_format.format_size(amount) == shown


@given(cpu_sets())
def test_a_list_in_pieces_names_every_member(cpus):
    found = 0
    for piece in text_format.list_parts(cpus):
        run, _, step = piece.partition(" by ")
        found |= bits.of(list(bits.members(bits.parse(run)))[:: int(step or 1)])

    assert found == cpus


def test_every_second_cpu_is_said_shortly():
    assert text_format.format_list(range(0, 64, 2)) == "0-62 by 2"
    assert text_format.format_list([-1, 0, 1]) == "-1,0-1"
