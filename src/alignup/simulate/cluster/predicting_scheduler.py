"""Alignup as a scheduler: it sends a pod only to a host whose kubelet will admit it.

The predictions are those of the live service, ``placement.Cluster``. Reports about hosts arrive at once, so a host may
get several pods before its kubelet confirms the first. ``PredictingScheduler`` ranks hosts as the service does;
``FilteringScheduler`` ranks the admitting hosts by totals, as kube-scheduler does if the service only filters.
"""

from collections.abc import Sequence

from alignup.align.decision import Decision
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.simulate.cluster.groups import SimulatedHost
from alignup.simulate.cluster.pod_classes import EqualPods
from alignup.simulate.cluster.scheduler import Scoring, score_totals
from alignup.simulate.cluster.state_index import StateIndex

MAX_SHAPES = 1024  #: pod shapes with kept verdicts
MAX_STATES = 10_000  #: states in which no host is any more, with kept verdicts


class PredictingScheduler:
    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self.cluster = Cluster(max_unconfirmed=None, max_shapes=MAX_SHAPES, max_states=MAX_STATES, compact=False)
        self.hosts = {host.name: host for host in hosts}
        self.mispredictions = 0
        self.index = StateIndex(self.hosts, self.rate, self.predicted_ledger)
        for host in hosts:
            self.report(host)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        """The score of the service; ``None``: the kubelet will not admit such a pod."""
        verdict = self.cluster.verdict(pod_class.pod, host.name)
        return verdict.score.total if verdict.admits and verdict.score else None

    def predicted_ledger(self, host: SimulatedHost) -> Ledger | None:
        """The ledger of a host when it has admitted the pods on their way."""
        record = self.cluster.record(host.name)
        ledgers = record.states().ledgers if record else ()
        return ledgers[0] if len(ledgers) == 1 else None

    def report(self, host: SimulatedHost) -> None:
        """Report the state of a host to the cluster."""
        host.sequence += 1
        confirmed = self.cluster.confirm(
            HostReport(
                host=host.name,
                machine=host.group.machine,
                settings=host.group.settings,
                ledger=host.kubelet.ledger,
                sequence=host.sequence,
            )
        )
        self.mispredictions += sum(not one.as_predicted for one in confirmed)
        self.index.touch(host.name)

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        best = self.index.best(pod_class)
        if best is None or not self.cluster.assume(pod, best.name).admits:
            return None
        self.index.touch(best.name)
        return best

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        self.cluster.forget(pod.uid)
        self.index.touch(host.name)

    def admitted(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:  # noqa: ARG002 - of the protocol
        self.report(host)

    def rejected(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        self.mispredictions += 1
        self.cluster.observe_rejection(pod.uid, host.name, decision.rejection.reason if decision.rejection else "")
        self.index.touch(host.name)

    def ended(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002
        self.report(host)


class FilteringScheduler(PredictingScheduler):
    def __init__(self, hosts: Sequence[SimulatedHost], scoring: Scoring) -> None:
        self.scoring = scoring
        super().__init__(hosts)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        ledger = self.predicted_ledger(host)
        if ledger is None or not self.cluster.verdict(pod_class.pod, host.name).admits:
            return None
        return score_totals(self.scoring, pod_class.request, ledger.used, host)
