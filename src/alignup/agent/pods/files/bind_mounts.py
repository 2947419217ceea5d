"""Mount, find and unmount file systems on this host, through the C library.

Containers see a mount only if it is made in the runtime's mount namespace, so the agent must run in that namespace.

Any process with access to a volume can create symlinks in it and change them at any time. So a ``subPath`` is resolved
once, following symlinks that stay inside; then the resolved path is walked component by component without following
any. The handle opened at its end, not its name, is mounted into the container.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError

MS_BIND = 1 << 12
_COMPONENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_UMOUNT_NOFOLLOW = 8
_MOUNTINFO = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mount(source: str, target: Path, *, filesystem: str = "", flags: int = 0, options: str = "") -> None:
    _call("mount", source, os.fspath(target), filesystem, ctypes.c_ulong(flags), options, target=target)


def unmount(target: Path) -> None:
    """``OSError`` if *target* is in use."""
    _call("umount2", os.fspath(target), _UMOUNT_NOFOLLOW, target=target)


def filesystem_at(path: Path) -> str:
    """The type of the file system mounted at *path*; empty: *path* is not a mount point."""
    top = _resolved(path)
    return next((type_ for mounted, type_ in reversed(mounts_below(path)) if mounted == top), "")


def mounts_below(path: Path) -> tuple[tuple[Path, str], ...]:
    """Mount points at or below *path* with their types, oldest first; one that is mounted over appears twice."""
    top = _resolved(path)
    found = []
    for line in _MOUNTINFO.read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        mounted = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), before.split(" ")[4]))
        if mounted.is_relative_to(top):
            found.append((mounted, after.split(" ")[0]))
    return tuple(found)


def unmount_below(path: Path) -> None:
    """Unmount everything at or below *path*; ``EnforceError`` if something is in use."""
    for mounted, _ in reversed(mounts_below(path)):
        try:
            unmount(mounted)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOENT}:  # no longer a mount point
                raise EnforceError(f"cannot unmount {mounted}: {error.strerror}") from error


@contextmanager
def open_subpath(volume: Path, sub_path: str) -> Iterator[int]:
    """Open *sub_path* in *volume*, creating missing directories; ``PodStartError`` if it leaves the volume."""
    try:
        base = volume.resolve(strict=True)
        handle = _walk(base, _resolve_inside(base, sub_path))
    except OSError as error:
        raise PodStartError.config(f"subPath {sub_path!r}: {error.strerror or error}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def bind_subpath(volume: Path, sub_path: str, *, target: Path) -> Path:
    """Bind-mount *sub_path* of *volume* to *target*, a path outside the volume."""
    with open_subpath(volume, sub_path) as handle:
        unmount_below(target)  # left by an earlier container
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            target.mkdir(mode=0o750, exist_ok=True)
        else:
            target.touch(mode=0o640)
        mount(f"/proc/self/fd/{handle}", target, flags=MS_BIND)
    return target


def _resolved(path: Path) -> Path:
    """The path as the kernel lists it; a symlink at its end is not followed, because its target is not ours."""
    return path.parent.resolve() / path.name


def _call(name: str, *arguments: object, target: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    encoded = [os.fsencode(one) if isinstance(one, str) else one for one in arguments]
    if getattr(library, name)(*encoded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(target))


def _resolve_inside(base: Path, sub_path: str) -> tuple[str, ...]:
    """The path components below *base*, with symlinks resolved."""
    if sub_path.startswith("/") or ".." in Path(sub_path).parts:
        raise PodStartError.config(f"subPath {sub_path!r} must be relative and must not contain '..'")
    found = Path(os.path.realpath(base / sub_path))  # a symlink loop is left in the path and rejected by the walk
    if not found.is_relative_to(base):
        raise PodStartError.config(f"subPath {sub_path!r} leads out of its volume")
    return found.relative_to(base).parts


def _walk(base: Path, components: tuple[str, ...]) -> int:
    handle = os.open(base, _COMPONENT)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    for component in components:
        try:
            below = _open_component(handle, component, mode=mode)
        finally:
            os.close(handle)
        handle = below
    return handle


def _open_component(handle: int, component: str, *, mode: int) -> int:
    try:
        below = os.open(component, _COMPONENT, dir_fd=handle)
    except FileNotFoundError:
        os.mkdir(component, mode, dir_fd=handle)
        below = os.open(component, _COMPONENT, dir_fd=handle)
        if stat.S_ISDIR(os.fstat(below).st_mode):
            Path(f"/proc/self/fd/{below}").chmod(mode)  # regardless of the umask
    if stat.S_ISLNK(os.fstat(below).st_mode):
        os.close(below)
        raise PodStartError.config(f"subPath: {component!r} is a dangling symlink")
    return below
