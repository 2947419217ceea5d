"""Terminal text made of cells with style names, and their layout in lines, columns and boxes."""

from collections.abc import Iterable
from typing import NamedTuple

from alignup.picture.text_format import display_width, shorten

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
    translated = [(text.translate(_ASCII), style) for text, style in line]
    return tuple(
        Cell("".join(char if char.isascii() else "?" * display_width(char) for char in text), style)
        for text, style in translated
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
    used = 0
    for chunk in chunks:
        length = sum(display_width(cell.text) for cell in chunk)
        fitting = chunk
        if length > width:
            fitting = (Cell(shorten("".join(cell.text for cell in chunk), width), chunk[0].style),)
            length = display_width(fitting[0].text)
        if lines and used + len(between) + length <= width:
            lines[-1] += [Cell(between, "dim"), *fitting]
            used += len(between) + length
        else:
            lines.append(list(fitting))
            used = length
    return [tuple(line) for line in lines]


def draw_strip(parts: Iterable[tuple[str, str, int]], *, total: int, width: int, fill: Cell) -> Line:
    """Return a strip divided by the amounts of *parts* (character, style, amount); rounding errors do not add up."""
    cells, sum_, used = [], 0, 0
    for char, style, amount in parts:
        sum_ += amount
        end = round(sum_ * width / total) if total else 0
        cells.append(Cell(char * (end - used), style))
        used = end
    return (*cells, Cell(fill.text * (width - used), fill.style))


def draw_box(title: str, lines: Iterable[Line], *, width: int) -> list[Line]:
    """Return *lines* in a box that is *width* columns wide."""
    name = shorten(title, width - 6)
    top = (Cell("┌─ ", "frame"), Cell(name, "title"), Cell(f" {'─' * (width - 5 - display_width(name))}┐", "frame"))
    body = []
    for line in lines:
        blank = Cell(" " * (width - 4 - sum(display_width(cell.text) for cell in line)))
        body.append((Cell("│ ", "frame"), *line, blank, Cell(" │", "frame")))
    return [top, *body, (Cell(f"└{'─' * (width - 2)}┘", "frame"),)]
