"""A container's log file, line by line as the runtimes of Kubernetes write it.

2026-01-02T03:04:05.123456789Z stdout F all of a line
2026-01-02T03:04:05.123456789Z stderr P a part of one, which goes on in the next entry, or has no end
"""

import time
from pathlib import Path

MAX_ENTRY = 16 * 1024  #: bytes of a line in one entry


class ContainerLog:
    """The log at *path*, which is added to, its directory made if need be; ``OSError`` where there can be none."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._begun: dict[bytes, bytes] = {}  #: of each stream: the line that has not ended
        self._file = path.open("ab", buffering=0)
        path.chmod(0o640)

    def take(self, stream: str, data: bytes) -> None:
        """Write down what came on *stream*; no data: it has ended."""
        name = stream.encode()
        *lines, rest = (self._begun.pop(name, b"") + data).split(b"\n")
        for line in lines:
            self._entry(name, b"F", self._parts(name, line))
        rest = self._parts(name, rest)
        if data:
            self._begun[name] = rest
        elif rest:
            self._entry(name, b"P", rest)

    def reopen(self) -> None:
        """Go on in a new file: the one before was moved away."""
        fresh = self._path.open("ab", buffering=0)
        self._path.chmod(0o640)
        self._file.close()
        self._file = fresh

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def _parts(self, stream: bytes, line: bytes) -> bytes:
        """Write what is too long for one entry, and give what is left."""
        while len(line) > MAX_ENTRY:
            self._entry(stream, b"P", line[:MAX_ENTRY])
            line = line[MAX_ENTRY:]
        return line

    def _entry(self, stream: bytes, tag: bytes, text: bytes) -> None:
        self._file.write(b"%s %s %s %s\n" % (_now().encode(), stream, tag, text))


def _now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09}Z"
