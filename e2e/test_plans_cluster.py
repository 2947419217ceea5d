"""Plans are carried out on real kubelets: a Deployment and a gang get room, and nothing is rejected."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import cluster_guest
from e2e.api import Document, until
from e2e.cluster_bed import ClusterBed
from e2e.cluster_guest import WIDE
from e2e.cluster_workloads import clear, count_pods
from e2e.marks import needs
from e2e.observed_node import make_container, make_pod
from e2e.planned_cluster import BUDGETS, FRAGMENTED, OTHER, PlannedCluster, audit_flags, install_plans

pytestmark = needs(cluster_guest.missing())


def pod_spec(name: str, cpus: int, **fields: Any) -> Document:  # noqa: ANN401 - of a pod
    container = make_container(cpu=cpus, memory="32Mi")
    spec: Document = make_pod(name, container, schedulerName="default-scheduler", **fields)["spec"]
    return spec


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBed]:
    place = tmp_path_factory.mktemp("cluster")
    with ClusterBed(place, {FRAGMENTED: WIDE, OTHER: WIDE}, flags=audit_flags(place)) as cluster:
        install_plans(cluster.api)
        yield cluster


@pytest.fixture(params=["extender", "gate"])
def cluster(request: pytest.FixtureRequest, bed: ClusterBed) -> Iterator[PlannedCluster]:
    bed.use_nodes()  # the scheduler of the test before still runs
    yield PlannedCluster(bed.api, bed.plane.directory, pod_spec, gated=request.param == "gate")
    clear(bed.api)
    bed.api.request("DELETE", BUDGETS)
    bed.check("end")


def carry_out(bed: ClusterBed, cluster: PlannedCluster, name: str) -> None:
    """Carry a plan out with two replicas, and kill the leader while a budget holds the last eviction up.

    Nothing is rejected, and exactly the planned pods are evicted, each of them once.
    """
    planned = cluster.planned_evictions(name)
    before, deleted = cluster.evictions().total(), cluster.deletions()
    held_up = cluster.eviction_order(name)[-1]
    cluster.forbid(held_up)
    service = bed.gate if cluster.gated else bed.extender
    begun = time.monotonic()
    with service("--plans", replicas=2) as replicas:
        cluster.wait_plan(name, "all but one are evicted", lambda status: status.get("evicted") == len(planned) - 1)
        cluster.wait_plan(name, "a budget forbids", lambda status: "disruption budget" in status.get("message", ""))
        replicas.kill_leader()
        cluster.permit(held_up)
        status = cluster.wait_final(name, "Succeeded")
        seconds = time.monotonic() - begun
        until("all pods run", lambda: not count_pods(bed.api).pending, detail=lambda: cluster.detail(name))
        counts = count_pods(bed.api)
        predictions = replicas.predictions()
    print(f"{name}: {len(planned)} evictions, {seconds:.0f} s with the start and a new leader; {counts}; {predictions}")
    assert (counts.rejected, counts.failed, status["evicted"]) == (0, 0, len(planned))
    assert cluster.evictions().total() == before + len(planned)
    assert {pod: cluster.evictions()[pod] for pod in planned} == dict.fromkeys(planned, 1)
    assert cluster.deletions() == deleted
    assert bed.mispredictions() == []
    bed.check(f"end of {name}")


def test_a_deployment_gets_the_room_that_moves_make(bed: ClusterBed, cluster: PlannedCluster) -> None:
    cluster.fragment()
    cluster.deploy("large", 4)
    bed.use_nodes(FRAGMENTED, OTHER)
    bed.check("fragmented")
    name = f"deployment-{'gate' if cluster.gated else 'extender'}"
    assert "needs 2 moves" in cluster.plan("deployment/large", "--name", name)

    carry_out(bed, cluster, name)

    assert [pod["spec"]["nodeName"] for pod in cluster.pods_of("large")] == [FRAGMENTED]
    assert cluster.count_running("large") == 1


def test_a_gang_gets_the_room_that_moves_make(bed: ClusterBed, cluster: PlannedCluster) -> None:
    """2 CPUs are free on one NUMA node of one node, and on both of the other: two pods with 3 CPUs need moves."""
    cluster.deploy("first", 1, node=FRAGMENTED)
    cluster.run("fixed", 4, FRAGMENTED)
    cluster.run("blocker", 3, OTHER)
    cluster.deploy("third", 2, node=OTHER)
    bed.api.delete("blocker")
    cluster.deploy("second", 1, node=OTHER)
    cluster.wait_as_gang("gang", 3, size=2)
    bed.use_nodes(FRAGMENTED, OTHER)
    bed.check("fragmented")
    name = f"gang-{'gate' if cluster.gated else 'extender'}"
    print(cluster.plan("gang-0", "--name", name).partition("before")[0])

    carry_out(bed, cluster, name)

    assert cluster.count_running("gang") == 2
