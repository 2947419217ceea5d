"""Sets of small numbers (CPUs, NUMA nodes) as one int, with bit *i* for member *i*.

Ints have union ``|``, intersection ``&`` and size ``.bit_count()``, so this module adds only iteration and the kernel's
list format (``0-3,8``) as the kubelet parses and prints it. Texts are parsed into *spans* first, so a list may contain
any 64-bit number without making an int of that many bits.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from alignup.align.errors import ParseError

Bits = int
CpuSet = int  #: a set of CPUs
NodeSet = int  #: a set of NUMA nodes

Spans = tuple[tuple[int, int], ...]  #: the first and last member of each run, ascending, with gaps between runs

MAX_MEMBER = 1 << 20  #: exclusive; a typing error must not allocate gigabytes

_CHUNK = 1 << 10  # bits; sets with more are split, because shifting and masking all of them for each member is slow
_MASK = (1 << _CHUNK) - 1
_INT64 = range(-(1 << 63), 1 << 63)
_RUN = re.compile("1+")
_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)


def of(members: Iterable[int]) -> Bits:
    """Return the set of *members*."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def members(bits: Bits) -> Iterator[int]:
    """Yield the members, ascending."""
    first = 0
    while bits > _MASK:
        for member in members(bits & _MASK):
            yield first + member
        bits >>= _CHUNK
        first += _CHUNK
    while bits:
        lowest = bits & -bits
        yield first + lowest.bit_length() - 1
        bits ^= lowest


def split(bits: Bits, *, most: int | None = None) -> list[Bits]:
    """Return each member as a set of its own, ascending; only the lowest *most* of them."""
    singles: list[Bits] = []
    while bits and len(singles) != most:
        lowest = bits & -bits
        singles.append(lowest)
        bits ^= lowest
    return singles


def union(sets: Iterable[Bits]) -> Bits:
    """Return the members of all *sets*."""
    mask = 0
    for bits in sets:
        mask |= bits
    return mask


def subsets(bits: Bits) -> list[Bits]:
    """Return all subsets, including the empty one, counted up member by member."""
    sets = [0]
    for member in members(bits):
        sets += [subset | 1 << member for subset in sets]
    return sets


def parse(text: str, *, below: int = MAX_MEMBER) -> Bits:
    """Parse a Linux list of numbers *below* a limit, such as ``0-3,8``; the empty text is the empty set."""
    spans = parse_spans(text)
    end = spans[-1][1] + 1 if spans else 0
    if end > below:
        excerpt = text if len(text) <= 100 else f"{text[:100]}…"
        beyond = next(last for _, last in spans if last >= below)
        raise ParseError(f"{excerpt!r} contains {beyond}, but numbers must be below {below}")
    if end > _CHUNK:
        digits = bytearray(b"0" * end)
        for first, last in spans:
            digits[end - 1 - last : end - first] = b"1" * (last - first + 1)
        return int(digits, 2)
    bits = 0
    for first, last in spans:
        bits |= (1 << last + 1) - (1 << first)
    return bits


@lru_cache(maxsize=4096)  # records and logs name the same sets again and again
def show(bits: Bits) -> str:
    """Return the set as a Linux list: ascending, runs of two or more as ``a-b``, the empty set as the empty text."""
    return show_spans(to_spans(bits))


def to_spans(bits: Bits) -> Spans:
    """Return the first and last member of each run, in ascending order."""
    if bits.bit_length() > _CHUNK:
        return tuple((run.start(), run.end() - 1) for run in _RUN.finditer(f"{bits:b}"[::-1]))
    spans = []
    start = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        length = (~bits & bits + 1).bit_length() - 1
        bits >>= length
        start += gap
        spans.append((start, start + length - 1))
        start += length
    return tuple(spans)


def parse_spans(text: str) -> Spans:
    """Parse a Linux list with the kubelet's errors, without building the set; parts may overlap, in any order."""
    if not text:
        return ()
    spans = []
    for part in text.split(","):
        head, dash, tail = part.partition("-")
        first = parse_integer(head)
        last = parse_integer(tail) if dash else first
        if first > last:
            raise ParseError(f"invalid range {quote(part)} ({first} > {last})")
        spans.append((first, last))
    merged_spans: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged_spans and first <= merged_spans[-1][1] + 1:
            merged_spans[-1] = (merged_spans[-1][0], max(last, merged_spans[-1][1]))
        else:
            merged_spans.append((first, last))
    return tuple(merged_spans)


def show_spans(spans: Spans) -> str:
    """Return spans as a Linux list, ``0-3,8``."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def quote(text: str) -> str:
    """Return *text* in double quotes with escaped control characters, like Go's ``%q``."""
    return '"' + "".join(map(_escape, text)) + '"'


_ESCAPES = {char: f"\\{letter}" for char, letter in zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True)}


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
    """Parse a 64-bit decimal integer, with the errors of Go's ``strconv.Atoi``."""
    if not _DECIMAL.fullmatch(text):
        raise ParseError(f"strconv.Atoi: parsing {quote(text)}: invalid syntax")
    # Twenty digits are out of range, and int() is slow for thousands of them.
    if len(text.lstrip("+-").lstrip("0")) > 19 or int(text) not in _INT64:
        raise ParseError(f"strconv.Atoi: parsing {quote(text)}: value out of range")
    return int(text)
