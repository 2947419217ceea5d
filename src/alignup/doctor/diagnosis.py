"""A diagnosis: the checks of a configuration and of state files together, and repaired files written after a backup.

A backup never overwrites another, and reaches the disk before any file changes. Nothing is written while a kubelet runs
in the directory: it would not notice repaired files, and overwrite them.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path

from alignup import atomic_files
from alignup.align.errors import FileError
from alignup.align.machine import Machine
from alignup.doctor.configuration import check_configuration
from alignup.doctor.findings import DoctorReport
from alignup.doctor.state_check import FileRepair, StateFiles, check_state
from alignup.kubernetes.configuration import ConfigurationText
from alignup.kubernetes.kubelet_files.state_files import PLUGINS_DIR, state_file_paths


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
    configuration = check_configuration(
        source.text, machine, name=source.name, release=source.release, origin=source.origin
    )
    findings = tuple(replace(finding, paste=source.write_fields(finding.paste)) for finding in configuration.findings)
    if directory is None:
        return Diagnosis(DoctorReport(findings))
    state = check_state(read_state_files(directory), configuration.manager_config, pods=pods)
    return Diagnosis(DoctorReport((*findings, *state.findings)), state.repairs)


def write_repairs(check: Callable[[], Diagnosis], diagnosis: Diagnosis, directory: Path, *, now: datetime) -> Diagnosis:
    """Write the repaired state files to *directory*, which no kubelet may be using, and *check* again."""
    if not diagnosis.repairs:
        return Diagnosis(diagnosis.report, after=diagnosis.report)
    backups = write_state_files(directory, diagnosis.repairs, now=now)
    return Diagnosis(diagnosis.report, diagnosis.repairs, backups, check().report)


def read_state_files(directory: Path) -> StateFiles:
    """Read the state files in *directory*; ``FileError`` if it does not exist."""
    if not directory.is_dir():
        raise FileError(f"{directory}: no such directory")
    texts, unread = {}, {}
    paths = state_file_paths(directory)
    for name, path in paths.items():
        try:
            text = atomic_files.read(path)
        except FileError as error:
            unread[name] = str(error)
        else:
            if text is not None:
                texts[name] = text
    leftovers = sorted(leftover for path in paths.values() for leftover in path.parent.glob(f".{path.name}*"))
    return StateFiles(
        texts=texts,
        unread=unread,
        leftovers=tuple(str(path.relative_to(directory)) for path in leftovers),
        directory=str(directory),
    )


def write_state_files(directory: Path, repairs: Iterable[FileRepair], *, now: datetime) -> dict[str, Path]:
    """Write every repaired file; return file → its backup.

    Raises ``FileError`` if a file changed since it was checked, because something else writes there.
    """
    repairs = tuple(repairs)
    paths = state_file_paths(directory)
    for repair in repairs:
        if atomic_files.read(paths[repair.name]) != repair.before:
            raise FileError(f"{paths[repair.name]} changed during the check; nothing was written")
    backups = {repair.name: _back_up(paths[repair.name], repair.before, now=now) for repair in repairs}
    for repair in repairs:
        atomic_files.write(paths[repair.name], repair.after)
    return backups


def _back_up(path: Path, data: bytes, *, now: datetime) -> Path:
    """Write a copy beside the file, synced to disk."""
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


ROOT = Path("/var/lib/kubelet")  #: the default of ``--root-dir``
_SOCKETS = (f"{PLUGINS_DIR}/kubelet.sock", "pod-resources/kubelet.sock")
_TIMEOUT = 2.0  #: seconds


def find_live_kubelets(directory: Path, *, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the sockets and processes that use *directory*, one sentence each."""
    statuses = {directory / name: _socket_status(directory / name) for name in _SOCKETS}
    return (*(f"{path} {status}" for path, status in statuses.items() if status), *_processes(directory, proc))


def _socket_status(path: Path) -> str:
    """Return what listens on the socket; empty if no process listens on the socket."""
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_TIMEOUT)
            # Through the open directory: the path of a socket may not exceed 107 bytes.
            client.connect(f"/proc/self/fd/{parent}/{path.name}")
    except (FileNotFoundError, ConnectionRefusedError):
        return ""
    except (TimeoutError, BlockingIOError):
        return "has a listener that does not answer"
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    finally:
        os.close(parent)
    return "accepts connections"


def _processes(directory: Path, proc: Path) -> Iterator[str]:
    for process in sorted(proc.glob("[0-9]*")):
        try:
            arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
        except OSError:  # the process has ended, or is not readable
            continue
        if Path(arguments[0]).name != "kubelet":
            continue
        root = ROOT
        for argument, next_argument in pairwise([*arguments, ""]):  # the last one counts
            name, equals, value = argument.lstrip("-").partition("=")
            if argument.startswith("-") and name == "root-dir":
                root = Path(value if equals else next_argument)
        inside = process / "root" / root.relative_to("/") if root.is_absolute() else process / "cwd" / root
        try:
            same = inside.samefile(directory)
        except OSError:  # the process is not accessible
            same = root.resolve() == directory.resolve()
        if same:
            yield f"process {process.name} is a kubelet with --root-dir {root}"
