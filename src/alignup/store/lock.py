"""The lock that keeps a second agent out of a state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.align.errors import StoreError, StoreProblem

NAME = "agent.lock"


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Lock *directory*; :class:`StoreError` names the process that already has the lock.

    The kernel releases the lock when the process ends. The file stays: removing it would let in both a process that
    waits for the old file and one that creates a new file.
    """
    path = directory / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        advice = "give the agent its own writable directory"
        message = f"cannot be locked: {error.strerror}"
        raise StoreError(message, where=str(path), advice=advice, kind=StoreProblem.UNWRITABLE) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            message = f"another agent (pid {pid}) uses {directory}"
            advice = "stop that agent first, or give this one another directory"
            raise StoreError(message, where=str(path), advice=advice, kind=StoreProblem.IN_USE) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)
