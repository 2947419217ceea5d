"""The hosts of a cluster, followed from event to event, and what each of them will decide about a pod.

    cluster.confirm(report)              # an observer read the state of a kubelet
    cluster.observe(pod, host, stage)    # the API server recorded a binding, a deletion, an end
    verdicts = cluster.feasible(pod)     # per host: admits, rejects or unknown
    cluster.rank(pod)                    # the admitting hosts, best first
    cluster.assume(pod, host)            # the pod is about to be bound
    cluster.forget(uid)                  # it was not bound after all

A verdict is kept until its host changes, and hosts in the same state share it. So the work for a pod depends on the
number of hosts that changed, not on the number of hosts.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alignup.align.admit import build_placements
from alignup.align.workload import Pod
from alignup.placement import verdict as verdicts
from alignup.placement.host_model import HostModel, HostModels, decide
from alignup.placement.host_record import Binding, HostRecord
from alignup.placement.pod_store import PodStore
from alignup.placement.preemption import DisruptionBudget, VictimSearch, find_victims
from alignup.placement.report import Cause, HostReport, PodStage
from alignup.placement.score import PlacementScore
from alignup.placement.shape import PodShape
from alignup.placement.verdict import Verdict, VerdictKind
from alignup.placement.verdict_cache import HostState, VerdictCache

MAX_SHAPES = 64  #: pod shapes with kept verdicts
MAX_ENDED = 100_000  #: ended pods that are remembered, because a late report may still contain them


@dataclass(frozen=True, slots=True)
class RankedHost:
    host: str
    score: PlacementScore


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A predicted pod that a report contains."""

    uid: str
    as_predicted: bool  #: whether it got the CPUs, memory and devices that were predicted
    causes: tuple[Cause, ...]  #: what happened since the prediction


class Feasibility(Mapping[str, Verdict]):
    """The verdicts of all hosts at one time."""

    def __init__(self, found: Mapping[str, Verdict]) -> None:
        self._found = found

    def __getitem__(self, host: str) -> Verdict:
        """The verdict of *host*: unknown for a host without a report."""
        return self._found.get(host) or _NO_REPORT

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def admitting(self) -> list[str]:
        return [host for host, one in self._found.items() if one.kind is VerdictKind.ADMITS]

    def by_reason(self) -> dict[str, list[str]]:
        """The hosts that do not admit the pod, by reason."""
        found: dict[str, list[str]] = {}
        for host, one in self._found.items():
            if one.kind is not VerdictKind.ADMITS:
                found.setdefault(one.reason, []).append(host)
        return found


@dataclass(frozen=True, slots=True)
class _Condition:
    """What verdicts about a host depend on."""

    states: tuple[HostState, ...]  #: in any of which it may be; empty: too many
    waits: bool  #: whether pods with resources of their own have to wait for a confirmation
    unsettled: frozenset[str]


@dataclass(slots=True)
class _ShapeTable:
    """The verdicts of all hosts about one shape, as of ``version``."""

    found: dict[str, Verdict]
    version: int


class Cluster:
    """All hosts, their pods, and kept verdicts.

    With *max_unconfirmed*, a host gets at most so many pods with resources of their own that no report contains yet. A
    pod can end a moment before the API server knows, and the pods bound since then may be placed elsewhere than
    predicted, so more than one is a risk. ``None``: no limit.
    """

    def __init__(self, *, max_unconfirmed: int | None = 1, max_shapes: int = MAX_SHAPES) -> None:
        self._max_unconfirmed = max_unconfirmed
        self._models = HostModels()
        self._pods = PodStore()
        self._cache = VerdictCache(max_shapes=max_shapes)
        self._records: dict[str, HostRecord] = {}
        self._conditions: dict[str, _Condition] = {}
        self._early: dict[str, dict[str, Pod]] = {}  #: observed bindings to hosts without a report
        self._hosts: dict[str, str] = {}  #: uid → host, for unconfirmed pods
        self._stages: OrderedDict[str, PodStage] = OrderedDict()  #: of terminating and ended pods
        self._tables: dict[PodShape, _ShapeTable] = {}
        self._version = 0
        self._changed: OrderedDict[str, int] = OrderedDict()  #: host → version of its last change, ascending

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._records)

    @property
    def distinct_states(self) -> int:
        return len(self._cache)

    def record(self, host: str) -> HostRecord | None:
        return self._records.get(host)

    # Events

    def confirm(self, report: HostReport) -> tuple[Confirmed, ...]:
        """Continue from a report, which confirms the pods it contains; an outdated report changes nothing."""
        name = report.host
        record = self._records.get(name)
        if record is not None and report.sequence <= record.report.sequence:
            return ()
        model = self._models.find(report.machine, report.settings)
        ledger = self._pods.compact(report.ledger)
        if record is None:
            record = self._records[name] = HostRecord(model, report)
        else:
            self._disturb(record, model, report)
        replaced = record.replace_report(model, report, ledger, self._stages)
        for pod in self._early.pop(name, {}).values():
            record.observe_binding(self._pods.compact_pod(pod))
            self._hosts[pod.uid] = name
            if pod.uid in self._stages:
                record.observe_stage(pod.uid, self._stages[pod.uid])
        results = [self._compare(record, one) for one in replaced.confirmed if not one.foreign]
        for binding in (*replaced.confirmed, *replaced.skipped):
            self._hosts.pop(binding.uid, None)
        self._touch(name)
        return tuple(results)

    def remove_host(self, host: str) -> None:
        """Forget a host that left the cluster, and its pods."""
        record = self._records.pop(host, None)
        self._early.pop(host, None)
        if record is not None:
            for binding in record.bindings:
                self._hosts.pop(binding.uid, None)
            self._touch(host)

    def observe(self, pod: Pod, host: str, stage: PodStage) -> None:
        """The API server recorded that *pod* is bound to *host*, and is in this stage; call it in the watch's order."""
        uid = pod.uid
        if self._stages.get(uid) is PodStage.ENDED:
            return
        self._leave_other_host(uid, host)
        record = self._records.get(host)
        if stage is not PodStage.ENDED:
            if record is None:
                self._early.setdefault(host, {})[uid] = pod
            elif uid not in record.ledger.pods:
                record.observe_binding(self._pods.compact_pod(pod))
                self._hosts[uid] = host
        elif host in self._early:
            self._early[host].pop(uid, None)
        if stage is not PodStage.RUNNING and self._stages.get(uid) is not stage:
            self._stages[uid] = stage
            while len(self._stages) > MAX_ENDED:
                self._stages.popitem(last=False)
            if record is not None:
                record.observe_stage(uid, stage)
        if stage is PodStage.ENDED:
            self._hosts.pop(uid, None)
        self._touch(host)

    def observe_rejection(self, uid: str, host: str, reason: str) -> Cause | None:
        """The kubelet rejected a pod; the cause if it was predicted to be admitted, else ``None``."""
        record = self._records.get(host)
        binding = record.forget(uid) if record else None
        self._stages[uid] = PodStage.ENDED
        self._hosts.pop(uid, None)
        if record is None or binding is None or binding.foreign:
            return None
        self._touch(host)
        causes = [cause for cause in Cause if cause in binding.causes]
        if causes:
            return causes[0]
        if record.report.approximate:
            return Cause.APPROXIMATE
        return Cause.HOST_RESOURCES if reason.startswith("OutOf") else Cause.UNEXPLAINED

    def assume(self, pod: Pod, host: str) -> Verdict:
        """Count on *pod* on *host* from now on, if the host admits it; the verdict says where it will be."""
        record = self._records.get(host)
        if record is None:
            return _NO_REPORT
        found = self._host_verdict(pod, record)
        if found.admits and not record.holds(pod.uid):
            self._leave_other_host(pod.uid, host)
            record.assume(self._pods.compact_pod(pod), found.placements)
            self._hosts[pod.uid] = host
            self._touch(host)
        return found

    def forget(self, uid: str) -> None:
        """A binding did not happen; does nothing for an unknown pod or one whose binding was observed."""
        host = self._hosts.get(uid)
        record = self._records.get(host) if host else None
        binding = record.binding(uid) if record else None
        if record and binding and not binding.observed:
            record.forget(uid)
            del self._hosts[uid]
            self._touch(record.name)

    # Questions

    def feasible(self, pod: Pod) -> Feasibility:
        """The verdict of every host about *pod*."""
        found = dict(self._up_to_date(pod))
        own = self._hosts.get(pod.uid)
        if own:
            found[own] = self._host_verdict(pod, self._records[own])
        return Feasibility(found)

    def rank(self, pod: Pod, hosts: Iterable[str] | None = None, *, limit: int | None = None) -> list[RankedHost]:
        """The hosts that admit *pod*, best first; of *hosts* only, if given, and at most *limit*."""
        found = self.feasible(pod)
        names = found if hosts is None else [host for host in hosts if host in found]
        scored = [
            (-one.score.total, host, one.score)
            for host in names
            if (one := found[host]).admits and one.score is not None
        ]
        ordered = sorted(scored) if limit is None else heapq.nsmallest(limit, scored)
        return [RankedHost(host, score) for _, host, score in ordered]

    def victims(
        self,
        pod: Pod,
        host: str,
        *,
        budgets: Sequence[DisruptionBudget] = (),
        allow_violations: bool = False,
    ) -> VictimSearch:
        """The smallest sets of pods with lower priority whose end lets *host* admit *pod*."""
        record = self._records.get(host)
        if record is None:
            return VictimSearch((), complete=False)
        return find_victims(record, pod, budgets=budgets, allow_violations=allow_violations)

    # Verdicts

    def _up_to_date(self, pod: Pod) -> dict[str, Verdict]:
        shape = self._shape(pod)
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _ShapeTable({}, -1)
        if table.version < 0:
            table.found = {name: self._verdict(record, shape) for name, record in self._records.items()}
        else:
            for name, version in reversed(self._changed.items()):
                if version <= table.version:
                    break
                record = self._records.get(name)
                if record is None:
                    table.found.pop(name, None)
                else:
                    table.found[name] = self._verdict(record, shape)
        table.version = self._version
        return table.found

    def _shape(self, pod: Pod) -> PodShape:
        shape = self._cache.shape(pod)
        for dropped in self._cache.dropped:
            self._tables.pop(dropped, None)
        return shape

    def _host_verdict(self, pod: Pod, record: HostRecord) -> Verdict:
        """The verdict of one host; a pod that is on it already keeps its placement."""
        if record.holds(pod.uid):
            for ledger in record.states().ledgers[:1]:
                if pod.uid in ledger.pods:
                    return Verdict(
                        VerdictKind.ADMITS, shared_placements=decide(record.model.at(ledger), pod).placements
                    )
        return self._verdict(record, self._shape(pod))

    def _verdict(self, record: HostRecord, shape: PodShape) -> Verdict:
        condition = self._condition(record)
        if not condition.states:
            return verdicts.unknown(verdicts.TOO_MANY_TERMINATING)
        if shape.critical:  # depends on the pods of the host, which states do not tell
            private = VerdictCache(max_shapes=1)
            approximate = record.report.approximate
            states = [private.state(record.model, one, approximate=approximate) for one in record.states().ledgers]
            found = verdicts.combine([state.verdict(shape) for state in states])
        elif len(condition.states) == 1:
            found = condition.states[0].verdict(shape)
        else:
            found = verdicts.combine([state.verdict(shape) for state in condition.states])
        if condition.waits and found.admits and found.takes_resources:
            return verdicts.unknown(verdicts.WAITS_FOR_CONFIRMATION)
        if condition.unsettled and not condition.unsettled.isdisjoint(shape.usage.scalars):
            return verdicts.unknown(verdicts.UNSETTLED_DEVICES)
        return found if found.inventories is None else found.for_host(record.ledger.devices.inventories)

    def _condition(self, record: HostRecord) -> _Condition:
        known = self._conditions.get(record.name)
        if known is None:
            possible = record.states()
            approximate = record.report.approximate
            known = self._conditions[record.name] = _Condition(
                tuple([self._cache.state(record.model, one, approximate=approximate) for one in possible.ledgers]),
                self._max_unconfirmed is not None and possible.unconfirmed >= self._max_unconfirmed,
                possible.unsettled,
            )
        return known

    # Bookkeeping

    def _touch(self, host: str) -> None:
        self._version += 1
        self._changed[host] = self._version
        self._changed.move_to_end(host)
        self._conditions.pop(host, None)

    def _leave_other_host(self, uid: str, host: str) -> None:
        """A pod can be on one host only."""
        before = self._hosts.get(uid)
        if before is not None and before != host:
            self._records[before].forget(uid)
            self._touch(before)

    def _disturb(self, record: HostRecord, model: HostModel, report: HostReport) -> None:
        """Note what a report shows beyond the events that were observed."""
        if model is not record.model:
            record.disturb(Cause.CONFIGURATION)
        if report.kubelet != record.report.kubelet:
            record.disturb(Cause.KUBELET_RESTART)
        if report.ledger.devices.inventories != record.ledger.devices.inventories:
            record.disturb(Cause.DEVICES)
        new = report.ledger.pods.keys() - record.ledger.pods.keys() - self._stages.keys()
        if any(record.binding(uid) is None for uid in new):
            record.disturb(Cause.FOREIGN_POD)

    def _compare(self, record: HostRecord, binding: Binding) -> Confirmed:
        admitted = record.ledger.pods[binding.uid]
        real = build_placements(admitted.pod, admitted.hints, record.ledger, record.model.host.providers)
        predicted = {one.container: (one.cpus, one.memory, one.devices) for one in binding.placements}
        same = predicted == {one.container: (one.cpus, one.memory, one.devices) for one in real}
        return Confirmed(binding.uid, same, tuple(cause for cause in Cause if cause in binding.causes))


_NO_REPORT = verdicts.unknown(verdicts.NO_REPORT)
