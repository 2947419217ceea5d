"""The best host for each class of pods, kept while hosts change.

A rating depends on the class and the host only. When a host changes, it is rated again for a class only if a pod of
that class asks.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence

from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.pod_classes import EqualPods

Rating = Callable[[EqualPods, SimulatedHost], float | None]  #: higher is better; ``None``: the pod cannot go there


class _ClassRanking:
    """The hosts of one class by their ratings, as of a number of changes."""

    __slots__ = ("changes", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int]] = []  #: minus the rating, place and version of the host
        self.changes = 0


class HostIndex:
    def __init__(self, hosts: Sequence[SimulatedHost], rate: Rating) -> None:
        self._hosts, self._rate = hosts, rate
        self._places = {host.name: place for place, host in enumerate(hosts)}
        self._versions = [0] * len(hosts)
        self._changes: list[int] = []
        self._rankings: dict[EqualPods, _ClassRanking] = {}

    def touch(self, host: str) -> None:
        """A host has changed."""
        place = self._places[host]
        self._versions[place] += 1
        self._changes.append(place)

    def best(self, pod_class: EqualPods) -> SimulatedHost | None:
        """The host with the highest rating, the first of equal ones; ``None``: no host can run such a pod."""
        ranking = self._rankings.get(pod_class)
        if ranking is None:
            ranking = self._rankings[pod_class] = _ClassRanking()
            self._renew(pod_class, ranking, pod_class.hosts.values())
        else:
            eligible = pod_class.hosts
            changed = dict.fromkeys(self._changes[ranking.changes :])
            self._renew(pod_class, ranking, [one for one in changed if self._hosts[one].name in eligible])
        ranking.changes = len(self._changes)
        heap = ranking.heap
        while heap:
            _, place, version = heap[0]
            if version == self._versions[place]:
                return self._hosts[place]
            heapq.heappop(heap)
        return None

    def _renew(self, pod_class: EqualPods, ranking: _ClassRanking, places: Iterable[int]) -> None:
        for place in places:
            rating = self._rate(pod_class, self._hosts[place])
            if rating is not None:
                heapq.heappush(ranking.heap, (-rating, place, self._versions[place]))
