"""Plans of moves: the fewest evictions, each with a new place, on clusters small enough to try everything."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, count, permutations, product
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.placement.moves import Defragmentation, MovePlan, MoveRules, PendingPod, RunningPod
from alignup.placement.victims import DisruptionBudget
from tests.align.hosts import after, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import cluster_of, host_with, important


def running(hosts: dict[str, Host], **facts: RunningPod) -> dict[str, RunningPod]:
    """All pods of *hosts*; *facts* replace those of pods by uid."""
    pods = {
        uid: RunningPod(pod=admitted.pod, host=name)
        for name, host in hosts.items()
        for uid, admitted in host.ledger.pods.items()
    }
    return pods | facts


def plan_for(hosts: dict[str, Host], *pods: Pod, **rules: Any) -> MovePlan:
    rules.setdefault("pods", running(hosts))
    return cluster_of(**hosts).plan([PendingPod(pod) for pod in pods], MoveRules(**rules))


def told(plan: MovePlan) -> list[str]:
    return [f"{'evict' if step.evicts else 'place'} {step.pod.uid} {step.host}" for step in plan.steps]


@pytest.mark.parametrize("tries", range(40))
def test_a_gang_whose_time_runs_out_at_any_moment_has_a_plan_or_none(tries):
    hosts = {
        "a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")),
        "b": host_with(make_pod("z", cpu="3"), make_pod("w", cpu="2")),
        "c": host_with(make_pod("v", cpu="3")),
    }

    plan = plan_for(hosts, make_pod("new", cpu="4"), make_pod("other", cpu="4"), should_stop=after(tries))

    assert plan.feasible or "not everything was tried within the budget" in plan.problem


def test_a_pod_that_fits_needs_no_move():
    plan = plan_for({"a": make_host()}, make_pod("new"))

    assert told(plan) == ["place new a"]
    assert (plan.evictions, plan.proved) == ((), True)


def test_one_pod_moves_to_another_host():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")), "b": host_with(make_pod("z", cpu="4"))}

    plan = plan_for(hosts, make_pod("new", cpu="4"))

    assert told(plan) == ["evict y a", "place y b", "place new a"]
    assert plan.proved
    assert all(step.verdict.admits for step in plan.steps if step.verdict)
    place = plan.new_place("y")
    assert place
    assert place.host == "b"


def test_a_pod_may_move_to_another_numa_node_of_its_host():
    """It comes back after the new pod, which has the whole NUMA node then."""
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2"))}
    hosts["a"].release("x")

    plan = plan_for(hosts, make_pod("new", cpu="4"))

    assert told(plan) == ["evict y a", "place new a", "place y a"]
    assert plan.proved


@pytest.mark.parametrize("first", [False, True])
def test_moves_that_make_room_for_a_moved_pod_count(first):
    """Only ``b`` admits ``x``, after ``y`` has gone to ``c``."""
    hosts = {
        "a": host_with(make_pod("x-0", cpu="3"), make_pod("x", cpu="4")),
        "b": host_with(make_pod("y-0", cpu="3"), make_pod("y", cpu="1")),
        "c": host_with(make_pod("z-0", cpu="3"), make_pod("z", cpu="4")),
    }
    hosts["c"].release("z-0")
    fixed = {"x-0", "y-0", "z"}
    pods = {uid: replace(pod, protected="fixed" if uid in fixed else "") for uid, pod in running(hosts).items()}

    rules = MoveRules(pods=pods, first=first)
    plan = cluster_of(**hosts).plan([PendingPod(make_pod("new", cpu="4"), ("a",))], rules)

    assert told(plan) == ["evict y b", "place y c", "evict x a", "place x b", "place new a"]
    assert plan.proved is not first


def test_without_a_new_place_only_preemptible_pods_are_evicted():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))}
    pods = running(hosts)

    refused = plan_for(hosts, make_pod("new", cpu="4"))
    assert "fit nowhere else" in refused.problem

    pods["y"] = replace(pods["y"], preemptible=True)
    plan = plan_for(hosts, make_pod("new", cpu="4"), pods=pods)
    assert told(plan) == ["evict y a", "place new a"]
    assert plan.new_place("y") is None


def test_protected_pods_stay_and_are_named():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4")), "b": make_host()}
    pods = running(hosts)
    pods["y"] = replace(pods["y"], protected="of DaemonSets")

    plan = cluster_of(**hosts).plan([PendingPod(make_pod("new", cpu="4"), ("a",))], MoveRules(pods=pods))

    assert plan.problem == (
        "default/new finds no room: evicting all pods that may be evicted is not enough on a; "
        "pods that are never evicted: 1 of DaemonSets"
    )


def test_a_pod_is_not_moved_to_a_host_without_its_devices():
    """A kubelet without the device plugin would admit it, and ignore the request."""
    plain = make_host()
    bare = Host(replace(plain.machine, devices=()), plain.settings)
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2", gpu="1")), "b": bare}
    pods = running(hosts)
    pods["x"] = replace(pods["x"], protected="fixed")
    waiting = [PendingPod(make_pod("new", cpu="4"), ("a",))]

    assert "fit nowhere else" in cluster_of(**hosts).plan(waiting, MoveRules(pods=pods)).problem
    assert "none has the devices" in plan_for({"b": bare}, make_pod("new", gpu="1")).problem


def test_budgets_count_all_evicted_pods_together():
    ones = [make_pod(f"one-{number}", cpu="1") for number in range(7)]
    hosts = {"a": host_with(*ones), "b": make_host()}
    uids = frozenset(pod.uid for pod in ones)
    waiting = [PendingPod(make_pod("new", cpu="2"), ("a",))]

    def planned(allowed: int) -> MovePlan:
        budget = DisruptionBudget("ones", allowed, uids)
        return cluster_of(**hosts).plan(waiting, MoveRules(pods=running(hosts), budgets=[budget]))

    assert len(planned(2).evictions) == 2
    assert not planned(1).feasible


def test_a_group_moves_whole_or_not_at_all():
    hosts = {
        "a": host_with(make_pod("x", cpu="3"), make_pod("g-0", cpu="4")),
        "b": host_with(make_pod("y", cpu="3"), make_pod("g-1", cpu="1")),
        "c": make_host(),
    }
    pods = running(hosts)
    for uid in ("g-0", "g-1"):
        pods[uid] = replace(pods[uid], group="gang")
    waiting = [PendingPod(make_pod("new", cpu="4"), ("a",))]

    plan = cluster_of(**hosts).plan(waiting, MoveRules(pods=pods))
    assert [step.pod.uid for step in plan.evictions] in (["g-0", "g-1"], ["x"])

    pods["g-1"] = replace(pods["g-1"], protected="fixed")
    pods["x"] = replace(pods["x"], protected="fixed")
    assert not cluster_of(**hosts).plan(waiting, MoveRules(pods=pods)).feasible


def test_a_group_is_evicted_before_its_pods_have_new_places():
    """``g-0`` can only go where ``g-1`` was."""
    hosts = {
        "a": host_with(make_pod("x", cpu="3"), make_pod("g-0", cpu="4")),
        "b": host_with(make_pod("y", cpu="3"), make_pod("g-1", cpu="4")),
        "c": make_host(),
    }
    pods = running(hosts)
    pods["x"] = replace(pods["x"], protected="fixed")
    pods["g-0"] = replace(pods["g-0"], group="gang", hosts=("b",))
    pods["g-1"] = replace(pods["g-1"], group="gang", hosts=("c",))

    plan = cluster_of(**hosts).plan([PendingPod(make_pod("new", cpu="4"), ("a",))], MoveRules(pods=pods))

    assert told(plan) == ["evict g-0 a", "evict g-1 b", "place g-0 b", "place g-1 c", "place new a"]


def test_the_cheapest_of_equally_small_sets_is_chosen():
    """Priority first, then memory, then age."""
    hosts = {
        "a": host_with(make_pod("x", cpu="3", memory="2Gi"), important(make_pod("y", cpu="4", memory="1Gi"))),
        "b": make_host(shape="pack:4 numa:1 core:4 pu:1"),
    }
    waiting = [PendingPod(make_pod("new", cpu="3"), ("a",))]

    def evicted(**facts: RunningPod) -> str:
        (step,) = cluster_of(**hosts).plan(waiting, MoveRules(pods=running(hosts, **facts))).evictions
        return step.pod.uid

    pods = running(hosts)
    equal = replace(pods["y"], pod=replace(pods["y"].pod, priority=None))
    assert evicted() == "x"
    assert evicted(y=equal) == "y"
    lighter = replace(pods["x"], pod=make_pod("x", cpu="3", memory="1Gi"), age=10)
    assert evicted(y=replace(equal, age=20), x=lighter) == "x"


def test_a_gang_gets_room_for_all_its_pods():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")), "b": host_with(make_pod("z", cpu="4"))}
    gang = [make_pod("new-0", cpu="4"), make_pod("new-1", cpu="1")]

    plan = plan_for(hosts, *gang)

    assert {step.pod.uid for step in plan.admissions} == {"new-0", "new-1"}
    assert [step.pod.uid for step in plan.evictions] == ["y"]
    assert plan.proved


def test_a_gang_without_room_for_all_has_no_plan():
    hosts = {"a": host_with(make_pod("x", cpu="3"))}

    plan = plan_for(hosts, make_pod("new-0", cpu="4"), make_pod("new-1", cpu="4"))

    assert plan.problem.startswith("default/new-1 finds no room beside the rest of its gang: ")


def test_a_search_out_of_time_says_so():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))}
    calls = count()

    plan = plan_for(hosts, make_pod("new", cpu="4"), should_stop=lambda: next(calls) > 1)

    assert "not everything was tried within the budget" in plan.problem


# Brute force

SIZES = st.sampled_from(["1", "1", "2", "3", "4"])


@st.composite
def small_clusters(draw: st.DrawFn) -> dict[str, Host]:
    """Two or three hosts of two NUMA nodes, nearly full; some pods have ended again."""
    hosts: dict[str, Host] = {}
    numbers = count()
    for name in "abc"[: draw(st.integers(2, 3))]:
        host = hosts[name] = make_host(memory=False)
        for cpu in draw(st.lists(SIZES, min_size=2, max_size=6)):
            host.admit(make_pod(f"p{next(numbers)}", cpu=cpu))
        for uid in draw(st.lists(st.sampled_from(sorted(host.ledger.pods)), max_size=2, unique=True)):
            host.release(uid)
    return hosts


def can_place(hosts: dict[str, Host], pod: Pod, rest: Sequence[Pod]) -> Iterator[dict[str, Host]]:
    """Try *pod* on every host, then the *rest* after it on every host."""
    for name in hosts:
        copied = {other: Host(host.machine, host.settings, ledger=host.ledger) for other, host in hosts.items()}
        if copied[name].admit(pod).admitted:
            if not rest:
                yield copied
            else:
                yield from can_place(copied, rest[0], rest[1:])


def brute_force(
    hosts: dict[str, Host], pods: Sequence[Pod], most: int, group: frozenset[str] = frozenset()
) -> int | None:
    """The fewest pods after whose end *pods* and then all of them again are admitted somewhere, in any order.

    Those of *group* end together or not at all.
    """
    everywhere = [(name, uid) for name, host in hosts.items() for uid in host.ledger.pods]
    for size in range(most + 1):
        for chosen in combinations(everywhere, size):
            if 0 < len(group.intersection(uid for _, uid in chosen)) < len(group):
                continue
            copied = {name: Host(host.machine, host.settings, ledger=host.ledger) for name, host in hosts.items()}
            leaving = [hosts[name].ledger.pods[uid].pod for name, uid in chosen]
            for name, uid in chosen:
                copied[name].release(uid)
            for ordered, returning in product(permutations(pods), permutations(leaving)):
                first, *rest = (*ordered, *returning)
                if next(can_place(copied, first, rest), None):
                    return size
    return None


@settings(max_examples=examples(50))
@given(small_clusters(), st.sampled_from(["2", "3", "4"]))
def test_nothing_smaller_exists(hosts, cpu):
    pod = make_pod("new", cpu=cpu)

    plan = plan_for(hosts, pod, max_moves=3)
    fewest = brute_force(hosts, [pod], 2)

    event(f"{fewest} moves")
    if fewest is not None:
        assert plan.feasible, told(plan)
    if plan.proved and len(plan.evictions) <= 3:
        assert fewest == (len(plan.evictions) if len(plan.evictions) <= 2 else None)


@settings(max_examples=examples(50))
@given(small_clusters(), st.sampled_from(["2", "3", "4"]), st.data())
def test_nothing_smaller_exists_beside_a_group_that_moves_whole(hosts, cpu, data):
    pod, pods = make_pod("new", cpu=cpu), running(hosts)
    assume(len(pods) > 1)
    group = frozenset(data.draw(st.lists(st.sampled_from(sorted(pods)), min_size=2, max_size=2, unique=True)))
    pods |= {uid: replace(pods[uid], group="group") for uid in group}

    plan = plan_for(hosts, pod, pods=pods, max_moves=3)
    fewest = brute_force(hosts, [pod], 2, group)

    event(f"{fewest} moves")
    assert {step.pod.uid for step in plan.evictions} & group in (frozenset(), group)
    if fewest is not None:
        assert plan.feasible, plan.problem
    if plan.proved and len(plan.evictions) <= 3:
        assert fewest == (len(plan.evictions) if len(plan.evictions) <= 2 else None)


@settings(max_examples=examples(30))
@given(small_clusters(), st.lists(st.sampled_from(["2", "3", "4"]), min_size=2, max_size=2))
def test_nothing_smaller_exists_for_a_gang(hosts, sizes):
    gang = [make_pod(f"new-{number}", cpu=cpu) for number, cpu in enumerate(sizes)]

    plan = plan_for(hosts, *gang, max_moves=3)
    fewest = brute_force(hosts, gang, 1)

    event(f"{fewest} moves, {'proved' if plan.proved else 'not proved'}")
    if fewest is not None:
        assert plan.feasible, plan.problem
        assert plan.at_least <= fewest <= len(plan.evictions)
        assert fewest == len(plan.evictions) or not plan.proved
    elif plan.feasible:
        assert len(plan.evictions) > 1


@settings(max_examples=examples(50))
@given(small_clusters(), st.sampled_from(["2", "3", "4"]))
def test_a_plan_is_what_the_hosts_decide_step_by_step(hosts, cpu):
    plan = plan_for(hosts, make_pod("new", cpu=cpu), max_moves=3)
    assume(plan.feasible)

    for step in plan.steps:
        if step.evicts:
            assert step.pod.uid in hosts[step.host].ledger.pods
            hosts[step.host].release(step.pod.uid)
        else:
            decision = hosts[step.host].admit(step.pod)
            assert decision.admitted
            given_nodes = [placement.hint.nodes for placement in decision.placements]
            assert step.verdict
            assert given_nodes == [placement.hint.nodes for placement in step.verdict.placements]


@settings(max_examples=examples(50))
@given(small_clusters())
def test_the_same_input_has_the_same_plan(hosts):
    first, second = (plan_for(hosts, make_pod("new", cpu="4"), max_moves=3) for _ in range(2))

    assert told(first) == told(second)


# More pods of one shape


def capacity(hosts: dict[str, Host], pod: Pod) -> int:
    """How many pods like *pod* the hosts admit one after the other."""
    count = 0
    for host in hosts.values():
        trial = Host(host.machine, host.settings, ledger=host.ledger)
        while trial.admit(replace(pod, uid=f"fill-{count}")).admitted:
            count += 1
    return count


def defragmented(hosts: dict[str, Host], pod: Pod, **rules: Any) -> Defragmentation:
    cluster = cluster_of(**hosts)
    return cluster.planner(MoveRules(pods=running(hosts), **rules)).defragment(PendingPod(pod))


def test_one_move_lets_one_more_pod_fit():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")), "b": host_with(make_pod("z", cpu="4"))}

    result = defragmented(hosts, make_pod("shape", cpu="4"))

    assert (result.fitting, result.gains, result.complete) == (0, ((1, 1),), True)
    assert [(step.evicts, step.pod.uid, step.host) for step in result.steps] == [(True, "y", "a"), (False, "y", "b")]
    assert [result.gained(moves) for moves in (0, 1, 20)] == [0, 1, 1]


def test_a_move_that_only_moves_the_gap_is_not_made():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4")), "b": make_host()}

    result = defragmented(hosts, make_pod("shape", cpu="4"))

    assert (result.fitting, result.gains) == (1, ())


def test_no_more_moves_are_made_than_allowed():
    hosts = {
        "a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="3")),
        "b": host_with(make_pod("v", cpu="3"), make_pod("w", cpu="3")),
        "c": host_with(make_pod("z", cpu="4")),
        "d": host_with(make_pod("u", cpu="4")),
    }

    assert defragmented(hosts, make_pod("shape", cpu="4"), max_moves=1).gains == ((1, 1),)
    assert defragmented(hosts, make_pod("shape", cpu="4")).gains == ((1, 1), (2, 2))


def test_a_defragmentation_out_of_time_keeps_its_moves():
    hosts = {"a": host_with(make_pod("x", cpu="3"), make_pod("y", cpu="2")), "b": host_with(make_pod("z", cpu="4"))}

    assert not defragmented(hosts, make_pod("shape", cpu="4"), should_stop=lambda: True).complete


@settings(max_examples=examples(50))
@given(small_clusters(), st.sampled_from(["2", "3", "4"]))
def test_as_many_more_pods_fit_as_the_moves_gain(hosts, cpu):
    """The steps are done on the hosts, one after the other, and then the hosts are filled."""
    shape = make_pod("shape", cpu=cpu)
    before = capacity(hosts, shape)

    result = defragmented(hosts, shape)

    event(f"{result.gained(20)} gained")
    assert result.fitting == before
    for step in result.steps:
        if step.evicts:
            hosts[step.host].release(step.pod.uid)
        else:
            assert hosts[step.host].admit(step.pod).admitted
    assert capacity(hosts, shape) - before == result.gained(20)
    assert sum(step.evicts for step in result.steps) == (result.gains[-1][0] if result.gains else 0)
