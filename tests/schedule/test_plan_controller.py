"""Plans that are carried out by the service, with gate and with extender, against an API server."""

from contextlib import ExitStack

import pytest

from alignup.placement.scheduling.events import TimePassed
from alignup.placement.scheduling.options import GateOptions
from alignup.schedule import plan_controller
from alignup.schedule.gate.service import GateServiceOptions, add_gate
from alignup.schedule.service import ScheduleService
from alignup.testing.api_server import ApiFault
from tests.align.hosts import pod
from tests.deadlines import until
from tests.kubernetes.api.tasks import running
from tests.schedule.gate.conftest import clock, clocked
from tests.schedule.gate.simulated import settle
from tests.schedule.nodes import SimulatedNodes
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


def is_idle(service):
    """Whether no answer is expected: time, or something else, must pass before the next step of the plan."""
    plan = service.live.scheduling.plan._plan  # noqa: SLF001 - only tests wait for it
    asked = plan and plan.eviction and (plan.eviction.sent or plan.eviction.checked)
    return not plan or not (plan.reading or asked or plan.written < plan.number)


async def ended(cluster, name="room"):
    await until(lambda: cluster.plan(name).final)
    return cluster.plan(name).status


async def test_a_plan_is_carried_out_reported_and_counted(cluster, service):
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

    await until(lambda: ("room", "PlanSucceeded") in [event[:2] for event in cluster.events()])
    assert ("y", "EvictedByPlan", "evicted by plan room") in cluster.events()
    (event,) = [each for each in cluster.server.objects("events") if each["reason"] == "PlanSucceeded"]
    plan = (event["type"], event["involvedObject"]["kind"], event["metadata"]["namespace"])
    assert plan == ("Normal", "Plan", "default")
    count = service.metrics.registry.get_sample_value
    await until(lambda: count("alignup_plans_total", {"outcome": "Succeeded"}) == 1)
    assert count("alignup_plan_evictions_total", {"outcome": "accepted"}) == 1


async def test_a_plan_evicts_no_pod_by_another_name(cluster, service):
    """Who creates a plan must be allowed to evict the pods that it names, and not the ones whose uids it has."""
    evict = make_step("Evict", "y", "a")
    forged = {**evict, "pod": {**evict["pod"], "name": "x"}}
    cluster.create_plan(steps=[forged, *STEPS[1:]])
    status = await ended(cluster)

    assert (status.phase, status.evicted) == ("Failed", 0)
    assert "step 1: pod default/x does not have this uid" in status.message
    assert cluster.evictions() == []


async def test_only_the_oldest_plan_is_carried_out(cluster, service):
    cluster.lingering.add("y")
    cluster.create_plan()
    await until(lambda: cluster.terminating() == ["y"])
    cluster.create_plan("later")
    await until(lambda: cluster.plan("later").status.message == "waits for the end of plan room")

    cluster.lingering.clear()
    cluster.finish("y")
    assert (await ended(cluster)).phase == "Succeeded"
    status = await ended(cluster, "later")
    assert (status.phase, status.evicted) == ("Succeeded", 0)
    assert cluster.phases("later") == ["Skipped", "Skipped", "Done"]


async def test_a_budget_that_allows_it_later(cluster, service, clock):
    cluster.server.inject(ApiFault(status=429, message="Cannot evict pod", times=2), verb="create", resource="pods")
    cluster.create_plan()
    await until(lambda: "do not allow to evict default/y now: Cannot evict" in cluster.plan().status.message)
    for _ in range(2):
        clock.now += 10
        service.live.schedule(TimePassed())
        await until(lambda: is_idle(service))
    status = await ended(cluster)

    assert (status.phase, cluster.evictions()) == ("Succeeded", ["y"] * 3)


@pytest.mark.parametrize("fault", [{"disconnect": True}, {"status": 500}, {"garbage": True}])
@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
async def test_a_lost_eviction_is_not_repeated_if_it_was_carried_out(cluster, service, clock, fault, done):
    cluster.lingering.add("y")
    cluster.server.inject(ApiFault(done=done, **fault), verb="create", resource="pods")
    cluster.create_plan()
    await until(cluster.evictions)
    await until(lambda: is_idle(service))
    while not cluster.terminating():
        clock.now += 10
        service.live.schedule(TimePassed())
        await settle()
    cluster.finish("y")
    assert (await ended(cluster)).phase == "Succeeded"

    assert cluster.evictions() == ["y"] * (1 if done else 2)


async def test_a_pod_that_is_gone_is_no_problem(cluster, service):
    """Another pod has its name by now."""
    cluster.server.inject(ApiFault(status=404), verb="create", resource="pods")
    cluster.create_plan()
    await until(cluster.evictions)
    cluster.finish("y")
    cluster.wait_for_node(pod("y-2", cpu="2"), "y")

    assert (await ended(cluster)).phase == "Succeeded"


async def test_a_service_that_must_not_evict_says_so(cluster, service):
    cluster.server.inject(ApiFault(status=403, message="no"), verb="create", resource="pods")
    cluster.create_plan()
    status = await ended(cluster)

    assert (status.phase, status.evicted) == ("Failed", 0)
    assert status.message == "default/y cannot be evicted: create eviction of pods default/y: no"
    assert ("Failed", "True") in [(each.type, each.status) for each in status.conditions]


async def test_the_room_is_given_back_when_a_plan_is_deleted(cluster, service):
    cluster.lingering.add("y")
    cluster.create_plan()
    await until(lambda: cluster.terminating() == ["y"])
    cluster.server.remove("plans", "room")
    await until(lambda: not service.live.scheduling.plan.name)
    cluster.lingering.clear()
    cluster.finish("y")

    await until(lambda: cluster.bound()["y-2"])
    assert cluster.evictions() == ["y"]


async def test_a_paused_plan_evicts_nothing_until_it_goes_on(cluster, service):
    cluster.create_plan(paused=True)
    await until(lambda: cluster.plan().status.phase == "Paused")
    assert service.live.scheduling.plan.name == "room"
    cluster.change_plan(paused=False)
    assert (await ended(cluster)).phase == "Succeeded"


async def test_a_plan_ends_at_its_deadline(cluster, service, clock):
    cluster.lingering.add("y")
    cluster.create_plan(deadlineSeconds=100)
    await until(lambda: cluster.terminating() == ["y"])
    clock.now += 101
    service.live.schedule(TimePassed())
    status = await ended(cluster)

    assert (status.phase, status.message) == ("Failed", "its deadline has passed")
    assert cluster.phases() == ["Failed", "Skipped", "Skipped"]


async def test_a_pod_that_must_not_move_stops_the_plan(cluster, service):
    document = cluster.document("y")
    annotations = {"annotations": {"topology.alignup.dev/never-move": "true"}}
    cluster.server.put({**document, "metadata": {**document["metadata"], **annotations}})
    cluster.create_plan()
    status = await ended(cluster)

    assert status.message.startswith("default/y may not be evicted: it is one of the pods with topology.alignup.dev")
    assert cluster.evictions() == []


async def test_a_plan_that_cannot_be_read_ends_alone(cluster, service, monkeypatch):
    def fail(plan):
        if plan.metadata.name == "bad":
            raise ValueError("a defect")
        return read_steps(plan)

    read_steps = plan_controller.read_steps
    monkeypatch.setattr(plan_controller, "read_steps", fail)
    cluster.create_plan("bad")
    status = await ended(cluster, "bad")
    assert (status.phase, status.message) == ("Failed", "alignup failed: ValueError: a defect")

    cluster.create_plan()
    assert (await ended(cluster)).phase == "Succeeded"


# Other processes


class Killed:
    """A process that is killed, and one that begins where it ended."""

    def __init__(self, cluster, client, *, gated):
        self.cluster, self.client, self.gated = cluster, client, gated

    async def run_until(self, condition):
        """Run a process until *condition* is true, and kill it then."""
        async with running() as start:
            made = PlanService(self.cluster, self.client, gated=self.gated)
            made.start(start)
            await until(condition)


@pytest.fixture
async def killed(cluster, clocked, follow, gated):
    follow(cluster.replace_pods())
    return Killed(cluster, clocked, gated=gated)


async def test_the_next_process_goes_on_between_the_status_and_the_eviction(cluster, killed):
    cluster.server.inject(ApiFault(hang=True), verb="create", resource="pods")
    cluster.create_plan()
    await killed.run_until(cluster.evictions)
    assert cluster.phases() == ["Started", "Waiting", "Waiting"]
    assert cluster.terminating() == []

    await killed.run_until(lambda: cluster.plan().final)
    assert (cluster.plan().status.phase, cluster.evictions()) == ("Succeeded", ["y", "y"])


async def test_the_next_process_goes_on_while_a_pod_terminates(cluster, killed):
    cluster.lingering.add("y")
    cluster.create_plan()
    await killed.run_until(lambda: cluster.terminating() == ["y"])
    cluster.finish("y")

    await killed.run_until(lambda: cluster.plan().final)
    assert (cluster.plan().status.phase, cluster.evictions()) == ("Succeeded", ["y"])
    assert (cluster.bound()["y-2"], cluster.bound()["new"]) == ("b", "a")


async def test_the_next_process_waits_for_a_replacement_that_comes_later(cluster, killed):
    """As a StatefulSet creates it; what the evicted pod requested is in the status."""
    cluster.copies = False
    cluster.create_plan()
    await killed.run_until(lambda: cluster.phases()[:2] == ["Done", "Started"])
    cluster.wait_for_node(pod("y-2", cpu="2"), "y")

    await killed.run_until(lambda: cluster.plan().final)
    assert (cluster.plan().status.phase, cluster.bound()["y-2"]) == ("Succeeded", "b")


async def test_a_plan_that_the_next_process_fails_on_ends_alone(cluster, killed, monkeypatch):
    """It leads although it cannot even write that the plan has ended, which it does later."""
    cluster.create_plan()
    await killed.run_until(lambda: cluster.phases()[:1] == ["Started"])
    monkeypatch.setattr(plan_controller, "read_steps", lambda plan: 1 / 0)
    cluster.server.inject(ApiFault(status=403, message="no", times=3), verb="patch", resource="plans")

    await killed.run_until(lambda: cluster.plan().final)
    assert cluster.plan().status.message == "alignup failed: ZeroDivisionError: division by zero"


async def test_a_plan_that_its_status_cannot_hold_ends_in_words(cluster, service, monkeypatch):
    monkeypatch.setattr(plan_controller, "MAX_RECORDED", 100)
    cluster.create_plan()
    status = await ended(cluster)

    assert (status.phase, status.evicted) == ("Failed", 0)
    assert status.message == "what its pods request takes more than 0 KiB in its status"


async def test_a_plan_that_has_ended_is_left_alone(cluster, killed):
    cluster.create_plan()
    await killed.run_until(lambda: cluster.plan().final)
    before = cluster.plan()

    cluster.create_plan("later", steps=STEPS[2:])
    await killed.run_until(lambda: cluster.plan("later").final)
    assert cluster.plan() == before


async def test_without_the_resource_the_service_says_so(server, clocked, follow):
    made = ScheduleService(clocked, plans=True)
    nodes = SimulatedNodes(server)
    nodes.add("a")
    follow(made.run())
    await until(lambda: made.leading)

    assert made.warnings == ("plans are not carried out: the API server has no plans.alignup.dev",)
    assert made.problems() == ()
