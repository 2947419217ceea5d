"""Directories of pods: safe names, atomic updates, and safe removal.

The content of a volume is not trusted. Symlinks are removed and not followed, and other file systems are not entered.
Directories may be nested to any depth: subdirectories are moved to the top before they are emptied, so that only one
level is open at a time.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

from alignup.agent.pods.files import bind_mounts
from alignup.agent.pods.pod_state import PodStartError
from alignup.align.errors import EnforceError

_MAX_NAME_BYTES = 255
_DATA, _NEW_DATA = "..data", "..data_tmp"
_SETGID = 0o2000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ProjectedFile:
    content: str
    mode: int


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


def write_files(directory: Path, files: Mapping[str, ProjectedFile], *, group: int | None = None) -> None:
    """Write *files*, by relative path, into *directory*, readable by *group*; unchanged files are left alone.

    As with the kubelet, containers see symlinks into ``..data``, itself a symlink to the newest directory of files. One
    rename replaces it, so that programs that watch ``..data`` work.
    """
    directory.mkdir(mode=0o755, exist_ok=True)
    data = directory / _DATA
    current = {str(path.relative_to(data)): path.read_text("utf-8") for path in data.rglob("*") if path.is_file()}
    if not data.is_symlink() or current != {str(Path(path)): file.content for path, file in files.items()}:
        _replace(directory, files, group=group)
    for top in {Path(path).parts[0] for path in files}:
        link = directory / path_component(top)
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")


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


def _replace(directory: Path, files: Mapping[str, ProjectedFile], *, group: int | None) -> None:
    """Write *files* into a new directory, point ``..data`` to it, and remove the previous one."""
    new = Path(mkdtemp(prefix="..", dir=directory))
    new.chmod(0o755)
    for path, file in files.items():
        target = new.joinpath(*map(path_component, Path(path).parts))
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        target.write_text(file.content, "utf-8")
        target.chmod(file.mode)
    if group is not None:
        for written in (directory, new, *new.rglob("*")):
            os.chown(written, -1, group)
            written.chmod(written.stat().st_mode & 0o7777 | (0o550 | _SETGID if written.is_dir() else 0o440))
    data, new_data = directory / _DATA, directory / _NEW_DATA
    previous = data.readlink().name if data.is_symlink() else ""
    new_data.unlink(missing_ok=True)
    new_data.symlink_to(new.name)
    new_data.rename(data)
    if previous:
        remove_tree(directory / previous)
