"""Steering beside a real kubelet: pods go to the NUMA nodes of their instructions, and faults lose no marker.

The test is the cluster service: it writes instructions, and binds pods when the observer reports that they are ready.
"""
# ruff: noqa: S101, T201

import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from alignup.align import bits
from alignup.documents.steering import MARKER_RESOURCE
from e2e import cluster_guest
from e2e.api import PODS, RefusedError, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW, kubelet_config
from e2e.cluster_workloads import clear
from e2e.observed_node import OBSERVER, ObservedNode, make_container, make_pod

WHY = cluster_guest.missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")

Document = dict[str, Any]

NODE = "node-a"
INSTRUCTIONS = "/apis/alignup.dev/v1alpha1/steeringinstructions"
MERGE = "application/merge-patch+json"
ROUNDS = 6
#: One CPU of NUMA node 0 is free, and two of each other.
FREE = (0, 1, 1, 2, 2, 3, 3)
MARKERS = len(NARROW.nodes) * 110
HOLD = 60  #: seconds; an emulated node on a busy machine is slow
RETURN_SECONDS = 10.0  #: within which all markers are back after a fault


@dataclass
class SteeredNode:
    """A node with markers, and how long its steerings took."""

    node: ObservedNode
    ready: list[float] = field(default_factory=list)  #: seconds from an instruction until its pod can be bound
    done: list[float] = field(default_factory=list)  #: seconds from a binding until all markers are offered again
    retries: list[str] = field(default_factory=list)  #: why instructions were repeated
    wrong: list[str] = field(default_factory=list)

    def create(self, name: str) -> str:
        """Create a pod with a marker, and return its uid."""
        container = make_container(cpu=1, memory="16Mi")
        container["resources"]["limits"][MARKER_RESOURCE] = "1"
        return str(self.node.api.request("POST", PODS, make_pod(name, container))["metadata"]["uid"])

    def instruct(self, name: str, uid: str, numa: int) -> int:
        """Write an instruction, and return its generation."""
        spec = {"pod": {"namespace": "default", "name": name, "uid": uid}, "numaNodes": str(numa), "containers": 1}
        return self._write(spec)

    def take_back(self) -> None:
        self._write({"pod": None, "numaNodes": None, "containers": None})

    def _write(self, spec: Document) -> int:
        api, kind = self.node.api, {"apiVersion": "alignup.dev/v1alpha1", "kind": "SteeringInstruction"}
        try:
            written = api.request("PATCH", f"{INSTRUCTIONS}/{NODE}", {"spec": spec}, content=MERGE)
        except RefusedError as error:
            if error.status != 404:
                raise
            written = api.request("POST", INSTRUCTIONS, {**kind, "metadata": {"name": NODE}, "spec": spec})
        return int(written["metadata"]["generation"])

    def wait_phase(self, generation: int, *phases: str) -> tuple[str, str]:
        """Wait until an instruction has one of the phases; return it and the message."""
        end = time.monotonic() + 300
        while True:
            status = (self.node.api.get(f"{INSTRUCTIONS}/{NODE}") or {}).get("status", {})
            if status.get("observedGeneration") == generation and status.get("phase") in phases:
                return status["phase"], status.get("message", "")
            assert time.monotonic() < end, f"{status}\n{self.node.logs()}"
            time.sleep(0.05)

    def make_ready(self, name: str, uid: str, numa: int) -> int:
        """Instruct until the pod can be bound; return the generation."""
        while True:
            begun = time.monotonic()
            generation = self.instruct(name, uid, numa)
            phase, message = self.wait_phase(generation, "Ready", "Failed")
            if phase == "Ready":
                self.ready.append(time.monotonic() - begun)
                return generation
            self.retries.append(message)
            self.take_back()

    def steer(self, name: str, numa: int) -> None:
        """Create a pod, send it to a NUMA node, and wait until it holds its marker."""
        uid = self.create(name)
        generation = self.make_ready(name, uid, numa)
        begun = time.monotonic()
        self.node.api.bind(name, NODE)
        phase, message = self.wait_phase(generation, "Done", "Expired", "Failed")
        self.done.append(time.monotonic() - begun)
        if phase != "Done":
            self.wrong.append(f"{name}: {phase}: {message}")

    def check(self, expected: dict[str, int]) -> None:
        """Check that the pods hold CPUs and memory of their NUMA nodes, in what is published and in the kubelet."""
        for name in expected:
            pod = self.node.api.wait_admitted(name, self.node.logs)
            assert pod["status"]["phase"] == "Running", pod["status"]
        self.node.check(f"{len(expected)} pods")
        pods = {pod.get("name"): pod for pod in self.node.state()["ledger"]["pods"]}
        for name, numa in expected.items():
            cpus = bits.parse(pods[name]["cpus"]["containers"]["app"])
            places = {cpu // 2 for cpu in bits.members(cpus)}  # two CPUs a NUMA node
            memory = {block["nodes"] for block in pods[name]["memory"]["containers"]["app"]}
            if (places, memory) != ({numa}, {str(numa)}):
                self.wrong.append(f"{name}: wanted {numa}, CPUs on {places}, memory on {memory}")

    def restart_observer(self, *options: str, number: int = signal.SIGTERM) -> float:
        """Restart the observer with other options; return the seconds until all markers are offered."""
        self.node.guest.ask("stop_process", name=OBSERVER, number=int(number))
        self.node.start_observer("--steer", *options)
        return self.wait_offered()

    def offered(self) -> int:
        """Return how many markers the kubelet offers."""
        devices = self.node.guest.ask("resources")["podresources_allocatable"]["devices"]
        return sum(device["resource_name"] == MARKER_RESOURCE for device in devices)

    def wait_offered(self) -> float:
        """Wait until the kubelet offers all markers; return the seconds."""
        begun = time.monotonic()

        def all_offered() -> bool:
            try:
                return self.offered() == MARKERS
            except (RuntimeError, OSError):  # the kubelet restarts
                return False

        until("all markers are offered", all_offered, detail=self.node.logs)
        return time.monotonic() - begun


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredNode]:
    with ClusterBed(tmp_path_factory.mktemp("cluster"), {NODE: NARROW}) as bed:
        node = bed.nodes[NODE]
        made = SteeredNode(node)
        made.restart_observer(f"--steer-hold={HOLD}")
        yield made


def test_every_pod_goes_to_the_numa_node_of_its_instruction(steered: SteeredNode) -> None:
    order = random.Random(1)  # noqa: S311
    count = 0
    steered.ready, steered.done = [], []
    for _ in range(ROUNDS):
        places = list(FREE)
        while places == sorted(places):
            order.shuffle(places)
        expected = {f"pod-{count + number}": numa for number, numa in enumerate(places)}
        for name, numa in expected.items():
            steered.steer(name, numa)
        steered.check(expected)
        count += len(expected)
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
