"""The terminal: its width and colors, and printing to it."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import click

from alignup.cli.app import escape_control
from alignup.picture.text_format import Line, plain, to_ascii

MIN_WIDTH, MAX_WIDTH = 40, 120
DOCUMENTS = ("json", "yaml")  #: output formats that programs read

_HOLDER_COLORS = ("blue", "yellow", "green", "magenta", "cyan", "bright_yellow", "bright_cyan", "bright_magenta")
#: Styles of ``picture`` → styles of rich.
_STYLES = {
    "title": "bold",
    "frame": "dim",
    "label": "cyan",
    "dim": "dim",
    "warn": "yellow",
    "fail": "bold red",  # red is for failures only
    "free": "green",
    "shared": "bright_black",
    "reserved": "bright_blue",
    "held": "blue",
    "lost": "red reverse",
    "unseen": "dim italic",
    **{f"holder{number}": f"bold {color}" for number, color in enumerate(_HOLDER_COLORS)},
}


def width() -> int:
    """Return the terminal's width within readable limits; 80 columns without a terminal."""
    return min(max(columns(), MIN_WIDTH), MAX_WIDTH)


def table_width() -> int | None:
    """Return the width that a table may have; ``None`` where it is not limited: in a file or a pipe."""
    return max(columns(), MIN_WIDTH) if sys.stdout.isatty() else None


def columns() -> int:
    """Like ``shutil.get_terminal_size``; shutil imports every compression library."""
    with suppress(KeyError, ValueError):
        if width := int(os.environ["COLUMNS"]):
            return width
    with suppress(AttributeError, ValueError, OSError):  # no terminal, or standard output is closed
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    return 80


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines of styled cells, in ASCII where the output supports nothing else."""
    try:
        "┌─│·…█▓▒░".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        lines = map(to_ascii, lines)
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        for line in lines:
            sys.stdout.write(f"{plain(line)}\n")
        return
    from rich.console import Console  # noqa: PLC0415 - only for colors
    from rich.text import Text  # noqa: PLC0415

    console = Console(force_terminal=True, highlight=False, width=MAX_WIDTH)
    for line in lines:
        console.print(Text.assemble(*((cell.text, _STYLES.get(cell.style, "")) for cell in line)), soft_wrap=True)


def print_document(text: str) -> None:
    """Print *text* in UTF-8, whatever the encoding of the output is."""
    view = memoryview(text.encode("utf-8", "backslashreplace"))
    while view:  # an unbuffered write (PYTHONUNBUFFERED) may be partial
        view = view[sys.stdout.buffer.write(view) :]
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    print_document(escape_control(text) + "\n")


def print_json(value: object) -> None:
    print_document(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_as(output: str, value: object) -> None:
    """Print *value* in the format *output*, one of ``DOCUMENTS``."""
    if output == "json":
        print_json(value)
        return
    from alignup.kubernetes.manifests.documents import to_yaml  # noqa: PLC0415 - only for YAML

    print_document(to_yaml(value))


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"note: {escape_control(note)}", err=True)


@contextmanager
def waiting_message(
    activity: str | Callable[[], str], *, after: float = 2.0, stream: TextIO | None = None
) -> Iterator[None]:
    """While the block runs longer than *after* seconds, show *activity* and the elapsed time on a terminal."""
    output = sys.stderr if stream is None else stream
    if output is None or not output.isatty():
        yield
        return
    end_event = threading.Event()
    start = time.monotonic()

    def show() -> None:
        shown = False
        while not end_event.wait(1.0 if shown else after):
            text = activity if isinstance(activity, str) else activity()
            output.write(f"\r{text} … {time.monotonic() - start:.0f} s \033[K")
            output.flush()
            shown = True
        if shown:
            output.write("\r\033[K")
            output.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()


@contextmanager
def progress(  # noqa: PLR0913 - all but the first two have defaults
    activity: str,
    unit: str,
    *,
    estimate: bool = False,
    now: Callable[[], float] = time.monotonic,
    after: float = 2.0,
    stream: TextIO | None = None,
) -> Iterator[Callable[[int, int], None]]:
    """Like :func:`waiting_message`; yield a function that sets how much is done.

    With *estimate*, the time left is shown, as far as the pace since the first call tells.
    """
    message = activity
    first: tuple[float, int] | None = None

    def update(done_count: int, total: int) -> None:
        nonlocal message, first
        message = f"{activity}: {done_count:,} of {total:,} {unit}"
        if first is None:
            first = (now(), done_count)
        elif estimate and done_count > first[1]:
            seconds_left = (now() - first[0]) / (done_count - first[1]) * (total - done_count)
            message += f", {_format_left(seconds_left)} left"

    with waiting_message(lambda: message, after=after, stream=stream):
        yield update


def _format_left(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
