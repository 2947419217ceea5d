"""Mount, find and unmount file systems on this host, through the C library.

Containers see a mount only if it is made in the runtime's mount namespace, so the agent must run in that namespace.
"""

import ctypes
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from alignup.align.errors import EnforceError

MS_BIND = 1 << 12
_UMOUNT_NOFOLLOW = 8
_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountPoint:
    path: Path
    filesystem: str  #: its type, such as ``tmpfs``


def mount(source: str, target: Path, *, filesystem: str = "", flags: int = 0, options: str = "") -> None:
    _call("mount", source, os.fspath(target), filesystem, ctypes.c_ulong(flags), options, target=target)


def unmount(target: Path) -> None:
    """``OSError`` if *target* is in use."""
    _call("umount2", os.fspath(target), _UMOUNT_NOFOLLOW, target=target)


def filesystem_at(path: Path) -> str:
    """The type of the file system mounted at *path*; empty: *path* is not a mount point."""
    top = _resolved(path)
    return next((point.filesystem for point in reversed(mounts_below(path)) if point.path == top), "")


def mounts_below(path: Path) -> tuple[MountPoint, ...]:
    """Mount points at or below *path*, oldest first; one that is mounted over appears twice."""
    top = _resolved(path)
    found = []
    for line in _MOUNTINFO.read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), before.split(" ")[4]))
        if mounted.is_relative_to(top):
            found.append(MountPoint(mounted, after.split(" ")[0]))
    return tuple(found)


def unmount_below(path: Path) -> None:
    """Unmount everything at or below *path*; ``EnforceError`` if something is in use."""
    for point in reversed(mounts_below(path)):
        try:
            unmount(point.path)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOENT}:  # no longer a mount point
                raise EnforceError(f"cannot unmount {point.path}: {error.strerror}") from error


def _resolved(path: Path) -> Path:
    """The path as the kernel lists it; a symlink at its end is not followed, because its target is not ours."""
    return path.parent.resolve() / path.name


def _call(name: str, *arguments: object, target: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    encoded = [os.fsencode(one) if isinstance(one, str) else one for one in arguments]
    if getattr(library, name)(*encoded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(target))
