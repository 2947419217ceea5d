"""The message that a slow operation shows on a terminal."""

import io
import time

import pytest

from alignup.cli.terminal import waiting_message


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_slow_operation_shows_a_message_and_erases_it():
    terminal = Terminal()

    with waiting_message("Reading", after=0.01, stream=terminal):
        deadline = time.monotonic() + 10
        while "Reading" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)

    assert "Reading … 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_fast_operation_shows_nothing():
    terminal = Terminal()

    with waiting_message("Reading", stream=terminal):
        pass

    assert terminal.getvalue() == ""


def test_nothing_is_shown_without_a_terminal():
    file = io.StringIO()

    with waiting_message("Reading", after=0.0, stream=file):
        time.sleep(0.02)

    assert file.getvalue() == ""


def test_an_exception_in_the_block_propagates():
    terminal = Terminal()

    with pytest.raises(KeyError, match="x"), waiting_message("Reading", stream=terminal):
        raise KeyError("x")
