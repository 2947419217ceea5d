"""What ``alignup doctor`` finds and does, for people and for machines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alignup.align.machine import Machine
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError
from alignup.cli.text_layout import paragraph, section
from alignup.doctor import (
    Area,
    DoctorReport,
    FileRepair,
    Finding,
    Severity,
    check_configuration,
    check_state,
    live_kubelet,
    state_dir,
)
from alignup.picture.cells import Cell, Line
from alignup.picture.text_format import clean, pluralize

_MARKS = {
    Severity.ERROR: ("ERROR", "lost"),
    Severity.WARNING: ("WARNING", "warn"),
    Severity.NOTE: ("note", "label"),
    Severity.OK: ("ok", "free"),
}
_COLUMN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorInput:
    """What a doctor is to look at."""

    text: bytes  #: of the configuration
    name: str
    machine: Machine
    machine_name: str
    directory: Path | None = None
    pods: Mapping[str, str] = field(default_factory=dict)  #: uid → namespace and name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, what can be done, and what has been done."""

    report: DoctorReport
    repairs: tuple[FileRepair, ...] = ()
    backups: Mapping[str, Path] = field(default_factory=dict)  #: file → its backup, of those that were written
    after: DoctorReport | None = None  #: the same once more, where something was to be written

    @property
    def last(self) -> DoctorReport:
        """How things stand."""
        return self.after or self.report


def pod_names(files: tuple[str, ...]) -> dict[str, str]:
    """The pods in *files* by uid."""
    pods = [pod for work in inputs.read_workloads(files)[0] for pod in work.pods()] if files else []
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods if pod.uid}


def diagnose(asked: DoctorInput) -> Diagnosis:
    """Look at everything, change nothing."""
    examined = check_configuration(asked.text, asked.machine, name=asked.name)
    if asked.directory is None:
        return Diagnosis(DoctorReport(examined.findings))
    with inputs.input_errors("in --kubelet-dir", advice="Give a kubelet's directory, such as /var/lib/kubelet."):
        looked = check_state(state_dir.read(asked.directory), examined.basis, pods=asked.pods)
    return Diagnosis(DoctorReport((*examined.findings, *looked.findings)), looked.repairs)


def repair_state(asked: DoctorInput, directory: Path) -> Diagnosis:
    """Look at everything, and repair the state files of *directory* that need it, unless a kubelet is at work there."""
    _check_unused(directory)
    found = diagnose(asked)
    if not found.repairs:
        return Diagnosis(found.report, after=found.report)
    _check_unused(directory)
    with inputs.input_errors(
        "in --kubelet-dir", advice="Run it as a user who may write there, with no kubelet running."
    ):
        backups = state_dir.write(directory, found.repairs, now=datetime.now(UTC))
    return Diagnosis(found.report, found.repairs, backups, diagnose(asked).report)


def _check_unused(directory: Path) -> None:
    if using := live_kubelet.find_live_kubelets(directory):
        raise InputError(
            *using,
            where=f"{directory} is in use, so nothing was written",
            advice="Stop the kubelet first (systemctl stop kubelet); containers go on running.",
        )


def _text(asked: DoctorInput, found: Diagnosis) -> None:
    terminal.print_lines(_told(asked, found))


def _told(asked: DoctorInput, found: Diagnosis) -> Iterator[Line]:
    yield from paragraph(f"{asked.name} on {asked.machine_name}", style="title")
    for area in Area:
        findings = found.report.of(area)
        if findings:
            yield from section(area[0].upper() + area[1:])
        for one in findings:
            yield from _finding(one)
    yield from _paste(asked, found.report.findings)
    yield from _repairs(found)
    yield ()
    yield from paragraph(_verdict(found), style="title" if found.last.healthy else "warn")


def _finding(one: Finding) -> Iterator[Line]:
    mark, style = _MARKS[one.severity]
    head = f"  {mark}".ljust(_COLUMN) + " "
    yield from paragraph(f"{one.where}: {one.what}" if one.where else one.what, head=head, head_style=style)
    blank = " " * (_COLUMN + 1)
    if one.said:
        yield from paragraph(f"it says: {one.said}", head=blank, style="dim")
    if one.advice:
        yield from paragraph(f"→ {one.advice}", head=blank)


def _paste(asked: DoctorInput, findings: Iterable[Finding]) -> Iterator[Line]:
    """All YAML that is proposed, one key once, at the left edge."""
    keys: dict[str, tuple[str, ...]] = {}
    for one in findings:
        key, _, body = one.paste.partition("\n")
        lines, before = tuple(body.splitlines()), keys.get(key, ())
        if key and not body.startswith("-"):
            keys[key] = (*before, *(line for line in lines if line not in before))
        elif key:
            keys[key] = before or lines
    if keys:
        yield from section(f"To paste into {clean(asked.name)}, in place of what it has under these keys")
    for key, lines in keys.items():
        yield (Cell(key),)
        for line in lines:
            yield (Cell(line),)


def _repairs(found: Diagnosis) -> Iterator[Line]:
    if found.after and not found.repairs:
        yield ()
        yield (Cell("There was nothing to repair, so nothing was written."),)
    if not found.repairs:
        return
    yield from section("What was done" if found.after else "What --write would do")
    for repair in found.repairs:
        backup = found.backups.get(repair.name)
        yield from paragraph(f"{repair.name}{f' (as it was: {backup.name})' if backup else ''}", head="  ")
        for line in repair.done:
            yield from paragraph(line, head="    - ")


def _verdict(found: Diagnosis) -> str:
    report = found.last
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    now = " now" if found.backups else ""
    if errors:
        rest = f" and {pluralize(warnings, 'warning')}" if warnings else ""
        return f"This kubelet does not start{now}: {pluralize(errors, 'error')}{rest}."
    if warnings:
        return f"This kubelet starts{now}, with {pluralize(warnings, 'warning')}."
    return f"This kubelet starts{now}, and behaves."


def _document(found: Diagnosis) -> dict[str, Any]:
    repairs = [
        {
            "file": one.name,
            "done": list(one.done),
            "backup": str(found.backups[one.name]) if one.name in found.backups else None,
        }
        for one in found.repairs
    ]
    document = found.report.to_document() | {"healthy": found.last.healthy, "repairs": repairs}
    return document | ({"after": found.after.to_document()["findings"]} if found.after else {})


def _json(asked: DoctorInput, found: Diagnosis) -> None:
    del asked
    terminal.print_json(_document(found))


RENDERERS: dict[str, Callable[[DoctorInput, Diagnosis], None]] = {"text": _text, "json": _json}
