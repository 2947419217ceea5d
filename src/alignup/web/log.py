"""The log on stderr, of all programs: one line per event, for people on a terminal, as JSON elsewhere.

Modules log through ``structlog.get_logger()``; a program configures structlog once, when it starts. A daemon writes its
log from a thread, so that a reader that stalls never blocks a decision: standard error may be a pipe that nobody reads,
or a file on a disk that hangs. Lines wait in a bounded queue; when it is full, new lines are dropped and counted, and a
line reports their number once the reader has caught up.
"""

import json
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from queue import Empty, SimpleQueue
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor

MAX_BYTES = 4 << 20  #: of the lines in the queue
CLOSE_SECONDS = 2.0  #: for the last lines to be read

_POLL_SECONDS = 1.0
_WRITE_BYTES = 64 << 10  #: of the lines that are written at once


@contextmanager
def queued_stderr() -> Iterator["LogQueue"]:
    """Log to standard error inside the context, without ever blocking; yield the queue of the lines."""
    queue = LogQueue(sys.stderr.fileno())
    log = structlog.get_logger()
    queue.report = lambda lines: log.warning("log lines dropped", lines=lines)
    relay = _Relay(logging.WARNING)
    logging.getLogger().addHandler(relay)
    structlog.configure(**_configuration(queue))
    try:
        yield queue
    finally:
        logging.getLogger().removeHandler(relay)
        queue.close()
        structlog.reset_defaults()


def log_to_stderr(*, level: str = "info") -> None:
    """Log to standard error from now on, events of at least this *level*."""
    structlog.configure(**_configuration(sys.stderr, level=level))
    logging.basicConfig(level=logging.INFO, handlers=[_Relay()])


def make_logger(out: "LogQueue | TextIO", *, readable: bool | None = None) -> FilteringBoundLogger:
    """Return a logger; *readable*: for people (default: if *out* is a terminal)."""
    configuration = _configuration(out, readable=readable)
    logger: FilteringBoundLogger = structlog.wrap_logger(configuration.pop("logger_factory")(), **configuration)
    return logger


def _configuration(out: "LogQueue | TextIO", *, readable: bool | None = None, level: str = "info") -> dict[str, Any]:
    on_terminal = out.isatty()
    renderer: Processor = structlog.processors.JSONRenderer(serializer=_to_json)
    if readable := on_terminal if readable is None else readable:
        renderer = structlog.dev.ConsoleRenderer(
            colors=on_terminal, pad_event_to=10, sort_keys=False, exception_formatter=_write_traceback
        )
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if readable else "iso", utc=not readable),
        _escape_event if readable else structlog.processors.format_exc_info,
        renderer,
    ]
    return {
        "processors": processors,
        "wrapper_class": structlog.make_filtering_bound_logger(level),
        "logger_factory": lambda *_: _Writer(out),
    }


#: ``json.dumps`` would create an encoder for every line.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=repr)
_ASCII_ENCODER = json.JSONEncoder(default=repr)


def _to_json(fields: EventDict, **_options: object) -> str:
    """Return the line, which begins with the time, the level and the event.

    A name can contain line separators and terminal escapes that JSON allows; a line with such is written in ASCII.
    """
    ordered_fields = {name: fields.pop(name) for name in ("timestamp", "level", "event")} | dict(fields)
    line = _ENCODER.encode(ordered_fields)
    return line if line.isprintable() else _ASCII_ENCODER.encode(ordered_fields)


def _escape(text: str, *, keep: str = "") -> str:
    """Return *text* without what would break a line or control a terminal, other than *keep*."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def _escape_event(_logger: object, _name: str, fields: EventDict) -> EventDict:
    """Escape the event itself; the renderer does so for the other fields."""
    fields["event"] = _escape(str(fields["event"]))
    return fields


def _write_traceback(out: TextIO, error: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(_escape(text.getvalue(), keep="\n"))


class _Writer:
    """Ignores write errors: a full disk or a closed pipe must not stop a program."""

    def __init__(self, out: "LogQueue | TextIO") -> None:
        self._out = out

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._out.write(f"{line}\n")

    debug = info = warning = error = critical = msg


class _Relay(logging.Handler):
    """Passes what libraries log on to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(record.levelno, record.name, detail=record.getMessage())


class LogQueue:
    """A text stream over a file descriptor, which stays open; :meth:`write` never blocks."""

    def __init__(self, descriptor: int, *, max_bytes: int = MAX_BYTES) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()  #: ``None`` ends the thread
        self._lock = threading.Lock()  #: for the counts
        self._bytes = 0  #: in the queue, and being written
        self._unreported = 0  #: dropped lines since the last report
        self._closed = False
        self.dropped = 0  #: lines, in all
        self.report: Callable[[int], None] = lambda _: None  #: called with the number of dropped lines, by the thread
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> None:
        line = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._closed or (self._bytes and self._bytes + len(line) > self._max_bytes):
                self._drop(1)
            else:
                self._bytes += len(line)
                self._lines.put(line)

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Write the lines in the queue within *seconds*, and drop all others."""
        with self._lock:
            self._closed = True
        self._lines.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        line: bytes | None = b""
        while line is not None:
            lines, size = list[bytes](), 0
            line = self._lines.get()
            with suppress(Empty):
                while line is not None:
                    lines.append(line)
                    size += len(line)
                    if size >= _WRITE_BYTES:
                        break
                    line = self._lines.get_nowait()
            text = b"".join(lines)
            is_written = self._write(text)
            with self._lock:
                self._bytes -= len(text)
                if not is_written:
                    self._drop(len(lines))
                dropped_count = self._unreported if is_written and not self._bytes else 0
                self._unreported -= dropped_count
            if dropped_count:
                self.report(dropped_count)

    def _write(self, text: bytes) -> bool:
        """Return whether the lines were written; a full disk or a closed pipe must not stop the agent."""
        while text:
            try:
                text = text[os.write(self._descriptor, text) :]
            except BlockingIOError:  # another process has made it non-blocking
                select.select((), (self._descriptor,), (), _POLL_SECONDS)
            except (OSError, ValueError):
                return False
        return True

    def _drop(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines
