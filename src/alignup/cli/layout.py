"""Text layout in lines of styled cells: paragraphs, sections, and tables, which rich lays out."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence

from alignup.cli import terminal
from alignup.cli.app import escape_control
from alignup.picture.text_format import Cell, Line, clean, display_width

_MIN_WIDTH = 28  #: columns for a text or the last column of a table, whatever precedes it
_UNBROKEN = 24  #: columns of a terminal table up to which a column does not wrap
_MIN_COLUMN = 12  #: columns that a longer one has at least
_NUMBER = re.compile(r"[\d.,]*( [KMGTPE]?i?B)?")
_UNLIMITED = 1 << 20  #: columns


def paragraph(text: str, *, prefix: str = "", style: str = "", prefix_style: str = "") -> Iterator[Line]:
    """Wrap *text* after *prefix*, with a hanging indent. Words are never broken, so that they can be copied."""
    width = max(terminal.width() - display_width(prefix), _MIN_WIDTH)
    for number, line in enumerate(_wrap(clean(text).split(), width)):
        yield (Cell(" " * display_width(prefix)) if number else Cell(prefix, prefix_style), Cell(line, style))


def section(title: str, items: Iterable[str] = (), *, caption: str = "") -> Iterator[Line]:
    yield ()
    yield (Cell(title, "title"),)
    if caption:
        yield from paragraph(caption, prefix="  ", style="dim")
    for item in items:
        yield from paragraph(item, prefix="  - ")


def table(rows: Sequence[Sequence[str]], heads: Sequence[str] = ()) -> Iterator[Line]:
    """Yield a table in the width of the terminal: numbers are right-aligned, and the last column wraps."""
    clean_rows = [[clean(cell) for cell in row] for row in rows]
    columns = list(zip(*filter(None, [heads, *clean_rows]), strict=True))
    fixed_width = sum(max(map(display_width, column)) + 2 for column in columns[:-1])
    width = max(terminal.width() - 2, fixed_width + _MIN_WIDTH)
    for number, line in enumerate(_render(clean_rows, heads, width)):
        yield (Cell(f"  {line}", "dim" if heads and number == 0 else ""),)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False) -> None:
    """Print a table in the width of the terminal; long columns wrap.

    If it is *wide*, or in a file or a pipe, each row is one line, however long, so that it can be searched with grep.
    """
    cells = [[escape_control(cell) for cell in row] for row in rows]
    width = None if wide else terminal.table_width()
    unbroken = _UNBROKEN
    if width is not None:
        widths = [max(map(display_width, column)) for column in zip(*[heads, *cells], strict=True)]

        def least(limit: int) -> int:
            return sum(min(column, _MIN_COLUMN if column > limit else column) + 2 for column in widths) - 2

        limits = (_UNBROKEN, _MIN_COLUMN + 4, _MIN_COLUMN)
        unbroken = next((limit for limit in limits if least(limit) <= width), _MIN_COLUMN)
        width = max(width, least(unbroken))
    for line in _render(cells, heads, width or _UNLIMITED, numeric=False, unbroken=unbroken):
        terminal.print_line(line)


def _render(
    rows: Sequence[Sequence[str]], heads: Sequence[str], width: int, *, numeric: bool = True, unbroken: int = _UNBROKEN
) -> list[str]:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most commands print no table
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table(box=None, show_header=bool(heads), pad_edge=False, padding=(0, 2, 0, 0))
    columns = list(zip(*rows, strict=True))
    for number, column in enumerate(columns):
        right = numeric and all(map(_NUMBER.fullmatch, column))
        is_last = number == len(columns) - 1
        head = Text(heads[number]) if heads else ""
        is_short = numeric or max(map(display_width, column)) <= unbroken
        grid.add_column(head, justify="right" if right else "left", no_wrap=is_short and not is_last, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    output = io.StringIO()  # rich ends the program with 1 where the reader of its own output has left
    Console(file=output, width=width, color_system=None, force_terminal=False).print(grid)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def _wrap(words: Iterable[str], width: int) -> list[str]:
    """Fill lines of *width* columns; a longer word is put on a separate line. Returns at least one line."""
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and display_width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
