"""Snapshots: a state that begins with one is in the same state."""

import pytest

from alignup.align.settings import Policy
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.instructions import WriteRelease
from alignup.placement.scheduling.options import GateOptions
from alignup.placement.scheduling.scheduling_state import SchedulingState
from alignup.placement.scheduling.snapshot import take_snapshot
from tests.align.hosts import host, pod
from tests.placement.scheduling.machine import Machine


@pytest.fixture
def machine():
    hosts = {name: host(Policy.SINGLE_NUMA_NODE) for name in ("host-a", "host-b")}
    return Machine(hosts, gate=GateOptions(patience=5.0))


def snapshot(machine):
    return take_snapshot(machine.state, SchedulingState(Cluster(), machine.facts))


def restored(machine):
    state = SchedulingState(Cluster(), machine.facts)
    for event in snapshot(machine):
        assert not [done for done in state.handle(event, now=machine.now) if "failed" in repr(done)]
    return state


def test_the_snapshot_of_a_new_state_is_empty():
    state = SchedulingState(Cluster(), Machine({}).facts)
    assert take_snapshot(state, SchedulingState(Cluster(), Machine({}).facts)) == [events.StateRestored({}, {})]


def test_everything_that_the_state_has_remembered_is_restored(machine):
    waiting = machine.wait(pod("waiting", cpu="64"))
    released = machine.wait(pod("released", cpu="2"), 1)
    machine.handle(events.PlaceNext())
    assert any(isinstance(each, WriteRelease) for each in machine.handle(events.PlaceNext()))
    machine.handle(events.PodObserved(pod("bound", cpu="1"), "host-b", PodStage.TERMINATING))

    state = restored(machine)

    assert state.gate is not None
    assert state.gate.options.patience == 5.0
    for uid in (waiting.uid, released.uid, "other"):
        assert state.gate.state_of(uid) is machine.gate.state_of(uid)
    assert state.assumptions.nodes == machine.state.assumptions.nodes
    assert state.cluster.record("host-b").states().terminating == {"bound"}
    assert state.order(waiting.pod) == waiting.order


def test_pods_that_are_assumed_on_a_lost_host_are_remembered(machine):
    machine.state.assumptions.assume(pod("assumed", cpu="2"), "host-a")
    machine.handle(events.HostLost("host-a"))

    machine.state = restored(machine)
    machine.cluster = machine.state.cluster
    assert machine.cluster.record("host-a") is None
    machine.report("host-a")

    assert [binding.uid for binding in machine.cluster.record("host-a").bindings] == ["assumed"]


def test_equal_hosts_are_chosen_in_the_order_of_the_hosts_after_a_snapshot(machine):
    small, both = pod("small", cpu="1"), ("host-a", "host-b")
    assert machine.cluster.best(small, 2, among=both) == ["host-a", "host-b"]
    machine.report("host-a")
    assert machine.cluster.best(small, 2, among=both) == ["host-b", "host-a"]

    machine.cluster.forget_order()

    assert machine.cluster.best(small, 2, among=both) == restored(machine).cluster.best(small, 2, among=both)
