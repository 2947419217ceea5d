"""One agent a directory: who has the lock may write there, and a second one is told who that is."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.align.errors import CheckpointError

NAME = "agent.lock"


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Have *directory* to oneself; a :class:`CheckpointError` names whoever has it.

    The system lets go of the lock when its holder ends, however that comes. The file stays: to remove it would let in
    one who waits with the old file and one who makes a new one.
    """
    path = directory / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CheckpointError(
            f"cannot be locked: {error.strerror}",
            where=str(path),
            advice="give the agent a directory of its own that it may write to",
        ) from error
    try:
        _take(handle, directory)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _take(handle: int, directory: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise CheckpointError(
            f"another agent (pid {pid}) uses {directory}",
            where=str(directory / NAME),
            advice="stop that one first, or give this one another directory",
        ) from error
