"""What the gate controller is given: its settings, and where it counts what it does."""

from dataclasses import dataclass
from typing import Protocol

from alignup.gate.releases import SILENT_SECONDS, UNSCHEDULABLE_SECONDS, ReleaseOutcome


class GateMetrics(Protocol):
    """Counts what the controller does."""

    def released(self, *, seconds: float) -> None: ...
    def ended(self, outcome: ReleaseOutcome) -> None: ...
    def waiting(self, *, pods: int, blocked: int, other_gates: int, released: int, reserved_nodes: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    parallel: int = 32  #: releases that are written at the same time
    patience: float = 60.0  #: seconds after which a node is kept for a pod that others overtake
    unschedulable: float = UNSCHEDULABLE_SECONDS
    silent: float = SILENT_SECONDS
    retry: float = 10.0  #: seconds after a release that the API server did not accept
    avoid: float = 600.0  #: seconds for which pods of a controller avoid a node where one was not scheduled
    replace_stuck: bool = False  #: whether to evict released pods that are not scheduled and will be created again
