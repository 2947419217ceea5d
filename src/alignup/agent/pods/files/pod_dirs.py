"""Safe names for, and safe removal of, directories that pods write to.

The content of a volume is not trusted. Symlinks are removed and not followed, and other file systems are not entered.
Directories may be nested to any depth: subdirectories are moved to the top before they are emptied, so that only one
level is open at a time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from alignup.agent.pods.files import bind_mounts
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
    while directories := _unlink_files(top):
        for name in directories:
            with _open(name, top) as below:
                if os.fstat(below).st_dev != device:
                    raise EnforceError(f"{name} is on another file system and is not removed")
                for inner in _unlink_files(below):
                    os.rename(inner, f".removed-{uuid4()}", src_dir_fd=below, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


def _unlink_files(directory: int) -> list[str]:
    """Remove everything but directories; return the names of those."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    directories = []
    for name in names:
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            directories.append(name)
    return directories
