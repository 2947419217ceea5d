"""Steering beside a real kubelet: pods go to the NUMA nodes of their instructions, and faults lose no marker.

The test is the cluster service: it writes instructions, and binds pods when the observer reports that they are ready.
"""

import os
import signal
import statistics
from collections.abc import Iterator

import pytest

from e2e import cluster_guest
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, kubelet_config
from e2e.cluster_workloads import clear
from e2e.marks import needs
from e2e.steered_node import FREE, MARKERS, NODE, RETURN_SECONDS, SteeredNode, rounds

pytestmark = needs(cluster_guest.missing())

ROUNDS = 6
HOLD = 60  #: seconds; an emulated node on a busy machine is slow


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}) as bed:
        node = bed.nodes[NODE]
        made = SteeredNode(node)
        made.restart_observer(f"--steer-hold={HOLD}")
        yield made


def test_every_pod_goes_to_the_numa_node_of_its_instruction(steered: SteeredNode) -> None:
    count = ROUNDS * len(FREE)
    steered.ready, steered.done = [], []
    for expected in rounds(count):
        for name, numa in expected.items():
            steered.steer(name, numa)
        steered.check(expected)
        clear(steered.node.api)
    for step, seconds in (("instruction → Ready", steered.ready), ("binding → Done", steered.done)):
        high = sorted(seconds)[int(len(seconds) * 0.99)]
        print(f"{step}: {len(seconds)}, p50 {statistics.median(seconds):.3f} s, p99 {high:.3f} s", flush=True)
    print(f"{count} pods, {len(steered.retries)} instructions repeated: {steered.retries}", flush=True)
    assert steered.wrong == []
    assert steered.offered() == MARKERS


def test_an_observer_that_is_killed_comes_back_with_all_markers(steered: SteeredNode) -> None:
    node, uid = steered.node, steered.create("killed")
    generation = steered.make_ready("killed", uid, 2)
    seconds = steered.restart_observer(f"--steer-hold={HOLD}", number=signal.SIGKILL)
    print(f"observer killed: markers back after {seconds:.1f} s, with its start", flush=True)
    assert steered.wait_phase(generation, "Failed")[1] == "the observer was restarted before the pod came"
    node.api.bind("killed", NODE)
    assert node.api.wait_admitted("killed", node.logs)["status"]["phase"] == "Running"
    clear(node.api)


def test_a_kubelet_that_restarts_gets_all_markers(steered: SteeredNode) -> None:
    node = steered.node
    steered.steer("before", 3)
    steered.check({"before": 3})
    generation = steered.make_ready("during", steered.create("during"), 2)
    node.restart_kubelet(kubelet_config())
    print(f"kubelet restarted: markers back after {steered.wait_offered():.1f} s", flush=True)
    assert steered.wait_phase(generation, "Failed", "Expired")
    steered.check({"before": 3})
    node.api.bind("during", NODE)
    assert node.api.wait_admitted("during", node.logs)["status"]["phase"] == "Running"
    steered.steer("after", 1)
    steered.check({"before": 3, "after": 1})
    clear(node.api)
    assert steered.wrong == []


def test_another_pod_with_a_marker_is_not_rejected(steered: SteeredNode) -> None:
    """NUMA node 0 has room for one of both only."""
    node = steered.node
    for _ in range(3):
        steered.create("other")
        generation = steered.make_ready("steered", steered.create("steered"), 0)
        node.api.bind("other", NODE)
        node.api.bind("steered", NODE)
        phase = steered.wait_phase(generation, "Done", "Expired", "Failed")
        statuses = [node.api.wait_admitted(name, node.logs)["status"] for name in ("other", "steered")]
        print(f"two pods at once: {phase}, {[status['phase'] for status in statuses]}", flush=True)
        assert [status["phase"] for status in statuses] == ["Running", "Running"], statuses
        steered.take_back()
        clear(node.api)


def test_an_observer_that_is_cut_off_restores_the_markers(steered: SteeredNode) -> None:
    node = steered.node
    steered.restart_observer()
    generation = steered.make_ready("cut", steered.create("cut"), 2)
    process = node.api.plane.process("kube-apiserver")
    os.kill(process, signal.SIGSTOP)
    try:
        seconds = steered.wait_offered()
    finally:
        os.kill(process, signal.SIGCONT)
    print(f"API server stopped: markers back after {seconds:.1f} s", flush=True)
    assert seconds < RETURN_SECONDS
    steered.wait_phase(generation, "Expired", "Failed")
    node.api.bind("cut", NODE)
    assert node.api.wait_admitted("cut", node.logs)["status"]["phase"] == "Running"
    clear(node.api)
    steered.restart_observer(f"--steer-hold={HOLD}")
