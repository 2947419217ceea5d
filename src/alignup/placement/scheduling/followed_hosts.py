"""Hosts as observers report them, and the pods on them as the API server shows them.

    assumed → observed → confirmed by a report, as predicted or elsewhere
                       → rejected by the kubelet

What became of predictions is an instruction each, for logs and metrics.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from alignup.align.workload import Pod
from alignup.placement.cluster import Confirmed, ListedPod
from alignup.placement.host_report import HostReport, PodStage
from alignup.placement.scheduling.common_parts import CommonParts
from alignup.placement.scheduling.events import BoundPod, Event, PodObserved
from alignup.placement.scheduling.instructions import CountPrediction, PredictionOutcome, RefuseReport


class FollowedHosts:
    def __init__(
        self,
        parts: CommonParts,
        *,
        changed: Callable[[Collection[str]], object],
        confirmed: Callable[[Confirmed, str], object],
        repeat: Callable[[Event, Exception], object],
    ) -> None:
        self._cluster = parts.cluster
        self._assumptions = parts.assumptions
        self._turn = parts.turn
        self._changed = changed
        self._confirmed = confirmed
        self._repeat = repeat

    def reported(self, report: HostReport) -> None:
        """Continue from a report. If it cannot be used, the host stays as it is, and is to be reported lost."""
        name = report.host
        try:
            predictions = self._cluster.confirm(report)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, all other hosts are followed
            self._turn.emit(RefuseReport(name, error))
            return
        for prediction in predictions:
            outcome, cause = PredictionOutcome.AS_PREDICTED, ""
            if not prediction.as_predicted:
                outcome = PredictionOutcome.PLACED_ELSEWHERE
                cause = prediction.causes[0] if prediction.causes else "unexplained"
            self._turn.emit(CountPrediction(prediction.uid, name, outcome, cause, prediction.difference))
            self._confirmed(prediction, name)
        self._assumptions.restore_host(name)
        self._count_rejections()
        self._changed((name,))

    def lost(self, node: str, pods: Sequence[BoundPod]) -> None:
        """Drop a host whose state is not known; the pods bound to it, or assumed, count when it is known again."""
        record = self._cluster.record(node)
        if record is not None:
            self._assumptions.drop_host(record)
            self._cluster.remove_host(node)
            self._each(pods, lambda bound: self._cluster.observe(*bound))
            self._changed((node,))

    def listed(self, pods: Sequence[BoundPod]) -> None:
        """Start again from all bound pods: the order of events since the last list is unknown."""
        self._each(pods, lambda bound: self._assumptions.stop(bound[0].uid))
        self._cluster.relist(pods, each=self._each)
        self._changed(self._cluster.hosts)

    def _each(self, pods: Iterable[ListedPod], step: Callable[[ListedPod], object]) -> None:
        """Do something about each pod; one on which it fails is observed again alone, later."""
        for bound in pods:
            try:
                step(bound)
            except Exception as error:  # noqa: BLE001 - whatever one pod raises, all others are followed
                self._repeat(PodObserved(*bound), error)

    def observed(self, pod: Pod, node: str, stage: PodStage) -> None:
        hosts = self._end_assumption(pod.uid, node)
        self._cluster.observe(pod, node, stage)
        self._changed(hosts)

    def preempted(self, pod: Pod, node: str) -> None:
        hosts = self._end_assumption(pod.uid, node)
        self._cluster.observe_preemption(pod, node)
        self._changed(hosts)

    def rejected(self, uid: str, node: str, reason: str) -> None:
        hosts = self._end_assumption(uid, node)
        self._cluster.observe_rejection(uid, node, reason)
        self._count_rejections()
        self._changed(hosts)

    def _end_assumption(self, uid: str, node: str) -> tuple[str, ...]:
        """Note that a binding was observed; return all hosts that change with it."""
        return (*(other for other in self._assumptions.stop(uid) if other != node), node)

    def _count_rejections(self) -> None:
        for uid, host, cause in self._cluster.take_rejections():
            self._turn.emit(CountPrediction(uid, host, PredictionOutcome.REJECTED, cause))
        for uid, host in self._cluster.take_foreign_rejections():
            self._turn.emit(CountPrediction(uid, host, PredictionOutcome.FOREIGN_REJECTED))
