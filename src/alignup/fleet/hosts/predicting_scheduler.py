"""Alignup as a scheduler: it sends a pod only to a host whose kubelet will admit it.

The predictions are those of the live service, ``placement.Cluster``. Reports about hosts arrive at once, so a host may
get several pods before its kubelet confirms the first. ``PredictingScheduler`` ranks hosts as the service does;
``FilteringScheduler`` ranks the admitting hosts by totals, as kube-scheduler does if the service only filters.
"""

from collections.abc import Sequence

from alignup.align.decision import Decision
from alignup.align.workload import Pod
from alignup.fleet.hosts.groups import SimulatedHost
from alignup.fleet.hosts.host_index import HostIndex
from alignup.fleet.hosts.pod_classes import EqualPods
from alignup.fleet.hosts.scheduler import Scoring, score_totals
from alignup.placement.cluster import Cluster
from alignup.placement.report import HostReport

MAX_SHAPES = 1024  #: pod shapes with kept verdicts


class PredictingScheduler:
    def __init__(self, hosts: Sequence[SimulatedHost]) -> None:
        self.cluster = Cluster(max_unconfirmed=None, max_shapes=MAX_SHAPES)
        self.hosts = {host.name: host for host in hosts}
        self.mispredictions = 0
        for host in hosts:
            self.report(host)

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

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        for name in self.best(pod_class, pod):
            if self.cluster.assume(pod, name).admits:
                return self.hosts[name]
        return None

    def best(self, pod_class: EqualPods, pod: Pod) -> Sequence[str]:
        """The best host, if any admits the pod."""
        return self.cluster.best(pod, 1, among=pod_class.hosts)

    def forget(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002 - of the protocol
        self.cluster.forget(pod.uid)

    def admitted(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:  # noqa: ARG002
        self.report(host)

    def rejected(self, pod: Pod, host: SimulatedHost, decision: Decision) -> None:
        self.mispredictions += 1
        self.cluster.observe_rejection(pod.uid, host.name, decision.rejection.reason if decision.rejection else "")

    def ended(self, pod: Pod, host: SimulatedHost) -> None:  # noqa: ARG002
        self.report(host)


class FilteringScheduler(PredictingScheduler):
    def __init__(self, hosts: Sequence[SimulatedHost], scoring: Scoring) -> None:
        self.scoring = scoring
        self.index = HostIndex(hosts, self.rate)
        super().__init__(hosts)

    def rate(self, pod_class: EqualPods, host: SimulatedHost) -> float | None:
        if not pod_class.fits(host) or not self.cluster.verdict(pod_class.pod, host.name).admits:
            return None
        return score_totals(self.scoring, pod_class.request, host.kubelet.ledger.used, host)

    def report(self, host: SimulatedHost) -> None:
        super().report(host)
        self.index.touch(host.name)

    def best(self, pod_class: EqualPods, pod: Pod) -> Sequence[str]:  # noqa: ARG002
        found = self.index.best(pod_class)
        return () if found is None else (found.name,)

    def choose(self, pod_class: EqualPods, pod: Pod) -> SimulatedHost | None:
        found = super().choose(pod_class, pod)
        if found is not None:
            self.index.touch(found.name)
        return found

    def forget(self, pod: Pod, host: SimulatedHost) -> None:
        super().forget(pod, host)
        self.index.touch(host.name)
