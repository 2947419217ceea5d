"""Writes the log from a thread of its own, so that a reader that stalls never blocks a decision.

Standard error may be a pipe that nobody reads, or a file on a disk that hangs. Lines wait in a bounded queue; when it
is full, new lines are dropped and counted, and a line reports their number once the reader has caught up.
"""

import os
import select
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 4 << 20  #: of the lines in the queue
CLOSE_SECONDS = 2.0  #: for the last lines to be read

_POLL_SECONDS = 1.0
_WRITE_BYTES = 64 << 10  #: of the lines that are written at once


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

    def flush(self) -> None:
        """Do nothing: the thread writes every line at once."""

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Write the lines in the queue within *seconds*, and drop all others."""
        with self._lock:
            self._closed = True
        self._lines.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        stop = False
        while not stop:
            lines, stop = self._next()
            text = b"".join(lines)
            written = self._write(text)
            with self._lock:
                self._bytes -= len(text)
                if not written:
                    self._drop(len(lines))
                dropped = self._unreported if written and not self._bytes else 0
                self._unreported -= dropped
            if dropped:
                self.report(dropped)

    def _next(self) -> tuple[list[bytes], bool]:
        """Wait for lines; return all that are there, up to a size, and whether they are the last ones."""
        lines, size = list[bytes](), 0
        line = self._lines.get()
        try:
            while line is not None:
                lines.append(line)
                size += len(line)
                if size >= _WRITE_BYTES:
                    break
                line = self._lines.get_nowait()
        except Empty:
            return lines, False
        return lines, line is None

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
