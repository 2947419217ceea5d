"""Files that must survive a crash: there is always the old one or the new one, whole, never half of either.

A new file is written aside, in the same directory, reaches the disk, and takes the old one's place in one step. Writers
of one directory wait for each other, so what a killed one has left aside is cleared by the next.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from alignup.align.errors import FileError

MAX_BYTES = 64 << 20  #: bytes; no state file comes near it, and one that does is no state file


def read(path: Path, *, limit: int = MAX_BYTES) -> bytes | None:
    """The contents of a file; ``None`` when there is none, ``FileError`` when it cannot be read or is too large."""
    try:
        # Without waiting: a pipe in its place would keep us for ever.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed("read", path, error) from error
    try:
        data = _read_up_to(handle, limit + 1) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    except OSError as error:
        raise _failed("read", path, error) from error
    finally:
        os.close(handle)
    if data is None:
        raise FileError(f"cannot read {path}: it is no regular file")
    if len(data) > limit:
        raise FileError(f"cannot read {path}: it has more than {limit} bytes, so it is no state file")
    return data


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put *data* in the place of the file at *path*, for good; ``FileError`` when that cannot be, and nothing changed.

    A file that is there passes on its mode and owner, a new one has *mode*. A link is not followed but replaced. When
    only the last step fails, telling the disk to remember the name, the new file is in place and may be lost in a
    crash: that is an error too.
    """
    try:
        with _directory(path.parent) as folder:
            _replace(folder, path.name, data, mode=mode)
    except OSError as error:
        raise _failed("write", path, error) from error


def make_private_directory(path: Path) -> os.stat_result:
    """Make a directory for its owner alone where there is none; what is there, which may be anything. ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path.lstat()


def make_directory(path: Path, *, mode: int = 0o750) -> None:
    """Make a directory, and those above it, where there is none."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise _failed("make", path, error) from error


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    """A directory nobody else writes to by this module while we have it."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _replace(folder: int, name: str, data: bytes, *, mode: int) -> None:
    """Write aside, and rename when all of it has reached the disk."""
    aside = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside, dir_fd=folder)
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        try:
            _inherit(handle, _before(folder, name), mode=mode)
            _write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)
        raise
    os.fsync(folder)


def _before(folder: int, name: str) -> os.stat_result | None:
    """What is known of the file that is there; nothing when there is none, or something else has its name."""
    try:
        known = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return known if stat.S_ISREG(known.st_mode) else None


def _inherit(handle: int, before: os.stat_result | None, *, mode: int) -> None:
    if before is None:
        os.fchmod(handle, mode)
        return
    now = os.fstat(handle)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


def _read_up_to(handle: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(handle, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def _failed(verb: str, path: Path, error: OSError) -> FileError:
    return FileError(f"cannot {verb} {path}: {error.strerror or error}")
