"""``alignup nri --mode decide`` at a real containerd: exclusive CPUs, rejections, restarts, and many pods at once.

The test plays the API server and the kubelet.
"""

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest

from alignup.testing.api_server import ApiServer
from e2e import containerd, nri_node
from e2e.api import until
from e2e.marks import needs
from e2e.nri_node import BOTH, NriNode, started_runtime
from tests.observe.api_objects import running_server

pytestmark = needs(nri_node.missing())
HOST = "host-a"
PODS = "/api/v1/namespaces/default/pods"
MANY = 30  #: pods
CONFIGURATION = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
reservedSystemCPUs: "0"
"""


@dataclass
class DecidedNode(NriNode):
    server: ApiServer | None = None

    def prepare(self) -> None:
        self.write_machine()
        (self.kubelet / "config.yaml").write_text(CONFIGURATION)
        assert self.server is not None
        self.server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": HOST}, "spec": {}, "status": {}})
        self.server.write_kubeconfig(self.place / "kubeconfig")
        self.words = (
            *("--mode", "decide", "--policy", "single-numa-node", "--no-configz", "--node", HOST),
            *("--kubeconfig", str(self.place / "kubeconfig"), "--state-dir", str(self.place / "state")),
        )

    def bind(self, name: str, cpu: str) -> str:
        """Let the API server have a pod: Guaranteed if its CPUs are whole, else Burstable; return its uid."""
        amounts = {"cpu": cpu, "memory": "16Mi"}
        resources = {"requests": amounts, "limits": amounts} if cpu.isdigit() else {"requests": amounts}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"nodeName": HOST, "containers": [{"name": "app", "resources": resources}]},
            "status": {"phase": "Pending"},
        }
        self.request("POST", PODS, pod)
        return f"uid-{name}"

    def request(self, method: str, path: str, document: object = None) -> None:
        """Call the API server, which runs in another thread."""
        assert self.server is not None
        body = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.server.url}{path}", body, headers, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            assert answer.status < 300

    def run(self, name: str, cpu: str = "100m") -> str:
        """Run a pod with one container; return the id of the container."""
        sandbox = self.cri.run_sandbox(name, self.bind(name, cpu))
        return self.cri.run_container(sandbox, "app", cpu_shares=20)

    def clear(self) -> None:
        """Remove all pods."""
        assert self.server is not None
        for pod in list(self.server.objects("pods")):
            self.request("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        self.cri.remove_all()


@contextmanager
def started() -> Iterator[DecidedNode]:
    with running_server(ApiServer()) as server, started_runtime() as (place, runtime, cri):
        node = DecidedNode(place, runtime, cri, server=server)
        node.prepare()
        with node:
            yield node


@pytest.fixture(scope="module")
def running() -> Iterator[DecidedNode]:
    with started() as node:
        yield node


@pytest.fixture
def node(running: DecidedNode) -> Iterator[DecidedNode]:
    yield running
    running.clear()


def test_a_guaranteed_pod_gets_its_cpu_and_others_make_way(node: DecidedNode) -> None:
    shared = [node.run(f"shared-{number}") for number in range(2)]
    assert sorted(node.cpus(*shared)) == ["0", "1"]
    exclusive = node.run("exclusive", "1")
    assert node.cpus(exclusive, *shared) == ["1", "0", "0"]
    assert "ALIGNUP_CPUS=1" in node.cri.execute(exclusive, "env").splitlines()


def test_a_pod_that_cannot_be_aligned_fails_with_the_reason_and_leaves_no_container(node: DecidedNode) -> None:
    node.run("first", "1")
    before = node.runtime.containers()
    with pytest.raises(grpc.RpcError, match="Pod default/second is rejected: TopologyAffinityError"):
        node.run("second", "1")
    left = set(node.runtime.containers()) - set(before)
    # Where the sandbox cannot fail, it waits for the kubelet's next attempt.
    assert len(left) == (1 if containerd.version().startswith(("2.0", "2.1", "2.2")) else 0)


def test_a_killed_plugin_resumes_and_decides_on_what_started_meanwhile(node: DecidedNode) -> None:
    exclusive, shared = node.run("exclusive", "1"), node.run("shared")
    node.kill_plugin()
    assert node.cpus(exclusive, shared) == ["1", "0"]
    unseen = node.run("unseen")
    assert node.cpus(unseen) == [BOTH]
    node.start_plugin()
    until("all make way", lambda: node.cpus(exclusive, shared, unseen) == ["1", "0", "0"], detail=node.log)


def test_a_pod_that_is_being_created_while_the_plugin_is_killed_is_decided_on(node: DecidedNode) -> None:
    sandbox = node.cri.run_sandbox("a", node.bind("a", "1"))
    container = node.cri.create_container(sandbox, "app", cpu_shares=1024)
    node.kill_plugin()
    node.start_plugin()
    node.cri.start_container(container)
    assert node.cpus(container) == ["1"]


def test_many_pods_at_once_leave_the_plugin_connected(node: DecidedNode) -> None:
    exclusive = node.run("exclusive", "1")
    with ThreadPoolExecutor(MANY) as threads:
        containers = list(threads.map(node.run, (f"pod-{number}" for number in range(MANY))))
    assert set(node.cpus(*containers)) == {"0"}
    assert node.cpus(exclusive) == ["1"]
    assert node.stayed_connected()


def test_the_decisions_survive_a_restart_of_the_runtime() -> None:
    with started() as node:
        exclusive, shared = node.run("exclusive", "1"), node.run("shared")
        count = node.synchronizations()
        node.runtime.restart()
        node.wait_synchronized(count)
        assert node.cpus(exclusive, shared) == ["1", "0"]
        with pytest.raises(grpc.RpcError, match="is rejected"):
            node.run("second", "1")
        node.clear()
        until("a pod has the CPU", lambda: node.cpus(node.run("third", "1")) == ["1"], detail=node.log)
