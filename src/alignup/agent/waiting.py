"""Pods that wait for room, in the order they came.

The rule is first come, first served, but one that does not fit does not hold up the others: whoever fits may go ahead
of it. So that a large pod does not wait for ever while small ones pass it by, each is overtaken only so often. After
that nobody behind it is admitted until it is.

A line never changes: each step makes another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from alignup.agent.known import Known
from alignup.serve.service import BusyError

PATIENCE = 16  #: how often one is overtaken at most
ROOM = 1_000  #: how many wait at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Who waits."""

    pods: Mapping[str, Known] = field(default_factory=dict)  #: by uid, in the order they came
    overtaken: Mapping[str, int] = field(default_factory=dict)  #: uid → how often; who never was is left out
    patience: int | None = PATIENCE  #: ``None``: one may be overtaken for ever
    room: int = ROOM

    def joined(self, known: Known) -> Self:
        """One more, at the end; ``BusyError`` when as many wait as may."""
        self.check_room()
        return replace(self, pods={**self.pods, known.pod.uid: known})

    def check_room(self) -> None:
        """``BusyError`` when as many wait as may."""
        if len(self.pods) >= self.room:
            raise BusyError(f"{len(self.pods)} pods wait already, which is as many as may")

    def without(self, uid: str) -> Self:
        """One less."""
        pods = {other: known for other, known in self.pods.items() if other != uid}
        return replace(self, pods=pods, overtaken={other: n for other, n in self.overtaken.items() if other != uid})

    def noted(self, known: Known) -> Self:
        """There is a newer decision about one that waits."""
        return replace(self, pods={**self.pods, known.pod.uid: known})

    def passed_by(self, uid: str | None = None) -> Self:
        """All in front of *uid* are overtaken by it; all there are, by one that never waited."""
        passes = dict(self.overtaken)
        for other in self.pods:
            if other == uid:
                break
            passes[other] = passes.get(other, 0) + 1
        return replace(self, overtaken=passes)

    def impatient(self, uid: str) -> bool:
        """Whether it has been overtaken as often as it may be."""
        return self.patience is not None and self.overtaken.get(uid, 0) >= self.patience

    def position(self, uid: str) -> int | None:
        """Its place, from 1; ``None`` when it does not wait."""
        return next((place for place, other in enumerate(self.pods, start=1) if other == uid), None)
