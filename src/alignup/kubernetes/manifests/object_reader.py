"""Reads decoded JSON or YAML objects field by field, and collects every problem with its path.

A value of the wrong type is recorded as a problem and read as if it were absent, so that one pass finds all problems.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from alignup.align.bits import quote
from alignup.align.errors import Problem, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kubernetes.manifests.yaml_scalars import NumberLiteral

MAX_INT32 = (1 << 31) - 1

_T = TypeVar("_T")

#: White space that JSON strings can hold unescaped: Kubernetes trims a quantity before it decodes escapes.
UNESCAPED_SPACE = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_MAX_INT_BITS = 2_000  # Python does not print much longer integers
_TYPE_NAMES: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((NumberLiteral, int, float), "a number"),
    (str, "a string"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    problems: list[Problem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  #: paths of fields that do not exist

    def add(self, problem: Problem) -> None:
        """Record *problem*; a subclass may raise it instead."""
        self.problems.append(problem)


@dataclass(frozen=True, slots=True)
class ObjectReader:
    """One object of a document; ``null`` counts as absent."""

    diagnostics: Diagnostics
    path: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, document: object, diagnostics: Diagnostics | None = None, path: str = "") -> "ObjectReader":
        reader = cls(diagnostics or Diagnostics(), path, {})
        return cls(reader.diagnostics, path, reader._mapping(document, ""))

    def path_of(self, name: str) -> str:
        """The path of a field, or of this object for an empty *name*."""
        return f"{self.path}.{name}" if self.path and name else self.path or name

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """A string; *default* if it is absent or empty."""
        value = self.fields.get(name)
        if value is None:
            return default
        return (value if type(value) is str else self._wrong(name, "a string", "")) or default

    def required(self, name: str) -> str:
        text = self.text(name)
        if not text and self.fields.get(name) in (None, ""):
            self.error(name, "Required value")
        return text

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if value is None or isinstance(value, bool):
            return value or False
        return self._wrong(name, "true or false", instead=False)

    def integer(self, name: str, *, bits: int = 32) -> int | None:
        """An integer that fits into *bits*; ``None`` if it is absent."""
        value = self.fields.get(name)
        if value is None:
            return None
        text = _number_text(value)
        if text and len(text) <= 20 and text.removeprefix("-").isdecimal():
            number = int(text)
            if -(1 << bits - 1) <= number < 1 << bits - 1:
                return number
        return self._wrong(name, f"a {bits}-bit integer", None)

    def number(self, name: str, *, low: int = 0, high: int = MAX_INT32) -> int | None:
        """An integer from *low* to *high*; ``None`` if it is absent."""
        number = self.integer(name, bits=64)
        if number is None or low <= number <= high:
            return number
        self.error(name, f"Invalid value: {number}: must be between {low} and {high}, inclusive")
        return None

    def count(self, name: str, *, default: int, high: int) -> int:
        number = self.integer(name)
        if number is None:
            return default
        if number < 0:
            self.error(name, f"Invalid value: {number}: must be greater than or equal to 0")
        elif number > high:
            self.error(name, f"{number} is too many: the maximum is {high}")
        return number

    def choice(self, name: str, values: Iterable[str], default: str = "") -> str:
        """One of *values*; *default* if it is absent or empty."""
        text = self.text(name)
        if not text or text in tuple(values):
            return text or default
        self.unsupported(name, text, values)
        return default

    def strings(self, name: str) -> tuple[str, ...]:
        return self.list_of(name, ObjectReader.text)

    def string_map(self, name: str) -> dict[str, str]:
        return self.map_of(name, ObjectReader.text)

    def quantities(self, name: str) -> Amounts:
        found = {key: self._quantity(f"{name}[{key}]", value) for key, value in self.mapping(name).items()}
        return {key: amount for key, amount in found.items() if amount is not None}

    def mapping(self, name: str) -> Mapping[str, Any]:
        return self._mapping(self.fields.get(name), name)

    def child(self, name: str) -> "ObjectReader":
        return ObjectReader(self.diagnostics, self.path_of(name), self.mapping(name))

    def children(self, name: str) -> tuple["ObjectReader", ...]:
        return self.list_of(name, ObjectReader.child)

    def list_of(self, name: str, read: Callable[["ObjectReader", str], _T]) -> tuple[_T, ...]:
        """A list, each element read as a field called ``name[0]`` and so on."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, list | tuple):
            value = self._wrong(name, "a list", ())
        fields = {f"{name}[{index}]": item for index, item in enumerate(value or ())}
        elements = ObjectReader(self.diagnostics, self.path, fields)
        return tuple([read(elements, element) for element in fields])

    def map_of(self, name: str, read: Callable[["ObjectReader", str], _T]) -> dict[str, _T]:
        """An object with arbitrary keys, each value read as a field called ``name[key]``."""
        found = self.mapping(name)
        entries = ObjectReader(self.diagnostics, self.path, {f"{name}[{key}]": item for key, item in found.items()})
        return {key: read(entries, f"{name}[{key}]") for key in found}

    def error(self, name: str, what: str) -> None:
        self.diagnostics.add(Problem(self.path_of(name), what))

    def invalid(self, name: str, text: str, what: str) -> None:
        self.error(name, f"Invalid value: {quote(text)}: {what}")

    def unsupported(self, name: str, text: str, supported: Iterable[str]) -> None:
        self.error(name, f"Unsupported value: {quote(text)}: supported values: {', '.join(map(quote, supported))}")

    def faults(self, name: str, text: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self.invalid(name, text, fault)

    def _mapping(self, value: object, name: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            if all(type(key) is str for key in value):
                return value
            self.error(name, "must have strings as keys")
        elif value is not None:
            self.error(name, f"must be an object, not {type_of(value)}")
        return {}

    def _quantity(self, name: str, value: object) -> Quantity | None:
        """``null`` is zero, a string is trimmed, a number counts as it is spelled; ``None`` if it is invalid."""
        if value is None:
            return Quantity.ZERO
        try:
            return Quantity.parse(value.strip(UNESCAPED_SPACE) if type(value) is str else _number_text(value))
        except QuantityError as error:
            self.error(name, str(error))
            return None

    def _wrong(self, name: str, expected: str, instead: _T) -> _T:
        self.error(name, f"must be {expected}, not {type_of(self.fields.get(name))}")
        return instead


def word_table(text: str) -> dict[str, list[str]]:
    """The rows of a table in source code, each ``NAME:`` and the words up to the next name."""
    rows: dict[str, list[str]] = {}
    for word in text.split():
        if word.endswith(":"):
            rows[word[:-1]] = []
        else:
            rows[next(reversed(rows))].append(word)
    return rows


def type_of(value: object) -> str:
    if value is None:
        return "null"
    return next((name for types, name in _TYPE_NAMES if isinstance(value, types)), type(value).__name__)


def _number_text(value: object) -> str:
    """How a number was spelled, or would be; empty for any other value."""
    if isinstance(value, NumberLiteral):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= _MAX_INT_BITS else ""
    return repr(value) if isinstance(value, float) else ""
