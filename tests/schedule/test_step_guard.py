"""The guard around steps about one pod or gang, alone and in the extender."""

import asyncio

import pytest

from alignup.kubernetes.api import Timing
from alignup.placement.scheduling.failed_events import FIRST_RETRY, LONGEST_RETRY
from alignup.schedule.metrics import ScheduleMetrics
from alignup.schedule.service import ScheduleService
from alignup.schedule.step_guard import MAX_FAILURES, ServiceStep, StepFailure, StepGuard
from tests.align.hosts import pod
from tests.deadlines import until
from tests.schedule.gang_objects import SERVED_GROUPS, gang
from tests.schedule.test_extender import OTHER, WIDE, bound, create, filtered
from tests.schedule.test_kept_nodes import end

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def metrics():
    return ScheduleMetrics()


@pytest.fixture
def guard(clock, metrics):
    return StepGuard(metrics, Timing(clock=lambda: clock[0]))


@pytest.fixture
def nodes(nodes):
    for resource in SERVED_GROUPS:
        nodes.server.serve(resource)
    return nodes


def failures(metrics, step):
    return metrics.registry.get_sample_value("alignup_schedule_failed_steps_total", {"step": step})


def fail(guard, name="ml/p", **options):
    with guard.guarded(ServiceStep.PLACE, name, **options):
        raise LookupError("a defect")


def test_a_failure_is_logged_with_its_name_counted_and_undone(guard, metrics, log):
    undone: list[StepFailure] = []
    assert failures(metrics, "place") == 0  # before the first: rate() and increase() need that

    fail(guard, undo=undone.append)

    ((error, seconds),) = undone
    assert (type(error), seconds) == (LookupError, FIRST_RETRY)
    assert failures(metrics, "place") == 1
    (entry,) = log
    assert (entry["event"], entry["step"], entry["name"]) == ("step failed", "place", "ml/p")


def test_the_time_between_tries_doubles_up_to_a_limit_until_one_succeeds(guard, clock):
    seconds = []
    for _ in range(12):
        fail(guard, undo=lambda failure: seconds.append(failure.seconds))
        assert not guard.may_try(ServiceStep.PLACE, "ml/p")
        assert guard.may_try(ServiceStep.RELEASE, "ml/p")
        assert guard.may_try(ServiceStep.PLACE, "ml/q")
        clock[0] += seconds[-1]
        assert guard.may_try(ServiceStep.PLACE, "ml/p")
    assert seconds[:3] == [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY]
    assert seconds[-1] == LONGEST_RETRY

    with guard.guarded(ServiceStep.PLACE, "ml/p"):
        pass
    fail(guard, undo=lambda failure: seconds.append(failure.seconds))
    assert seconds[-1] == FIRST_RETRY


def test_an_undo_that_fails_and_many_names_are_no_problem(guard, log):
    def undo(_failure):
        raise ZeroDivisionError("another defect")

    fail(guard, undo=undo)
    for number in range(MAX_FAILURES):
        fail(guard, str(number))

    assert [entry["event"] for entry in log[:2]] == ["step failed", "cannot undo a step"]
    assert guard.may_try(ServiceStep.PLACE, "ml/p")  # which is forgotten


def test_errors_of_the_caller_and_cancellation_pass(guard, metrics):
    with pytest.raises(LookupError):
        fail(guard, passing=(LookupError,))
    with pytest.raises(asyncio.CancelledError), guard.guarded(ServiceStep.PLACE, "ml/p"):
        raise asyncio.CancelledError
    assert failures(metrics, "place") == 0


async def test_a_task_is_started_again_until_it_ends(clock, metrics):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        clock[0] += seconds

    async def run():
        if len(waits) == 4:
            return
        if len(waits) == 3:
            clock[0] += 2 * LONGEST_RETRY  # it goes well for a long time
        raise LookupError("a defect")

    await StepGuard(metrics, Timing(clock=lambda: clock[0], sleep=sleep)).keep_running("a task", run)

    assert waits == [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY, FIRST_RETRY]
    assert failures(metrics, "task") == 4


# In the extender


def failing_for(monkeypatch, owner, method, name):
    """Let a method raise an error of an unexpected type for one pod."""
    call = getattr(owner, method)

    def fail_for_one(subject, *args, **kwargs):
        result = call(subject, *args, **kwargs)
        if subject.name == name:
            raise LookupError("a defect")
        return result

    monkeypatch.setattr(owner, method, fail_for_one)


async def test_a_scheduler_gets_words_about_a_pod_that_fails_and_answers_about_others(
    http, nodes, service, monkeypatch
):
    with monkeypatch.context() as patch:
        failing_for(patch, service.live.cluster, "best", "wide")
        assert (await filtered(http))["Error"].startswith("alignup failed on the pod, ")
        assert (await filtered(http, OTHER))["NodeNames"] == ["a"]
    assert failures(service.metrics, "answer") == 1
    assert (await filtered(http))["NodeNames"] == ["b"]  # the other was offered to OTHER


async def test_a_binding_that_fails_leaves_nothing_assumed(http, nodes, service, monkeypatch):
    await create(nodes, service, WIDE)
    with monkeypatch.context() as patch:
        failing_for(patch, service.live.scheduling.assumptions, "assume", "wide")
        assert (await bound(http)).startswith("alignup failed on the pod, ")
    assert service.live.assumed == {}
    assert service.live.verdict(OTHER, "a").admits
    assert failures(service.metrics, "bind") == 1
    assert await bound(http) == ""


async def test_a_gang_that_fails_waits_and_others_are_bound(http, nodes, service, monkeypatch):
    pods, single = gang(2), pod("single", cpu="4")
    await create(nodes, service, *pods, single)

    def fail_always(*_args, **_kwargs):
        raise LookupError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(service.live.cluster, "feasible_gang", fail_always)
        for each in pods:
            assert (await filtered(http, each))["Error"].startswith("alignup failed on the pod, ")
        assert (await filtered(http, single))["NodeNames"] == ["a"]
        assert await bound(http, single) == ""
    assert service.live.assumed.keys() <= {"single"}
    assert (await filtered(http, pods[0]))["NodeNames"] == ["b"]
    assert failures(service.metrics, "answer") == 2
    assert service.leading


async def test_a_wake_up_that_fails_does_not_end_the_service(http, nodes, service, monkeypatch):
    """Nothing of a wake-up may end the answers to schedulers."""
    for each, host in ((WIDE, "a"), (OTHER, "b")):
        nodes.create(each, host)
        nodes.admit(host, each)
    await until(lambda: not service.live.choose(WIDE))
    waiting = pod("waiting", cpu="4", memory="1Gi")
    nodes.create(waiting)
    assert (await filtered(http, waiting))["NodeNames"] == []
    await until(lambda: service.numbers()["alignup_schedule_waiting_pods"][1] == 1)
    failing_for(monkeypatch, service.live.scheduling.assumptions, "verdict", "waiting")

    await end(nodes, service, WIDE)

    await until(lambda: failures(service.metrics, "wake") == 1)
    assert (await filtered(http, pod("small", cpu="1"), names=["a"]))["Error"] == ""


async def test_a_task_of_the_leader_that_fails_is_started_again(nodes, client, follow):
    made, starts = ScheduleService(client), []

    async def run():
        starts.append(made.leading)
        raise LookupError("a defect")

    made.leader_tasks.append(run)
    follow(made.run())
    await until(lambda: len(starts) >= 2)
    assert all(starts)
    assert made.leading
