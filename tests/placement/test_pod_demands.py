"""Pods that demand a policy of their own go only to hosts that will place them so, whatever the policy there is."""

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from alignup.align.cpus.options import CpuSettings
from alignup.align.errors import SettingsError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER, POLICY_ANNOTATION, SCOPE_ANNOTATION
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.pod_demands import demand_problem, find_refusal, needs_exact_host
from alignup.placement.pod_shape import needs_alignment
from alignup.placement.steered import with_markers
from alignup.placement.verdict import VerdictKind
from tests.align.hosts import arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import cluster_of, host_with, important, report, shared_pod

LOOSE = (Policy.NONE, Policy.BEST_EFFORT)


def demanding(pod: Pod, policy: str = "single-numa-node", scope: str = "") -> Pod:
    annotations = {POLICY_ANNOTATION: policy} | ({SCOPE_ANNOTATION: scope} if scope else {})
    return replace(pod, annotations={**pod.annotations, **annotations})


class TestVerdicts:
    @pytest.mark.parametrize("policy", LOOSE)
    def test_a_host_that_places_a_pod_so_is_offered(self, policy: Policy):
        verdict = cluster_of(a=make_host(policy)).verdict(demanding(make_pod("new")), "a")

        assert verdict.admits
        assert verdict.placements

    @pytest.mark.parametrize("policy", LOOSE)
    def test_a_host_that_places_it_otherwise_is_not(self, policy: Policy):
        cluster, wide = cluster_of(a=make_host(policy)), make_pod("new", cpu="5")

        verdict = cluster.verdict(demanding(wide), "a")

        assert cluster.verdict(wide, "a").admits
        assert verdict.kind is VerdictKind.REJECTS
        assert verdict.reason == "the kubelet would not place the pod as single-numa-node demands"
        assert "container app is on NUMA nodes 0-1 (cpu on 0-1" in verdict.detail
        assert "topologyManagerPolicy single-numa-node" in verdict.detail
        assert verdict.code == "DemandNotMet"
        assert cluster.verdict(demanding(wide, "strict"), "a").code == "UnknownDemand"

    def test_the_state_of_a_host_counts(self):
        cluster = cluster_of(free=make_host(Policy.NONE), used=host_with(make_pod("x", cpu="1"), policy=Policy.NONE))
        pod = demanding(make_pod("new", cpu="3"))

        assert cluster.feasible(pod).admitting() == ["free"]

    def test_devices_that_are_chosen_at_random_do_not_count(self):
        verdict = cluster_of(a=make_host(Policy.NONE)).verdict(demanding(make_pod("new", gpu="1")), "a")

        assert verdict.reason == "the kubelet may choose devices that single-numa-node does not accept"
        assert "container app may be on NUMA nodes 0-1" in verdict.detail
        assert "one with none may take any" in verdict.detail
        assert cluster_of(a=make_host(Policy.BEST_EFFORT)).verdict(demanding(make_pod("new", gpu="1")), "a").admits

    @pytest.mark.parametrize("policy", list(Policy))
    def test_a_host_whose_managers_place_nothing_counts_for_best_effort(self, policy: Policy):
        cluster = cluster_of(a=make_host(policy, cpus=CpuSettings()), b=make_host(policy, memory=False))
        pod = make_pod("new")

        assert set(cluster.feasible(demanding(pod, "best-effort")).admitting()) == {"a", "b"}
        verdicts = cluster.feasible(demanding(pod, "restricted"))
        assert "the node places no CPUs (cpuManagerPolicy none)" in verdicts["a"].reason
        assert "the node places no memory (memoryManagerPolicy None)" in verdicts["b"].reason

    def test_a_demand_never_loosens_the_policy_of_a_host(self):
        cluster, wide = cluster_of(a=make_host(Policy.SINGLE_NUMA_NODE)), make_pod("new", cpu="5")

        for demand in ("none", "best-effort", "restricted"):
            assert cluster.verdict(demanding(wide, demand), "a").reason == cluster.verdict(wide, "a").reason

    def test_a_scope_alone_is_demanded_with_the_policy_of_the_host(self):
        two = tuple([replace(make_pod(name, cpu="3").containers[0], name=name) for name in ("first", "second")])
        pod = replace(make_pod("new"), containers=two)
        strict, loose = make_host(Policy.SINGLE_NUMA_NODE), make_host(Policy.NONE)
        cluster = cluster_of(strict=strict, loose=loose)

        assert set(cluster.feasible(pod).admitting()) == {"strict", "loose"}
        whole = replace(pod, annotations={SCOPE_ANNOTATION: "pod"})
        assert cluster.feasible(whole).admitting() == ["loose"]
        assert cluster.verdict(whole, "strict").detail.startswith("the pod is on NUMA nodes 0-1")

    def test_a_report_that_is_not_exact_counts_only_where_the_policy_makes_sure(self):
        cluster = Cluster()
        for policy in (Policy.BEST_EFFORT, Policy.SINGLE_NUMA_NODE):
            cluster.confirm(report(policy, make_host(policy), approximate=True))

        verdicts = cluster.feasible(demanding(make_pod("new"), scope="container"))

        assert verdicts.admitting() == ["single-numa-node"]

    def test_pods_that_no_manager_places_go_anywhere(self):
        cluster = cluster_of(a=make_host(Policy.NONE))

        assert cluster.verdict(demanding(shared_pod("new")), "a").admits


class TestOtherQuestions:
    def test_a_gang_is_placed_as_its_pods_demand(self):
        cluster = cluster_of(a=make_host(Policy.NONE), b=make_host(Policy.NONE))
        pods = [demanding(make_pod(f"new-{number}", cpu="3")) for number in range(3)]

        answer = cluster.feasible_gang(pods)

        hosts = [binding.host for binding in answer.bindings]
        assert sorted(hosts) == ["a", "b"]  # the second pod of a host would be on both NUMA nodes

    def test_victims_make_room_for_what_is_demanded(self):
        used = host_with(important(make_pod("x", cpu="1"), 1), policy=Policy.NONE)
        pod = important(make_pod("new", cpu="3"))

        assert [victims.pods for victims in cluster_of(a=used).victims(pod, "a").sets] == [()]
        assert [victims.pods for victims in cluster_of(a=used).victims(demanding(pod), "a").sets] == [("x",)]

    def test_a_pod_is_steered_to_numa_nodes_where_its_demand_is_met(self):
        host = make_host(Policy.BEST_EFFORT)
        markers = [Device(MARKER, f"{node}-{number}", nodes=1 << node) for node in range(2) for number in range(4)]
        machine = replace(host.machine, devices=(*host.machine.devices, *markers))
        cluster, pod = cluster_of(a=Host(machine, host.settings)), with_markers(make_pod("new", cpu="3"))
        wide = with_markers(make_pod("wide", cpu="5"))
        assert pod
        assert wide

        assert set(cluster.steered(demanding(pod), "a")) == {1, 2}
        assert cluster.verdict(wide, "a").admits
        assert not cluster.steered(demanding(wide), "a")
        cluster.assume(demanding(pod), "a")
        verdict = cluster.steer(demanding(pod), "a", 2, certain=True)
        assert verdict
        assert [placement.hint.nodes for placement in verdict.placements] == [2]
        assert cluster.verdict(demanding(pod), "a").admits

    def test_an_assumed_pod_is_checked_again(self):
        cluster, pod = cluster_of(a=make_host(Policy.NONE)), demanding(make_pod("new", cpu="3"))
        assert cluster.assume(pod, "a").admits

        cluster.observe(make_pod("foreign", cpu="1"), "a", PodStage.RUNNING)

        assert not cluster.verdict(pod, "a").admits
        assert not cluster.assume(pod, "a").admits


def test_an_unknown_value_is_a_problem_whatever_the_pod_requests():
    pod = demanding(shared_pod("new"), "strict")

    assert demand_problem(pod).startswith("annotation topology.alignup.dev/policy is 'strict'; use none, ")
    assert "…" in demand_problem(demanding(pod, "x" * 5000))
    assert "topology.alignup.dev/scope is 'node'; use container, pod" in demand_problem(
        demanding(pod, "restricted", "node")
    )
    assert needs_alignment(pod)
    assert needs_exact_host(pod)
    assert not needs_alignment(demanding(pod, "best-effort"))
    assert not cluster_of(a=make_host()).feasible(pod).admitting()


@settings(max_examples=examples(20))
@given(host=hosts(), data=st.data())
@pytest.mark.parametrize("policy", [Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])
def test_what_meets_a_demand_is_accepted_by_that_policy(host: Host, data: st.DataObject, policy: Policy):
    """Decide with the other policy. What it gives to later containers depends on what it gave to the first."""
    host.settings = replace(host.settings, pod_policy_annotations=False)
    host.rules = replace(host.rules, pod_policy_annotations=False)
    scope = data.draw(st.sampled_from(Scope))
    topology = replace(host.settings.topology, policy=policy, scope=scope)
    try:
        strict = Host(host.machine, replace(host.settings, topology=topology))
    except SettingsError:  # align-by-socket and single-numa-node
        reject()
    for number in range(3):
        pod = demanding(data.draw(arrivals(f"u{number}")), policy, scope)
        decision = host.predict(pod)
        if not decision.admitted or decision.may_be_rejected or decision.after is None:
            continue
        placements = decision.placements if scope is Scope.POD else decision.placements[:1]
        placed = any(placement.sites(decision.after) for placement in placements)
        if placed and find_refusal(host, pod, decision) is None:
            strict.ledger = host.ledger
            assert strict.decide_without_plugins(pod).steps[0].accepted
        host.apply(host.decide_without_plugins(pod))
