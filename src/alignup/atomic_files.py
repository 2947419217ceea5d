"""Files that are read safely, and files that are replaced as a whole.

After a crash, a replaced file has the old contents or the new ones, never a part.

New contents are written to a temporary file in the same directory, synced to disk, and renamed. Writers lock the
directory, so each can remove what a killed one left behind.
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from alignup.align.errors import FileError

MAX_BYTES = 64 << 20  #: of a file; no file is written that could not be read again
LOCK_SECONDS = 5.0  #: that a writer waits for another one
_POLL_SECONDS = 0.01
_PASSED = re.compile(r"/dev/(stdin|fd/[0-9]+)")  #: files that a shell passes open, such as those of ``<(command)``
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_input(path: Path | str) -> BinaryIO:
    """Open a file for reading; ``OSError`` for a pipe, a socket or a device: these could block, or never end.

    ``/dev/stdin`` and ``/dev/fd/N``, which a shell opens, may be anything.
    """
    if _PASSED.fullmatch(os.fspath(path)):
        return open(path, "rb")  # noqa: PTH123 - also a string
    _check_kind(os.stat(path), path)  # noqa: PTH116 - also a string
    # Another file may be in its place by now: opening a pipe must not block.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY))  # noqa: SIM115
    try:
        _check_kind(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def _check_kind(status: os.stat_result, path: Path | str) -> None:
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            problem = f"it is {name}; give a regular file, or a pipe as /dev/stdin or /dev/fd/N"
            raise OSError(errno.EINVAL, problem, os.fspath(path))


def read(path: Path, *, limit: int = MAX_BYTES) -> bytes | None:
    """Return the contents of a file; ``None`` if it does not exist, ``FileError`` if it is unreadable or too large."""
    try:
        # O_NONBLOCK: opening a pipe in its place would block forever.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure("read", path, error) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"cannot read {path}: it is not a regular file")
        parts, size = [], min(status.st_size, limit) + 1
        while status.st_size <= limit and size > 0 and (part := os.read(handle, size)):
            parts.append(part)
            size = min(limit + 1 - sum(map(len, parts)), max(len(part), 4096))
        data = b"".join(parts)
    except OSError as error:
        raise _failure("read", path, error) from error
    finally:
        os.close(handle)
    if max(status.st_size, len(data)) > limit:
        raise FileError(f"cannot read {path}: it has more than {limit} bytes")
    return data


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the contents of the file at *path* durably; ``FileError`` if that fails, and nothing has changed.

    An existing file keeps its mode and owner, a new one gets *mode*. A symbolic link is replaced, not followed. If only
    the final sync of the directory fails, the new file is in place but may be lost in a crash: that is an error too.
    """
    if len(data) > MAX_BYTES:
        raise FileError(f"cannot write {path}: {len(data)} bytes are more than the {MAX_BYTES} that can be read again")
    try:
        with _opened(path.parent) as directory:
            _lock(directory)
            _replace(directory, path.name, data, mode)
            sync_directory(directory)
    except OSError as error:
        raise _failure("write", path, error) from error


def _replace(directory: int, name: str, data: bytes, mode: int) -> None:
    temporary, owner = f".{name}.new", None
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            owner, mode = (status.st_uid, status.st_gid), stat.S_IMODE(status.st_mode)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            status = os.fstat(handle)
            if owner is not None and owner != (status.st_uid, status.st_gid):
                os.fchown(handle, *owner)
            os.fchmod(handle, mode)
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]
            os.fsync(handle)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):  # the first error counts, and the next writer removes the file
            os.unlink(temporary, dir_fd=directory)
        raise


def make_private_directory(path: Path) -> os.stat_result:
    """Create a directory with mode 700 durably unless *path* exists; return its status, whatever it is. ``OSError``."""
    _make_durably(path, 0o700)
    return path.lstat()


def make_directory(path: Path, *, mode: int = 0o750) -> None:
    """Create a directory and its parents durably, unless they exist."""
    try:
        if not path.is_dir():
            _make_durably(path, mode)
    except OSError as error:
        raise _failure("create", path, error) from error


def sync_directory(directory: Path | int) -> None:
    """Make all changes of a directory's entries durable; does nothing for one that this user may not read."""
    if isinstance(directory, int):
        if not _is_path_only(directory):
            os.fsync(directory)
        return
    with _opened(directory) as handle:
        sync_directory(handle)


def _make_durably(path: Path, mode: int) -> None:
    """Create *path* unless something exists there; the parents get the default mode."""
    if os.path.lexists(path):
        return
    if not path.parent.exists():
        _make_durably(path.parent, 0o777)
    with suppress(FileExistsError):  # another process was faster
        path.mkdir(mode)
    sync_directory(path.parent)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    flags = os.O_CLOEXEC | os.O_DIRECTORY
    try:
        handle = os.open(path, os.O_RDONLY | flags)
    except PermissionError:  # without the right to list it, entries can still be opened by name
        handle = os.open(path, os.O_PATH | flags)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_path_only(handle: int) -> bool:
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_PATH)


def _lock(directory: int) -> None:
    """Wait until no other writer has the directory locked, and lock it; every user who can read it can lock it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while not _is_path_only(directory):
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                message = f"another process has locked the directory for {LOCK_SECONDS:g} seconds"
                raise OSError(errno.EAGAIN, message) from error
            time.sleep(_POLL_SECONDS)


def _failure(verb: str, path: Path, error: OSError) -> FileError:
    return FileError(f"cannot {verb} {path}: {error.strerror or error}")
