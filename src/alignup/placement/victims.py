"""Victims: the smallest sets of pods with lower priority whose end lets a host admit a pod.

``align.eviction_search`` tries the sets, and each is proved by deciding again. Disruption budgets are respected unless
violations are allowed; then sets with fewer violations come first. Admission is nearly monotone, so if the pod is
rejected even without all pods of lower priority, no set is searched for.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from alignup.align import fit
from alignup.align.eviction_search import (
    EvictionCost,
    EvictionSearch,
    EvictionUnit,
    HostShortage,
    SearchTimeoutError,
    UnitSet,
    find_units,
)
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


def count_violations(budgets: Iterable[DisruptionBudget], uids: Collection[str]) -> int:
    """Return the disruptions beyond what *budgets* allow, if these pods are evicted."""
    return sum(max(0, len(budget.pods.intersection(uids)) - budget.allowed) for budget in budgets)


class _Proofs:
    """Decisions on a pod after the end of others, in every possible state of a host."""

    def __init__(
        self, record: HostRecord, pod: Pod, *, budgets: Sequence[DisruptionBudget], allow_violations: bool
    ) -> None:
        self.record = record
        self.pod = build_shape(pod).pod  # which no ledger contains
        self.budgets = budgets
        self.allow_violations = allow_violations
        self.ledgers = record.states().ledgers
        self.tries = 0
        self._admitting: dict[Hashable, bool] = {}  #: whether hosts in a state admit the pod

    def admits_without(self, uids: Collection[str]) -> bool:
        """Return whether the pod is admitted in every possible state of the host after the end of these pods."""
        self.tries += 1
        return all(self._admits(self.record.model.without(ledger, uids)) for ledger in self.ledgers)

    def _admits(self, ledger: Ledger) -> bool:
        key = (ledger.alignment_key(), used_key(ledger.used))
        if fit.is_critical(self.pod) or key not in self._admitting:  # for a critical pod, it matters which are left
            self._admitting[key] = self.record.model.admit(ledger, self.pod) is not None
        return self._admitting[key]

    def prove(self, uids: tuple[str, ...]) -> bool | None:
        if not self.acceptable(uids):
            return None
        if self.tries >= MAX_TRIES:
            raise SearchTimeoutError
        return self.admits_without(uids) or None

    def acceptable(self, uids: Collection[str]) -> bool:
        return self.allow_violations or not count_violations(self.budgets, uids)


def admits_without(record: HostRecord, pod: Pod, uids: Collection[str]) -> bool:
    """Return whether the host admits *pod* in every possible state once these pods have ended."""
    proofs = _Proofs(record, pod, budgets=(), allow_violations=True)
    return bool(proofs.ledgers) and proofs.admits_without(uids)


def find_victims(
    record: HostRecord, pod: Pod, *, budgets: Sequence[DisruptionBudget] = (), allow_violations: bool = False
) -> VictimSearch:
    """Return the smallest sets of pods with a lower priority than *pod* whose end lets the host admit it."""
    proofs = _Proofs(record, pod, budgets=budgets, allow_violations=allow_violations)
    if not proofs.ledgers:
        return VictimSearch((), complete=False)
    if proofs.admits_without(()):
        return VictimSearch((VictimSet((), 0, 0),), complete=True)
    host = record.model.at(proofs.ledgers[0])
    shortage = HostShortage.of(host, proofs.pod)
    units = [
        unit
        for unit in find_units(host, proofs.pod, shortage)
        if unit.cost.priorities[0] < (pod.priority or 0)
        and all(unit.pods[0] in ledger.pods for ledger in proofs.ledgers)
        and proofs.acceptable(unit.pods)
    ]
    eviction_search = EvictionSearch(
        _protected_last(units, budgets), lambda uids: proofs.admits_without(uids) or None, shortage
    )
    spared_units = eviction_search.spare() if units else None
    if spared_units is None:
        return VictimSearch((), complete=True)
    search = EvictionSearch(units, proofs.prove, shortage)
    result = search.smallest(min(len(spared_units[0]), MAX_VICTIMS), most=MAX_SETS)
    smallest = [victims for victims, _ in result.sufficient]
    complete = not result.timed_out or bool(smallest)
    if not smallest and proofs.acceptable(uids := [unit.pods[0] for unit in spared_units[0]]):
        smallest, complete = [spared_units[0]], complete and len(uids) <= MAX_VICTIMS + 1
    smallest.sort(key=lambda victims: EvictionCost.total([unit.cost for unit in victims]))
    sets = sorted((_victim_set(victims, budgets) for victims in smallest), key=lambda victims: victims.violations)
    return VictimSearch(tuple(sets), complete and bool(sets))


def _protected_last(units: Sequence[EvictionUnit], budgets: Sequence[DisruptionBudget]) -> Iterator[EvictionUnit]:
    """Yield the units as if the units that budgets protect were the most expensive."""
    for unit in units:
        is_protected = any(unit.pods[0] in budget.pods for budget in budgets)
        yield replace(unit, cost=unit.cost._replace(pods=2 if is_protected else 1))


def _victim_set(units: UnitSet, budgets: Sequence[DisruptionBudget]) -> VictimSet:
    uids = tuple([unit.pods[0] for unit in sorted(units, key=lambda unit: unit.cost)])
    highest = max(unit.cost.priorities[0] for unit in units)
    return VictimSet(uids, highest, count_violations(budgets, uids))
