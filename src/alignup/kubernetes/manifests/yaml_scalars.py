"""YAML scalars as Kubernetes resolves them, which is neither quite YAML 1.1 nor 1.2.

Kubernetes converts YAML to JSON before decoding, so a number arrives in its JSON spelling: ``1e3`` and ``0x3e8`` as
``1000``, ``1.500`` as ``1.5``. Quantities depend on that spelling, so a number is a :class:`NumberLiteral` here, not a
float. Scalars that other YAML parsers resolve differently: ``yes``, ``on`` and ``y`` are true; ``010``, ``0o10`` and
``08`` are eight; ``1:30``, dates and ``1e400`` are strings.
"""

import base64
import binascii
import math
import re
import struct
from datetime import UTC, datetime

#: A resolved scalar, before it becomes a value or a key.
Scalar = str | bool | int | float | None

_TAG = "tag:yaml.org,2002:"
#: Tag → the type of its scalars.
_KINDS = {"bool": bool, "int": int, "float": float, "null": type(None), "timestamp": datetime}

_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)

#: A scalar with any other first character is a string.
_SPECIAL = frozenset("+-.0123456789yYnNtTfFoO~")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_UNSUPPORTED = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}

_INTEGER = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[oO]?(?P<octal>[0-7]+)|0[bB](?P<binary>[01]+)|(?P<decimal>[1-9][0-9]*|0))"
)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_FRACTION = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
_LATE_SIGN = re.compile(r"0b([+-][01]+)")
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:(?:[Tt](?P<time>[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2}))"
    r"| +(?P<local>[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2})(?:[.,][0-9]+)?)?"
)


class NumberLiteral(str):
    """A number in its JSON spelling."""

    __slots__ = ()


class ScalarError(ValueError):
    """A scalar that does not match its tag, or that JSON cannot represent."""


def resolve_plain(text: str) -> Scalar:
    if text and text[0] not in _SPECIAL:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 18 and text[0] != "0" and text.isascii() and text.isdecimal():
        return int(text)
    if text[0] == ".":
        return _float(text.replace("_", ""), text) if _FRACTION.fullmatch(text) else text
    if text[0].isalpha() or text[0] == "~":
        return text
    bare = text.replace("_", "")
    if (number := _integer(bare)) is not None:
        return number
    return _float(bare, text) if _FLOAT.fullmatch(bare) else text


def resolve_tagged(text: str, tag: str) -> Scalar:
    """Resolve a scalar with a tag; an unknown tag makes it a string."""
    kind = tag.removeprefix(_TAG) if tag.startswith(_TAG) else ""
    if kind == "binary":  # base64 decodes to a string too
        try:
            return base64.b64decode(re.sub(r"[\r\n]", "", text), validate=True).decode(errors="replace")
        except (binascii.Error, ValueError):
            raise ScalarError("!!binary value contains invalid base64 data") from None
    if kind not in _KINDS:
        return text
    scalar = resolve_plain(text)
    if kind == "float" and type(scalar) is int and scalar in _INT64:
        return float(scalar)
    if kind == "timestamp" and _is_date(text):
        return text
    if type(scalar) is not _KINDS[kind]:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise ScalarError(f"`{shown}` is not a valid !!{kind}")
    return scalar


def to_value(scalar: Scalar) -> str | bool | None:
    """Return *scalar* as a value, numbers in their JSON spelling: without an exponent from 10⁻⁶ up to 10²¹."""
    if isinstance(scalar, int) and not isinstance(scalar, bool):
        return NumberLiteral(scalar)
    if not isinstance(scalar, float):
        return scalar
    text = repr(scalar)
    if text in _UNSUPPORTED:
        raise ScalarError(f"json: unsupported value: {_UNSUPPORTED[text]}")
    if scalar and not 1e-6 <= abs(scalar) < 1e21:
        return NumberLiteral(text.replace("e-0", "e-"))
    from decimal import Decimal  # noqa: PLC0415 - few documents need it

    return NumberLiteral(format(Decimal(text), "f").removesuffix(".0"))


def to_key(scalar: Scalar) -> str:
    """Return *scalar* as the key of an object, which is always a string."""
    match scalar:
        case str():
            return scalar
        case bool():
            return str(scalar).lower()
        case int() if scalar in _INT64:
            return str(scalar)
        case float():
            return _short(scalar)
        case _:
            raise ScalarError(f"{'null' if scalar is None else scalar} cannot be a key")


def _integer(bare: str) -> int | None:
    """Parse a 64-bit integer; ``None`` for anything else."""
    match = _INTEGER.fullmatch(bare)
    if match is None:
        late = _LATE_SIGN.fullmatch(bare)  # Go also accepts the sign after the prefix
        number = int(late[1], 2) if late else None
        return number if number is None or number in _INT64 else None
    kind = match.lastgroup
    digits = match[kind or 0]
    if kind == "decimal" and len(digits) > 20:
        return None
    number = int(match["sign"] + digits, {"hex": 16, "octal": 8, "binary": 2}.get(kind or "", 10))
    return number if number in (_INT64 if match["sign"] else _UINT64) else None


def _float(bare: str, text: str) -> float | str:
    """Return a float, or the text itself if it is too large for 64 bits."""
    number = float(bare)
    return text if number in (float("inf"), float("-inf")) else number


def _short(number: float) -> str:
    """Return the spelling as a key: 32-bit precision, with an exponent below 10⁻⁴ and from 10⁶ on."""
    single = to_float32(number)
    if single != single or abs(single) == float("inf"):  # noqa: PLR0124 - only NaN differs from itself
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[repr(single)]
    digits = next(text for width in range(17) if to_float32(float(text := f"{single:.{width}e}")) == single)
    mantissa, _, exponent = digits.partition("e")
    if -4 <= int(exponent) < 6:
        from decimal import Decimal  # noqa: PLC0415 - few documents need it

        return format(Decimal(digits), "f")
    return f"{mantissa}e{exponent}"


def to_float32(number: float) -> float:
    """Return *number* rounded to 32 bits, to infinity if it is too large."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.group(1, 2, 3))
    hour, minute, second = map(int, (match["time"] or match["local"] or "0:0:0").split(":"))
    try:
        datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return False
    return True
