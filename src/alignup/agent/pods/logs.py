"""Logs of containers: read from any point, followed while they grow, and kept from growing without end.

A log that has grown too large is renamed, ``0.log.20260131-235959``, and the runtime goes on in a new file. Of those
renamed all but the newest are compressed, and the oldest goes. Reading begins with the oldest there is; where only the
last lines are asked for, it begins from the end. However long a log is, a few blocks of it are in memory at a time.
"""

import asyncio
import gzip
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from alignup.agent.pods.log_format import HEADER_BYTES, LogDecoder, ends_line
from alignup.schema.api import LogQuery

POLL_SECONDS = 0.2  #: seconds

_BLOCK = 1 << 18  #: bytes
_ROTATED = re.compile(r"\.\d{8}-\d{6}(\.gz)?")
_COMPRESSED, _UNFINISHED = ".gz", ".tmp"


@dataclass(frozen=True, slots=True)
class _Part:
    """A file that is read from where it stands; the first *skip* lines of it are not wanted."""

    file: IO[bytes]
    skip: int = 0


def log_files(path: Path) -> tuple[Path, ...]:
    """The log at *path* with all that was it before, as far as they are there; the oldest first."""
    try:
        names = {entry.name for entry in os.scandir(path.parent)}
    except FileNotFoundError:
        return ()
    rotated = sorted(name for name in names if _is_rotated(name, path.name) and name + _COMPRESSED not in names)
    return tuple(path.with_name(name) for name in (*rotated, *({path.name} & names)))


async def read_log(
    path: Path, query: LogQuery, *, alive: Callable[[], bool] = lambda: False, poll: float = POLL_SECONDS
) -> AsyncGenerator[bytes, None]:
    """What a container printed, whose log is at *path*; ``LookupError`` when there is none.

    Where it is followed this goes on until all is read after *alive* has said that the container has ended.
    """
    if not await asyncio.to_thread(log_files, path) and not (query.follow and alive()):
        raise LookupError(f"there is no log {path}")
    return _read(path, query, alive=alive, poll=poll)


def log_tail(path: Path, *, lines: int = 80, size: int = 2048) -> str:
    """The end of a log, for whoever asks why a container ended; empty when there is none."""
    decoder = LogDecoder()
    text = b""
    with ExitStack() as stack:
        for part in _opened(path, lines, stack):
            decoder.skip = part.skip
            while data := part.file.read(_BLOCK):
                text = (text + decoder.feed(data))[-size:]
    return (text + decoder.end())[-size:].decode("utf-8", "replace")


async def rotate_log(
    path: Path,
    *,
    reopen: Callable[[], Awaitable[None]],
    size: int,
    most: int,
    now: Callable[[], float] = time.time,
) -> bool:
    """Have a log that has *size* bytes go on in a new file, and keep *most* files of it; whether that was so.

    *reopen* tells the runtime, of a container that runs. When it fails, all is as before.
    """
    grown = await asyncio.to_thread(_size, path)
    if grown is None:
        await reopen()  # after a crash between the two steps
        return False
    if grown < size:
        return False
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now()))
    rotated = await asyncio.to_thread(_set_aside, path, stamp, most=most)
    if rotated is None:
        return False
    try:
        await reopen()
    except Exception:
        await asyncio.to_thread(_put_back, rotated, path)
        raise
    return True


def remove_logs(path: Path) -> None:
    """Remove a log and all that was it before."""
    for file in log_files(path):
        file.unlink(missing_ok=True)


async def _read(path: Path, query: LogQuery, *, alive: Callable[[], bool], poll: float) -> AsyncGenerator[bytes, None]:
    decoder = LogDecoder(timestamps=query.timestamps)
    with ExitStack() as stack:
        parts = await asyncio.to_thread(_opened, path, query.tail, stack)
        for part in parts:
            decoder.skip = part.skip
            async for data in _blocks(part.file):
                if text := decoder.feed(data):
                    yield text
        if query.follow:
            newest = parts[-1].file if parts else None
            async with aclosing(_grown(path, newest, alive=alive, poll=poll)) as grown:
                async for data in grown:
                    if text := decoder.feed(data):
                        yield text
    if text := decoder.end():
        yield text


async def _grown(
    path: Path, newest: IO[bytes] | None, *, alive: Callable[[], bool], poll: float
) -> AsyncGenerator[bytes, None]:
    """What is added to a log after *newest* was read, whatever it is called by now, until it has ended."""
    with ExitStack() as stack:
        while True:
            running = alive()  # before reading: what it printed last is there then
            async for data in _blocks(newest):
                yield data
            following = await asyncio.to_thread(_after, path, newest)
            if not following and not running:
                return
            await asyncio.sleep(poll)
            if not following:
                continue
            async for data in _blocks(newest):  # the runtime may have noticed a little later
                yield data
            stack.close()
            for place in following:
                with suppress(FileNotFoundError):
                    newest = stack.enter_context(_open(place))
                    async for data in _blocks(newest):
                        yield data


async def _blocks(file: IO[bytes] | None) -> AsyncIterator[bytes]:
    """What there is to read of a file by now."""
    while file is not None and (data := await asyncio.to_thread(file.read, _BLOCK)):
        yield data


def _is_rotated(name: str, log: str) -> bool:
    return name.startswith(log) and _ROTATED.fullmatch(name, len(log)) is not None


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == _COMPRESSED else path.open("rb")


def _opened(path: Path, tail: int | None, stack: ExitStack) -> list[_Part]:
    """The files of a log, each at the place where the last *tail* lines of them all begin."""
    found = []
    for one in log_files(path):
        with suppress(FileNotFoundError):
            found.append((one, stack.enter_context(_open(one))))
    if tail is None:
        return [_Part(file) for _, file in found]
    parts: list[_Part] = []
    for one, file in reversed(found):
        if one.suffix == _COMPRESSED:
            lines = _count(file)
            file.seek(0)
            parts.append(_Part(file, max(0, lines - tail)))
        else:
            lines = _seek_last(file, tail)
            parts.append(_Part(file))
        tail -= lines
        if tail <= 0:
            break
    return parts[::-1]


def _seek_last(file: IO[bytes], lines: int) -> int:
    """Go to the beginning of the last *lines* lines; how many there are, at most so many."""
    if not lines:
        file.seek(0, os.SEEK_END)
        return 0
    begins = _beginnings(file)
    begin, _ = next(begins)  # of a record that is just being written, or of nothing
    seen = 0
    for number, (place, head) in enumerate(begins):
        if ends_line(head):
            if seen == lines:
                file.seek(begin)
                return seen
            seen += 1
        elif number == 0:
            seen = 1  # a line that has not ended yet
        begin = place
    file.seek(0)
    return seen


def _beginnings(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Where each record begins, and with what, from the end of the file; first what is behind the last whole one."""
    end = file.seek(0, os.SEEK_END)
    behind = b""
    while end > 0:
        begin = max(0, end - _BLOCK)
        file.seek(begin)
        data = file.read(end - begin)
        window = data + behind
        place = len(data)
        while (place := data.rfind(b"\n", 0, place)) >= 0:
            yield begin + place + 1, window[place + 1 : place + 1 + HEADER_BYTES]
        behind, end = window[:HEADER_BYTES], begin
    yield 0, behind


def _count(file: IO[bytes]) -> int:
    """How many lines there are in a file that can be read forward only."""
    total, rest = 0, b""
    while data := file.read(_BLOCK):
        *records, rest = (rest + data).split(b"\n")
        total += sum(map(ends_line, records))
        rest = rest[:HEADER_BYTES]
    return total


def _after(path: Path, newest: IO[bytes] | None) -> tuple[Path, ...]:
    """The files of a log that are newer than the one read; none when it is the newest."""
    found = log_files(path)
    if newest is None:
        return found
    if not found or found[-1] != path:
        return ()  # it was renamed, and there is no new one yet
    known = os.fstat(newest.fileno())
    for place, file in enumerate(found):
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(), known):
                return found[place + 1 :]
    return (path,)


def _size(path: Path) -> int | None:
    """The bytes of a file; ``None`` when there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _set_aside(path: Path, stamp: str, *, most: int) -> Path | None:
    """Rename a log, and make room for it before; ``None`` when another has been renamed in the same second."""
    rotated = path.with_name(f"{path.name}.{stamp}")
    if rotated.exists():
        return None
    _make_room(path, most - 2)
    path.rename(rotated)
    return rotated


def _put_back(rotated: Path, path: Path) -> None:
    if not path.exists():
        rotated.rename(path)


def _make_room(path: Path, most: int) -> None:
    """Keep *most* of what was the log before, compressed."""
    for entry in list(os.scandir(path.parent)):
        if _is_rotated(entry.name.removesuffix(_UNFINISHED), path.name) and Path(entry.path) not in log_files(path):
            Path(entry.path).unlink(missing_ok=True)  # of a crash
    rotated = [file for file in log_files(path) if file != path]
    for file in rotated[: max(0, len(rotated) - most)]:
        file.unlink(missing_ok=True)
    for file in rotated[max(0, len(rotated) - most) :]:
        if file.suffix != _COMPRESSED:
            _compress(file)


def _compress(path: Path) -> None:
    """There is always the one or the other, whole."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    with path.open("rb") as source, gzip.open(unfinished, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, _BLOCK)
    unfinished.chmod(path.stat().st_mode & 0o777)
    unfinished.rename(path.with_name(path.name + _COMPRESSED))
    path.unlink()
