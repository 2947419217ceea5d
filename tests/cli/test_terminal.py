"""The terminal: tables, messages of slow operations, and the log of a daemon."""

import io
import re
import threading

import pytest

from alignup.cli import app, layout, terminal
from alignup.cli.terminal import progress, waiting_message


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.shown.set()
        return super().write(text)


def test_a_slow_operation_shows_a_message_and_erases_it():
    terminal = Terminal()

    with waiting_message("Reading", after=0.01, stream=terminal):
        assert terminal.shown.wait(60)

    assert re.match(r"\rReading … \d+ s ", terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_fast_operation_shows_nothing():
    terminal = Terminal()

    with waiting_message("Reading", after=3600.0, stream=terminal):
        pass

    assert terminal.getvalue() == ""


def test_nothing_is_shown_without_a_terminal():
    file, before = io.StringIO(), threading.active_count()

    with waiting_message("Reading", after=0.0, stream=file):
        threads = threading.active_count()

    assert (file.getvalue(), threads) == ("", before)


def test_an_exception_in_the_block_propagates():
    terminal = Terminal()

    with pytest.raises(KeyError, match="x"), waiting_message("Reading", stream=terminal):
        raise KeyError("x")


@pytest.mark.parametrize(("seconds", "left"), [(5.0, "45 s"), (60.0, "9 min"), (3600.0, "9 h")])
def test_progress_estimates_the_time_left_from_the_pace_since_the_start(seconds, left):
    """20 tasks were done before, and ten took so many seconds now."""
    terminal, times = Terminal(), iter((0.0, seconds))

    with progress("Running", "tasks", estimate=True, now=lambda: next(times), after=0.1, stream=terminal) as update:
        update(20, 120)
        update(30, 120)
        while "left" not in terminal.getvalue():
            terminal.shown.clear()
            assert terminal.shown.wait(60)

    assert f"Running: 30 of 120 tasks, {left} left" in terminal.getvalue()


def test_columns_are_as_wide_as_their_cells(capfd):
    layout.print_table(("A", "LONGER", "LAST"), [("wide cell", "x", "and so on"), ("y", "z", "")])

    assert capfd.readouterr().out.splitlines() == [
        "A          LONGER  LAST",
        "wide cell  x       and so on",
        "y          z",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("web", "web", id="a name"),
        pytest.param("größer · 漢字", "größer · 漢字", id="any script"),
        pytest.param("a\nb\x1b[2Jc", "a\\nb\\x1b[2Jc", id="control characters"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert app.escape_control(text) == shown


def test_a_table_fits_the_terminal_and_is_unlimited_elsewhere(capsys, monkeypatch):
    heads, rows = ("POD", "PLACEMENT"), [("ml/trainer-0", " ".join(["CPUs"] * 40))]

    def lines(*, terminal_columns: int | None, wide: bool = False) -> list[str]:
        monkeypatch.setattr(terminal, "table_width", lambda: terminal_columns)
        layout.print_table(heads, rows, wide=wide)
        return list(capsys.readouterr().out.splitlines())

    assert len(lines(terminal_columns=None)) == len(lines(terminal_columns=60, wide=True)) == 2
    narrow = lines(terminal_columns=60)
    assert max(map(len, narrow)) <= 60
    assert len(narrow) > 2
