"""The hosts of a cluster, followed from event to event, and what each of them will decide about a pod.

    cluster.confirm(report)              # an observer read the state of a kubelet
    cluster.observe(pod, host, stage)    # the API server recorded a binding, a deletion, an end
    verdicts = cluster.feasible(pod)     # per host: admits, rejects or unknown
    cluster.rank(pod)                    # the admitting hosts, best first
    cluster.assume(pod, host)            # the pod is about to be bound
    cluster.forget(uid)                  # it was not bound after all
    cluster.feasible_gang(pods)          # where pods go that start together or not at all

A verdict is kept until its host changes, and hosts in the same state share it. So the work for a pod depends on the
number of hosts that changed, not on the number of hosts.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from alignup.align.bits import NodeSet
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.gang import MAX_STEPS, EligibleHosts, GangAnswer, GangBinding, HasRoom, place_gang
from alignup.placement.host_model import HostModel, HostModels
from alignup.placement.host_record import Binding, HostRecord, RejectedBinding, Replaced
from alignup.placement.host_report import Cause, HostReport, PodStage
from alignup.placement.host_verdicts import DefectListener, HostVerdicts
from alignup.placement.moves import MovePlan, MoveRules, PendingPod, Planner
from alignup.placement.pod_shape import depends_on_host
from alignup.placement.prediction_comparison import placement_difference, pods_ended_before, rejected_after_ends
from alignup.placement.score import PlacementScore
from alignup.placement.steered import ANYWHERE
from alignup.placement.verdict import NO_REPORT, Feasibility, Verdict
from alignup.placement.victims import DisruptionBudget, VictimSearch, find_victims

MAX_SINGLE = 64  #: hosts that are asked one by one, without the verdicts of all others
MAX_SHAPES = 64  #: pod shapes with kept verdicts
SPARE_MODELS = 64  #: models of hosts that are kept although no host is of this kind any more
MAX_REPORTS = 3  #: reports about a host that may explain a rejection
MAX_REJECTED = 4096  #: rejected pods whose causes are remembered
#: Ended pods that are remembered, because a late report may still contain them.
MIN_ENDED, ENDED_PER_HOST = 2_000, 20


@dataclass(frozen=True, slots=True)
class RankedHost:
    host: str
    score: PlacementScore


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A predicted pod that a report contains."""

    uid: str
    difference: str  #: between what the pod got and what was predicted; empty: the same, or equal devices
    causes: tuple[Cause, ...]  #: what happened since the prediction

    @property
    def as_predicted(self) -> bool:
        return not self.difference


class RejectedPrediction(NamedTuple):
    uid: str
    host: str
    cause: Cause


ListedPod = tuple[Pod, str, PodStage]  #: a pod, its host, and its stage
ForEach = Callable[[Iterable[ListedPod], Callable[[ListedPod], object]], object]


def _call_for_each(pods: Iterable[ListedPod], call: Callable[[ListedPod], object]) -> None:
    for pod in pods:
        call(pod)


class Cluster:
    """All hosts, their pods, and kept verdicts.

    With *max_unconfirmed*, a host gets at most so many pods with resources of their own that no report contains yet. A
    pod can end a moment before the API server knows, and the pods bound since then may be placed elsewhere than
    predicted, so more than one is a risk. ``None``: no limit. Verdicts are kept for *max_shapes* pod shapes, and for
    *max_states* states in which no host is any more. With *on_defect*, a decision that fails because of a defect makes
    one verdict unknown, and the listener is called.
    """

    def __init__(
        self,
        *,
        max_unconfirmed: int | None = 1,
        max_shapes: int = MAX_SHAPES,
        max_states: int = 0,
        on_defect: DefectListener | None = None,
    ) -> None:
        self._models = HostModels()
        self._records: dict[str, HostRecord] = {}
        self._verdicts = HostVerdicts(
            self._records,
            max_unconfirmed=max_unconfirmed,
            max_shapes=max_shapes,
            max_states=max_states,
            on_defect=on_defect,
        )
        self._early: dict[str, dict[str, Pod]] = {}  #: observed bindings to hosts without a report
        self._hosts: dict[str, str] = {}  #: uid → host, for unconfirmed pods
        self._possible_hosts: dict[str, set[str]] = {}  #: uid → hosts, for pods that were assumed on several
        self._stages: dict[str, PodStage] = {}  #: of terminating and ended pods
        self._ended: deque[str] = deque()  #: uids, in this order
        self._rejections: list[RejectedPrediction] = []
        self._foreign_rejections: list[tuple[str, str]] = []
        self.rejected: OrderedDict[str, RejectedPrediction] = OrderedDict()  #: the last ones, by uid
        self._lists = 0  #: lists of pods so far; pods that were bound before the first report of a host count as one
        self._listed = False  #: whether all pods were listed once

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._records)

    @property
    def distinct_states(self) -> int:
        return self._verdicts.distinct_states

    @property
    def kept_verdicts(self) -> int:
        """How many verdicts were used again, over all questions; see ``renewed_verdicts``."""
        return self._verdicts.kept

    @property
    def renewed_verdicts(self) -> int:
        return self._verdicts.renewed

    def forget_order(self) -> None:
        """Choose between equal hosts as a new cluster does that gets the same reports in the order of the hosts."""
        self._verdicts.forget_order()

    def record(self, host: str) -> HostRecord | None:
        return self._records.get(host)

    # Events

    def confirm(self, report: HostReport) -> tuple[Confirmed, ...]:
        """Continue from a report, which confirms the pods it contains; an outdated report changes nothing."""
        name = report.host
        record = self._records.get(name)
        if record is not None and report.sequence <= record.report.sequence:
            return ()
        model = self._find_model(report, record)
        skipped_bindings = self._unobserved(report, record)
        early = self._early.pop(name, {})
        if record is None:
            record = self._records[name] = HostRecord(model, report)
        else:
            self._disturb(record, model, report, foreign=bool(skipped_bindings))
            self._explain_rejections(record, reports=1)
        if self._listed:
            for uid in skipped_bindings:
                self._remember(uid, PodStage.TERMINATING)
        ledger_before = record.ledger
        replaced_report = record.replace_report(model, report, self._stages)
        self._lists += bool(early)
        for pod in early.values():
            if pod.uid not in report.ledger.pods:
                record.observe_binding(pod, listed=self._lists)
                self._hosts[pod.uid] = name
                if pod.uid in self._stages:
                    record.observe_stage(pod.uid, self._stages[pod.uid])
        results = tuple(self._compare(record, replaced_report, ledger_before))
        for binding in (*replaced_report.confirmed, *replaced_report.skipped):
            self._hosts.pop(binding.uid, None)
        self._verdicts.touch(name)
        return results

    def remove_host(self, host: str) -> None:
        """Forget a host that left the cluster, and its pods."""
        record = self._records.pop(host, None)
        self._early.pop(host, None)
        if record is not None:
            for binding in record.bindings:
                self._hosts.pop(binding.uid, None)
            self._verdicts.forget(host)

    def restore(self, old_record: HostRecord, uids: Collection[str]) -> None:
        """Count on assumed pods again whose host was removed and is back; *old_record*: the record of the host then."""
        record = self._records[old_record.name]
        self._disturb(old_record, record.model, record.report, foreign=False)
        for binding in old_record.bindings:
            if binding.uid in uids and not record.holds(binding.uid):
                record.restore(binding)
                self._hosts[binding.uid] = record.name
        self._verdicts.touch(record.name)

    def observe(self, pod: Pod, host: str, stage: PodStage, *, listed: int = 0) -> None:
        """Record that *pod* is bound to *host* and in this stage; call it in the order of the watch.

        *listed*: the number of the list of pods that shows it; the order of the bindings that it shows is not known.
        """
        uid = pod.uid
        if self._stages.get(uid) is PodStage.ENDED:
            return
        self._leave_other_host(uid, host)
        record = self._records.get(host)
        if stage is not PodStage.ENDED:
            if record is None:
                self._early.setdefault(host, {})[uid] = pod
            elif uid not in record.ledger.pods:
                record.observe_binding(pod, listed=listed)
                self._hosts[uid] = host
        elif host in self._early:
            self._early[host].pop(uid, None)
            if not self._early[host]:
                del self._early[host]
        if stage is not PodStage.RUNNING:
            self._enter_stage(record, uid, stage)
        elif self._stages.pop(uid, None) and record is not None:
            record.resume(uid)
        if record is not None:
            self._verdicts.touch(host)

    def relist(self, pods: Iterable[ListedPod], *, each: ForEach = _call_for_each) -> None:
        """Take over a list of all bound pods; call it after a start, and when events may have been missed.

        Pods of reports that are not listed have ended. A list does not tell whether before or after the bindings that
        it shows for the first time, so for these the ended pods count as terminating. Nor does it tell the order of
        these bindings. From then on, a pod that only reports contain counts as terminating until its binding is
        observed: it may have ended before the list. *each* observes all pods, and may let it fail for one of them.
        """
        self._lists += 1
        self._listed = True
        pods_by_uid = {pod.uid: (pod, host, stage) for pod, host, stage in pods}
        ended_pods = [
            (record, uid)
            for record in self._records.values()
            for uid in (*record.ledger.pods, *(binding.uid for binding in record.bindings if binding.observed))
            if uid not in pods_by_uid
        ]
        early = [
            (pod, host)
            for host, bound_pods in self._early.items()
            for pod in bound_pods.values()
            if pod.uid not in pods_by_uid
        ]
        for pod, host in early:
            self.observe(pod, host, PodStage.ENDED)
        for stage in (PodStage.TERMINATING, PodStage.ENDED):
            for record, uid in ended_pods:
                self._enter_stage(record, uid, stage)
                self._verdicts.touch(record.name)
            if stage is PodStage.TERMINATING:
                each(pods_by_uid.values(), lambda listed: self.observe(*listed, listed=self._lists))

    def observe_rejection(self, uid: str, host: str, reason: str) -> None:
        """Record that the kubelet rejected a pod with this reason; see ``take_rejections``."""
        record = self._records.get(host)
        binding = record.forget(uid) if record else None
        self._enter_stage(record, uid, PodStage.ENDED)
        if record is not None and (uid in record.ledger.pods or uid in record.lost_at_restart):
            self._note_rejection(RejectedPrediction(uid, host, Cause.READMISSION))
        elif record is not None and binding is not None:
            if not binding.foreign:
                record.rejected.append(RejectedBinding(binding, reason))
                self._explain_rejections(record)
            elif binding.expected:
                self._foreign_rejections.append((uid, host))
            self._verdicts.touch(host)

    def observe_preemption(self, pod: Pod, host: str) -> None:
        """Record that the kubelet preempted *pod* for a critical one; meanwhile it decides otherwise than predicted."""
        record = self._records.get(host)
        if record is not None:
            record.disturb(Cause.PREEMPTION)
        self.observe(pod, host, PodStage.ENDED)

    def take_rejections(self) -> list[RejectedPrediction]:
        """Return the rejections of pods that were predicted to be admitted, or were, with causes, since the last call.

        A cause can be in a report that arrives after the rejection, so a rejection without a known cause is returned
        only after ``MAX_REPORTS`` further reports.
        """
        rejections, self._rejections = self._rejections, []
        return rejections

    def take_foreign_rejections(self) -> list[tuple[str, str]]:
        """Return the rejected pods of others (uid and host) that predictions counted on, since the last call."""
        rejections, self._foreign_rejections = self._foreign_rejections, []
        return rejections

    def assume(
        self, pod: Pod, host: str, *, beside: AbstractSet[str] = frozenset(), or_elsewhere: bool = False
    ) -> Verdict:
        """Count on *pod* on *host* from now on, if the host admits it; the verdict says where it will be.

        With *or_elsewhere*, it may also be bound to another host where it is assumed: each of them may get it or not,
        until its binding is observed. It does not wait until reports contain the pods *beside* it.
        """
        record = self._records.get(host)
        if record is None:
            return NO_REPORT
        verdict = self._verdicts.of_one(pod, record, beside)
        if verdict.admits:
            self._count_on(pod, record, verdict, or_elsewhere=or_elsewhere)
        return verdict

    def expect(self, pod: Pod, host: str, *, or_elsewhere: bool = False) -> None:
        """Count on *pod* on *host* from now on, whatever its kubelet decides; *or_elsewhere* as in :meth:`assume`."""
        record = self._records.get(host)
        if record is not None:
            self._count_on(pod, record, None, or_elsewhere=or_elsewhere)

    def _count_on(self, pod: Pod, record: HostRecord, verdict: Verdict | None, *, or_elsewhere: bool) -> None:
        if record.holds(pod.uid):
            return
        if or_elsewhere:
            self._possible_hosts.setdefault(pod.uid, set()).add(record.name)
        else:
            self._leave_other_host(pod.uid, record.name)
        record.assume(pod, verdict, or_elsewhere=or_elsewhere)
        self._hosts[pod.uid] = record.name
        self._verdicts.touch(record.name)

    def steer(self, pod: Pod, host: str, nodes: NodeSet, *, certain: bool) -> Verdict | None:
        """Count on an assumed pod on these NUMA nodes; ``None``, and nothing changes, if the host may reject it.

        Unless it is *certain* that the kubelet has markers on *nodes* only, the pod may also go where it would without
        steering. It must be admitted both ways, since markers may come and go at any time.
        """
        record = self._records.get(host)
        binding = record.binding(pod.uid) if record else None
        if record is None or binding is None or binding.observed:
            return None
        record_without_pod = record.without(pod.uid)
        plain, steered_verdict = [self._verdicts.of_steered(pod, record_without_pod, way) for way in (ANYWHERE, nodes)]
        if not plain.admits or not steered_verdict.admits:
            return None
        verdict = steered_verdict if certain else replace(plain, alternatives=(*plain.alternatives, steered_verdict))
        record.steer(binding, (nodes,) if certain else (ANYWHERE, nodes), verdict)
        self._verdicts.touch(host)
        return verdict

    def assume_gang(self, bindings: Sequence[GangBinding]) -> tuple[Verdict, ...]:
        """Count on all pods of a gang from now on, if the hosts admit them in this order; else on none of them.

        Return their verdicts. The last one is no admission if a pod is not admitted any more. Pods that
        were assumed or bound before stay as they are.
        """
        beside = frozenset(binding.pod.uid for binding in bindings)
        verdicts: list[Verdict] = []
        new: list[str] = []
        for pod, host in bindings:
            already_there = self._hosts.get(pod.uid) == host
            verdicts.append(self.assume(pod, host, beside=beside))
            if not verdicts[-1].admits:
                for uid in reversed(new):
                    self.forget(uid)
                break
            if not already_there:
                new.append(pod.uid)
        return tuple(verdicts)

    def forget(self, uid: str) -> None:
        """Forget a binding that did not happen; do nothing for an unknown pod or one whose binding was observed."""
        for host in self._possible_hosts.pop(uid, {self._hosts.get(uid, "")}):
            record = self._records.get(host)
            binding = record.binding(uid) if record else None
            if record and binding and not binding.observed:
                record.forget(uid)
                self._hosts.pop(uid, None)
                self._verdicts.touch(record.name)

    # Questions

    def verdict(self, pod: Pod, host: str) -> Verdict:
        """Return the verdict of one host about *pod*."""
        record = self._records.get(host)
        return NO_REPORT if record is None else self._verdicts.of_one(pod, record)

    def steered(self, pod: Pod, host: str) -> dict[NodeSet, Verdict]:
        """Return the NUMA nodes that *pod*, which may be assumed there, can be steered to, and what it gets on each."""
        record = self._records.get(host)
        return {} if record is None else self._verdicts.steered(pod, record.without(pod.uid))

    def feasible(self, pod: Pod) -> Feasibility:
        """Return the verdict of every host about *pod*."""
        verdicts = Feasibility(self._verdicts.of_all(pod).verdicts)
        current_host = self._hosts.get(pod.uid)
        if current_host:
            verdicts[current_host] = self._verdicts.of_one(pod, self._records[current_host])
        return verdicts

    def verdicts(self, pod: Pod, hosts: Iterable[str]) -> dict[str, Verdict]:
        """Return the verdicts of the *hosts* that have a report."""
        all_verdicts = self._verdicts.of_all(pod).verdicts
        verdicts = {host: all_verdicts[host] for host in hosts if host in all_verdicts}
        current_host = self._hosts.get(pod.uid)
        if current_host in verdicts:
            verdicts[current_host] = self._verdicts.of_one(pod, self._records[current_host])
        return verdicts

    def feasible_gang(
        self,
        pods: Sequence[Pod],
        *,
        eligible: EligibleHosts | None = None,
        has_room: HasRoom | None = None,
        max_steps: int = MAX_STEPS,
    ) -> GangAnswer:
        """Decide on pods that start together or not at all: where all go, or the largest part that fits, and why.

        A pod may go to the *eligible* hosts; members with the same hosts should get the same collection. *has_room* may
        refuse members that a host would admit. Members that are assumed or observed to be bound stay where they are.
        Leave out pods that a report contains.
        """
        placed_on = {pod.uid: self._hosts[pod.uid] for pod in pods if pod.uid in self._hosts}
        return place_gang(
            self._verdicts,
            self._records,
            pods,
            placed_on=placed_on,
            eligible=eligible,
            has_room=has_room,
            max_steps=max_steps,
        )

    def undecided(self, pod: Pod, hosts: Iterable[str] | None = None) -> list[Callable[[], object]]:
        """Return the decisions on *pod* that *hosts*, or all, have not made; another thread may call them.

        With them made, questions about the pod are quick. ``PodError`` if no host could decide on it.
        """
        return self._verdicts.undecided(pod, self._records if hosts is None else hosts)

    def renew(self, pod: Pod, *, seconds: float) -> bool:
        """Renew the verdicts of hosts on *pod* for about *seconds*; return whether all are renewed."""
        return self._verdicts.renew(pod, seconds=seconds)

    def best(self, pod: Pod, limit: int, *, among: Collection[str], last: Collection[str] = ()) -> list[str]:
        """Return at most *limit* of the best hosts *among* these names, and hosts in *last* after the other hosts.

        The work does not grow with the number of hosts. A pod that is assumed or bound is not treated specially.
        """
        return self._verdicts.of_all(pod).best(limit, among=among, last=last)

    def rank(self, pod: Pod, hosts: Iterable[str] | None = None, *, limit: int | None = None) -> list[RankedHost]:
        """Return the hosts that admit *pod*, best first; of *hosts* only, if given, and at most *limit*."""
        verdicts: Mapping[str, Verdict]
        if isinstance(hosts, Collection) and len(hosts) <= MAX_SINGLE:
            verdicts = {host: self.verdict(pod, host) for host in hosts if host in self._records}
        else:
            verdicts = self.feasible(pod)
        names = verdicts if hosts is None else [host for host in hosts if host in verdicts]
        scores = [
            (-verdict.score.total, host, verdict.score)
            for host in names
            if (verdict := verdicts[host]).admits and verdict.score is not None
        ]
        best_first = sorted(scores) if limit is None else heapq.nsmallest(limit, scores)
        return [RankedHost(host, score) for _, host, score in best_first]

    def victims(
        self,
        pod: Pod,
        host: str,
        *,
        budgets: Sequence[DisruptionBudget] = (),
        allow_violations: bool = False,
    ) -> VictimSearch:
        """Return the smallest sets of pods with lower priority whose end lets *host* admit *pod*."""
        record = self._records.get(host)
        if record is None:
            return VictimSearch((), complete=False)
        return find_victims(record, pod, budgets=budgets, allow_violations=allow_violations)

    def plan(self, pods: Sequence[PendingPod], rules: MoveRules) -> MovePlan:
        """Return the fewest moves that were found after which all *pods* are admitted, together."""
        members = [pending_pod.pod for pending_pod in pods]
        planner = self.planner(rules, members)
        if len(pods) == 1:
            return planner.plan(pods)
        by_uid = {pending_pod.pod.uid: pending_pod for pending_pod in pods}
        hosts_by_uid = {pending_pod.pod.uid: planner.hosts_for(pending_pod) for pending_pod in pods}
        answer = self.feasible_gang(members, eligible=lambda pod: hosts_by_uid[pod.uid])
        rest = [by_uid[pod.uid] for pod in answer.rest]
        at_least = 1 if rest and answer.proved else 0
        plan = planner.plan(rest, answer.bindings, at_least=at_least)
        if not plan.feasible and answer.bindings:  # members that fit may be in the way of the others
            placed_pods = [by_uid[binding.pod.uid] for binding in answer.bindings]
            again = planner.plan([*rest, *placed_pods], at_least=at_least)
            plan = again if again.feasible else plan
        return plan

    def planner(self, rules: MoveRules, pods: Iterable[Pod] = ()) -> Planner:
        """Return the search for plans from the present state; *pods* are the pods that need room."""
        moving_pods = [entry.pod for entry in rules.pods.values() if entry.moves]
        by_host = any(map(depends_on_host, (*pods, *moving_pods)))
        return Planner(self._verdicts, self._records, rules, by_host=by_host)

    # Bookkeeping

    def _find_model(self, report: HostReport, record: HostRecord | None) -> HostModel:
        if record is not None:
            last = record.report
            if last.machine is report.machine and last.settings is report.settings:
                return record.model
        model = self._models.find(report.machine, report.settings)
        if len(self._models) > 2 * len(self._records) + SPARE_MODELS:
            self._models.keep({model, *(record.model for record in self._records.values())})
            self._verdicts.forget_models()
        return model

    def _enter_stage(self, record: HostRecord | None, uid: str, stage: PodStage) -> None:
        if self._stages.get(uid) in {stage, PodStage.ENDED}:
            return
        self._remember(uid, stage)
        if record is not None:
            record.observe_stage(uid, stage)
        if stage is PodStage.ENDED:
            self._hosts.pop(uid, None)

    def _remember(self, uid: str, stage: PodStage) -> None:
        self._stages[uid] = stage
        if stage is PodStage.ENDED:
            self._ended.append(uid)
            while len(self._ended) > max(MIN_ENDED, ENDED_PER_HOST * len(self._records)):
                self._stages.pop(self._ended.popleft(), None)

    def _unobserved(self, report: HostReport, record: HostRecord | None) -> list[str]:
        """Return the pods of *report* whose binding was not observed, and that the report before does not contain."""
        reported_before = record.ledger.pods if record else self._early.get(report.host, {})
        return [
            uid
            for uid in report.ledger.pods
            if uid not in reported_before
            and uid not in self._stages
            and self._hosts.get(uid) != report.host
            and report.host not in self._possible_hosts.get(uid, ())
        ]

    def _leave_other_host(self, uid: str, host: str) -> None:
        """Forget the pod on another host: it can be on one only."""
        for old_host in self._possible_hosts.pop(uid, {self._hosts.get(uid, host)}) - {host}:
            record = self._records.get(old_host)
            if record is not None:
                record.forget(uid)
                self._verdicts.touch(old_host)

    def _disturb(self, record: HostRecord, model: HostModel, report: HostReport, *, foreign: bool) -> None:
        """Note what a report shows beyond the events that were observed; *foreign*: pods that were not."""
        if model is not record.model:
            record.disturb(Cause.CONFIGURATION)
        if report.kubelet != record.report.kubelet:
            record.disturb(Cause.KUBELET_RESTART)
            record.lost_at_restart = frozenset(record.ledger.pods.keys() - report.ledger.pods.keys())
        if report.ledger.devices.inventories != record.ledger.devices.inventories:
            record.disturb(Cause.DEVICES)
        if foreign:
            record.disturb(Cause.FOREIGN_POD)

    def _explain_rejections(self, record: HostRecord, *, reports: int = 0) -> None:
        """Find the causes of rejections; *reports* that arrived may have told them."""
        open_rejections = []
        for rejection in record.rejected:
            rejection.reports += reports
            causes = [cause for cause in Cause if cause in rejection.binding.causes]
            if not causes and self._ended_before(rejection.binding, record):
                causes = [Cause.POD_END]
            if not causes and rejection.reports < MAX_REPORTS:
                open_rejections.append(rejection)
                continue
            if not causes and rejection.binding.steered:
                causes = [Cause.STEERING]
            if not causes and record.report.approximate:
                causes = [Cause.APPROXIMATE]
            if not causes:
                causes = [Cause.HOST_RESOURCES if rejection.reason.startswith("OutOf") else Cause.UNEXPLAINED]
            self._note_rejection(RejectedPrediction(rejection.binding.uid, record.name, causes[0]))
        record.rejected = open_rejections

    def _note_rejection(self, prediction: RejectedPrediction) -> None:
        self._rejections.append(prediction)
        self.rejected[prediction.uid] = prediction
        while len(self.rejected) > MAX_REJECTED:
            self.rejected.popitem(last=False)

    def _ended_before(self, binding: Binding, record: HostRecord) -> bool:
        """Return whether a rejection is explained by pods that ended after the prediction."""
        if binding.ledger is None:
            return False
        reported_pods = record.ledger.pods
        ended_uids = [
            uid for uid in binding.ledger.pods if uid not in reported_pods or self._stages.get(uid) is PodStage.ENDED
        ]
        return rejected_after_ends(binding.pod, record.model, binding.ledger, ended_uids)

    def _compare(self, record: HostRecord, replaced_report: Replaced, last_ledger: Ledger) -> Iterator[Confirmed]:
        """Compare what the pods of a new report got with the predictions; *last_ledger* is of the report before."""
        for position, binding in enumerate(replaced_report.confirmed):
            if binding.foreign:
                continue
            difference = placement_difference(binding.verdict, binding.uid, record.model, record.ledger)
            causes = [cause for cause in Cause if cause in binding.causes]
            if difference and not causes:
                earlier = [confirmed.pod for confirmed in replaced_report.confirmed[:position]]
                if pods_ended_before(binding.uid, record.model, last_ledger, record.ledger, earlier=earlier):
                    causes.append(Cause.POD_END)
                elif binding.steered:
                    causes.append(Cause.STEERING)
            yield Confirmed(binding.uid, difference, tuple(causes))
