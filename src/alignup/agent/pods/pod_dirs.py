"""Trees of directories that pods fill: names for them, and taking them away whatever is in them.

What a container puts in its volumes is not ours to trust. Links are removed and not followed, nothing that is mounted
is gone into, and it may be nested as deep as it likes: directories are brought to the top before they are emptied, so
there is never more than one open below it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from alignup.agent.pods import bind_mounts
from alignup.agent.pods.errors import PodStartError
from alignup.align.errors import EnforceError

_LONGEST = 255  #: bytes of a name
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def path_component(name: str) -> str:
    """*name*, where it can be one step of a path and no more; else ``PodStartError``."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name or len(os.fsencode(name)) > _LONGEST:
        shown = name if len(name) < 80 else f"{name[:76]} …"
        raise PodStartError("CreateContainerConfigError", f"{shown!r} cannot be the name of a file or directory")
    return name


def remove_tree(path: Path) -> None:
    """Take away a directory with all in it, or what is left of it; ``EnforceError`` when something stays."""
    try:
        bind_mounts.unmount_below(path)
        with _opened(path) as top:
            _empty(top)
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise EnforceError(f"{error.filename or path} cannot be removed: {error.strerror or error}") from error


@contextmanager
def _opened(path: str | Path, within: int | None = None) -> Iterator[int]:
    handle = os.open(path, _DIRECTORY, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)


def _empty(top: int) -> None:
    """Remove all that is in a directory; what is below goes to the top first."""
    device = os.fstat(top).st_dev
    numbers = count()
    while names := _names(top):
        for name in names:
            if _unlinked(name, top):
                continue
            with _opened(name, top) as below:
                if os.fstat(below).st_dev != device:
                    raise EnforceError(f"{name} is another file system, and is not gone into")
                for inner in _names(below):
                    if not _unlinked(inner, below):
                        os.rename(inner, _free(top, numbers), src_dir_fd=below, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _unlinked(name: str, within: int) -> bool:
    """Whether something was no directory, and is gone now."""
    try:
        os.unlink(name, dir_fd=within)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _free(top: int, numbers: Iterator[int]) -> str:
    """A name that nothing has."""
    for number in numbers:
        name = f".removed-{number}"
        try:
            os.stat(name, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise AssertionError  # there is always another number
