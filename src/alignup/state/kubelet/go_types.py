"""The Go types of the kubelet's state files: how a value of each is decoded, encoded, and dumped for a checksum.

A file format is described once, as types. Values are plain: strings, ints, dicts and tuples; a struct is a dict with
the JSON names of its fields; ``None`` is Go's nil, which a checksum distinguishes from an empty value.

Decoding follows Go: keys match in any case, unknown fields are ignored, and the first value of a wrong type is an error
in Go's words, but only after all other values have been decoded.
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

Value = Any  #: a value of the Go type at hand
T = TypeVar("T")

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)


class GoType(Protocol):
    @property
    def name(self) -> str:
        """The name that Go prints."""
        ...

    @property
    def zero(self) -> Value:
        """Go's zero value."""
        ...

    def read(self, tree: GoValue, into: Value, state: "DecodeState") -> Value:
        """Return the value of a variable that contains *into* after *tree* is decoded into it."""
        ...

    def write(self, value: Value) -> str:
        """Return the JSON that Go writes."""
        ...

    def dump(self, value: Value) -> str:
        """Return the text that a checksum is computed of."""
        ...


class GoDecodeError(ParseError):
    """A value that stops decoding: nothing after it is decoded."""


@dataclass(slots=True)
class DecodeState:
    """The position while decoding, and the first error."""

    struct: str = ""  #: the innermost struct
    fields: tuple[str, ...] = ()  #: the path to the current value
    error: str | None = None

    def mismatch(self, found: str, wanted: str) -> None:
        """Record a value of a wrong type."""
        place = f"struct field {self.struct}.{'.'.join(self.fields)} of" if self.struct else "value of"
        self.error = self.error or f"json: cannot unmarshal {found} into Go {place} type {wanted}"

    def fail(self, error: str) -> None:
        """Record an invalid value of the right type."""
        self.error = self.error or error


def decode(
    type_: "GoStruct", text: bytes, *, into: dict[str, Value] | None = None
) -> tuple[dict[str, Value], str | None]:
    """Decode *text* into a struct that contains *into*; return it with Go's error, if any, as far as it was decoded."""
    state = DecodeState()
    value = type_.zero | (into or {})
    try:
        type_.fill(parse(text), value, state)
    except ParseError as error:
        return value, str(error)
    return value, state.error


@dataclass(frozen=True)
class GoString:
    name: str = "string"
    zero: str = ""

    def read(self, tree: GoValue, into: str, state: DecodeState) -> str:
        if isinstance(tree, str):
            return tree
        return _unchanged(into, tree, state, self.name)

    def write(self, value: str) -> str:
        return encode_string(value)

    def dump(self, value: str) -> str:
        return value


@dataclass(frozen=True)
class GoInteger:
    """An integer of 64 bits."""

    name: str
    signed: bool = False
    zero: int = 0

    def read(self, tree: GoValue, into: int, state: DecodeState) -> int:
        """Accept numbers in range, without a fraction or an exponent."""
        if not isinstance(tree, GoNumber):
            return _unchanged(into, tree, state, self.name)
        value = self.number(tree.text)
        if value is None:
            state.mismatch(f"number {tree.text}", self.name)
        return into if value is None else value

    def number(self, text: str) -> int | None:
        """Return the number, or ``None`` if this type cannot represent it."""
        allowed = range(-(1 << 63), 1 << 63) if self.signed else range(1 << 64)
        return int(text) if _INTEGER.fullmatch(text) and int(text) in allowed else None

    def write(self, value: int) -> str:
        return str(value)

    def dump(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True)
class GoBytes:
    """A byte slice, which JSON has in base64."""

    name: str = "[]uint8"
    zero: None = None

    def read(self, tree: GoValue, into: bytes | None, state: DecodeState) -> bytes | None:
        if tree is None:
            return None
        if not isinstance(tree, str):
            return _unchanged(into, tree, state, self.name)
        try:
            return base64.b64decode(tree.replace("\r", "").replace("\n", ""), validate=True)
        except (binascii.Error, ValueError):
            state.fail("illegal base64 data")
            return into

    def write(self, value: bytes | None) -> str:
        return "null" if value is None else f'"{base64.b64encode(value).decode()}"'

    def dump(self, value: bytes | None) -> str:
        return "<nil>" if value is None else f"[{' '.join(map(str, value))}]"


@dataclass(frozen=True)
class GoSlice:
    name: str
    item: GoType
    zero: None = None

    def read(self, tree: GoValue, into: Value, state: DecodeState) -> Value:
        if tree is None:
            return None
        if not isinstance(tree, GoArray):
            return _unchanged(into, tree, state, self.name)
        return tuple([self.item.read(one, self.item.zero, state) for one in tree.items])

    def write(self, value: Value) -> str:
        return "null" if value is None else f"[{','.join(map(self.item.write, value))}]"

    def dump(self, value: Value) -> str:
        return "<nil>" if value is None else f"[{' '.join(map(self.item.dump, value))}]"


@dataclass(frozen=True)
class GoMap:
    """A map; with *pointers* its values are pointers, which can be nil."""

    name: str
    key: GoString | GoInteger
    value: GoType
    pointers: bool = False
    zero: None = None

    def read(self, tree: GoValue, into: Value, state: DecodeState) -> Value:
        """Add the members of an object to the map."""
        if tree is None:
            return None
        if not isinstance(tree, GoObject):
            return _unchanged(into, tree, state, self.name)
        entries = dict(into or {})
        for name, one in tree.pairs:
            nil = self.pointers and one is None
            value = None if nil else self.value.read(one, self.value.zero, state)
            key = name if isinstance(self.key, GoString) else self.key.number(name.removeprefix("+"))
            if key is None:
                state.mismatch(f"number {name}", self.key.name)
            else:
                entries[key] = value
        return entries

    def write(self, value: Value) -> str:
        """Write the members sorted by the text of their keys."""
        if value is None:
            return "null"
        return _write_object(sorted((str(key), one) for key, one in value.items()), self._write_value)

    def dump(self, value: Value) -> str:
        """Dump the members sorted by key; integer keys sort as numbers."""
        if value is None:
            return "<nil>"
        return f"map[{' '.join(f'{key}:{self._dump_value(value[key])}' for key in sorted(value))}]"

    def _write_value(self, one: Value) -> str:
        return "null" if self.pointers and one is None else self.value.write(one)

    def _dump_value(self, one: Value) -> str:
        if not self.pointers:
            return self.value.dump(one)
        return "<nil>" if one is None else f"<*>{self.value.dump(one)}"


@dataclass(frozen=True)
class GoField:
    key: str  #: its name in JSON
    go: str  #: its name in Go
    type: GoType
    omit_empty: bool = False


@dataclass(frozen=True)
class GoStruct:
    name: str
    fields: tuple[GoField, ...]
    fields_by_folded_key: dict[str, GoField] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields_by_folded_key", {one.key.casefold(): one for one in self.fields})

    @property
    def zero(self) -> dict[str, Value]:
        return {one.key: one.type.zero for one in self.fields}

    def read(self, tree: GoValue, into: dict[str, Value], state: DecodeState) -> dict[str, Value]:
        """Set the fields that the object names; the others keep their values."""
        value = dict(into)
        self.fill(tree, value, state)
        return value

    def fill(self, tree: GoValue, value: dict[str, Value], state: DecodeState) -> None:
        """Decode into *value* in place, so that it has everything before a :class:`GoDecodeError`."""
        if not isinstance(tree, GoObject):
            _unchanged(None, tree, state, self.name)
            return
        outside = state.struct, state.fields
        for key, one in tree.pairs:
            into = self.fields_by_folded_key.get(key.casefold())
            if into is None:
                continue
            state.struct, state.fields = self.name.rpartition(".")[2], (*outside[1], into.key)
            value[into.key] = into.type.read(one, value[into.key], state)
        state.struct, state.fields = outside

    def write(self, value: dict[str, Value]) -> str:
        written = [(one, value[one.key]) for one in self.fields if value[one.key] or not one.omit_empty]
        return "{" + ",".join(f'"{one.key}":{one.type.write(what)}' for one, what in written) + "}"

    def dump(self, value: dict[str, Value]) -> str:
        return "{" + " ".join(f"{one.go}:({one.type.name}){one.type.dump(value[one.key])}" for one in self.fields) + "}"


@dataclass(frozen=True)
class GoCpuSetEntry:
    """A struct with one set of CPUs, which JSON has as an object with a Linux list."""

    name: str
    json_type: str  #: the Go type of that object
    key: str
    go: str
    zero: int = 0

    def read(self, tree: GoValue, into: int, state: DecodeState) -> int:
        """Return the set; one that cannot be parsed stops decoding."""
        del into
        inside = DecodeState(state.struct, state.fields)
        text = ""
        if isinstance(tree, GoObject):
            inside.fields += (self.key,)
            for key, one in tree.pairs:
                text = GoString().read(one, text, inside) if key.casefold() == self.key.casefold() else text
        else:
            _unchanged(None, tree, inside, self.json_type)
        if inside.error:
            raise GoDecodeError(inside.error)
        try:
            return bits.parse(text)
        except ParseError as error:
            raise GoDecodeError(f"failed to parse cpuset: {error}") from None

    def write(self, value: int) -> str:
        return f'{{"{self.key}":"{bits.show(value)}"}}' if value else "{}"

    def dump(self, value: int) -> str:
        cpus = " ".join(f"{cpu}:{{}}" for cpu in bits.members(value))
        return f"{{{self.go}:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{cpus}]}}}}"


def _unchanged(into: T, tree: GoValue, state: DecodeState, wanted: str) -> T:
    """Return *into*: null leaves a variable unchanged, and a value of a wrong type is recorded as an error."""
    kinds = {GoObject: "object", GoArray: "array", GoNumber: "number", bool: "bool", str: "string"}
    if tree is not None:
        state.mismatch(kinds[type(tree)], wanted)
    return into


def _write_object(pairs: Iterable[tuple[str, Value]], write: Callable[[Value], str]) -> str:
    return "{" + ",".join(f"{encode_string(key)}:{write(value)}" for key, value in pairs) + "}"
