"""A reader of decoded JSON or YAML objects, field by field, that collects every problem with its path.

A value of the wrong type is recorded as a problem and read as if it were absent, so that one pass finds all problems.
"""

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from alignup.align.bits import quote
from alignup.align.errors import Problem, ProblemKind, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts
from alignup.kubernetes.manifests.documents import NumberLiteral

MAX_INT32 = (1 << 31) - 1

_T = TypeVar("_T")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_FieldReader = Callable[["ObjectReader", str], Any]

#: White space that JSON strings can hold unescaped: Kubernetes trims a quantity before it decodes escapes.
UNESCAPED_SPACE = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_STRING = "a string"
_MAX_INT_BITS = 2_000  # Python does not print much longer integers
_TYPE_NAMES: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((NumberLiteral, int, float), "a number"),
    (str, _STRING),
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
        outer = cls(diagnostics or Diagnostics(), path, {"": document})
        return cls(outer.diagnostics, path, outer.mapping(""))

    def path_of(self, name: str) -> str:
        """Return the path of a field, or of this object for an empty *name*."""
        return f"{self.path}.{name}" if self.path and name else self.path or name

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """Return a string; *default* if it is absent or empty."""
        value = self.fields.get(name)
        if value is None:
            return default
        return (value if type(value) is str else self._wrong(name, _STRING, "")) or default

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
        """Return an integer that fits into *bits*; ``None`` if it is absent."""
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
        """Return an integer from *low* to *high*; ``None`` if it is absent."""
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
        """Return one of *values*; *default* if it is absent or empty."""
        text = self.text(name)
        if not text or text in tuple(values):
            return text or default
        self.error(name, f"Unsupported value: {quote(text)}: supported values: {', '.join(map(quote, values))}")
        return default

    def strings(self, name: str) -> tuple[str, ...]:
        return self.list_of(name, ObjectReader.text)

    def read_struct(self, type_: type[_Struct]) -> _Struct:
        """Return the object as a struct, with the fields that it has there."""
        readers, fields = _field_readers(type_), self.fields
        present = [reader for reader in readers if fields.get(reader[1]) is not None]
        return type_(**{attribute: read(self, name) for attribute, name, read in present})

    def quantities(self, name: str) -> Amounts:
        amounts: dict[str, Quantity] = {}
        for key, value in self.mapping(name).items():
            try:
                amounts |= parse_amounts({key: value})
            except QuantityError as error:
                self.error(f"{name}[{key}]", error.message, ProblemKind.QUANTITY)
        return amounts

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.fields.get(name)
        if isinstance(value, Mapping):
            if all(type(key) is str for key in value):
                return value
            self.error(name, "must have strings as keys")
        elif value is not None:
            self._wrong(name, "an object", {})
        return {}

    def child(self, name: str) -> "ObjectReader":
        path = f"{self.path}.{name}" if self.path else name
        return ObjectReader(self.diagnostics, path, self.mapping(name))

    def children(self, name: str) -> tuple["ObjectReader", ...]:
        return self.list_of(name, ObjectReader.child)

    def list_of(self, name: str, read: Callable[["ObjectReader", str], _T]) -> tuple[_T, ...]:
        """Return a list, each element read as a field called ``name[0]`` and so on."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, list | tuple):
            value = self._wrong(name, "a list", ())
        fields = {f"{name}[{index}]": item for index, item in enumerate(value or ())}
        elements = ObjectReader(self.diagnostics, self.path, fields)
        return tuple([read(elements, element) for element in fields])

    def map_of(self, name: str, read: Callable[["ObjectReader", str], _T]) -> dict[str, _T]:
        """Return an object with arbitrary keys, each value read as a field called ``name[key]``."""
        values = self.mapping(name)
        entries = ObjectReader(self.diagnostics, self.path, {f"{name}[{key}]": item for key, item in values.items()})
        return {key: read(entries, f"{name}[{key}]") for key in values}

    def error(self, name: str, message: str, kind: ProblemKind = ProblemKind.OTHER) -> None:
        self.diagnostics.add(Problem(self.path_of(name), message, kind))

    def faults(self, name: str, text: str, faults: Iterable[str]) -> None:
        for fault in faults:
            self.error(name, f"Invalid value: {quote(text)}: {fault}")

    def _wrong(self, name: str, expectation: str, instead: _T) -> _T:
        kind = ProblemKind.NOT_A_STRING if expectation == _STRING else ProblemKind.OTHER_TYPE
        self.error(name, f"must be {expectation}, not {type_of(self.fields.get(name))}", kind)
        return instead


@cache
def _field_readers(type_: type[msgspec.Struct]) -> tuple[tuple[str, str, "_FieldReader"], ...]:
    """Return each field of a struct: its attribute, its name in JSON, and the function that reads it."""
    return tuple((field.name, field.encode_name, _reader_of(field.type)) for field in msgspec.structs.fields(type_))


def _reader_of(type_: Any) -> "_FieldReader":  # noqa: ANN401 - any type of a field
    match get_origin(type_), get_args(type_):
        case ((types.UnionType | typing.Union), (inner, _)):  # or ``None``
            return _reader_of(inner)
        case origin, (element, _) if origin is tuple:
            return partial(ObjectReader.list_of, read=_reader_of(element))
        case origin, (_, element) if origin is dict:
            return ObjectReader.quantities if element is Any else partial(ObjectReader.map_of, read=_reader_of(element))
        case typing.Annotated, _:
            return ObjectReader.integer
    if type_ is Any:
        return lambda reader, name: reader.fields.get(name)
    simple = _SIMPLE_READERS.get(type_)
    return simple or (lambda reader, name: reader.child(name).read_struct(type_))


_SIMPLE_READERS: dict[Any, "_FieldReader"] = {
    str: ObjectReader.text,
    bool: ObjectReader.flag,
    int: partial(ObjectReader.integer, bits=64),
}


def parse_amounts(values: Mapping[str, Any]) -> dict[str, Quantity]:
    """Parse amounts by name: ``null`` is zero, a string is trimmed, a number counts as it is spelled.

    A quantity stays as it is. :class:`QuantityError` has Kubernetes' message.
    """
    amounts: dict[str, Quantity] = {}
    for name, value in values.items():
        if type(value) is str:
            amounts[name] = Quantity.parse(value.strip(UNESCAPED_SPACE))
        elif value is None or type(value) is Quantity:
            amounts[name] = Quantity.ZERO if value is None else value
        else:
            amounts[name] = Quantity.parse(_number_text(value))
    return amounts


def type_of(value: object) -> str:
    if value is None:
        return "null"
    return next((name for types, name in _TYPE_NAMES if isinstance(value, types)), type(value).__name__)


def _number_text(value: object) -> str:
    """Return how a number was spelled, or would be; empty for any other value."""
    if isinstance(value, NumberLiteral):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= _MAX_INT_BITS else ""
    return repr(value) if isinstance(value, float) else ""
