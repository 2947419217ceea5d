"""Simulated time, and an API server whose watches deliver events in order and late."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from alignup.align.workload import Pod
from alignup.placement.host_report import HostReport, PodStage

PREEMPTED = "Preempting"  #: the kubelet's reason of a pod that it ended for a critical one


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


@dataclass(eq=False)
class Watch:
    """Delivers events in order, each after a random delay."""

    world: World
    handler: Callable[..., object]
    delay: tuple[float, float]
    last: float = 0.0

    def send(self, *event: object) -> None:
        self.last = max(self.last, self.world.now + self.world.random.uniform(*self.delay))
        self.world.after(self.last - self.world.now, lambda: self.handler(*event))

    def close(self) -> None:
        """Lose the events that are on their way, like a closed connection."""
        self.handler = _lose


def _lose(*_: object) -> None:
    """An event without a receiver."""


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
        self.reports: dict[str, HostReport] = {}  #: the last one of each host

    def bind(self, uid: str, host: str) -> bool:
        """Record a binding; false if the pod is gone or bound already."""
        pod_object = self.pods.get(uid)
        if pod_object is None or pod_object.host:
            return False
        pod_object.host = host
        self.record(uid)
        return True

    def end(self, uid: str, reason: str = "") -> None:
        if uid in self.pods:
            self.record(uid, PodStage.ENDED, reason)

    def record(self, uid: str, stage: PodStage = PodStage.RUNNING, reason: str = "") -> None:
        """Record a change, and tell the watches about it."""
        pod_object = self.pods[uid]
        pod_object.stage = stage
        for watch in (*self.watches, self.kubelets[pod_object.host]):
            watch.send(pod_object, stage, reason)
        if stage is PodStage.ENDED:
            del self.pods[uid]
