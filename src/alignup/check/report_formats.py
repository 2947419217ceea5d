"""Findings as documents that other programs read: JSON, SARIF 2.1.0 and GitHub's workflow commands."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from alignup import __version__
from alignup.align.reason_codes import find_reason
from alignup.check.template_check import CheckFinding
from alignup.placement.pod_findings import FindingLevel

VERSION = 1  #: of the JSON document
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS = {FindingLevel.REJECTED: "error", FindingLevel.MISALIGNED: "warning", FindingLevel.WARNING: "note"}
_GITHUB_COMMANDS = {FindingLevel.REJECTED: "error", FindingLevel.MISALIGNED: "warning", FindingLevel.WARNING: "notice"}


def describe(finding: CheckFinding) -> str:
    """Return ``Deployment ml/trainer on gpu-node: …``, with the remedy."""
    workload, answer = finding.workload, finding.answer
    nodes = f" on {', '.join(finding.profiles)}" if finding.profiles else ""
    remedy = f"; {answer.remedy}" if answer.remedy else ""
    return f"{workload.kind} {workload.namespace}/{workload.title}{nodes}: {answer.message}{remedy}"


def to_document(
    findings: Sequence[CheckFinding], *, workloads: int, profiles: Sequence[str], ignored_count: int
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "workloads": workloads,
        "nodes": list(profiles),
        "accepted": ignored_count,
        "findings": [finding.to_document() for finding in findings],
    }


def to_sarif(findings: Sequence[CheckFinding]) -> dict[str, Any]:
    rules = {finding.answer.code: _rule(finding) for finding in findings}
    driver = {"name": "alignup", "version": __version__, "rules": [rules[code] for code in sorted(rules)]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": list(map(_result, findings))}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(finding: CheckFinding) -> dict[str, Any]:
    code = finding.answer.code
    rule: dict[str, Any] = {"id": code, "defaultConfiguration": {"level": _level(finding)}}
    if (reason := find_reason(code)) is not None:
        rule |= {"shortDescription": {"text": reason.meaning}, "help": {"text": reason.remedy}}
    return rule


def _result(finding: CheckFinding) -> dict[str, Any]:
    source = finding.workload.source
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(PurePath(source.file).as_posix())}}
    if source.line:
        location["region"] = {"startLine": source.line}
    return {
        "ruleId": finding.answer.code,
        "level": _level(finding),
        "message": {"text": describe(finding)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"alignupFinding/v1": "/".join(finding.key)},
    }


def _level(finding: CheckFinding) -> str:
    return _SARIF_LEVELS[finding.answer.level]


def to_github(findings: Sequence[CheckFinding]) -> Iterator[str]:
    """Yield a workflow command for each finding, which GitHub shows at the line of the file."""
    for finding in findings:
        source, answer = finding.workload.source, finding.answer
        line = f",line={source.line}" if source.line else ""
        properties = f"file={_property(source.file)}{line},title={_property(answer.code)}"
        yield f"::{_GITHUB_COMMANDS[answer.level]} {properties}::{_escape(describe(finding))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
