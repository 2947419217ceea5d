"""What the observer asks of Linux beyond Python's standard library: to watch directories, and to drop capabilities."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _Q_OVERFLOW, _IGNORED, _ONLYDIR = 0x400, 0x800, 0x4000, 0x8000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")  #: watch, mask, cookie, length of the name
_BUFFER = 64 << 10


class DirectoryWatch:
    """A watch on *directories* by inotify; missing ones are watched from the next :meth:`refresh`.

    The kubelet replaces its state files by renaming, so the directories are watched, not the files. Only the names of
    changed files are reported; which of several changes happened does not matter to a reader of the whole file.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = tuple(directories)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watched: dict[int, Path] = {}
        self._descriptor = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the file descriptor, which is readable when something has changed."""
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def refresh(self) -> None:
        """Watch directories that have appeared or were replaced."""
        for directory in self._directories:
            watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), _MASK)
            if watch >= 0:
                self._watched[watch] = directory
            elif ctypes.get_errno() not in {2, 20}:  # no such file, not a directory
                self._check(watch, f"inotify_add_watch of {directory}")

    def changes(self) -> set[Path] | None:
        """Return the paths that have changed since the last call; ``None`` if some were missed."""
        changed_paths: set[Path] = set()
        has_missed = False
        for watch, mask, name in self._events():
            directory = self._watched.get(watch)
            if mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF):
                self._watched.pop(watch, None)
            if mask & _Q_OVERFLOW or directory is None:
                has_missed = has_missed or bool(mask & _Q_OVERFLOW)
            else:
                changed_paths.add(directory / name if name else directory)
        return None if has_missed else changed_paths

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while True:
            try:
                data = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                yield watch, mask, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length

    def _check(self, result: int, call: str) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"{call}: {os.strerror(error)}")
        return result


_CAPBSET_DROP, _NO_NEW_PRIVILEGES, _CAP_AMBIENT, _CLEAR_ALL = 24, 38, 47, 4
_VERSION_3 = 0x20080522
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop_capabilities() -> None:
    """Drop all for good, also for programs that this process starts; ``OSError`` if the kernel refuses.

    The observer reads files of its own user, root, and needs none: not even ``CAP_DAC_READ_SEARCH``. Capabilities
    belong to threads, so this must happen before the first other thread starts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(int(_LAST_CAPABILITY.read_text("ascii")) + 1):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # fails without CAP_SETPCAP, when there is nothing to drop
    libc.prctl(_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.capset(
        ctypes.byref(_Header(_VERSION_3, 0)), ctypes.byref((_Sets * 2)())
    ):
        error = ctypes.get_errno()
        raise OSError(error, f"cannot drop capabilities: {os.strerror(error)}")
