"""Writes the log from a thread of its own, so that a reader that stalls never blocks a decision.

Standard error may be a pipe that nobody reads, or a file on a disk that hangs. Lines wait in a bounded queue; when it
is full, new lines are dropped and counted, and a line reports their number once the reader has caught up.
"""

import os
import select
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 4 << 20  #: of the lines in the queue
CLOSE_SECONDS = 2.0  #: for the last lines to be read

_POLL_SECONDS = 1.0


class LogQueue:
    """A text stream over a file descriptor, which stays open; :meth:`write` never blocks."""

    def __init__(self, descriptor: int, *, max_bytes: int = MAX_BYTES) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0  #: in the queue, and being written
        self._unreported = 0  #: dropped lines since the last report
        self._closed = False
        self._changed = threading.Condition()
        self.dropped = 0  #: lines, in all
        self.report: Callable[[int], None] = lambda _: None  #: called with the number of dropped lines, by the thread
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> None:
        line = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._closed or (self._bytes and self._bytes + len(line) > self._max_bytes):
                self._drop()
            else:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify()

    def flush(self) -> None:
        """Do nothing: the thread writes every line at once."""

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Write the lines in the queue within *seconds*, and drop all others."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while (line := self._next()) is not None:
            written = self._write(line)
            with self._changed:
                self._bytes -= len(line)
                if not written:
                    self._drop()
                dropped = self._unreported if written and not self._lines else 0
                self._unreported -= dropped
            if dropped:
                self.report(dropped)

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            return self._lines.popleft() if self._lines else None

    def _write(self, line: bytes) -> bool:
        """Return whether the line was written; a full disk or a closed pipe must not stop the agent."""
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:  # another process has made it non-blocking
                select.select((), (self._descriptor,), (), _POLL_SECONDS)
            except (OSError, ValueError):
                return False
        return True

    def _drop(self) -> None:
        self.dropped += 1
        self._unreported += 1
