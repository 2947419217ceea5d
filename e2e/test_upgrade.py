"""Upgrades and rollbacks of a real kubelet under running pods, each compared with what was said before it.

``ALIGNUP_KUBERNETES_BIN=DIR:DIR`` names the directories of at least two releases. The control plane is that of the
newest one; of the others only the kubelet is needed.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from alignup.align.release import find_release
from e2e import cluster_guest, control_plane
from e2e.api import PODS, Document
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import WIDE, kubelet_config
from e2e.guest_kubelet import KUBELET_DIR
from e2e.marks import needs
from e2e.observed_node import ObservedNode, make_container, make_pod


@dataclass(frozen=True)
class Kubelet:
    """A kubelet of one release."""

    directory: Path  #: on this machine
    version: str

    @property
    def minor(self) -> int:
        return find_release(self.version).minor

    @property
    def program(self) -> str:
        """Its path in the guest."""
        return f"/kubelets/{self.version}"


def kubelets() -> list[Kubelet]:
    """Return the kubelets of all releases, the oldest first."""
    directories = [directory for directory in control_plane.directories() if (directory / "kubelet").is_file()]
    every = [Kubelet(directory, control_plane.version(directory)) for directory in directories]
    return sorted({kubelet.minor: kubelet for kubelet in every}.values(), key=lambda kubelet: kubelet.minor)


KUBELETS = kubelets()
TOO_FEW = f"set {control_plane.VARIABLE} to DIR:DIR, with kubelets of at least two releases"
pytestmark = needs(cluster_guest.missing([KUBELETS[-1].directory]) if len(KUBELETS) > 1 else TOO_FEW)

PAIRS = pytest.mark.parametrize(
    ("old", "new"), [pytest.param(*pair, id=f"{pair[0].version}-{pair[1].version}") for pair in pairwise(KUBELETS)]
)
NODE = "node"
FILES = ["cpu_manager_state", "memory_manager_state"]
NEXT_CONFIG, RUNNING = "/next.yaml", "/running.json"
REJECTION = re.compile(r'"Pod admission denied" .*pod="([^"]*)" reason="([^"]*)" message="([^"]*)"')
#: CPUs 2-3 of NUMA node 0 and 4-7 of node 1 are allocatable. One pod may get one CPU: the option comes later.
PLAIN = kubelet_config(reservedSystemCPUs="0-1")
FULL_CORES = {**PLAIN, "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
#: The last release that accepts a feature gate with this value.
LAST = {35: ("MemoryManager", True), 36: ("SidecarContainers", True)}
LAST_UNLOCKED = {35: ("TopologyManagerPolicyOptions", False)}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedNode]:
    files = {kubelet.program: kubelet.directory / "kubelet" for kubelet in KUBELETS}
    place = tmp_path_factory.mktemp("cluster")
    with ClusterBed(place, {NODE: WIDE}, programs=KUBELETS[-1].directory, files=files) as bed:
        observed = bed.nodes[NODE]
        observed.guest.ask("start_plugin", resource="example.com/gpu", devices={"gpu-0": [0], "gpu-1": [1]})
        yield observed


@dataclass
class Upgrade:
    """What is said about a change of kubelets on a node, and what comes of it."""

    node: ObservedNode
    old: Kubelet
    new: Kubelet
    config: Document

    def predict(self) -> tuple[int, Document]:
        """Return the exit code and the report of ``alignup upgrade-check`` on the node."""
        items = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in self.node.pods()]
        pods = {"apiVersion": "v1", "kind": "List", "items": items}
        for path, document in ((NEXT_CONFIG, self.config), (RUNNING, pods)):
            self.node.guest.ask("write", path=path, text=json.dumps(document))
        words = ["upgrade-check", "--from", self.old.version, "--to", self.new.version, "--config", NEXT_CONFIG]
        words += ["--kubelet-dir", str(KUBELET_DIR), "--pods", RUNNING, "-o", "json"]
        run = self.node.guest.ask("run_alignup", words=words)
        assert run["code"] in {0, 1}, run["stderr"]
        report: Document = json.loads(run["stdout"])
        print(f"\n{self.old.version} → {self.new.version}: {json.dumps(report)}", flush=True)
        return run["code"], report

    def predict_in_cluster(self) -> Document:
        """Return what ``alignup cluster upgrade-check`` says about the node."""
        (upgrade,) = self.node.alignup("upgrade-check", "--to", self.new.version)["nodes"]
        assert upgrade["kubeletVersion"] == self.old.version
        return dict(upgrade)

    def happen(self) -> dict[str, tuple[str, str]]:
        """Replace the kubelet; return the pods that it rejects or gives other resources, with reason and message.

        Rejected pods come in the order in which the kubelet rejects them. Their status follows seconds later.
        """
        before = {pod["metadata"]["name"]: pod for pod in self.node.pods() if pod["status"]["phase"] == "Running"}
        held, logged = self.node.view().stored, len(self._log())
        self.node.restart_kubelet(self.config, program=self.new.program)
        self._wait_admissions()
        changes = {match[1]: (match[2], match[3]) for match in REJECTION.finditer(self._log()[logged:])}
        for name, (reason, message) in changes.items():
            status = self.node.api.wait_phase(name.partition("/")[2], "Failed", detail=self.node.logs)["status"]
            assert (status["reason"], status["message"]) == (reason, f"Pod was rejected: {message}")
        kept = self.node.view().stored
        for name, pod in before.items():
            uid = pod["metadata"]["uid"]
            if f"default/{name}" not in changes and kept.get(uid) != held.get(uid):
                changes[f"default/{name}"] = ("", f"{held.get(uid)} → {kept.get(uid)}")
        return changes

    def _log(self) -> str:
        return str(self.node.guest.ask("log", name="kubelet", characters=1 << 24))

    def _wait_admissions(self) -> None:
        """Have a new pod run: a starting kubelet has admitted all others by then."""
        self.run_pod(f"after-{self.new.version.replace('.', '-')}-{len(self.node.pods())}", make_container())

    def run_pod(self, name: str, container: Document) -> None:
        self.node.api.request("POST", PODS, make_pod(name, container))
        self.node.api.bind(name, NODE)
        self.node.api.wait_phase(name, "Running", detail=self.node.logs)


def verdicts(pods: list[Document]) -> dict[str, tuple[str, str]]:
    return {pod["pod"]: (pod["reason"], pod["message"]) for pod in pods}


def start_empty(node: ObservedNode, kubelet: Kubelet, config: Document) -> None:
    """Start a kubelet on a node without pods."""
    for pod in node.pods():
        node.api.delete(pod["metadata"]["name"], node.logs)
    node.restart_kubelet(config, remove=FILES, program=kubelet.program)
    node.check(f"kubelet {kubelet.version}")


def start_until_exit(node: ObservedNode, kubelet: Kubelet, config: Document) -> tuple[int, str]:
    """Replace the kubelet by one that stops at once; return its exit status and its log."""
    node.guest.ask("stop_process", name="kubelet")
    node.guest.ask("start_kubelet", config=config, program=kubelet.program)
    return node.guest.ask("wait_exit", name="kubelet"), node.guest.ask("log", name="kubelet")


@PAIRS
def test_what_is_said_about_running_pods_comes_true(node: ObservedNode, old: Kubelet, new: Kubelet) -> None:
    """The kubelet is upgraded and full-pcpus-only switched on, a pod takes all whole cores, and it is rolled back.

    Up to 1.36, a restarted kubelet checks every container under that option as if it came for the first time.
    """
    start_empty(node, old, PLAIN)
    upgrade, rollback = Upgrade(node, old, new, FULL_CORES), Upgrade(node, new, old, FULL_CORES)
    upgrade.run_pod("odd", make_container(cpu=1, memory="32Mi"))
    upgrade.run_pod("gpu", make_container(cpu=1, memory="32Mi", gpu=1))
    upgrade.run_pod("pair", make_container(cpu=2, memory="64Mi"))
    upgrade.run_pod("shared", make_container(memory="32Mi"))
    node.check("before the upgrade")

    code, report = upgrade.predict()
    changes = upgrade.happen()
    assert (list(verdicts(report["pods"]).items()), code) == (list(changes.items()), int(bool(changes)))
    assert report["checkedPods"] == 4
    rejected = {} if new.minor >= 37 else dict.fromkeys(("default/odd", "default/gpu"), "SMTAlignmentError")
    assert {pod: reason for pod, (reason, _) in changes.items()} == rejected

    rollback.run_pod("late", make_container(cpu=2, memory="32Mi"))
    node.check("before the rollback")
    code, report = rollback.predict()
    in_cluster = rollback.predict_in_cluster()
    changes = rollback.happen()
    assert (list(verdicts(report["pods"]).items()), code) == (list(changes.items()), int(bool(changes)))
    assert list(verdicts(in_cluster["pods"]).items()) == list(changes.items())
    # A pod that is rejected keeps its CPUs until all are admitted: none of the others has room for a second time.
    rejected_again = (
        ["default/odd", "default/gpu", "default/pair", "default/late"] if old.minor < 37 <= new.minor else []
    )
    assert [pod["pod"] for pod in report["pods"]] == rejected_again
    assert not any(pod["alsoNow"] for pod in report["pods"])


@PAIRS
@pytest.mark.parametrize("table", [LAST, LAST_UNLOCKED], ids=["a gate that is gone", "a gate that is locked"])
def test_a_kubelet_stops_at_settings_that_were_said_to_stop_it(
    node: ObservedNode, old: Kubelet, new: Kubelet, table: dict[int, tuple[str, bool]]
) -> None:
    if old.minor not in table:
        pytest.skip(f"no such gate of {old.version}")
    gate, value = table[old.minor]
    config = {**PLAIN, "featureGates": {gate: value}}
    start_empty(node, old, config)

    code, report = Upgrade(node, old, new, config).predict()
    stopped, log = start_until_exit(node, new, config)
    node.guest.ask("start_kubelet", config=PLAIN, program=old.program)

    assert (code, report["safe"], report["sharedErrors"]) == (1, False, [])
    (finding,) = report["findings"]
    assert finding["said"] in log
    assert stopped


@PAIRS
def test_a_kubelet_stops_at_state_files_that_were_said_to_stop_it(
    node: ObservedNode, old: Kubelet, new: Kubelet
) -> None:
    """1.36 writes other files for pods placed as a whole, which older kubelets do not read."""
    if new.minor != 36:
        pytest.skip(f"{old.version} reads the files of {new.version}")
    start_empty(node, new, {**PLAIN, "featureGates": {"PodLevelResourceManagers": True}})

    code, report = Upgrade(node, new, old, PLAIN).predict()
    stopped, log = start_until_exit(node, old, PLAIN)
    log = log.replace('\\"', '"')
    node.guest.ask("remove", names=FILES)
    node.guest.ask("start_kubelet", config=PLAIN, program=old.program)

    assert (code, report["safe"]) == (1, False)
    messages = [finding.get("said") for finding in (*report["findings"], *report["sharedErrors"])]
    assert any(message in log for message in messages if message), (messages, log)
    assert stopped
