"""``alignup nri --mode assist`` at a real containerd: real cpusets change, and survive what kubelets and runtimes do.

Memory nodes are not changed, because the kernel knows but one. The test plays the kubelet: it writes
``cpu_manager_state`` and calls CRI.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from alignup import atomic_files
from alignup.align import bits
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.state_files import CPU_FILE, CpuState, dump_cpu_state
from e2e import nri_node
from e2e.api import until
from e2e.marks import needs
from e2e.nri_node import BOTH, NriNode, started_runtime

pytestmark = needs(nri_node.missing())
MANY = 40  #: pods


@dataclass
class AssistedNode(NriNode):
    """A node with the files of a kubelet."""

    entries: dict[str, dict[str, int]] = field(default_factory=dict)  #: CPUs that were given away

    def prepare(self) -> None:
        self.write_machine(**{f"node/node{node}/meminfo": f"Node {node} MemTotal: 1000000 kB\n" for node in range(2)})
        self.write_state()

    def write_state(self) -> None:
        state = CpuState(policy="static", default=self.shared_cpus(), entries=self.entries)
        atomic_files.write(self.kubelet / CPU_FILE, dump_cpu_state(state, gates=FeatureGates()))

    def shared_cpus(self) -> int:
        return 0b11 & ~bits.union(cpus for containers in self.entries.values() for cpus in containers.values())

    def shared_pod(self, name: str) -> str:
        """Run a pod with a container in the shared pool; return the id of the container."""
        sandbox = self.cri.run_sandbox(name, f"uid-{name}")
        return self.cri.run_container(sandbox, "app", cpu_shares=20, cpuset_cpus=bits.show(self.shared_cpus()))


@contextmanager
def started() -> Iterator[AssistedNode]:
    with started_runtime() as (place, runtime, cri):
        node = AssistedNode(place, runtime, cri, ("--mode", "assist"))
        node.prepare()
        with node:
            yield node


@pytest.fixture(scope="module")
def node() -> Iterator[AssistedNode]:
    with started() as assisted:
        yield assisted


@pytest.fixture
def pods(node: AssistedNode) -> Iterator[Callable[[str], str]]:
    """Yield a function that runs a pod in the shared pool; remove all pods afterwards."""
    yield node.shared_pod
    node.cri.remove_all()
    node.entries.clear()
    node.write_state()


def test_two_pods_are_on_different_numa_nodes(node: AssistedNode, pods: Callable[[str], str]) -> None:
    assert sorted(node.cpus(pods("a"), pods("b"))) == ["0", "1"]


def test_the_kubelets_reconcile_loop_and_a_resize_do_not_undo_it(
    node: AssistedNode, pods: Callable[[str], str]
) -> None:
    container = pods("a")
    before = node.cpus(container)
    node.cri.update_container(container, cpuset_cpus=BOTH)
    assert node.cpus(container) == before
    node.cri.update_container(container, cpu_shares=256)
    assert node.cpus(container) == before
    node.cri.update_container(container, cpu_shares=2048)
    assert node.cpus(container) == [BOTH]


def test_shared_containers_make_way_for_exclusive_ones_and_come_back(
    node: AssistedNode, pods: Callable[[str], str]
) -> None:
    first, second = pods("a"), pods("b")
    node.entries["uid-exclusive"] = {"app": 0b10}
    node.write_state()
    sandbox = node.cri.run_sandbox("exclusive", "uid-exclusive")
    exclusive = node.cri.run_container(sandbox, "app", cpu_shares=1024, cpuset_cpus="1")
    assert node.cpus(first, second, exclusive) == ["0", "0", "1"]
    node.cri.remove_sandbox(sandbox)
    node.entries.clear()
    node.write_state()
    for container in (first, second):  # the kubelet's reconcile loop
        node.cri.update_container(container, cpuset_cpus=BOTH)
    until("both make use of all CPUs", lambda: sorted(node.cpus(first, second)) == ["0", "1"], detail=node.log)


def test_a_plugin_that_is_killed_comes_back_to_the_same_choice(node: AssistedNode, pods: Callable[[str], str]) -> None:
    first, second = pods("a"), pods("b")
    before = node.cpus(first, second)
    node.kill_plugin()
    assert node.cpus(first, second) == before
    unseen = pods("c")
    assert node.cpus(unseen) == [BOTH]
    node.start_plugin()
    assert node.cpus(first, second) == before
    until("the unseen pod is on one NUMA node", lambda: node.cpus(unseen) in (["0"], ["1"]), detail=node.log)


def test_many_pods_at_once_are_balanced_and_the_plugin_stays_connected(
    node: AssistedNode, pods: Callable[[str], str]
) -> None:
    with ThreadPoolExecutor(MANY) as threads:
        containers = list(threads.map(pods, (f"pod-{number}" for number in range(MANY))))
    balanced = {"0": MANY // 2, "1": MANY // 2}
    until("the pods are balanced", lambda: Counter(node.cpus(*containers)) == balanced, detail=node.log)
    assert node.stayed_connected()


def test_the_plugin_connects_again_after_the_runtime_has_restarted() -> None:
    with started() as node:
        container = node.shared_pod("a")
        before = node.cpus(container)
        count = node.synchronizations()
        node.runtime.restart()
        node.wait_synchronized(count)
        assert node.cpus(container) == before
        assert sorted([*before, *node.cpus(node.shared_pod("b"))]) == ["0", "1"]
