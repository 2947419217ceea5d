"""Victims: the smallest sets of pods with lower priority whose end lets a host admit a pod.

Every set is proved by deciding again without its pods. Disruption budgets are respected unless violations are allowed;
then sets with fewer violations come first. Admission is nearly monotone, so if the pod is rejected even without all
pods of lower priority, no set is searched for.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from alignup.align import fit
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.host_record import HostRecord
from alignup.placement.host_verdicts import used_key
from alignup.placement.pod_shape import build_shape

MAX_VICTIMS = 3  #: pods in a set that is searched for exhaustively
MAX_TRIES = 3000  #: sets tried for one pod on one host
MAX_SETS = 16  #: sets returned


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget: how many of its pods may still be disrupted."""

    name: str
    allowed: int
    pods: frozenset[str]  #: uids


@dataclass(frozen=True, slots=True)
class VictimSet:
    pods: tuple[str, ...]  #: uids, the lowest priority first
    highest_priority: int
    violations: int  #: disruptions beyond what budgets allow


@dataclass(frozen=True, slots=True)
class VictimSearch:
    sets: tuple[VictimSet, ...]  #: of equal size, best first; an empty set: the host admits the pod without any end
    complete: bool  #: whether there is certainly no smaller set, and none at all if ``sets`` is empty


class _Search:
    def __init__(
        self, record: HostRecord, pod: Pod, *, budgets: Sequence[DisruptionBudget], allow_violations: bool
    ) -> None:
        self.record = record
        self.pod = build_shape(pod).pod  # which no ledger contains
        self.budgets, self.allow_violations = budgets, allow_violations
        self.ledgers = record.states().ledgers
        self.tries = 0
        self._known: dict[Hashable, bool] = {}  #: whether hosts in a state admit the pod

    def admits_without(self, uids: Collection[str]) -> bool:
        """Return whether the pod is admitted in every possible state of the host after the end of these pods."""
        self.tries += 1
        return all(self._admits(self.record.model.without(ledger, uids)) for ledger in self.ledgers)

    def _admits(self, ledger: Ledger) -> bool:
        key = (ledger.alignment_key(), used_key(ledger.used))
        if fit.is_critical(self.pod) or key not in self._known:  # for a critical pod, it matters which pods are left
            self._known[key] = self.record.model.admit(ledger, self.pod) is not None
        return self._known[key]

    def violations(self, uids: Collection[str]) -> int:
        return sum(max(0, len(budget.pods.intersection(uids)) - budget.allowed) for budget in self.budgets)

    def acceptable(self, uids: Collection[str]) -> bool:
        return self.allow_violations or not self.violations(uids)


def find_victims(
    record: HostRecord, pod: Pod, *, budgets: Sequence[DisruptionBudget] = (), allow_violations: bool = False
) -> VictimSearch:
    """Return the smallest sets of pods with a lower priority than *pod* whose end lets the host admit it."""
    search = _Search(record, pod, budgets=budgets, allow_violations=allow_violations)
    if not search.ledgers:
        return VictimSearch((), complete=False)
    if search.admits_without(()):
        return VictimSearch((VictimSet((), 0, 0),), complete=True)
    priorities = _lower_priorities(pod, search.ledgers)
    candidates = [uid for uid in priorities if search.acceptable((uid,))]
    if not candidates or not search.admits_without(candidates):
        return VictimSearch((), complete=True)
    bound = _reprieve(search, candidates)
    smallest, complete = _smallest(search, candidates, at_most=min(len(bound), MAX_VICTIMS))
    if not smallest and search.acceptable(bound):
        smallest, complete = [bound], complete and len(bound) <= MAX_VICTIMS + 1
    sets = [VictimSet(uids, max(map(priorities.__getitem__, uids)), search.violations(uids)) for uids in smallest]
    return VictimSearch(tuple(sorted(sets, key=lambda victims: _cost(victims, priorities))), complete and bool(sets))


def _smallest(search: _Search, candidates: Sequence[str], *, at_most: int) -> tuple[list[tuple[str, ...]], bool]:
    """Return sets of the smallest sufficient size, and whether all smaller ones were tried."""
    sufficient: list[tuple[str, ...]] = []
    for size in range(1, at_most + 1):
        for chosen in combinations(candidates, size):
            if search.tries >= MAX_TRIES or len(sufficient) >= MAX_SETS:
                return sufficient, bool(sufficient)
            if search.acceptable(chosen) and search.admits_without(chosen):
                sufficient.append(chosen)
        if sufficient:
            break
    return sufficient, True


def _lower_priorities(pod: Pod, ledgers: Sequence[Ledger]) -> dict[str, int]:
    """Return the priority of every pod below that of *pod*, the lowest first, the newest first among equals."""
    own_priority = pod.priority or 0
    present = [
        (admitted.pod.priority or 0, -place, uid)
        for place, (uid, admitted) in enumerate(ledgers[0].pods.items())
        if (admitted.pod.priority or 0) < own_priority and all(uid in ledger.pods for ledger in ledgers)
    ]
    return {uid: priority for priority, _, uid in sorted(present)}


def _reprieve(search: _Search, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return a set from which no pod can be spared, found by sparing the most important pods first."""
    ending = list(candidates)
    for uid in _important_first(search, candidates):
        rest = [other for other in ending if other != uid]
        if search.admits_without(rest):
            ending = rest
    return tuple(ending)


def _important_first(search: _Search, candidates: Sequence[str]) -> Iterator[str]:
    protected = [uid for uid in candidates if any(uid in budget.pods for budget in search.budgets)]
    yield from reversed(protected)
    yield from (uid for uid in reversed(candidates) if uid not in protected)


def _cost(victims: VictimSet, priorities: dict[str, int]) -> tuple[int, int, int, tuple[str, ...]]:
    return victims.violations, victims.highest_priority, sum(priorities[uid] for uid in victims.pods), victims.pods
