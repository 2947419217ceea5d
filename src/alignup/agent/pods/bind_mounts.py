"""Mounts of this host: made, found and taken away again.

Python has no words for these calls, so the C library is asked.

A mount that containers are to see has to be made where the runtime sees it: an agent with mounts of its own (as some
settings of systemd give it) would make them for nobody.
"""

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import EnforceError

MS_BIND = 1 << 12  #: MS_BIND
_NOFOLLOW = 8  #: UMOUNT_NOFOLLOW
_TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A place where something is mounted."""

    path: Path
    kind: str  #: of file system


def mount(source: str, target: Path, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount something; ``OSError`` when the kernel does not."""
    arguments = (source, os.fspath(target), kind, ctypes.c_ulong(flags), options)
    _call("mount", *arguments, target=target)


def unmount(target: Path) -> None:
    """Take a mount away; ``OSError`` when it is in use."""
    _call("umount2", os.fspath(target), _NOFOLLOW, target=target)


def filesystem_at(path: Path) -> str:
    """The kind of file system that is mounted at *path*; empty: none is."""
    top = _known(path)
    return next((point.kind for point in reversed(mounts_below(path)) if point.path == top), "")


def mounts_below(path: Path) -> tuple[MountPoint, ...]:
    """Where something is mounted at *path* or below, in the order it was; twice where it is so twice."""
    top = _known(path)
    return tuple(point for point in _points() if point.path.is_relative_to(top))


def unmount_below(path: Path) -> None:
    """Take away all mounts at *path* and below; ``EnforceError`` when one is in use."""
    for point in reversed(mounts_below(path)):
        try:
            unmount(point.path)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOENT}:  # it is none any more
                raise EnforceError(f"{point.path} cannot be unmounted: {error.strerror}") from error


def _known(path: Path) -> Path:
    """The name that the kernel has for a path; were it a link, where it leads to would not be ours."""
    return path.parent.resolve() / path.name


def _points() -> Iterator[MountPoint]:
    for line in _TABLE.read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        yield MountPoint(
            Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])), after.split(" ")[0]
        )


def _call(name: str, *arguments: object, target: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    encoded = [os.fsencode(one) if isinstance(one, str) else one for one in arguments]
    if getattr(library, name)(*encoded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(target))
