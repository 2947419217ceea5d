"""A node whose observer offers markers, for tests of steering."""

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from alignup.align import bits
from alignup.documents.steering import MARKER_RESOURCE
from e2e.api import PODS, Document, RefusedError, until
from e2e.cluster_guest import NARROW
from e2e.observed_node import OBSERVER, ObservedNode, make_container, make_pod

NODE = "node-a"
INSTRUCTIONS = "/apis/alignup.dev/v1alpha1/steeringinstructions"
#: One CPU of NUMA node 0 is free, and two of each other.
FREE = (0, 1, 1, 2, 2, 3, 3)
MARKERS = len(NARROW.nodes) * 110
RETURN_SECONDS = 10.0  #: within which all markers are back after a fault


def rounds(count: int) -> Iterator[dict[str, int]]:
    """Return *count* pods with their NUMA nodes, in rounds that fill the node in an order that is not the kubelet's."""
    order = random.Random(1)
    numbers = iter(range(count))
    left = count
    while left:
        places = list(FREE)
        while places == sorted(places):
            order.shuffle(places)
        places = places[:left]
        left -= len(places)
        yield {f"pod-{next(numbers)}": numa for numa in places}


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
            written = api.merge(f"{INSTRUCTIONS}/{NODE}", {"spec": spec})
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
