"""The best host for each class of pods, kept while hosts change.

``HostIndex`` rates hosts; when a host changes, it is rated again for a class only if a pod of that class asks.
``StateIndex`` rates states: a rating depends on the class and on the state of a host only, which is its group, its free
CPUs, memory and devices, and what its pods use in total. Hosts return to the same states again and again, so most
ratings are known.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from alignup.align.ledger import Ledger
from alignup.placement.host_verdicts import used_key
from alignup.simulate.cluster_hosts import EqualPods, SimulatedHost

Rating = Callable[[EqualPods, SimulatedHost], float | None]  #: higher is better; ``None``: the pod cannot go there


@dataclass(slots=True, eq=False)
class _ClassRanking:
    """The hosts of one class by their ratings, as of a number of changes."""

    heap: list[tuple[float, int, int]] = field(default_factory=list)  #: minus the rating, place and version of the host
    changes: int = 0


class HostIndex:
    def __init__(self, hosts: Sequence[SimulatedHost], rate: Rating) -> None:
        self._hosts, self._rate = hosts, rate
        self._places = {host.name: place for place, host in enumerate(hosts)}
        self._versions = [0] * len(hosts)
        self._changes: list[int] = []
        self._rankings: dict[EqualPods, _ClassRanking] = {}

    def touch(self, host: str) -> None:
        """Note that a host has changed."""
        place = self._places[host]
        self._versions[place] += 1
        self._changes.append(place)

    def best(self, pod_class: EqualPods) -> SimulatedHost | None:
        """Return the host with the highest rating, the first of equal ones; ``None``: no host can run such a pod."""
        ranking = self._rankings.get(pod_class)
        places: Iterable[int] = pod_class.hosts.values()
        if ranking is None:
            ranking = self._rankings[pod_class] = _ClassRanking()
        else:
            changed = dict.fromkeys(self._changes[ranking.changes :])
            places = [place for place in changed if self._hosts[place].name in pod_class.hosts]
        ranking.changes = len(self._changes)
        heap = ranking.heap
        for place in places:
            rating = self._rate(pod_class, self._hosts[place])
            if rating is not None:
                heapq.heappush(heap, (-rating, place, self._versions[place]))
        while heap:
            _, place, version = heap[0]
            if version == self._versions[place]:
                return self._hosts[place]
            heapq.heappop(heap)
        return None


@dataclass(slots=True, eq=False)
class _ClassRatings:
    """The ratings of one class, as of a number of changes."""

    known: dict[int, float | None] = field(default_factory=dict)  #: state → rating
    heap: list[tuple[float, int]] = field(default_factory=list)  #: minus the rating, and the state, if it has hosts
    queued: set[int] = field(default_factory=set)  #: the states in the heap
    changes: int = 0


class StateIndex:
    def __init__(
        self, hosts: Mapping[str, SimulatedHost], rate: Rating, ledger: Callable[[SimulatedHost], Ledger | None]
    ) -> None:
        """*ledger* returns the state that a host will have when all pods on their way are there; ``None``: unknown."""
        self._hosts, self._rate, self._ledger = hosts, rate, ledger
        self._numbers: dict[Hashable, int] = {}  #: of states
        self._states: dict[str, int] = {}  #: host → state
        self._members: dict[int, dict[str, None]] = {}  #: state → hosts, in the order of their changes
        self._changed: dict[str, None] = dict.fromkeys(hosts)
        self._entered: list[int] = []  #: states that got their first host
        self._ratings: dict[EqualPods, _ClassRatings] = {}

    def touch(self, host: str) -> None:
        """Note that a host has changed."""
        self._changed[host] = None

    def best(self, pod_class: EqualPods) -> SimulatedHost | None:
        """Return a host with the highest rating; ``None``: no host can run such a pod."""
        self._move_changed()
        ratings = self._ratings.setdefault(pod_class, _ClassRatings())
        for state in dict.fromkeys(self._entered[ratings.changes :]):
            self._queue(pod_class, ratings, state)
        ratings.changes = len(self._entered)
        return self._first(pod_class, ratings)

    def _move_changed(self) -> None:
        for name in self._changed:
            before = self._states.pop(name, None)
            if before is not None:
                del self._members[before][name]
            host = self._hosts[name]
            ledger = self._ledger(host)
            if ledger is None:
                continue
            key = (id(host.group), ledger.alignment_key(), used_key(ledger.used))
            state = self._numbers.setdefault(key, len(self._numbers))
            members = self._members.setdefault(state, {})
            if not members:
                self._entered.append(state)
            members[name] = None
            self._states[name] = state
        self._changed.clear()

    def _queue(self, pod_class: EqualPods, ratings: _ClassRatings, state: int) -> None:
        if state in ratings.queued or not self._members[state]:
            return
        if state not in ratings.known:
            member = next((name for name in self._members[state] if name in pod_class.hosts), None)
            if member is None:  # of a group that the pods cannot use
                return
            ratings.known[state] = self._rate(pod_class, self._hosts[member])
        rating = ratings.known[state]
        if rating is not None:
            ratings.queued.add(state)
            heapq.heappush(ratings.heap, (-rating, state))

    def _first(self, pod_class: EqualPods, ratings: _ClassRatings) -> SimulatedHost | None:
        skipped = []
        best = None
        while ratings.heap and best is None:
            entry = ratings.heap[0]
            members = self._members[entry[1]]
            best = next((name for name in members if name in pod_class.hosts), None)
            if best is None:
                heapq.heappop(ratings.heap)
                if members:  # others of the class may come
                    skipped.append(entry)
                else:
                    ratings.queued.discard(entry[1])
        for entry in skipped:
            heapq.heappush(ratings.heap, entry)
        return None if best is None else self._hosts[best]
