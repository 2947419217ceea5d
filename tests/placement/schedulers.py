"""Three schedulers for the simulated cluster: ours, one without any knowledge of NUMA nodes, and one with totals."""

from collections import Counter

from alignup.align.fit import insufficient_resources
from alignup.align.host import Host
from alignup.align.workload import Amounts, Pod, QoS
from alignup.align.workload.demand import FitRequest, fit_request
from alignup.placement.cluster import Cluster
from alignup.placement.report import HostReport, PodStage
from tests.align.hosts import GPU
from tests.placement.model_api import PREEMPTED, PodObject


class Predicting:
    """Ours: places a pod on the best host that will admit it."""

    def __init__(self, causes: Counter[str], *, max_unconfirmed: int | None = 1) -> None:
        self.cluster = Cluster(max_unconfirmed=max_unconfirmed)
        self.causes = causes

    def choose(self, pod: Pod) -> str | None:
        for best in self.cluster.rank(pod, limit=1):
            assert self.cluster.assume(pod, best.host).admits
            return best.host
        return None

    def forget(self, pod: Pod) -> None:
        self.cluster.forget(pod.uid)

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        if reason == PREEMPTED:
            self.cluster.observe_preemption(found.pod, found.host)
        elif reason:
            self.cluster.observe_rejection(found.pod.uid, found.host, reason)
        else:
            self.cluster.observe(found.pod, found.host, stage)

    def report(self, report: HostReport) -> None:
        self.cluster.confirm(report)
        self.causes.update(str(one.cause) for one in self.cluster.take_rejections())

    def relist(self, pods: list[PodObject]) -> None:
        self.cluster.relist((found.pod, found.host, found.stage) for found in pods)


class NumaBlind:
    """Compares totals of the host, and prefers the one with most free CPUs, as kube-scheduler does."""

    def __init__(self, hosts: dict[str, Host]) -> None:
        self.hosts = hosts
        self.used = {name: one.initial_ledger().used for name, one in hosts.items()}
        self.placed: dict[str, tuple[str, FitRequest]] = {}

    def fits(self, pod: Pod, name: str) -> bool:
        allocatable = self.hosts[name].rules.allocatable
        assert allocatable
        devices = self.hosts[name].ledger.devices.allocatable()
        room = allocatable.with_devices(devices)
        return not insufficient_resources(fit_request(pod), used=self.used[name], allocatable=room)

    def choose(self, pod: Pod) -> str | None:
        fitting = [name for name in self.hosts if self.fits(pod, name)]
        if not fitting:
            return None
        best = min(fitting, key=lambda name: self.used[name].milli_cpu)
        self.count(pod, best)
        return best

    def count(self, pod: Pod, name: str) -> None:
        if pod.uid not in self.placed:
            self.placed[pod.uid] = name, (usage := fit_request(pod))
            self.used[name] = self.used[name].plus(usage)

    def forget(self, pod: Pod) -> None:
        if pod.uid in self.placed:
            name, usage = self.placed.pop(pod.uid)
            self.used[name] = self.used[name].plus(usage, by=-1)

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        if stage is PodStage.ENDED:
            self.forget(found.pod)
        else:
            self.count(found.pod, found.host)

    def report(self, report: HostReport) -> None:
        """Reports say nothing that it understands."""

    def relist(self, pods: list[PodObject]) -> None:
        for found in pods:
            self.handle(found, found.stage, "")


class PerNodeTotals(NumaBlind):
    """Knows the free amounts of every NUMA node, and charges a placed pod to all of them until a report contains it."""

    def __init__(self, hosts: dict[str, Host]) -> None:
        super().__init__(hosts)
        self.latest: dict[str, HostReport] = {}
        self.reported: dict[str, HostReport] = {}  #: in use: the last one that had exactly the known pods
        self.charged: dict[str, dict[str, Pod]] = {name: {} for name in hosts}

    def report(self, report: HostReport) -> None:
        self.latest[report.host] = report
        self.synchronize(report.host)

    def synchronize(self, host: str) -> None:
        """Use the latest report and forget the charges, if it has the pods that are known to be there."""
        latest = self.latest.get(host)
        if latest and latest is not self.reported.get(host):
            known = {uid for uid, (name, _) in self.placed.items() if name == host}
            if known == set(latest.ledger.pods) or host not in self.reported:
                self.reported[host] = latest
                self.charged[host].clear()

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        super().handle(found, stage, reason)
        self.synchronize(found.host)

    def count(self, pod: Pod, name: str) -> None:
        if pod.uid not in self.placed:
            self.charged[name][pod.uid] = pod
        super().count(pod, name)

    def forget(self, pod: Pod) -> None:
        for own in self.charged.values():
            own.pop(pod.uid, None)
        super().forget(pod)

    def fits(self, pod: Pod, name: str) -> bool:
        if not super().fits(pod, name) or name not in self.reported:
            return False
        ledger = self.reported[name].ledger
        free = {
            node: {
                "cpu": ledger.cpus.free.get(node, 0),
                "memory": memory.tables["memory"].free,
                GPU: ledger.devices.free_on(GPU).get(node, 0),
            }
            for node, memory in ledger.memory.nodes.items()
        }
        for charged in self.charged[name].values():
            for zone in free.values():
                for container in charged.containers:
                    _charge(zone, charged, container.resources.requests)
        for container in pod.containers:
            wanted = container.resources.requests
            fitting = [zone for zone in free.values() if _fits(zone, pod, wanted)]
            if not fitting:
                return False
            _charge(fitting[0], pod, wanted)
        return True


def _fits(zone: dict[str, int], pod: Pod, requests: Amounts) -> bool:
    names = zone if pod.qos is QoS.GUARANTEED else {GPU}
    return all(requests[name].value() <= zone[name] for name in names if name in requests)


def _charge(zone: dict[str, int], pod: Pod, requests: Amounts) -> None:
    for name in zone if pod.qos is QoS.GUARANTEED else {GPU}:
        if name in requests:
            zone[name] -= requests[name].value()
