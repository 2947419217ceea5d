"""JSON as Go decodes and encodes it, for files that a kubelet wrote or must accept.

``parse`` accepts what Go accepts and raises Go's messages, because they are part of the kubelet's errors, which people
search for. Numbers stay texts, and objects keep all members in order: ``go_types`` interprets them.

The surprising rule: Go appends a space to the text, so half a literal is "invalid character ' '".
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, Union

from alignup.align.bits import quote
from alignup.align.errors import ParseError

T = TypeVar("T")

#: Go allows 10000 levels; a state file has fewer than ten.
MAX_DEPTH = 100

_SPACES = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*')
_HEX = re.compile(rb"[0-9a-fA-F]*")
_WHOLE = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(rb"\.[0-9]+")
_EXPONENT = re.compile(rb"[eE][+-]?[0-9]+")
_SIGNED = re.compile(rb"[eE][+-]?")
_LITERALS = {b"t": (b"true", True), b"f": (b"false", False), b"n": (b"null", None)}
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class GoNumber:
    text: str


@dataclass(frozen=True, slots=True)
class GoObject:
    """All members in order, also those with a repeated key. An array is a tuple."""

    pairs: tuple[tuple[str, "GoValue"], ...]


GoValue = Union[GoObject, tuple["GoValue", ...], GoNumber, str, bool, None]  # noqa: UP007 - refers to itself


@lru_cache(maxsize=4)  # a file is decoded as one version after another, and checked again after that
def parse(text: bytes) -> GoValue:
    """Decode *text*; ``ParseError`` with Go's message if it is not JSON."""
    reader = _Reader(text + b" ")
    tree = reader.value(MAX_DEPTH)
    if reader.next_byte():
        raise reader.invalid("after top-level value")
    return tree


def encode_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).translate(_ESCAPED)


@dataclass(slots=True)
class _Reader:
    """A text, with the space that Go appends, and a position."""

    data: bytes
    at: int = 0

    def invalid(self, where: str) -> ParseError:
        if self.at >= len(self.data):
            return ParseError("unexpected end of JSON input")
        char = chr(self.data[self.at])
        quoted = {"'": r"'\''", '"': "'\"'"}.get(char) or f"'{quote(char)[1:-1]}'"
        return ParseError(f"invalid character {quoted} {where}")

    def next_byte(self) -> bytes:
        """Return the next byte that is not white space, without consuming it; empty at the end."""
        self.advance(_SPACES)
        return self.data[self.at : self.at + 1]

    def value(self, depth: int) -> GoValue:
        first = self.next_byte()
        if first in (b"{", b"["):
            if not depth:
                raise self.invalid("exceeded max depth")
            self.at += 1
            if first == b"{":
                return GoObject(self.members(b"}", lambda: self.pair(depth - 1), "after object key:value pair"))
            return self.members(b"]", lambda: self.value(depth - 1), "after array element")
        if first == b'"':
            return self.string()
        if first in _LITERALS:
            return self.literal(*_LITERALS[first])
        if first and first in b"-0123456789":
            return self.number()
        raise self.invalid("looking for beginning of value")

    def members(self, closing: bytes, read: Callable[[], T], where: str) -> tuple[T, ...]:
        """Read what two brackets enclose; *where* is for errors after a member."""
        found: list[T] = []
        following = self.next_byte()
        while following != closing:
            found.append(read())
            following = self.next_byte()
            if following not in (b",", closing):
                raise self.invalid(where)
            self.at += following == b","
        self.at += 1
        return tuple(found)

    def pair(self, depth: int) -> tuple[str, GoValue]:
        if self.next_byte() != b'"':
            raise self.invalid("looking for beginning of object key string")
        key = self.string()
        if self.next_byte() != b":":
            raise self.invalid("after object key")
        self.at += 1
        return key, self.value(depth)

    def string(self) -> str:
        found = _STRING.match(self.data, self.at)
        start, self.at = self.at + 1, found.end() if found else self.at
        following = self.data[self.at : self.at + 1]
        if following == b'"':
            self.at += 1
            text = self.data[start - 1 : self.at].decode(errors="surrogateescape")
            text = json.loads(text) if "\\" in text else text[1:-1]
            # Go replaces lone surrogates and bytes that are not UTF-8.
            return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
        if following != b"\\":
            raise self.invalid("in string literal")
        self.at += 1
        if self.data[self.at : self.at + 1] != b"u":
            raise self.invalid("in string escape code")
        self.advance(_HEX, start=self.at + 1)
        raise self.invalid("in \\u hexadecimal character escape")

    def number(self) -> GoNumber:
        start = self.at
        if not self.advance(_WHOLE):
            self.at += 1
            raise self.invalid("in numeric literal")
        if self.data[self.at : self.at + 1] == b"." and not self.advance(_FRACTION):
            self.at += 1
            raise self.invalid("after decimal point in numeric literal")
        if self.data[self.at : self.at + 1] in (b"e", b"E") and not self.advance(_EXPONENT):
            self.advance(_SIGNED)
            raise self.invalid("in exponent of numeric literal")
        return GoNumber(self.data[start : self.at].decode())

    def literal(self, word: bytes, value: bool | None) -> bool | None:  # noqa: FBT001 - the value of the literal
        for expected in word:
            if self.data[self.at] != expected:
                raise self.invalid(f"in literal {word.decode()} (expecting '{chr(expected)}')")
            self.at += 1
        return value

    def advance(self, pattern: re.Pattern[bytes], *, start: int | None = None) -> bool:
        """Consume what *pattern* matches here, or from *start* on."""
        found = pattern.match(self.data, self.at if start is None else start)
        self.at = found.end() if found else self.at
        return found is not None
