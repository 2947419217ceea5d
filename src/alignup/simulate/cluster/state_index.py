"""The best host for each class of pods where many hosts are in the same state.

Like ``host_index``, but a rating depends on the class and the state of a host only: its group, its free CPUs, memory
and devices, and what its pods use in total. Hosts return to the same states again and again, so most ratings are known.
"""

import heapq
from collections.abc import Callable, Hashable, Mapping

from alignup.align.ledger import Ledger
from alignup.placement.verdict_cache import used_key
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.host_index import Rating
from alignup.simulate.cluster.pod_classes import EqualPods


class _ClassRatings:
    """The ratings of one class, as of a number of changes."""

    __slots__ = ("changes", "heap", "known", "queued")

    def __init__(self) -> None:
        self.known: dict[int, float | None] = {}  #: state → rating
        self.heap: list[tuple[float, int]] = []  #: minus the rating, and the state, of all states with hosts
        self.queued: set[int] = set()  #: the states in the heap
        self.changes = 0


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
        """A host has changed."""
        self._changed[host] = None

    def best(self, pod_class: EqualPods) -> SimulatedHost | None:
        """A host with the highest rating; ``None``: no host can run such a pod."""
        if self._changed:
            self._move_changed()
        ratings = self._ratings.get(pod_class)
        if ratings is None:
            ratings = self._ratings[pod_class] = _ClassRatings()
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
        found = None
        while ratings.heap and found is None:
            entry = ratings.heap[0]
            members = self._members[entry[1]]
            found = next((name for name in members if name in pod_class.hosts), None)
            if found is None:
                heapq.heappop(ratings.heap)
                if members:  # others of the class may come
                    skipped.append(entry)
                else:
                    ratings.queued.discard(entry[1])
        for entry in skipped:
            heapq.heappush(ratings.heap, entry)
        return None if found is None else self._hosts[found]
