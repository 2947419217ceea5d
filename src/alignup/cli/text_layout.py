"""Text for the terminal, in lines of cells: sentences that wrap under themselves, sections, tables."""

import re
from collections.abc import Iterable, Iterator, Sequence

from alignup.cli import terminal
from alignup.picture.cells import Cell, Line
from alignup.picture.text_format import clean, display_width

_NARROWEST = 24  #: columns that are left to a sentence, however long what stands before it
_NUMBER = re.compile(r"[\d.,]*( [KMGTPE]?i?B)?")


def paragraph(text: str, *, head: str = "", style: str = "", head_style: str = "") -> Iterator[Line]:
    """A sentence after *head*, in as many lines as it takes, those after the first under it.

    Words stay whole, however long: people copy names, amounts and commands.
    """
    room = max(terminal.width() - display_width(head), _NARROWEST)
    for number, line in enumerate(_filled(clean(text).split(), room)):
        yield (Cell(" " * display_width(head)) if number else Cell(head, head_style), Cell(line, style))


def section(title: str, sentences: Iterable[str] = (), *, caption: str = "") -> Iterator[Line]:
    """A title after a blank line, what it is about, and a list."""
    yield ()
    yield (Cell(title, "title"),)
    if caption:
        yield from paragraph(caption, head="  ", style="dim")
    for one in sentences:
        yield from paragraph(one, head="  - ")


def table(rows: Sequence[Sequence[str]], heads: Sequence[str] = (), *, indent: str = "  ") -> Iterator[Line]:
    """Columns as wide as what is in them, numbers on the right; the last one wraps."""
    shown = [[clean(cell) for cell in row] for row in rows]
    everything = [heads, *shown] if heads else shown
    widths = [max(map(display_width, column)) for column in zip(*everything, strict=True)]
    numeric = [all(map(_NUMBER.fullmatch, column)) for column in zip(*shown, strict=True)]
    for row in everything:
        cells = [_padded(*cell) for cell in zip(row, widths, numeric, strict=True)]
        style = "dim" if row is heads else ""
        if numeric[-1]:
            yield (Cell((indent + "  ".join(cells)).rstrip(), style),)
        else:
            yield from paragraph(row[-1], head=indent + "".join(f"{cell}  " for cell in cells[:-1]), style=style)


def _filled(words: Iterable[str], room: int) -> list[str]:
    """*words* in lines of at most *room* columns, unless one alone is longer; there is always a line."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and display_width(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _padded(cell: str, width: int, right: bool) -> str:  # noqa: FBT001 - one of three things a column is
    blanks = " " * (width - display_width(cell))
    return f"{blanks}{cell}" if right else f"{cell}{blanks}"
