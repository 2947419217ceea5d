"""Two gangs that fit only one at a time, on real kubelets: PodGroups under our extender, and behind our gate.

``ALIGNUP_GANG_ROUNDS`` is the number of rounds.
"""

import os
import time
from collections.abc import Iterator

import pytest

from e2e import cluster_guest, control_plane
from e2e.api import PODS, Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import WIDE
from e2e.cluster_workloads import clear, count_pods
from e2e.marks import needs
from e2e.observed_node import is_admitted, make_container, make_pod
from e2e.test_gangs import GATES, minor, pod_groups

pytestmark = needs(cluster_guest.missing())

ROUNDS = int(os.environ.get("ALIGNUP_GANG_ROUNDS", "20"))
SIZE, CPUS = 4, 3  #: two of these pods fill a node
NODES = ("wide", "wide-2")


@pytest.fixture(scope="module", params=control_plane.directories() or (None,), ids=control_plane.version)
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    """A cluster of each version of Kubernetes that has PodGroups."""
    if minor(request.param) not in GATES:
        pytest.skip("this version of Kubernetes has no PodGroups")
    gates, resource = pod_groups(request.param)
    flags = (gates, f"--runtime-config={resource.api_version}=true")
    place = tmp_path_factory.mktemp("cluster")
    with ClusterBed(place, dict.fromkeys(NODES, WIDE), programs=request.param, flags=flags) as cluster:
        cluster.plane.scheduler_flags = (gates,)
        yield cluster


def create_gang(bed: ClusterBed, name: str) -> None:
    _, resource = pod_groups(bed.plane.programs)
    policy = {"schedulingPolicy": {"gang": {"minCount": SIZE}}}
    metadata = {"name": name, "namespace": "default"}
    bed.api.create({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": policy})
    container = make_container(cpu=CPUS, memory="32Mi")
    for number in range(SIZE):
        pod = make_pod(f"{name}-{number}", container, schedulerName="default-scheduler")
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        bed.api.request("POST", PODS, pod)


def members(bed: ClusterBed, name: str) -> list[Document]:
    return [pod for pod in bed.api.items(PODS) if pod["metadata"]["name"].startswith(f"{name}-")]


def count_bound(bed: ClusterBed, name: str) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in members(bed, name))


def count_admitted(bed: ClusterBed, name: str) -> int:
    return sum(is_admitted(pod) for pod in members(bed, name))


def delete_gang(bed: ClusterBed, name: str) -> None:
    for pod in members(bed, name):
        bed.api.request("DELETE", f"{PODS}/{pod['metadata']['name']}")
    until(f"gang {name} is gone", lambda: not members(bed, name), detail=lambda: count_pods(bed.api))
    _, resource = pod_groups(bed.plane.programs)
    bed.api.request("DELETE", f"{resource.path('default')}/{name}")


@pytest.mark.parametrize("mode", ["extender", "gate"])
def test_two_gangs_that_fit_only_one_at_a_time(bed: ClusterBed, mode: str) -> None:
    longest = 0.0
    with bed.extender(replicas=2) if mode == "extender" else bed.gate(replicas=2) as replicas:
        for number in range(ROUNDS):
            first, second = f"{mode}-first-{number}", f"{mode}-second-{number}"
            create_gang(bed, first)
            create_gang(bed, second)
            some = lambda: count_bound(bed, first) or count_bound(bed, second)  # noqa: B023, E731
            until("a pod is bound", some, detail=lambda: bed.plane.log("alignup-schedule", 6000))
            begun = time.monotonic()
            if number == ROUNDS // 2:
                replicas.start()
                replicas.kill_leader()
            winner, loser = (first, second) if count_bound(bed, first) else (second, first)
            for name in (winner, loser):
                whole = lambda: count_admitted(bed, name) == SIZE  # noqa: B023, E731
                until(f"{name} runs", whole, detail=lambda: bed.plane.log("alignup-schedule", 6000))
                if name == winner:
                    longest = max(longest, time.monotonic() - begun)
                    assert count_bound(bed, loser) == 0
                assert count_pods(bed.api).rejected == 0
                assert bed.mispredictions() == []
                delete_gang(bed, name)
    print(f"{mode}: {ROUNDS} rounds; a gang started within {longest:.0f} s", flush=True)
    clear(bed.api)
