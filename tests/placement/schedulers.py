"""Schedulers for the simulated cluster: ours, and those of fleet simulations that count totals."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import HostReport, PodStage
from alignup.simulate.arrivals import PodSubmission
from alignup.simulate.cluster_hosts import EqualPodsIndex, HostGroup, SimulatedHost, build_hosts
from alignup.simulate.schedulers import TotalsScheduler
from tests.placement.model_api import PREEMPTED, PodObject


class Predicting:
    """Ours: places a pod on the best host that will admit it."""

    def __init__(self, causes: Counter[str], *, max_unconfirmed: int | None = 1) -> None:
        self.cluster = Cluster(max_unconfirmed=max_unconfirmed, max_shapes=1000, max_states=10_000)
        self.causes = causes

    def choose(self, pod: Pod) -> str | None:
        for best in self.cluster.rank(pod, limit=1):
            assert self.cluster.assume(pod, best.host).admits
            return best.host
        return None

    def forget(self, pod: Pod) -> None:
        self.cluster.forget(pod.uid)

    def handle(self, pod_object: PodObject, stage: PodStage, reason: str) -> None:
        if reason == PREEMPTED:
            self.cluster.observe_preemption(pod_object.pod, pod_object.host)
        elif reason:
            self.cluster.observe_rejection(pod_object.pod.uid, pod_object.host, reason)
        else:
            self.cluster.observe(pod_object.pod, pod_object.host, stage)

    def report(self, report: HostReport) -> None:
        self.cluster.confirm(report)
        self.causes.update(str(rejection.cause) for rejection in self.cluster.take_rejections())

    def relist(self, pods: list[PodObject]) -> None:
        self.cluster.relist((pod_object.pod, pod_object.host, pod_object.stage) for pod_object in pods)


class CountingTotals:
    """Those of fleet simulations that count totals of hosts or of NUMA nodes, here with late events.

    A pod that was placed counts until the API server says that it ended. With *reads_reports*, what pods hold on the
    NUMA nodes of a host is known when a report contains exactly the pods that are known to be there.
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        make: Callable[[Sequence[SimulatedHost]], TotalsScheduler],
        *,
        reads_reports: bool = False,
    ) -> None:
        known = build_hosts(
            HostGroup(name=name, names=(name,), machine=known_host.machine, settings=known_host.settings)
            for name, known_host in hosts.items()
        )
        self.hosts = {host.name: host for host in known}
        self.classes = EqualPodsIndex(known)
        self.scheduler = make(known)
        self.reads_reports = reads_reports
        self.placed: dict[str, dict[str, Pod]] = {name: {} for name in hosts}
        self.latest: dict[str, HostReport] = {}

    def choose(self, pod: Pod) -> str | None:
        best = self.scheduler.choose(self.classes.find(PodSubmission(0, pod)), pod)
        if best is None:
            return None
        self.placed[best.name][pod.uid] = pod
        return best.name

    def forget(self, pod: Pod) -> None:
        for name, host in self.hosts.items():
            if self.placed[name].pop(pod.uid, None):
                self.scheduler.forget(pod, host)
                self.synchronize(name)

    def handle(self, pod_object: PodObject, stage: PodStage, _: str) -> None:
        if stage is PodStage.ENDED:
            self.forget(pod_object.pod)

    def report(self, report: HostReport) -> None:
        self.latest[report.host] = report
        self.synchronize(report.host)

    def synchronize(self, name: str) -> None:
        latest, known = self.latest.get(name), self.placed[name]
        if self.reads_reports and latest and latest.ledger.pods.keys() == known.keys():
            self.hosts[name].kubelet.ledger = latest.ledger
            self.scheduler.index.touch(name)
            for pod in known.values():
                self.scheduler.forget(pod, self.hosts[name])

    def relist(self, pods: list[PodObject]) -> None:
        raise NotImplementedError("it is not restarted")
