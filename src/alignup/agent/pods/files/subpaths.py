"""Resolve a ``subPath`` without leaving its volume.

Any process with access to a volume can create symlinks in it and change them at any time. So a subPath is resolved
once, following symlinks that stay inside; then the resolved path is walked component by component without following
any. The handle opened at its end, not its name, is mounted into the container.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.agent.pods.files import bind_mounts
from alignup.agent.pods.pod_state import PodStartError

_COMPONENT = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


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
        bind_mounts.unmount_below(target)  # left by an earlier container
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            target.mkdir(mode=0o750, exist_ok=True)
        else:
            target.touch(mode=0o640)
        bind_mounts.mount(f"/proc/self/fd/{handle}", target, flags=bind_mounts.MS_BIND)
    return target


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
