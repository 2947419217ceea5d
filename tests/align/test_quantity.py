"""Quantities beyond the vectors: what may be relied on for every text, and that no text takes long."""

import pickle
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alignup.align.errors import QuantityError
from alignup.align.quantity import MAX_DIGITS, Quantity, QuantityFormat, propose_spelling
from tests.deadlines import cpu_limit

FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SUFFIX = "unable to parse quantity's suffix"
NUMBER = "unable to parse numeric part of quantity"

MEGABYTE = 1_000_000
MAX = (1 << 63) - 1

DECIMAL = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
BINARY = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
FACTORS = {name: Fraction(1000) ** times for times, name in enumerate(DECIMAL, -3)}
FACTORS |= {name: Fraction(1024) ** times for times, name in enumerate(BINARY, 1)}

names = st.sampled_from(DECIMAL + BINARY)
exponents = st.builds("{}{}".format, st.sampled_from("eE"), st.integers(-30, 30))
suffixes = names | exponents
digits = st.text("0123456789", max_size=25)
numbers = st.builds(
    "{}{}{}{}".format, st.sampled_from(["", "+", "-"]), digits, st.sampled_from([".", "0", "1."]), digits
)
quantities = st.builds("{}{}".format, numbers.filter(lambda text: text.strip("+-.")), suffixes).map(Quantity.parse)
scribbles = st.text("+-.0123456789eEinumkKMGTP x٣", max_size=40)


def amount(quantity: Quantity) -> Fraction:
    return quantity.unscaled * Fraction(10) ** quantity.power


class TestReading:
    """``tests/conformance/test_quantity.py`` has thousands of texts."""

    def test_the_error_shows_the_malformed_text(self):
        with pytest.raises(QuantityError, match=r'^"4 GB\\n": quantities must match') as caught:
            Quantity.parse("4 GB\n")

        assert caught.value.value == "4 GB\n"

    @given(scribbles)
    def test_any_text_is_an_amount_or_a_quantity_error(self, text):
        try:
            quantity = Quantity.parse(text)
        except QuantityError as error:
            assert error.message in {FORMAT, SUFFIX, NUMBER}
            assert len(str(error)) < 1000
        else:
            assert str(quantity) in {text, quantity.canonical()}

    @given(numbers, suffixes)
    def test_an_amount_is_rounded_away_from_zero(self, number, suffix):
        assume(number.strip("+-."))
        factor = FACTORS[suffix] if suffix in FACTORS else Fraction(10) ** int(suffix[1:])
        exact = Fraction(number) * factor

        quantity = Quantity.parse(number + suffix)

        if suffix.endswith("i"):
            exact = max(min(exact, Fraction(MAX)), Fraction(-MAX))
        excess = abs(amount(quantity)) - abs(exact)
        assert 0 <= excess < Fraction(1, 10**9)
        assert quantity.sign == (exact > 0) - (exact < 0)


class TestPrinting:
    @given(quantities)
    def test_printing_and_parsing_keeps_the_amount(self, quantity):
        # Kubernetes prints no suffix where it has none, from 1000E on.
        assume(abs(amount(quantity)) < 10**21 or quantity.format is QuantityFormat.DECIMAL_EXPONENT)

        again = Quantity.parse(str(quantity))

        assert again == quantity
        assert again.canonical() == quantity.canonical()

    @given(quantities)
    def test_the_canonical_text_is_its_own_canonical_text(self, quantity):
        assume(abs(amount(quantity)) < 10**21 or quantity.format is QuantityFormat.DECIMAL_EXPONENT)
        text = quantity.canonical()

        again = Quantity.parse(text)

        assert again == quantity
        assert str(again) == text

    @pytest.mark.parametrize(
        ("quantity", "printed"),
        [
            pytest.param(Quantity.parse("1000E"), "1", id="beyond exa there is no suffix"),
            pytest.param(Quantity.parse("1Ki") + Quantity.of((1 << 70) - 1024), "1", id="nor beyond exbi"),
            pytest.param(Quantity.of(3 << 30, QuantityFormat.BINARY_SI), "3Gi", id="bytes made from a number"),
            pytest.param(Quantity.of(1000), "1k", id="a number made from a number"),
            pytest.param(Quantity.parse("1Ki") + Quantity.parse("1m"), "1024001m", id="no fraction of 1024 is printed"),
        ],
    )
    def test_an_amount_is_printed(self, quantity, printed):
        assert str(quantity) == printed

    def test_a_representation_shows_the_text(self):
        assert repr(Quantity.parse("1.500")) == "<Quantity 1.500>"


class TestWholeNumbers:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param("1536Mi", 1536 << 20, id="mebibytes are"),
            pytest.param("1e9", 10**9, id="a power of ten is"),
            pytest.param("0e999999999", 0, id="zero is"),
            pytest.param("1.5Gi", None, id="the decimal form is not"),
            pytest.param("1000m", None, id="thousandths are not"),
            pytest.param("10E", None, id="what overflows is not"),
            pytest.param("1e2000000000", None, id="what overflows by far is not"),
        ],
    )
    def test_as_a_64_bit_integer(self, text, expected):
        assert Quantity.parse(text).as_int64() == expected

    @given(quantities)
    def test_whole_numbers_round_up_if_they_fit(self, quantity):
        exact = amount(quantity)
        assume(0 <= exact < MAX // 1000)

        assert quantity.value() == -(-exact // 1)
        assert quantity.milli() == -(-exact * 1000 // 1)


class TestRoundingToThousandths:
    @pytest.mark.parametrize("text", ["1", "1.500", "250m", "2Gi", "1e3", "1e2000000000", "0e999999999"])
    def test_an_amount_coarse_enough_is_itself(self, text):
        quantity = Quantity.parse(text)

        assert quantity.round_up_to_milli() is quantity

    @pytest.mark.parametrize(
        ("text", "printed"),
        [
            pytest.param("1n", "1m", id="a billionth"),
            pytest.param("-100u", "-1m", id="a negative amount"),
            pytest.param("1500u", "2m", id="a remembered text is forgotten"),
            pytest.param("1.0001Gi", "1073849198183m", id="the decimal form"),
            pytest.param("1.5Gi", "1536Mi", id="the decimal form of a whole number"),
            pytest.param("8Ei", "9223372036854775807", id="the largest of the decimal form"),
        ],
    )
    def test_a_finer_amount_is_rounded_away_from_zero(self, text, printed):
        assert str(Quantity.parse(text).round_up_to_milli()) == printed

    @given(quantities)
    def test_rounding_adds_less_than_a_thousandth(self, quantity):
        rounded = quantity.round_up_to_milli()

        assert 0 <= abs(amount(rounded)) - abs(amount(quantity)) < Fraction(1, 1000)
        assert amount(rounded) * 1000 % 1 == 0
        assert (rounded.format, rounded.dec) == (quantity.format, quantity.dec)


class TestArithmetic:
    @given(quantities, quantities)
    def test_sums_and_differences_are_exact(self, a, b):
        assert amount(a + b) == amount(a) + amount(b)
        assert amount(a - b) == amount(a) - amount(b)

    @given(quantities, quantities)
    def test_the_order_of_terms_matters_only_to_the_format(self, a, b):
        assert a + b == b + a
        assert (a + b).format == (b if a.is_zero else a).format

    @given(quantities, quantities)
    def test_the_order_is_that_of_fractions(self, a, b):
        exact_a, exact_b = amount(a), amount(b)

        assert (a < b, a <= b, a == b) == (exact_a < exact_b, exact_a <= exact_b, exact_a == exact_b)
        assert (a > b, a >= b, a != b) == (exact_a > exact_b, exact_a >= exact_b, exact_a != exact_b)
        assert amount(max(a, b)) == max(exact_a, exact_b)

    @given(quantities, st.integers(0, 20))
    def test_equal_amounts_have_equal_hashes(self, quantity, places):
        finer = Quantity(quantity.unscaled * 10**places, quantity.power - places)

        assert finer == quantity
        assert hash(finer) == hash(quantity)

    def test_the_smallest_64_bit_number_has_no_negative_of_64_bits(self):
        smallest = Quantity.of(-(1 << 63))

        negated = Quantity.ZERO - smallest

        assert not smallest.dec
        assert (negated.unscaled, negated.dec) == (1 << 63, True)

    def test_other_types_are_neither_added_nor_compared(self):
        quantity = Quantity.of(1)

        assert quantity != 1
        with pytest.raises(TypeError):
            quantity + 1  # type: ignore[operator]
        with pytest.raises(TypeError):
            quantity - 1  # type: ignore[operator]
        for compare in ("__lt__", "__le__", "__gt__", "__ge__"):
            assert getattr(quantity, compare)(1) is NotImplemented

    def test_a_quantity_can_be_pickled(self):
        quantity = Quantity.parse("1.500")

        again = pickle.loads(pickle.dumps(quantity))  # noqa: S301 - our own bytes

        assert (again, str(again)) == (quantity, "1.500")


class TestNothingTakesLong:
    @pytest.fixture(autouse=True)
    def in_less_than_two_seconds_of_this_process(self):
        with cpu_limit(2):
            yield

    @pytest.mark.parametrize(
        ("text", "printed"),
        [
            pytest.param("1e-2000000000", "1e-9", id="far below zero"),
            pytest.param("1e2147483648", "1e-9", id="wrapped to far below zero"),
            pytest.param("1.5e-2147483648", "1e-9", id="a fraction at the lowest power"),
            pytest.param("0e999999999", "0", id="zero with a large power"),
            pytest.param("0e-2000000000", "0", id="zero with a low power"),
            pytest.param("1e9223372036854775807", "100e-3", id="the largest exponent"),
            pytest.param("1e2000000000", "100e1999999998", id="a large power"),
            pytest.param(f"{'1' * 19}e2000000000", f"{'1' * 19}00e1999999998", id="a large power in the decimal form"),
            pytest.param("0" * MEGABYTE, "0", id="a megabyte of zeros"),
            pytest.param(f"1e{'0' * MEGABYTE}1", "10", id="an exponent of a megabyte of zeros"),
            pytest.param("7" * MAX_DIGITS, "7" * MAX_DIGITS, id="as many digits as are read"),
            pytest.param("-1" + "0" * 5000 + "1", "-1" + "0" * 5000 + "1", id="zeros inside a long number"),
        ],
    )
    def test_a_large_amount_can_be_used(self, text, printed):
        quantity = Quantity.parse(text)

        assert str(quantity) == printed
        assert printed in repr(quantity)
        assert quantity == Quantity.parse(printed)
        assert hash(quantity) == hash(Quantity.parse(printed))
        assert abs(quantity.value()) <= MAX
        assert abs(quantity.milli()) <= MAX
        assert (quantity > Quantity.ZERO) == (quantity.sign > 0)
        assert quantity.round_up_to_milli().sign == quantity.sign
        assert quantity + Quantity.ZERO == Quantity.ZERO + quantity == quantity
        assert quantity + Quantity.parse("0e-2000000000") == quantity
        assert (quantity - quantity).is_zero

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param("1" * MEGABYTE, NUMBER, id="a megabyte of digits"),
            pytest.param("0." + "3" * MEGABYTE, NUMBER, id="a megabyte of fraction"),
            pytest.param("7" * (MAX_DIGITS + 1) + "Gi", NUMBER, id="one digit more than are read"),
            pytest.param("1e" + "1" * MEGABYTE, SUFFIX, id="a megabyte of exponent"),
            pytest.param("1" + "e" * MEGABYTE, SUFFIX, id="a megabyte of letters"),
            pytest.param("0" * MEGABYTE + "x", FORMAT, id="a megabyte of zeros and a stranger"),
            pytest.param("1" * MEGABYTE + "e" * MEGABYTE + "1" * MEGABYTE + "x", FORMAT, id="megabytes and a stranger"),
        ],
    )
    def test_a_text_that_is_too_long_is_rejected(self, text, message):
        with pytest.raises(QuantityError) as caught:
            Quantity.parse(text)

        assert caught.value.message == message

    def test_amounts_far_apart_are_compared(self):
        small, large = Quantity.parse("1"), Quantity.parse("1e2000000000")
        negative = Quantity.parse("-1e2000000000")

        assert negative < small < large
        assert max(small, large) is large
        assert len({small, large, negative}) == 3

    def test_amounts_far_apart_are_not_added(self):
        with pytest.raises(QuantityError, match="2000000000 digits apart"):
            Quantity.parse("1") + Quantity.parse("1e2000000000")

    def test_amounts_are_printed_under_the_strictest_limit_of_python(self):
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
        try:
            quantity = Quantity.parse("123456789" * 1000)
            printed = str(quantity + quantity)
        finally:
            sys.set_int_max_str_digits(before)

        assert printed == "246913578" * 1000


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ("1GB", "write 1G or 1Gi"),
        ("512 MiB", "write 512Mi"),
        ("1gb", "write 1G or 1Gi"),
        ("10KB", "write 10k or 10Ki"),
        ("1,5Gi", "write 1.5Gi"),
        ("2 cores", "write 2"),
        ("4 GBytes", "write 4G or 4Gi"),
        ("100 bytes", "write 100"),
        ("many", "write a number with or without a unit, such as 500m, 2, 1G or 1Gi"),
        ("", "write a number with or without a unit, such as 500m, 2, 1G or 1Gi"),
    ],
)
def test_a_spelling_is_proposed(text, proposal):
    assert propose_spelling(text) == proposal


@given(st.text("0123456789.,+-eEkKmMgGiIbBytes \n٣é", max_size=12))
def test_proposed_spellings_are_quantities(text):
    for word in propose_spelling(text).removeprefix("write ").split(" or "):
        if word[:1].isdecimal():
            Quantity.parse(word)
