"""A simulated cluster at peak demand, as plans need it: what each host holds, who may move, and who waits."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from alignup.align.ledger import Ledger
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport
from alignup.placement.moves import RunningPod
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import SimulatedHost

CLAIMS = "with ResourceClaims"


@dataclass(frozen=True, slots=True)
class PeakState:
    time: float
    hosts: Sequence[SimulatedHost]
    ledgers: Sequence[Ledger]  #: of the hosts
    waiting: tuple[tuple[PodSubmission, ...], ...]  #: single pods and gangs that no host had room for, first ones first

    def reports(self) -> Iterator[HostReport]:
        for host, ledger in zip(self.hosts, self.ledgers, strict=True):
            kubelet = host.kubelet
            yield HostReport(
                host=host.name, machine=kubelet.machine, settings=kubelet.settings, ledger=ledger, sequence=1
            )

    def cluster(self) -> Cluster:
        cluster = Cluster(max_unconfirmed=None)
        for report in self.reports():
            cluster.confirm(report)
        return cluster

    def running(self, submissions: Iterable[PodSubmission]) -> Iterator[RunningPod]:
        """Yield the pods that run; each is created again after its eviction, and may move unless it has claims."""
        by_uid = {submission.pod.uid: submission for submission in submissions}
        names: dict[Hashable, frozenset[str]] = {}  #: hosts by selector
        for host, ledger in zip(self.hosts, self.ledgers, strict=True):
            for uid, admitted_pod in ledger.pods.items():
                submission = by_uid.get(uid.partition("\0")[0])  # one that was created again has a number after it
                yield RunningPod(
                    pod=admitted_pod.pod,
                    host=host.name,
                    protected=CLAIMS if admitted_pod.pod.uses_claims else "",
                    hosts=self._hosts_of(submission, names) if submission else None,
                    age=max(int(self.time - submission.time), 0) if submission else 0,
                )

    def _hosts_of(self, submission: PodSubmission, names: dict[Hashable, frozenset[str]]) -> frozenset[str] | None:
        if not submission.selector:
            return None
        key = tuple(sorted((label, tuple(values)) for label, values in submission.selector.items()))
        if key not in names:
            names[key] = frozenset(host.name for host in self.hosts if submission.matches(host.labels))
        return names[key]
