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
    paths = _paths(directory)
    for name, path in paths.items():
        try:
            text = atomic_files.read(path)
        except FileError as error:
            unread[name] = str(error)
        else:
            if text is not None:
                texts[name] = text
    leftovers = sorted(found for path in paths.values() for found in path.parent.glob(f".{path.name}*"))
    return StateFiles(
        texts=texts,
        unread=unread,
        leftovers=tuple(str(path.relative_to(directory)) for path in leftovers),
        directory=str(directory),
    )


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


def _back_up(path: Path, data: bytes, *, now: datetime) -> Path:
    """A copy beside the file, synced to disk."""
    stamp = f"{path.name}.backup-{now:%Y%m%d-%H%M%S}"
    candidates = (path.with_name(f"{stamp}-{number}" if number else stamp) for number in count())
    try:
        backup = next(filter(_reserve, candidates))
    except OSError as error:
        raise FileError(f"cannot write {path.with_name(stamp)}: {error.strerror}; nothing was changed") from error
    try:
        atomic_files.write(backup, data)
    except FileError as error:
        backup.unlink(missing_ok=True)
        raise FileError(f"{error}; nothing was changed") from error
    return backup


def _reserve(path: Path) -> bool:
    """Create *path* if it does not exist, so that no other process takes the name."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True
