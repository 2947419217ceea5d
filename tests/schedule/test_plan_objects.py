"""Plan objects: which pods a workload has, and the spec of a plan."""

from typing import Any

import pytest

from alignup.documents.codec import convert
from alignup.kubernetes.api.pods_with_volumes import PodWithVolumes
from alignup.kubernetes.manifests.workloads import read_workloads
from alignup.schedule.cluster_plan import PlanFacts
from alignup.schedule.plan_objects import missing_pods, pods_of, with_gangs

CONTAINER = "{name: app, image: x, resources: {limits: {cpu: '1', memory: 1Gi}}}"
TEMPLATE = f"template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{CONTAINER}]}}}}"
SELECTOR = "selector: {matchLabels: {a: b}}"


def workloads(kind: str, *, namespace: str = "", replicas: str = ""):
    group = {"Job": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    spec = ", ".join(
        filter(None, (replicas, TEMPLATE, SELECTOR if kind not in ("Job", "ReplicationController") else ""))
    )
    metadata = f"{{name: train{namespace and f', namespace: {namespace}'}}}"
    text = f"apiVersion: {group}\nkind: {kind}\nmetadata: {metadata}\nspec: {{{spec}}}\n"
    return read_workloads(text.encode(), name="test").workloads


def pod(
    name: str, owner: tuple[str, str] | None = None, *, namespace: str = "default", node: str = "", **metadata: Any
):
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    named = {"name": name, "namespace": namespace, "uid": name, "ownerReferences": owners, **metadata}
    return convert({"metadata": named, "spec": {"nodeName": node}, "status": {"phase": "Pending"}}, PodWithVolumes)


@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet", "Job", "DaemonSet", "ReplicationController"])
def test_a_controller_has_the_pods_that_it_owns(kind):
    (workload,) = workloads(kind)
    pods = (pod("own", (kind, "train")), pod("other", (kind, "train-2")), pod("alone"), pod("kind", ("X", "train")))

    assert [each.metadata.name for each in pods_of(PlanFacts(pods=pods), workload, "default")] == ["own"]


def test_a_deployment_has_the_pods_of_all_its_replica_sets():
    (workload,) = workloads("Deployment")
    pods = [
        pod("new", ("ReplicaSet", "train-6f"), labels={"pod-template-hash": "6f"}),
        pod("old", ("ReplicaSet", "train-5d"), labels={"pod-template-hash": "5d"}),
        pod("other", ("ReplicaSet", "train-canary-5d"), labels={"pod-template-hash": "5d"}),
        pod("same-name", ("ReplicaSet", "train"), labels={}),
    ]

    assert [each.metadata.name for each in pods_of(PlanFacts(pods=pods), workload, "default")] == ["new", "old"]


def test_a_manifest_without_a_namespace_is_in_that_of_the_context():
    pods = [pod("a", ("Job", "train")), pod("b", ("Job", "train"), namespace="ml")]
    (without,), (within,) = workloads("Job"), workloads("Job", namespace="ml")

    for workload, namespace, expected in ((without, "ml", ["b"]), (without, "default", ["a"]), (within, "x", ["b"])):
        assert [each.metadata.name for each in pods_of(PlanFacts(pods=pods), workload, namespace)] == expected


@pytest.mark.parametrize(
    ("kind", "replicas", "existing", "missing"),
    [
        pytest.param("Deployment", "replicas: 3", 1, 2, id="some"),
        pytest.param("Deployment", "replicas: 3", 4, 0, id="one more, of a rollout"),
        pytest.param("Job", "parallelism: 2", 2, 0, id="all"),
        pytest.param("DaemonSet", "", 0, 1, id="a DaemonSet without pods"),
        pytest.param("DaemonSet", "", 1, 0, id="a DaemonSet"),
    ],
)
def test_how_many_pods_do_not_exist_yet(kind, replicas, existing, missing):
    assert missing_pods([pod("x")] * existing, workloads(kind, replicas=replicas)) == missing


def test_room_is_made_for_waiting_pods_and_those_of_their_groups():
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    grouped = [pod("a", labels=labels), pod("b", labels=labels), pod("bound", node="n", labels=labels)]
    pods = [*grouped, pod("other"), pod("alone")]

    chosen = with_gangs(PlanFacts(pods=pods), [pods[0], pods[1], pods[2], pods[4]])

    assert [each.metadata.name for each in chosen] == ["a", "b", "alone"]
