"""Read, follow and rotate container logs.

A log that has grown too large is renamed, as in ``0.log.20260131-235959``, and the runtime continues in a new file.
All but the newest renamed file are compressed, and the oldest is deleted. Reading starts with the oldest file, or at
the requested number of lines from the end. Only a few blocks of a log are in memory at a time.

Lines have the CRI log format, ``TIME stdout F text``. The runtime splits long output into records tagged ``P``
(partial), the last of which is tagged ``F`` (full). Records of both streams may be interleaved. The decoder joins them
again, unless a line exceeds :data:`MAX_LINE_BYTES`.
"""

import asyncio
import gzip
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import IO, cast

from alignup.documents.api import LogQuery

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 20  #: a longer line is passed on in parts
HEADER_BYTES = 256  #: enough for the time, the stream and the tag

_STREAMS = frozenset({b"stdout", b"stderr"})
_TIME = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)")
_ROTATED = re.compile(r"\.\d{8}-\d{6}(\.gz)?")
_COMPRESSED, _UNFINISHED = ".gz", ".tmp"

#: The time with nanoseconds, the stream, whether it is partial, and the text.
_Record = tuple[bytes, bytes, bool, bytes]
#: An open file, and the number of lines to skip from its current position.
_LogPart = tuple[IO[bytes], int]


def log_files(path: Path) -> tuple[Path, ...]:
    """The log at *path* and its rotated files, oldest first; missing files are left out."""
    try:
        names = {entry.name for entry in os.scandir(path.parent)}
    except FileNotFoundError:
        return ()
    rotated = sorted(name for name in names if _is_rotated(name, path.name) and name + _COMPRESSED not in names)
    return tuple(path.with_name(name) for name in (*rotated, *({path.name} & names)))


async def read_log(
    path: Path,
    query: LogQuery,
    *,
    is_running: Callable[[], bool] = lambda: False,
    poll: float = 0.2,
    block: int = BLOCK_BYTES,
) -> AsyncGenerator[bytes, None]:
    """Stream the log at *path*; ``LookupError`` if there is none.

    A followed log is read every *poll* seconds, and ends when everything is read after *is_running* has returned false.
    The beginning of a tail is searched in blocks of *block* bytes.
    """
    if not await asyncio.to_thread(log_files, path) and not (query.follow and is_running()):
        raise LookupError(f"log {path} does not exist")
    return _stream(path, query, is_running=is_running, poll=poll, block=block)


def log_tail(path: Path, *, lines: int = 80, size: int = 2048) -> str:
    """The end of a log as a termination message; empty if there is no log."""
    decoder = LogDecoder()
    text = b""
    with ExitStack() as stack:
        for file, decoder.skip in _open_parts(path, lines, stack):
            while data := file.read(BLOCK_BYTES):
                text = (text + decoder.feed(data))[-size:]
    return (text + decoder.finish())[-size:].decode("utf-8", "replace")


async def rotate_log(
    path: Path,
    *,
    reopen: Callable[[], Awaitable[None]],
    max_bytes: int,
    max_files: int,
    now: Callable[[], float] = time.time,
) -> bool:
    """Rotate a log that has reached *max_bytes* and keep *max_files* of it; whether it was rotated.

    *reopen* makes the runtime reopen the log of a running container. If it fails, the rotation is undone.
    """
    rotated = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now()))}")
    try:
        renamed = await asyncio.to_thread(_rename, path, rotated, max_bytes=max_bytes, max_files=max_files)
    except FileNotFoundError:
        await reopen()  # after a crash between rename and reopen
        return False
    if renamed:
        try:
            await reopen()
        except Exception:
            await asyncio.to_thread(_undo_rename, path, rotated)
            raise
    return renamed


def remove_logs(path: Path) -> None:
    for file in log_files(path):
        file.unlink(missing_ok=True)


async def _stream(
    path: Path, query: LogQuery, *, is_running: Callable[[], bool], poll: float, block: int
) -> AsyncGenerator[bytes, None]:
    decoder = LogDecoder(timestamps=query.timestamps)
    with ExitStack() as stack:
        parts = await asyncio.to_thread(_open_parts, path, query.tail, stack, block)
        for file, decoder.skip in parts:
            async for data in _blocks(file):
                if text := decoder.feed(data):
                    yield text
        if query.follow:
            newest = parts[-1][0] if parts else None
            async with aclosing(_follow(path, newest, is_running=is_running, poll=poll)) as appended:
                async for data in appended:
                    if text := decoder.feed(data):
                        yield text
    if text := decoder.finish():
        yield text


async def _follow(
    path: Path, newest: IO[bytes] | None, *, is_running: Callable[[], bool], poll: float
) -> AsyncGenerator[bytes, None]:
    """Data appended after *newest* was read, across rotations, until the container has exited."""
    with ExitStack() as stack:
        while True:
            running = is_running()  # checked before reading, so that the last output is not missed
            async for data in _blocks(newest):
                yield data
            newer = await asyncio.to_thread(_newer_files, path, newest)
            if not newer and not running:
                return
            await asyncio.sleep(poll)
            if not newer:
                continue
            async for data in _blocks(newest):  # the runtime may have written here until it reopened the log
                yield data
            stack.close()
            for file in newer:
                with suppress(FileNotFoundError):
                    newest = stack.enter_context(_open(file))
                    async for data in _blocks(newest):
                        yield data


async def _blocks(file: IO[bytes] | None) -> AsyncIterator[bytes]:
    while file is not None and (data := await asyncio.to_thread(file.read, BLOCK_BYTES)):
        yield data


def _is_rotated(name: str, log: str) -> bool:
    return name.startswith(log) and _ROTATED.fullmatch(name, len(log)) is not None


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == _COMPRESSED else path.open("rb")


def _open_parts(path: Path, tail: int | None, stack: ExitStack, block: int = BLOCK_BYTES) -> list[_LogPart]:
    """Open the files of a log, positioned where its last *tail* lines begin."""
    opened = []
    for one in log_files(path):
        with suppress(FileNotFoundError):
            opened.append((one, stack.enter_context(_open(one))))
    if tail is None:
        return [(file, 0) for _, file in opened]
    parts: list[_LogPart] = []
    for one, file in reversed(opened):
        if one.suffix == _COMPRESSED:
            lines = _count_lines(file)
            file.seek(0)
            parts.append((file, max(0, lines - tail)))
        else:
            lines = _seek_tail(file, tail, block)
            parts.append((file, 0))
        tail -= lines
        if tail <= 0:
            break
    return parts[::-1]


def _seek_tail(file: IO[bytes], lines: int, block: int) -> int:
    """Seek to the beginning of the last *lines* lines; return how many there are, up to *lines*."""
    if not lines:
        file.seek(0, os.SEEK_END)
        return 0
    starts = _record_starts(file, block)
    start, _ = next(starts)  # of a record that is still being written, or of nothing
    found = 0
    for number, (offset, head) in enumerate(starts):
        if ends_line(head):
            if found == lines:
                file.seek(start)
                return found
            found += 1
        elif number == 0:
            found = 1  # a line without an end yet
        start = offset
    file.seek(0)
    return found


def _record_starts(file: IO[bytes], block: int) -> Iterator[tuple[int, bytes]]:
    """The offset and head of each record, last record first; the first item follows the last complete record."""
    end = file.seek(0, os.SEEK_END)
    behind = b""
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        data = file.read(end - begin)
        window = data + behind
        offset = len(data)
        while (offset := data.rfind(b"\n", 0, offset)) >= 0:
            yield begin + offset + 1, window[offset + 1 : offset + 1 + HEADER_BYTES]
        behind, end = window[:HEADER_BYTES], begin
    yield 0, behind


def _count_lines(file: IO[bytes]) -> int:
    total, rest = 0, b""
    while data := file.read(BLOCK_BYTES):
        *records, rest = (rest + data).split(b"\n")
        total += sum(map(ends_line, records))
        rest = rest[:HEADER_BYTES]
    return total


def _newer_files(path: Path, newest: IO[bytes] | None) -> tuple[Path, ...]:
    found = log_files(path)
    if newest is None:
        return found
    if not found or found[-1] != path:
        return ()  # renamed, and the runtime has not created the new file yet
    known = os.fstat(newest.fileno())
    for index, file in enumerate(found):
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(), known):
                return found[index + 1 :]
    return (path,)


def _rename(path: Path, rotated: Path, *, max_bytes: int, max_files: int) -> bool:
    if path.stat().st_size < max_bytes or rotated.exists():  # the latter: it was already rotated in this second
        return False
    _prune(path, max_files - 2)
    path.rename(rotated)
    return True


def _undo_rename(path: Path, rotated: Path) -> None:
    if not path.exists():
        rotated.rename(path)


def _prune(path: Path, keep: int) -> None:
    """Keep and compress the newest *keep* rotated files."""
    for entry in list(os.scandir(path.parent)):
        if _is_rotated(entry.name.removesuffix(_UNFINISHED), path.name) and Path(entry.path) not in log_files(path):
            Path(entry.path).unlink(missing_ok=True)  # left by a crash
    rotated = [file for file in log_files(path) if file != path]
    excess = max(0, len(rotated) - keep)
    for file in rotated[:excess]:
        file.unlink(missing_ok=True)
    for file in rotated[excess:]:
        if file.suffix == _COMPRESSED:
            continue
        # At every moment either the original or the compressed file is complete.
        unfinished = file.with_name(file.name + _UNFINISHED)
        with file.open("rb") as source, gzip.open(unfinished, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, BLOCK_BYTES)
        unfinished.chmod(file.stat().st_mode & 0o777)
        unfinished.rename(file.with_name(file.name + _COMPRESSED))
        file.unlink()


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
