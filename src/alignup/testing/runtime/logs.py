"""A container's log file in the CRI log format.

2026-01-02T03:04:05.123456789Z stdout F a full line
2026-01-02T03:04:05.123456789Z stderr P a partial line, which continues in the next entry or has no end
"""

import time
from pathlib import Path

MAX_ENTRY = 16 * 1024  #: bytes


class ContainerLog:
    """Appends to the log at *path*, whose directory it creates if needed; raises ``OSError`` if it cannot."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial: dict[bytes, bytes] = {}  #: the unfinished line of each stream
        self._file = path.open("ab", buffering=0)
        path.chmod(0o640)

    def take(self, stream: str, data: bytes) -> None:
        """Write output of *stream*; empty *data* is its end."""
        name = stream.encode()
        *lines, rest = (self._partial.pop(name, b"") + data).split(b"\n")
        for line in lines:
            self._write(name, b"F", self._split(name, line))
        rest = self._split(name, rest)
        if data:
            self._partial[name] = rest
        elif rest:
            self._write(name, b"P", rest)

    def reopen(self) -> None:
        """Continue in a new file after the old one was moved away."""
        fresh = self._path.open("ab", buffering=0)
        self._path.chmod(0o640)
        self._file.close()
        self._file = fresh

    def close(self) -> None:
        self._file.close()

    def _split(self, stream: bytes, line: bytes) -> bytes:
        """Write full-size partial entries of a long line, and return the rest."""
        while len(line) > MAX_ENTRY:
            self._write(stream, b"P", line[:MAX_ENTRY])
            line = line[MAX_ENTRY:]
        return line

    def _write(self, stream: bytes, tag: bytes, text: bytes) -> None:
        self._file.write(b"%s %s %s %s\n" % (_now().encode(), stream, tag, text))


def _now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09}Z"
