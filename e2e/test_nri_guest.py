"""``alignup nri --mode assist`` beside a real kubelet with static managers, on a node with four NUMA nodes.

Pods come and go, the plugin is killed, and the runtime restarts. At every moment no container has a CPU that another
one holds exclusively; pods in the shared pool end up on one NUMA node each, and their memory is there, too.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from alignup.align import bits
from e2e import cluster_guest, containerd
from e2e.api import PODS, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.guest_kubelet import RUNTIME
from e2e.marks import needs
from e2e.observed_node import ObservedNode, make_container, make_pod

pytestmark = needs(cluster_guest.missing() or containerd.missing_nri())

NODE, PLUGIN = "node-a", "nri"
MINUTES = 10 if os.environ.get("ALIGNUP_SOAK") else 2
MOST_PODS = 7
NODES = [bits.parse(f"{2 * node}-{2 * node + 1}") for node in range(4)]  #: CPUs by NUMA node


@dataclass
class AssistedNode:
    node: ObservedNode
    kinds: dict[str, str] = field(default_factory=dict)  #: pod → shared or exclusive
    checks: int = 0
    number: int = 0

    def start_plugin(self) -> None:
        words = ["nri", "--mode", "assist", "--socket", str(RUNTIME / "nri.sock"), "--listen", "127.0.0.1:9187"]
        count = self.log().count("synchronized with the runtime")
        self.node.guest.ask("start_alignup", name=PLUGIN, words=words)
        self.wait_synchronized(count)

    def wait_synchronized(self, before: int) -> None:
        until(
            "the plugin is synchronized",
            lambda: self.log().count("synchronized with the runtime") > before,
            detail=self.log,
        )

    def log(self) -> str:
        text: str = self.node.guest.ask("log", name=PLUGIN, characters=1 << 20)
        return text

    def logs(self) -> str:
        return f"{self.node.logs()}\n--- nri\n{self.log()[-3000:]}\n--- containerd\n" + str(
            self.node.guest.ask("log", name="containerd")
        )

    def add(self, kind: str, **limits: str) -> str:
        """Run a pod of *kind*; return its name. One that the kubelet rejects is removed."""
        self.number += 1
        name = f"{kind}-{self.number}"
        requests = None if kind == "exclusive" else {"cpu": limits.pop("cpu"), "memory": "8Mi"}
        self.node.api.request("POST", PODS, make_pod(name, make_container(requests=requests, **limits)))
        self.node.api.bind(name, NODE)
        pod = self.node.api.wait_admitted(name, self.logs)
        self.kinds[name] = kind
        if pod["status"]["phase"] != "Running":
            self.remove(name)
        self.check()
        return name

    def remove(self, name: str) -> None:
        self.node.api.delete(name, self.logs)
        del self.kinds[name]
        self.check()

    def sets(self) -> dict[str, tuple[int, int]]:
        """Return the CPUs and memory nodes that the container of each running pod may use now."""
        sets = self.node.guest.ask("container_sets")
        sets_by_pod = {}
        for pod in self.node.pods():
            for status in pod["status"].get("containerStatuses", ()):
                id_ = status.get("containerID", "").removeprefix("containerd://")
                if id_ in sets:
                    sets_by_pod[pod["metadata"]["name"]] = (bits.parse(sets[id_][0]), bits.parse(sets[id_][1]))
        return sets_by_pod

    def check(self) -> None:
        """Check that no container has a CPU that another one holds exclusively."""
        self.checks += 1
        sets = self.sets()
        for name, (cpus, _) in sets.items():
            assert cpus, name
            for other, (other_cpus, _) in sets.items():
                if self.kinds.get(name) == "exclusive" and other != name:
                    assert cpus & other_cpus == 0, f"{other} may use CPUs of {name}: {sets}\n{self.logs()}"

    def wait_settled(self) -> None:
        """Wait until the CPUs of every shared pod are on one NUMA node."""

        def settled() -> bool:
            return all(
                sum(cpus & node != 0 for node in NODES) == 1
                for name, (cpus, _) in self.sets().items()
                if self.kinds.get(name) == "shared"
            )

        until("shared pods are on one NUMA node each", settled, detail=lambda: f"{self.sets()}\n{self.logs()}")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AssistedNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}, images={}) as bed:
        node = AssistedNode(bed.nodes[NODE])
        node.start_plugin()
        yield node
        print(node.log()[-6000:])


@pytest.fixture
def assisted(started: AssistedNode) -> Iterator[AssistedNode]:
    """Yield the node, without pods."""
    yield started
    for name in list(started.kinds):
        started.remove(name)


def test_shared_pods_are_spread_with_their_memory(assisted: AssistedNode) -> None:
    names = [assisted.add("shared", cpu="400m", memory="32Mi") for _ in range(4)]
    sets = assisted.sets()
    assert sorted(NODES.index(sets[name][0]) for name in names) == [0, 1, 2, 3]
    for name in names:
        assert sets[name][1] == 1 << NODES.index(sets[name][0])


def test_pods_come_and_go_beside_exclusive_ones(assisted: AssistedNode) -> None:
    choose = random.Random(1)
    end = time.monotonic() + 60 * MINUTES
    step = 0
    while time.monotonic() < end:
        step += 1
        running = sorted(assisted.kinds)
        if len(running) >= MOST_PODS or (running and choose.random() < 0.4):
            assisted.remove(choose.choice(running))
        elif choose.random() < 0.4:
            assisted.add("exclusive", cpu=str(choose.randint(1, 2)), memory="16Mi")
        else:
            assisted.add("shared", cpu=f"{choose.randint(0, 3)}00m", memory="24Mi")
        if step % 7 == 0:
            assisted.node.guest.ask("stop_process", name=PLUGIN, number=signal.SIGKILL)
            assisted.start_plugin()
        assisted.check()
    assisted.wait_settled()
    print(f"{step} steps, {assisted.checks} checks")
    assert step > 5


def test_a_restart_of_the_runtime_changes_nothing(assisted: AssistedNode) -> None:
    assisted.add("shared", cpu="100m", memory="24Mi")
    assisted.wait_settled()
    before = assisted.sets()
    count = assisted.log().count("synchronized with the runtime")
    assisted.node.guest.ask("restart_runtime")
    assisted.wait_synchronized(count)
    assert assisted.sets() == before
    assisted.add("shared", cpu="100m", memory="24Mi")
    assisted.wait_settled()
