"""The terminal: what takes long is told, to people only."""

import io
import time

import pytest

from alignup.cli.terminal import waiting_message


class Terminal(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def test_what_takes_long_is_told_and_wiped_away():
    terminal = Terminal()

    with waiting_message("Reading", after=0.01, stream=terminal):
        deadline = time.monotonic() + 10
        while "Reading" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)

    assert "Reading … 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_what_is_quick_is_not_told():
    terminal = Terminal()

    with waiting_message("Reading", stream=terminal):
        pass

    assert terminal.getvalue() == ""


def test_files_are_not_told_anything():
    file = io.StringIO()

    with waiting_message("Reading", after=0.0, stream=file):
        time.sleep(0.02)

    assert file.getvalue() == ""


def test_an_error_inside_is_passed_on():
    terminal = Terminal()

    with pytest.raises(KeyError, match="x"), waiting_message("Reading", stream=terminal):
        raise KeyError("x")
