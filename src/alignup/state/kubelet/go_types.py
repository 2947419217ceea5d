"""The Go types of the kubelet's state files: how a value of each is read, written, and shown to a checksum.

A file format is said once, as types; reading, writing and hashing follow from it. Values are plain: texts, ints, dicts
and tuples, a struct as a dict by the names JSON has for its fields, and ``None`` for what Go calls nil, which a
checksum tells apart from what is empty.

Reading does as Go does: keys match whatever their case, what is not expected is passed over, and the first value of a
wrong type is complained about in Go's words, but only when all others have been read.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.state.kubelet.go_json import GoArray, GoNumber, GoObject, GoValue, encode_string, parse

Value = Any  #: a value of the type at hand, which alone knows what it is
Held = TypeVar("Held")

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)


class GoType(Protocol):
    """One Go type."""

    @property
    def name(self) -> str:
        """As Go prints it."""
        ...

    @property
    def zero(self) -> Value:
        """The value of a variable nothing was put into."""
        ...

    def read(self, tree: GoValue, into: Value, reading: "DecodeState") -> Value:
        """The value of a variable that holds *into*, once *tree* is read into it."""
        ...

    def write(self, value: Value) -> str:
        """JSON, as Go spells it."""
        ...

    def show(self, value: Value) -> str:
        """The text a checksum is taken of."""
        ...


class GoDecodeError(ParseError):
    """A value that cannot be read at all: nothing after it is."""


@dataclass(slots=True)
class DecodeState:
    """One text on its way into a type: where we are, and what was the first thing wrong."""

    struct: str = ""  #: the innermost struct
    fields: tuple[str, ...] = ()  #: the path to where we are
    error: str | None = None

    def mismatch(self, found: str, wanted: str) -> None:
        """Note that a value of a wrong type was found."""
        place = f"struct field {self.struct}.{'.'.join(self.fields)} of" if self.struct else "value of"
        self.error = self.error or f"json: cannot unmarshal {found} into Go {place} type {wanted}"

    def fails(self, error: str) -> None:
        """Note that a value of the right type makes no sense."""
        self.error = self.error or error


def decode(
    type_: "GoStruct", text: bytes, *, into: dict[str, Value] | None = None
) -> tuple[dict[str, Value], str | None]:
    """What *text* puts into a struct that holds *into*, and Go's complaint: what was read until then stands."""
    reading = DecodeState()
    value = type_.zero | (into or {})
    try:
        type_.fill(parse(text), value, reading)
    except ParseError as error:
        return value, str(error)
    return value, reading.error


@dataclass(frozen=True)
class GoString:
    """A string."""

    name: str = "string"
    zero: str = ""

    def read(self, tree: GoValue, into: str, reading: DecodeState) -> str:
        """Strings only."""
        if isinstance(tree, str):
            return tree
        return _kept(into, tree, reading, self.name)

    def write(self, value: str) -> str:
        """In quotes."""
        return encode_string(value)

    def show(self, value: str) -> str:
        """As it is."""
        return value


@dataclass(frozen=True)
class GoInteger:
    """A number, signed or not, of 64 bits."""

    name: str
    signed: bool = False
    zero: int = 0

    def read(self, tree: GoValue, into: int, reading: DecodeState) -> int:
        """Numbers in range, without a fraction or an exponent."""
        if not isinstance(tree, GoNumber):
            return _kept(into, tree, reading, self.name)
        value = self.number(tree.text)
        if value is None:
            reading.mismatch(f"number {tree.text}", self.name)
        return into if value is None else value

    def number(self, text: str) -> int | None:
        """The number *text* is, if this type has it."""
        allowed = range(-(1 << 63), 1 << 63) if self.signed else range(1 << 64)
        return int(text) if _INTEGER.fullmatch(text) and int(text) in allowed else None

    def write(self, value: int) -> str:
        """Decimal."""
        return str(value)

    def show(self, value: int) -> str:
        """Decimal."""
        return str(value)


@dataclass(frozen=True)
class GoBytes:
    """A byte string, written in base64."""

    name: str = "[]uint8"
    zero: None = None

    def read(self, tree: GoValue, into: bytes | None, reading: DecodeState) -> bytes | None:
        """Strings that are base64; line ends are passed over."""
        if tree is None:
            return None
        if not isinstance(tree, str):
            return _kept(into, tree, reading, self.name)
        try:
            return base64.b64decode(tree.replace("\r", "").replace("\n", ""), validate=True)
        except (binascii.Error, ValueError):
            reading.fails("illegal base64 data")
            return into

    def write(self, value: bytes | None) -> str:
        """Base64, in quotes."""
        return "null" if value is None else f'"{base64.b64encode(value).decode()}"'

    def show(self, value: bytes | None) -> str:
        """A list of numbers."""
        return "<nil>" if value is None else f"[{' '.join(map(str, value))}]"


@dataclass(frozen=True)
class GoSlice:
    """A slice."""

    name: str
    item: GoType
    zero: None = None

    def read(self, tree: GoValue, into: Value, reading: DecodeState) -> Value:
        """Arrays."""
        if tree is None:
            return None
        if not isinstance(tree, GoArray):
            return _kept(into, tree, reading, self.name)
        return tuple([self.item.read(one, self.item.zero, reading) for one in tree.trees])

    def write(self, value: Value) -> str:
        """In order."""
        return "null" if value is None else f"[{','.join(map(self.item.write, value))}]"

    def show(self, value: Value) -> str:
        """In order."""
        return "<nil>" if value is None else f"[{' '.join(map(self.item.show, value))}]"


@dataclass(frozen=True)
class GoMap:
    """A map; with *pointers* it holds pointers to its values, so that one may be nil."""

    name: str
    key: GoString | GoInteger
    value: GoType
    pointers: bool = False
    zero: None = None

    def read(self, tree: GoValue, into: Value, reading: DecodeState) -> Value:
        """Objects; what the map holds under other keys stays."""
        if tree is None:
            return None
        if not isinstance(tree, GoObject):
            return _kept(into, tree, reading, self.name)
        entries = dict(into or {})
        for name, one in tree.pairs:
            nil = self.pointers and one is None
            value = None if nil else self.value.read(one, self.value.zero, reading)
            key = name if isinstance(self.key, GoString) else self.key.number(name.removeprefix("+"))
            if key is None:
                reading.mismatch(f"number {name}", self.key.name)
            else:
                entries[key] = value
        return entries

    def write(self, value: Value) -> str:
        """Sorted by key, numbers as texts too."""
        return "null" if value is None else _object(sorted((str(key), one) for key, one in value.items()), self._write)

    def show(self, value: Value) -> str:
        """Sorted by key, numbers as numbers."""
        if value is None:
            return "<nil>"
        return f"map[{' '.join(f'{key}:{self._show(value[key])}' for key in sorted(value))}]"

    def _write(self, one: Value) -> str:
        return "null" if self.pointers and one is None else self.value.write(one)

    def _show(self, one: Value) -> str:
        if not self.pointers:
            return self.value.show(one)
        return "<nil>" if one is None else f"<*>{self.value.show(one)}"


@dataclass(frozen=True)
class GoField:
    """A field of a struct, as JSON and as Go call it."""

    key: str
    go: str
    type: GoType
    omit_empty: bool = False  #: left out of JSON when there is nothing in it


@dataclass(frozen=True)
class GoStruct:
    """A struct."""

    name: str
    fields: tuple[GoField, ...]
    fields_by_folded_key: dict[str, GoField] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields_by_folded_key", {one.key.casefold(): one for one in self.fields})

    @property
    def zero(self) -> dict[str, Value]:
        """Nothing in any field."""
        return {one.key: one.type.zero for one in self.fields}

    def read(self, tree: GoValue, into: dict[str, Value], reading: DecodeState) -> dict[str, Value]:
        """Objects; fields that are not named stay as they are."""
        value = dict(into)
        self.fill(tree, value, reading)
        return value

    def fill(self, tree: GoValue, value: dict[str, Value], reading: DecodeState) -> None:
        """Read *tree* into the struct *value* itself, so that it has all that was read when the rest cannot be."""
        if not isinstance(tree, GoObject):
            _kept(None, tree, reading, self.name)
            return
        outside = reading.struct, reading.fields
        for key, one in tree.pairs:
            into = self.fields_by_folded_key.get(key.casefold())
            if into is None:
                continue
            reading.struct, reading.fields = self.name.rpartition(".")[2], (*outside[1], into.key)
            value[into.key] = into.type.read(one, value[into.key], reading)
        reading.struct, reading.fields = outside

    def write(self, value: dict[str, Value]) -> str:
        """In the order of the fields."""
        written = [(one, value[one.key]) for one in self.fields if value[one.key] or not one.omit_empty]
        return "{" + ",".join(f'"{one.key}":{one.type.write(what)}' for one, what in written) + "}"

    def show(self, value: dict[str, Value]) -> str:
        """In the order of the fields, each with its type."""
        return "{" + " ".join(f"{one.go}:({one.type.name}){one.type.show(value[one.key])}" for one in self.fields) + "}"


@dataclass(frozen=True)
class GoCpuSetEntry:
    """A struct of one set of CPUs, which JSON has as an object with a Linux list."""

    name: str
    json_type: str  #: the type of that object
    key: str
    go: str
    zero: int = 0

    def read(self, tree: GoValue, into: int, reading: DecodeState) -> int:
        """Objects with a list; one that cannot be read ends all reading."""
        del into
        inside = DecodeState(reading.struct, reading.fields)
        text = ""
        if isinstance(tree, GoObject):
            inside.fields += (self.key,)
            for key, one in tree.pairs:
                text = GoString().read(one, text, inside) if key.casefold() == self.key.casefold() else text
        else:
            _kept(None, tree, inside, self.json_type)
        if inside.error:
            raise GoDecodeError(inside.error)
        try:
            return bits.parse(text)
        except ParseError as error:
            raise GoDecodeError(f"failed to parse cpuset: {error}") from None

    def write(self, value: int) -> str:
        """An object, without the list when it is empty."""
        return f'{{"{self.key}":"{bits.show(value)}"}}' if value else "{}"

    def show(self, value: int) -> str:
        """What a set of CPUs is inside."""
        cpus = " ".join(f"{cpu}:{{}}" for cpu in bits.members(value))
        return f"{{{self.go}:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{cpus}]}}}}"


def _kept(into: Held, tree: GoValue, reading: DecodeState, wanted: str) -> Held:
    """*into*, since *tree* is nothing that could be put in its place; null changes nothing, all else is a mismatch."""
    kinds = {GoObject: "object", GoArray: "array", GoNumber: "number", bool: "bool", str: "string"}
    if tree is not None:
        reading.mismatch(kinds[type(tree)], wanted)
    return into


def _object(pairs: Iterable[tuple[str, Value]], write: Callable[[Value], str]) -> str:
    return "{" + ",".join(f"{encode_string(key)}:{write(value)}" for key, value in pairs) + "}"
