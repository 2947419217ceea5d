"""The output of ``alignup doctor``."""

from collections.abc import Iterable, Iterator
from typing import Any

from alignup.cli.layout import paragraph, section
from alignup.doctor.diagnosis import Diagnosis
from alignup.doctor.findings import Area, Finding, Severity
from alignup.picture.text_format import Cell, Line, clean, pluralize

_MARKS = {
    Severity.ERROR: ("ERROR", "lost"),
    Severity.WARNING: ("WARNING", "warn"),
    Severity.NOTE: ("note", "label"),
    Severity.OK: ("ok", "free"),
}
_MARK_WIDTH = 10


def lines(diagnosis: Diagnosis, *, configuration: str, machine: str) -> Iterator[Line]:
    yield from paragraph(f"{configuration} on {machine}", style="title")
    for area in Area:
        findings = diagnosis.report.of(area)
        if findings:
            yield from section(area[0].upper() + area[1:])
        for finding in findings:
            yield from _finding_lines(finding)
    yield from _yaml_lines(configuration, diagnosis.report.findings)
    yield from _repair_lines(diagnosis)
    yield ()
    yield from paragraph(_verdict(diagnosis), style="title" if diagnosis.final.healthy else "warn")


def _finding_lines(finding: Finding) -> Iterator[Line]:
    mark, style = _MARKS[finding.severity]
    prefix = f"  {mark}".ljust(_MARK_WIDTH) + " "
    yield from paragraph(
        f"{finding.where}: {finding.summary}" if finding.where else finding.summary, prefix=prefix, prefix_style=style
    )
    indent = " " * (_MARK_WIDTH + 1)
    if finding.kubelet_message:
        yield from paragraph(f"kubelet: {finding.kubelet_message}", prefix=indent, style="dim")
    if finding.advice:
        yield from paragraph(f"→ {finding.advice}", prefix=indent)


def _yaml_lines(configuration: str, findings: Iterable[Finding]) -> Iterator[Line]:
    """The proposed YAML, each key once, without indentation so that it can be pasted."""
    keys: dict[str, tuple[str, ...]] = {}
    for finding in findings:
        key, _, body = finding.paste.partition("\n")
        lines, before = tuple(body.splitlines()), keys.get(key, ())
        if key and not body.startswith("-"):
            keys[key] = (*before, *(line for line in lines if line not in before))
        elif key:
            keys[key] = before or lines
    if keys:
        yield from section(f"Replace these keys in {clean(configuration)}")
    for key, lines in keys.items():
        yield (Cell(key),)
        for line in lines:
            yield (Cell(line),)


def _repair_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    if diagnosis.repairs:
        yield from section("Repaired" if diagnosis.after else "--write would repair")
    elif diagnosis.after:
        yield ()
        yield (Cell("Nothing to repair; nothing was written."),)
    for repair in diagnosis.repairs:
        backup = diagnosis.backups.get(repair.name)
        yield from paragraph(f"{repair.name}{f' (backup: {backup.name})' if backup else ''}", prefix="  ")
        for line in repair.done:
            yield from paragraph(line, prefix="    - ")


def _verdict(diagnosis: Diagnosis) -> str:
    errors, warnings = map(diagnosis.final.count, (Severity.ERROR, Severity.WARNING))
    now = " now" if diagnosis.backups else ""
    counted = pluralize(warnings, "warning")
    failures = [finding for finding in diagnosis.final.findings if finding.severity is Severity.ERROR]
    if errors and all(finding.own_limit for finding in failures):
        return f"alignup cannot tell whether this kubelet starts: {pluralize(errors, 'error')}."
    if errors:
        rest = f" and {counted}" if warnings else ""
        return f"This kubelet does not start{now}: {pluralize(errors, 'error')}{rest}."
    return f"This kubelet starts{now}, {f'with {counted}' if warnings else 'without warnings'}."


def to_document(diagnosis: Diagnosis) -> dict[str, Any]:
    backups = {name: str(path) for name, path in diagnosis.backups.items()}
    repairs = [
        {"file": repair.name, "done": list(repair.done), "backup": backups.get(repair.name)}
        for repair in diagnosis.repairs
    ]
    document = diagnosis.report.to_document() | {"healthy": diagnosis.final.healthy, "repairs": repairs}
    return document | ({"after": diagnosis.after.to_document()["findings"]} if diagnosis.after else {})
