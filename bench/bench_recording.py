"""What ``alignup schedule --record`` costs: CPU time of the same work with and without it, into a file on disk."""

from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import PodFacts
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.schedule.recording import DecisionRecorder, RecordedState
from bench.bench_reports import Follower, ReportingNode
from bench.harness import Figure
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import ALLOCATABLE, Machine, PlainFacts

RESIDENTS = 60
ROUNDS = 100
NODES = 500
PODS = 40


def figures() -> Iterator[Figure]:
    with TemporaryDirectory() as folder:
        node = ReportingNode(RESIDENTS)
        followers = (Follower(node), RecordedFollower(node, Path(folder)))
        least = [inf, inf]
        for _ in range(ROUNDS):
            new = node.replace_pod()
            for place, follower in enumerate(followers):
                least[place] = min(least[place], follower.follow(new))
        followers[1].recorder.close()
    yield _ratio(f"report with {RESIDENTS} pods of which one changed", least, 2.5)
    with TemporaryDirectory() as folder:
        machines = (RecordedMachine(None), RecordedMachine(Path(folder)))
        least = [inf, inf]
        for number in range(PODS):
            for place, machine in enumerate(machines):
                least[place] = min(least[place], machine.release(pod(f"pod-{number}", cpu="2")))
        machines[1].close()
    yield _ratio(f"gated pod from creation to its end, {NODES} nodes", least, 3.0)


def _ratio(name: str, least: Sequence[float], budget: float) -> Figure:
    note = f"{least[0] * 1e6:.0f} µs without"
    return Figure(f"{name}: recorded, times without", least[1] / least[0], budget, note, "times")


class RecordedFollower(Follower):
    def __init__(self, node: ReportingNode, folder: Path) -> None:
        super().__init__(node)
        self.recorder = DecisionRecorder(folder, PlainFacts())
        self.state = RecordedState(self.cluster, self.recorder)


class SameFacts(PlainFacts):
    """Facts of a cluster whose nodes stay the same."""

    def allowed(self, _facts: PodFacts) -> frozenset[str]:  # type: ignore[override]
        return self._allowed

    def allows(self, _facts: PodFacts, node: str) -> bool:
        return node in self._allowed

    def stay(self) -> None:
        self._allowed = frozenset(self.nodes)


class RecordedMachine(Machine):
    def __init__(self, folder: Path | None) -> None:
        super().__init__({})
        self.facts: SameFacts = SameFacts()
        self.recorder = DecisionRecorder(folder, self.facts) if folder else None
        self.state = SchedulingState(self.cluster, self.facts, gate=GateOptions())
        if self.recorder:
            self.state = RecordedState(self.cluster, self.recorder, gate=GateOptions())
        for number in range(NODES):
            name = f"node-{number:04}"
            self.hosts[name], self.sequences[name] = host(Policy.SINGLE_NUMA_NODE), 0
            self.facts.nodes[name] = ALLOCATABLE
            self.report(name)
        self.facts.stay()

    def release(self, new: Pod) -> float:
        """Return the time of a pod that is released, bound, reported, and deleted."""
        start = process_time()
        facts = self.wait(new)
        (release,) = [each for each in self.place_next() or () if isinstance(each, WriteRelease)]
        (node,) = release.nodes
        self.handle(events.ReleaseWritten(facts.uid))
        self.bind(new)
        self.hosts[node].admit(new)
        self.report(node)
        self.gone(new.uid)
        self.handle(events.PodObserved(new, node, PodStage.ENDED))
        self.hosts[node].release(new.uid)
        self.report(node)
        return process_time() - start

    def close(self) -> None:
        if self.recorder:
            self.recorder.close()
