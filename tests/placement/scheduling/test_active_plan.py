"""The active plan: room is held for it, its pods get their places, and it ends as planned, or in words."""

import inspect
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.placement.cluster import Cluster
from alignup.placement.scheduling import events
from alignup.placement.scheduling.active_plan import FAILED, ActivePlan
from alignup.placement.scheduling.facts import GroupKey, WaitState
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.plan_room import PlanRoom
from alignup.placement.scheduling.plan_steps import ActiveStep, EvictionOutcome, PlanPhase, StepPhase, execution_order
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.snapshot import take_snapshot
from alignup.placement.steered import with_markers
from tests.align.hosts import make_pod
from tests.effort import examples
from tests.placement.clusters import host_with
from tests.placement.scheduling.model_api import WIDE, marked_host
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


# Gangs

KEY = GroupKey("default", "train", "label")
GANG_STEPS = (admit("g-0", "c"), evict("y", "a"), move("y", "b"), admit("g-1", "a"))


def gang_machine(state, gate=None):
    """A gang of two pods: ``c`` has room for one, and ``a`` has room for the other after ``y`` has left."""
    machine = PlanMachine({**make_hosts(), "c": host_with(make_pod("v", cpu="3"))}, gate=gate)
    for name in ("g-0", "g-1"):
        machine.come(make_pod(name, cpu="4"), state=state, group=KEY)
    return machine


def test_a_gang_gets_its_nodes_together_from_its_scheduler():
    machine = gang_machine(WaitState.UNSCHEDULABLE)
    assert machine.ask(asked(machine, "g-0")).offered == ()
    machine.activate(*GANG_STEPS)
    assert machine.phases == [WAITING, STARTED, WAITING, WAITING]
    machine.end("y")
    assert machine.ask(asked(machine, "g-0")).offered == ()
    assert machine.schedule(machine.come(make_pod("y-2", cpu="2"), "owner-y")) == "b"
    assert machine.phases == [STARTED, DONE, DONE, STARTED]

    members = [asked(machine, name) for name in ("g-0", "g-1")]
    assert [machine.ask(facts).offered for facts in members] == [("c",), ("a",)]
    for facts, node in zip(members, "ca", strict=True):
        assert not machine.ask_to_bind(facts, node)
    for facts, node in zip(members, "ca", strict=True):
        machine.run(facts, node)
    assert machine.phase is PlanPhase.SUCCEEDED


def test_a_gang_is_released_together_to_its_nodes():
    machine = gang_machine(WaitState.GATED, GateOptions())
    machine.activate(*GANG_STEPS)
    machine.end("y")
    facts = machine.come(make_pod("y-2", cpu="2"), "owner-y", state=WaitState.GATED)
    releases = [each for _ in range(4) for each in machine.place_next() or () if isinstance(each, WriteRelease)]
    assert [(each.pod.uid, each.nodes) for each in releases] == [("y-2", ("b",))]
    machine.handle(events.ReleaseWritten("y-2"))
    machine.run(facts, "b")

    releases = [each for _ in range(4) for each in machine.place_next() or () if isinstance(each, WriteRelease)]
    assert sorted((each.pod.uid, each.nodes) for each in releases) == [("g-0", ("c",)), ("g-1", ("a",))]
    for each in releases:
        machine.handle(events.ReleaseWritten(each.pod.uid))
        machine.run(machine.facts.pods[each.pod.uid], *each.nodes)
    assert machine.phase is PlanPhase.SUCCEEDED


def test_pods_that_are_disrupted_together_are_evicted_together_or_not_at_all():
    machine = PlanMachine(make_hosts())
    machine.come(make_pod("new", cpu="4"))
    for uid in ("y", "z"):
        machine.running[uid] = replace(machine.running[uid], group="default/ring")
    machine.activate(*STEPS)

    assert machine.message == ("default/y may be evicted only with all of its group, and these stay: default/z")


# Plans that are not true


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        pytest.param((evict("y", "b"),), "step 1: default/y is on node a, not on b", id="wrong node"),
        pytest.param((move("y", "b"), evict("y", "a")), "step 1: default/y is not evicted before", id="wrong order"),
        pytest.param((admit("nobody", "a"),), "step 1: default/nobody cannot be read: ", id="no pod"),
        pytest.param((admit("x", "b"),), "step 1: default/x was bound to node a, not to b", id="bound elsewhere"),
        pytest.param((admit("new", "a"),), "the remaining steps are not possible any more: step 1, ", id="no room"),
        pytest.param(
            (evict("y", "a"), admit("new", "a")),
            "default/y may not be evicted without a new place: it is not of lower priority, or not allowed",
            id="no new place",
        ),
    ],
)
def test_a_plan_that_is_not_true_is_refused_in_words(machine, steps, message):
    machine.activate(*steps)

    assert machine.phase is PlanPhase.FAILED
    assert machine.message.startswith(message)
    assert machine.evictions == []


def test_a_pod_of_lower_priority_is_evicted_without_a_new_place(machine):
    machine.running["y"] = replace(machine.running["y"], preemptible=True)
    machine.activate(evict("y", "a"), admit("new", "a"))
    machine.end("y")

    assert machine.schedule(asked(machine, "new")) == "a"
    assert machine.phase is PlanPhase.SUCCEEDED


@pytest.mark.parametrize("state", [WaitState.UNSCHEDULABLE, WaitState.GATED])
def test_a_pod_that_no_known_scheduler_schedules_ends_the_plan(machine, state):
    machine.state.schedulers.of_gate = frozenset()
    machine.see(replace(asked(machine, "new"), scheduler="other", state=state))
    machine.activate(*STEPS)
    machine.pass_time(31)

    assert machine.message == "no known scheduler schedules default/new: other"
    assert machine.evictions == []


def test_a_defect_ends_the_plan_and_nothing_else(machine, monkeypatch):
    machine.activate(*STEPS)
    machine.end("y")
    stranger = machine.come(make_pod("s", cpu="4"))
    assert machine.ask(stranger).offered == ()

    def fail(*_):
        raise ValueError("a defect")

    monkeypatch.setattr(PlanRoom, "is_taken_by", fail)
    assert machine.ask(stranger).offered == ("a",)
    assert (machine.phase, machine.message) == (PlanPhase.FAILED, FAILED)


def test_a_restored_state_holds_the_same_room(machine):
    machine.activate(*STEPS)
    machine.end("y")
    stranger = machine.come(make_pod("s", cpu="4"))
    new = SchedulingState(Cluster(), machine.facts)
    for event in take_snapshot(machine.state, SchedulingState(Cluster(), machine.facts)):
        new.handle(event, now=machine.now)
    machine.state, machine.cluster = new, new.cluster

    assert machine.ask(stranger).offered == ()
    assert machine.schedule(machine.come(make_pod("y-2", cpu="2"), "owner-y")) == "b"
    assert machine.schedule(asked(machine, "new")) == "a"
    assert machine.phase is PlanPhase.SUCCEEDED


# The order of steps

steps_of_plans = st.lists(
    st.builds(
        ActiveStep,
        uid=st.sampled_from("uvwxyz"),
        pod=st.just("default/x"),
        node=st.sampled_from("abc"),
        evicts=st.booleans(),
        replacement=st.booleans(),
    ).map(lambda step: replace(step, replacement=step.replacement and not step.evicts)),
    max_size=8,
)


@given(steps_of_plans)
@settings(max_examples=examples(100))
def test_pods_of_a_plan_are_admitted_together_and_nodes_in_the_same_order(steps):
    order = execution_order(steps)

    assert sorted(order) == list(range(len(steps)))
    places = [place for place, index in enumerate(order) if not (steps[index].evicts or steps[index].replacement)]
    assert not places or places == list(range(places[0], places[-1] + 1))
    before = {index: place for place, index in enumerate(order)}
    evictions = [index for index, step in enumerate(steps) if step.evicts]
    assert all(before[index] < before[other] for index in evictions for other in range(index + 1, len(steps)))
    for index, step in enumerate(steps):
        same_node = [other for other in range(index + 1, len(steps)) if steps[other].node == step.node]
        if not (step.evicts or step.replacement):
            assert all(before[index] < before[other] for other in same_node if not steps[other].evicts)


# Isolation

#: The guards themselves, and what they need to go on.
GUARDS = frozenset(
    (
        *("__init__", "_isolated", "advance", "fail_unexpectedly", "hosts_changed", "check", "retry", "describe"),
        *("keeps_out", "keeps_off", "refusals", "place_of", "pod_seen"),
    )
)
METHODS = [
    (part, name)
    for part in (ActivePlan, PlanRoom)
    for name, method in vars(part).items()
    if inspect.isfunction(method) and name not in GUARDS
]


@pytest.mark.parametrize(("part", "name"), METHODS, ids=[name for _, name in METHODS])
def test_whatever_a_plan_raises_others_get_their_places(machine, monkeypatch, part, name):
    def fail(*_, **__):
        raise ValueError("a defect")

    monkeypatch.setattr(part, name, fail)
    machine.activate(*STEPS)
    machine.pass_time(10)
    if "y" in machine.running:
        machine.end("y")
    assert machine.schedule(machine.come(make_pod("s", cpu="1"))) in {"a", "b"}
    machine.handle(events.PlanPaused(PLAN, paused=True))
    machine.handle(events.PlanCancelled(PLAN))
    machine.handle(events.LeadershipEnded())
    monkeypatch.undo()

    machine.handle(events.LeadershipBegan())
    assert machine.schedule(machine.come(make_pod("later", cpu="1"))) in {"a", "b"}


# Steering


def test_a_stranger_is_not_steered_to_the_room_of_the_plan():
    """``new`` needs all of NUMA node 1; one CPU of node 0 is reserved."""
    machine = PlanMachine({"a": marked_host(WIDE, 2)})
    machine.come(make_pod("new", cpu="4"))
    machine.activate(admit("new", "a"), paused=True)
    stranger = with_markers(make_pod("s", cpu="1"))
    assert stranger
    assert machine.state.assumptions.assume(stranger, "a").admits

    assert machine.state.kept_nodes.keeps_off("a", stranger, 0b10)
    assert not machine.state.kept_nodes.keeps_off("a", stranger, 0b01)
    assert not machine.state.kept_nodes.keeps_off("a", replace(stranger, priority=1), 0b10)
