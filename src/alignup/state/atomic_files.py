"""Files that survive a crash: either the old contents or the new ones, never a part.

New contents are written to a temporary file in the same directory, synced to disk, and renamed. Writers lock the
directory, so each can remove what a killed one left behind.
"""

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from alignup.align.errors import FileError

MAX_BYTES = 64 << 20


def read(path: Path, *, limit: int = MAX_BYTES) -> bytes | None:
    """Return the contents of a file; ``None`` if it does not exist, ``FileError`` if it is unreadable or too large."""
    try:
        # O_NONBLOCK: opening a pipe in its place would block forever.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FileError(f"cannot read {path}: it is not a regular file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(limit + 1) if status.st_size <= limit else b""
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failure("read", path, error) from error
    if max(status.st_size, len(data)) > limit:
        raise FileError(f"cannot read {path}: it has more than {limit} bytes")
    return data


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the contents of the file at *path* durably; ``FileError`` if that fails, and nothing has changed.

    An existing file keeps its mode and owner, a new one gets *mode*. A symbolic link is replaced, not followed. If only
    the final sync of the directory fails, the new file is in place but may be lost in a crash: that is an error too.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            _replace(directory, path.name, data, mode=mode)
        finally:
            os.close(directory)
    except OSError as error:
        raise _failure("write", path, error) from error


def make_private_directory(path: Path) -> os.stat_result:
    """Create a directory with mode 700 unless *path* exists; return its status, whatever it is. ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path.lstat()


def make_directory(path: Path, *, mode: int = 0o750) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise _failure("create", path, error) from error


def _replace(directory: int, name: str, data: bytes, *, mode: int) -> None:
    temporary = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                existing = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(existing.st_mode):
                    mode = stat.S_IMODE(existing.st_mode)
                    now = os.fstat(handle)
                    if (now.st_uid, now.st_gid) != (existing.st_uid, existing.st_gid):
                        os.fchown(handle, existing.st_uid, existing.st_gid)
            os.fchmod(handle, mode)
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)


def _failure(verb: str, path: Path, error: OSError) -> FileError:
    return FileError(f"cannot {verb} {path}: {error.strerror or error}")
