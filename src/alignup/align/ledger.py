"""Who holds what on a host: the ledger of every provider, the pods that are there, and what they use together.

A ledger never changes: admitting and releasing make a new one. Undoing a decision is keeping the ledger from before it,
and a refused pod leaves no trace because nothing was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from alignup.align.fit import UsedResources
from alignup.align.hint import Hint
from alignup.align.workload import Pod
from alignup.align.workload.demand import FitRequest


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod that was admitted."""

    pod: Pod
    hints: Mapping[str, Hint]  #: container → what its providers were to follow
    uses: FitRequest  #: what it counts for in the fit check


@dataclass(frozen=True, slots=True)
class Ledger:
    """All that was given out on a host."""

    books: Mapping[str, Any]  #: provider → its own ledger
    pods: Mapping[str, AdmittedPod] = field(default_factory=dict)  #: by uid, in the order they came
    used: UsedResources = field(default_factory=UsedResources)

    def with_pod(self, resident: AdmittedPod, books: Mapping[str, Any]) -> Self:
        """One pod more, and what its providers wrote down."""
        pods = {**self.pods, resident.pod.uid: resident}
        return type(self)(books, pods, self.used.plus(resident.uses))

    def without_pod(self, uid: str, books: Mapping[str, Any]) -> Self:
        """One pod less, and what its providers wrote down."""
        pods = dict(self.pods)
        gone = pods.pop(uid)
        return type(self)(books, pods, self.used.minus(gone.uses))
