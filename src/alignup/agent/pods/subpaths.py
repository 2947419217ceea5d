"""Parts of a volume, found without leaving it.

Whoever writes to a volume can put links in it, and change them at any time. So a part is looked for once, following
links that stay inside; then the way there is gone again step by step, following none. What is found at its end is held
open, and that, not its name, is what a container is given.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alignup.agent.pods import bind_mounts
from alignup.agent.pods.errors import PodStartError

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_subpath(volume: Path, sub_path: str) -> Iterator[int]:
    """A handle of the part of *volume* that *sub_path* names; directories that are missing are made.

    ``PodStartError`` when it leads out of the volume, or something is in the way.
    """
    try:
        base = volume.resolve(strict=True)
        handle = _walked(base, _inside(base, sub_path))
    except OSError as error:
        raise PodStartError("CreateContainerConfigError", f"subPath {sub_path!r}: {error.strerror or error}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def bind_subpath(volume: Path, sub_path: str, *, target: Path) -> Path:
    """A place outside the volume where just that part of it is, until it is unmounted: *target*."""
    with open_subpath(volume, sub_path) as handle:
        bind_mounts.unmount_below(target)  # of a container before
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            target.mkdir(mode=0o750, exist_ok=True)
        else:
            target.touch(mode=0o640)
        bind_mounts.mount(f"/proc/self/fd/{handle}", target, flags=bind_mounts.MS_BIND)
    return target


def _inside(base: Path, sub_path: str) -> tuple[str, ...]:
    """The steps from *base*, links followed."""
    if sub_path.startswith("/") or ".." in Path(sub_path).parts:
        raise PodStartError(
            "CreateContainerConfigError", f"subPath {sub_path!r} must be relative, and must not have '..' in it"
        )
    found = Path(os.path.realpath(base / sub_path))  # links in a circle are left, and met again below
    if not found.is_relative_to(base):
        raise PodStartError("CreateContainerConfigError", f"subPath {sub_path!r} leads out of its volume")
    return found.relative_to(base).parts


def _walked(base: Path, steps: tuple[str, ...]) -> int:
    """A handle of what is at the end of *steps*, none of which is a link now."""
    handle = os.open(base, _STEP)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    for step in steps:
        try:
            below = _stepped(handle, step, mode=mode)
        finally:
            os.close(handle)
        handle = below
    return handle


def _stepped(handle: int, step: str, *, mode: int) -> int:
    try:
        below = os.open(step, _STEP, dir_fd=handle)
    except FileNotFoundError:
        os.mkdir(step, mode, dir_fd=handle)
        below = os.open(step, _STEP, dir_fd=handle)
        if stat.S_ISDIR(os.fstat(below).st_mode):
            Path(f"/proc/self/fd/{below}").chmod(mode)  # whatever is masked for us
    if stat.S_ISLNK(os.fstat(below).st_mode):
        os.close(below)
        raise PodStartError("CreateContainerConfigError", f"subPath: {step!r} is a link that leads nowhere")
    return below
