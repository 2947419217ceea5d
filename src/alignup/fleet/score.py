"""The figures by which results are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignup.fleet.fragmentation import StrandedResources
from alignup.fleet.simulate import AlignmentCounts, SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What came of a workload, in a few figures."""

    admitted: int
    refused: int
    reasons: Mapping[str, int]  #: why pods were refused, the most frequent reason first
    pods: AlignmentCounts
    containers: AlignmentCounts
    stranded: StrandedResources  #: when demand was highest
    largest: Mapping[str, int]  #: the most one container could still get on one NUMA node then, by resource

    @classmethod
    def of(cls, result: SimulationResult) -> "Score":
        """The score of *result*."""
        height = result.height
        return cls(
            admitted=result.admitted,
            refused=result.refused,
            reasons=result.reasons,
            pods=result.pods,
            containers=result.containers,
            stranded=height.stranded,
            largest=height.largest,
        )

    @property
    def order(self) -> tuple[int, int, int, int]:
        """What scores are sorted by, the best first."""
        return -self.admitted, -self.pods.on_one, self.stranded.all_devices, self.stranded.cpus

    def to_document(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "arrived": self.admitted + self.refused,
            "admitted": self.admitted,
            "refused": self.refused,
            "reasons": dict(self.reasons),
            "alignment": {"pods": _alignment(self.pods), "containers": _alignment(self.containers)},
            "stranded": stranded_document(self.stranded),
            "largest": dict(self.largest),
        }


def stranded_document(left: StrandedResources) -> dict[str, Any]:
    """What is stranded, as plain JSON values."""
    return {"cpus": left.cpus, "devices": dict(left.devices), "more": left.more}


def _alignment(counts: AlignmentCounts) -> dict[str, int]:
    return {"onOne": counts.on_one, "onSeveral": counts.on_several, "anywhere": counts.anywhere}
