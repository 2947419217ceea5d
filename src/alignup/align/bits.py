"""Sets of small numbers (CPUs, NUMA nodes) held in one int, bit *i* for member *i*.

Plain ints give union ``|``, intersection ``&`` and size ``.bit_count()`` for free, so this module adds only what
ints lack: iteration, and the kernel's list format (``0-3,8``) as the kubelet accepts and prints it. Texts are read
into *spans* first, so a list may name any 64-bit number without making an int of that many bits.
"""

import re
from collections.abc import Iterable, Iterator

from alignup.align.errors import ParseError

Bits = int  #: an alias says it as well as a NewType, and costs nothing
CpuSet = int  #: a set of CPUs
NodeSet = int  #: a set of NUMA nodes

Spans = tuple[tuple[int, int], ...]  #: first and last of each run, rising, with gaps between them

#: Members at or above this are refused when a list becomes a set: a typing error must not take gigabytes.
MAX_MEMBER = 1 << 20

_INT64 = range(-(1 << 63), 1 << 63)
_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)


def of(members: Iterable[int]) -> Bits:
    """The set holding exactly *members*."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def members(bits: Bits) -> Iterator[int]:
    """Members in rising order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def union(sets: Iterable[Bits]) -> Bits:
    """All members of all *sets*."""
    joined = 0
    for bits in sets:
        joined |= bits
    return joined


def parse(text: str) -> Bits:
    """The set a Linux list such as ``0-3,8`` names; the empty text is the empty set."""
    bits = 0
    for first, last in parse_spans(text):
        if last >= MAX_MEMBER:
            raise ParseError(f"{text!r} names {last}, but numbers here must be below {MAX_MEMBER}")
        bits |= (1 << last + 1) - (1 << first)
    return bits


def show(bits: Bits) -> str:
    """The set as a Linux list: rising, runs of two or more as ``a-b``, the empty set as the empty text."""
    return show_spans(to_spans(bits))


def to_spans(bits: Bits) -> Spans:
    """The runs of neighbouring members."""
    found = []
    start = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        length = (~bits & bits + 1).bit_length() - 1
        bits >>= length
        start += gap
        found.append((start, start + length - 1))
        start += length
    return tuple(found)


def parse_spans(text: str) -> Spans:
    """Read a Linux list the way the kubelet does, without building the set.

    Parts come in any order and may overlap; blanks, empty parts and falling ranges are errors, worded as the
    kubelet words them.
    """
    if not text:
        return ()
    read = []
    for part in text.split(","):
        head, dash, tail = part.partition("-")
        first = parse_integer(head)
        last = parse_integer(tail) if dash else first
        if first > last:
            raise ParseError(f"invalid range {quote(part)} ({first} > {last})")
        read.append((first, last))
    joined: list[tuple[int, int]] = []
    for first, last in sorted(read):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def show_spans(spans: Spans) -> str:
    """Spans as a Linux list."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def quote(text: str) -> str:
    """*text* in double quotes, control characters escaped, as Go's error messages print it."""
    return '"' + "".join(map(_escape, text)) + '"'


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char == " " or char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def parse_integer(text: str) -> int:
    """A 64-bit decimal integer; errors as Go's ``strconv.Atoi`` words them."""
    if not _DECIMAL.fullmatch(text):
        raise ParseError(f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    # Twenty digits are out of range already; int() is not asked about thousands of them.
    if len(text.lstrip("+-").lstrip("0")) > 19 or int(text) not in _INT64:
        raise ParseError(f"strconv.Atoi: parsing {quote(text)}: value out of range")
    return int(text)
