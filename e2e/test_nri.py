"""``alignup nri --mode assist`` at a real containerd: real cpusets change, and survive what kubelets and runtimes do.

The plugin sees a machine whose CPUs are on two NUMA nodes, CPU 0 and CPU 1; memory nodes are not changed, because the
kernel knows but one. The test plays the kubelet: it writes ``cpu_manager_state`` and calls CRI.
"""
# ruff: noqa: S101, S603

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alignup import atomic_files
from alignup.align import bits
from alignup.align.settings import FeatureGates
from alignup.kubernetes.kubelet_files.state_files import CPU_FILE, CpuState, dump_cpu_state
from e2e import containerd
from e2e.containerd import Containerd
from e2e.cri import CriClient, cri_client
from tests.short_paths import short_directory

WHY = containerd.missing() or containerd.missing_nri()
CPUS = len(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=WHY or ""),
    pytest.mark.skipif(CPUS < 2, reason="needs two CPUs"),
]
SECONDS = 60.0
BOTH = "0-1"
MANY = 40  #: pods


def until(condition: Callable[[], object], describe: Callable[[], str]) -> None:
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, describe()
        time.sleep(0.05)


@dataclass
class AssistedNode:
    """A containerd, a plugin, and the files of a kubelet."""

    place: Path
    runtime: Containerd
    cri: CriClient
    entries: dict[str, dict[str, int]] = field(default_factory=dict)  #: CPUs that were given away
    _plugin: subprocess.Popen[bytes] | None = None

    @property
    def kubelet(self) -> Path:
        return self.place / "kubelet"

    def prepare(self) -> None:
        """Write a machine of two NUMA nodes with one CPU each, and the kubelet's state."""
        system = self.place / "host" / "sys" / "devices" / "system"
        files = {"cpu/online": BOTH}
        for cpu in range(2):
            files[f"cpu/cpu{cpu}/topology/physical_package_id"] = "0"
            files[f"cpu/cpu{cpu}/topology/core_id"] = str(cpu)
            files[f"node/node{cpu}/cpulist"] = str(cpu)
            files[f"node/node{cpu}/meminfo"] = f"Node {cpu} MemTotal: 1000000 kB\n"
        for name, text in files.items():
            (system / name).parent.mkdir(parents=True, exist_ok=True)
            (system / name).write_text(text)
        self.kubelet.mkdir()
        self.write_state()

    def write_state(self) -> None:
        state = CpuState(policy="static", default=self.shared_cpus(), entries=self.entries)
        atomic_files.write(self.kubelet / CPU_FILE, dump_cpu_state(state, gates=FeatureGates()))

    def shared_cpus(self) -> int:
        return 0b11 & ~bits.union(cpus for containers in self.entries.values() for cpus in containers.values())

    def start_plugin(self) -> None:
        command = [
            *(sys.executable, "-m", "alignup", "nri", "--mode", "assist", "--period", "0.1"),
            *("--socket", str(self.runtime.nri_socket), "--kubelet-dir", str(self.kubelet)),
            *("--host-root", str(self.place / "host")),
        ]
        count = self.log().count("synchronized with the runtime")
        with (self.place / "plugin.log").open("ab") as log:
            self._plugin = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait_synchronized(count)

    def wait_synchronized(self, before: int) -> None:
        until(lambda: self.log().count("synchronized with the runtime") > before, self.log)

    def kill_plugin(self) -> None:
        if self._plugin is not None:
            self._plugin.kill()
            self._plugin.wait()

    def log(self) -> str:
        path = self.place / "plugin.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def shared_pod(self, name: str) -> str:
        """Run a pod with a container in the shared pool; return the id of the container."""
        sandbox = self.cri.run_sandbox(name, f"uid-{name}")
        return self.cri.run_container(sandbox, "app", cpu_shares=20, cpuset_cpus=bits.show(self.shared_cpus()))

    def cpus(self, *containers: str) -> list[str]:
        """Return the CPUs that the processes of each container may use."""
        return [self.cri.allowed(container)[0] for container in containers]


@contextmanager
def started() -> Iterator[AssistedNode]:
    with short_directory() as place, containerd.containerd(place / "c") as runtime, cri_client(runtime.socket) as cri:
        node = AssistedNode(place, runtime, cri)
        node.prepare()
        try:
            node.start_plugin()
            yield node
        finally:
            node.kill_plugin()
            print(node.log())  # noqa: T201


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
    until(lambda: sorted(node.cpus(first, second)) == ["0", "1"], node.log)


def test_a_plugin_that_is_killed_comes_back_to_the_same_choice(node: AssistedNode, pods: Callable[[str], str]) -> None:
    first, second = pods("a"), pods("b")
    before = node.cpus(first, second)
    node.kill_plugin()
    assert node.cpus(first, second) == before
    unseen = pods("c")
    assert node.cpus(unseen) == [BOTH]
    node.start_plugin()
    assert node.cpus(first, second) == before
    until(lambda: node.cpus(unseen) in (["0"], ["1"]), node.log)


def test_many_pods_at_once_are_balanced_and_the_plugin_stays_connected(
    node: AssistedNode, pods: Callable[[str], str]
) -> None:
    with ThreadPoolExecutor(MANY) as threads:
        containers = list(threads.map(pods, (f"pod-{number}" for number in range(MANY))))
    until(lambda: Counter(node.cpus(*containers)) == {"0": MANY // 2, "1": MANY // 2}, node.log)
    assert "not connected" not in node.log().rpartition("synchronized with the runtime")[2]


def test_the_plugin_connects_again_after_the_runtime_has_restarted() -> None:
    with started() as node:
        container = node.shared_pod("a")
        before = node.cpus(container)
        count = node.log().count("synchronized with the runtime")
        node.runtime.restart()
        node.wait_synchronized(count)
        assert node.cpus(container) == before
        assert sorted([*before, *node.cpus(node.shared_pod("b"))]) == ["0", "1"]
