"""Check a configuration together with the state files of a kubelet, and write repaired ones after a backup of each.

A backup never overwrites another, and reaches the disk before any file changes.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path

from alignup import atomic_files
from alignup.align.errors import FileError
from alignup.align.machine import Machine
from alignup.doctor.configuration import check_configuration
from alignup.doctor.findings import DoctorReport
from alignup.doctor.state_check import FileRepair, StateFiles, check_state
from alignup.kubernetes.configuration import ConfigurationText
from alignup.kubernetes.kubelet_files.state_dir import state_files


@dataclass(frozen=True, slots=True)
class Diagnosis:
    report: DoctorReport
    repairs: tuple[FileRepair, ...] = ()
    backups: Mapping[str, Path] = field(default_factory=dict)  #: of the files that were written
    after: DoctorReport | None = None  #: the report after the repair; ``None``: no repair was requested

    @property
    def final(self) -> DoctorReport:
        return self.after or self.report


def diagnose(
    source: ConfigurationText, machine: Machine, *, directory: Path | None, pods: Mapping[str, str]
) -> Diagnosis:
    """Check the configuration of *source* and the state files in *directory*, if any; change nothing.

    *pods* are the running ones: uid → namespace/name. ``FileError`` if the directory does not exist.
    """
    configuration = check_configuration(source.text, machine, name=source.name, origin=source.origin)
    if directory is None:
        return Diagnosis(DoctorReport(configuration.findings))
    state = check_state(read_state_files(directory), configuration.manager_config, pods=pods)
    return Diagnosis(DoctorReport((*configuration.findings, *state.findings)), state.repairs)


def write_repairs(check: Callable[[], Diagnosis], found: Diagnosis, directory: Path, *, now: datetime) -> Diagnosis:
    """Write the repaired state files to *directory*, which no kubelet may be using, and *check* again."""
    if not found.repairs:
        return Diagnosis(found.report, after=found.report)
    backups = write_state_files(directory, found.repairs, now=now)
    return Diagnosis(found.report, found.repairs, backups, check().report)


def read_state_files(directory: Path) -> StateFiles:
    """The state files in *directory*; ``FileError`` if it does not exist."""
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory")
    texts, unread = {}, {}
    paths = state_files(directory)
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


def write_state_files(directory: Path, repairs: Iterable[FileRepair], *, now: datetime) -> dict[str, Path]:
    """Write every repaired file; file → its backup.

    Raises ``FileError`` if a file changed since it was checked, because something else writes there.
    """
    repairs = tuple(repairs)
    paths = state_files(directory)
    for repair in repairs:
        if atomic_files.read(paths[repair.name]) != repair.before:
            raise FileError(f"{paths[repair.name]} changed during the check; nothing was written")
    backups = {repair.name: _back_up(paths[repair.name], repair.before, now=now) for repair in repairs}
    for repair in repairs:
        atomic_files.write(paths[repair.name], repair.after)
    return backups


def _back_up(path: Path, data: bytes, *, now: datetime) -> Path:
    """A copy beside the file, synced to disk."""
    stamp = f"{path.name}.backup-{now:%Y%m%d-%H%M%S}"
    candidates = (path.with_name(f"{stamp}-{number}" if number else stamp) for number in count())
    for backup in candidates:
        try:
            # Creating it reserves the name: no other process takes it.
            os.close(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        except OSError as error:
            raise FileError(f"cannot write {path.with_name(stamp)}: {error.strerror}; nothing was changed") from error
        break
    try:
        atomic_files.write(backup, data)
    except FileError as error:
        backup.unlink(missing_ok=True)
        raise FileError(f"{error}; nothing was changed") from error
    return backup
