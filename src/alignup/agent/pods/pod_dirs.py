"""Safe names for, and safe removal of, directories that pods write to.

The content of a volume is not trusted. Symlinks are removed and not followed, and other file systems are not entered.
Directories may be nested to any depth: subdirectories are moved to the top before they are emptied, so that only one
level is open at a time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from alignup.agent.pods import bind_mounts
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError

_MAX_NAME_BYTES = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def path_component(name: str) -> str:
    """Return *name* if it is valid as a single path component; raise ``PodStartError`` otherwise."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES:
        shown = name if len(name) < 80 else f"{name[:76]} …"
        raise PodStartError.config(f"{shown!r} is not a valid file name")
    return name


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, or what is left of it; ``EnforceError`` if something remains."""
    try:
        bind_mounts.unmount_below(path)
        with _open(path) as top:
            _empty(top)
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnforceError(f"cannot remove {error.filename or path}: {error.strerror or error}") from error


@contextmanager
def _open(path: str | Path, within: int | None = None) -> Iterator[int]:
    handle = os.open(path, _DIRECTORY, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)


def _empty(top: int) -> None:
    device = os.fstat(top).st_dev
    numbers = count()
    while names := _names(top):
        for name in names:
            if _unlink_file(name, top):
                continue
            with _open(name, top) as below:
                if os.fstat(below).st_dev != device:
                    raise EnforceError(f"{name} is on another file system and is not removed")
                for inner in _names(below):
                    if not _unlink_file(inner, below):
                        os.rename(inner, _unused_name(top, numbers), src_dir_fd=below, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _unlink_file(name: str, within: int) -> bool:
    """Remove anything but a directory; whether it is gone."""
    try:
        os.unlink(name, dir_fd=within)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _unused_name(top: int, numbers: Iterator[int]) -> str:
    for number in numbers:
        name = f".removed-{number}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise AssertionError  # the numbers never end
