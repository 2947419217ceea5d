"""Gangs: pods that start together or not at all, decided together before the first is bound.

Every member is tried on hosts that already have the members before it, so the answer is what the kubelets will decide
if the members are bound in its order. Members of one gang do not wait for reports about each other.

Members with the same shape and the same eligible hosts are of one *kind*. The hosts are filled one after the other, the
best first, with the kind that fewest hosts admit first. For one kind, this places as many members as possible. With
several kinds, it may not. Then the search continues with all numbers of members of each kind that each host can hold,
in any order of binding, and with all sums of these. Hosts that decide alike are searched once, and the work is limited:
by steps, by kinds, and for the reasons why the rest does not fit by as many steps again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from alignup.align.workload import Pod
from alignup.placement.host_record import HostRecord
from alignup.placement.host_verdicts import HostVerdicts, TentativeHost
from alignup.placement.pod_shape import PodShape
from alignup.placement.verdict import Feasibility

MAX_STEPS = 2500  #: of one search; a step is a decision, or the addition of ``_ADDITIONS`` numbers of members
_ADDITIONS = 400
_CONTAINERS = 4  #: of a pod, for which a decision about it takes about a step
MAX_KINDS = 200  #: that are searched; a gang of as many different pods would take minutes

EligibleHosts = Callable[[Pod], Collection[str]]  #: the hosts that a scheduler considers for a member
HasRoom = Callable[[str, Sequence[Pod]], bool]  #: whether a host has room for the last of these beside the others
_Counts = tuple[int, ...]  #: members of each kind
_Path = tuple[int, ...]  #: the kinds of the members of one host, in the order of their binding


class GangBinding(NamedTuple):
    pod: Pod
    host: str


@dataclass(frozen=True, slots=True)
class GangAnswer:
    """Where the members of a gang go: all members, or the largest part that was found."""

    bindings: tuple[GangBinding, ...]  #: in the order in which pods on one host must be bound
    rest: tuple[Pod, ...] = ()  #: members that fit nowhere beside these
    verdicts: Mapping[str, Feasibility] = field(default_factory=dict)  #: by uid of the rest, of eligible hosts
    proved: bool = True  #: whether certainly no larger part fits; ``False``: none was found within ``steps``
    steps: int = 0

    @property
    def fits(self) -> bool:
        return not self.rest

    @property
    def hosts(self) -> dict[str, str]:
        """The host of each member by uid."""
        return {binding.pod.uid: binding.host for binding in self.bindings}


class _Kind(NamedTuple):
    shape: PodShape
    hosts: frozenset[str] | None  #: eligible ones; ``None``: all
    members: list[Pod]

    def may_use(self, host: str) -> bool:
        return self.hosts is None or host in self.hosts


def place_gang(  # noqa: PLR0913 - one question
    verdicts: HostVerdicts,
    records: Mapping[str, HostRecord],
    members: Sequence[Pod],
    *,
    placed_on: Mapping[str, str],
    eligible: EligibleHosts | None = None,
    has_room: HasRoom | None = None,
    max_steps: int = MAX_STEPS,
) -> GangAnswer:
    """Decide on all *members* together; *placed_on*: the hosts of members that are assumed or bound already, by uid.

    *has_room* may refuse members that a host would admit. ``PodError`` if no host could decide on one of them.
    """
    placed_before = [GangBinding(pod, placed_on[pod.uid]) for pod in members if pod.uid in placed_on]
    waiting_pods = [pod for pod in members if pod.uid not in placed_on]
    kinds = _sort_into_kinds(verdicts, waiting_pods, eligible)

    def fits(host: str, path: _Path) -> bool:
        return has_room is None or has_room(host, [kinds[number].members[0] for number in path])

    not_searched = [pod for kind in kinds[MAX_KINDS:] for pod in kind.members]
    kinds = kinds[:MAX_KINDS]
    search = _Search(verdicts, records, kinds, placed_on, max_steps)
    paths, is_proved = search.fill_hosts(fits)
    if not is_proved and len(kinds) > 1:
        more, complete = search.add_up(paths)
        if all(fits(host, path[:end]) for host, path in more.items() for end in range(1, len(path) + 1)):
            paths, is_proved = more, complete  # others might have room where these do not
    members_left = [iter(kind.members) for kind in kinds]
    new_bindings = [GangBinding(next(members_left[kind]), host) for host, path in paths.items() for kind in path]
    rest = {pod.uid: number for number, members in enumerate(members_left) for pod in members}
    reasons = {number: search.verdicts_beside(paths, number) for number in sorted(set(rest.values()))}
    unknown_uids = {pod.uid: Feasibility({}) for pod in not_searched}
    return GangAnswer(
        bindings=(*placed_before, *new_bindings),
        rest=tuple([pod for pod in waiting_pods if pod.uid in rest or pod.uid in unknown_uids]),
        verdicts={uid: reasons[number] for uid, number in rest.items()} | unknown_uids,
        proved=is_proved and not not_searched,
        steps=search.steps,
    )


def _sort_into_kinds(verdicts: HostVerdicts, members: Iterable[Pod], eligible: EligibleHosts | None) -> list[_Kind]:
    kinds: dict[tuple[PodShape, frozenset[str] | None], _Kind] = {}
    host_sets: dict[int, tuple[Collection[str], frozenset[str]]] = {}  #: by identity: most members have the same hosts
    for pod in members:
        hosts = None
        if eligible is not None:
            eligible_hosts = eligible(pod)
            hosts = host_sets.setdefault(id(eligible_hosts), (eligible_hosts, frozenset(eligible_hosts)))[1]
        shape = verdicts.shape(pod)
        kinds.setdefault((shape, hosts), _Kind(shape, hosts, [])).members.append(pod)
    return list(kinds.values())


def _weight(kind: _Kind) -> int:
    """Return how many steps a decision about a member counts as."""
    return max(1, len(kind.shape.pod.all_containers) // _CONTAINERS)


class _OutOfStepsError(Exception):
    """The search has taken all the steps it may take."""


class _Search:
    def __init__(
        self,
        verdicts: HostVerdicts,
        records: Mapping[str, HostRecord],
        kinds: Sequence[_Kind],
        placed_on: Mapping[str, str],
        max_steps: int,
    ) -> None:
        self._verdicts = verdicts
        self._records = records
        self._kinds = kinds
        self._max_steps = max_steps
        self._tables = [verdicts.of_all(kind.members[0]) for kind in kinds]
        self._beside = frozenset(placed_on)
        self._by_host = any(kind.shape.by_host for kind in kinds)
        self._after: dict[tuple[TentativeHost, int], TentativeHost | None] = {}
        self._starts: dict[str, TentativeHost | None] = {}
        self._holding = sorted(set(placed_on.values()))  #: hosts whose kept verdicts count members of the gang
        self._member_counts: _Counts = tuple([len(kind.members) for kind in kinds])
        self._work = 0  #: in additions
        self._steps_to_explain = max_steps

    @property
    def steps(self) -> int:
        return self._work // _ADDITIONS

    def fill_hosts(self, fits: Callable[[str, _Path], bool]) -> tuple[dict[str, _Path], bool]:
        """Place members on one host after the other; return their kinds by host, and whether no more can be placed."""
        paths: dict[str, _Path] = {}
        hosts = {host: start for host in self._holding if (start := self._start(host))}
        complete = True
        try:
            for number in sorted(range(len(self._kinds)), key=self._count_admitting):
                members_left = self._member_counts[number]
                used_hosts = [host for host in hosts if self._kinds[number].may_use(host)]
                for host in chain(used_hosts, self._candidates(number, without=hosts)):
                    if not members_left:
                        break
                    current = hosts.get(host) or self._start(host)
                    path = (*paths.get(host, ()), number)
                    while members_left and current and (after := self._try(host, current, number)) and fits(host, path):
                        hosts[host] = current = after
                        paths[host], path = path, (*path, number)
                        members_left -= 1
                complete = complete and not members_left
        except _OutOfStepsError:
            return paths, False
        return paths, complete or len(self._kinds) <= 1

    def add_up(self, found_paths: dict[str, _Path]) -> tuple[dict[str, _Path], bool]:
        """Search for paths with more members than *found_paths*, among all that the hosts can hold together."""
        groups: dict[tuple[TentativeHost, _Path], list[str]] = {}  #: hosts that decide alike, for the same kinds
        for host in self._all_candidates():
            kinds = tuple([number for number, kind in enumerate(self._kinds) if kind.may_use(host)])
            if start := self._start(host):
                groups.setdefault((start, kinds), []).append(host)
        nothing = (0,) * len(self._kinds)
        reached_counts: dict[_Counts, _Sum | None] = {nothing: None}
        complete = True
        try:
            for (start, kinds), hosts in groups.items():
                held_by_one = self._held(hosts[0], start, kinds)
                newest: Iterable[_Counts] = list(reached_counts)
                for host in hosts:
                    newest = list(self._extend(reached_counts, newest, host, held_by_one))
                    if not newest or self._member_counts in reached_counts:
                        break
                if self._member_counts in reached_counts:
                    break
        except _OutOfStepsError:
            complete = False
        best = max(reached_counts, key=lambda counts: (sum(counts), counts))
        if sum(best) <= sum(map(len, found_paths.values())):
            return found_paths, complete
        paths: dict[str, _Path] = {}
        while last := reached_counts[best]:
            paths[last.host] = last.path
            best = last.before
        return dict(reversed(paths.items())), complete

    def verdicts_beside(self, paths: Mapping[str, _Path], number: int) -> Feasibility:
        """Return the verdicts of eligible hosts on one more member of a kind, beside the placed members."""
        kind = self._kinds[number]
        verdicts = {host: verdict for host, verdict in self._tables[number].verdicts.items() if kind.may_use(host)}
        weight = _weight(kind)
        for host in sorted({*paths, *self._holding}.intersection(verdicts)):
            if self._steps_to_explain < weight:
                del verdicts[host]  # what it said without the placed members is not true any more
                continue
            self._steps_to_explain -= weight
            current = self._start(host)
            for kind_number in paths.get(host, ()):
                current = current and self._after[current, kind_number]
            if current:
                verdicts[host] = self._verdicts.of_tentative(host, current, kind.shape)
        return Feasibility(verdicts)

    def _count_admitting(self, number: int) -> int:
        hosts, admitting_hosts = self._kinds[number].hosts, self._tables[number].admitting()
        return len(admitting_hosts) if hosts is None else sum(host in admitting_hosts for host in hosts)

    def _candidates(self, number: int, *, without: Collection[str] = ()) -> Iterator[str]:
        """Yield the hosts that admit a member of a kind at first, best first."""
        return (host for host in self._tables[number].by_rank(self._kinds[number].hosts) if host not in without)

    def _all_candidates(self) -> Iterable[str]:
        """Return the hosts that admit a member of any kind at first; no other host ever admits one."""
        hosts = chain.from_iterable(self._candidates(number) for number in range(len(self._kinds)))
        return dict.fromkeys(chain(self._holding, hosts))

    def _start(self, host: str) -> TentativeHost | None:
        if host not in self._starts:
            record = self._records[host]
            self._starts[host] = self._verdicts.tentative(record, by_host=self._by_host, beside=self._beside)
        return self._starts[host]

    def _try(self, host: str, current: TentativeHost, number: int) -> TentativeHost | None:
        """Return a host after it has admitted a member of a kind; ``None``: it does not."""
        kind, key = self._kinds[number], (current, number)
        if not kind.may_use(host):
            return None
        if key not in self._after:
            self._spend(len(current.states) * _weight(kind) * _ADDITIONS)
            self._after[key] = self._verdicts.admit_tentatively(host, current, kind.shape)
        return self._after[key]

    def _spend(self, work: int) -> None:
        if self._work + work > self._max_steps * _ADDITIONS:
            raise _OutOfStepsError
        self._work += work

    def _held(self, host: str, start: TentativeHost, kinds: _Path) -> dict[_Counts, _Path]:
        """Return all numbers of members that a host can hold, each with an order of binding."""
        holdings: dict[_Counts, _Path] = {}
        newest: dict[tuple[_Counts, TentativeHost], _Path] = {((0,) * len(self._kinds), start): ()}
        while newest:
            grown: dict[tuple[_Counts, TentativeHost], _Path] = {}
            for (counts, current), path in newest.items():
                for number in kinds:
                    if counts[number] < self._member_counts[number] and (after := self._try(host, current, number)):
                        more = (*counts[:number], counts[number] + 1, *counts[number + 1 :])
                        grown.setdefault((more, after), (*path, number))
                        holdings.setdefault(more, (*path, number))
            newest = grown
        return holdings

    def _extend(
        self,
        reached_counts: "dict[_Counts, _Sum | None]",
        sums: Iterable[_Counts],
        host: str,
        holdings: Mapping[_Counts, _Path],
    ) -> Iterator[_Counts]:
        """Add what *host* can hold to each of the *sums*; yield sums that were not reached before."""
        for earlier_counts in sums:
            self._spend(len(holdings) * len(earlier_counts))
            for counts, path in holdings.items():
                total = tuple(map(int.__add__, earlier_counts, counts))
                if total not in reached_counts and all(map(int.__le__, total, self._member_counts)):
                    reached_counts[total] = _Sum(earlier_counts, host, path)
                    yield total


class _Sum(NamedTuple):
    """The last host of a number of members that was reached."""

    before: _Counts
    host: str
    path: _Path
