"""A simulated cluster: an API server, a kubelet and an observer per host, and a scheduler, with delays between them.

What was measured on real kubelets holds here. A kubelet admits pods in the order in which their bindings were recorded,
only a starting one takes those it finds by age. It frees the resources of an ended pod in its own books at once, and
writes so to its files at the next admission, or ten seconds later. The API server learns of an end a little later
still. An observer reads the files at most once a second. Everything arrives in order and late.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Protocol

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.report import HostReport, PodStage
from tests.align.hosts import GPU

TICK = 0.2  #: seconds between two attempts of the scheduler
RECONCILE = 10.0  #: seconds until a kubelet removes ended pods from its files by itself


class World:
    """Simulated time."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    def step(self) -> None:
        self.now, _, action = heapq.heappop(self._queue)
        action()


@dataclass
class Watch:
    """Delivers events in order, each after a random delay."""

    world: World
    handler: Callable[..., object]
    delay: tuple[float, float]
    last: float = 0.0

    def send(self, *event: object) -> None:
        self.last = max(self.last, self.world.now + self.world.random.uniform(*self.delay))
        self.world.after(self.last - self.world.now, lambda: self.handler(*event))


@dataclass
class PodObject:
    """A pod in the API server."""

    pod: Pod
    lifetime: float
    created: float
    host: str = ""
    stage: PodStage = PodStage.RUNNING


class ApiServer:
    def __init__(self, world: World) -> None:
        self.world = world
        self.pods: dict[str, PodObject] = {}
        self.watches: list[Watch] = []
        self.kubelets: dict[str, Watch] = {}

    def bind(self, uid: str, host: str) -> bool:
        """Record a binding; false if the pod is gone or bound already."""
        found = self.pods.get(uid)
        if found is None or found.host:
            return False
        found.host = host
        self.record(uid)
        return True

    def end(self, uid: str) -> None:
        if uid in self.pods:
            self.record(uid, PodStage.ENDED)

    def record(self, uid: str, stage: PodStage = PodStage.RUNNING, reason: str = "") -> None:
        """Record a change, and tell the watches about it."""
        found = self.pods[uid]
        found.stage = stage
        for watch in (*self.watches, self.kubelets[found.host]):
            watch.send(found, stage, reason)
        if stage is PodStage.ENDED:
            del self.pods[uid]


class Kubelet:
    def __init__(self, name: str, host: Host, api: ApiServer, publish: Callable[[HostReport], object]) -> None:
        self.name, self.host, self.api, self.world = name, host, api, api.world
        self.publish = publish
        self.ended: set[str] = set()  #: ended pods that the files still contain
        self.running: dict[str, tuple[float, int]] = {}  #: uid → since when, and how many exclusive CPUs
        self.busy = 0.0  #: CPU seconds of pods that ended
        self.waiting: list[PodObject] | None = None  #: pods that were bound while the kubelet was down
        self.starts = self.sequence = 0
        self.last_report = self.last_flip = -10.0
        self.reporting = False
        api.kubelets[name] = Watch(self.world, self.handle, (0.001, 0.3))
        self.report()

    def handle(self, found: PodObject, stage: PodStage, _: str) -> None:
        if stage is PodStage.RUNNING:
            if self.waiting is None:
                self.admit(found)
            else:
                self.waiting.append(found)
        elif stage is PodStage.TERMINATING:
            self.world.after(self.world.random.uniform(0.01, 3), lambda: self.finish(found))
        else:
            self.forget(found.pod.uid)  # the object is gone: a pod that was deleted by force ends here

    def admit(self, found: PodObject) -> None:
        for uid in self.ended:
            self.host.release(uid)
        self.ended.clear()
        decision = self.host.decide_without_plugins(found.pod)
        uid = found.pod.uid
        if decision.admitted:
            self.host.apply(decision)
            self.running[uid] = self.world.now, self.host.ledger.cpus.owned(uid).bit_count()
            self.world.after(found.lifetime, lambda: self.finish(found))
        elif uid in self.api.pods:
            self.api.record(uid, PodStage.ENDED, decision.rejection.reason if decision.rejection else "")
        self.changed()

    def finish(self, found: PodObject) -> None:
        """A pod has ended; the API server learns of it later."""
        uid = found.pod.uid
        if uid in self.running:
            self.forget(uid)
            late = self.world.random.uniform(0.001, 0.5)
            self.world.after(late, lambda: self.api.end(uid))

    def forget(self, uid: str) -> None:
        if uid in self.running:
            since, cpus = self.running.pop(uid)
            self.busy += cpus * (self.world.now - since)
            self.ended.add(uid)
            self.world.after(RECONCILE, self.reconcile)

    def reconcile(self) -> None:
        for uid in self.ended:
            self.host.release(uid)
        self.ended.clear()
        self.changed()

    def restart(self) -> None:
        if self.waiting is None:
            self.waiting = []
            self.world.after(self.world.random.uniform(0.5, 3), self.start)

    def start(self) -> None:
        found, self.waiting = self.waiting or [], None
        self.starts += 1
        for one in sorted(found, key=lambda one: one.created):
            if one.stage is PodStage.RUNNING:
                self.admit(one)
            else:  # it was deleted meanwhile, and never ran
                self.api.end(one.pod.uid)
        self.changed()

    def flip_device(self) -> None:
        """A device changes its health, and stays so for a while: reports do not show what happened between them."""
        if self.world.now < self.last_flip + 10:
            return
        self.last_flip = self.world.now
        inventory = self.host.ledger.devices.inventories[GPU]
        index = self.world.random.randrange(len(inventory.devices))
        devices = [
            replace(device, healthy=device.healthy != (place == index))
            for place, device in enumerate(inventory.devices)
        ]
        self.host.update_devices(GPU, devices)
        self.changed()

    def changed(self) -> None:
        """The files changed: the observer reads them soon, at most once a second."""
        if not self.reporting:
            self.reporting = True
            soon = max(self.last_report + 1.0 - self.world.now, self.world.random.uniform(0.02, 0.7))
            self.world.after(soon, self.report)

    def report(self) -> None:
        self.reporting = False
        self.last_report = self.world.now
        self.sequence += 1
        self.publish(
            HostReport(
                host=self.name,
                machine=self.host.machine,
                settings=self.host.settings,
                ledger=self.host.ledger,
                sequence=self.sequence,
                kubelet=str(self.starts),
            )
        )


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
    schedulers: float = 0.0


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
    ) -> None:
        self.world = World(seed)
        self.api = ApiServer(self.world)
        self.make, self.pods = make, pods
        self.scheduler = make()
        self.outcome = Outcome()
        self.reports: dict[str, HostReport] = {}
        self.pending: deque[tuple[str, float]] = deque()
        self.api.watches.append(Watch(self.world, self.handle, (0.001, 0.4)))
        self.feeds = {name: Watch(self.world, self.receive, (0.001, 0.4)) for name in hosts}
        self.bindings = Watch(self.world, self.bind, (0.005, 0.05))
        self.kubelets = [Kubelet(name, one, self.api, self.feeds[name].send) for name, one in hosts.items()]
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
            host = self.scheduler.choose(self.api.pods[uid].pod)
            if host is None:
                self.pending.append((uid, since))
                continue
            self.outcome.longest_wait = max(self.outcome.longest_wait, self.world.now - since)
            self.bindings.send(uid, host, self.scheduler)
        self.interfere()

    def create(self, pod: Pod, lifetime: float) -> str:
        uid = f"{pod.name}-{next(self.numbers)}"
        self.api.pods[uid] = PodObject(replace(pod, uid=uid, name=uid), lifetime, self.world.now)
        self.pending.append((uid, self.world.now))
        return uid

    def bind(self, uid: str, host: str, scheduler: Scheduler) -> None:
        """The scheduler binds a pod, which may fail; one that was replaced meanwhile binds nothing more."""
        fails = self.world.random.random() < 0.02 or scheduler is not self.scheduler
        if fails or not self.api.bind(uid, host):
            if uid in self.api.pods:
                self.scheduler.forget(self.api.pods[uid].pod)
                self.pending.append((uid, self.world.now))
            return
        self.outcome.placements += 1
        self.delete_later(uid)

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

    def handle(self, found: PodObject, stage: PodStage, reason: str) -> None:
        uid = found.pod.uid
        if reason:
            self.outcome.rejections += uid not in self.foreign
            if self.arriving and uid not in self.foreign:
                self.create(replace(found.pod, name=uid.rpartition("-")[0]), found.lifetime)
        self.scheduler.handle(found, stage, reason)

    def receive(self, report: HostReport) -> None:
        self.reports[report.host] = report
        self.scheduler.report(report)

    def interfere(self) -> None:
        random, rates = self.world.random, self.disturbances
        if random.random() < rates.foreign * TICK:
            pod, lifetime = next(self.pods)
            uid = self.create(replace(pod, name="foreign"), lifetime)
            self.pending.pop()
            self.foreign.add(uid)
            self.api.bind(uid, random.choice(self.kubelets).name)
        if random.random() < rates.restarts * TICK:
            random.choice(self.kubelets).restart()
        if random.random() < rates.devices * TICK:
            random.choice(self.kubelets).flip_device()
        if random.random() < rates.schedulers * TICK:
            self.restart_scheduler()

    def restart_scheduler(self) -> None:
        """A new scheduler reads all reports and lists all pods."""
        self.scheduler = self.make()
        for report in self.reports.values():
            self.scheduler.report(report)
        self.scheduler.relist([found for found in self.api.pods.values() if found.host])
