"""Pods that wait for room, in the order they came.

The rule is first come, first served, but one that does not fit does not hold up the others: whoever fits may go ahead
of it. So that a large pod does not wait for ever while small ones pass it by, each is overtaken only so often. After
that nobody behind it is admitted until it is.

A line never changes: each step makes another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from alignup.agent.pod_record import PodRecord
from alignup.schema.api import BusyError

MAX_OVERTAKES = 16  #: how often one is overtaken at most
MAX_WAITING = 1_000  #: how many wait at most


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitQueue:
    """Who waits."""

    pods: Mapping[str, PodRecord] = field(default_factory=dict)  #: by uid, in the order they came
    overtakes: Mapping[str, int] = field(default_factory=dict)  #: uid → how often; who never was is left out
    patience: int | None = MAX_OVERTAKES  #: ``None``: one may be overtaken for ever
    room: int = MAX_WAITING

    def joined(self, known: PodRecord) -> Self:
        """One more, at the end; ``BusyError`` when as many wait as may."""
        self.check_capacity()
        return replace(self, pods={**self.pods, known.pod.uid: known})

    def check_capacity(self) -> None:
        """``BusyError`` when as many wait as may."""
        if len(self.pods) >= self.room:
            raise BusyError(f"{len(self.pods)} pods wait already, which is as many as may")

    def without(self, uid: str) -> Self:
        """One less."""
        pods = {other: known for other, known in self.pods.items() if other != uid}
        return replace(self, pods=pods, overtakes={other: n for other, n in self.overtakes.items() if other != uid})

    def updated(self, known: PodRecord) -> Self:
        """There is a newer decision about one that waits."""
        return replace(self, pods={**self.pods, known.pod.uid: known})

    def with_overtakes(self, uid: str | None = None) -> Self:
        """All in front of *uid* are overtaken by it; all there are, by one that never waited."""
        passes = dict(self.overtakes)
        for other in self.pods:
            if other == uid:
                break
            passes[other] = passes.get(other, 0) + 1
        return replace(self, overtakes=passes)

    def is_blocking(self, uid: str) -> bool:
        """Whether it has been overtaken as often as it may be."""
        return self.patience is not None and self.overtakes.get(uid, 0) >= self.patience

    def position(self, uid: str) -> int | None:
        """Its place, from 1; ``None`` when it does not wait."""
        return next((place for place, other in enumerate(self.pods, start=1) if other == uid), None)
