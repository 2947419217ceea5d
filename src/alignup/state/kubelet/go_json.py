"""JSON as Go reads and spells it, for files that a kubelet wrote and a kubelet must accept.

``parse`` takes what Go takes and complains in Go's words, since these end up in the kubelet's errors, which people
search for. Numbers stay texts and objects keep all their members in order: what they mean is for the type that is
expected (``go_types``).

The surprising rule: where a text ends too early, Go looks at one blank more, so half a word is "invalid character ' '".
"""

import json
import re
from dataclasses import dataclass
from typing import Union

from alignup.align.bits import quote
from alignup.align.errors import ParseError

#: Levels of nesting; Go goes down to 10000, but a state file has less than ten.
MAX_DEPTH = 100

_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_HEX = re.compile(rb"[0-9a-fA-F]*")
_WHOLE = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(rb"\.[0-9]+")
_EXPONENT = re.compile(rb"[eE][+-]?[0-9]+")
_SIGNED = re.compile(rb"[eE][+-]?")
_WORDS = {b"t": (b"true", True), b"f": (b"false", False), b"n": (b"null", None)}

_ESCAPE = re.compile(r"\\u([dD][89abAB]..)\\u([dD][c-fC-F]..)|\\u(....)|\\(.)")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LOST = "\N{REPLACEMENT CHARACTER}"
_SPELLED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class GoNumber:
    """A number as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class GoObject:
    """An object: all members in order, also those whose key comes twice."""

    pairs: tuple[tuple[str, "GoValue"], ...]


@dataclass(frozen=True, slots=True)
class GoArray:
    """An array."""

    trees: tuple["GoValue", ...]


GoValue = Union[GoObject, GoArray, GoNumber, str, bool, None]  # noqa: UP007 - names a class before it is there


def parse(text: bytes) -> GoValue:
    """What *text* says; a ``ParseError`` in Go's words where it is no JSON."""
    reader = _Reader(text + b" ")
    tree = reader.value(MAX_DEPTH)
    reader.skip_blanks()
    if reader.at < len(reader.data):
        raise reader.invalid("after top-level value")
    return tree


def encode_string(text: str) -> str:
    """A string as Go writes it."""
    return json.dumps(text, ensure_ascii=False).translate(_SPELLED)


@dataclass(slots=True)
class _Reader:
    """A text, with the blank after it that Go looks at too, and how far it has been read."""

    data: bytes
    at: int = 0

    def invalid(self, where: str) -> ParseError:
        """The complaint about the byte reached."""
        if self.at >= len(self.data):
            return ParseError("unexpected end of JSON input")
        char = chr(self.data[self.at])
        quoted = {"'": r"'\''", '"': "'\"'"}.get(char) or f"'{quote(char)[1:-1]}'"
        return ParseError(f"invalid character {quoted} {where}")

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self.data, self.at)
        self.at = found.end() if found else self.at

    def next_byte(self) -> bytes:
        """The next byte that is no blank, without going past it; none at the end."""
        self.skip_blanks()
        return self.data[self.at : self.at + 1]

    def value(self, depth: int) -> GoValue:
        first = self.next_byte()
        if first in (b"{", b"["):
            if not depth:
                raise self.invalid("exceeded max depth")
            self.at += 1
            return self.members(depth - 1) if first == b"{" else self.items(depth - 1)
        if first == b'"':
            return self.string()
        if first in _WORDS:
            return self.word(*_WORDS[first])
        if first and first in b"-0123456789":
            return self.number()
        raise self.invalid("looking for beginning of value")

    def members(self, depth: int) -> GoObject:
        pairs: list[tuple[str, GoValue]] = []
        following = self.next_byte()
        while following != b"}":
            if self.next_byte() != b'"':
                raise self.invalid("looking for beginning of object key string")
            key = self.string()
            if self.next_byte() != b":":
                raise self.invalid("after object key")
            self.at += 1
            pairs.append((key, self.value(depth)))
            following = self.next_byte()
            if following not in (b",", b"}"):
                raise self.invalid("after object key:value pair")
            self.at += following == b","
        self.at += 1
        return GoObject(tuple(pairs))

    def items(self, depth: int) -> GoArray:
        trees: list[GoValue] = []
        following = self.next_byte()
        while following != b"]":
            trees.append(self.value(depth))
            following = self.next_byte()
            if following not in (b",", b"]"):
                raise self.invalid("after array element")
            self.at += following == b","
        self.at += 1
        return GoArray(tuple(trees))

    def string(self) -> str:
        found = _STRING.match(self.data, self.at)
        start, self.at = self.at + 1, found.end() if found else self.at
        following = self.data[self.at : self.at + 1]
        if following == b'"':
            self.at += 1
            return _unescaped(self.data[start : self.at - 1])
        if following != b"\\":
            raise self.invalid("in string literal")
        self.at += 1
        if self.data[self.at : self.at + 1] != b"u":
            raise self.invalid("in string escape code")
        self.step(_HEX, start=self.at + 1)
        raise self.invalid("in \\u hexadecimal character escape")

    def number(self) -> GoNumber:
        start = self.at
        if not self.step(_WHOLE):
            self.at += 1
            raise self.invalid("in numeric literal")
        if self.data[self.at : self.at + 1] == b"." and not self.step(_FRACTION):
            self.at += 1
            raise self.invalid("after decimal point in numeric literal")
        if self.data[self.at : self.at + 1] in (b"e", b"E") and not self.step(_EXPONENT):
            self.step(_SIGNED)
            raise self.invalid("in exponent of numeric literal")
        return GoNumber(self.data[start : self.at].decode())

    def word(self, word: bytes, meaning: bool | None) -> bool | None:  # noqa: FBT001 - what the word stands for
        for expected in word:
            if self.data[self.at] != expected:
                raise self.invalid(f"in literal {word.decode()} (expecting '{chr(expected)}')")
            self.at += 1
        return meaning

    def step(self, pattern: re.Pattern[bytes], *, start: int | None = None) -> bool:
        """Go past what *pattern* matches here, or from *start* on, if it does."""
        found = pattern.match(self.data, self.at if start is None else start)
        self.at = found.end() if found else self.at
        return found is not None


def _unescaped(raw: bytes) -> str:
    """The text between two quotes; each byte that is no UTF-8, and half a surrogate pair, is lost."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        escaped = raw.decode(errors="surrogateescape")
        text = "".join(_LOST if "\ud800" <= char <= "\udfff" else char for char in escaped)
    return _ESCAPE.sub(_meant, text) if "\\" in text else text


def _meant(escape: re.Match[str]) -> str:
    high, low, code, short = escape.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10 | int(low, 16) & 0x3FF))
    if code:
        char = chr(int(code, 16))
        return _LOST if "\ud800" <= char <= "\udfff" else char
    return _SHORT.get(short, short)
