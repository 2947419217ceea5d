"""Plain JSON values, each of the kind it has to be; anything else is a :class:`ParseError`."""

from collections.abc import Mapping
from typing import Any

from alignup.align import bits
from alignup.align.bits import Bits
from alignup.align.errors import ParseError


def text(value: object) -> str:
    """A text."""
    if type(value) is not str:
        raise ParseError(f"{value!r} is no text")
    return value


def texts(value: object) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(map(text, items(value)))


def number(value: object) -> int:
    """A whole number."""
    if type(value) is not int:
        raise ParseError(f"{value!r} is no whole number")
    return value


def amount(value: object) -> int:
    """A whole number that is not negative."""
    if number(value) < 0:
        raise ParseError(f"{value!r} is negative")
    return number(value)


def flag(value: object) -> bool:
    """Yes or no."""
    if type(value) is not bool:
        raise ParseError(f"{value!r} is neither true nor false")
    return value


def items(value: object) -> list[Any]:
    """A list."""
    if type(value) is not list:
        raise ParseError(f"{value!r} is no list")
    return value


def fields(value: object) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, Mapping):
        raise ParseError(f"{value!r} is no object")
    return value


def members(value: object) -> Bits:
    """A set, from a Linux list."""
    return bits.parse(text(value))


def members_or_none(value: object) -> Bits | None:
    """A set, or nothing."""
    return None if value is None else members(value)


def show_or_none(value: Bits | None) -> str | None:
    """A set as a Linux list, or nothing."""
    return None if value is None else bits.show(value)
