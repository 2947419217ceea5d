"""Pods that wait for room, by priority and creation.

Where one pod does not fit, equal ones do not either, so only the first of each kind is tried.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from alignup.simulate.cluster.pod_classes import EqualPods
from alignup.simulate.cluster.submissions import PodSubmission


@dataclass(frozen=True, slots=True, eq=False)
class PodUnit:
    """A single pod, or all pods of a gang."""

    pods: tuple[PodSubmission, ...]
    classes: tuple[EqualPods, ...]  #: of the pods
    attempt: int = 0  #: how often kubelets have rejected it

    @property
    def time(self) -> float:
        """When all pods are created."""
        return max(one.time for one in self.pods)

    @property
    def rank(self) -> tuple[int, float, str]:
        """The lowest is first: the highest priority, the oldest."""
        return -max(one.priority for one in self.pods), self.time, self.pods[0].pod.uid

    def again(self) -> "PodUnit":
        """The pods that replace these after a rejection."""
        return replace(self, attempt=self.attempt + 1)


class _Entry(NamedTuple):
    rank: tuple[int, float, str]
    attempt: int
    unit: PodUnit


class WaitingQueue:
    def __init__(self) -> None:
        self._by_kind: dict[tuple[EqualPods, ...], list[_Entry]] = {}  #: heaps

    def has(self, unit: PodUnit) -> bool:
        """Whether pods of the same kind wait that come before *unit*."""
        waiting = self._by_kind.get(unit.classes)
        return waiting is not None and waiting[0].rank <= unit.rank

    def add(self, unit: PodUnit) -> None:
        heapq.heappush(self._by_kind.setdefault(unit.classes, []), _Entry(unit.rank, unit.attempt, unit))

    def remove(self, unit: PodUnit) -> None:
        """Remove the first of its kind."""
        waiting = self._by_kind[unit.classes]
        heapq.heappop(waiting)
        if not waiting:
            del self._by_kind[unit.classes]

    def candidates(self, may_fit: Callable[[PodUnit], bool]) -> Iterator[PodUnit]:
        """The first of each kind that may fit, the best first; after its removal, the next of the kind."""
        heads = [(waiting[0].rank, place, kind) for place, (kind, waiting) in enumerate(self._by_kind.items())]
        heapq.heapify(heads)
        while heads:
            _, place, kind = heapq.heappop(heads)
            unit = self._by_kind[kind][0].unit
            if not may_fit(unit):
                continue
            yield unit
            waiting = self._by_kind.get(kind)
            if waiting and waiting[0].unit is not unit:
                heapq.heappush(heads, (waiting[0].rank, place, kind))
