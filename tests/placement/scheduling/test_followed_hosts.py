"""Hosts and pods that the scheduling state follows: what became of its predictions, and of the pods it counts on."""

import pytest

from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.placement.cluster import MAX_REPORTS, Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.scheduling import events
from alignup.placement.scheduling.assumptions import Assumptions
from alignup.placement.scheduling.facts import WaitState
from alignup.placement.scheduling.instructions import (
    AnswerBinding,
    AnswerNodes,
    ChangeHosts,
    CountPrediction,
    PredictionOutcome,
    RefuseReport,
    Report,
    WriteBinding,
)
from tests.align.hosts import host, pod
from tests.placement.clusters import report
from tests.placement.scheduling.machine import Machine
from tests.strategies_pods import container

SMALL = pod("small", cpu="2")


@pytest.fixture
def machine():
    return Machine({name: host(Policy.SINGLE_NUMA_NODE) for name in ("host-a", "host-b")})


def changed(done):
    return [name for each in done if isinstance(each, ChangeHosts) for name in each.hosts]


def written(done):
    return [each.pod.uid for each in done if isinstance(each, WriteBinding)]


def predictions(done):
    return [each for each in done if isinstance(each, CountPrediction)]


def report_with(machine, *pods, name="host-a"):
    for each in pods:
        assert machine.hosts[name].admit(each).admitted
    machine.sequences[name] += 1
    return machine.handle(events.HostReported(report(name, machine.hosts[name], machine.sequences[name])))


@pytest.mark.parametrize(
    ("part", "method", "lost"),
    [(Cluster, "observe", False), (Cluster, "observe", True), (Assumptions, "stop", False)],
    ids=["listed", "lost", "assumed"],
)
def test_a_pod_of_several_that_raises_is_observed_later_and_the_others_at_once(
    machine, monkeypatch, part, method, lost
):
    original = getattr(part, method)

    def fail(self, subject, *others, **named):
        if "bad" in (subject, getattr(subject, "uid", "")):
            raise ValueError("a defect")
        return original(self, subject, *others, **named)

    monkeypatch.setattr(part, method, fail)
    pods = [events.BoundPod(pod(name, cpu="1"), "host-a", PodStage.RUNNING) for name in ("bad", "good")]
    done = machine.handle(events.HostLost("host-a", tuple(pods)) if lost else events.PodsListed(tuple(pods)))
    if lost:
        report_with(machine)
    assert [each.details["name"] for each in done if isinstance(each, Report)] == ["PodObserved"]
    assert machine.cluster.record("host-a").binding("good")

    monkeypatch.undo()
    machine.pass_time(5.0)
    assert machine.cluster.record("host-a").binding("bad")


def test_a_report_says_what_became_of_a_prediction(machine):
    machine.state.assumptions.assume(SMALL, "host-a")
    machine.bind(SMALL)

    done = report_with(machine, SMALL)

    assert predictions(done) == [CountPrediction("small", "host-a", PredictionOutcome.AS_PREDICTED)]
    assert changed(done) == ["host-a"]


def test_a_pod_that_is_placed_elsewhere_has_a_cause(machine):
    machine.state.assumptions.assume(SMALL, "host-a")
    machine.bind(SMALL)

    (prediction,) = predictions(report_with(machine, pod("foreign", cpu="2"), SMALL))

    assert (prediction.outcome, prediction.cause) == (PredictionOutcome.PLACED_ELSEWHERE, "foreign_pod")
    assert prediction.difference


def test_a_rejection_by_the_kubelet_ends_the_assumption_and_has_a_cause_after_some_reports(machine):
    machine.state.assumptions.assume(SMALL, "host-a")

    assert changed(machine.handle(events.PodRejected("small", "host-a", "OutOfcpu"))) == ["host-a"]
    assert "small" not in machine.state.assumptions

    counted = [prediction for _ in range(MAX_REPORTS) for prediction in predictions(report_with(machine))]
    assert counted == [CountPrediction("small", "host-a", PredictionOutcome.REJECTED, "host_resources")]


def test_a_binding_to_one_of_several_nodes_changes_all_of_them(machine):
    machine.state.assumptions.assume_any(SMALL, ("host-a", "host-b"))

    done = machine.handle(events.PodObserved(SMALL, "host-b", PodStage.RUNNING))

    assert changed(done) == ["host-a", "host-b"]
    assert not machine.cluster.record("host-a").holds("small")
    assert machine.cluster.record("host-b").holds("small")


def test_a_host_that_is_lost_and_back_counts_on_the_same_pods(machine):
    other = pod("other", cpu="1")
    machine.state.assumptions.assume(SMALL, "host-a")
    bound = events.BoundPod(other, "host-a", PodStage.RUNNING)

    assert changed(machine.handle(events.HostLost("host-a", (bound,)))) == ["host-a"]
    assert machine.cluster.record("host-a") is None
    assert machine.handle(events.HostLost("host-a")) == []

    machine.report("host-a")
    assert {binding.uid for binding in machine.cluster.record("host-a").bindings} == {"small", "other"}


UNALIGNED = Pod(name="unaligned", uid="unaligned", containers=(container("app", {"cpu": "6"}),))


def test_a_pod_bound_to_a_host_whose_state_is_not_known_counts_when_it_is(machine):
    machine.handle(events.HostLost("host-a"))
    facts = machine.wait(UNALIGNED, state=WaitState.OTHER)
    assert written(machine.handle(events.BindingAsked(1, facts, "host-a"))) == ["unaligned"]

    machine.report("host-a")

    assert machine.cluster.record("host-a").holds("unaligned")
    assert not machine.state.assumptions.verdict(SMALL, "host-a").admits


def test_an_unaligned_pod_that_is_bound_before_others_end_counts_when_they_have(machine):
    report_with(machine, SMALL)
    facts = machine.wait(UNALIGNED, state=WaitState.OTHER)
    assert written(machine.handle(events.BindingAsked(1, facts, "host-a"))) == ["unaligned"]

    machine.handle(events.PodObserved(SMALL, "host-a", PodStage.ENDED))

    assert not machine.state.assumptions.verdict(pod("other", cpu="2"), "host-a").admits
    machine.handle(events.BindingFailed(1, "no"))
    assert machine.state.assumptions.verdict(pod("other", cpu="2"), "host-a").admits


def test_an_unaligned_pod_is_not_bound_where_pods_on_their_way_have_taken_its_room(machine):
    facts = machine.wait(UNALIGNED, state=WaitState.OTHER)
    assert machine.handle(events.NodesAsked(facts, ("host-a",)))[-1] == AnswerNodes(("host-a",), aligned=False)
    machine.state.assumptions.assume(SMALL, "host-a")

    done = machine.handle(events.BindingAsked(1, facts, "host-a"))

    assert done == [AnswerBinding(1, "node host-a has too little left by the Node object")]
    assert "unaligned" not in machine.state.assumptions


def test_a_list_of_pods_ends_assumptions_and_pods_that_it_lacks(machine):
    gone = pod("gone", cpu="1")
    machine.handle(events.PodObserved(gone, "host-b", PodStage.RUNNING))
    machine.state.assumptions.assume(SMALL, "host-a")

    done = machine.handle(events.PodsListed((events.BoundPod(SMALL, "host-a", PodStage.RUNNING),)))

    assert changed(done) == ["host-a", "host-b"]
    assert "small" not in machine.state.assumptions
    assert machine.cluster.record("host-a").binding("small").observed
    assert not machine.cluster.record("host-b").bindings


def test_a_report_that_cannot_be_used_is_refused_and_others_are_followed(machine, monkeypatch):
    confirm, error = machine.cluster.confirm, ZeroDivisionError("a defect")

    def fail(received):
        if received.host == "host-a":
            raise error
        return confirm(received)

    monkeypatch.setattr(machine.cluster, "confirm", fail)

    assert report_with(machine) == [RefuseReport("host-a", error)]
    assert changed(report_with(machine, name="host-b")) == ["host-b"]


def test_a_deleted_pod_that_was_never_bound_is_not_counted_on(machine):
    machine.state.assumptions.assume(SMALL, "host-a")

    assert changed(machine.handle(events.PodGone("small"))) == ["host-a"]
    assert not machine.cluster.record("host-a").bindings


def test_a_preemption_by_the_kubelet_is_the_cause_of_what_follows(machine):
    victim = pod("victim", cpu="1")
    report_with(machine, victim)
    machine.state.assumptions.assume(SMALL, "host-a")

    machine.handle(events.PodPreempted(victim, "host-a"))

    assert [str(cause) for cause in machine.cluster.record("host-a").binding("small").causes] == ["preemption"]
