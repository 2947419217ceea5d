"""Pods that demand a policy, on real kubelets with other policies: each is aligned as it asks, and none is rejected.

Every pod could be on one NUMA node: a node has two, with 3 and 4 free CPUs. So a pod that demands ``restricted`` or
``single-numa-node`` has all its CPUs and memory on one of them, also on the nodes with ``none`` and ``best-effort``.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from alignup.align.workload.names import POLICY_ANNOTATION
from e2e import cluster_guest
from e2e.api import PODS, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import WIDE
from e2e.cluster_workloads import clear, create_pod, settle
from e2e.marks import needs
from e2e.observed_node import is_admitted, make_container

pytestmark = needs(cluster_guest.missing())

POLICIES = {"plain": "none", "loose": "best-effort", "strict": "single-numa-node"}  #: by node
COUNT = int(os.environ.get("ALIGNUP_CLUSTER_PODS", "40"))
STRICT = ("restricted", "single-numa-node")
DEMANDS = (*STRICT, "", *STRICT, "best-effort")  #: of the pods, in turn; empty: no annotation
SEED = 58
REJECTED = "TopologyAffinityError"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    shapes = dict.fromkeys(POLICIES, WIDE)
    with ClusterBed(tmp_path_factory.mktemp("cluster"), shapes, policies=POLICIES) as cluster:
        yield cluster


def run_pods(bed: ClusterBed, scheduler: str) -> Counter[tuple[str, str]]:
    """Create the pods, and end all that run, until none is left; count them by demand and outcome."""
    chance = random.Random(SEED)
    for number in range(COUNT):
        demand = DEMANDS[number % len(DEMANDS)]
        container = make_container(cpu=chance.choice((1, 2, 2, 3, 4)), memory="32Mi")
        create_pod(bed.api, f"pod-{number}", container, {POLICY_ANNOTATION: demand} if demand else None)
    counts: Counter[tuple[str, str]] = Counter()
    while pods := bed.api.items(PODS):
        settle(bed.api)
        pods = bed.api.items(PODS)
        decided = [pod for pod in pods if is_admitted(pod) or pod["status"]["phase"] == "Failed"]
        assert decided, f"{len(pods)} pods wait although no other runs"
        for pod in decided:
            annotations = pod["metadata"].get("annotations", {})
            counts[annotations.get(POLICY_ANNOTATION, ""), outcome(bed, pod)] += 1
        delete(bed, {pod["metadata"]["name"] for pod in decided})
    print(f"\n{scheduler}")
    for (demand, result), count in sorted(counts.items()):
        print(f"| {demand or 'no annotation'} | {result} | {count} |", flush=True)
    clear(bed.api)
    return counts


def delete(bed: ClusterBed, names: set[str]) -> None:
    for name in sorted(names):
        bed.api.request("DELETE", f"{PODS}/{name}")
    until("deleted pods are gone", lambda: not names & {pod["metadata"]["name"] for pod in bed.api.items(PODS)})


def outcome(bed: ClusterBed, pod: Document) -> str:
    """Return whether what a pod holds, by state files and PodResources, is on one NUMA node."""
    status, metadata = pod["status"], pod["metadata"]
    if status["phase"] == "Failed":
        return "rejected" if status.get("reason") == REJECTED else f"failed: {status.get('reason')}"
    kubelet = bed.nodes[pod["spec"]["nodeName"]].view()
    stored, listed = kubelet.stored[metadata["uid"]], kubelet.listed[f"default/{metadata['name']}"]
    assert stored == listed
    nodes = {cpu // 4 for container in stored.values() for cpu in container["cpus"]}  # four CPUs each
    nodes.update(*(block[0] for container in stored.values() for block in container["memory"]))
    assert nodes
    return "on one NUMA node" if len(nodes) == 1 else "on two NUMA nodes"


def test_pods_are_aligned_as_they_ask_and_none_is_rejected(bed: ClusterBed) -> None:
    bed.plane.start_scheduler()
    baseline = run_pods(bed, "kube-scheduler")
    ours = {}
    with bed.extender():
        ours["extender"] = run_pods(bed, "extender")
    with bed.gate():
        ours["gate"] = run_pods(bed, "gate")

    assert any(result != "on one NUMA node" for (demand, result) in baseline if demand in STRICT)
    for mode, counts in ours.items():
        assert sum(counts.values()) == COUNT, mode
        assert {result for demand, result in counts if demand in STRICT} == {"on one NUMA node"}, mode
        assert {result for _, result in counts} <= {"on one NUMA node", "on two NUMA nodes"}, mode
