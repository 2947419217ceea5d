"""The terminal: tables, messages of slow operations, and the log of a daemon."""

import io
import json
import re
import threading

import pytest
import yaml

from alignup.cli import app, exit_codes, layout, terminal
from alignup.cli.terminal import progress, waiting_message
from tests.cli.commands import in_process, into_a_closed_pipe, on_a_terminal


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


NODE = ("--machine", "examples/node/machine.yaml", "--config", "examples/node/kubelet.yaml")
SHOWN = [
    pytest.param(("machine", "show", "pack:2 numa:1(memory=64GiB) l3:1 core:8 pu:2"), "Socket 0", id="machine"),
    pytest.param(("why", "examples/node/trainer.yaml", *NODE, "--search", "0"), "NUMA node 0", id="why"),
    pytest.param(("doctor", *NODE), "This kubelet starts", id="doctor"),
    pytest.param(("simulate", "-f", "examples/node/running.yaml", *NODE), "5 admitted", id="simulate"),
]


@pytest.mark.parametrize(("words", "text"), SHOWN)
def test_colors_and_other_characters_are_only_for_terminals_that_have_them(words, text):
    colored = on_a_terminal(*words, env={"TERM": "xterm-256color"})
    without = on_a_terminal(*words, env={"TERM": "xterm-256color", "NO_COLOR": "1"})
    dumb = on_a_terminal(*words, env={"TERM": "dumb"})
    file, ascii_only = in_process(*words), in_process(*words, encoding="ascii")

    assert "\x1b[" in colored
    assert text in re.sub(r"\x1b\[[0-9;]*m", "", colored)
    for plain in (without, dumb, file.stdout):
        assert "\x1b[" not in plain
    assert without == dumb
    assert text in ascii_only.stdout
    assert ascii_only.stdout.isascii()
    assert ascii_only.returncode == file.returncode


@pytest.mark.parametrize(
    "words",
    [
        ("machine", "show", "pack:4 numa:2 l3:8 core:16 pu:2"),
        ("machine", "show", "pack:4 numa:2 l3:8 core:16 pu:2", "-o", "svg"),
        ("why", "examples/node/trainer.yaml", *NODE, "--search", "0"),
        ("simulate", "--generate", "telco", "--count", "100", *NODE, "-o", "csv"),
        ("simulate", "-f", "examples/node/running.yaml", *NODE, "-o", "text"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_a_closed_pipe_ends_quietly(words):
    """Beside the processes of test_entry.py."""
    assert into_a_closed_pipe(*words) == (exit_codes.PIPE_CLOSED, "")


@pytest.mark.parametrize(
    "words",
    [
        ("why", "examples/node/trainer.yaml", *NODE, "--search", "0"),
        ("plan", "examples/node/trainer.yaml", *NODE, "--kubelet-dir", "examples/node/state"),
        ("simulate", "-f", "examples/node/running.yaml", *NODE),
        ("simulate", "-f", "examples/node/running.yaml", *NODE, "--compare", "scope", "--jobs", "1"),
        ("simulate", "-f", "examples/node/running.yaml", *NODE, "--nodes", "2"),
        ("doctor", *NODE),
        ("upgrade-check", *NODE, "--from", "1.35", "--to", "1.37"),
        ("explain", "NoNode"),
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_yaml_says_what_json_says(words):
    as_yaml, as_json = (in_process(*words, "-o", form).stdout for form in ("yaml", "json"))

    assert yaml.safe_load(as_yaml) == json.loads(as_json)
