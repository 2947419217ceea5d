"""Text for pictures: names made safe, text measured and shortened, amounts and lists formatted; and terminal text.

Names of devices and pods are external input. Characters that do not print, combine or change the writing direction are
escaped, so that a text is as long as it looks. Terminal text is made of cells with style names, laid out in lines,
columns and boxes.
"""

import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import Bits, CpuSet

MIN_WIDTH = 60  #: columns of a picture
MAX_LABEL = 18  #: columns of the longest label


class Cell(NamedTuple):
    text: str
    style: str = ""  #: title, frame, label, dim, warn, a ``UseState``, or ``holder0`` to ``holder7``


Line = tuple[Cell, ...]

#: Replacements for ASCII-only output.
_ASCII = str.maketrans("┌┐└┘─│·…█▓▒░→", "++++-|.~#%=.>")


def plain(line: Line) -> str:
    """Return the text of a line, without trailing blanks."""
    return "".join(cell.text for cell in line).rstrip()


def to_ascii(line: Line) -> Line:
    """Return *line* in ASCII, with the same width."""
    spans = [(text.translate(_ASCII), style) for text, style in line]
    return tuple(
        Cell("".join(char if char.isascii() else "?" * display_width(char) for char in text), style)
        for text, style in spans
    )


def split_words(line: Line) -> list[Line]:
    return [(Cell(word, cell.style),) for cell in line for word in cell.text.split()]


def labeled(
    label: str | Cell, chunks: Iterable[Line], *, width: int, between: str = " ", column: int = 12
) -> list[Line]:
    """Return *chunks*, which are not broken, after a *label*; the label column grows with the label."""
    name, style = label if isinstance(label, Cell) else (label, "label")
    name = shorten(name, MAX_LABEL)
    column = max(column, display_width(name) + 2)
    lines = wrap(chunks, width - column, between=between) or [()]
    heads = [name + " " * (column - display_width(name)), *[" " * column] * (len(lines) - 1)]
    return [(Cell(head, style), *line) for head, line in zip(heads, lines, strict=True)]


def wrap(chunks: Iterable[Line], width: int, *, between: str = " ") -> list[Line]:
    """Return *chunks* in lines of at most *width* columns; a chunk that is too long loses its middle."""
    lines: list[list[Cell]] = []
    line_width = 0
    for chunk in chunks:
        length = sum(display_width(cell.text) for cell in chunk)
        part = chunk
        if length > width:
            part = (Cell(shorten("".join(cell.text for cell in chunk), width), chunk[0].style),)
            length = display_width(part[0].text)
        if lines and line_width + len(between) + length <= width:
            lines[-1] += [Cell(between, "dim"), *part]
            line_width += len(between) + length
        else:
            lines.append(list(part))
            line_width = length
    return [tuple(line) for line in lines]


def draw_strip(parts: Iterable[tuple[str, str, int]], *, total: int, width: int, fill: Cell) -> Line:
    """Return a strip divided by the amounts of *parts* (character, style, amount); rounding errors do not add up."""
    cells, sum_, position = [], 0, 0
    for char, style, amount in parts:
        sum_ += amount
        end = round(sum_ * width / total) if total else 0
        cells.append(Cell(char * (end - position), style))
        position = end
    return (*cells, Cell(fill.text * (width - position), fill.style))


def draw_box(title: str, lines: Iterable[Line], *, width: int) -> list[Line]:
    """Return *lines* in a box that is *width* columns wide."""
    name = shorten(title, width - 6)
    top = (Cell("┌─ ", "frame"), Cell(name, "title"), Cell(f" {'─' * (width - 5 - display_width(name))}┐", "frame"))
    body = []
    for line in lines:
        blank = Cell(" " * (width - 4 - sum(display_width(cell.text) for cell in line)))
        body.append((Cell("│ ", "frame"), *line, blank, Cell(" │", "frame")))
    return [top, *body, (Cell(f"└{'─' * (width - 2)}┘", "frame"),)]


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
    ordered_ids = sorted(ids)
    return f"{noun} {format_list(ordered_ids)}" if len(ordered_ids) == 1 else f"{noun}s {format_list(ordered_ids)}"


def format_list(ids: Iterable[int]) -> str:
    """Return numbers in the kernel's list format; negative ones, which some machines have, come first."""
    ordered_ids = sorted(set(ids))
    below = [str(id_) for id_ in ordered_ids if id_ < 0]
    spans: list[tuple[int, int]] = []
    for id_ in ordered_ids[len(below) :]:  # not as a set: the ids of sockets have up to 63 bits
        if spans and id_ == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], id_)
        else:
            spans.append((id_, id_))
    return ",".join([*below, *_parts(tuple(spans))])


def format_bits(members: Bits) -> str:
    """Return CPUs or NUMA nodes as a Linux list."""
    return format_list(bits.members(members))


def list_parts(cpus: CpuSet) -> tuple[str, ...]:
    """Return a set as the parts of its list; evenly spaced members become ``0-62 by 2``."""
    return _parts(bits.to_spans(cpus))


def _parts(spans: bits.Spans) -> tuple[str, ...]:
    starts = [first for first, last in spans if first == last]
    steps = {next_start - start for start, next_start in pairwise(starts)}
    if len(spans) > 3 and len(starts) == len(spans) and len(steps) == 1:
        return (f"{starts[0]}-{starts[-1]} by {steps.pop()}",)
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in spans)
