"""JSON as Go decodes and encodes it, for files that a kubelet wrote or must accept.

A file format is described once, as Go types. Values are plain: strings, ints, dicts and tuples; a struct is a dict with
the JSON names of its fields; ``None`` is Go's nil, which a checksum distinguishes from an empty value.

Decoding follows Go: keys match in any case, unknown fields are ignored, and the first value of a wrong type is an error
in Go's words, but only after all other values have been decoded. Go's messages are part of the kubelet's errors, which
people search for.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import Any, Union

from alignup.align import bits
from alignup.align.errors import OWN_LIMIT, ParseError

#: Go allows 10000 levels; a state file has fewer than ten.
MAX_DEPTH = 100
MAX_MARKS = 1_000_000  #: commas, colons and brackets, which take about 300 bytes each; a large node has 50,000

Value = Any  #: a value of the Go type at hand

_SPACES = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_HEX = re.compile(rb"[0-9a-fA-F]*")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_EXPONENT_SIGN = re.compile(rb"[eE][+-]?")
_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


@dataclass(slots=True)  # frozen ones take three times as long to create
class GoNumber:
    text: str


@dataclass(slots=True)
class GoObject:
    """All members in order, also members with a repeated key. An array is a list."""

    pairs: "GoPairs"


GoPairs = tuple[tuple[str, "GoValue"], ...]
GoValue = Union[GoObject, list["GoValue"], GoNumber, str, bool, None]  # noqa: UP007 - refers to itself

_JSON_KINDS = {GoObject: "object", list: "array", GoNumber: "number", bool: "bool", str: "string"}


@lru_cache(maxsize=4)  # a file is decoded as one version after another, and checked again after that
def parse(text: bytes) -> GoValue:
    """Decode *text*; ``ParseError`` with Go's message if it is not JSON."""
    try:
        tree = json.loads(
            text.decode(errors="surrogateescape"),
            object_pairs_hook=lambda pairs: GoObject(tuple(pairs)),
            parse_int=GoNumber,
            parse_float=GoNumber,
            parse_constant=int,  # which rejects NaN
        )
        plain = text.isascii() and b"\\u" not in text
        return tree if plain else _go_value(tree, MAX_DEPTH)
    except (ValueError, RecursionError):
        raise ParseError(_syntax_error(text)) from None


def _go_value(tree: Any, depth: int) -> GoValue:  # noqa: ANN401 - decoded JSON
    """Replace lone surrogates and bytes that are not UTF-8, as Go does; ``ValueError`` below *depth* levels."""
    kind = type(tree)
    if kind is str:
        return _go_string(tree)
    if kind is not GoObject and kind is not list:
        return tree  # type: ignore[no-any-return]
    if not depth:
        raise ValueError(depth)
    if kind is list:
        return [_go_value(item, depth - 1) for item in tree]
    tree.pairs = tuple([(_go_string(key), _go_value(member, depth - 1)) for key, member in tree.pairs])
    return tree  # type: ignore[no-any-return]


def _go_string(text: str) -> str:
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def _syntax_error(text: bytes) -> str:  # noqa: C901 - a case for each state of a scanner
    """Return Go's message about the first error in *text*.

    Go appends a space to the text, so half a literal is "invalid character ' '".
    """
    data, at, open_brackets, problem = text + b" ", 0, b"", None
    expectation = "value"
    while problem is None:
        at = _skip(_SPACES, data, at)
        char = data[at : at + 1]
        if expectation == "end" and char == open_brackets[-1:] != b"":
            at, open_brackets = at + 1, open_brackets[:-1]
        elif expectation == "end" and char == b"," and open_brackets:
            at, expectation = at + 1, "key" if open_brackets.endswith(b"}") else "value"
        elif expectation == "end":
            problem = {b"": "after top-level value", b"}": "after object key:value pair"}.get(
                open_brackets[-1:], "after array element"
            )
        elif expectation == "colon" and char == b":":
            at, expectation = at + 1, "value"
        elif expectation == "colon":
            problem = "after object key"
        elif expectation == "key" and char != b'"':
            problem = "looking for beginning of object key string"
        elif char in (b"{", b"[") and len(open_brackets) == MAX_DEPTH:
            problem = "exceeded max depth"
        elif char in (b"{", b"["):
            open_brackets += b"}" if char == b"{" else b"]"
            at = _skip(_SPACES, data, at + 1)
            expectation = "end" if data[at : at + 1] == open_brackets[-1:] else "key" if char == b"{" else "value"
        else:
            at, problem = _scan_scalar(data, at)
            expectation = "colon" if expectation == "key" else "end"
    if at >= len(data):
        return "unexpected end of JSON input"
    wrong = chr(data[at])
    quoted_character = {"'": r"'\''", '"': "'\"'"}.get(wrong) or f"'{bits.quote(wrong)[1:-1]}'"
    return f"invalid character {quoted_character} {problem}"


def _scan_scalar(data: bytes, at: int) -> tuple[int, str | None]:  # noqa: C901 - as above
    """Return the end of the string, number or literal at *at*, or where and in what it is invalid."""
    char = data[at : at + 1]
    if char == b'"':
        at = _skip(_STRING, data, at)
        if data[at : at + 1] == b'"':
            return at + 1, None
        if data[at : at + 1] != b"\\":
            return at, "in string literal"
        if data[at + 1 : at + 2] != b"u":
            return at + 1, "in string escape code"
        return _skip(_HEX, data, at + 2), "in \\u hexadecimal character escape"
    for word in (b"true", b"false", b"null"):
        if word.startswith(char) and char:
            wrong = next((index for index, character in enumerate(word) if data[at + index] != character), None)
            if wrong is None:
                return at + len(word), None
            return at + wrong, f"in literal {word.decode()} (expecting '{chr(word[wrong])}')"
    number = _NUMBER.match(data, at)
    if number is None:
        return (at + 1, "in numeric literal") if char == b"-" else (at, "looking for beginning of value")
    at = number.end()
    if data[at : at + 1] == b"." and number.lastindex is None:
        return at + 1, "after decimal point in numeric literal"
    if data[at : at + 1] in (b"e", b"E") and number[2] is None:
        return _skip(_EXPONENT_SIGN, data, at), "in exponent of numeric literal"
    return at, None


def _skip(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def encode_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPED)


class Kind(Enum):
    STRING = auto()
    INT = auto()
    UINT = auto()
    BYTES = auto()  #: in JSON in base64
    SLICE = auto()
    MAP = auto()
    POINTER_MAP = auto()  #: its values can be nil
    STRUCT = auto()
    CPU_SET = auto()  #: a struct with one set of CPUs; in JSON an object with a Linux list


@dataclass(frozen=True)
class GoType:
    """A type as Go's package ``reflect`` describes it."""

    name: str  #: as Go prints it
    kind: Kind
    elem: Any = None  #: the type of the members of a slice or map
    key: Any = None  #: the type of the keys of a map; ``None``: string
    fields: tuple["GoField", ...] = ()  #: of a struct; in a set of CPUs, the only one has the type of the JSON object

    @property
    def zero(self) -> Value:
        if self.kind is Kind.STRUCT:
            return {field.key: field.type.zero for field in self.fields}
        return self._plain_zero

    @cached_property
    def _plain_zero(self) -> Value:
        return {Kind.STRING: "", Kind.INT: 0, Kind.UINT: 0, Kind.CPU_SET: 0}.get(self.kind)

    @cached_property
    def short_name(self) -> str:
        """The name without its package."""
        return self.name.rpartition(".")[2]

    @cached_property
    def fields_by_key(self) -> Mapping[str, "GoField"]:
        """The fields by their names in JSON, also in lower case: Go ignores case."""
        return {key: field for field in self.fields for key in (field.key.casefold(), field.key)}

    @property
    def empty(self) -> dict[str, Value]:
        """The zero value of a struct with empty maps instead of nil, as before a kubelet reads a state file."""
        maps = (Kind.MAP, Kind.POINTER_MAP)
        return {field.key: {} if field.type.kind in maps else field.type.zero for field in self.fields}


@dataclass(frozen=True)
class GoField:
    key: str  #: its name in JSON
    go: str  #: its name in Go
    type: GoType
    omit_empty: bool = False


STRING = GoType("string", Kind.STRING)


def decode(
    struct: GoType, text: bytes, *, into: dict[str, Value] | None = None, names_map_keys: bool = False
) -> tuple[dict[str, Value], str | None]:
    """Decode *text* into a struct that contains *into*; return it with Go's error, if any, as far as it was decoded.

    With *names_map_keys*, errors name the keys of maps on the path to a value, as Go 1.27 does.
    """
    decoder = _Decoder(names_map_keys=names_map_keys)
    value: dict[str, Value] = into or struct.zero
    if count_marks(text) > MAX_MARKS:
        return value, f"more than {MAX_MARKS} commas, colons and brackets {OWN_LIMIT}"
    try:
        decoder.read(struct, parse(text), value)
    except ParseError as error:
        return value, str(error)
    return value, decoder.error


def count_marks(text: bytes) -> int:
    """Return how many commas, colons and brackets *text* has, which limits how much it can be when it is decoded."""
    return sum(map(text.count, (b",", b":", b"[", b"{")))


@dataclass(slots=True)
class _Decoder:
    struct: str = ""  #: the innermost struct
    fields: tuple[str, ...] = ()  #: the path to the current value
    error: str | None = None
    names_map_keys: bool = False

    def read(self, type_: GoType, tree: GoValue, into: Value) -> Value:
        """Return the value of a variable that contains *into* after *tree* is decoded into it.

        A value of a wrong type is recorded as an error and leaves the variable unchanged, as null does for a type
        without nil. A struct is changed in place, so that it has all before an error that stops decoding.
        """
        kind = type_.kind
        if type(tree) is str and kind is Kind.STRING:
            return tree
        if type(tree) is GoObject and kind is Kind.STRUCT:
            return self.fill(type_, tree.pairs, into)
        if type(tree) is GoObject and (kind is Kind.MAP or kind is Kind.POINTER_MAP):
            return self.read_map(type_, tree.pairs, dict(into or {}))
        if type(tree) is GoNumber and (kind is Kind.INT or kind is Kind.UINT):
            value = _integer(type_, tree.text)
            return self.mismatch(f"number {tree.text}", type_.name, into) if value is None else value
        if type(tree) is list and kind is Kind.SLICE:
            return tuple([self.read(type_.elem, item, type_.elem.zero) for item in tree])
        match kind, tree:
            case Kind.BYTES, str():
                try:
                    return base64.b64decode(tree.replace("\r", "").replace("\n", ""), validate=True)
                except ValueError:
                    self.error = self.error or "illegal base64 data"
                    return into
            case Kind.CPU_SET, _:
                return self.read_cpus(type_, tree)
            case _, None:
                return None if type_.zero is None else into
        return self.mismatch(_JSON_KINDS[type(tree)], type_.name, into)

    def read_map(self, type_: GoType, pairs: GoPairs, entries: dict[Any, Value]) -> dict[Any, Value]:
        if type_.elem is STRING and type_.key is None and all(type(member) is str for _, member in pairs):
            entries.update(pairs)
            return entries
        outside = self.fields
        for name, member in pairs:
            nil = type_.kind is Kind.POINTER_MAP and member is None
            self.fields = (*outside, name) if self.names_map_keys else outside
            value = None if nil else self.read(type_.elem, member, type_.elem.zero)
            self.fields = outside
            key = name if type_.key is None else _integer(type_.key, name.removeprefix("+"))
            if key is None:
                self.mismatch(f"number {name}", type_.key.name)
            else:
                entries[key] = value
        return entries

    def fill(self, struct: GoType, pairs: GoPairs, value: dict[str, Value]) -> dict[str, Value]:
        outside, fields = self.struct, self.fields
        self.struct = struct.short_name
        for key, member in pairs:
            if field := struct.fields_by_key.get(key) or struct.fields_by_key.get(key.casefold()):
                self.fields = (*fields, field.key)
                value[field.key] = self.read(field.type, member, value[field.key])
        self.struct = outside
        self.fields = fields
        return value

    def read_cpus(self, type_: GoType, tree: GoValue) -> int:
        """Return the set, which is empty for null; a set that cannot be parsed stops decoding."""
        (field,) = type_.fields
        inside = _Decoder(self.struct, self.fields)
        text = ""
        if isinstance(tree, GoObject):
            inside.fields += (field.key,)
            for key, member in tree.pairs:
                text = inside.read(STRING, member, text) if key.casefold() == field.key.casefold() else text
        elif tree is not None:
            inside.mismatch(_JSON_KINDS[type(tree)], field.type.name)
        if inside.error:
            raise ParseError(inside.error)
        try:
            return bits.parse(text)
        except ParseError as error:
            raise ParseError(f"failed to parse cpuset: {error}") from None

    def mismatch(self, json_value: str, type_name: str, into: Value = None) -> Value:
        """Record the error unless there was one before; return *into*, which is unchanged."""
        target = f"struct field {self.struct}.{'.'.join(self.fields)} of" if self.struct else "value of"
        self.error = self.error or f"json: cannot unmarshal {json_value} into Go {target} type {type_name}"
        return into


def _integer(type_: GoType, text: str) -> int | None:
    """Return the number; ``None`` if it is out of range, or has a fraction or an exponent."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    valid_range = range(-(1 << 63), 1 << 63) if type_.kind is Kind.INT else range(1 << 64)
    return int(text) if _INTEGER.fullmatch(text) and int(text) in valid_range else None


def encode(type_: GoType, value: Value) -> str:
    """Return the JSON that Go writes."""
    if value is None:
        return "null"
    match type_.kind:
        case Kind.STRING:
            return encode_string(value)
        case Kind.BYTES:
            return f'"{base64.b64encode(value).decode()}"'
        case Kind.SLICE:
            return f"[{','.join(encode(type_.elem, item) for item in value)}]"
        case Kind.MAP | Kind.POINTER_MAP:  # sorted as text, unlike for a checksum
            members = sorted((str(key), encode(type_.elem, member)) for key, member in value.items())
            return "{" + ",".join(f"{encode_string(key)}:{member}" for key, member in members) + "}"
        case Kind.STRUCT:
            fields = [field for field in type_.fields if value[field.key] or not field.omit_empty]
            return "{" + ",".join(f'"{field.key}":{encode(field.type, value[field.key])}' for field in fields) + "}"
        case Kind.CPU_SET:
            return f'{{"{type_.fields[0].key}":"{bits.show(value)}"}}' if value else "{}"
    return str(value)


def checksum_text(type_: GoType, value: Value) -> str:
    """Return the text that a checksum is computed of: Go's dump of *value*."""
    if value is None:
        return "<nil>"
    match type_.kind:
        case Kind.BYTES:
            return f"[{' '.join(map(str, value))}]"
        case Kind.SLICE:
            return f"[{' '.join(checksum_text(type_.elem, item) for item in value)}]"
        case Kind.MAP | Kind.POINTER_MAP:
            star = "<*>" if type_.kind is Kind.POINTER_MAP else ""
            members = (
                f"{key}:{'' if value[key] is None else star}{checksum_text(type_.elem, value[key])}"
                for key in sorted(value)
            )
            return f"map[{' '.join(members)}]"
        case Kind.STRUCT:
            members = (
                f"{field.go}:({field.type.name}){checksum_text(field.type, value[field.key])}" for field in type_.fields
            )
            return "{" + " ".join(members) + "}"
        case Kind.CPU_SET:
            cpus = " ".join(f"{cpu}:{{}}" for cpu in bits.members(value))
            return f"{{{type_.fields[0].go}:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{cpus}]}}}}"
    return str(value)
