"""The smallest sets of pods whose end admits a pod, on hosts with 3 and 4 CPUs for pods."""

import pytest

from alignup.placement import victims as victims_module
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.victims import DisruptionBudget, VictimSet
from tests.align.hosts import make_host, make_pod
from tests.placement.clusters import cluster_of, host_with, important, shared_pod


def full() -> Cluster:
    """Node 0 has one pod of 3 CPUs, node 1 four pods of one CPU."""
    ones = [important(make_pod(f"one-{number}", cpu="1"), number) for number in range(4)]
    return cluster_of(a=host_with(important(make_pod("three", cpu="3"), 50), *ones))


def test_the_smallest_set_comes_first():
    search = full().victims(important(make_pod("new", cpu="3")), "a")

    assert search.sets == (VictimSet(("three",), 50, 0),)
    assert search.complete


def test_equally_small_sets_are_sorted_by_priority():
    search = full().victims(important(make_pod("new", cpu="1")), "a")

    assert [victims.pods for victims in search.sets] == [("one-0",), ("one-1",), ("one-2",), ("one-3",), ("three",)]
    assert [victims.highest_priority for victims in search.sets] == [0, 1, 2, 3, 50]


def test_only_pods_of_lower_priority_are_victims():
    search = full().victims(important(make_pod("new", cpu="3"), 40), "a")

    assert search.sets[0].pods == ("one-0", "one-1", "one-2")
    assert len(search.sets) == 4

    nothing = full().victims(important(make_pod("new", cpu="3"), 2), "a")
    assert (nothing.sets, nothing.complete) == ((), True)


def test_a_budget_without_disruptions_protects_its_pods():
    budget = DisruptionBudget("ones", 0, frozenset({"one-0", "one-1"}))

    search = full().victims(important(make_pod("new", cpu="1")), "a", budgets=[budget])

    assert [victims.pods for victims in search.sets] == [("one-2",), ("one-3",), ("three",)]


def test_a_budget_limits_the_pods_of_one_set():
    budget = DisruptionBudget("ones", 2, frozenset(f"one-{number}" for number in range(4)))
    wanted = important(make_pod("new", cpu="3"), 40)

    assert full().victims(wanted, "a", budgets=[budget]).sets == ()

    violating = full().victims(wanted, "a", budgets=[budget], allow_violations=True)
    assert {victims.violations for victims in violating.sets} == {1}


def test_sets_with_fewer_violations_come_first():
    budget = DisruptionBudget("low", 0, frozenset({"one-0", "one-1", "one-2"}))

    search = full().victims(important(make_pod("new", cpu="1")), "a", budgets=[budget], allow_violations=True)

    assert [victims.pods for victims in search.sets] == [("one-3",), ("three",), ("one-0",), ("one-1",), ("one-2",)]


def test_a_host_that_admits_the_pod_needs_no_victims():
    search = cluster_of(a=make_host()).victims(important(make_pod("new")), "a")

    assert [victims.pods for victims in search.sets] == [()]


def test_a_pod_that_never_fits_has_no_victims():
    search = full().victims(important(make_pod("new", cpu="5")), "a")

    assert (search.sets, search.complete) == ((), True)


def test_an_unknown_host_has_no_victims():
    assert not full().victims(make_pod("new"), "b").complete


def test_a_host_with_too_many_terminating_pods_has_no_victims():
    cluster = full()
    for number in range(4):
        cluster.observe(make_pod(f"one-{number}", cpu="1"), "a", PodStage.TERMINATING)

    assert cluster.victims(important(make_pod("new", cpu="3")), "a").sets == ()


def test_terminating_pods_are_no_victims_and_are_not_relied_on():
    cluster = full()
    cluster.observe(make_pod("one-0", cpu="1"), "a", PodStage.TERMINATING)

    search = cluster.victims(important(make_pod("new", cpu="1")), "a")

    assert ("one-0",) not in [victims.pods for victims in search.sets]
    assert search.sets[0].pods == ("one-1",)


def test_larger_sets_are_found_by_sparing_pods():
    host = make_host(shape="pack:1 numa:1 core:8 pu:1")
    for number in range(6):
        host.admit(important(make_pod(f"p{number}", cpu="1", memory="64Mi"), number))
    cluster = cluster_of(a=host)

    search = cluster.victims(important(make_pod("new", cpu="6", memory="64Mi")), "a")

    (only,) = search.sets
    assert set(only.pods) == {"p0", "p1", "p2", "p3", "p4"}
    assert not search.complete


def test_a_long_search_ends(monkeypatch):
    monkeypatch.setattr(victims_module, "MAX_TRIES", 3)

    search = full().victims(important(make_pod("new", cpu="3"), 40), "a")

    assert len(search.sets[0].pods) == 3
    assert not search.complete


def test_a_critical_pod_ends_pods_on_shared_cpus():
    cluster = cluster_of(a=host_with(shared_pod("x", "3"), shared_pod("y", "3")))

    search = cluster.victims(important(make_pod("new", cpu="4"), 2_000_000_000), "a")

    assert {victims.pods for victims in search.sets} == {("x",), ("y",)}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_set_is_proved_and_minimal(size):
    cluster = full()
    wanted = important(make_pod("new", cpu=str(size)), 40)

    for victims in cluster.victims(wanted, "a").sets:
        again = full()
        for uid in victims.pods[1:]:
            again.observe(make_pod(uid, cpu="1"), "a", PodStage.ENDED)
        assert not again.feasible(wanted)["a"].admits
        again.observe(make_pod(victims.pods[0], cpu="1"), "a", PodStage.ENDED)
        assert again.feasible(wanted)["a"].admits
