"""The figures by which simulation results are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignup.fleet.fragmentation import StrandedResources
from alignup.fleet.simulate import AlignmentCounts, SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    admitted: int
    rejected: int
    reasons: Mapping[str, int]  #: of rejections, the most frequent first
    pods: AlignmentCounts
    containers: AlignmentCounts
    stranded: StrandedResources  #: at peak demand
    largest: Mapping[str, int]  #: at peak demand: resource → the largest request that still fits on one NUMA node

    @classmethod
    def of(cls, result: SimulationResult) -> "Score":
        return cls(
            admitted=result.admitted,
            rejected=result.rejected,
            reasons=result.reasons,
            pods=result.pods,
            containers=result.containers,
            stranded=result.peak.stranded,
            largest=result.peak.largest,
        )

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        """The best score first."""
        return -self.admitted, -self.pods.on_one, self.stranded.all_devices, self.stranded.cpus

    def to_document(self) -> dict[str, Any]:
        return {
            "arrived": self.admitted + self.rejected,
            "admitted": self.admitted,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "alignment": {"pods": _alignment(self.pods), "containers": _alignment(self.containers)},
            "stranded": stranded_document(self.stranded),
            "largest": dict(self.largest),
        }


def stranded_document(stranded: StrandedResources) -> dict[str, Any]:
    return {"cpus": stranded.cpus, "devices": dict(stranded.devices), "more": stranded.more}


def _alignment(counts: AlignmentCounts) -> dict[str, int]:
    return {"onOne": counts.on_one, "onSeveral": counts.on_several, "anywhere": counts.anywhere}
