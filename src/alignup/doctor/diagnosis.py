"""Check a configuration together with the state files of a kubelet, and repair these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from alignup.align.machine import Machine
from alignup.doctor import state_dir
from alignup.doctor.configuration import check_configuration
from alignup.doctor.findings import DoctorReport
from alignup.doctor.state_check import FileRepair, check_state


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, and the repairs that are possible or done."""

    report: DoctorReport
    repairs: tuple[FileRepair, ...] = ()
    backups: Mapping[str, Path] = field(default_factory=dict)  #: of the files that were written
    after: DoctorReport | None = None  #: the report after the repair; ``None``: no repair was requested

    @property
    def final(self) -> DoctorReport:
        return self.after or self.report


def diagnose(text: bytes, machine: Machine, *, name: str, directory: Path | None, pods: Mapping[str, str]) -> Diagnosis:
    """Check the configuration *text* and the state files in *directory*, if any; change nothing.

    *pods* are the running ones: uid → namespace/name. ``FileError`` if the directory does not exist.
    """
    configuration = check_configuration(text, machine, name=name)
    if directory is None:
        return Diagnosis(DoctorReport(configuration.findings))
    state = check_state(state_dir.read(directory), configuration.manager_config, pods=pods)
    return Diagnosis(DoctorReport((*configuration.findings, *state.findings)), state.repairs)


def write_repairs(check: Callable[[], Diagnosis], found: Diagnosis, directory: Path, *, now: datetime) -> Diagnosis:
    """Write the repaired state files to *directory*, which no kubelet may be using, and *check* again."""
    if not found.repairs:
        return Diagnosis(found.report, after=found.report)
    backups = state_dir.write(directory, found.repairs, now=now)
    return Diagnosis(found.report, found.repairs, backups, check().report)
