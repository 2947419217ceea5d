"""Pods that wait for resources, in arrival order.

A pod that does not fit does not block later pods that do, but each pod is overtaken only a limited number of times.
After that, no pod behind it is admitted before it. A wait queue is immutable: each method returns another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from alignup.agent.pod_record import PodRecord
from alignup.schema.api import BusyError

MAX_OVERTAKES = 16
MAX_WAITING = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitQueue:
    pods: Mapping[str, PodRecord] = field(default_factory=dict)  #: by uid, in arrival order
    overtakes: Mapping[str, int] = field(default_factory=dict)  #: uid → count; uids without overtakes are left out
    max_overtakes: int | None = MAX_OVERTAKES  #: ``None``: no limit
    capacity: int = MAX_WAITING

    def added(self, record: PodRecord) -> Self:
        """Append a pod; ``BusyError`` if the queue is full."""
        if len(self.pods) >= self.capacity:
            raise BusyError(f"{len(self.pods)} pods are waiting, which is the limit")
        return self.updated(record)

    def updated(self, record: PodRecord) -> Self:
        return replace(self, pods={**self.pods, record.pod.uid: record})

    def without(self, uid: str) -> Self:
        pods = {other: record for other, record in self.pods.items() if other != uid}
        return replace(self, pods=pods, overtakes={other: n for other, n in self.overtakes.items() if other != uid})

    def with_overtakes(self, uid: str | None = None) -> Self:
        """Count an overtake for every pod ahead of *uid*; for every pod if *uid* is not waiting."""
        overtakes = dict(self.overtakes)
        for other in self.pods:
            if other == uid:
                break
            overtakes[other] = overtakes.get(other, 0) + 1
        return replace(self, overtakes=overtakes)

    def is_blocking(self, uid: str) -> bool:
        """Whether the pod must not be overtaken again."""
        return self.max_overtakes is not None and self.overtakes.get(uid, 0) >= self.max_overtakes

    def position(self, uid: str) -> int | None:
        """Return the position from 1; ``None`` if the pod is not waiting."""
        return next((position for position, other in enumerate(self.pods, start=1) if other == uid), None)
