"""The active plan: room is held for it, its pods get their places, and it ends as planned, or in words."""

from dataclasses import replace

import pytest

from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import WaitState
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.plan_steps import EvictionOutcome, PlanPhase, StepPhase
from tests.align.hosts import make_pod
from tests.placement.clusters import host_with
from tests.placement.scheduling.plan_machine import PLAN, PlanMachine, admit, evict, move

DONE, STARTED, WAITING, SKIPPED = StepPhase.DONE, StepPhase.STARTED, StepPhase.WAITING, StepPhase.SKIPPED
STEPS = (evict("y", "a"), move("y", "b"), admit("new", "a"))


def make_hosts():
    """``new`` needs a whole NUMA node of ``a``, where ``y`` is; ``b`` has room for ``y``."""
    return {
        "a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")),
        "b": host_with(make_pod("z", cpu="4")),
    }


@pytest.fixture
def machine():
    made = PlanMachine(make_hosts())
    made.come(make_pod("new", cpu="4"))
    return made


def asked(machine, uid):
    return machine.facts.pods[uid]


def test_a_pod_is_moved_and_another_gets_its_place(machine):
    machine.activate(*STEPS)
    assert machine.evictions == ["y"]
    assert machine.phases == [STARTED, WAITING, WAITING]
    machine.end("y")
    assert machine.phases == [DONE, STARTED, WAITING]

    assert machine.ask(asked(machine, "new")).offered == ()
    assert machine.schedule(machine.come(make_pod("y-2", cpu="2"), "owner-y")) == "b"
    assert machine.phases == [DONE, DONE, STARTED]
    assert machine.schedule(asked(machine, "new")) == "a"

    assert (machine.phase, machine.progress.evicted) == (PlanPhase.SUCCEEDED, 1)
    assert machine.state.plan.name == ""


def test_the_start_is_written_before_a_pod_is_evicted(machine):
    machine.writes = False
    machine.activate(*STEPS)
    assert machine.evictions == []

    machine.handle(events.PlanWritten(PLAN, 2))
    assert machine.evictions == ["y"]


def test_a_gated_pod_gets_the_planned_node_when_its_step_has_come(machine):
    machine = PlanMachine(make_hosts(), gate=GateOptions())
    machine.come(make_pod("new", cpu="4"), state=WaitState.GATED)
    machine.activate(*STEPS)
    machine.end("y")
    released = [each for _ in range(4) for each in machine.place_next() or () if isinstance(each, WriteRelease)]
    assert released == []

    facts = machine.come(make_pod("y-2", cpu="2"), "owner-y", state=WaitState.GATED)
    (release,) = [each for _ in range(4) for each in machine.place_next() or () if isinstance(each, WriteRelease)]
    assert (release.pod.uid, release.nodes) == ("y-2", ("b",))
    machine.handle(events.ReleaseWritten("y-2"))
    machine.run(facts, "b")

    (release,) = [each for _ in range(4) for each in machine.place_next() or () if isinstance(each, WriteRelease)]
    assert (release.pod.uid, release.nodes) == ("new", ("a",))


def test_others_get_no_room_that_the_plan_needs(machine):
    """Without the plan, each of them fits on either node."""
    machine.activate(*STEPS)
    machine.end("y")
    for stranger in (make_pod("s1", cpu="2"), make_pod("s2", cpu="4")):
        answer = machine.ask(machine.come(stranger))
        assert answer.offered == ()
        assert "held for plan room" in {**answer.failed, **answer.unresolvable}.values()
        assert machine.ask_to_bind(asked(machine, stranger.uid), "a") == "node a: held for plan room"
    beside = machine.come(make_pod("s3", cpu="1"))
    assert machine.ask(beside).offered == ("b",)


def test_a_pod_of_higher_priority_ends_the_plan(machine):
    machine.activate(*STEPS)
    machine.end("y")

    stranger = machine.come(replace(make_pod("s", cpu="4"), priority=1))
    assert machine.schedule(stranger) == "a"

    assert machine.phase is PlanPhase.FAILED
    assert machine.message.startswith("the remaining steps are not possible any more: step 3, the admission of")
    assert machine.phases == [DONE, StepPhase.FAILED, SKIPPED]


def test_the_room_is_given_back_when_the_object_is_deleted(machine):
    machine.activate(*STEPS)
    machine.end("y")
    stranger = machine.come(make_pod("s", cpu="4"))
    assert machine.ask(stranger).offered == ()

    machine.handle(events.PlanCancelled(PLAN))

    assert machine.ask(stranger).offered == ("a",)


def test_a_plan_ends_at_its_deadline(machine):
    machine.activate(*STEPS)
    machine.pass_time(1001)

    assert (machine.phase, machine.message) == (PlanPhase.FAILED, "its deadline has passed")


def test_a_paused_plan_holds_its_room_and_evicts_nothing(machine):
    machine.activate(*STEPS, paused=True)
    machine.pass_time(10)
    assert (machine.phase, machine.evictions) == (PlanPhase.PAUSED, [])
    assert machine.ask(machine.come(make_pod("s", cpu="2"))).offered == ()

    machine.handle(events.PlanPaused(PLAN, paused=False))
    machine.pass_time(10)
    assert machine.evictions == ["y"]


def test_a_protected_pod_stops_the_plan(machine):
    machine.protect("y", "with topology.alignup.dev/never-move")
    machine.activate(*STEPS)

    assert machine.phase is PlanPhase.FAILED
    assert machine.message == (
        "default/y may not be evicted: it is one of the pods with topology.alignup.dev/never-move"
    )
    assert machine.evictions == []


def test_an_eviction_that_budgets_forbid_is_tried_again_and_given_up(machine):
    machine.answers.extend([EvictionOutcome.FORBIDDEN] * 100)
    machine.activate(*STEPS)
    for _ in range(10):
        machine.pass_time(5)
    assert 3 <= len(machine.evictions) <= 7
    assert machine.message == "PodDisruptionBudgets do not allow to evict default/y now: said the server"

    for _ in range(100):
        machine.pass_time(5)
    assert machine.message.startswith("PodDisruptionBudgets have not allowed to evict default/y for 300 s")
    assert machine.phase is PlanPhase.FAILED


def test_after_a_lost_answer_a_pod_that_terminates_is_not_evicted_again(machine):
    machine.answers.append(EvictionOutcome.LOST)
    machine.activate(*STEPS)
    machine.terminate("y")
    for _ in range(10):
        machine.pass_time(5)
    assert machine.evictions == ["y"]

    machine.end("y")
    assert machine.phases == [DONE, STARTED, WAITING]


def test_after_a_lost_answer_a_pod_that_runs_is_evicted_again(machine):
    machine.answers.append(EvictionOutcome.LOST)
    machine.activate(*STEPS)
    for _ in range(3):
        machine.pass_time(5)
    assert machine.evictions == ["y", "y"]


def test_a_replacement_that_is_bound_elsewhere_ends_the_plan(machine):
    machine.activate(*STEPS)
    machine.end("y")
    facts = machine.come(make_pod("y-2", cpu="2"), "owner-y")
    machine.run(facts, "a")

    assert machine.message == "the replacement of default/y was bound to node a, not to b"


def test_a_pod_that_waited_before_is_no_replacement(machine):
    machine.come(make_pod("y-1", cpu="2"), "owner-y")
    machine.activate(*STEPS)
    machine.end("y")

    assert machine.ask(asked(machine, "y-1")).offered == ()
    assert machine.schedule(machine.come(make_pod("y-2", cpu="2"), "owner-y")) == "b"


def test_a_replacement_that_is_deleted_is_replaced(machine):
    machine.activate(*STEPS)
    machine.end("y")
    machine.come(make_pod("y-2", cpu="2"), "owner-y")
    machine.gone("y-2")

    assert machine.schedule(machine.come(make_pod("y-3", cpu="2"), "owner-y")) == "b"


def test_another_process_goes_on_where_the_last_one_ended(machine):
    machine.activate(*STEPS)
    before = machine.progress.steps
    machine.handle(events.LeadershipEnded())
    machine.end("y")
    machine.handle(events.LeadershipBegan())

    machine.activate(*STEPS, progress=before)
    assert machine.phases == [DONE, STARTED, WAITING]
    assert machine.schedule(machine.come(make_pod("y-2", cpu="2"), "owner-y")) == "b"
    before = machine.progress.steps
    machine.handle(events.LeadershipEnded())
    machine.handle(events.LeadershipBegan())
    machine.activate(*STEPS, progress=before)
    assert machine.schedule(asked(machine, "new")) == "a"

    assert (machine.phase, machine.progress.evicted) == (PlanPhase.SUCCEEDED, 1)
    assert machine.evictions == ["y"]


def test_a_pod_that_is_gone_already_is_skipped_with_its_replacement(machine):
    machine.end("y")
    machine.activate(*STEPS)

    assert machine.phases == [SKIPPED, SKIPPED, STARTED]
    assert machine.schedule(asked(machine, "new")) == "a"
    assert (machine.phase, machine.progress.evicted) == (PlanPhase.SUCCEEDED, 0)
