"""One host of a cluster: its last report, and everything that happened since, in the order of its kubelet.

The kubelet admits pods in the order in which the API server recorded their bindings, which is the order of a watch. So
the present state follows from the report by replaying the events since. A list does not tell the order of its pods, so
the kubelet may admit any of them first. A pod that was assumed here comes after all observed events until its own
binding is observed. A terminating pod may release its resources at any time, so there
can be several possible states.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.errors import PodError, WorkLimitError
from alignup.align.ledger import DevicePlaces, Ledger
from alignup.align.workload import Pod
from alignup.placement.host_model import HostModel, ledger_after, unsettled_devices
from alignup.placement.host_report import Cause, HostReport, PodStage
from alignup.placement.pod_shape import shape_key
from alignup.placement.steered import ANYWHERE, decide_steered
from alignup.placement.verdict import TOO_MANY_TERMINATING, TOO_MUCH_WORK, UNREADABLE_POD, Verdict

MAX_TERMINATING = 3  #: terminating pods on a host; with more, its state counts as unknown
MAX_STATES = 64  #: possible states of a host


@dataclass(slots=True, eq=False)
class Binding:
    """A pod that was bound to the host, and that no report contains yet."""

    pod: Pod
    observed: bool  #: ``False``: it was assumed, and its binding is still to be observed
    foreign: bool  #: whether nothing was predicted for it: it was bound by others, or nothing said that it is admitted
    listed: int = 0  #: the list that showed it first, among whose bindings the order is unknown; 0: none
    causes: set[Cause] = field(default_factory=set)  #: what happened since that can change the kubelet's decision
    verdict: Verdict | None = None  #: the prediction; ``None`` for a foreign pod
    ledger: Ledger | None = None  #: that the prediction started from, one of the possible ones
    expected: bool = False  #: whether predictions since then count on its admission
    or_elsewhere: bool = False  #: whether it may be bound to another host
    #: the NUMA nodes of the markers that the kubelet may offer at the admission: the most likely first
    ways: tuple[NodeSet, ...] = (ANYWHERE,)

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def steered(self) -> bool:
        return self.ways != (ANYWHERE,)


@dataclass(slots=True, eq=False)
class RejectedBinding:
    """A pod that the kubelet rejected although it was predicted to be admitted, and no cause is known yet."""

    binding: Binding
    reason: str  #: the kubelet's
    reports: int = 0  #: reports since then


@dataclass(frozen=True, slots=True, eq=False)
class StageChange:
    """A pod that began to terminate, or that ended."""

    uid: str
    stage: PodStage


LogEntry = Binding | StageChange


class PossibleStates(NamedTuple):
    ledgers: tuple[Ledger, ...]  #: empty: they cannot be listed
    unconfirmed: frozenset[str]  #: pods with resources of their own that no report contains yet
    unsettled: frozenset[str]  #: resources of which an unconfirmed pod may get other devices than predicted
    #: whether an unconfirmed pod was predicted to be rejected; a pod that ended a moment ago may make room for it;
    #: or whether the order of unconfirmed pods is unknown
    doubtful: bool = False
    terminating: frozenset[str] = frozenset()  #: pods that may end at any time
    problem: str = ""  #: why they cannot be listed
    detail: str = ""  #: of the problem
    steered: bool = False  #: whether an unconfirmed pod was steered, or may have been


class Replaced(NamedTuple):
    """The changes by a new report."""

    confirmed: tuple[Binding, ...]  #: bindings that the report contains
    skipped: tuple[Binding, ...]  #: earlier bindings that it does not contain: the kubelet has rejected or ended them


class HostRecord:
    def __init__(self, model: HostModel, report: HostReport) -> None:
        self.name = report.host
        self.model = model
        self.report = report
        self.ledger = _with_places(report)
        self._terminating: set[str] = set()  #: among the pods of the report
        self._log: list[LogEntry] = []
        self._states: PossibleStates | None = None
        self.rejected: list[RejectedBinding] = []
        self.lost_at_restart: frozenset[str] = frozenset()  #: pods that only reports before a restart contain
        self._skipped: dict[str, Binding] = {}  #: pods of which a report says that they were not admitted
        self._steps: dict[tuple[str, int], _Step] = {}  #: by what happened and the identity of the ledger before

    @property
    def bindings(self) -> list[Binding]:
        return [entry for entry in self._log if isinstance(entry, Binding)]

    def binding(self, uid: str) -> Binding | None:
        for entry in self._log:
            if isinstance(entry, Binding) and entry.pod.uid == uid:
                return entry
        return None

    def holds(self, uid: str) -> bool:
        return uid in self.ledger.pods or self.binding(uid) is not None

    def replace_report(self, model: HostModel, report: HostReport, stages: Mapping[str, PodStage]) -> Replaced:
        """Continue from a newer report: forget the events that it contains."""
        ledger = _with_places(report)
        confirmed = tuple([binding for binding in self.bindings if binding.uid in ledger.pods])
        skipped_bindings = self._find_skipped(confirmed)
        for binding in skipped_bindings:
            self._blame(binding)
        self._skipped |= {binding.uid: binding for binding in skipped_bindings}
        self.model = model
        self.report = report
        self.ledger = ledger
        self._log = [entry for entry in self._log if entry not in confirmed and entry not in skipped_bindings]
        logged_stages = {(entry.uid, entry.stage) for entry in self._log if isinstance(entry, StageChange)}
        of_pods = {uid: stages[uid] for uid in ledger.pods if uid in stages}
        changes = [StageChange(uid, stage) for uid, stage in of_pods.items() if (uid, stage) not in logged_stages]
        self._terminating = {change.uid for change in changes if change.stage is PodStage.TERMINATING}
        self._log[:0] = [change for change in changes if change.stage is PodStage.ENDED]
        self._prune()
        self._steps.clear()
        return Replaced(confirmed, skipped_bindings)

    def _find_skipped(self, confirmed: Sequence[Binding]) -> tuple[Binding, ...]:
        """Return the unconfirmed bindings that were certainly recorded before a confirmed one."""
        bindings = [binding for binding in self.bindings if binding.observed]
        return tuple(
            binding
            for position, binding in enumerate(bindings)
            if binding not in confirmed
            and any(later in confirmed and not _unordered(binding, later) for later in bindings[position + 1 :])
        )

    def assume(self, pod: Pod, verdict: Verdict | None, *, or_elsewhere: bool = False) -> None:
        """Count on a pod; without a *verdict* nothing is predicted for it."""
        ledger, foreign = next(iter(self.states().ledgers), None), verdict is None
        binding = Binding(
            pod, observed=False, foreign=foreign, verdict=verdict, ledger=ledger, or_elsewhere=or_elsewhere
        )
        self._log.append(binding)
        self._states = None

    def restore(self, binding: Binding) -> None:
        """Count on a pod that was assumed before, even if its verdict has changed."""
        self._log.append(binding)
        self._states = None

    def steer(self, binding: Binding, ways: tuple[NodeSet, ...], verdict: Verdict) -> None:
        """Replace the prediction for an assumed pod that is steered to NUMA nodes before its binding."""
        binding.ways = ways
        binding.verdict = verdict
        self._states = None

    def without(self, uid: str) -> "HostRecord":
        """Return this record as it would be without an assumed pod."""
        if self.binding(uid) is None:
            return self
        other = copy(self)
        log = [entry for entry in self._log if entry.uid != uid]
        vars(other).update(_log=log, _states=None, _steps=dict(self._steps))
        return other

    def before(self, uid: str) -> "HostRecord":
        """Return this record as it would be without an assumed pod, and without the pods that come after this pod."""
        other = copy(self)
        position = next(
            position for position, entry in enumerate(self._log) if entry.uid == uid and isinstance(entry, Binding)
        )
        vars(other).update(_log=self._log[:position], _states=None, _steps=dict(self._steps))
        return other

    def observe_binding(self, pod: Pod, *, listed: int = 0) -> None:
        """Record a binding that the API server recorded after everything observed so far.

        *listed*: a number of the list that shows it, after everything observed before this list.
        """
        binding = self.binding(pod.uid)
        if pod.uid in self.ledger.pods or (binding and binding.observed):
            return
        position = self._first_unobserved()
        if binding:
            overtaken_bindings = [
                entry for entry in self._log[position : self._log.index(binding)] if isinstance(entry, Binding)
            ]
            self._log.remove(binding)
            _change_order(overtaken_bindings, binding)
            binding.observed = True
            binding.listed = listed
            binding.or_elsewhere = False
        else:
            binding = Binding(pod, observed=True, foreign=True, listed=listed)
            for later in self.bindings:
                if not later.observed:
                    later.causes.add(Cause.FOREIGN_POD)
        self._log.insert(position, binding)
        self._states = None

    def observe_stage(self, uid: str, stage: PodStage) -> None:
        if stage is PodStage.ENDED:
            self._skipped.pop(uid, None)
        if self.holds(uid):
            self._log.insert(self._first_unobserved(), StageChange(uid, stage))
            self._prune()

    def resume(self, uid: str) -> None:
        """Record that a pod that counted as terminating is running."""
        self._terminating.discard(uid)
        self._log = [entry for entry in self._log if isinstance(entry, Binding) or entry.uid != uid]
        self._states = None

    def forget(self, uid: str) -> Binding | None:
        """Forget a binding that did not happen, or that the kubelet rejected; a report may have told so before."""
        binding = self.binding(uid)
        if binding is None:
            return self._skipped.pop(uid, None)
        self._blame(binding)
        self._log = [entry for entry in self._log if entry.uid != uid]
        self._states = None
        return binding

    def _blame(self, binding: Binding) -> None:
        """Note at all later pods that a foreign pod was not admitted although their predictions count on it."""
        if binding.foreign and binding.expected:
            for later in self._log[self._log.index(binding) + 1 :]:
                if isinstance(later, Binding):
                    later.causes.add(Cause.FOREIGN_POD)

    def disturb(self, cause: Cause) -> None:
        """Record a cause that can change the kubelet's decision on every unconfirmed pod."""
        for binding in (
            *self.bindings,
            *self._skipped.values(),
            *(rejection.binding for rejection in self.rejected),
        ):
            binding.causes.add(cause)

    def states(self) -> PossibleStates:
        if self._states is None:
            try:
                self._states = self._replay()
            except WorkLimitError:
                self._states = PossibleStates((), frozenset(), frozenset(), problem=TOO_MUCH_WORK)
        return self._states

    def _first_unobserved(self) -> int:
        places = (
            position for position, entry in enumerate(self._log) if isinstance(entry, Binding) and not entry.observed
        )
        return next(places, len(self._log))

    def _prune(self) -> None:
        """Forget events of pods that are nowhere, and pods that came and ended without another binding between."""
        self._states = None
        for stage_change in [
            entry for entry in self._log if isinstance(entry, StageChange) and entry.stage is PodStage.ENDED
        ]:
            binding = self.binding(stage_change.uid)
            if binding and stage_change.uid not in self.ledger.pods:
                between = self._log[self._log.index(binding) + 1 : self._log.index(stage_change)]
                if not any(isinstance(entry, Binding) for entry in between):
                    self._log = [entry for entry in self._log if entry.uid != stage_change.uid]
        self._log = [entry for entry in self._log if isinstance(entry, Binding) or self.holds(entry.uid)]

    def _replay(self) -> PossibleStates:
        if not self._log and not self._terminating:
            return PossibleStates((self.ledger,), frozenset(), frozenset())
        unreadable = [binding.pod for binding in self.bindings if not binding.pod.all_containers]
        if unreadable:
            names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in unreadable[:3])
            return PossibleStates((), frozenset(), frozenset(), problem=UNREADABLE_POD, detail=names)
        ledgers: tuple[Ledger, ...] = (self.ledger,)
        ends = set(self._terminating)
        unconfirmed: set[str] = set()
        doubtful: set[str] = set()
        unsettled_uids: frozenset[str] = frozenset()
        for entry in self._log:
            if isinstance(entry, Binding):
                possible_ledgers = with_ends(ledgers, ends, self._end)
                steps = [self._bind(ledger, entry.pod, nodes) for ledger in possible_ledgers for nodes in entry.ways]
                unsettled_uids = unsettled_uids.union(*(step.unsettled for step in steps))
                if any(_takes_resources(step.after, entry.uid) for step in steps):
                    unconfirmed.add(entry.uid)
                if any(entry.uid not in step.after.pods for step in steps):
                    doubtful.add(entry.uid)
                entry.expected = entry.expected or any(entry.uid in step.after.pods for step in steps)
                without = ledgers if entry.or_elsewhere else ()
                ledgers = _distinct([*(step.after for step in steps), *without])
            elif entry.stage is PodStage.TERMINATING:
                ends.add(entry.uid)
            else:
                ends.discard(entry.uid)
                unconfirmed.discard(entry.uid)
                doubtful.discard(entry.uid)
                ledgers = _distinct(self._end(ledger, entry.uid) for ledger in ledgers)
            if len(ends) > MAX_TERMINATING or len(ledgers) > MAX_STATES:
                return PossibleStates((), frozenset(), unsettled_uids, problem=TOO_MANY_TERMINATING)
        if len(ends) > MAX_TERMINATING:
            return PossibleStates((), frozenset(), unsettled_uids, problem=TOO_MANY_TERMINATING)
        bindings = [entry for entry in self._log if isinstance(entry, Binding) and entry.uid in unconfirmed]
        lists = [binding.listed for binding in bindings if binding.listed]
        unordered = len(set(lists)) < len(lists)
        states = with_ends(ledgers, ends, self._end)
        doubt = bool(doubtful) or unordered
        steered = any(binding.steered for binding in bindings)
        return PossibleStates(states, frozenset(unconfirmed), unsettled_uids, doubt, frozenset(ends), steered=steered)

    def _bind(self, ledger: Ledger, pod: Pod, nodes: NodeSet) -> "_Step":
        key = (f"{pod.uid} {nodes}" if nodes else pod.uid, id(ledger))
        if key not in self._steps:
            try:
                decision = decide_steered(self.model.at(ledger), pod, nodes)
            except PodError:
                self._steps[key] = _Step(ledger, ledger, frozenset())
            else:
                self._steps[key] = _Step(ledger, ledger_after(decision) or ledger, unsettled_devices(decision))
        return self._steps[key]

    def _end(self, ledger: Ledger, uid: str) -> Ledger:
        if uid not in ledger.pods:
            return ledger
        key = (f"end of {uid}", id(ledger))
        if key not in self._steps:
            self._steps[key] = _Step(ledger, self.model.without(ledger, (uid,)), frozenset())
        return self._steps[key].after


class _Step(NamedTuple):
    before: Ledger  #: kept, so that its identity stays unique
    after: Ledger
    unsettled: frozenset[str]


def _with_places(report: HostReport) -> Ledger:
    places = DevicePlaces(report.machine) if report.machine.pci else None
    return replace(report.ledger, places=places) if places else report.ledger


def _change_order(overtaken_bindings: Sequence[Binding], binding: Binding) -> None:
    """Note that a binding was observed before others that were assumed before it, such as of pods of the same gang.

    Equal pods get what was predicted for the first, the second, and so on. With others, all may be placed elsewhere.
    """
    assumed_order, observed_order = (*overtaken_bindings, binding), (binding, *overtaken_bindings)
    if len({(shape_key(entry.pod), entry.ways) for entry in assumed_order}) > 1:
        for entry in assumed_order if overtaken_bindings else ():
            entry.causes.add(Cause.BINDING_ORDER)
        return
    predictions = [(entry.verdict, entry.ledger) for entry in assumed_order]
    for entry, (verdict, ledger) in zip(observed_order, predictions, strict=True):
        entry.verdict = verdict
        entry.ledger = ledger


def _unordered(first: Binding, second: Binding) -> bool:
    """Return whether the order of two bindings is unknown: the same list has shown both."""
    return bool(first.listed) and first.listed == second.listed


def _takes_resources(ledger: Ledger, uid: str) -> bool:
    """Return whether a pod has CPUs, memory or devices of its own."""
    return any(uid in provider_ledger.held for provider_ledger in (ledger.cpus, ledger.memory, ledger.devices))


def with_ends(
    ledgers: Iterable[Ledger], ends: Iterable[str], end: Callable[[Ledger, str], Ledger]
) -> tuple[Ledger, ...]:
    """Return these ledgers, with and without each terminating pod; *end* returns a ledger after the end of a pod."""
    possible = list(ledgers)
    for uid in sorted(ends):
        possible += [end(ledger, uid) for ledger in possible if uid in ledger.pods]
    return _distinct(possible)


def _distinct(ledgers: Iterable[Ledger]) -> tuple[Ledger, ...]:
    distinct: list[Ledger] = []
    for ledger in ledgers:
        if not any(ledger is other or (ledger == other and ledger.places == other.places) for other in distinct):
            distinct.append(ledger)
    return tuple(distinct)
