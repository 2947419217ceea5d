"""The directory of a kubelet: its state files read, and repaired ones written after a backup of each.

A backup is never written over another, and is on the disk before anything is changed.
"""

import os
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from pathlib import Path

from alignup.align.errors import FileError
from alignup.doctor.state_check import DEVICE_STATE, FileRepair, StateFiles
from alignup.state import atomic_files
from alignup.state.kubelet import cpu_file, device_file, memory_file


def read(directory: Path) -> StateFiles:
    """What is in *directory*; ``FileError`` when there is no such directory."""
    if not directory.is_dir():
        raise FileError(f"{directory}: there is no such directory; give the one a kubelet keeps its state in")
    texts, unread = {}, {}
    for name, path in _paths(directory).items():
        try:
            text = atomic_files.read(path)
        except FileError as error:
            unread[name] = str(error)
        else:
            if text is not None:
                texts[name] = text
    leftovers = tuple(str(one.relative_to(directory)) for one in _leftovers(directory))
    return StateFiles(texts=texts, unread=unread, leftovers=leftovers, directory=str(directory))


def write(directory: Path, repairs: Iterable[FileRepair], *, now: datetime) -> dict[str, Path]:
    """Put every repaired file in its place; file → its backup.

    ``FileError`` where a file changed since it was looked into: somebody is at work there.
    """
    repairs = tuple(repairs)
    paths = _paths(directory)
    for repair in repairs:
        if atomic_files.read(paths[repair.name]) != repair.before:
            raise FileError(f"{paths[repair.name]} has changed while it was looked into; nothing was written")
    backups = {repair.name: _back_up(paths[repair.name], repair.before, now=now) for repair in repairs}
    for repair in repairs:
        atomic_files.write(paths[repair.name], repair.after)
    return backups


def _paths(directory: Path) -> dict[str, Path]:
    """The state files by what they are called in a kubelet's directory; a copy may have all of them side by side."""
    inside, beside = directory / DEVICE_STATE, directory / device_file.NAME
    return {
        cpu_file.NAME: directory / cpu_file.NAME,
        memory_file.NAME: directory / memory_file.NAME,
        DEVICE_STATE: beside if beside.exists() and not inside.exists() else inside,
    }


def _leftovers(directory: Path) -> list[Path]:
    found = [one for path in _paths(directory).values() for one in path.parent.glob(f".{path.name}*")]
    return sorted(found)


def _back_up(path: Path, data: bytes, *, now: datetime) -> Path:
    """A copy of the file beside it, on the disk when this returns."""
    stamp = f"{path.name}.backup-{now:%Y%m%d-%H%M%S}"
    for number in count():
        backup = path.with_name(f"{stamp}-{number}" if number else stamp)
        try:
            handle = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        except OSError as error:
            raise _failed(backup, error) from error
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _remember(path.parent)
        except OSError as error:
            backup.unlink(missing_ok=True)
            raise _failed(backup, error) from error
        return backup
    raise AssertionError("count() does not end")


def _failed(backup: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {backup}: {error.strerror}; nothing was changed")


def _remember(directory: Path) -> None:
    """Have the disk remember the names in *directory*."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
