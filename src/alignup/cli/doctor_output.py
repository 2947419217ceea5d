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


def lines(found: Diagnosis, *, configuration: str, machine: str) -> Iterator[Line]:
    yield from paragraph(f"{configuration} on {machine}", style="title")
    for area in Area:
        findings = found.report.of(area)
        if findings:
            yield from section(area[0].upper() + area[1:])
        for one in findings:
            yield from _finding_lines(one)
    yield from _yaml_lines(configuration, found.report.findings)
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


def _yaml_lines(configuration: str, findings: Iterable[Finding]) -> Iterator[Line]:
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
        yield from section(f"Replace these keys in {clean(configuration)}")
    for key, lines in keys.items():
        yield (Cell(key),)
        for line in lines:
            yield (Cell(line),)


def _repair_lines(found: Diagnosis) -> Iterator[Line]:
    if found.repairs:
        yield from section("Repaired" if found.after else "--write would repair")
    elif found.after:
        yield ()
        yield (Cell("Nothing to repair; nothing was written."),)
    for repair in found.repairs:
        backup = found.backups.get(repair.name)
        yield from paragraph(f"{repair.name}{f' (backup: {backup.name})' if backup else ''}", prefix="  ")
        for line in repair.done:
            yield from paragraph(line, prefix="    - ")


def _verdict(found: Diagnosis) -> str:
    errors, warnings = map(found.final.count, (Severity.ERROR, Severity.WARNING))
    now = " now" if found.backups else ""
    counted = pluralize(warnings, "warning")
    failures = [one for one in found.final.findings if one.severity is Severity.ERROR]
    if errors and all(one.is_own_limit for one in failures):
        return f"alignup cannot tell whether this kubelet starts: {pluralize(errors, 'error')}."
    if errors:
        rest = f" and {counted}" if warnings else ""
        return f"This kubelet does not start{now}: {pluralize(errors, 'error')}{rest}."
    return f"This kubelet starts{now}, {f'with {counted}' if warnings else 'without warnings'}."


def to_document(found: Diagnosis) -> dict[str, Any]:
    backups = {name: str(path) for name, path in found.backups.items()}
    repairs = [{"file": one.name, "done": list(one.done), "backup": backups.get(one.name)} for one in found.repairs]
    document = found.report.to_document() | {"healthy": found.final.healthy, "repairs": repairs}
    return document | ({"after": found.after.to_document()["findings"]} if found.after else {})
