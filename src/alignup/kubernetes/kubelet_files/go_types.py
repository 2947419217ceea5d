"""The Go types of the kubelet's state files: how a value of each is decoded, encoded, and dumped for a checksum.

A file format is described once, as types. Values are plain: strings, ints, dicts and tuples; a struct is a dict with
the JSON names of its fields; ``None`` is Go's nil, which a checksum distinguishes from an empty value.

Decoding follows Go: keys match in any case, unknown fields are ignored, and the first value of a wrong type is an error
in Go's words, but only after all other values have been decoded.
"""

import base64
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from alignup.align import bits
from alignup.align.errors import ParseError
from alignup.kubernetes.kubelet_files.go_json import GoNumber, GoObject, GoValue, encode_string, parse

Value = Any  #: a value of the Go type at hand

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_KINDS = {GoObject: "object", tuple: "array", GoNumber: "number", bool: "bool", str: "string"}


@dataclass(slots=True)
class DecodeState:
    struct: str = ""  #: the innermost struct
    fields: tuple[str, ...] = ()  #: the path to the current value
    error: str | None = None

    def mismatch(self, found: str, wanted: str) -> None:
        place = f"struct field {self.struct}.{'.'.join(self.fields)} of" if self.struct else "value of"
        self.error = self.error or f"json: cannot unmarshal {found} into Go {place} type {wanted}"


@dataclass(frozen=True)
class GoType:
    name: str  #: as Go prints it
    accepts: ClassVar[type]  #: the JSON values it can be decoded from

    @property
    def zero(self) -> Value:
        return None

    def read(self, tree: GoValue, into: Value, state: DecodeState) -> Value:
        """Return the value of a variable that contains *into* after *tree* is decoded into it.

        A value of a wrong type is recorded as an error and leaves the variable unchanged, as null does for a type
        without nil.
        """
        if isinstance(tree, self.accepts):
            return self._read(tree, into, state)
        if tree is not None:
            state.mismatch(_KINDS[type(tree)], self.name)
        return None if tree is None and self.zero is None else into

    def write(self, value: Value) -> str:
        """Return the JSON that Go writes."""
        return "null" if value is None else self._write(value)

    def dump(self, value: Value) -> str:
        """Return the text that a checksum is computed of."""
        return "<nil>" if value is None else self._dump(value)

    def _read(self, tree: Any, into: Value, state: DecodeState) -> Value:  # noqa: ANN401, ARG002
        """Return the new value; *tree* is an instance of ``accepts``."""
        return tree

    def _write(self, value: Value) -> str:
        return str(value)

    def _dump(self, value: Value) -> str:
        return str(value)


def decode(
    type_: "GoStruct", text: bytes, *, into: dict[str, Value] | None = None
) -> tuple[dict[str, Value], str | None]:
    """Decode *text* into a struct that contains *into*; return it with Go's error, if any, as far as it was decoded."""
    state = DecodeState()
    value = into or type_.zero
    try:
        type_.fill(parse(text), value, state)
    except ParseError as error:
        return value, str(error)
    return value, state.error


@dataclass(frozen=True)
class GoString(GoType):
    name: str = "string"
    zero: str = ""
    accepts = str

    def _write(self, value: str) -> str:
        return encode_string(value)


@dataclass(frozen=True)
class GoInteger(GoType):
    signed: bool = False
    zero: int = 0
    accepts = GoNumber

    def _read(self, tree: GoNumber, into: int, state: DecodeState) -> int:
        if (value := self.number(tree.text)) is not None:
            return value
        state.mismatch(f"number {tree.text}", self.name)
        return into

    def number(self, text: str) -> int | None:
        """Return the number; ``None`` if it is out of range, or has a fraction or an exponent."""
        allowed = range(-(1 << 63), 1 << 63) if self.signed else range(1 << 64)
        return int(text) if _INTEGER.fullmatch(text) and int(text) in allowed else None


@dataclass(frozen=True)
class GoBytes(GoType):
    """A byte slice, which JSON has in base64."""

    name: str = "[]uint8"
    accepts = str

    def _read(self, tree: str, into: bytes | None, state: DecodeState) -> bytes | None:
        try:
            return base64.b64decode(tree.replace("\r", "").replace("\n", ""), validate=True)
        except ValueError:
            state.error = state.error or "illegal base64 data"
            return into

    def _write(self, value: bytes) -> str:
        return f'"{base64.b64encode(value).decode()}"'

    def _dump(self, value: bytes) -> str:
        return f"[{' '.join(map(str, value))}]"


@dataclass(frozen=True)
class GoSlice(GoType):
    item: GoType
    accepts = tuple

    def _read(self, tree: Value, into: Value, state: DecodeState) -> Value:  # noqa: ARG002 - replaced, not extended
        return tuple([self.item.read(one, self.item.zero, state) for one in tree])

    def _write(self, value: Value) -> str:
        return f"[{','.join(map(self.item.write, value))}]"

    def _dump(self, value: Value) -> str:
        return f"[{' '.join(map(self.item.dump, value))}]"


@dataclass(frozen=True)
class GoMap(GoType):
    """A map; with *pointers* its values are pointers, which can be nil."""

    key: GoString | GoInteger
    value: GoType
    pointers: bool = False
    accepts = GoObject

    def _read(self, tree: GoObject, into: Value, state: DecodeState) -> Value:
        entries = dict(into or {})
        for name, one in tree.pairs:
            value = None if self.pointers and one is None else self.value.read(one, self.value.zero, state)
            key = name if isinstance(self.key, GoString) else self.key.number(name.removeprefix("+"))
            if key is None:
                state.mismatch(f"number {name}", self.key.name)
            else:
                entries[key] = value
        return entries

    def _write(self, value: Value) -> str:
        members = sorted((str(key), self.value.write(one)) for key, one in value.items())  # unlike in a dump
        return "{" + ",".join(f"{encode_string(key)}:{one}" for key, one in members) + "}"

    def _dump(self, value: Value) -> str:
        pointer = "<*>" if self.pointers else ""
        members = ((key, "" if value[key] is None else pointer, self.value.dump(value[key])) for key in sorted(value))
        return f"map[{' '.join(f'{key}:{star}{one}' for key, star, one in members)}]"


@dataclass(frozen=True)
class GoField:
    key: str  #: its name in JSON
    go: str  #: its name in Go
    type: GoType
    omit_empty: bool = False


@dataclass(frozen=True)
class GoStruct(GoType):
    fields: tuple[GoField, ...]
    accepts = GoObject

    @classmethod
    def of(cls, name: str, **types: GoType) -> "GoStruct":
        """Return a struct whose fields have the same name in JSON and in Go."""
        return cls(name, tuple(GoField(field, field, type_) for field, type_ in types.items()))

    @cached_property
    def fields_by_folded_key(self) -> dict[str, GoField]:
        return {one.key.casefold(): one for one in self.fields}

    @property
    def zero(self) -> dict[str, Value]:
        return {one.key: one.type.zero for one in self.fields}

    @property
    def empty(self) -> dict[str, Value]:
        """The zero value with empty maps instead of nil, as before a kubelet reads a state file."""
        return {one.key: {} if isinstance(one.type, GoMap) else one.type.zero for one in self.fields}

    def _read(self, tree: GoObject, into: dict[str, Value], state: DecodeState) -> dict[str, Value]:
        value = dict(into)
        self.fill(tree, value, state)
        return value

    def fill(self, tree: GoValue, value: dict[str, Value], state: DecodeState) -> None:
        """Set the fields that the object names; in place, so that *value* has all before an error."""
        if not isinstance(tree, GoObject):
            self.read(tree, value, state)
            return
        outside = state.struct, state.fields
        for key, one in tree.pairs:
            into = self.fields_by_folded_key.get(key.casefold())
            if into is None:
                continue
            state.struct, state.fields = self.name.rpartition(".")[2], (*outside[1], into.key)
            value[into.key] = into.type.read(one, value[into.key], state)
        state.struct, state.fields = outside

    def _write(self, value: dict[str, Value]) -> str:
        written = [(one, value[one.key]) for one in self.fields if value[one.key] or not one.omit_empty]
        return "{" + ",".join(f'"{one.key}":{one.type.write(what)}' for one, what in written) + "}"

    def _dump(self, value: dict[str, Value]) -> str:
        return "{" + " ".join(f"{one.go}:({one.type.name}){one.type.dump(value[one.key])}" for one in self.fields) + "}"


@dataclass(frozen=True)
class GoCpuSetEntry(GoType):
    """A struct with one set of CPUs, which JSON has as an object with a Linux list."""

    json_type: str  #: the Go type of that object
    key: str
    go: str
    zero: int = 0

    def read(self, tree: GoValue, into: int, state: DecodeState) -> int:  # noqa: ARG002 - null is the empty set
        """Return the set; one that cannot be parsed stops decoding."""
        inside = DecodeState(state.struct, state.fields)
        text = ""
        if isinstance(tree, GoObject):
            inside.fields += (self.key,)
            for key, one in tree.pairs:
                text = GoString().read(one, text, inside) if key.casefold() == self.key.casefold() else text
        elif tree is not None:
            inside.mismatch(_KINDS[type(tree)], self.json_type)
        if inside.error:
            raise ParseError(inside.error)
        try:
            return bits.parse(text)
        except ParseError as error:
            raise ParseError(f"failed to parse cpuset: {error}") from None

    def _write(self, value: int) -> str:
        return f'{{"{self.key}":"{bits.show(value)}"}}' if value else "{}"

    def _dump(self, value: int) -> str:
        cpus = " ".join(f"{cpu}:{{}}" for cpu in bits.members(value))
        return f"{{{self.go}:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{cpus}]}}}}"
