"""A simulated cluster: an API server, a kubelet and an observer per host, and schedulers, with delays between them.

What was measured on real kubelets holds here. A kubelet admits pods in the order in which their bindings were recorded,
only a starting one takes those it finds by age. It frees the resources of an ended pod in its own books at once, and
writes so to its files at the next admission, or ten seconds later. The API server learns of an end a little later
still. An observer reads the files at most once a second. Everything arrives in order and late, and at each scheduler
at another time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol

from alignup.align.host import Host
from alignup.align.workload import Container, Pod
from alignup.placement.host_report import HostReport, PodStage
from tests.placement.model_api import PREEMPTED, ApiServer, PodObject, Watch, World
from tests.placement.model_kubelet import ModelKubelet
from tests.strategies_pods import container

TICK = 0.2  #: seconds between two turns of the schedulers
RETRY = 1.0  #: seconds until a pod that went nowhere is tried again, the shortest of kube-scheduler
CRITICAL = 2_000_001_000  #: the priority of system-node-critical pods


class Scheduler(Protocol):
    """What differs between the schedulers compared."""

    def choose(self, pod: Pod) -> str | None:
        """The host for a pod, which counts on it from now on; ``None``: none at present."""

    def forget(self, pod: Pod) -> None:
        """The binding failed."""

    def handle(self, pod_object: PodObject, stage: PodStage, reason: str) -> None:
        """The API server recorded a change of a bound pod."""

    def report(self, report: HostReport) -> None:
        """An observer has reported."""

    def relist(self, pods: list[PodObject]) -> None:
        """All bound pods after a start."""


class WaitingPod(NamedTuple):
    uid: str
    since: float
    next: float  #: when it is tried next


@dataclass
class Outcome:
    """What happened in one run."""

    placements: int = 0
    rejections: int = 0
    preempted: int = 0  #: pods that kubelets ended for critical ones
    interruptions: int = 0  #: restarts of schedulers and of their watches
    busy: float = 0.0  #: CPU seconds that pods had exclusively
    seconds: float = 0.0
    longest_wait: float = 0.0

    def utilization(self, cpus: int) -> float:
        return self.busy / (self.seconds * cpus) if self.seconds else 0.0


@dataclass(frozen=True)
class Disturbances:
    """How often others interfere, per second of simulated time."""

    foreign: float = 0.0
    restarts: float = 0.0
    devices: float = 0.0
    schedulers: float = 0.0  #: restarts of ours, and watches that are interrupted, equally many
    critical: float = 0.0  #: critical pods of others, for which kubelets preempt pods
    configurations: float = 0.0  #: kubelets that restart with other settings


class Simulation:
    """Pods arrive faster than they end, so that hosts are full; rejected pods are created again."""

    def __init__(
        self,
        hosts: dict[str, Host],
        make: Callable[[], Scheduler],
        pods: Iterator[tuple[Pod, float]],
        *,
        seed: int,
        disturbances: Disturbances | None = None,
        services: int = 1,
    ) -> None:
        self.world = World(seed)
        self.api = ApiServer(self.world)
        self.make, self.pods = make, pods
        self.outcome = Outcome()
        self.pending: deque[WaitingPod] = deque()
        self.api.watches.append(Watch(self.world, self.count_rejection, (0.001, 0.4)))
        self.services = [Service(self, make) for _ in range(services)]
        self.kubelets = [ModelKubelet(name, host, self.api, self.publish) for name, host in hosts.items()]
        self.numbers = count()
        self.foreign: set[str] = set()
        self.arriving = True
        self.most_waiting = 3 * len(hosts)
        self.world.after(1, self.tick)
        self.disturbances = disturbances or Disturbances()

    def run(self, placements: int) -> Outcome:
        limit = 60.0 * (placements + 10)
        while self.outcome.placements < placements:
            assert self.world.now < limit, "nothing is placed any more"
            self.world.step()
        now = self.outcome.seconds = self.world.now
        for kubelet in self.kubelets:
            cpu_seconds = [cpus * (now - since) for since, cpus in kubelet.running.values()]
            self.outcome.busy += kubelet.busy + sum(cpu_seconds)
            self.outcome.preempted += kubelet.preempted
        self.arriving = False
        return self.outcome

    def drain(self) -> int:
        """Let everything end; the number of pods that were never placed."""
        self.disturbances = Disturbances(devices=self.disturbances.devices)  # failed ones become healthy again
        limit = self.world.now + 600
        while self.pending and self.world.now < limit:
            self.world.step()
        limit = self.world.now + 60  # all pods have ended, and all reports have arrived
        while self.world.now < limit:
            self.world.step()
        return len(self.pending)

    def tick(self) -> None:
        """Pods arrive, the scheduler places what it can, and others interfere."""
        self.world.after(TICK, self.tick)
        while self.arriving and len(self.pending) < self.most_waiting:
            pod, lifetime = next(self.pods)
            self.create(pod, lifetime)
        for _ in range(len(self.pending)):
            waiting = self.pending.popleft()
            if waiting.next > self.world.now:
                self.pending.append(waiting)
            elif self.place(waiting.uid):
                self.outcome.longest_wait = max(self.outcome.longest_wait, self.world.now - waiting.since)
            else:
                self.pending.append(waiting._replace(next=self.world.now + RETRY))
        self.interfere()

    def place(self, uid: str) -> bool:
        """Let a scheduler choose a host; false if it finds none at present."""
        service = self.services[int(uid.rpartition("-")[2]) % len(self.services)]
        host = service.scheduler.choose(self.api.pods[uid].pod)
        if host is not None:
            service.bindings.send(uid, host, service.scheduler)
        return host is not None

    def wait(self, uid: str) -> None:
        self.pending.append(WaitingPod(uid, since=self.world.now, next=self.world.now))

    def create(self, pod: Pod, lifetime: float) -> str:
        uid = f"{pod.name}-{next(self.numbers)}"
        self.api.pods[uid] = PodObject(replace(pod, uid=uid, name=uid), lifetime, self.world.now)
        self.wait(uid)
        return uid

    def publish(self, report: HostReport) -> None:
        self.api.reports[report.host] = report
        for service in self.services:
            service.feed(report.host).send(report)

    def delete_later(self, uid: str) -> None:
        """Some pods are deleted before they end, a few by force."""
        chance = self.world.random.random()
        if chance < 0.3:
            stage = PodStage.ENDED if chance < 0.03 else PodStage.TERMINATING
            late = self.world.random.uniform(0.1, 10)
            self.world.after(late, lambda: self.delete(uid, stage))

    def delete(self, uid: str, stage: PodStage) -> None:
        if uid in self.api.pods and self.api.pods[uid].stage is PodStage.RUNNING:
            self.api.record(uid, stage)

    def count_rejection(self, pod_object: PodObject, _: PodStage, reason: str) -> None:
        """Count pods that kubelets rejected, and create others instead, as a workload controller does."""
        uid = pod_object.pod.uid
        if reason and uid not in self.foreign:
            self.outcome.rejections += reason != PREEMPTED
            if self.arriving:
                self.create(replace(pod_object.pod, name=uid.rpartition("-")[0]), pod_object.lifetime)

    def interfere(self) -> None:
        random, rates = self.world.random, self.disturbances
        if random.random() < rates.foreign * TICK:
            self.bind_foreign(*next(self.pods))
        if random.random() < rates.critical * TICK:
            containers: tuple[Container, ...] = (container("app", {"cpu": f"{random.choice((500, 1500))}m"}),)
            self.bind_foreign(Pod(name="critical", containers=containers, priority=CRITICAL), random.uniform(2, 20))
        if random.random() < rates.restarts * TICK:
            random.choice(self.kubelets).restart()
        if random.random() < rates.configurations * TICK:
            random.choice(self.kubelets).reconfigure()
        if random.random() < rates.devices * TICK:
            random.choice(self.kubelets).flip_device()
        if random.random() < rates.schedulers * TICK:
            service = random.choice(self.services)
            random.choice((service.restart, service.list_pods))()
            self.outcome.interruptions += 1

    def bind_foreign(self, pod: Pod, lifetime: float) -> None:
        """Something else binds a pod to any host."""
        uid = self.create(replace(pod, name="foreign"), lifetime)
        self.pending.pop()
        self.foreign.add(uid)
        self.api.bind(uid, self.world.random.choice(self.kubelets).name)


class Service:
    """One scheduler, which can be replaced, with its own watches of pods and reports.

    They are those of a real informer. It lists the objects, and continues with a watch from the resource version of the
    list. Events that are older never arrive, and the list does not tell what happened before it: pods that came and
    ended meanwhile are missing, and bindings come in any order. An interrupted watch may be too old to be continued
    (410 Gone), then the objects are listed again. A starting service needs the list of pods before it reads reports.
    """

    def __init__(self, simulation: Simulation, make: Callable[[], Scheduler]) -> None:
        self.simulation, self.make = simulation, make
        self.world, self.api = simulation.world, simulation.api
        self.scheduler = make()
        self.pods = self.watch(self.handle)
        self.api.watches.append(self.pods)
        self.feeds: dict[str, Watch] = {}  #: reports by host
        self.bindings = Watch(self.world, self.bind, (0.005, 0.05))

    def watch(self, handler: Callable[..., object]) -> Watch:
        return Watch(self.world, handler, (0.001, 0.4))

    def feed(self, host: str) -> Watch:
        return self.feeds.setdefault(host, self.watch(self.receive))

    def handle(self, pod_object: PodObject, stage: PodStage, reason: str) -> None:
        self.scheduler.handle(pod_object, stage, reason)

    def receive(self, report: HostReport) -> None:
        self.scheduler.report(report)

    def bind(self, uid: str, host: str, scheduler: Scheduler) -> None:
        """Bind a pod, which may fail; a scheduler that was replaced meanwhile binds nothing more."""
        fails = self.world.random.random() < 0.02 or scheduler is not self.scheduler
        if fails or not self.api.bind(uid, host):
            if uid in self.api.pods:
                self.scheduler.forget(self.api.pods[uid].pod)
                self.simulation.wait(uid)
            return
        self.simulation.outcome.placements += 1
        self.simulation.delete_later(uid)

    def list_pods(self) -> None:
        """The watch of pods was interrupted."""
        self.pods.close()
        self.api.watches.remove(self.pods)
        self.pods = self.watch(self.handle)
        self.api.watches.append(self.pods)
        self.scheduler.relist([pod_object for pod_object in self.api.pods.values() if pod_object.host])

    def restart(self) -> None:
        """A new scheduler lists all pods and reads all reports."""
        self.scheduler = self.make()
        self.list_pods()
        for feed in self.feeds.values():
            feed.close()
        self.feeds.clear()
        for report in self.api.reports.values():
            self.scheduler.report(report)
