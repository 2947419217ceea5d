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
from typing import Protocol

from alignup.align.host import Host
from alignup.align.workload import Container, Pod
from alignup.placement.report import HostReport, PodStage
from tests.placement.model_api import PREEMPTED, ApiServer, PodObject, Watch, World
from tests.placement.model_kubelet import Kubelet
from tests.strategies_pods import container

TICK = 0.2  #: seconds between two attempts of the scheduler
CRITICAL = 2_000_001_000  #: the priority of system-node-critical pods


class Scheduler(Protocol):
    """What differs between the schedulers compared."""

    def choose(self, pod: Pod) -> str | None:
        """The host for a pod, which counts on it from now on; ``None``: none at present."""

    def forget(self, pod: Pod) -> None:
        """The binding failed."""

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        """The API server recorded a change of a bound pod."""

    def report(self, report: HostReport) -> None:
        """An observer has reported."""

    def relist(self, pods: list[PodObject]) -> None:
        """All bound pods after a start."""


@dataclass
class Outcome:
    """What happened in one run."""

    placements: int = 0
    rejections: int = 0
    preempted: int = 0  #: pods that kubelets ended for critical ones
    busy: float = 0.0  #: CPU seconds that pods had exclusively
    seconds: float = 0.0
    longest_wait: float = 0.0

    def utilisation(self, cpus: int) -> float:
        return self.busy / (self.seconds * cpus) if self.seconds else 0.0


@dataclass(frozen=True)
class Disturbances:
    """How often others interfere, per second of simulated time."""

    foreign: float = 0.0
    restarts: float = 0.0
    devices: float = 0.0
    schedulers: float = 0.0  #: restarts of ours
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
        self.pending: deque[tuple[str, float]] = deque()
        self.api.watches.append(Watch(self.world, self.count_rejection, (0.001, 0.4)))
        self.services = [Service(self, make) for _ in range(services)]
        self.kubelets = [Kubelet(name, one, self.api, self.publish) for name, one in hosts.items()]
        self.numbers = count()
        self.foreign: set[str] = set()
        self.arriving = True
        self.most_waiting = 3 * len(hosts)
        self.world.after(1, self.tick)
        self.disturbances = disturbances or Disturbances()

    def run(self, placements: int) -> Outcome:
        while self.outcome.placements < placements:
            self.world.step()
        now = self.outcome.seconds = self.world.now
        for kubelet in self.kubelets:
            own = [cpus * (now - since) for since, cpus in kubelet.running.values()]
            self.outcome.busy += kubelet.busy + sum(own)
            self.outcome.preempted += kubelet.preempted
        self.arriving = False
        return self.outcome

    def drain(self) -> int:
        """Let everything end; the number of pods that were never placed."""
        limit = self.world.now + 600
        while self.pending and self.world.now < limit:
            self.world.step()
        return len(self.pending)

    def tick(self) -> None:
        """Pods arrive, the scheduler places what it can, and others interfere."""
        self.world.after(TICK, self.tick)
        while self.arriving and len(self.pending) < self.most_waiting:
            pod, lifetime = next(self.pods)
            self.create(pod, lifetime)
        for _ in range(len(self.pending)):
            uid, since = self.pending.popleft()
            service = self.services[int(uid.rpartition("-")[2]) % len(self.services)]
            host = service.scheduler.choose(self.api.pods[uid].pod)
            if host is None:
                self.pending.append((uid, since))
                continue
            self.outcome.longest_wait = max(self.outcome.longest_wait, self.world.now - since)
            service.bindings.send(uid, host, service.scheduler)
        self.interfere()

    def create(self, pod: Pod, lifetime: float) -> str:
        uid = f"{pod.name}-{next(self.numbers)}"
        self.api.pods[uid] = PodObject(replace(pod, uid=uid, name=uid), lifetime, self.world.now)
        self.pending.append((uid, self.world.now))
        return uid

    def publish(self, report: HostReport) -> None:
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

    def count_rejection(self, found: PodObject, _: PodStage, reason: str) -> None:
        """Count pods that kubelets rejected, and create others instead, as a workload controller does."""
        uid = found.pod.uid
        if reason and uid not in self.foreign:
            self.outcome.rejections += reason != PREEMPTED
            if self.arriving:
                self.create(replace(found.pod, name=uid.rpartition("-")[0]), found.lifetime)

    def interfere(self) -> None:
        random, rates = self.world.random, self.disturbances
        if random.random() < rates.foreign * TICK:
            self.bind_foreign(*next(self.pods))
        if random.random() < rates.critical * TICK:
            own: tuple[Container, ...] = (container("app", {"cpu": f"{random.choice((500, 1500))}m"}),)
            self.bind_foreign(Pod(name="critical", containers=own, priority=CRITICAL), random.uniform(2, 20))
        if random.random() < rates.restarts * TICK:
            random.choice(self.kubelets).restart()
        if random.random() < rates.configurations * TICK:
            random.choice(self.kubelets).reconfigure()
        if random.random() < rates.devices * TICK:
            random.choice(self.kubelets).flip_device()
        if random.random() < rates.schedulers * TICK:
            random.choice(self.services).restart()

    def bind_foreign(self, pod: Pod, lifetime: float) -> None:
        """Something else binds a pod to any host."""
        uid = self.create(replace(pod, name="foreign"), lifetime)
        self.pending.pop()
        self.foreign.add(uid)
        self.api.bind(uid, self.world.random.choice(self.kubelets).name)


class Service:
    """One scheduler, which can be replaced, with its own watches of pods and reports."""

    def __init__(self, simulation: Simulation, make: Callable[[], Scheduler]) -> None:
        self.simulation, self.make = simulation, make
        self.world, self.api = simulation.world, simulation.api
        self.scheduler = make()
        self.reports: dict[str, HostReport] = {}
        self.feeds: dict[str, Watch] = {}  #: by host
        self.api.watches.append(Watch(self.world, self.handle, (0.001, 0.4)))
        self.bindings = Watch(self.world, self.bind, (0.005, 0.05))

    def feed(self, host: str) -> Watch:
        return self.feeds.setdefault(host, Watch(self.world, self.receive, (0.001, 0.4)))

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        self.scheduler.handle(found, stage, reason)

    def receive(self, report: HostReport) -> None:
        self.reports[report.host] = report
        self.scheduler.report(report)

    def bind(self, uid: str, host: str, scheduler: Scheduler) -> None:
        """Bind a pod, which may fail; a scheduler that was replaced meanwhile binds nothing more."""
        fails = self.world.random.random() < 0.02 or scheduler is not self.scheduler
        if fails or not self.api.bind(uid, host):
            if uid in self.api.pods:
                self.scheduler.forget(self.api.pods[uid].pod)
                self.simulation.pending.append((uid, self.world.now))
            return
        self.simulation.outcome.placements += 1
        self.simulation.delete_later(uid)

    def restart(self) -> None:
        """A new scheduler reads all reports and lists all pods."""
        self.scheduler = self.make()
        for report in self.reports.values():
            self.scheduler.report(report)
        self.scheduler.relist([found for found in self.api.pods.values() if found.host])
