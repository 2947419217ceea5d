"""Plans: the fewest evictions after which the hosts of a cluster admit pods, in order, each step decided.

A *move* evicts a pod that its controller creates again, and proves that the new pod fits on another host, or later on
the same one. A pod that may be preempted can also be evicted without a new place. Making room for a moved pod may need
more moves; all of them count. Who may be evicted is decided outside: :class:`RunningPod` has the result.

The search tries one move on every host, then two, and so on, the cheapest sets first (``align.eviction_search``). A
quick search on the most promising hosts goes before, so that there is an answer when time runs out. Every plan is
decided once more from its first step to its last before it is returned, and ``Planner.verify`` does so again later.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.eviction_search import (
    EvictionCost,
    EvictionSearch,
    EvictionUnit,
    HostShortage,
    SearchTimeoutError,
    UnitSet,
    default_cost,
    find_units,
)
from alignup.align.ledger import AdmittedPod
from alignup.align.workload import Pod
from alignup.placement.gang import GangBinding
from alignup.placement.host_record import HostRecord
from alignup.placement.host_verdicts import HostVerdicts, TentativeHost
from alignup.placement.verdict import Verdict, unknown
from alignup.placement.victims import DisruptionBudget, count_violations

QUICK_HOSTS = 32  #: on which the quick search tries to make room
QUICK_DEPTH = 3  #: of moves for moved pods in that search
MAX_TARGETS = 8  #: hosts in different states that are tried for a pod that is moved
#: Moves of which all sets are tried for the cheapest, and even where evicting all pods is not enough: admission is
#: only nearly monotone.
PROVED_MOVES = 2
NO_COST = EvictionCost(0, ())
MAX_SET = 3  #: pods that leave one host for more pods of a shape
MAX_CAPACITY = 64  #: pods of a shape that are counted on one host
MAX_NAMES = 5  #: nodes in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod of a host, and what may be done with it."""

    pod: Pod
    host: str
    protected: str = ""  #: why it is never evicted; empty: it may be
    moves: bool = True  #: whether it is created again, and needs a new place
    preemptible: bool = False  #: whether it may be evicted without a new place
    group: str = ""  #: of pods that are disrupted together or not at all
    hosts: Collection[str] | None = None  #: that its replacement can be scheduled to; ``None``: all
    age: int = 0  #: in seconds
    terminating: bool = False
    controllers: frozenset[str] = frozenset()  #: uids of controllers that create the pod again
    scheduler: str = ""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step: a pod is evicted from a host, or admitted by a host."""

    pod: Pod
    host: str
    verdict: Verdict | None = None  #: the proof of an admission; ``None``: the pod is evicted
    replacement: bool = False  #: whether the pod is created again after its eviction

    @property
    def evicts(self) -> bool:
        return self.verdict is None

    @property
    def name(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}"

    @property
    def numa_nodes(self) -> NodeSet:
        """The NUMA nodes that the pod is admitted to; none if it is not aligned."""
        placements = self.verdict.placements if self.verdict else ()
        return bits.union(placement.hint.nodes or 0 for placement in placements)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The answer: the steps in order, or why there is no plan."""

    steps: tuple[PlanStep, ...] = ()
    cost: EvictionCost = NO_COST
    at_least: int = 0  #: moves that are certainly needed
    problem: str = ""  #: why there is no plan; empty: there is one
    tried: int = 0  #: sets of pods that were decided on

    @property
    def proved(self) -> bool:
        """Whether there is certainly no plan with fewer moves."""
        return self.feasible and self.at_least >= len(self.evictions)

    @property
    def feasible(self) -> bool:
        return not self.problem

    @property
    def evictions(self) -> tuple[PlanStep, ...]:
        return tuple([step for step in self.steps if step.evicts])

    @property
    def admissions(self) -> tuple[PlanStep, ...]:
        """The steps that admit the pods of the plan."""
        return tuple([step for step in self.steps if not step.evicts and not step.replacement])

    def new_place(self, uid: str) -> PlanStep | None:
        """Return the step that admits the replacement of an evicted pod; ``None``: it has no new place."""
        return next((step for step in self.steps if step.replacement and step.pod.uid == uid and not step.evicts), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRules:
    """What a plan may do; pods of hosts that are not in *pods* are never evicted."""

    pods: Mapping[str, RunningPod]  #: by uid
    budgets: Sequence[DisruptionBudget] = ()
    max_moves: int = 20
    first: bool = False  #: whether the first plan is enough, without a search for fewer moves
    should_stop: Callable[[], bool] = lambda: False


class PendingPod(NamedTuple):
    """A pod that needs room, and the hosts that it can be scheduled to; ``None``: all."""

    pod: Pod
    hosts: Collection[str] | None = None

    @property
    def name(self) -> str:
        return f"{self.pod.namespace}/{self.pod.name}"


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """Moves after which more pods of one shape fit, and how many more pods fit after each move."""

    fitting: int  #: pods of the shape that fit without a move
    steps: tuple[PlanStep, ...] = ()
    gains: tuple[tuple[int, int], ...] = ()  #: after so many moves, so many more pods fit, ascending
    complete: bool = True  #: whether the search ended before the budget did

    def gained(self, moves: int) -> int:
        """Return how many more pods fit after at most so many moves."""
        return max((gain for count, gain in self.gains if count <= moves), default=0)


_Hosts = Mapping[str, TentativeHost]  #: the hosts that differ from the present ones


class _Room(NamedTuple):
    """A way to make room: what the hosts are afterwards, and the steps."""

    hosts: _Hosts
    steps: tuple[PlanStep, ...] = ()
    evicted: frozenset[str] = frozenset()  #: uids of all evicted pods, of earlier rooms as well


_UNDECIDED = unknown("not decided yet")
_UNKNOWN_STATE, _NOT_THERE = unknown("unknown state"), unknown("the pod is not there, or terminates")


class Planner:
    """The search for plans from the present state; *by_host*: decisions depend on more than states of hosts tell."""

    def __init__(
        self, verdicts: HostVerdicts, records: Mapping[str, HostRecord], rules: MoveRules, *, by_host: bool = False
    ) -> None:
        self._verdicts = verdicts
        self._records = records
        self._rules = rules
        self._by_host = by_host
        self._present: dict[str, TentativeHost | None] = {}
        self._usable: dict[Hashable, frozenset[str]] = {}
        self._capacities: dict[Hashable, tuple[int, TentativeHost]] = {}
        self._sufficient_sets: dict[Hashable, tuple[tuple[UnitSet, TentativeHost], ...]] = {}
        self._groups: dict[str, list[RunningPod]] = {}
        for running_pod in rules.pods.values():
            if running_pod.group:
                self._groups.setdefault(running_pod.group, []).append(running_pod)
        self.tried = 0  #: sets of pods
        self._limited = False  #: whether the search left something out
        self._never_admitting: set[str] = set()  #: hosts that reject a pod even without all pods that may be evicted
        self._without_new_places: set[tuple[str, ...]] = (
            set()
        )  #: pods that would make room, and whose replacements fit nowhere

    # Plans

    def plan(
        self, pods: Sequence[PendingPod], placed_bindings: Sequence[GangBinding] = (), *, at_least: int = 0
    ) -> MovePlan:
        """Return the smallest plan that was found for *pods*, beside the pods of their gang in *placed_bindings*.

        Several pods are placed one after the other, each with the fewest moves beside the pods before. At least
        *at_least* moves are certainly needed.
        """
        room = _Room({})
        for pod, host in placed_bindings:
            room = self._place(room, PlanStep(pod, host, _UNDECIDED)) or room
        for pending_pod in pods:
            more, fewest = self._make_room(room, pending_pod)
            if more is None:
                beside = " beside the rest of its gang" if len(pods) + len(placed_bindings) > 1 else ""
                problem = f"{pending_pod.name} finds no room{beside}: {self._explain(pending_pod)}"
                return MovePlan(problem=problem, tried=self.tried)
            room = more
            if len(pods) == 1 and not placed_bindings:
                at_least = fewest
        steps = self.verify(room.steps)
        if steps is None:
            return MovePlan(problem="the steps that were found do not follow each other", tried=self.tried)
        cost = EvictionCost.total([self._cost(self._rules.pods[uid]) for uid in room.evicted])
        return MovePlan(steps, cost, at_least, tried=self.tried)

    def verify(self, steps: Sequence[PlanStep]) -> tuple[PlanStep, ...] | None:
        """Decide on all *steps* in order from the present state; ``None`` if a step is not possible."""
        proved_steps, problem = self.prove(steps)
        return None if problem else proved_steps

    def prove(self, steps: Sequence[PlanStep]) -> tuple[tuple[PlanStep, ...], Verdict | None]:
        """Decide on *steps* in order from the present state; return the possible ones, and what the next one lacks."""
        hosts: dict[str, TentativeHost] = {}
        proved_steps: list[PlanStep] = []
        for step in steps:
            host = self._host(hosts, step.host)
            if host is None:
                return tuple(proved_steps), _UNKNOWN_STATE
            after: TentativeHost | None
            if step.evicts:
                if not host.holds(step.pod.uid):
                    return tuple(proved_steps), _NOT_THERE
                after = host.without((step.pod.uid,))
            else:
                shape = self._verdicts.shape(step.pod)
                verdict = self._verdicts.of_tentative(step.host, host, shape)
                if verdict.inventories is not None:
                    verdict = verdict.for_host(self._records[step.host].ledger.devices.inventories)
                step = replace(step, verdict=verdict)  # noqa: PLW2901 - with its proof
                after = self._verdicts.admit_tentatively(step.host, host, shape)
                if after is None:
                    return tuple(proved_steps), verdict
            hosts[step.host] = after
            proved_steps.append(step)
        return tuple(proved_steps), None

    def _make_room(self, room: _Room, pending_pod: PendingPod) -> tuple[_Room | None, int]:
        """Return the cheapest room with the fewest moves that was found, and how many are certainly needed."""
        self._limited = False
        self._never_admitting.clear()
        best: _Room | None = None
        count = 0
        try:
            for host, after in self._targets(room.hosts, pending_pod):
                step = PlanStep(pending_pod.pod, host, _UNDECIDED)
                return _Room({**room.hosts, host: after}, (*room.steps, step), room.evicted), 0
            best = self._quick_room(room, pending_pod) or self._quick_room(room, pending_pod, depth=QUICK_DEPTH)
            if best is not None and self._rules.first:
                return best, 1
            most = self._rules.max_moves if best is None else len(best.evicted) - len(room.evicted)
            for count in range(1, most + 1):
                if best is not None and count == most > PROVED_MOVES:
                    break  # no plan has fewer moves; to try all sets of this size for a cheaper one takes too long
                cheapest = None
                for other in self._rooms(room, pending_pod, count, most=1):
                    if cheapest is None or self._order(other) < self._order(cheapest):
                        best = cheapest = other  # stays the best if time runs out
                if cheapest is not None or count >= len(self._rules.pods):
                    break
        except SearchTimeoutError:
            self._limited = True
            return best, max(count, 1)
        return best, 1 if self._limited else count

    def _quick_room(self, room: _Room, pending_pod: PendingPod, *, depth: int = 0, exclude: str = "") -> _Room | None:
        """Return a room on one of the most promising hosts, without a proof that it needs the fewest moves.

        Moves that make room for a moved pod are tried up to *depth*, the first that are found.
        """
        best: _Room | None = None
        hosts = (host for host in self._promising(room.hosts, pending_pod) if host != exclude)
        for host in islice(hosts, QUICK_HOSTS):
            search = self._search(room, pending_pod.pod, host)
            spared_units = search.spare() if search.units else None
            if spared_units is None:
                self._never_admitting.update(() if exclude else (host,))
                continue
            start, leavers = self._without(room, host, *spared_units)
            moves = self._quick_places(start._replace(steps=()), leavers, host, depth)
            if moves is None:
                self._without_new_places.update(() if exclude else (_uids(leavers),))
                continue
            if len(moves.evicted) <= self._rules.max_moves:
                other = _completed(room, moves, PlanStep(pending_pod.pod, host, _UNDECIDED))
                best = other if best is None or self._order(other) < self._order(best) else best
                if depth or exclude:
                    break
        return best

    def _quick_places(self, room: _Room, leavers: Sequence[RunningPod], target: str, depth: int) -> _Room | None:
        """Return the first new places of pods that leave, each found after the places before; ``None``: there are none.

        Up to *depth*, moves make room for a pod that fits nowhere.
        """
        for running_pod in leavers:
            pending_pod, evictions = PendingPod(running_pod.pod, running_pod.hosts), self._evictions(running_pod)
            new_place = next(self._targets(room.hosts, pending_pod), None) if running_pod.moves else None
            inner = None
            if new_place is None and running_pod.moves and depth:
                next_room = _Room(room.hosts, (), room.evicted)
                inner = self._quick_room(next_room, pending_pod, depth=depth - 1, exclude=target)
            if new_place is not None:
                host, after = new_place
                arrival = PlanStep(running_pod.pod, host, _UNDECIDED, replacement=True)
                hosts = {**room.hosts, host: after}
                room = _Room(hosts, (*room.steps, *evictions, arrival), room.evicted)
            elif inner is not None:
                room = _before_arrival(room, inner, running_pod, evictions)
            elif running_pod.preemptible:
                room = room._replace(steps=(*room.steps, *evictions))
            else:
                return None
        return room

    def _rooms(
        self, room: _Room, pending_pod: PendingPod, count: int, *, exclude: str = "", most: int | None = None
    ) -> Iterator[_Room]:
        """Yield the ways to make room with *count* moves, including moves of pods that have to make room.

        Of each set of pods on one host, *most* ways to find new places are yielded.
        """
        for host in self._promising(room.hosts, pending_pod):
            if host == exclude or (count > PROVED_MOVES and host in self._never_admitting):
                continue
            for size in range(1, count + 1):
                for units, after in self._sufficient(room, pending_pod.pod, host, size):
                    yield from islice(
                        self._rooms_with(room, pending_pod, host, units, after, moves_left=count - size), most
                    )

    def _rooms_with(  # noqa: PLR0913 - one set of pods on one host
        self, room: _Room, pending_pod: PendingPod, host: str, units: UnitSet, after: TentativeHost, *, moves_left: int
    ) -> Iterator[_Room]:
        """Yield the rooms after the eviction of *units*, if at most *moves_left* more moves find new places."""
        start, leavers = self._without(room, host, units, after)
        moved = False
        for moves in self._find_new_places(start._replace(steps=()), leavers, host, moves_left):
            moved = True
            yield _completed(room, moves, PlanStep(pending_pod.pod, host, _UNDECIDED))
        if not moved:
            self._without_new_places.add(_uids(leavers))

    def _without(self, room: _Room, host: str, units: UnitSet, after: TentativeHost) -> tuple[_Room, list[RunningPod]]:
        """Return the hosts without *units*, with *host* as it is *after* that, and all pods that leave."""
        leavers = [running_pod for unit in units for running_pod in self._members(unit)]
        hosts = {**room.hosts, host: after}
        for running_pod in leavers:
            other = None if running_pod.host == host else self._host(hosts, running_pod.host)
            if other is not None:
                hosts[running_pod.host] = other.without((running_pod.pod.uid,))
        return _Room(hosts, room.steps, room.evicted | {running_pod.pod.uid for running_pod in leavers}), leavers

    def _find_new_places(
        self, room: _Room, leavers: Sequence[RunningPod], target: str, moves_left: int
    ) -> Iterator[_Room]:
        """Yield the ways to find places for the pods *leavers*, in this order, with at most *moves_left* more moves.

        *target* is the host that the pods make room on: other pods that leave this host are another set.
        """
        if not leavers:
            yield room
            return
        running_pod, rest = leavers[0], leavers[1:]
        evictions = self._evictions(running_pod)
        if running_pod.moves:
            pending_pod = PendingPod(running_pod.pod, running_pod.hosts)
            for host, after in self._targets(room.hosts, pending_pod):
                arrival = PlanStep(running_pod.pod, host, _UNDECIDED, replacement=True)
                next_room = _Room({**room.hosts, host: after}, (*room.steps, *evictions, arrival), room.evicted)
                yield from self._find_new_places(next_room, rest, target, moves_left)
            for count in range(1, moves_left + 1):
                for inner in self._rooms(_Room(room.hosts, (), room.evicted), pending_pod, count, exclude=target):
                    next_room = _before_arrival(room, inner, running_pod, evictions)
                    yield from self._find_new_places(next_room, rest, target, moves_left - count)
        if running_pod.preemptible:
            yield from self._find_new_places(room._replace(steps=(*room.steps, *evictions)), rest, target, moves_left)

    def _evictions(self, running_pod: RunningPod) -> tuple[PlanStep, ...]:
        """Return the evictions before a pod gets a new place: a group leaves as a whole before its first pod does."""
        group = self._group(running_pod)
        return tuple([PlanStep(member.pod, member.host) for member in (group if group[0] is running_pod else ())])

    # More pods of one shape

    def defragment(self, pending_pod: PendingPod) -> Defragmentation:
        """Return moves that let more pods like *pending_pod* fit. Hosts with few moves for one more pod come first.

        Sets of one, two and three pods are tried on each host, and a pod moves once. What all hosts hold is counted
        after each move, so a new place never costs as much as the move brings.
        """
        room, gained_pods, complete = _Room({}), 0, True
        gains: list[tuple[int, int]] = []
        names = self._promising({}, pending_pod)
        capacity = sum(self._capacity(host, pending_pod.pod) for name in names if (host := self._host({}, name)))
        size = 1
        try:
            while size <= MAX_SET and len(room.evicted) + size <= self._rules.max_moves:
                gained_before = gained_pods
                for name in names:
                    better, gain = self._improve(room, pending_pod, name, size)
                    if better is not None and len(better.evicted) <= self._rules.max_moves:
                        room, gained_pods = better, gained_pods + gain
                        gains.append((len(room.evicted), gained_pods))
                    if len(room.evicted) + size > self._rules.max_moves:
                        break
                size += gained_pods == gained_before
        except SearchTimeoutError:
            complete = False
        steps = self.verify(room.steps)
        if steps is None:  # the moves do not follow each other, so none is proposed
            return Defragmentation(capacity, complete=False)
        return Defragmentation(capacity, steps, tuple(gains), complete)

    def _improve(self, room: _Room, pending_pod: PendingPod, name: str, size: int) -> tuple[_Room | None, int]:
        """Return the hosts after moves of *size* pods from one host that let more pods fit, and how many more."""
        host = self._host(room.hosts, name)
        if host is None:
            return None, 0
        capacity = self._capacity(host, pending_pod.pod)
        usable = self.hosts_for(pending_pod)

        def prove(after: TentativeHost) -> TentativeHost | None:
            return after if self._capacity(after, pending_pod.pod) > capacity else None

        for units, after in self._search(room, pending_pod.pod, name, prove).sufficient(size):
            start, leavers = self._without(room, name, units, after)
            for new_room in islice(self._find_new_places(start._replace(steps=()), leavers, name, 0), MAX_TARGETS):
                changed_hosts = [other for other, state in new_room.hosts.items() if state is not room.hosts.get(other)]
                gain = sum(
                    self._capacity(new_room.hosts[other], pending_pod.pod) - self._capacity(state, pending_pod.pod)
                    for other in changed_hosts
                    if other in usable and (state := self._host(room.hosts, other))
                )
                if gain > 0:
                    leaving_steps, arrivals = _split(new_room.steps, name)
                    return new_room._replace(steps=(*room.steps, *leaving_steps, *arrivals)), gain
        return None, 0

    def _capacity(self, host: TentativeHost, pod: Pod) -> int:
        """Return how many pods of one shape a host holds beside its own."""
        shape = self._verdicts.shape(pod)
        key = (host.key, shape)
        if key not in self._capacities:
            current, count = host.with_pod(shape), 0
            while current is not None and count < MAX_CAPACITY:
                current, count = current.with_pod(shape), count + 1
            self._capacities[key] = count, host  # whose identity is in the key
        return self._capacities[key][0]

    # Hosts

    def _targets(self, hosts: _Hosts, pending_pod: PendingPod) -> Iterator[tuple[str, TentativeHost]]:
        """Yield the hosts that admit a pod, with their states after it: of hosts in the same state only the first."""
        self._check_time()
        shape = self._verdicts.shape(pending_pod.pod)
        tried_keys: set[Hashable] = set()
        usable = self.hosts_for(pending_pod)
        names = (name for name in self._verdicts.of_all(pending_pod.pod).by_rank(usable) if name not in hosts)
        usable_names = [name for name in hosts if name in usable]
        for name in chain(names, usable_names):
            host = self._host(hosts, name)
            if host is None or host.key in tried_keys:
                continue
            if len(tried_keys) >= MAX_TARGETS and name not in hosts:
                self._limited = True
                continue
            tried_keys.add(host.key)
            after = self._verdicts.admit_tentatively(name, host, shape)
            if after is not None:
                yield name, after

    def _promising(self, hosts: _Hosts, pending_pod: PendingPod) -> list[str]:
        """Return the hosts on which room may be made, hosts that lack least first."""
        verdicts = self._verdicts.of_all(pending_pod.pod).verdicts
        names = self.hosts_for(pending_pod)
        return sorted(
            (name for name in names if self._host(hosts, name)), key=lambda name: (lack(verdicts[name]), name)
        )

    def hosts_for(self, pending_pod: PendingPod) -> frozenset[str]:
        """Return the hosts that schedulers send a pod to: the pod's own, if they offer all devices that it requests.

        A kubelet that gets a pod with other devices ignores these requests.
        """
        key = (
            self._verdicts.shape(pending_pod.pod),
            None if pending_pod.hosts is None else frozenset(pending_pod.hosts),
        )
        if key not in self._usable:
            names = self._records if pending_pod.hosts is None else self._records.keys() & pending_pod.hosts
            self._usable[key] = frozenset(
                name
                for name in names
                if not self._records[name].model.at(self._records[name].ledger).missing_devices(pending_pod.pod)
            )
        return self._usable[key]

    def _host(self, hosts: _Hosts, name: str) -> TentativeHost | None:
        host = hosts.get(name)
        if host is not None:
            return host
        if name not in self._present:
            record = self._records.get(name)
            self._present[name] = (
                self._verdicts.tentative(record, by_host=self._by_host, own_pods=True) if record else None
            )
        return self._present[name]

    def _place(self, room: _Room, step: PlanStep) -> _Room | None:
        host = self._host(room.hosts, step.host)
        after = host and self._verdicts.admit_tentatively(step.host, host, self._verdicts.shape(step.pod))
        return _Room({**room.hosts, step.host: after}, (*room.steps, step), room.evicted) if after else None

    # Evictions on one host

    def _sufficient(self, room: _Room, pod: Pod, host: str, size: int) -> Iterable[tuple[UnitSet, TentativeHost]]:
        key = (host, room.hosts.get(host), room.evicted, self._verdicts.shape(pod), size)
        if key not in self._sufficient_sets:
            self._sufficient_sets[key] = tuple(self._search(room, pod, host).sufficient(size))
        return self._sufficient_sets[key]

    def _search(
        self,
        room: _Room,
        pod: Pod,
        name: str,
        prove: Callable[[TentativeHost], TentativeHost | None] | None = None,
    ) -> EvictionSearch[TentativeHost]:
        """Return the search for pods of a host without which it admits *pod*, or else *prove* returns something."""
        host, shape = self._host(room.hosts, name), self._verdicts.shape(pod)
        if host is None:
            return EvictionSearch((), lambda _: None, HostShortage((), {}))

        def prove_without(uids: tuple[str, ...]) -> TentativeHost | None:
            self._check_time()
            self.tried += 1
            if count_violations(self._rules.budgets, room.evicted.union(*map(self._together, uids))):
                return None
            after = host.without(uids)
            return prove(after) if prove else self._verdicts.admit_tentatively(name, after, shape)

        present = host.states[0].alignment.model.at(host.states[0].ledger)
        shortage = HostShortage.of(present, shape.pod)
        units = [
            unit
            for unit in find_units(present, shape.pod, shortage, cost=self._cost_on_host)
            if unit.pods[0] not in room.evicted and host.holds(unit.pods[0]) and self._may_leave(unit.pods[0])
        ]
        # The whole host may have room for one more pod, and not for as many as are to fit.
        return EvictionSearch(self._merge_groups(units), prove_without, HostShortage((), {}) if prove else shortage)

    def _merge_groups(self, units: Iterable[EvictionUnit]) -> Iterator[EvictionUnit]:
        """Yield the units; the units of one group become one."""
        by_group: dict[str, list[EvictionUnit]] = {}
        for unit in units:
            group = self._rules.pods[unit.pods[0]].group
            if group:
                by_group.setdefault(group, []).append(unit)
            else:
                yield unit
        for group, together in by_group.items():
            yield EvictionUnit.together(together, EvictionCost.total(list(map(self._cost, self._groups[group]))))

    def _may_leave(self, uid: str) -> bool:
        running_pod = self._rules.pods.get(uid)
        return running_pod is not None and not any(
            member.protected or not (member.moves or member.preemptible) for member in self._group(running_pod)
        )

    def _group(self, running_pod: RunningPod) -> Sequence[RunningPod]:
        return self._groups[running_pod.group] if running_pod.group else (running_pod,)

    def _together(self, uid: str) -> list[str]:
        return [member.pod.uid for member in self._group(self._rules.pods[uid])]

    def _members(self, unit: EvictionUnit) -> Sequence[RunningPod]:
        """Return all pods that leave with *unit*, on other hosts as well."""
        return self._group(self._rules.pods[unit.pods[0]])

    def _cost(self, running_pod: RunningPod) -> EvictionCost:
        memory = self._verdicts.shape(running_pod.pod).usage.memory
        return EvictionCost(1, (running_pod.pod.priority or 0,), memory, running_pod.age)

    def _cost_on_host(self, arrival: int, admitted_pod: AdmittedPod) -> EvictionCost:
        running_pod = self._rules.pods.get(admitted_pod.pod.uid)
        return default_cost(arrival, admitted_pod) if running_pod is None else self._cost(running_pod)

    def _order(self, room: _Room) -> tuple[EvictionCost, tuple[str, ...]]:
        cost = EvictionCost.total([self._cost(self._rules.pods[uid]) for uid in room.evicted])
        return cost, tuple([step.pod.uid for step in room.steps if step.evicts])

    def _check_time(self) -> None:
        if self._rules.should_stop():
            raise SearchTimeoutError

    # Words

    def _explain(self, pending_pod: PendingPod) -> str:
        """Return why no plan was found for a pod."""
        names = self.hosts_for(pending_pod)
        if not names:
            return "no node is considered for it, or none has the devices that it requests"
        reasons = []
        if self._never_admitting:
            reasons.append(f"evicting all pods that may be evicted is not enough on {_nodes(self._never_admitting)}")
        if self._without_new_places:
            sets = f"{len(self._without_new_places)} set{'s' * (len(self._without_new_places) > 1)} of pods"
            reasons.append(f"{sets} would make room, but the pods fit nowhere else")
        if self._limited:
            reasons.append("not everything was tried within the budget")
        protected_counts = Counter(
            entry.protected for entry in self._rules.pods.values() if entry.protected and entry.host in names
        )
        if protected_counts:
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(protected_counts.items()))
            reasons.append(f"pods that are never evicted: {counts}")
        return "; ".join(reasons) or f"no set of at most {self._rules.max_moves} pods was found that makes room"


def _uids(leavers: Iterable[RunningPod]) -> tuple[str, ...]:
    return tuple(sorted(running_pod.pod.uid for running_pod in leavers))


def _completed(room: _Room, moves: _Room, arrival: PlanStep) -> _Room:
    """Return *moves* with the *arrival* that they make room for, after the steps of *room*."""
    leaving_steps, arrivals = _split(moves.steps, arrival.host)
    return moves._replace(steps=(*room.steps, *leaving_steps, arrival, *arrivals))


def _before_arrival(room: _Room, inner: _Room, running_pod: RunningPod, evictions: Sequence[PlanStep]) -> _Room:
    """Return the room *inner* for a pod that moves, after the steps of *room*.

    The *evictions* of the pod go right before its arrival, after the moves that it needs.
    """
    position = next(at for at, step in enumerate(inner.steps) if step.pod is running_pod.pod)
    arrival = replace(inner.steps[position], replacement=True)
    return inner._replace(
        steps=(*room.steps, *inner.steps[:position], *evictions, arrival, *inner.steps[position + 1 :])
    )


def _split(steps: Sequence[PlanStep], host: str) -> tuple[list[PlanStep], list[PlanStep]]:
    """Split off the arrivals on the host that gets room: arrivals were decided after all pods that leave the host."""
    arrivals = [step for step in steps if not step.evicts and step.host == host]
    return [step for step in steps if step.evicts or step.host != host], arrivals


def lack(verdict: Verdict) -> float:
    """Return how much a host lacks for a pod, from 0 on: of the NUMA node that lacks least, and of the whole host."""
    shortfalls = verdict.rejection.shortfalls if verdict.rejection else ()
    by_place: dict[int | None, float] = {}
    for short in shortfalls:
        by_place[short.nodes] = by_place.get(short.nodes, 0.0) + short.missing / max(short.needed, 1)
    whole = by_place.pop(None, 0.0)
    return whole + min(by_place.values(), default=0.0)


def _nodes(names: Collection[str]) -> str:
    sorted_names = sorted(names)
    more = f" and {len(sorted_names) - MAX_NAMES} more" if len(sorted_names) > MAX_NAMES else ""
    return ", ".join(sorted_names[:MAX_NAMES]) + more
