"""The terminal, or whatever stands in its place: what it can show, and showing it."""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from alignup.cli.app import escape_control
from alignup.picture.cells import Cell, Line, plain, to_ascii

NARROWEST, WIDEST = 40, 120

#: Styles of pictures → styles of rich.
_STYLES = {
    "title": "bold",
    "frame": "dim",
    "label": "cyan",
    "dim": "dim",
    "warn": "yellow",
    "free": "green",
    "shared": "bright_black",
    "reserved": "red",
    "held": "blue",
    "lost": "red reverse",
    "unseen": "dim italic",
    "tenant0": "bold blue",
    "tenant1": "bold yellow",
    "tenant2": "bold green",
    "tenant3": "bold magenta",
    "tenant4": "bold cyan",
    "tenant5": "bold bright_yellow",
    "tenant6": "bold bright_cyan",
    "tenant7": "bold bright_red",
}


def width() -> int:
    """Columns to write in: the terminal's, within what can still be read; 80 where there is no terminal."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)


def supports_unicode() -> bool:
    """Whether the output can show more than ASCII."""
    try:
        "┌─│·…█▓▒░".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def supports_color(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal that has them, unless the reader asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_lines(picture: Iterable[Line]) -> None:
    """Show a picture for the terminal, made of ASCII where there is nothing else."""
    if not supports_unicode():
        picture = (tuple(Cell(to_ascii(cell.text.replace("→", ">")), cell.style) for cell in line) for line in picture)
    if not supports_color(sys.stdout):
        for line in picture:
            sys.stdout.write(f"{plain(line)}\n")
        return
    from rich.console import Console  # noqa: PLC0415 - plain output does without
    from rich.text import Text  # noqa: PLC0415

    console = Console(force_terminal=True, highlight=False, width=WIDEST)
    for line in picture:
        shown = Text.assemble(*((cell.text, _STYLES.get(cell.style, "")) for cell in line))
        console.print(shown, soft_wrap=True)


def write_document(text: str) -> None:
    """Write a document, in UTF-8 wherever it goes."""
    left = memoryview(text.encode("utf-8", "backslashreplace"))
    while left:  # without Python's buffers (PYTHONUNBUFFERED) a write may stop half-way
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def print_line(text: str) -> None:
    """Write one line; what a terminal would obey in it is shown, not obeyed."""
    write_document(escape_control(text) + "\n")


def print_json(found: object) -> None:
    """Write values as JSON."""
    write_document(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def waiting_message(what: str, *, after: float = 2.0, stream: TextIO | None = None) -> Iterator[None]:
    """Tell a person at a terminal what takes so long, once it takes longer than *after* seconds."""
    told = sys.stderr if stream is None else stream
    if told is None or not told.isatty():
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def tell() -> None:
        shown = False
        while not done.wait(1.0 if shown else after):
            told.write(f"\r{what} … {time.monotonic() - start:.0f} s ")
            told.flush()
            shown = True
        if shown:
            told.write("\r\033[K")
            told.flush()

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


@contextmanager
def progress(what: str, things: str, *, after: float = 2.0) -> Iterator[Callable[[int, int], None] | None]:
    """A function to tell how many *things* of how many are done; a person at a terminal sees it after some seconds."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    start = time.monotonic()
    shown = False

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if shown or time.monotonic() - start > after:
            sys.stderr.write(f"\r{what}: {done:,} of {total:,} {things}\033[K")
            sys.stderr.flush()
            shown = True

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
