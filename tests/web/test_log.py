"""The log: one line per event, and a queue that never blocks its writers, whatever happens to its reader."""

import fcntl
import io
import json
import os
import pty
import subprocess
import sys

import pytest

from alignup.web.log import LogQueue, make_logger
from tests.deadlines import wait_for

HOSTILE = 'x\n{"level": "error"}\r\x1b[31m\x9b2J\x7f\x85\u2028\u2029\u202e\ud800\t"\\é'


@pytest.mark.parametrize("readable", [True, False])
def test_nothing_that_a_name_contains_reaches_the_terminal_or_breaks_a_line(readable):
    """Line separators of Unicode and escapes of eight bits, too, in every place where a name can be."""
    out = io.StringIO()

    make_logger(out, readable=readable).info(f"about {HOSTILE}", pod=HOSTILE, reasons={HOSTILE: 1}, nodes=[HOSTILE])

    line = out.getvalue()
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert len(line.splitlines()) == 1
    if not readable:
        assert json.loads(line)["reasons"] == {HOSTILE: 1}


def test_the_text_of_an_error_does_not_control_a_terminal():
    out = io.StringIO()
    make_logger(out, readable=True).error("request failed", exc_info=ValueError(HOSTILE))

    assert out.getvalue().replace("\n", "").isprintable()


def test_other_languages_stay_readable():
    out = io.StringIO()

    make_logger(out, readable=False).info("started", node="Zürich-北京")

    assert "Zürich-北京" in out.getvalue()


def test_an_error_is_one_line_with_its_traceback():
    out = io.StringIO()
    try:
        int("broken")
    except ValueError as error:
        make_logger(out, readable=False).error("request failed", exc_info=error)

    (line,) = map(json.loads, out.getvalue().splitlines())
    assert line["event"] == "request failed"
    assert line["exception"].endswith("ValueError: invalid literal for int() with base 10: 'broken'")


def test_programs_log_to_stderr_also_what_libraries_log():
    program = """
        import logging, structlog
        from alignup.web.log import queued_stderr
        with queued_stderr():
            structlog.get_logger().info("started", nodes=3)
            logging.getLogger("library").warning("odd %s", "thing")
    """
    lines = [line.strip() for line in program.strip().splitlines()]
    source = "\n".join([*lines[:3], *(f"    {line}" for line in lines[3:])])
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)  # noqa: S603 - our own

    started, odd = map(json.loads, done.stderr.splitlines())
    assert done.stdout == ""
    assert (started["event"], started["level"], started["nodes"]) == ("started", "info", 3)
    assert (odd["event"], odd["level"], odd["detail"]) == ("library", "warning", "odd thing")


def test_a_daemon_logs_its_events_and_those_of_libraries_but_no_details():
    program = """
        import logging, structlog
        from alignup.web.log import log_to_stderr
        log_to_stderr()
        structlog.get_logger().info("started")
        structlog.get_logger().debug("details")
        logging.getLogger("library").debug("details")
        logging.getLogger("library").info("odd thing")
    """
    source = "\n".join(line.strip() for line in program.splitlines())
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)  # noqa: S603 - our own

    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["started", "library"]


@pytest.fixture
def pipe():
    """A pipe with the smallest buffer: one page."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read_lines(reader, count):
    with os.fdopen(os.dup(reader), encoding="utf-8") as file:
        return [file.readline() for _ in range(count)]


def test_lines_are_written_in_order(pipe):
    queue = LogQueue(pipe[1])
    for number in range(100):
        queue.write(f"line {number} é\ud800\n")
    queue.close(seconds=60)

    assert read_lines(pipe[0], 100) == [f"line {number} é\\ud800\n" for number in range(100)]
    assert queue.dropped == 0


def test_a_stalled_reader_blocks_no_writer_and_dropped_lines_are_reported(pipe):
    queue, reports = LogQueue(pipe[1], max_bytes=10_000), list[int]()
    queue.report = reports.append
    for _ in range(1_000):
        queue.write("x" * 99 + "\n")

    dropped = queue.dropped
    assert 1_000 > dropped >= 1_000 - (10_000 + 4_096) // 100
    assert read_lines(pipe[0], 1_000 - dropped) == ["x" * 99 + "\n"] * (1_000 - dropped)
    wait_for(lambda: reports)
    assert reports == [dropped]
    queue.write("next\n")
    assert read_lines(pipe[0], 1) == ["next\n"]
    queue.close(seconds=60)


def test_closing_does_not_wait_for_a_stalled_reader(pipe):
    queue = LogQueue(pipe[1])
    queue.write("x" * 99_999 + "\n")
    queue.close(seconds=0)
    queue.write("too late")

    assert queue.dropped == 1
    assert read_lines(pipe[0], 1) == ["x" * 99_999 + "\n"]
    queue.close(seconds=60)


def test_a_line_larger_than_the_queue_is_written_if_it_is_the_only_one(pipe):
    queue = LogQueue(pipe[1], max_bytes=10)
    queue.write("longer than ten bytes\n")

    assert read_lines(pipe[0], 1) == ["longer than ten bytes\n"]
    queue.close(seconds=60)


def test_a_descriptor_that_does_not_block_loses_nothing(pipe):
    os.set_blocking(pipe[1], False)
    queue = LogQueue(pipe[1])
    for _ in range(100):
        queue.write("x" * 999 + "\n")

    assert read_lines(pipe[0], 100) == ["x" * 999 + "\n"] * 100
    queue.close(seconds=60)
    assert queue.dropped == 0


def test_lines_that_cannot_be_written_are_counted():
    reader, writer = os.pipe()
    os.close(reader)
    queue = LogQueue(writer)
    queue.write("nobody reads this\n")
    queue.close(seconds=60)
    os.close(writer)

    assert queue.dropped == 1


def test_a_terminal_is_recognized(pipe):
    terminal, other = pty.openpty()
    queues = [LogQueue(pipe[1]), LogQueue(other)]

    assert [queue.isatty() for queue in queues] == [False, True]
    for queue in queues:
        queue.close(seconds=60)
    os.close(terminal)
    os.close(other)
