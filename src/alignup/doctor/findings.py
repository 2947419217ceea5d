"""Findings, each with what is wrong, where and what to do, and the report they make together."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.reason_codes import NOT_CHECKED

VERSION = 1  #: of the JSON document


class Severity(StrEnum):
    ERROR = "error"  #: the kubelet does not start
    WARNING = "warning"  #: it starts, but behaves in a surprising way
    NOTE = "note"
    OK = "ok"


class Area(StrEnum):
    """What a finding is about, in the order of the report."""

    CONFIGURATION = "configuration"
    TOPOLOGY = "topology manager"
    CPUS = "CPU manager"
    MEMORY = "memory manager"
    NRI = "NRI"
    STATE = "state files"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    area: Area
    summary: str  #: what is wrong, and what the kubelet does about it
    code: str  #: one of ``align.reason_codes``; empty: nothing is wrong
    kubelet_message: str = ""  #: the kubelet's own error
    advice: str = ""
    where: str = ""  #: a field or a file
    paste: str = ""  #: YAML for the configuration that follows the advice
    own_limit: bool = False  #: whether alignup could not check something that the kubelet may accept

    def to_document(self) -> dict[str, str]:
        fields = {
            "severity": self.severity,
            "area": self.area,
            "code": self.code,
            "where": self.where,
            "what": self.summary,
            "said": self.kubelet_message,
            "advice": self.advice,
            "paste": self.paste,
        }
        return {name: str(text) for name, text in fields.items() if text}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return not self.count(Severity.ERROR) and not self.count(Severity.WARNING)

    def count(self, severity: Severity) -> int:
        return [finding.severity for finding in self.findings].count(severity)

    def of(self, area: Area) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.area is area)

    def to_document(self) -> dict[str, Any]:
        findings = [finding.to_document() for finding in self.findings]
        return {"version": VERSION, "healthy": self.healthy, "findings": findings}


#: Each takes the area and the summary, and all but the last a code.
error = partial(Finding, Severity.ERROR)
warning = partial(Finding, Severity.WARNING)
note = partial(Finding, Severity.NOTE)
ok = partial(Finding, Severity.OK, code="")


def beyond_own_limit(area: Area, limit: str, *, where: str) -> Finding:
    """Return the error for input that only the kubelet can check; *limit* says which limit of alignup it exceeds."""
    advice = "change the value; alignup does not know what the kubelet does with it"
    return error(area, f"alignup cannot check it: {limit}", NOT_CHECKED, advice=advice, where=where, own_limit=True)


def format_cpus(cpus: CpuSet) -> str:
    """``CPU 16``, ``CPUs 0-3,8``."""
    return f"CPU{'s' * (cpus.bit_count() != 1)} {bits.show(cpus)}"
