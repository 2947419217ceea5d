"""Files that survive a crash: either the old contents or the new ones, never a part.

New contents are written to a temporary file in the same directory, synced to disk, and renamed. Writers lock the
directory, so each can remove what a killed one left behind.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from alignup.align.errors import FileError
from alignup.store.directory import Directory, OpenDirectory, read_file

MAX_BYTES = 64 << 20  #: of a file; no file is written that could not be read again


def read(path: Path, *, limit: int = MAX_BYTES) -> bytes | None:
    """Return the contents of a file; ``None`` if it does not exist, ``FileError`` if it is unreadable or too large."""
    try:
        return read_file(path, limit=limit, where=path)
    except OSError as error:
        raise _failure("read", path, error) from error


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the contents of the file at *path* durably; ``FileError`` if that fails, and nothing has changed.

    An existing file keeps its mode and owner, a new one gets *mode*. A symbolic link is replaced, not followed. If only
    the final sync of the directory fails, the new file is in place but may be lost in a crash: that is an error too.
    """
    if len(data) > MAX_BYTES:
        raise FileError(f"cannot write {path}: {len(data)} bytes are more than the {MAX_BYTES} that can be read again")
    try:
        with Directory(path.parent) as directory:
            directory.lock()
            replace(directory, path.name, data, mode=mode)
            directory.sync()
    except OSError as error:
        raise _failure("write", path, error) from error


def replace(directory: Directory, name: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file in a locked directory; the caller must sync the directory. ``OSError``: nothing has changed."""
    temporary, owner = f".{name}.new", None
    directory.remove(temporary)
    existing = directory.status(name)
    if existing is not None and stat.S_ISREG(existing.st_mode):
        owner, mode = (existing.st_uid, existing.st_gid), stat.S_IMODE(existing.st_mode)
    file = directory.create(temporary)
    try:
        try:
            directory.set_owner_and_mode(file, owner=owner, mode=mode)
            directory.write(file, data)
            directory.sync_file(file)
        finally:
            directory.close_file(file)
        directory.rename(temporary, name)
    except BaseException:
        with suppress(OSError):  # the first error counts, and the next writer removes the file
            directory.remove(temporary)
        raise


def make_private_directory(path: Path, *, open_directory: OpenDirectory = Directory) -> os.stat_result:
    """Create a directory with mode 700 durably unless *path* exists; return its status, whatever it is. ``OSError``."""
    _make_durably(path, 0o700, open_directory)
    with open_directory(path.parent) as parent:
        found = parent.status(path.name or ".")
    if found is None:
        raise FileNotFoundError(2, "it was removed", str(path))
    return found


def make_directory(path: Path, *, mode: int = 0o750) -> None:
    """Create a directory and its parents durably, unless they exist."""
    try:
        if not path.is_dir():
            _make_durably(path, mode, Directory)
    except OSError as error:
        raise _failure("create", path, error) from error


def _make_durably(path: Path, mode: int, open_directory: OpenDirectory) -> None:
    """Create *path* unless something exists there; the parents get the default mode."""
    try:
        parent = open_directory(path.parent)
    except FileNotFoundError:
        _make_durably(path.parent, 0o777, open_directory)
        parent = open_directory(path.parent)
    with parent:
        if parent.status(path.name or ".") is None:
            with suppress(FileExistsError):  # another process was faster
                parent.make_directory(path.name, mode=mode)
            parent.sync()


def _failure(verb: str, path: Path, error: OSError) -> FileError:
    return FileError(f"cannot {verb} {path}: {error.strerror or error}")
