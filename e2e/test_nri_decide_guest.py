"""``alignup nri --mode decide`` beside a real kubelet without managers, on a node with four NUMA nodes.

Under each policy, CPUs and pages are where they were decided, beside a device of a plugin and of a DRA driver. The
plugin has the permissions of ``deploy/``. It is killed and the runtime restarts while pods come and go; at every moment
no container has a CPU that another one holds exclusively.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from alignup.align import bits
from e2e import cluster_guest, containerd
from e2e.api import NODES, PODS, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.definitions import DEPLOYED
from e2e.guest_kubelet import RUNTIME
from e2e.marks import needs
from e2e.observed_node import ObservedNode, make_container, make_pod

pytestmark = needs(cluster_guest.missing() or containerd.missing_nri())

NODE, PLUGIN = "node-a", "nri"
SECONDS = 600 if os.environ.get("ALIGNUP_SOAK") else 60  #: of pods that come and go
MOST_PODS = 7
ACCESS = "/etc/nri.kubeconfig"  #: in the guest
CPUS = [bits.parse(f"{2 * node}-{2 * node + 1}") for node in range(4)]  #: by NUMA node
WITHOUT_MANAGERS = {
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "reservedMemory": [],
}
DEVICE_NODES = range(1, 4)  #: those with two CPUs for pods; node 0 has one
RESOURCE, DRIVER = "example.com/gpu", "gpu.example.com"
GROUP = "/apis/resource.k8s.io/v1"
MIB = 1 << 20
#: A process that keeps 8 MiB of private memory: what it has read so far, while it waits for more.
HOARD = ["sh", "-c", f"(head -c {8 * MIB} /dev/zero; sleep 100000) | tail -c {8 * MIB}"]


@dataclass
class DecidedNode:
    bed: ClusterBed
    policy: str = "single-numa-node"
    kinds: dict[str, str] = field(default_factory=dict)  #: pod → shared or exclusive
    number: int = 0
    checks: int = 0

    @property
    def node(self) -> ObservedNode:
        return self.bed.nodes[NODE]

    def install(self) -> None:
        """Create the service account with its permissions, and give the guest a token of it."""
        api = self.bed.api
        api.create(DEPLOYED / "namespace.yaml", DEPLOYED / "nri-decide" / "access.yaml")
        access = self.node.guest.kubeconfig(api.account_token("alignup-nri"))
        self.node.guest.ask("write", path=ACCESS, text=access)

    def start_plugin(self) -> None:
        words = [
            *("nri", "--mode", "decide", "--policy", self.policy, "--socket", str(RUNTIME / "nri.sock")),
            *("--node", NODE, "--kubeconfig", ACCESS, "--state-dir", "/var/lib/alignup-nri"),
        ]
        count = self.synchronizations()
        self.node.guest.ask("start_alignup", name=PLUGIN, words=words)
        self.wait_synchronized(count)

    def kill_plugin(self) -> None:
        self.node.guest.ask("stop_process", name=PLUGIN, number=signal.SIGKILL)

    def use_policy(self, policy: str) -> None:
        self.kill_plugin()
        self.policy = policy
        self.start_plugin()

    def synchronizations(self) -> int:
        return self.log().count("synchronized with the runtime")

    def wait_synchronized(self, before: int) -> None:
        until("the plugin is synchronized", lambda: self.synchronizations() > before, detail=self.log)

    def log(self) -> str:
        text: str = self.node.guest.ask("log", name=PLUGIN, characters=1 << 20)
        return text

    def logs(self) -> str:
        runtime = self.node.guest.ask("log", name="containerd")
        return f"{self.node.logs()}\n--- nri\n{self.log()[-3000:]}\n--- containerd\n{runtime[-3000:]}"

    def create(self, kind: str, container: Document, *, claim: bool = False) -> str:
        """Create a pod on the node; return its name."""
        self.number += 1
        name = f"{kind}-{self.number}"
        spec: Document = {"restartPolicy": "Always"}
        if claim:
            container["resources"]["claims"] = [{"name": "gpu"}]
            spec |= {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}
            spec |= {"schedulerName": "default-scheduler"}
        self.bed.api.request("POST", PODS, make_pod(name, container, **spec))
        if not claim:
            self.bed.api.bind(name, NODE)
        self.kinds[name] = kind
        return name

    def run(self, kind: str, *, claim: bool = False, **limits: str) -> str:
        """Run a pod that keeps some memory; return its name."""
        requests = {"cpu": limits.pop("cpu"), "memory": "16Mi"} if kind == "shared" else None
        container = make_container(requests=requests, **limits)
        name = self.create(kind, {**container, "command": HOARD}, claim=claim)
        self.bed.api.wait_phase(name, "Running", detail=self.logs)
        self.check()
        return name

    def remove(self, name: str) -> None:
        self.bed.api.delete(name, self.logs)
        del self.kinds[name]

    def by_pod(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Return what the guest answers for each container, by pod."""
        by_pod = {}
        for pod in self.node.pods():
            for status in pod["status"].get("containerStatuses", ()):
                id_ = status.get("containerID", "").removeprefix("containerd://")
                if id_ in answers:
                    by_pod[pod["metadata"]["name"]] = answers[id_]
        return by_pod

    def sets(self) -> dict[str, tuple[int, int]]:
        """Return the CPUs and memory nodes that the container of each running pod may use now."""
        sets = self.by_pod(self.node.guest.ask("container_sets"))
        return {name: (bits.parse(cpus), bits.parse(nodes)) for name, (cpus, nodes) in sets.items()}

    def pages(self, name: str) -> dict[int, int]:
        """Return the bytes of a pod by NUMA node, once it has all of them."""

        def complete() -> dict[str, int] | None:
            sizes: dict[str, int] = self.by_pod(self.node.guest.ask("container_pages")).get(name, {})
            return sizes if sum(sizes.values()) >= 8 * MIB else None

        sizes = until(f"{name} has its memory", complete, detail=self.logs)
        return {int(node): size for node, size in sizes.items()}

    def overlaps(self) -> list[str]:
        """Return the containers that have a CPU which another one holds exclusively."""
        sets = self.sets()
        return [
            f"{other} may use CPUs of {name}: {sets}"
            for name, (cpus, _) in sets.items()
            for other, (other_cpus, _) in sets.items()
            if self.kinds.get(name) == "exclusive" and other != name and cpus & other_cpus
        ]

    def check(self) -> None:
        """Check that no container has a CPU that another one holds exclusively."""
        self.checks += 1
        assert self.overlaps() == [], self.logs()

    def settle(self) -> None:
        """Wait until that holds again: without the plugin, pods start on all CPUs."""
        until("no CPU is in two sets", lambda: not self.overlaps(), detail=lambda: f"{self.overlaps()}\n{self.logs()}")

    def check_place(self, name: str, numa_node: int | None) -> None:
        """Check that the pages of a pod are where it was decided; on *numa_node*, unless ``None``, with its CPUs."""
        cpus, nodes = self.sets()[name]
        if numa_node is not None:
            assert cpus & ~CPUS[numa_node] == 0, (name, bits.show(cpus), self.logs())
            assert nodes == 1 << numa_node, (name, bits.show(nodes))
        elsewhere = {node: size for node, size in self.pages(name).items() if not nodes >> node & 1}
        assert nodes.bit_count() == 1
        assert sum(elsewhere.values()) < MIB, (name, elsewhere)

    def device_nodes(self) -> dict[str, int]:
        """Return the NUMA node of the device that each pod has, as PodResources says."""
        nodes = {}
        for pod in self.node.guest.ask("resources")["podresources_list"]["pod_resources"]:
            for container in pod["containers"]:
                devices = [id_ for entry in container["devices"] for id_ in entry["device_ids"]]
                for claim in container.get("dynamic_resources", ()):
                    devices += [device["device_name"] for device in claim["claim_resources"]]
                if devices:
                    nodes[pod["name"]] = int(devices[0].rpartition("-")[2])
        return nodes


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecidedNode]:
    place = tmp_path_factory.mktemp("cluster")
    with ClusterBed(place, {NODE: NARROW}, images={}, kubelet=WITHOUT_MANAGERS) as bed:
        node = DecidedNode(bed)
        node.install()
        node.start_plugin()
        bed.plane.start_scheduler()
        yield node
        print(node.log()[-8000:])


@pytest.fixture
def decided(started: DecidedNode) -> Iterator[DecidedNode]:
    """Yield the node, without pods."""
    yield started
    for name in list(started.kinds):
        started.remove(name)


@pytest.fixture(scope="module")
def devices(started: DecidedNode) -> None:
    """Start a device plugin and a DRA driver with a device on each of these NUMA nodes."""
    guest, api = started.node.guest, started.bed.api
    offer = {
        "resource": RESOURCE,
        "devices": [{"id": f"gpu-{node}", "nodes": [node]} for node in DEVICE_NODES],
        "preferred": False,
        "pre_start_required": False,
        "endpoint": "gpu.sock",
    }
    guest.ask("start", offer=offer)
    until(
        "the devices are allocatable",
        lambda: (api.get(f"{NODES}/{NODE}") or {})["status"]["allocatable"].get(RESOURCE) == "3",
    )
    offered = [{"name": f"dra-{node}", "numa_nodes": [node]} for node in DEVICE_NODES]
    for document in guest.ask("start_driver", name=DRIVER, devices=offered):
        api.request("POST", f"{GROUP}/resourceslices", document)
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    api.request("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": {"selectors": selectors}})
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    template = {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    api.request("POST", f"{GROUP}/namespaces/default/resourceclaimtemplates", template)


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted", "best-effort", "none"])
@pytest.mark.usefixtures("devices")
def test_cpus_and_pages_are_beside_devices_under_each_policy(decided: DecidedNode, policy: str) -> None:
    decided.use_policy(policy)
    names = [decided.run("exclusive", cpu="1", memory="32Mi", gpu="1")]
    names += [decided.run("exclusive", cpu="1", memory="32Mi", claim=True)]
    nodes = decided.device_nodes()
    assert nodes.keys() == set(names)
    for name in names:
        decided.check_place(name, None if policy == "none" else nodes[name])


def test_a_pod_that_cannot_be_aligned_has_an_event_and_starts_when_it_can(decided: DecidedNode) -> None:
    decided.use_policy("single-numa-node")
    first, holder = (decided.run("exclusive", cpu="1", memory="32Mi") for _ in range(2))
    for _ in range(2):
        decided.run("exclusive", cpu="2", memory="32Mi")
    decided.remove(first)  # now a CPU is free on each of two NUMA nodes
    container = make_container(cpu="2", memory="32Mi")
    name = decided.create("exclusive", {**container, "command": HOARD})

    def rejected() -> bool:
        reason = f"Pod default/{name} is rejected: TopologyAffinityError"
        return any(reason in event["message"] for event in decided.bed.api.events(name))

    until("an event says why", rejected, detail=decided.logs)
    assert (decided.bed.api.pod(name) or {})["status"]["phase"] == "Pending"
    decided.remove(holder)
    decided.bed.api.wait_phase(name, "Running", detail=decided.logs)
    decided.check()


def test_pods_come_and_go_while_the_plugin_is_killed_and_the_runtime_restarts(decided: DecidedNode) -> None:
    choose = random.Random(1)
    end, step = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        step += 1
        running = sorted(decided.kinds)
        if len(running) >= MOST_PODS or (running and choose.random() < 0.4):
            decided.remove(choose.choice(running))
        elif choose.random() < 0.5:
            name = decided.create("exclusive", make_container(cpu="1", memory="16Mi"))
            if step % 5 == 0:  # in flight
                decided.kill_plugin()
                decided.start_plugin()
            decided.bed.api.wait_phase(name, "Running", detail=decided.logs)
            decided.settle() if step % 5 == 0 else decided.check()
        else:
            decided.run("shared", cpu=f"{choose.randint(0, 3)}00m", memory="24Mi")
        if step % 7 == 0:
            count = decided.synchronizations()
            decided.node.guest.ask("restart_runtime")
            decided.wait_synchronized(count)
            decided.settle()
        if sum(kind == "exclusive" for kind in decided.kinds.values()) > 4:
            decided.remove(next(name for name, kind in decided.kinds.items() if kind == "exclusive"))
        decided.check()
    print(f"{step} steps, {decided.checks} checks")
    assert step > 3


def test_the_audit_agrees(decided: DecidedNode) -> None:
    decided.run("exclusive", cpu="1", memory="32Mi")
    decided.run("shared", cpu="100m", memory="24Mi")

    def agrees() -> bool:
        done = decided.node.guest.ask("run_alignup", words=["audit", "--nri", "/var/lib/alignup-nri"])
        text: str = done["stdout"] + done["stderr"]
        return done["code"] == 0 and "2 containers: no drift" in text

    until("no drift", agrees, detail=decided.logs)
