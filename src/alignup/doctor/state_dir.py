"""Read the state files of a kubelet's directory, and write repaired ones after a backup of each.

A backup never overwrites another, and reaches the disk before any file changes.
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
    """The state files in *directory*; ``FileError`` if it does not exist."""
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory")
    texts, unread = {}, {}
    for name, path in _paths(directory).items():
        try:
            text = atomic_files.read(path)
        except FileError as error:
            unread[name] = str(error)
        else:
            if text is not None:
                texts[name] = text
    leftovers = tuple(str(path.relative_to(directory)) for path in _leftovers(directory))
    return StateFiles(texts=texts, unread=unread, leftovers=leftovers, directory=str(directory))


def write(directory: Path, repairs: Iterable[FileRepair], *, now: datetime) -> dict[str, Path]:
    """Write every repaired file; file → its backup.

    Raises ``FileError`` if a file changed since it was checked, because something else writes there.
    """
    repairs = tuple(repairs)
    paths = _paths(directory)
    for repair in repairs:
        if atomic_files.read(paths[repair.name]) != repair.before:
            raise FileError(f"{paths[repair.name]} changed during the check; nothing was written")
    backups = {repair.name: _back_up(paths[repair.name], repair.before, now=now) for repair in repairs}
    for repair in repairs:
        atomic_files.write(paths[repair.name], repair.after)
    return backups


def _paths(directory: Path) -> dict[str, Path]:
    """The state files by their path in a kubelet's directory; a copy may have all of them in one directory."""
    nested, flat = directory / DEVICE_STATE, directory / device_file.NAME
    return {
        cpu_file.NAME: directory / cpu_file.NAME,
        memory_file.NAME: directory / memory_file.NAME,
        DEVICE_STATE: flat if flat.exists() and not nested.exists() else nested,
    }


def _leftovers(directory: Path) -> list[Path]:
    return sorted(found for path in _paths(directory).values() for found in path.parent.glob(f".{path.name}*"))


def _back_up(path: Path, data: bytes, *, now: datetime) -> Path:
    """A copy beside the file, synced to disk."""
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
            _sync(path.parent)
        except OSError as error:
            backup.unlink(missing_ok=True)
            raise _failed(backup, error) from error
        return backup
    raise AssertionError("count() does not end")


def _failed(backup: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {backup}: {error.strerror}; nothing was changed")


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
