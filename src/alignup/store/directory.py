"""The file operations on which durability depends, behind one interface.

``store.atomic_files``, ``store.checkpoint`` and ``store.journal`` change files only through a :class:`Directory`, so
tests can replace it by a simulated disk that fails or loses power at any operation.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from alignup.align.errors import FileError

_POLL_SECONDS = 0.01


class Directory:
    """An open directory; names are those of its entries, and symbolic links are not followed.

    Methods raise ``OSError``. A change survives a power failure only after ``sync_file`` (contents) and ``sync``
    (entries) have returned.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_CLOEXEC | os.O_DIRECTORY
        try:
            self._handle = os.open(path, os.O_RDONLY | flags)
            self._sync: Callable[[int], None] = os.fsync
        except PermissionError:  # without the right to list it, entries can still be opened by name
            self._handle = os.open(path, os.O_PATH | flags)
            self._sync = lambda _: None  # the kernel does not permit it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory, which also releases its lock."""
        os.close(self._handle)

    def lock(self, *, seconds: float = 5.0) -> None:
        """Wait until no other writer has the directory locked, and lock it; ``OSError`` if that takes too long.

        Every user who can read the directory can lock it.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    what = f"another process has locked the directory for {seconds:g} seconds"
                    raise OSError(errno.EAGAIN, what) from error
                time.sleep(_POLL_SECONDS)
            else:
                return

    def status(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return the contents of a regular file; ``None`` if it does not exist, ``FileError`` if it is too large."""
        return read_file(name, limit=limit, where=self.path / name, directory=self._handle)

    def create(self, name: str) -> int:
        """Create a file that only its owner can read, and return its descriptor; ``FileExistsError``."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self._handle)

    def open_to_append(self, name: str) -> int:
        """Open an existing file, and return its descriptor."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=self._handle)

    def set_owner_and_mode(self, file: int, *, owner: tuple[int, int] | None, mode: int) -> None:
        """Set the mode, and the user and group unless they are right or ``None``."""
        now = os.fstat(file)
        if owner is not None and owner != (now.st_uid, now.st_gid):
            os.fchown(file, *owner)
        os.fchmod(file, mode)

    def write(self, file: int, data: bytes) -> None:
        """Append all of *data* to an open file."""
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]

    def sync_file(self, file: int) -> None:
        os.fsync(file)

    def sync_data(self, file: int) -> None:
        """Make the contents and the size durable, but not the times."""
        os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close_file(self, file: int) -> None:
        os.close(file)

    def link(self, old: str, new: str) -> None:
        """Give the file *old* a second name; ``FileExistsError``."""
        os.link(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, and replace an existing one atomically."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def make_directory(self, name: str, *, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=self._handle)

    def sync(self) -> None:
        """Make all changes of entries durable; does nothing in a directory that this user may not read."""
        self._sync(self._handle)


OpenDirectory = Callable[[Path], Directory]


def read_file(name: Path | str, *, limit: int, where: Path, directory: int | None = None) -> bytes | None:
    """Return the contents of a regular file of at most *limit* bytes; ``None`` if it does not exist.

    ``FileError``, with the path *where*, if it is no regular file or too large. ``OSError``.
    """
    try:
        # O_NONBLOCK: opening a pipe in its place would block forever.
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"cannot read {where}: it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1) if status.st_size <= limit else b""
    finally:
        os.close(handle)
    if max(status.st_size, len(data)) > limit:
        raise FileError(f"cannot read {where}: it has more than {limit} bytes")
    return data
