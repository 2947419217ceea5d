"""Text for pictures: names made safe, text measured and shortened, amounts and lists formatted.

Names of devices and pods are external input. Characters that do not print, combine or change the writing direction are
escaped, so that a text is as long as it looks.
"""

import unicodedata
from collections.abc import Iterable
from itertools import pairwise

from alignup.align import bits
from alignup.align.bits import CpuSet

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

#: The widest character of common monospaced fonts, in em; others may come from any font.
_NARROW_EM, _WIDE_EM = 0.62, 1.25
_LATIN = 0x250


def clean(text: str) -> str:
    """Return *text* with every unprintable or combining character escaped, as in a Python string."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() and unicodedata.category(char) not in {"Mn", "Me", "Mc"}
        else char.encode("unicode_escape").decode("ascii")
        for char in unicodedata.normalize("NFC", text)
    )


def display_width(text: str) -> int:
    """Return the number of terminal columns of *text*, once it is clean."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def width_in_em(text: str) -> float:
    """Return the largest width of *text* in a monospaced font, in em."""
    wide = 0 if text.isascii() else sum(ord(char) >= _LATIN and char not in "·…" for char in text)
    return wide * _WIDE_EM + (len(text) - wide) * _NARROW_EM


def shorten(text: str, most: int) -> str:
    """Return *text* in at most *most* columns; the middle is cut, since names differ at their ends."""
    if display_width(text) <= most:
        return text
    head, tail = text[: most - most // 2 - 1], text[len(text) - most // 2 :]
    while display_width(head) + 1 + display_width(tail) > most:
        head, tail = (head[:-1], tail) if display_width(head) >= display_width(tail) else (head, tail[1:])
    return f"{head}…{tail}"


def format_size(amount: int) -> str:
    """Return bytes in a suitable unit, ``64 GiB``; exact values have no decimals."""
    unit = min(max(amount.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    whole, rest = divmod(amount, 1 << 10 * unit)
    return f"{whole} {_UNITS[unit]}" if not rest else f"{amount / (1 << 10 * unit):.1f} {_UNITS[unit]}"


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_ids(noun: str, ids: Iterable[int]) -> str:
    known = sorted(ids)
    return f"{noun} {format_list(known)}" if len(known) == 1 else f"{noun}s {format_list(known)}"


def format_list(ids: Iterable[int]) -> str:
    """Return numbers in the kernel's list format; negative ones, which some machines have, come first."""
    known = sorted(set(ids))
    below = [str(id_) for id_ in known if id_ < 0]
    spans: list[tuple[int, int]] = []
    for id_ in known[len(below) :]:  # not as a set: the ids of sockets have up to 63 bits
        if spans and id_ == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], id_)
        else:
            spans.append((id_, id_))
    return ",".join([*below, *_parts(tuple(spans))])


def list_parts(cpus: CpuSet) -> tuple[str, ...]:
    """Return a set as the parts of its list; evenly spaced members become ``0-62 by 2``."""
    return _parts(bits.to_spans(cpus))


def _parts(spans: bits.Spans) -> tuple[str, ...]:
    starts = [first for first, last in spans if first == last]
    steps = {after - before for before, after in pairwise(starts)}
    if len(spans) > 3 and len(starts) == len(spans) and len(steps) == 1:
        return (f"{starts[0]}-{starts[-1]} by {steps.pop()}",)
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in spans)
