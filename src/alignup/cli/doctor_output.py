"""The diagnosis of ``alignup doctor``, and its output."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alignup.align.machine import Machine
from alignup.cli import inputs, terminal
from alignup.cli.app import InputError
from alignup.cli.layout import paragraph, section
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
_MARK_WIDTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorInput:
    """What to check."""

    text: bytes  #: of the configuration
    name: str  #: of the configuration
    machine: Machine
    machine_name: str
    directory: Path | None = None  #: the kubelet's; ``None``: no state files
    pods: Mapping[str, str] = field(default_factory=dict)  #: uid → namespace/name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, and the repairs that are possible or done."""

    report: DoctorReport
    repairs: tuple[FileRepair, ...] = ()
    backups: Mapping[str, Path] = field(default_factory=dict)  #: of the files that were written
    after: DoctorReport | None = None  #: the report after --write

    @property
    def final(self) -> DoctorReport:
        return self.after or self.report


def pod_names(files: tuple[str, ...]) -> dict[str, str]:
    """Map uid to namespace/name, for the pods in *files*."""
    pods = [pod for workload in inputs.read_workloads(files)[0] for pod in workload.pods()] if files else []
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in pods if pod.uid}


def diagnose(given: DoctorInput) -> Diagnosis:
    """Check everything; change nothing."""
    configuration = check_configuration(given.text, given.machine, name=given.name)
    if given.directory is None:
        return Diagnosis(DoctorReport(configuration.findings))
    with inputs.input_errors("in --kubelet-dir", advice="Give a kubelet's directory, such as /var/lib/kubelet."):
        state = check_state(state_dir.read(given.directory), configuration.manager_config, pods=given.pods)
    return Diagnosis(DoctorReport((*configuration.findings, *state.findings)), state.repairs)


def diagnose_and_repair(given: DoctorInput, directory: Path) -> Diagnosis:
    """Check everything, and repair the state files in *directory*, unless a kubelet uses it."""
    _check_unused(directory)
    found = diagnose(given)
    if not found.repairs:
        return Diagnosis(found.report, after=found.report)
    _check_unused(directory)
    with inputs.input_errors(
        "in --kubelet-dir", advice="Run the command as a user who may write there, with the kubelet stopped."
    ):
        backups = state_dir.write(directory, found.repairs, now=datetime.now(UTC))
    return Diagnosis(found.report, found.repairs, backups, diagnose(given).report)


def _check_unused(directory: Path) -> None:
    if users := live_kubelet.find_live_kubelets(directory):
        raise InputError(
            *users,
            where=f"{directory} is in use; nothing was written",
            advice="Stop the kubelet first (systemctl stop kubelet). Containers keep running.",
        )


def _print_text(given: DoctorInput, found: Diagnosis) -> None:
    terminal.print_lines(_lines(given, found))


def _lines(given: DoctorInput, found: Diagnosis) -> Iterator[Line]:
    yield from paragraph(f"{given.name} on {given.machine_name}", style="title")
    for area in Area:
        findings = found.report.of(area)
        if findings:
            yield from section(area[0].upper() + area[1:])
        for one in findings:
            yield from _finding_lines(one)
    yield from _yaml_lines(given, found.report.findings)
    yield from _repair_lines(found)
    yield ()
    yield from paragraph(_verdict(found), style="title" if found.final.healthy else "warn")


def _finding_lines(one: Finding) -> Iterator[Line]:
    mark, style = _MARKS[one.severity]
    prefix = f"  {mark}".ljust(_MARK_WIDTH) + " "
    yield from paragraph(f"{one.where}: {one.summary}" if one.where else one.summary, prefix=prefix, prefix_style=style)
    indent = " " * (_MARK_WIDTH + 1)
    if one.kubelet_message:
        yield from paragraph(f"kubelet: {one.kubelet_message}", prefix=indent, style="dim")
    if one.advice:
        yield from paragraph(f"→ {one.advice}", prefix=indent)


def _yaml_lines(given: DoctorInput, findings: Iterable[Finding]) -> Iterator[Line]:
    """The proposed YAML, each key once, without indentation so that it can be pasted."""
    keys: dict[str, tuple[str, ...]] = {}
    for one in findings:
        key, _, body = one.paste.partition("\n")
        lines, before = tuple(body.splitlines()), keys.get(key, ())
        if key and not body.startswith("-"):
            keys[key] = (*before, *(line for line in lines if line not in before))
        elif key:
            keys[key] = before or lines
    if keys:
        yield from section(f"Replace these keys in {clean(given.name)}")
    for key, lines in keys.items():
        yield (Cell(key),)
        for line in lines:
            yield (Cell(line),)


def _repair_lines(found: Diagnosis) -> Iterator[Line]:
    if found.after and not found.repairs:
        yield ()
        yield (Cell("Nothing to repair; nothing was written."),)
    if not found.repairs:
        return
    yield from section("Repaired" if found.after else "--write would repair")
    for repair in found.repairs:
        backup = found.backups.get(repair.name)
        yield from paragraph(f"{repair.name}{f' (backup: {backup.name})' if backup else ''}", prefix="  ")
        for line in repair.done:
            yield from paragraph(line, prefix="    - ")


def _verdict(found: Diagnosis) -> str:
    errors, warnings = found.final.count(Severity.ERROR), found.final.count(Severity.WARNING)
    now = " now" if found.backups else ""
    if errors:
        rest = f" and {pluralize(warnings, 'warning')}" if warnings else ""
        return f"This kubelet does not start{now}: {pluralize(errors, 'error')}{rest}."
    if warnings:
        return f"This kubelet starts{now}, with {pluralize(warnings, 'warning')}."
    return f"This kubelet starts{now}, without warnings."


def _document(found: Diagnosis) -> dict[str, Any]:
    repairs = [
        {
            "file": one.name,
            "done": list(one.done),
            "backup": str(found.backups[one.name]) if one.name in found.backups else None,
        }
        for one in found.repairs
    ]
    document = found.report.to_document() | {"healthy": found.final.healthy, "repairs": repairs}
    return document | ({"after": found.after.to_document()["findings"]} if found.after else {})


PRINTERS: dict[str, Callable[[DoctorInput, Diagnosis], None]] = {
    "text": _print_text,
    "json": lambda _, found: terminal.print_json(_document(found)),
}
