"""Takes decoded values for what they should be, and notes by their path those that are not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from alignup.align.errors import Problem, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kube.yaml_scalars import NumberLiteral

_Kind = TypeVar("_Kind")

#: White space that JSON can hold unescaped: Kubernetes trims an amount before it decodes escapes.
_BLANKS = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PRINTABLE = 2_000  # bits; Python may refuse to print a longer int
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass
class FieldReader:
    """Takes decoded values for what they should be; one that is not is noted, and read as if it were absent."""

    problems: list[Problem] = field(default_factory=list)

    def mapping(self, value: object, where: str) -> Mapping[str, Any]:
        """An object; ``null`` is one without fields."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return self._wrong(value, where, "an object", {})
        if all(type(key) is str for key in value):
            return value
        self.problems.append(Problem(where, "must have strings as keys"))
        return {}

    def items(self, value: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The objects of a list, each with its path; ``null`` is the empty list."""
        if value is not None and not isinstance(value, list | tuple):
            value = self._wrong(value, where, "a list", ())
        for index, item in enumerate(value or ()):
            path = f"{where}[{index}]"
            yield path, self.mapping(item, path)

    def text(self, value: object, where: str) -> str:
        """A string; ``null`` is the empty one."""
        if value is None:
            return ""
        return value if type(value) is str else self._wrong(value, where, "a string", "")

    def required(self, value: object, where: str) -> str:
        """A string that is not empty."""
        before = len(self.problems)
        text = self.text(value, where)
        if not text and len(self.problems) == before:
            self.problems.append(Problem(where, "Required value"))
        return text

    def count(self, value: object, where: str, *, default: int, most: int) -> int:
        """How many of something: none at least, and not more than *most*."""
        number = self.integer(value, where)
        if number is None:
            return default
        if number < 0:
            self.problems.append(Problem(where, f"Invalid value: {number}: must be greater than or equal to 0"))
        elif number > most:
            self.problems.append(Problem(where, f"{number} is too many: expected {most} at most"))
        return number

    def texts(self, value: object, where: str) -> Mapping[str, str]:
        """An object whose values are strings."""
        found = self.mapping(value, where)
        return {key: self.text(item, f"{where}[{key}]") for key, item in found.items()}

    def integer(self, value: object, where: str) -> int | None:
        """A 32-bit integer; ``null`` is ``None``."""
        return self._within(_INT32, value, where, "a 32-bit integer")

    def long(self, value: object, where: str) -> int | None:
        """A 64-bit integer; ``null`` is ``None``."""
        return self._within(_INT64, value, where, "a 64-bit integer")

    def flag(self, value: object, where: str) -> bool | None:
        """True or false; ``null`` is ``None``."""
        return value if value is None or isinstance(value, bool) else self._wrong(value, where, "true or false", None)

    def strings(self, value: object, where: str) -> tuple[str, ...]:
        """A list of strings; ``null`` is the empty list."""
        if value is not None and not isinstance(value, list | tuple):
            value = self._wrong(value, where, "a list", ())
        return tuple(self.text(item, f"{where}[{index}]") for index, item in enumerate(value or ()))

    def amounts(self, value: object, where: str) -> Amounts:
        """An object whose values are quantities."""
        read = {}
        for name, item in self.mapping(value, where).items():
            try:
                read[name] = _quantity(item)
            except QuantityError as error:
                self.problems.append(Problem(f"{where}[{name}]", str(error)))
        return read

    def one_of(self, kinds: Callable[[str], _Kind], value: object, where: str) -> _Kind | None:
        """A string that is one of some; ``null`` and the empty string are none of them."""
        text = self.text(value, where)
        try:
            return kinds(text) if text else None
        except ValueError as error:
            self.problems.append(Problem(where, str(error)))
            return None

    def _within(self, numbers: range, value: object, where: str, wanted: str) -> int | None:
        if value is None:
            return None
        text = _number_text(value)
        if text and len(text) <= 20 and text.removeprefix("-").isdecimal() and int(text) in numbers:
            return int(text)
        return self._wrong(value, where, wanted, None)

    def _wrong(self, value: object, where: str, wanted: str, instead: _Kind) -> _Kind:
        self.problems.append(Problem(where, f"must be {wanted}, not {_kind(value)}"))
        return instead


def _quantity(value: object) -> Quantity:
    """An amount from a JSON value: ``null`` is zero, a string is trimmed, a number is its text."""
    if value is None:
        return Quantity.ZERO
    if type(value) is str:
        return Quantity.parse(value.strip(_BLANKS))
    return Quantity.parse(_number_text(value))


def _number_text(value: object) -> str:
    """How a number was written, or would be; the empty text for anything else."""
    if isinstance(value, NumberLiteral):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= _PRINTABLE else ""
    return repr(value) if isinstance(value, float) else ""


def _kind(value: object) -> str:
    """What a decoded value is, in JSON's words."""
    match value:
        case bool():
            return "true or false"
        case NumberLiteral() | int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return type(value).__name__
