"""Pods behind the gate: single turns of the scheduling state, most of them from failures of ``test_model``."""

from dataclasses import replace

import pytest

from alignup.align.settings import Policy
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.placement.scheduling import events
from alignup.placement.scheduling.facts import GroupKey, WaitState
from alignup.placement.scheduling.failed_events import FIRST_RETRY
from alignup.placement.scheduling.gate import GatedPodState
from alignup.placement.scheduling.instructions import ReadPod, Report, WriteEvent, WriteRelease
from alignup.placement.scheduling.options import GateOptions
from tests.align.hosts import host, pod
from tests.placement.scheduling.leftovers import leftovers
from tests.placement.scheduling.machine import ALLOCATABLE, Machine

OPTIONS = GateOptions(unbound=30.0, avoid=60.0)
GROUP = GroupKey("default", "group", "test")


@pytest.fixture
def machine():
    return Machine({name: host(Policy.SINGLE_NUMA_NODE) for name in ("host-a", "host-b")}, gate=OPTIONS)


def release(machine):
    """Try all pods; return those that are to be released, with their nodes."""
    done = []
    while (instructions := machine.place_next()) is not None:
        done += instructions
    return {each.pod.uid: each.nodes for each in done if isinstance(each, WriteRelease)}


def write(machine, facts, nodes):
    """The API server releases a pod."""
    machine.handle(events.ReleaseWritten(facts.uid))
    return machine.see(facts, state=WaitState.OTHER, released_to=nodes)


def wait_for_gang(machine, number, minimum, cpu="2"):
    machine.facts.minimums[GROUP] = minimum
    members = [machine.wait(pod(f"member-{place}", cpu=cpu), place, group=GROUP) for place in range(number)]
    machine.handle(events.GroupChanged(GROUP))
    return members


# What is gone is forgotten


def test_a_node_that_is_gone_is_forgotten(machine):
    machine.wait(pod("a", cpu="3"))
    assert release(machine)
    machine.gone("a")
    assert leftovers(machine.state, ["host-a"])

    for name in ("host-a", "host-b"):
        del machine.facts.nodes[name]
        machine.handle(events.NodeChanged(name, gone=True))
        machine.handle(events.HostLost(name))

    assert leftovers(machine.state, ["host-"]) == []


def test_a_node_that_comes_back_is_used_again(machine):
    del machine.facts.nodes["host-b"]
    del machine.facts.nodes["host-a"]
    machine.handle(events.NodeChanged("host-a", gone=True))
    machine.wait(pod("a", cpu="3"))
    assert release(machine) == {}

    machine.facts.nodes["host-a"] = ALLOCATABLE
    machine.handle(events.NodeChanged("host-a"))

    assert release(machine) == {"a": ("host-a",)}


def test_the_nodes_that_a_controller_avoids_are_forgotten(machine):
    facts = machine.see(machine.wait(pod("a")), controllers=frozenset(("controller",)))
    write(machine, facts, release(machine)["a"])
    machine.pass_time(OPTIONS.unbound)
    machine.gone("a")
    assert leftovers(machine.state, ["controller"])

    machine.pass_time(OPTIONS.avoid)

    assert leftovers(machine.state, ["controller"]) == []


def test_a_task_that_fails_after_its_pod_is_gone_is_reported_only(machine):
    machine.wait(pod("late-pod"))
    release(machine)
    machine.gone("late-pod")

    done = machine.handle(events.StepFailed("late-pod", "release", RuntimeError("late")))

    assert [type(each) for each in done] == [Report]
    assert machine.pass_time(FIRST_RETRY) == []
    assert leftovers(machine.state, ["late-pod"]) == []


def test_a_pod_that_cannot_be_read_is_read_again_later(machine):
    done = machine.handle(events.StepFailed("a", "queue", RuntimeError("a defect")))
    message = "alignup failed on the pod, and tries again: RuntimeError: a defect"
    assert WriteEvent("a", "InternalError", message) in done
    assert machine.pass_time(FIRST_RETRY) == [ReadPod("a")]


def test_failures_of_a_gang_are_forgotten_with_its_pods(machine, monkeypatch):
    members = wait_for_gang(machine, 2, 2)
    monkeypatch.setattr(machine.facts, "gang", None)
    assert "step failed" in [each.event for each in machine.place_next() if isinstance(each, Report)]
    monkeypatch.undo()

    for member in members:
        machine.gone(member.uid)

    assert leftovers(machine.state, ["group", "member"]) == []


# Gangs


def test_a_pod_of_a_gang_waits_when_releases_of_the_others_are_given_up(machine):
    """It was tried alone, since enough others were released."""
    first, second, third = wait_for_gang(machine, 3, 2, cpu="4")
    nodes = release(machine)
    assert len(nodes) == 2
    for member in (first, second):
        write(machine, member, nodes[member.uid])
        machine.handle(events.GroupChanged(GROUP))

    machine.pass_time(OPTIONS.unbound)

    assert third.uid not in machine.gate.queue
    assert release(machine) == {}


def test_pods_of_a_gang_that_another_process_has_released_count(machine):
    """The others are tried alone then, whatever the order in which the pods are seen."""
    machine.facts.minimums[GROUP] = 2
    for place, node in enumerate(("host-a", "", "host-b")):
        facts = machine.wait(pod(f"member-{place}", cpu="3"), place, group=GROUP)
        if node:
            machine.see(facts, state=WaitState.OTHER, released_to=(node,))

    assert release(machine) == {}
    assert [facts.uid for facts in machine.gate.queue] == ["member-1"]


# Releases of other processes


@pytest.mark.parametrize("nodes", [("host-a",), ("host-a", "host-b")])
def test_a_node_that_was_unknown_counts_on_pods_that_were_released_to_it_before(machine, nodes):
    machine.cluster.remove_host("host-a")
    facts = machine.wait(pod("released", cpu="4"))
    machine.see(facts, state=WaitState.OTHER, released_to=nodes)
    assert "host-a" not in machine.state.assumptions.nodes.get("released", ())

    machine.report("host-a")

    assert machine.state.assumptions.nodes["released"] == nodes
    assert not machine.cluster.verdict(pod("next", cpu="4"), "host-a").admits


@pytest.mark.parametrize("deleted", [True, False])
def test_a_released_pod_counts_when_another_one_leaves_its_node(machine, deleted):
    """The process before gave up the first release, and promised its CPUs to the second; this one adopts both."""
    for uid in ("first", "second"):
        machine.see(machine.wait(pod(uid, cpu="4")), state=WaitState.OTHER, released_to=("host-a",))
        machine.pass_time(1.0)
    assert "second" not in machine.state.assumptions

    if deleted:
        machine.gone("first")
    else:
        machine.pass_time(OPTIONS.unbound - 1.5)
        assert machine.gate.state_of("first") is GatedPodState.GIVEN_UP

    assert machine.state.assumptions.nodes == {"second": ("host-a",)}
    assert not machine.cluster.verdict(pod("next", cpu="4"), "host-a").admits


@pytest.mark.parametrize("nodes", [("host-a",), ("host-a", "host-b")])
@pytest.mark.parametrize("group", [None, GROUP])
def test_a_released_pod_counts_while_an_earlier_one_is_not_admitted_yet(machine, nodes, group):
    """A pod of another process is not predicted before, but it will come."""
    machine.see(machine.wait(pod("first", cpu="4")), state=WaitState.OTHER, released_to=("host-a",))

    machine.see(machine.wait(pod("second", cpu="3"), group=group), state=WaitState.OTHER, released_to=nodes)

    assert machine.state.assumptions.nodes["second"] == nodes
    assert not machine.cluster.verdict(pod("shared", cpu="500m"), "host-a").admits


def test_a_released_pod_counts_although_its_node_does_not_meet_its_demand_any_more():
    machine = Machine({"host-a": host(Policy.BEST_EFFORT)}, gate=OPTIONS)
    machine.see(machine.wait(pod("first", cpu="2")), state=WaitState.OTHER, released_to=("host-a",))
    machine.see(machine.wait(pod("other", cpu="2")), state=WaitState.OTHER, released_to=("host-a",))
    aligned = replace(pod("aligned", cpu="3"), annotations={POLICY_ANNOTATION: "single-numa-node"})

    machine.see(machine.wait(aligned), state=WaitState.OTHER, released_to=("host-a",))

    assert machine.state.assumptions.nodes["aligned"] == ("host-a",)
