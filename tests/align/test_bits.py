"""Sets in one int, and the kernel's list format."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.errors import AlignError, ParseError
from tests.strategies import cpu_sets

MAX_INT64 = (1 << 63) - 1

#: Texts like lists and unlike them; all of Unicode takes seconds to set up.
scribbles = st.text('0123456789,,--+ x"\\\n\0\x7f\x9fé٣\u2028\U0001f600')


def test_a_member_twice_is_a_member_once():
    assert bits.of([5, 5]) == 1 << 5


@pytest.mark.parametrize(
    ("members", "most", "expected"),
    [
        pytest.param(0, None, [], id="nothing"),
        pytest.param(0b1101, None, [0b1, 0b100, 0b1000], id="each member"),
        pytest.param(0b1101, 2, [0b1, 0b100], id="the lowest ones"),
        pytest.param(0b1101, 5, [0b1, 0b100, 0b1000], id="not that many"),
    ],
)
def test_split(members, most, expected):
    assert bits.split(members, most=most) == expected


def test_a_negative_member_is_rejected():
    with pytest.raises(ValueError, match="negative"):
        bits.of([-1])


@given(st.frozensets(st.integers(0, 2000)))
def test_members_are_what_the_set_was_made_of(chosen):
    assert list(bits.members(bits.of(chosen))) == sorted(chosen)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("1,", 'strconv.Atoi: parsing "": invalid syntax', id="a trailing comma"),
        pytest.param("1_0", 'strconv.Atoi: parsing "1_0": invalid syntax', id="underscores as in Python"),
        pytest.param("٣", 'strconv.Atoi: parsing "٣": invalid syntax', id="digits of another script"),
        pytest.param("9" * 5000, f'strconv.Atoi: parsing "{"9" * 5000}": value out of range', id="thousands of digits"),
    ],
)
def test_parse_rejects(text, message):
    with pytest.raises(ParseError) as rejected:
        bits.parse(text)

    assert str(rejected.value) == message
    assert isinstance(rejected.value, AlignError)
    assert isinstance(rejected.value, ValueError)


def test_the_largest_numbers_a_set_may_have():
    largest = bits.MAX_MEMBER - 1

    assert bits.parse(str(largest)) == 1 << largest
    assert bits.parse(f"0-{largest}").bit_count() == bits.MAX_MEMBER


@pytest.mark.parametrize("text", [str(bits.MAX_MEMBER), f"0-{bits.MAX_MEMBER}", f"3,{MAX_INT64}"])
def test_numbers_beyond_the_limit_are_parsed_but_make_no_set(text):
    assert bits.show_spans(bits.parse_spans(text)) == text
    with pytest.raises(ParseError, match=f"must be below {bits.MAX_MEMBER}"):
        bits.parse(text)


def test_neighbors_are_shown_as_a_range():
    assert bits.show(bits.of([0, 1, 2, 3, 8, 10, 11])) == "0-3,8,10-11"


@given(cpu_sets(600))
@example(0)
@example(1 << (bits.MAX_MEMBER - 1))
def test_show_and_parse_round_trip(chosen):
    assert bits.parse(bits.show(chosen)) == chosen


@given(cpu_sets())
def test_spans_are_as_long_as_possible(chosen):
    spans = bits.to_spans(chosen)

    assert [member for first, last in spans for member in range(first, last + 1)] == list(bits.members(chosen))
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(spans))
    assert bits.parse_spans(bits.show(chosen)) == spans


@given(st.lists(cpu_sets(), max_size=5))
def test_parts_may_be_in_any_order_and_overlap(chosen):
    """A list joined from lists names the union of what they name."""
    union = 0
    for part in chosen:
        union |= part

    assert bits.parse(",".join(bits.show(part) for part in chosen if part)) == union


@given(st.lists(st.tuples(st.integers(0, MAX_INT64), st.integers(0, MAX_INT64)), max_size=6))
def test_spans_are_canonical_whatever_their_size(pairs):
    text = ",".join(f"{min(pair)}-{max(pair)}" for pair in pairs)

    read = bits.parse_spans(text)

    assert bits.parse_spans(bits.show_spans(read)) == read
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(read))
    assert all(any(first <= end <= last for first, last in read) for pair in pairs for end in pair)


@given(scribbles)
def test_any_text_gives_spans_or_a_parse_error(text):
    try:
        read = bits.parse_spans(text)
    except ParseError:
        return

    assert bits.parse_spans(bits.show_spans(read)) == read


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        pytest.param("", '""', id="nothing"),
        pytest.param("a b", '"a b"', id="blanks stay"),
        pytest.param('say "hi"\\', '"say \\"hi\\"\\\\"', id="quotes and backslashes"),
        pytest.param("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"', id="controls with a letter"),
        pytest.param("\0\x1b\x7f", '"\\x00\\x1b\\x7f"', id="controls without"),
        pytest.param("\x80\x9f\xa0", '"\\u0080\\u009f\\u00a0"', id="controls and blanks beyond ASCII"),
        pytest.param("Ünï→漢", '"Ünï→漢"', id="printable letters stay"),
        pytest.param("\u200b\ufeff\u2028", '"\\u200b\\ufeff\\u2028"', id="invisible ones do not"),
        pytest.param("\U0001f600\U000e0001", '"\U0001f600\\U000e0001"', id="beyond 16 bits"),
        pytest.param("'", '"\'"', id="single quotes need nothing"),
    ],
)
def test_quote(text, quoted):
    assert bits.quote(text) == quoted


@given(scribbles)
def test_a_quoted_text_is_one_line_of_printable_characters(text):
    assert bits.quote(text).isprintable()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("0", 0, id="zero"),
        pytest.param("-9223372036854775808", -(1 << 63), id="the smallest"),
        pytest.param("+9223372036854775807", MAX_INT64, id="the largest"),
        pytest.param("0" * 40 + "7", 7, id="any number of leading zeros"),
    ],
)
def test_parse_integer(text, number):
    assert bits.parse_integer(text) == number


@given(st.integers(-(1 << 64), 1 << 64))
def test_integers_are_read_as_long_as_they_fit_64_bits(number):
    try:
        read = bits.parse_integer(str(number))
    except ParseError as error:
        assert not -(1 << 63) <= number <= MAX_INT64
        assert str(error) == f'strconv.Atoi: parsing "{number}": value out of range'
    else:
        assert read == number


@given(st.lists(st.sets(st.integers(0, 200))))
def test_a_union_has_the_members_of_all(sets):
    assert set(bits.members(bits.union(map(bits.of, sets)))) == set().union(*sets)


@given(st.sets(st.integers(0, 5_000), max_size=40))
def test_large_sets_are_like_small_ones(members):
    together = sum(1 << member for member in members)

    assert list(bits.members(together)) == sorted(members)
    assert bits.parse(",".join(map(str, members))) == together
    assert bits.parse(bits.show(together)) == together
    assert len(bits.to_spans(together)) == len(members - {member + 1 for member in members})


def test_a_very_large_set_takes_no_time():
    """With steps of all bits for each member, this takes minutes."""
    every_other = bits.parse(",".join(map(str, range(0, 1 << 18, 2))))

    assert every_other.bit_count() == 1 << 17
    assert sum(1 for _ in bits.members(every_other)) == 1 << 17
    assert len(bits.to_spans(every_other)) == 1 << 17
    with pytest.raises(ParseError, match=r"'0,0,.*…' contains 1048576") as caught:
        bits.parse("0," * 10_000 + str(bits.MAX_MEMBER))
    assert len(str(caught.value)) < 200
