"""Pods that wait for resources, in arrival order.

A pod that does not fit does not block later pods that do, but each pod is overtaken only a limited number of times.
After that, a pod behind it is admitted before it only if it takes nothing that the waiting pod could use
(``align.overtaking``). A wait queue is immutable: each method returns another.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

from alignup.agent.pod_record import PodRecord
from alignup.align.decision import Decision
from alignup.align.host import Host
from alignup.align.overtaking import competes
from alignup.align.workload import Pod
from alignup.web.responses import BusyError

MAX_OVERTAKES = 16
MAX_WAITING = 1_000
MAX_BLOCKING = 16  #: pods at their limit that others can overtake; behind more of them, every pod waits
MAX_TRIES = 8  #: different requests that are retried from the first pod at its limit on, when something is released


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

    def updated(self, *records: PodRecord) -> Self:
        return replace(self, pods={**self.pods, **{record.pod.uid: record for record in records}})

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
        """Whether the pod must not be overtaken again by a pod that takes something from it."""
        return self.max_overtakes is not None and self.overtakes.get(uid, 0) >= self.max_overtakes

    def blocking_pod(
        self, host: Host, decision: Decision, uids: Iterable[str], undecided: Collection[str] = ()
    ) -> Pod | None:
        """Return the first of the blocking pods *uids* if the admission takes something that one of them could use.

        *undecided* are resources whose devices a device plugin has yet to choose.
        """
        if not decision.admitted:
            return None
        pods = [self.pods[uid].pod for uid in islice(uids, MAX_BLOCKING + 1)]
        if not pods or (len(pods) <= MAX_BLOCKING and not competes(host, decision, pods, undecided=undecided)):
            return None
        return pods[0]

    def position(self, uid: str) -> int | None:
        """Return the position from 1; ``None`` if the pod is not waiting."""
        return next((position for position, other in enumerate(self.pods, start=1) if other == uid), None)
