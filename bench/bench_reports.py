"""Reports of observers with one changed pod, in CPU time from the line of a watch to the confirmed ledger.

The line is decoded and read, and the scheduling state, which expects the new pod and the end of another, handles it.
"Read as a whole" is the same with a reader that has not read this node before, but another one with the same machine
and configuration.
"""

from collections.abc import Iterator
from itertools import count
from math import inf
from time import process_time

from alignup.align.machine import Device
from alignup.align.workload import Pod
from alignup.documents.codec import encode
from alignup.documents.host_state import HostStateObject
from alignup.documents.host_state.reader import HostStateReader
from alignup.kubernetes.api.client import _decode_event
from alignup.kubernetes.api.host_states import HOST_STATES, host_state_reader
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling.events import HostReported
from alignup.placement.scheduling.instructions import CountPrediction, PredictionOutcome
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.testing.simulated_kubelet import SimulatedKubelet
from bench.harness import Figure
from tests.placement.scheduling.machine import PlainFacts
from tests.strategies_pods import guaranteed

RESIDENTS = (5, 30, 60, 110)
ROUNDS = 100
GPU = "nvidia.com/gpu"


def figures() -> Iterator[Figure]:
    for residents in RESIDENTS:
        node = ReportingNode(residents)
        known, as_a_whole = (Follower(node) for _ in range(2))
        least = [inf, inf]
        for _ in range(ROUNDS):
            new = node.replace_pod()
            as_a_whole.reader = node.new_reader()
            for place, follower in enumerate((known, as_a_whole)):
                least[place] = min(least[place], follower.follow(new))
        size = f"{len(node.line) / 1e3:.0f} kB"
        yield Figure(f"report with {residents} pods of which one changed", least[0], 0.6e-3, size)
        yield Figure(f"report with {residents} pods, read as a whole", least[1])


class ReportingNode:
    """A node with pods of 2 CPUs and some memory each, eight of them with a GPU; the last one comes and goes."""

    def __init__(self, residents: int) -> None:
        gpus = tuple(Device(GPU, f"GPU-{number:08x}-5d1f-11ee-8c99", 1 << number // 4) for number in range(8))
        self.kubelet = SimulatedKubelet(shape="pack:2 numa:1 core:64 pu:2", devices=gpus)
        self.host = self.kubelet.host
        self._empty = self._line("other")
        for number in range(residents):
            self.host.admit(_pod(number))
        self.last = _pod(residents - 1)
        self._numbers, self._generations = count(residents), count(1)
        self.line = self._line("node", generation=next(self._generations))

    def new_reader(self) -> HostStateReader:
        reader = host_state_reader()
        reader.read(received(self._empty))
        return reader

    def replace_pod(self) -> Pod:
        """Replace the last pod, and the line of the watch."""
        self.host.release(self.last.uid)
        self.last = _pod(next(self._numbers))
        assert self.host.admit(self.last).admitted
        self.line = self._line("node", generation=next(self._generations))
        return self.last

    def _line(self, name: str, generation: int = 0) -> bytes:
        head = {"metadata": {"name": name, "uid": "1"}, "machineGeneration": 1}
        document = {**self.kubelet.host_state(name, generation=generation), **head}
        return b'{"type":"MODIFIED","object":%b}' % encode(document)


class Follower:
    """A cluster that follows the node."""

    def __init__(self, node: ReportingNode) -> None:
        self._node, self.reader, self.cluster = node, node.new_reader(), Cluster()
        self.state = SchedulingState(self.cluster, PlainFacts())
        self.state.handle(HostReported(self.reader.read(received(node.line))), now=0.0)
        self._last = node.last

    def follow(self, new: Pod) -> float:
        """Return the time of the report with a new pod, which was bound after the end of the last one."""
        cluster = self.cluster
        cluster.observe(self._last, "node", PodStage.ENDED)
        assert cluster.assume(new, "node").admits
        cluster.observe(new, "node", PodStage.RUNNING)
        self._last, line, reader = new, self._node.line, self.reader
        start = process_time()
        done = self.state.handle(HostReported(reader.read(received(line))), now=0.0)
        spent = process_time() - start
        assert [each.outcome for each in done if isinstance(each, CountPrediction)] == [PredictionOutcome.AS_PREDICTED]
        return spent


def received(line: bytes) -> HostStateObject:
    state = _decode_event(line, HOST_STATES, "watch").object
    assert state is not None
    return state


def _pod(number: int) -> Pod:
    requests = {"cpu": "2", "memory": "100Mi", **({GPU: "1"} if number < 8 else {})}
    uid = f"{number:08d}-5d1f-11ee-8c99-0242ac120002"
    name = f"workload-7c9f8d6b5-{number:05d}"
    return Pod(name=name, namespace="team-a", uid=uid, containers=(guaranteed("trainer", requests),))
