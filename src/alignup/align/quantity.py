"""Kubernetes quantities (``500m``, ``1.5Gi``, ``1e3``): parsed, printed, compared and added as Kubernetes does.

Kubernetes stores most amounts in a 64-bit integer and the rest in an arbitrary decimal, and the difference is visible:
the decimal form is rounded away from zero to billionths when it is parsed, and is never accepted as a 64-bit integer.
Where Kubernetes would compute for hours, a :class:`QuantityError` is raised: for numbers of more than ``MAX_DIGITS``
digits, and for sums of amounts more than ``MAX_DIGITS`` digits apart.

A parsed amount follows the rules up to Kubernetes 1.37. :meth:`Quantity.under` returns the quantity by the rules of
another release: since 1.38, overflows saturate, rounding is away from zero always, and more numbers have the 64-bit
form.
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

from alignup.align.errors import OWN_LIMIT, QuantityError
from alignup.align.release import Release

MAX_DIGITS = 10_000  #: of a number, and between two numbers that are added

_FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUFFIX = "unable to parse quantity's suffix"
_NUMBER = "unable to parse numeric part of quantity"

_MISSPELLED = re.compile(
    r"\s*([+-]?[0-9]*(?:[.,][0-9]+)?)\s*(?:([kmgtpe])(i?)(?:b|bytes?)?|cores?|cpus?|b|bytes?)?\s*", re.IGNORECASE
)

_INT64 = range(-(1 << 63), 1 << 63)
_MAX = (1 << 63) - 1
_SHORT = 24  # characters; the pods of a cluster have few different amounts
_PLAIN = _MAX // 1000  # smaller numbers have thousandths in 64 bits
_NANO = -9  # the finest power of ten
_MILLI = -3


def propose_spelling(text: str) -> str:
    """Return how *text*, which is not a quantity, is probably meant: ``write 1G or 1Gi`` for ``1GB``."""
    match = _MISSPELLED.fullmatch(text)
    if not match or not match[1].strip("+-"):
        return "write a number with or without a unit, such as 500m, 2, 1G or 1Gi"
    number, prefix, binary = match[1].replace(",", "."), (match[2] or "").upper(), match[3]
    if binary or not prefix:
        return f"write {number}{prefix}{'i' if binary else ''}"
    return f"write {number}{'k' if prefix == 'K' else prefix} or {number}{prefix}i"


def read_amount(subject: str, amount: object) -> "Quantity":
    """Return *amount*, or the quantity of a text; the error for anything else names its *subject*."""
    if isinstance(amount, Quantity):
        return amount
    if not isinstance(amount, str):
        raise TypeError(f"{subject} needs a Quantity or its text, not {type(amount).__name__}")
    try:
        return Quantity.parse(amount)
    except QuantityError as error:
        raise QuantityError(f"{subject}: {error}; {propose_spelling(amount)}") from None


def read_amounts(owner: object, field: str) -> None:
    """Parse the texts among the amounts by resource that *field* of a frozen dataclass has."""
    amounts = getattr(owner, field)
    if not isinstance(amounts, Mapping):
        raise TypeError(f"{field} needs a Mapping of resources to amounts, not {type(amounts).__name__}")
    quantities = {resource: read_amount(f"{field}[{resource}]", amount) for resource, amount in amounts.items()}
    object.__setattr__(owner, field, quantities)


class QuantityFormat(StrEnum):
    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantity:
    """An amount, ``unscaled`` times ten to the ``power``; ``1000m`` equals ``1``."""

    ZERO: ClassVar["Quantity"]

    unscaled: int
    power: int = 0
    _: KW_ONLY
    format: QuantityFormat = QuantityFormat.DECIMAL_SI
    dec: bool = False  #: stored as a decimal, not as a 64-bit integer
    text: str | None = None  #: the original text, if it is printed unchanged
    exact: bool = False  #: whether the rules since 1.38 apply
    #: the form by the rules that do not apply, if it is another one; a text: the error by these rules
    other_form: "Quantity | str | None" = None

    @classmethod
    def of(cls, value: int, format: QuantityFormat = QuantityFormat.DECIMAL_SI) -> "Quantity":  # noqa: A002 - Kubernetes' word
        """Return a whole number as a quantity."""
        return cls(value, format=format, dec=value not in _INT64)

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Parse *text*; a :class:`QuantityError` with *text* and Kubernetes' own message if it is malformed."""
        try:
            return _parse_often(text) if len(text) <= _SHORT else cls._parse(text)
        except QuantityError as error:
            raise QuantityError(error.message, value=text) from None

    @classmethod
    def _parse(cls, text: str) -> "Quantity":
        match = _TEXT.fullmatch(text)
        if match is None or not text:
            raise QuantityError(_FORMAT)
        sign, whole, fraction, suffix = match.groups("")
        factor, exponent, most, form = _SUFFIXES.get(suffix) or _exponent(suffix)
        digits = (whole or "0") + fraction
        power = exponent - len(fraction)
        if len(digits) <= most and power >= _NANO and (factor == 1 or not fraction):
            number = int(sign + digits)
            if factor == 1:
                as_written = power % 3 == 0 and digits[0] != "0" and digits[-3:] != "000"
            else:
                as_written = number % 8 != 0
            return cls(number * factor, power, format=form, text=text if as_written else None)

        if not text[: match.start(4)].strip("+-."):
            raise QuantityError(_NUMBER)
        other: Quantity | str | None = _SUFFIX if exponent == -(1 << 31) else None
        if len(digits) == most + 1 and power >= _NANO and factor == 1 and (long := int(sign + digits)) in _INT64:
            as_written = power % 3 == 0 and digits[0] != "0" and digits[-3:] != "000"
            other = cls(long, power, format=form, text=text if as_written else None, exact=True)
        number = _number(digits) * factor
        if number and power <= MAX_DIGITS:  # zero and very large numbers keep their power
            number, power = _rescale(number, power, _NANO), _NANO
        if form is QuantityFormat.BINARY_SI:
            if number > _MAX * 10**9:
                number, power = _MAX, 0
            elif 0 < number < 10**9:
                form = QuantityFormat.DECIMAL_SI
        return cls(-number if sign == "-" else number, power, format=form, dec=True, other_form=other)

    @property
    def depends_on_release(self) -> bool:
        """Whether :meth:`under` may change the amount; a quick test that ordinary amounts pass."""
        return self.dec or self.exact or self.power > 0 or not -_PLAIN < self.unscaled < _PLAIN

    def under(self, release: Release) -> "Quantity":
        """Return the amount as this release evaluates it; :class:`QuantityError` if it cannot read its text."""
        if release.exact_quantities == self.exact or not self.depends_on_release:
            return self
        if isinstance(self.other_form, str):
            raise QuantityError(self.other_form, value=str(self))
        if self.other_form is not None:
            return replace(self.other_form, other_form=self)
        return replace(self, exact=release.exact_quantities)

    @property
    def is_whole(self) -> bool:
        """Whether Kubernetes finds no fraction; before 1.38, it looks at thousandths in 64 bits."""
        if not self.exact:
            return not self.milli() % 1000
        return self.power >= 0 or not self.unscaled % 10**-self.power

    @property
    def is_zero(self) -> bool:
        """Whether the amount is 0."""
        return not self.unscaled

    @property
    def sign(self) -> int:
        """1, 0 or -1."""
        return (self.unscaled > 0) - (self.unscaled < 0)

    def value(self) -> int:
        """Return the amount in whole units, with Kubernetes' rounding and 64-bit overflow."""
        return self.unscaled if not self.power and not self.dec else self._in_units_of(0)

    def milli(self) -> int:
        """Return the amount in thousandths, with Kubernetes' rounding and 64-bit overflow."""
        if not self.power and not self.dec and (thousandths := self.unscaled * 1000) in _INT64:
            return thousandths
        return self._in_units_of(_MILLI)

    def as_int64(self) -> int | None:
        """Return the amount in whole units; ``None`` in the decimal form, with a negative power, or beyond 64 bits."""
        if self.dec or self.power < 0:
            return None
        if not self.unscaled:
            return 0
        value = self.unscaled * 10**self.power if self.power < 19 else _MAX + 1
        return value if value in _INT64 else None

    def round_up_to_milli(self) -> "Quantity":
        """Return the amount rounded away from zero to thousandths; in the 64-bit form, itself if coarse enough."""
        if self.power >= _MILLI and (not self.dec or self.power > MAX_DIGITS):
            return self
        number = _rescale(self.unscaled, self.power, _MILLI)
        return Quantity(number, _MILLI, format=self.format, dec=self.dec, exact=self.exact)

    def canonical(self) -> str:
        """Return the amount in canonical form, ignoring the original text."""
        if not self.unscaled:
            return "0"
        if self.format is QuantityFormat.BINARY_SI:
            whole, rest = divmod(self.unscaled * 10 ** max(self.power, 0), 10 ** max(-self.power, 0))
            if not rest and abs(whole) >= 1024:
                number, times = _without_factor(whole, 1024)
                if self.exact and times not in _BINARY_NAMES and times:
                    return _spell(whole)
                return _spell(number) + _BINARY_NAMES.get(times, "")
        number, times = _without_factor(self.unscaled, 10)
        power = self.power + times
        number *= 10 ** (power % 3)
        power -= power % 3
        if self.format is QuantityFormat.DECIMAL_EXPONENT or (self.exact and power not in _DECIMAL_NAMES):
            return f"{_spell(number)}e{power}" if power else _spell(number)
        return _spell(number) + _DECIMAL_NAMES.get(power, "")

    def __str__(self) -> str:
        return self.text if self.text is not None else self.canonical()

    def __repr__(self) -> str:
        return f"<Quantity {self}>"

    def __add__(self, other: "Quantity") -> "Quantity":
        return self._plus(other, other.unscaled) if isinstance(other, Quantity) else NotImplemented

    def __sub__(self, other: "Quantity") -> "Quantity":
        return self._plus(other, -other.unscaled) if isinstance(other, Quantity) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.unscaled == other.unscaled if self.power == other.power else not self._compare(other)

    # Python derives > and >= from these by exchanging the operands.
    def __lt__(self, other: "Quantity") -> bool:
        return self._compare(other) < 0 if isinstance(other, Quantity) else NotImplemented

    def __le__(self, other: "Quantity") -> bool:
        return self._compare(other) <= 0 if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        # Modulo a prime, every power of ten is a small number, so large powers are never written out.
        prime = (1 << 61) - 1
        return self.unscaled * pow(10, self.power, prime) % prime if self.power else self.unscaled % prime

    def _compare(self, other: "Quantity") -> int:
        """Return -1, 0 or 1 if the amount is below, equal to or above *other*."""
        a, b = self.unscaled, other.unscaled
        gap = self.power - other.power
        if gap > 0:
            a = _raise_past(a, gap, limit=b)
        elif gap < 0:
            b = _raise_past(b, -gap, limit=a)
        return (a > b) - (a < b)

    def _plus(self, other: "Quantity", b: int) -> "Quantity":
        """Return the amount with *b* in the power of *other* added."""
        a = self.unscaled
        form = self.format if a else other.format
        dec = self.dec or other.dec
        exact = self.exact or other.exact
        power = min(self.power, other.power)
        if not dec and not (a and b):
            power = self.power if a or not b else other.power
            return Quantity(a + b, power, format=form, dec=a + b not in _INT64, exact=exact)
        gap = abs(self.power - other.power)
        if gap > MAX_DIGITS:
            if a and b:
                raise QuantityError(f"amounts {gap} digits apart cannot be added {OWN_LIMIT}")
            return Quantity(a + b, self.power if a else other.power, format=form, dec=True, exact=exact)
        a *= 10 ** (self.power - power)
        b *= 10 ** (other.power - power)
        # If a term overflows, the result is a decimal even if the sum does not overflow.
        fits = a in _INT64 and b in _INT64 and a + b in _INT64
        return Quantity(a + b, power, format=form, dec=dec or not fits, exact=exact)

    def _in_units_of(self, power: int) -> int:
        """Return the amount in units of ten to the *power*, in 64 bits."""
        finer = self.power - power
        if not self.unscaled:
            return 0
        if self.exact:
            number = self.unscaled * 10**19 if finer >= 19 else _rescale(self.unscaled, self.power, power)
            return max(_INT64.start, min(number, _MAX))
        if self.dec:
            if finer < 0:
                return _divide_dec(self.unscaled, -finer)
            return _low64(self.unscaled * pow(10, finer, 1 << 64))
        if finer < 0:
            return _rescale(self.unscaled, self.power, power)
        places = (finer + (1 << 31)) % (1 << 32) - (1 << 31)  # Kubernetes keeps the difference in 32 bits
        if places <= 0:
            return self.unscaled
        product = self.unscaled * 10**places if places < 19 else _MAX + 1
        if product in _INT64:
            return product
        return _low64(product) if places in {1, 2, 3, 6, 9} else 0  # an overflow wraps or becomes zero


#: A factor, a power of ten, the most digits of the 64-bit form, the format.
_Meaning = tuple[int, int, int, QuantityFormat]

_DECIMAL_NAMES = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY_NAMES = {1: "Ki", 2: "Mi", 3: "Gi", 4: "Ti", 5: "Pi", 6: "Ei"}
_SUFFIXES: dict[str, _Meaning] = {
    **{name: (1, power, 18, QuantityFormat.DECIMAL_SI) for power, name in _DECIMAL_NAMES.items()},
    **{name: (1 << 10 * times, 0, 14 - 3 * times, QuantityFormat.BINARY_SI) for times, name in _BINARY_NAMES.items()},
}

# Possessive quantifiers, so that a long malformed text fails quickly.
_TEXT = re.compile(r"([+-]?+)0*+([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[+-]?+[0-9]*+)")
_EXPONENT = re.compile(r"[eE]([+-]?+)0*+([0-9]*+)")


def _exponent(suffix: str) -> _Meaning:
    """Return the meaning of a suffix such as ``e3`` or ``E-06``; Kubernetes truncates the exponent to 32 bits."""
    match = _EXPONENT.fullmatch(suffix)
    if match is None or not suffix[-1].isdigit():
        raise QuantityError(_SUFFIX)
    sign, digits = match.groups()
    if len(digits) > 19 or (exponent := int(sign + (digits or "0"))) not in _INT64:
        raise QuantityError(_SUFFIX)
    low = (exponent + (1 << 31)) % (1 << 32) - (1 << 31)
    return 1, low, 18, QuantityFormat.DECIMAL_EXPONENT


def _rescale(number: int, power: int, new_power: int) -> int:
    """Return *number* times ten to the *power*, in units of ten to the *new_power*, rounded away from zero."""
    places = new_power - power
    if places <= 0:
        finer: int = number * 10**-places
        return finer
    if 3 * places > number.bit_length():  # then the divisor, over 8 ** places, is larger
        return (number > 0) - (number < 0)
    quotient: int = -(-abs(number) // 10**places)
    return quotient if number > 0 else -quotient


def _divide_dec(number: int, places: int) -> int:
    """Return *number* divided by ten to the *places* like Kubernetes' decimal form, which rounds inconsistently."""
    divisor: int = 10**places
    if number < _MAX and places < 19:
        low = _low64(number)
        quotient = abs(low) // divisor if low > 0 else -(abs(low) // divisor)
        return quotient + (low % divisor != 0)
    quotient, rest = divmod(number, divisor)
    return _low64(quotient + (rest != 0))


def _raise_past(number: int, places: int, *, limit: int) -> int:
    """Return *number* times ten to the *places*, or any number of its sign beyond *limit* if the product is."""
    if 3 * places > limit.bit_length():  # then the product, over 8 ** places, is beyond
        return ((number > 0) - (number < 0)) * (abs(limit) + 1)
    product: int = number * 10**places
    return product


def _without_factor(number: int, factor: int) -> tuple[int, int]:
    """Return *number* without all factors *factor*, and their count; not for zero."""
    if number % factor:
        return number, 0
    number, pairs = _without_factor(number, factor * factor)
    if number % factor:
        return number, 2 * pairs
    return number // factor, 2 * pairs + 1


def _low64(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


# Python converts at most 4300 digits at once; users can reduce the limit to 640.
_CHUNK = 600


def _number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise QuantityError(_NUMBER)
    number = 0
    for start in range(0, len(digits), _CHUNK):
        chunk = digits[start : start + _CHUNK]
        number = number * 10 ** len(chunk) + int(chunk)
    return number


def _spell(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    chunks: list[str] = []
    while number >= 10**_CHUNK:
        number, chunk = divmod(number, 10**_CHUNK)
        chunks.append(str(chunk).zfill(_CHUNK))
    return sign + str(number) + "".join(reversed(chunks))


Quantity.ZERO = Quantity(0)
_parse_often = lru_cache(maxsize=4096)(Quantity._parse)  # noqa: SLF001 - of this module
