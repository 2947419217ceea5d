"""Whole workloads: which part fits, and what the nearest node lacks for the rest."""

import json

import pytest

from alignup.align.release import find_release
from alignup.align.settings import Policy
from alignup.kubernetes.manifests.workloads import read_workloads
from alignup.placement.cluster import Cluster
from alignup.schedule.workload_answers import WorkloadAnswer, accept_for, ask_about_gang
from tests.align.hosts import make_host, make_pod
from tests.placement.clusters import cluster_of, host_with


def ask(cluster: Cluster, replicas: int, *, considered: tuple[str, ...] | None = None, **limits: str) -> WorkloadAnswer:
    limits = {"memory": "1Gi", **limits}
    shown = ", ".join(f"{'example.com/gpu' if name == 'gpu' else name}: '{limits[name]}'" for name in limits)
    manifest = f"""
        apiVersion: apps/v1
        kind: Deployment
        metadata: {{name: web}}
        spec:
          replicas: {replicas}
          selector: {{matchLabels: {{a: b}}}}
          template:
            metadata: {{labels: {{a: b}}}}
            spec: {{containers: [{{name: app, resources: {{limits: {{{shown}}}}}}}]}}"""
    templates = read_workloads(manifest, name="web.yaml").workloads
    answer = ask_about_gang(cluster, templates, [cluster.hosts if considered is None else considered])
    assert answer
    return answer


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"cpu": "3"}, "Deployment default/web: 2 of 9 pods fit together; b lacks 1 CPU on one NUMA node"),
        ({"cpu": "9"}, "Deployment default/web: 0 of 9 pods fit together; a lacks 5 CPUs on one NUMA node"),
        ({"cpu": "1", "memory": "20Gi"}, "0 of 9 pods fit together; a lacks 4Gi memory on one NUMA node"),
        ({"cpu": "1", "gpu": "2"}, "0 of 9 pods fit together; a lacks 1 example.com/gpu on one NUMA node"),
    ],
)
def test_the_nearest_node_is_named_with_what_it_lacks(limits, sentence):
    cluster = cluster_of(a=make_host(), b=host_with(make_pod("x", cpu="1"), make_pod("y", cpu="3")))

    assert ask(cluster, 9, **limits).sentence.endswith(sentence)


def test_a_node_whose_resources_disagree_is_not_said_to_lack_any():
    answer = ask(cluster_of(a=make_host(Policy.RESTRICTED)), 2, cpu="2", gpu="2")

    assert answer.shortage == "no NUMA nodes are preferred by example.com/gpu and memory alike (1 of 1 node)"


def test_a_pod_that_needs_several_numa_nodes_lacks_what_all_of_them_lack():
    answer = ask(cluster_of(a=make_host(Policy.RESTRICTED)), 2, cpu="6", memory="20Gi", gpu="2")

    assert answer.sentence.endswith("1 of 2 pods fit together; a lacks 2 example.com/gpu and 5 CPUs")


@pytest.mark.parametrize(
    ("versions", "qos"), [(["1.36"], "Burstable"), (["1.36", "1.37"], "Guaranteed"), ([], "Guaranteed")]
)
def test_pod_level_resources_have_the_defaults_of_the_newest_kubelet(versions, qos):
    amounts = {"cpu": "2", "memory": "1Gi"}
    spec = {
        "resources": {"requests": amounts},
        "containers": [{"name": "app", "resources": {"limits": amounts}}],
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}}
    cluster = cluster_of(**{f"v{version}": make_host(release=find_release(version)) for version in versions})

    (workload,) = accept_for(cluster, read_workloads(json.dumps(job), name="job.json").workloads)

    assert [pod.qos for pod in workload.pods()] == [qos]
    assert workload.pod.name == "j-0"


def test_no_node_is_considered():
    answer = ask(cluster_of(a=make_host()), 2, considered=(), cpu="1")

    assert answer.sentence == "Deployment default/web: 0 of 2 pods fit together; no node is considered for the rest"


def test_all_pods_and_their_nodes():
    cluster = cluster_of(**{f"host{number}": make_host() for number in range(12)})
    answer = ask(cluster, 24, cpu="3")

    assert answer.fits
    assert answer.sentence.endswith("2 on host5 and on 4 more nodes")


def test_the_end_of_the_search_is_told():
    replicas = {
        name: {
            "replicas": count,
            "template": {"spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]}},
        }
        for name, count, limits in (
            ("Master", 2, {"cpu": 1, "memory": "1Gi"}),
            ("Worker", 9, {"cpu": 2, "memory": "1Gi"}),
        )
    }
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "bert"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    templates = read_workloads(json.dumps(manifest), name="job.yaml").workloads
    answer = ask_about_gang(cluster_of(a=make_host()), templates, ["a", "a"], max_steps=8)

    assert answer
    assert answer.sentence.startswith(
        "PyTorchJob default/bert: 4 of 11 pods fit together (Master: 2 of 2, Worker: 2 of 9)"
    )
    assert answer.sentence.endswith("; no more were found within 8 steps")


def test_single_pods_and_daemon_sets_are_no_workloads_to_ask_about_together():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "app"}]}}
    assert ask_about_gang(Cluster(), read_workloads(json.dumps(pod), name="pod").workloads, [()]) is None
