"""Pods that demand near devices go only to hosts where every possible choice of devices is as near."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.devices.choices import RandomChooser
from alignup.align.devices.demanded_locality import check_demand, locality_demands
from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy
from alignup.align.workload import Container, Pod, PodClaim, Resources
from alignup.align.workload.names import DEVICES_ANNOTATION, MARKER
from alignup.placement.cluster import Cluster
from alignup.placement.host_report import PodStage
from alignup.placement.kept_hosts import admits_alone
from alignup.placement.pod_demands import demand_problem, find_refusal, needs_exact_host
from alignup.placement.pod_shape import needs_alignment, shape_key
from alignup.placement.verdict import VerdictKind
from tests.effort import examples
from tests.placement.clusters import cluster_of, report, shared_pod
from tests.placement.located_hosts import GPU, device_pod, located_host


class TestVerdicts:
    @pytest.mark.parametrize(
        ("gpus", "nics", "demand", "admits"),
        [
            (2, 0, "", True),
            (2, 0, "same-root", True),
            (2, 0, "same-switch", False),
            (4, 0, "same-switch", False),
            (2, 0, "nvlink", False),
            (1, 1, "same-switch", False),
            (1, 1, "same-root", True),
            (1, 1, "same-switch=nvidia.com/gpu", True),
            (4, 2, "same-switch", True),  # all of a NUMA node: certain, and each GPU has a NIC
            (4, 2, "same-switch; same-root=nvidia.com/gpu", True),
            (4, 2, "same-switch; nvlink", False),
            (1, 0, "spread", True),
        ],
    )
    def test_every_possible_choice_has_to_satisfy_the_demand(self, gpus, nics, demand, admits):
        verdict = cluster_of(a=located_host()).verdict(device_pod("new", gpus, nics, demand=demand), "a")

        assert verdict.admits is admits, verdict
        if not admits:
            assert verdict.kind is VerdictKind.REJECTS
            assert verdict.reason.startswith("the kubelet may choose devices that are not ")
            assert verdict.detail.startswith("container app: ")

    def test_a_choice_that_is_certain_may_satisfy_it(self):
        taken = device_pod("taken", 2)  # gpu-0 and gpu-1, so that the other switch of NUMA node 0 is left

        cluster = cluster_of(free=located_host(), used=located_host(taken))

        assert cluster.feasible(device_pod("new", 2, demand="same-switch; nvlink")).admitting() == ["used"]

    def test_spread_keeps_away_from_root_complexes_of_other_pods(self):
        cluster = cluster_of(free=located_host(), used=located_host(device_pod("other", 1)))

        verdicts = cluster.feasible(device_pod("new", 1, demand="spread"))

        assert verdicts.admitting() == ["free"]
        assert "shares its root complex with gpu-0 of another pod" in verdicts["used"].detail

    def test_hosts_in_the_same_state_may_have_other_places(self):
        """The states of hosts do not tell where their devices are."""
        hosts = {"near": located_host(switches=1, gpus=4), "far": located_host(), "flat": located_host(flat=True)}
        cluster = cluster_of(**hosts)
        plain, demanding = device_pod("plain"), device_pod("new", demand="same-switch")

        assert set(cluster.feasible(plain).admitting()) == set(hosts)
        assert cluster.feasible(demanding).admitting() == ["near"]
        assert cluster.verdict(demanding, "flat").reason == (
            "it is unknown whether the devices that the kubelet may choose are same-switch"
        )
        assert "flat: cannot say" in cluster.verdict(demanding, "flat").detail

    def test_hosts_with_other_device_ids_are_told_apart(self):
        taken = device_pod("taken", 2)
        cluster = cluster_of(a=located_host(taken), b=located_host(taken, first=6))  # gpu-6, gpu-7, gpu-8, …

        assert set(cluster.feasible(device_pod("new", demand="same-switch")).admitting()) == {"a", "b"}

    def test_a_machine_without_pci_devices_cannot_say(self):
        host = located_host()
        bare = report("a", host)
        cluster = Cluster()
        cluster.confirm(replace(bare, machine=replace(bare.machine, pci=(), links=())))

        verdict = cluster.verdict(device_pod("new", demand="same-root"), "a")

        assert "it is unknown" in verdict.reason
        assert "the PCI address of gpu-0 (nvidia.com/gpu) is not known" in verdict.detail

    def test_an_approximate_report_is_not_enough(self):
        cluster = Cluster()
        cluster.confirm(report("a", located_host(), approximate=True))

        assert "not exactly known" in cluster.verdict(device_pod("new", demand="same-root"), "a").reason

    @pytest.mark.parametrize("demand", ["near", "", f"same-root={'x' * 500}", "same-root=example.com/missing"])
    def test_a_wrong_value_is_never_ignored(self, demand):
        pod = replace(shared_pod("new"), annotations={DEVICES_ANNOTATION: demand})

        verdict = cluster_of(a=located_host()).verdict(pod, "a")

        assert verdict.kind is VerdictKind.REJECTS
        assert verdict.reason == demand_problem(pod)
        assert DEVICES_ANNOTATION in verdict.reason
        assert len(verdict.reason) <= 300
        assert needs_alignment(pod)
        assert needs_exact_host(pod)

    def test_a_demand_about_no_devices_is_satisfied(self):
        pod = replace(shared_pod("new"), annotations={DEVICES_ANNOTATION: "same-switch"})

        assert cluster_of(a=located_host()).verdict(pod, "a").admits

    def test_devices_of_claims_are_left_to_those_who_know_the_claims(self):
        plain = device_pod("new", 2, demand="same-root")
        claimed = replace(plain.containers[0], resources=replace(plain.containers[0].resources, claims=("disk",)))
        pod = replace(plain, containers=(claimed,), claims=(PodClaim("disk", claim="disk"),))
        named = replace(pod, annotations={DEVICES_ANNOTATION: f"same-switch={GPU}"})

        cluster = cluster_of(a=located_host())

        assert cluster.verdict(pod, "a").admits
        assert not cluster.verdict(named, "a").admits  # it is about devices of plugins only
        refusal = find_refusal(located_host(), pod)
        assert refusal is not None
        assert refusal.reason.endswith("which devices its claims will get is unknown")
        assert find_refusal(located_host(), pod, claims=None) is None

    def test_not_all_choices_are_listed_at_once(self):
        host = located_host(policy=Policy.NONE, switches=8, gpus=4, rules={GPU: PluginRule.ANY})

        refusal = find_refusal(host, device_pod("new", 20, demand="same-root"))

        assert refusal is not None
        assert refusal.reason == "the kubelet may choose devices that are not same-root"

    def test_markers_are_no_devices_of_a_demand(self):
        host = located_host()
        markers = [Device(MARKER, f"numa-{node}-0", node=node) for node in range(2)]
        host.ledger = replace(host.ledger, devices=host.ledger.devices.announce(MARKER, markers))
        plain = device_pod("new", 2, demand="same-root")
        limits = {**plain.containers[0].resources.limits, MARKER: Quantity.of(1)}
        pod = replace(plain, containers=(Container("app", Resources(limits, limits)),))

        assert cluster_of(a=host).verdict(pod, "a").admits

    def test_the_demand_is_part_of_the_shape(self):
        keys = {shape_key(device_pod("x", demand=demand)) for demand in ("", "same-root", "same-switch")}

        assert len(keys) == 3

    def test_a_rule_of_the_plugin_makes_choices_certain(self):
        """NVIDIA's plugin takes linked GPUs; without its rule, any counts as possible."""
        pod = device_pod("new", demand="nvlink; same-switch")

        cluster = cluster_of(any=located_host(), ruled=located_host(rules={GPU: PluginRule.NVIDIA}))

        assert cluster.feasible(pod).admitting() == ["ruled"]

    def test_rules_use_the_links_of_each_host(self):
        rules = {GPU: PluginRule.NVIDIA}
        hosts = {
            "linked": located_host(rules=rules),
            "renamed": located_host(rules=rules, first=6),
            "unlinked": located_host(rules=rules, switches=4, gpus=1),
        }

        verdicts = cluster_of(**hosts).feasible(device_pod("new", demand="nvlink"))

        assert set(verdicts.admitting()) == {"linked", "renamed"}


class TestUnconfirmedPods:
    def test_devices_that_an_earlier_pod_may_have_got_count(self):
        """A pod is assumed to get gpu-0 and gpu-1, but may get one GPU of each switch."""
        cluster = Cluster(max_unconfirmed=None)
        host = located_host()
        cluster.confirm(report("a", host))
        pod = device_pod("new", demand="same-switch")

        assert cluster.assume(device_pod("first"), "a").admits
        refused = cluster.verdict(pod, "a")
        host.admit(device_pod("first"))
        cluster.confirm(report("a", host, sequence=2))

        assert "gpu-0" in refused.detail
        assert cluster.verdict(pod, "a").admits

    def test_all_members_of_a_gang_satisfy_it(self):
        """Below one root complex any GPUs are near, whichever the members before have got."""
        cluster = cluster_of(a=located_host())

        def gang(demand, count):
            return cluster.feasible_gang([device_pod(f"m{number}", demand=demand) for number in range(count)])

        assert gang("same-root", 4).fits
        assert not gang("same-root", 5).fits
        assert not gang("same-switch", 1).fits

    def test_members_that_take_all_of_a_numa_node_are_certain(self):
        cluster = cluster_of(a=located_host(gpus=1), b=located_host())
        members = [device_pod(f"m{number}", demand="same-root") for number in range(3)]

        answer = cluster.feasible_gang([*members, device_pod("last", 1, 1, demand="same-switch")])

        assert [pod.uid for pod in answer.rest] == ["last"]

    def test_an_assumed_pod_is_checked_again(self):
        host, pod = located_host(device_pod("taken")), device_pod("new", demand="same-switch")
        cluster = cluster_of(a=host)
        assert cluster.assume(pod, "a").admits

        host.release("taken")
        cluster.confirm(report("a", host, sequence=2))

        assert not cluster.verdict(pod, "a").admits


class TestVictims:
    def test_pods_are_evicted_only_if_that_satisfies_the_demand(self):
        host = located_host(device_pod("a", 1, priority=1), device_pod("b", 4, priority=1))
        cluster = cluster_of(a=host)
        search = cluster.victims(device_pod("new", 4, 2, demand="same-switch", priority=5), "a")
        single = cluster.victims(device_pod("new", demand="same-switch", priority=5), "a")

        assert [victims.pods for victims in search.sets] == [("b",), ("a",)]  # the younger pod first
        assert single.sets == ()


class TestKeptHosts:
    def test_a_host_is_kept_only_if_it_will_satisfy_the_demand(self):
        """Whatever ends on the host, two of its four GPUs on a NUMA node may be below two switches."""
        cluster = cluster_of(far=located_host(device_pod("old", 4)), near=located_host(switches=1, gpus=4))
        pod = device_pod("new", demand="same-switch")
        records = {name: cluster.record(name) for name in cluster.hosts}

        admitting = [name for name, each in records.items() if each and admits_alone(each.model, each.ledger, pod)]

        assert admitting == ["near"]


POLICIES = st.sampled_from([Policy.SINGLE_NUMA_NODE, Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.NONE])
DEMANDS = st.sampled_from(
    ["", "", "same-switch", "same-root", "nvlink", "spread", "same-switch=nvidia.com/gpu", "spread; same-root"]
)
PODS = st.tuples(st.integers(1, 4), st.integers(0, 2), DEMANDS, st.booleans())
RULES = st.sampled_from([{}, {GPU: PluginRule.NVIDIA}])


def satisfied(host: Host, pod: Pod, devices: dict[str, tuple[str, ...]], others: dict[str, set[str]]) -> bool:
    locality = host.machine.locality
    return all(check_demand(demand, locality, devices, others).satisfied for demand in locality_demands(pod))


@given(
    POLICIES,
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.booleans()), min_size=1, max_size=3),
    st.lists(PODS, min_size=1, max_size=8),
    st.tuples(st.integers(0, 1000), st.booleans()),
    RULES,
)
@settings(max_examples=examples(200), deadline=None)
def test_no_pod_gets_devices_that_it_does_not_accept(policy, shapes, pods, chance, rules):
    """Kubelets choose devices at random, and no report may come for a while."""
    seed, reports = chance
    cluster, source = Cluster(max_unconfirmed=None), random.Random(seed)
    kubelets = {
        f"host-{number}": located_host(policy=policy, rules=rules, switches=switches, gpus=gpus, flat=flat and gpus > 2)
        for number, (switches, gpus, flat) in enumerate(shapes)
    }
    for name, kubelet in kubelets.items():
        cluster.confirm(report(name, kubelet))
    for number, (gpus, nics, demand, ends) in enumerate(pods):
        pod = device_pod(f"pod-{number}", gpus, nics, demand=demand)
        for name, kubelet in kubelets.items():
            if not cluster.verdict(pod, name).admits:
                continue
            assert cluster.assume(pod, name).admits
            others = {resource: set(ids) for resource, ids in kubelet.ledger.devices.in_use.items()}
            decision = kubelet.decide_with(pod, RandomChooser(seed + number))
            assert decision.admitted
            kubelet.apply(decision)
            cluster.observe(pod, name, PodStage.RUNNING)
            for placement in decision.placements:
                assert satisfied(kubelet, pod, dict(placement.devices), others), (demand, placement.devices, others)
            if ends:
                kubelet.release(pod.uid)
                cluster.observe(pod, name, PodStage.ENDED)
            break
        if reports and source.random() < 0.5:
            for name, kubelet in kubelets.items():
                cluster.confirm(report(name, kubelet, sequence=2 + number))
