"""What a doctor says: findings, each in one line with what to do about it, and the report they make together."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet

VERSION = 1  #: of the document


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  #: the kubelet will not start
    WARNING = "warning"  #: it starts, but not as one may think
    NOTE = "note"  #: worth knowing
    OK = "ok"  #: looked at, and as it should be


class Area(StrEnum):
    """What it is about, in the order people read it."""

    CONFIGURATION = "configuration"
    TOPOLOGY = "topology manager"
    CPUS = "CPU manager"
    MEMORY = "memory manager"
    STATE = "state files"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found."""

    severity: Severity
    area: Area
    what: str  #: what it is, and what the kubelet does about it
    said: str = ""  #: the kubelet's own sentence, where it has one
    advice: str = ""
    where: str = ""  #: the field or the file
    paste: str = ""  #: YAML for the configuration that does what is advised

    def to_document(self) -> dict[str, str]:
        """As plain JSON; what there is nothing to say about is left out."""
        said = {
            "severity": self.severity,
            "area": self.area,
            "where": self.where,
            "what": self.what,
            "said": self.said,
            "advice": self.advice,
            "paste": self.paste,
        }
        return {name: str(text) for name, text in said.items() if text}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All that was found, the order of the areas kept."""

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to be done: no errors and no warnings."""
        return not self.count(Severity.ERROR) and not self.count(Severity.WARNING)

    def count(self, severity: Severity) -> int:
        """How many findings are of that severity."""
        return Counter(one.severity for one in self.findings)[severity]

    def of(self, area: Area) -> tuple[Finding, ...]:
        """The findings about one area."""
        return tuple(one for one in self.findings if one.area is area)

    def to_document(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "version": VERSION,
            "healthy": self.healthy,
            "findings": [one.to_document() for one in self.findings],
        }


#: A finding that keeps a kubelet from starting, one that surprises people, one worth knowing, one that is no trouble;
#: each takes the area and what it is.
error = partial(Finding, Severity.ERROR)
warning = partial(Finding, Severity.WARNING)
note = partial(Finding, Severity.NOTE)
ok = partial(Finding, Severity.OK)


def format_cpus(cpus: CpuSet) -> str:
    """``CPU 16``, ``CPUs 0-3,8``."""
    return f"CPU{'s' * (cpus.bit_count() != 1)} {bits.show(cpus)}"
