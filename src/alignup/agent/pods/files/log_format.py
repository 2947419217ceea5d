"""The CRI log format: lines of the form ``TIME stdout F text``.

The runtime splits long output into records tagged ``P`` (partial), the last of which is tagged ``F`` (full). Records
of both streams may be interleaved. The decoder joins them again, unless a line exceeds :data:`MAX_LINE_BYTES`.
"""

import re

MAX_LINE_BYTES = 1 << 20  #: a longer line is passed on in parts
HEADER_BYTES = 256  #: enough for the time, the stream and the tag

_STREAMS = frozenset({b"stdout", b"stderr"})
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)")

_Record = tuple[bytes, bytes, bool, bytes]  # time with nanoseconds, stream, whether it is partial, text


def ends_line(record: bytes) -> bool:
    """Whether a line ends with this record; its first :data:`HEADER_BYTES` are enough."""
    found = _parse(record[:HEADER_BYTES])
    return found is not None and not found[2]


class LogDecoder:
    """Decode a log that arrives in chunks of any size; invalid records are skipped, as by the kubelet."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self.skip = 0  #: lines to drop
        self._timestamps = timestamps
        self._rest = b""  #: an incomplete record
        self._oversized = False  #: the incomplete record is too long and is skipped
        self._partial: dict[bytes, bytearray] = {}  #: stream → an incomplete line

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now."""
        *records, rest = (self._rest + data).split(b"\n")
        if self._oversized and records:
            del records[0]
            self._oversized = False
        if len(rest) > MAX_LINE_BYTES:
            self._oversized = True
        self._rest = b"" if self._oversized else rest
        return b"".join(map(self._decode, records))

    def finish(self) -> bytes:
        """Return everything that is left, complete or not."""
        text = self._decode(self._rest) if self._rest else b""
        left = b"".join(map(bytes, self._partial.values())) if not self.skip else b""
        self._rest = b""
        self._partial.clear()
        return text + left

    def _decode(self, record: bytes) -> bytes:
        found = _parse(record)
        if found is None:
            return b""
        time, stream, partial, text = found
        line = self._partial.get(stream)
        if line is None:
            line = self._partial[stream] = bytearray(time + b" " if self._timestamps else b"")
        line += text
        if partial and len(line) <= MAX_LINE_BYTES:
            return b""
        if partial:
            self._partial[stream] = bytearray()
            return b"" if self.skip else bytes(line)
        del self._partial[stream]
        if self.skip:
            self.skip -= 1
            return b""
        return bytes(line) + b"\n"


def _parse(record: bytes) -> _Record | None:
    parts = record.split(b" ", 3)
    if len(parts) < 4 or parts[1] not in _STREAMS:
        return None
    time, stream, tags, text = parts
    found = _TIME.fullmatch(time)
    if found is None:
        return None
    seconds, fraction, zone = found.groups(b"")
    aligned = seconds + b"." + fraction.ljust(9, b"0") + zone
    return aligned, stream, tags.split(b":", 1)[0] == b"P", text
