"""Plans that are carried out by the service, with gate and with extender, against an API server."""

from contextlib import ExitStack

import pytest

from alignup.placement.scheduling.options import GateOptions
from alignup.schedule.gate.service import GateServiceOptions, add_gate
from alignup.schedule.service import ScheduleService
from tests.deadlines import until
from tests.schedule.gate.conftest import clock, clocked
from tests.schedule.plan_cluster import STEPS, AskingScheduler, PlanCluster, make_step

pytestmark = pytest.mark.anyio

__all__ = ["clock", "clocked"]


class PlanService:
    """The service of one process, with its schedulers; *gated*: it has no extender."""

    def __init__(self, cluster, client, *, gated):
        self.cluster, self.gated = cluster, gated
        self.service = ScheduleService(client, plans=True, serves_extender=not gated)
        self.scheduler = AskingScheduler(cluster, self.service)
        self.stack = ExitStack()
        if gated:
            self.stack.enter_context(add_gate(self.service, GateServiceOptions(controller=GateOptions())))

    def start(self, follow):
        follow(self.service.run())
        follow(self.cluster.schedule() if self.gated else self.scheduler.run())


@pytest.fixture(params=[pytest.param(True, id="gate"), pytest.param(False, id="extender")])
def gated(request):
    return request.param


@pytest.fixture
def cluster(server, client, gated):
    return PlanCluster(server, client, gated=gated)


@pytest.fixture
async def service(cluster, clocked, follow, gated):
    made = PlanService(cluster, clocked, gated=gated)
    follow(cluster.replace_pods())
    made.start(follow)
    await until(lambda: made.service.leading)
    return made.service


async def ended(cluster, name="room"):
    await until(lambda: cluster.plan(name).final)
    return cluster.plan(name).status


async def test_a_plan_is_carried_out(cluster, service):
    cluster.create_plan()
    status = await ended(cluster)

    assert (status.phase, status.message, status.evicted) == ("Succeeded", "", 1)
    assert cluster.phases() == ["Done", "Done", "Done"]
    assert {name: cluster.bound()[name] for name in ("x", "y-2", "z", "new")} == {
        "x": "a",
        "y-2": "b",
        "z": "b",
        "new": "a",
    }
    assert (cluster.evictions(), cluster.rejected) == (["y"], [])
    assert [(each.type, each.status) for each in status.conditions] == [("Complete", "True"), ("Failed", "False")]


async def test_a_plan_evicts_no_pod_by_another_name(cluster, service):
    """Who creates a plan must be allowed to evict the pods that it names, and not the ones whose uids it has."""
    evict = make_step("Evict", "y", "a")
    forged = {**evict, "pod": {**evict["pod"], "name": "x"}}
    cluster.create_plan(steps=[forged, *STEPS[1:]])
    status = await ended(cluster)

    assert (status.phase, status.evicted) == ("Failed", 0)
    assert "step 1: pod default/x does not have this uid" in status.message
    assert cluster.evictions() == []
