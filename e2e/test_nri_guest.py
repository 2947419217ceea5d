"""``alignup nri --mode assist`` beside a real kubelet with static managers, on a node with four NUMA nodes.

Pods come and go, the plugin is killed, and the runtime restarts. At every moment no container has a CPU that another
one holds exclusively; pods in the shared pool end up on one NUMA node each, and their memory is there, too.
"""

import os
import random
import time
from collections.abc import Iterator

import pytest

from e2e import cluster_guest, containerd
from e2e.api import until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.marks import needs
from e2e.nri_guest import CPUS, MOST_PODS, NODE, NriGuest
from e2e.observed_node import make_container, make_pod

pytestmark = needs(cluster_guest.missing() or containerd.missing_nri())

MINUTES = 10 if os.environ.get("ALIGNUP_SOAK") else 2


class AssistedNode(NriGuest):
    def add(self, kind: str, **limits: str) -> str:
        """Run a pod of *kind*; return its name. One that the kubelet rejects is removed."""
        requests = None if kind == "exclusive" else {"cpu": limits.pop("cpu"), "memory": "8Mi"}
        name = self.create(kind, make_pod("", make_container(requests=requests, **limits)))
        pod = self.bed.api.wait_admitted(name, self.logs)
        if pod["status"]["phase"] != "Running":
            self.remove(name)
        self.check()
        return name

    def remove(self, name: str) -> None:
        super().remove(name)
        self.check()

    def wait_settled(self) -> None:
        """Wait until the CPUs of every shared pod are on one NUMA node."""

        def settled() -> bool:
            return all(
                sum(cpus & node != 0 for node in CPUS) == 1
                for name, (cpus, _) in self.sets().items()
                if self.kinds.get(name) == "shared"
            )

        until("shared pods are on one NUMA node each", settled, detail=lambda: f"{self.sets()}\n{self.logs()}")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AssistedNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}, images={}) as bed:
        node = AssistedNode(bed, ("--mode", "assist", "--listen", "127.0.0.1:9187"))
        node.start_plugin()
        yield node
        print(node.log()[-6000:])


@pytest.fixture
def assisted(started: AssistedNode) -> Iterator[AssistedNode]:
    """Yield the node, without pods."""
    yield started
    started.remove_all()


def test_shared_pods_are_spread_with_their_memory(assisted: AssistedNode) -> None:
    names = [assisted.add("shared", cpu="400m", memory="32Mi") for _ in range(4)]
    sets = assisted.sets()
    assert sorted(CPUS.index(sets[name][0]) for name in names) == [0, 1, 2, 3]
    for name in names:
        assert sets[name][1] == 1 << CPUS.index(sets[name][0])


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
            assisted.kill_plugin()
            assisted.start_plugin()
        assisted.check()
    assisted.wait_settled()
    print(f"{step} steps, {assisted.checks} checks")
    assert step > 5


def test_a_restart_of_the_runtime_changes_nothing(assisted: AssistedNode) -> None:
    assisted.add("shared", cpu="100m", memory="24Mi")
    assisted.wait_settled()
    before = assisted.sets()
    assisted.restart_runtime()
    assert assisted.sets() == before
    assisted.add("shared", cpu="100m", memory="24Mi")
    assisted.wait_settled()
