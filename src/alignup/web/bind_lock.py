"""A lock that lets one process at a time create a socket at a path.

It is a file of its own that only its owner can open: every user who can read a directory can lock the directory.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.align.errors import ListenError

_POLL_SECONDS = 0.02
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def bind_lock(path: Path, *, seconds: float = 5.0) -> Iterator[None]:
    """Hold the lock of *path*; raise ``ListenError`` that names its holder if it is not free after *seconds*."""
    name = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + seconds
    while (handle := _try_lock(name)) is None:
        if time.monotonic() >= deadline:
            what = f"another process creates a socket at {path}: {_holder(name)} holds {name}"
            raise ListenError(f"{what}\nstop that process, or choose another path")
        time.sleep(_POLL_SECONDS)
    try:
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        name.unlink(missing_ok=True)  # still locked; a process that has opened it looks again
        os.close(handle)


def _try_lock(name: Path) -> int | None:
    """Return the locked file; ``None`` if another process has locked or just removed it."""
    try:
        handle = os.open(name, _FLAGS, 0o600)
    except OSError as error:
        raise ListenError(f"cannot lock {name}: {error.strerror}\nremove it, or choose another path") from error
    locked = False
    try:
        opened = os.fstat(handle)
        if opened.st_uid != os.geteuid():
            what = f"cannot lock {name}: it belongs to another user (uid {opened.st_uid})"
            raise ListenError(f"{what}\nremove it, or choose a directory that other users cannot write to")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = name.lstat()
            locked = (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)
        except (BlockingIOError, FileNotFoundError):
            return None
        return handle if locked else None
    finally:
        if not locked:
            os.close(handle)


def _holder(name: Path) -> str:
    try:
        pid = name.read_text(encoding="ascii", errors="replace")[:20].strip()
    except OSError:
        pid = ""
    return f"process {pid}" if pid.isdecimal() else "an unknown process"
