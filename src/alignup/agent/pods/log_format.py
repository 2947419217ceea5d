"""Lines that containers print, as runtimes write them to files: ``TIME stdout F text``.

What is printed without an end for too long is cut into pieces, tagged ``P`` until the last, which is ``F``. Pieces of
both streams may be mixed; here they are put together again, unless a line is longer than anyone would keep.
"""

import re

MAX_LINE_BYTES = 1 << 20  #: bytes of a line that are held back until it ends

HEADER_BYTES = 256  #: bytes in which the time, the stream and the tag are
_STREAMS = frozenset({b"stdout", b"stderr"})
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)")

_Record = tuple[bytes, bytes, bool, bytes]  # the time, the stream, whether the line goes on, the text


def ends_line(record: bytes) -> bool:
    """Whether a line ends with this record, of which the beginning is enough."""
    found = _parsed(record[:HEADER_BYTES])
    return found is not None and not found[2]


class LogDecoder:
    """Takes a log in pieces of any size and gives what was printed; what is no record is left out, as the kubelet does.

    The first *skip* lines to come are left out.
    """

    def __init__(self, *, timestamps: bool = False) -> None:
        self.skip = 0
        self._timestamps = timestamps
        self._rest = b""  #: the beginning of a record
        self._lost = False  #: that record is too long to be one, and is left out
        self._held: dict[bytes, bytearray] = {}  #: stream → the beginning of a line

    def feed(self, data: bytes) -> bytes:
        """What is whole now."""
        *records, rest = (self._rest + data).split(b"\n")
        if self._lost and records:
            del records[0]
            self._lost = False
        if len(rest) > MAX_LINE_BYTES:
            self._lost = True
        self._rest = b"" if self._lost else rest
        return b"".join(map(self._take, records))

    def end(self) -> bytes:
        """All that is left, whole or not."""
        text = self._take(self._rest) if self._rest else b""
        left = b"".join(map(bytes, self._held.values())) if not self.skip else b""
        self._rest = b""
        self._held.clear()
        return text + left

    def _take(self, record: bytes) -> bytes:
        """What can be given away with this record."""
        found = _parsed(record)
        if found is None:
            return b""
        time, stream, goes_on, text = found
        held = self._held.get(stream)
        if held is None:
            held = self._held[stream] = bytearray(_fixed(time) + b" " if self._timestamps else b"")
        held += text
        if goes_on and len(held) <= MAX_LINE_BYTES:
            return b""
        if goes_on:
            self._held[stream] = bytearray()
            return b"" if self.skip else bytes(held)
        del self._held[stream]
        if self.skip:
            self.skip -= 1
            return b""
        return bytes(held) + b"\n"


def _parsed(record: bytes) -> _Record | None:
    """The parts of a record; ``None`` when it is none."""
    parts = record.split(b" ", 3)
    if len(parts) < 4 or parts[1] not in _STREAMS or not _TIME.fullmatch(parts[0]):
        return None
    time, stream, tags, text = parts
    return time, stream, tags.split(b":", 1)[0] == b"P", text


def _fixed(time: bytes) -> bytes:
    """A time with all nine digits, so that times stand below each other."""
    found = _TIME.fullmatch(time)
    if found is None:  # nobody asks for the time of what is no record
        return time
    whole, fraction, zone = found.groups(b"")
    return whole + b"." + fraction.ljust(9, b"0") + zone
