"""Plans are carried out with a real API server, scheduler, budgets and evictions, on simulated kubelets."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e import control_plane
from e2e.api import Api, Document, until
from e2e.control_plane import ControlPlane
from e2e.definitions import DEPLOYED
from e2e.fake_nodes import FakeNodes
from e2e.marks import needs
from e2e.planned_cluster import (
    DEPLOYMENTS,
    FRAGMENTED,
    OTHER,
    PLANS,
    PlannedCluster,
    audit_flags,
    install_plans,
)
from e2e.schedule_replicas import NAMESPACE, ScheduleReplicas, extender_replicas, gate_controllers
from e2e.simulated_cluster import FLAGS, pod, working_nodes

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
pytestmark = needs(control_plane.missing(PROGRAMS) or control_plane.missing_kubectl())

CONTROLLERS = "deployment-controller,replicaset-controller,disruption-controller"
NODES = (FRAGMENTED, OTHER)


def pod_spec(name: str, cpus: int, **fields: Any) -> Document:  # noqa: ANN401 - of a pod
    spec: Document = pod(name, cpus, **fields)["spec"]
    return spec


@contextmanager
def fake_nodes(plane: ControlPlane) -> Iterator[FakeNodes]:
    """Run simulated kubelets in a thread."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    running: list[FakeNodes] = []
    stop = asyncio.Event()

    async def work() -> None:
        async with working_nodes(plane, *NODES) as (_, nodes):
            running.append(nodes)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    try:
        ready.wait(timeout=120)
        yield running[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(params=["extender", "gate"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlannedCluster]:
    flags = (*FLAGS, *audit_flags(tmp_path))
    with ControlPlane(tmp_path, nodes=NODES, flags=flags) as plane, fake_nodes(plane) as nodes:
        plane.start_controllers(CONTROLLERS)
        api = Api(plane)
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        install_plans(api)
        planned = PlannedCluster(api, tmp_path, pod_spec, gated=request.param == "gate")
        planned.fragment()
        planned.deploy("large", 4)
        yield planned
        assert nodes.rejected == []
        assert planned.deletions() == []


def service(cluster: PlannedCluster, *, replicas: int = 1) -> AbstractContextManager[ScheduleReplicas]:
    if cluster.gated:
        return gate_controllers(cluster.api.plane, count=replicas, options=("--plans",), access=_deployed(cluster))
    return extender_replicas(cluster.api.plane, count=replicas, options=("--plans",))


def _deployed(cluster: PlannedCluster) -> Path:
    """Return a kubeconfig with the service account and the permissions that are deployed, and no others."""
    api = cluster.api
    api.install(*(DEPLOYED / part / "access.yaml" for part in ("schedule", "gate", "plans")))
    user = {"token": api.account_token("alignup-schedule")}
    return api.plane.kubeconfig(cluster.directory / "service.kubeconfig", user)


def test_exactly_the_planned_pods_are_evicted_and_the_workload_runs(cluster: PlannedCluster) -> None:
    printed = cluster.plan("deployment/large", "--name", "room")
    planned = cluster.planned_evictions("room")
    begun = time.monotonic()
    with service(cluster):
        waited = cluster.api.kubectl("wait", "--for=condition=Complete", "plan/room", "--timeout=300s")
        print(f"{'gate' if cluster.gated else 'extender'}: {time.monotonic() - begun:.1f} s with the start")
        until("large runs", lambda: cluster.count_running("large") == 1, detail=lambda: cluster.detail("room"))
        until("the others run again", lambda: cluster.count_running("first") + cluster.count_running("second") == 2)

    assert "needs 2 moves" in printed
    assert waited == "plan.alignup.dev/room condition met\n"
    assert [pod["spec"]["nodeName"] for pod in cluster.pods_of("large")] == [FRAGMENTED]
    assert {pod["spec"]["nodeName"] for name in ("first", "second") for pod in cluster.pods_of(name)} == {OTHER}
    status = cluster.status("room")
    assert (status["phase"], status["evicted"]) == ("Succeeded", 2)
    assert {step["phase"] for step in status["steps"]} == {"Done"}
    assert cluster.evictions() == planned
    assert len(planned) == 2
    assert "Succeeded" in cluster.api.kubectl("get", "plans")


def test_a_budget_that_was_closed_after_planning_holds_an_eviction_up_until_it_is_open(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room")
    for name in ("first", "second"):
        cluster.forbid(name)
    with service(cluster):
        cluster.wait_plan("room", "a budget forbids", lambda status: "disruption budget" in status.get("message", ""))
        assert cluster.evictions().total() == 0
        first, second = cluster.eviction_order("room")
        cluster.permit(first)
        cluster.wait_plan("room", "one pod is evicted", lambda status: status.get("evicted") == 1)
        cluster.permit(second)
        cluster.wait_final("room", "Succeeded")

    assert cluster.evictions() == cluster.planned_evictions("room")
    assert cluster.count_running("large") == 1


def test_a_plan_whose_deadline_passes_gives_up_in_words(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room", "--deadline", "20")
    for name in ("first", "second"):
        cluster.forbid(name)
    with service(cluster):
        status = cluster.wait_final("room", "Failed")
        assert "failed" in {condition["type"].lower() for condition in status["conditions"]}
        for name in ("first", "second"):
            cluster.permit(name)
        later = cluster.plan("deployment/large", "--name", "later")
        cluster.wait_final("later", "Succeeded")

    assert "deadline" in status["message"]
    assert "needs 2 moves" in later
    assert cluster.evictions() == cluster.planned_evictions("later")


def test_deleting_a_plan_cancels_it(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room")
    first, second = cluster.eviction_order("room")
    cluster.forbid(second)
    with service(cluster):
        cluster.wait_plan("room", "the first pod is evicted", lambda status: status.get("evicted") == 1)
        cluster.wait_plan("room", "a budget forbids", lambda status: "disruption budget" in status.get("message", ""))
        (evicted,) = cluster.evictions()
        cluster.api.kubectl("delete", "plan/room")
        cluster.permit(second)
        # Another plan is carried out only when the first one has ended.
        cluster.plan("deployment/large", "--name", "next")
        cluster.wait_final("next", "Succeeded")

    assert evicted.startswith(first)
    assert cluster.evictions() == cluster.planned_evictions("next") + Counter([evicted])
    assert cluster.evictions().total() == 2


def test_a_paused_plan_evicts_nothing_until_it_goes_on(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room")
    path = f"{PLANS}/room"
    cluster.api.merge(path, {"spec": {"paused": True}})
    with service(cluster):
        cluster.wait_plan("room", "it is paused", lambda status: status.get("phase") == "Paused")
        assert cluster.evictions().total() == 0
        cluster.api.merge(path, {"spec": {"paused": False}})
        cluster.wait_final("room", "Succeeded")

    assert cluster.evictions() == cluster.planned_evictions("room")


def test_the_next_leader_goes_on_and_evicts_nothing_twice(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room")
    _, second = cluster.eviction_order("room")
    cluster.forbid(second)
    with service(cluster, replicas=2) as replicas:
        cluster.wait_plan("room", "the first pod is evicted", lambda status: status.get("evicted") == 1)
        replicas.kill_leader()
        refused = cluster.refused_evictions().total()
        replicas.wait_leader()
        until("the next leader tries", lambda: cluster.refused_evictions().total() > refused)
        cluster.permit(second)
        cluster.wait_final("room", "Succeeded")

    assert cluster.evictions() == cluster.planned_evictions("room")
    assert cluster.count_running("large") == 1


def test_a_plan_that_is_no_longer_right_stops_before_it_evicts(cluster: PlannedCluster) -> None:
    """Something else has taken the new places before the service starts."""
    cluster.plan("deployment/large", "--name", "room")
    cluster.run("taken", 3, OTHER)
    with service(cluster):
        status = cluster.wait_final("room", "Failed")

    assert status["message"]
    assert cluster.evictions().total() == 0
    assert cluster.api.get(f"{DEPLOYMENTS}/first") is not None


def test_without_plans_a_service_carries_nothing_out(cluster: PlannedCluster) -> None:
    cluster.plan("deployment/large", "--name", "room")
    plane = cluster.api.plane
    context = gate_controllers(plane, count=1) if cluster.gated else extender_replicas(plane, count=1)
    with context:
        cluster.deploy("after", 1)
        until("the service works", lambda: cluster.count_running("after") == 1, detail=lambda: cluster.detail("room"))

    assert cluster.status("room").get("phase", "Pending") == "Pending"
    assert cluster.evictions().total() == 0
