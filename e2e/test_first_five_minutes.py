"""The commands of docs/first-five-minutes.md lead from a rejected pod on a real cluster to the reason.

Without a kubelet, a real API server shows that it accepts the reader, that nothing of it stays, and that the
permissions of the page suffice.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from alignup.collect import collection as archives
from alignup.collect.collection import Part
from alignup.kubernetes.api.host_states import HOST_STATES
from alignup.machines import load
from e2e import cluster_guest, control_plane
from e2e.api import PODS, Api, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import NARROW
from e2e.control_plane import STRANGER, ControlPlane
from e2e.definitions import DEPLOYED
from e2e.guest_kubelet import IMAGE
from e2e.observed_node import install_observer
from e2e.programs import user_environment
from tests.collect.clusters import NODE, SECRET, busy_kubelet, rejected_pod

PAGE = Path(__file__).parents[1] / "docs" / "first-five-minutes.md"
READERS = "/api/v1/namespaces/kube-system/pods"
SECONDS = 300  #: the first five minutes
AMOUNTS = {"cpu": "3", "memory": "16Mi"}  #: no NUMA node of the guest has three CPUs
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "nodeName": "narrow",
        "containers": [{"name": "app", "image": IMAGE, "resources": {"limits": AMOUNTS, "requests": AMOUNTS}}],
    },
}


def commands() -> str:
    """Return all commands of the page as one script that stops when one of them fails."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    # The exit code 1 of alignup why is its answer: no.
    return "set -e\n" + "".join(
        block if "alignup why" not in block else f"{block.rstrip()} || test $? -eq 1\n" for block in blocks
    )


def run(*words: str | Path, kubeconfig: Path, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with the programs of this project and of Kubernetes."""
    env = user_environment(kubeconfig, control_plane.program("kubectl").parent)
    return subprocess.run(
        [*map(str, words)], input=text, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
    )


def readers(api: Api) -> list[dict[str, Any]]:
    """Return the readers that are not deleted."""
    return [pod for pod in api.items(READERS) if "deletionTimestamp" not in pod["metadata"]]


def decision(text: str) -> dict[str, Any]:
    """Return the decision in the JSON answer of ``alignup why``."""
    (answer,) = json.loads(text)["answers"]
    decided: dict[str, Any] = answer["decision"]
    return decided


def test_the_commands_lead_to_the_reason(tmp_path: Path) -> None:
    if absent := cluster_guest.missing() or control_plane.missing(["kubectl"]):
        pytest.skip(absent)
    work = tmp_path / "work"
    work.mkdir()
    with ClusterBed(tmp_path, {"narrow": NARROW}, images={}) as bed:  # no observers
        run_here = partial(run, kubeconfig=bed.plane.directory / "admin.kubeconfig", cwd=work)
        bed.api.request("POST", PODS, POD)
        until("the pod is rejected", lambda: bed.api.request("GET", f"{PODS}/web")["status"].get("phase") == "Failed")
        done = run_here("sh", "-s", text=commands())
        left = [pod["metadata"]["name"] for pod in readers(bed.api)]
        read = run_here("alignup", "why", "default-web.tar.gz", "-o", "json")

        # The same question on the node itself.
        node = bed.nodes["narrow"]
        for name, objects in (("pod", f"{PODS}/web"), ("pods", "/api/v1/pods?fieldSelector=spec.nodeName=narrow")):
            node.guest.ask("write", path=f"/{name}.json", text=json.dumps(bed.api.request("GET", objects)))
        words = (
            "why -f /pod.json --config /var/lib/kubelet/config.yaml --kubelet-dir /var/lib/kubelet --pods /pods.json"
        )
        there = node.guest.ask("run_alignup", words=[*words.split(), "-o", "json"])

        install_observer(bed.api)
        node.install_observer()
        node.check("the observer has published")
        again = run_here("alignup", "collect", "web", "--yes", "--archive", "observed.tar.gz")
        observed = run_here("alignup", "why", "observed.tar.gz", "-o", "json")

    assert done.returncode == 0, done.stderr
    assert "Pod default/web is rejected: TopologyAffinityError" in done.stdout
    assert "What would admit it" in done.stdout
    assert "Traceback" not in done.stderr
    assert left == []
    collected = archives.read(work / "default-web.tar.gz")
    assert (collected.index.node, collected.index.missing) == ("narrow", ())
    recording = work / "machine.tar.gz"
    recording.write_bytes(collected.parts[Part.RECORDING])
    machine = load(recording)
    assert (len(machine.nodes), len(machine.cpus)) == (4, 8)
    assert decision(read.stdout) == decision(there["stdout"])
    assert (again.returncode, "POST" in again.stderr) == (0, False), again.stderr
    assert decision(observed.stdout) == decision(there["stdout"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A real API server with a node and a rejected pod on it, without a kubelet."""
    if absent := control_plane.missing():
        pytest.skip(absent)
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        api = Api(plane)
        until("namespaces exist", lambda: api.get("/api/v1/namespaces/kube-system"))
        put_rejected(api, "web", NODE)
        yield api


#: All fields are required.
NODE_INFO = dict.fromkeys(
    (
        *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
        *("kubeProxyVersion", "operatingSystem", "architecture"),
    ),
    "",
) | {"kubeletVersion": "v1.36.4"}


def put_rejected(api: Api, name: str, host: str) -> None:
    """Create a node, and a pod that its kubelet has rejected."""
    node = {"metadata": {"name": host}, "status": {"nodeInfo": NODE_INFO}}
    api.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
    document = rejected_pod(name, nodeName=host, volumes=[])
    status = document.pop("status")
    document["metadata"].pop("uid")
    document["spec"]["containers"][0]["image"] = IMAGE
    created = api.request("POST", PODS, document)
    api.request("PUT", f"{PODS}/{name}/status", {**created, "status": status})


def collect(
    api: Api, work: Path, *words: str, pod: str = "web", user: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``alignup collect``."""
    access = api.plane.kubeconfig(work / "kubeconfig", user)
    return run("alignup", "collect", pod, "--yes", *words, kubeconfig=access, cwd=work)


def rule(verbs: str, resources: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


def test_the_api_server_accepts_the_reader_and_nothing_of_it_stays(cluster: Api, tmp_path: Path) -> None:
    done = collect(cluster, tmp_path, "--timeout", "2")

    assert done.returncode == 1
    assert "the reader has not ended on node host-a after 2 seconds" in done.stderr
    assert "deleted pod kube-system/alignup-reader-" in done.stderr
    assert readers(cluster) == []
    index = archives.read(tmp_path / "default-web.tar.gz").index
    assert (index.pod, index.kubelet_version) == ("default/web", "v1.36.4")
    assert index.reported.startswith("Failed: TopologyAffinityError")


def test_a_namespace_with_pod_security_refuses_the_reader_in_words(cluster: Api, tmp_path: Path) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "safe", "labels": labels}})

    done = collect(cluster, tmp_path, "--reader-namespace", "safe")

    assert done.returncode == 1
    assert "violates PodSecurity" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_permissions_of_the_page_suffice(cluster: Api, tmp_path: Path) -> None:
    stranger = {"token": STRANGER}
    refused = collect(cluster, tmp_path, user=stranger)
    assert (refused.returncode, "It needs permission to get the pod" in refused.stderr) == (1, True)

    cluster.allow_stranger("pod", rule("get", "pods"), namespace="default")
    alone = collect(cluster, tmp_path, user=stranger)
    assert alone.returncode == 1
    for needed in ("get nodes", "get nodes/proxy", "list pods in all namespaces", "list events in namespace default"):
        assert f"needs permission to {needed}\n" in alone.stderr
    assert "needs permission to create, get and delete pods and get pods/log in namespace kube-system" in alone.stderr
    assert archives.read(tmp_path / "default-web.tar.gz").parts.keys() == {Part.POD}

    cluster.allow_stranger("events", rule("list", "events"), namespace="default")
    cluster.allow_stranger("nodes", rule("get", "nodes nodes/proxy"), rule("list", "pods"))
    cluster.allow_stranger(
        "readers", rule("create get delete", "pods"), rule("get", "pods/log"), namespace="kube-system"
    )
    done = collect(cluster, tmp_path, "--timeout", "2", user=stranger)
    missing = archives.read(tmp_path / "default-web.tar.gz").index.missing
    # No kubelet runs.
    assert [(part.title, part.needs) for part in missing] == [
        ("configuration of the kubelet", ""),
        ("machine and state files of the kubelet", ""),
    ], done.stderr
    assert readers(cluster) == []


def test_a_host_state_gives_the_answer_without_a_reader(cluster: Api, tmp_path: Path) -> None:
    cluster.define(DEPLOYED / "crds" / "hoststates.yaml")
    cluster.request("POST", HOST_STATES.path(), busy_kubelet().host_state("host-b"))
    put_rejected(cluster, "seen", "host-b")

    done = collect(cluster, tmp_path, pod="seen")

    assert done.returncode == 0, done.stderr
    assert "POST" not in done.stderr
    archive = tmp_path / "default-seen.tar.gz"
    assert not [name for name, part in archives.read(archive).parts.items() if SECRET.encode() in part]
    answer = run("alignup", "why", archive, kubeconfig=tmp_path / "none", cwd=tmp_path)
    assert answer.returncode == 1, answer.stderr
    assert "Pod default/seen is rejected: TopologyAffinityError" in answer.stdout
