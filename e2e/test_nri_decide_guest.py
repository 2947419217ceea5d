"""``alignup nri --mode decide`` beside a real kubelet without managers, on a node with four NUMA nodes.

Under each policy, CPUs and pages are where they were decided, beside a device of a plugin and of a DRA driver. The
plugin has the permissions of ``deploy/``. It is killed and the runtime restarts while pods come and go; at every moment
no container has a CPU that another one holds exclusively.
"""

import os
import random
import time
from collections.abc import Iterator

import pytest

from alignup.align import bits
from e2e import cluster_guest, containerd
from e2e.api import NODES, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.definitions import DEPLOYED
from e2e.marks import needs
from e2e.nri_guest import CPUS, MOST_PODS, NODE, NriGuest
from e2e.observed_node import make_claim_pod, make_container, make_pod
from tests.schedule.claim_objects import DRIVER, device_class, template

pytestmark = needs(cluster_guest.missing() or containerd.missing_nri())

SECONDS = 600 if os.environ.get("ALIGNUP_SOAK") else 60  #: of pods that come and go
ACCESS = "/etc/nri.kubeconfig"  #: in the guest
WITHOUT_MANAGERS = {
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
    "topologyManagerPolicy": "none",
    "reservedMemory": [],
}
DEVICE_NODES = range(1, 4)  #: those with two CPUs for pods; node 0 has one
RESOURCE = "example.com/gpu"
MIB = 1 << 20
#: A process that keeps 8 MiB of private memory: what it has read so far, while it waits for more.
HOARD = ["sh", "-c", f"(head -c {8 * MIB} /dev/zero; sleep 100000) | tail -c {8 * MIB}"]


def options(policy: str) -> tuple[str, ...]:
    access = ("--node", NODE, "--kubeconfig", ACCESS, "--state-dir", "/var/lib/alignup-nri")
    return ("--mode", "decide", "--policy", policy, *access)


def restarted_pod(container: Document) -> Document:
    """Return a pod that the kubelet tries to start again and again."""
    return make_pod("", container, restartPolicy="Always")


class DecidedNode(NriGuest):
    def install(self) -> None:
        """Create the service account with its permissions, and give the guest a token of it."""
        api = self.bed.api
        api.install(DEPLOYED / "namespace.yaml", DEPLOYED / "nri-decide" / "access.yaml")
        access = self.node.guest.kubeconfig(api.account_token("alignup-nri"))
        self.node.guest.ask("write", path=ACCESS, text=access)

    def use_policy(self, policy: str) -> None:
        self.kill_plugin()
        self.options = options(policy)
        self.start_plugin()

    def run(self, kind: str, *, claim: bool = False, **limits: str) -> str:
        """Run a pod that keeps some memory; return its name."""
        requests = {"cpu": limits.pop("cpu"), "memory": "16Mi"} if kind == "shared" else None
        container = make_container(requests=requests, **limits)
        container["command"] = HOARD
        pod = restarted_pod(container) if not claim else make_claim_pod("", "gpus", container, restartPolicy="Always")
        name = self.create(kind, pod)
        self.bed.api.wait_phase(name, "Running", detail=self.logs)
        self.check()
        return name

    def pages(self, name: str) -> dict[int, int]:
        """Return the bytes of a pod by NUMA node, once it has all of them."""

        def complete() -> dict[str, int] | None:
            sizes: dict[str, int] = self.by_pod(self.node.guest.ask("container_pages")).get(name, {})
            return sizes if sum(sizes.values()) >= 8 * MIB else None

        sizes = until(f"{name} has its memory", complete, detail=self.logs)
        return {int(node): size for node, size in sizes.items()}

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
        node = DecidedNode(bed, options("single-numa-node"))
        node.install()
        node.start_plugin()
        bed.plane.start_scheduler()
        yield node
        print(node.log()[-8000:])


@pytest.fixture
def decided(started: DecidedNode) -> Iterator[DecidedNode]:
    """Yield the node, without pods."""
    yield started
    started.remove_all()


@pytest.fixture(scope="module")
def devices(started: DecidedNode) -> None:
    """Start a device plugin and a DRA driver with a device on each of these NUMA nodes."""
    guest, api = started.node.guest, started.bed.api
    guest.ask("start_plugin", resource=RESOURCE, devices={f"gpu-{node}": [node] for node in DEVICE_NODES})
    until(
        "the devices are allocatable",
        lambda: (api.get(f"{NODES}/{NODE}") or {})["status"]["allocatable"].get(RESOURCE) == "3",
    )
    offered = [{"name": f"dra-{node}", "numa_nodes": [node]} for node in DEVICE_NODES]
    for document in guest.ask("start_driver", name=DRIVER, devices=offered):
        api.create(document)
    api.create(device_class())
    api.create(template())


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
    name = decided.create("exclusive", restarted_pod({**container, "command": HOARD}))

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
            name = decided.create("exclusive", restarted_pod(make_container(cpu="1", memory="16Mi")))
            if step % 5 == 0:  # in flight
                decided.kill_plugin()
                decided.start_plugin()
            decided.bed.api.wait_phase(name, "Running", detail=decided.logs)
            decided.settle() if step % 5 == 0 else decided.check()
        else:
            decided.run("shared", cpu=f"{choose.randint(0, 3)}00m", memory="24Mi")
        if step % 7 == 0:
            decided.restart_runtime()
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
