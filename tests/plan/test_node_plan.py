"""Plans for one node, from its files."""

from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import assume, event, given, settings

from alignup.align.decision import Decision
from alignup.align.errors import SourceLocation
from alignup.align.host import Host
from alignup.align.workload import Pod
from alignup.kubernetes.manifests.disruption import EvictionRules
from alignup.kubernetes.manifests.workloads import Workload
from alignup.plan.node_plan import NodePlan, plan_on_node
from tests.align.explain.test_remedies_properties import SMALL, busy_hosts, newcomers, without
from tests.align.hosts import make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import host_with, important

OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}]}


def listed(host: Host, **metadata: dict[str, Any]) -> list[Workload]:
    """The pods of *host* as ``--pods`` lists them; a ReplicaSet owns those without other *metadata*."""
    return [
        Workload(
            *("Pod", admitted.pod.name, admitted.pod.namespace, 1, admitted.pod, SourceLocation("pods.yaml")),
            has_uid=True,
            manifest={"metadata": metadata.get(uid, OWNED)},
        )
        for uid, admitted in host.ledger.pods.items()
    ]


def evicted(plan: NodePlan) -> list[str]:
    return [step.pod.uid for step in plan.plan.evictions]


def planned(host: Host, pod: Pod, rules: EvictionRules | None = None, **metadata: dict[str, Any]) -> NodePlan:
    return plan_on_node(host, pod, listed(host, **metadata), rules=rules or EvictionRules())


def test_the_end_of_a_pod_is_a_move():
    host = host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))

    plan = planned(host, make_pod("new", cpu="4"))

    assert evicted(plan) == ["y"]
    assert plan.plan.proved
    assert plan.controllers == {"y": "ReplicaSet web"}
    assert plan.decision.admitted
    assert "y" in host.ledger.pods


def test_pods_without_a_controller_end_only_by_preemption():
    host = host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))

    assert "without a controller" in planned(host, make_pod("new", cpu="4"), y={}).plan.problem

    plan = planned(host, make_pod("new", cpu="4"), EvictionRules(allow_preemption=True), y={})
    assert evicted(plan) == ["y"]
    assert plan.controllers == {"y": ""}


def test_pods_of_higher_priority_stay_and_absent_priorities_are_equal():
    host = host_with(make_pod("x", cpu="3"), important(make_pod("y", cpu="4")))
    preempting = EvictionRules(allow_preemption=True)

    assert "1 of higher priority" in planned(host, make_pod("new", cpu="4"), preempting).plan.problem
    assert evicted(planned(host, important(make_pod("new", cpu="4")), preempting)) == ["y"]
    assert evicted(planned(host, make_pod("new", cpu="3"), preempting)) == ["x"]


def test_pods_that_are_only_in_the_state_files_stay():
    host = host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))

    plan = plan_on_node(host, make_pod("new", cpu="4"), [], rules=EvictionRules())

    assert "2 that --pods does not name" in plan.plan.problem


def test_a_manifest_that_cannot_be_read_protects_its_pod():
    host = host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))

    plan = planned(host, make_pod("new", cpu="4"), y={"ownerReferences": "?"})

    assert "1 that --pods does not name" in plan.plan.problem


def test_of_equal_pods_the_youngest_ends():
    host = host_with(*(make_pod(uid, cpu="1") for uid in "abcdefg"))
    made: dict[str, Any] = {
        uid: {**OWNED, "creationTimestamp": f"2026-01-0{9 - day}T00:00:00Z"} for day, uid in enumerate("abcdefg")
    }

    assert evicted(planned(host, make_pod("new", cpu="1"), **made)) == ["a"]
    assert evicted(planned(host, make_pod("new", cpu="1"))) == ["g"]


def test_a_device_that_nobody_provides_has_no_plan():
    host = make_host()

    plan = planned(host, make_pod("new", None, **{"example.com/unknown": "1"}))

    assert "no device plugin provides example.com/unknown" in plan.plan.problem


@settings(max_examples=examples(50))
@given(busy_hosts(least=4, most=8, profile=SMALL), newcomers)
def test_no_smaller_set_of_pods_suffices(host, pod):
    """Of all sets of pods, none is smaller than a plan that is proved minimal."""
    pod = replace(pod, priority=1_000_000)
    assume(not is_certain(host.predict(pod)) and not host.missing_devices(pod))

    plan = planned(host, pod, EvictionRules(allow_preemption=True))

    smallest = next(
        (
            size
            for size in (1, 2, 3)
            for uids in combinations(host.ledger.pods, size)
            if is_certain(without(host, uids).predict(pod))
        ),
        None,
    )
    event(f"{smallest} pods")
    if smallest is not None and smallest <= 2:
        assert evicted(plan)
    if plan.plan.feasible:
        assert is_certain(plan.decision)
        assert not plan.plan.proved or smallest in {len(evicted(plan)), None}


def is_certain(decision: Decision) -> bool:
    return decision.admitted and not decision.may_be_rejected
