"""Steering: which NUMA node a pod goes to while its kubelet has the markers of one only, and which one is best."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align import bits
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.align.workload.names import MARKER, NUMA_ANNOTATION
from alignup.placement.cluster import Cluster
from alignup.placement.free_capacity import DEVICE
from alignup.placement.host_report import Cause, PodStage
from alignup.placement.steered import (
    NumaOrder,
    are_on,
    choose_node,
    count_markers,
    decide_steered,
    fits_one_node,
    marker_nodes,
    numa_preference,
    with_markers,
)
from alignup.placement.verdict import WAITS_FOR_CONFIRMATION
from tests.align.hosts import arrivals, hosts, make_host, make_pod
from tests.effort import examples
from tests.placement.clusters import report
from tests.strategies_pods import guaranteed

NODE_0, NODE_1 = 1, 2  #: as sets


def with_marker_devices(host: Host, count: int = 8) -> Host:
    """Return an idle host of this kind with so many markers on each NUMA node."""
    markers = [Device(MARKER, f"{node.id}-{n}", nodes=1 << node.id) for node in host.view.nodes for n in range(count)]
    return Host(host.machine.with_reported((*host.machine.devices, *markers)), host.settings)


def marked(pod: Pod) -> Pod:
    made = with_markers(pod)
    assert made is not None
    return made


def server(policy: Policy = Policy.SINGLE_NUMA_NODE, *, cores: int = 8) -> Host:
    """Two NUMA nodes, each with so many CPUs (the first is reserved), a GPU, a NIC, and markers."""
    return with_marker_devices(make_host(policy, shape=f"pack:2 numa:1 core:{cores} pu:1"))


def cluster_with(host: Host, **options: int | None) -> Cluster:
    cluster = Cluster(**options)  # type: ignore[arg-type]
    cluster.confirm(report("a", host))
    return cluster


def nodes_of(host: Host, placements: object) -> int:
    return bits.union(site for each in placements for site in each.sites(host.ledger))  # type: ignore[attr-defined]


class TestChoice:
    def chosen(self, host: Host, pod: Pod, **more: object) -> str:
        """What is chosen for a pod, in words; nothing if it is not steered."""
        options = cluster_with(host).steered(pod, "a")
        return str(choose_node(options, numa_preference(pod)[0], **more) or "")  # type: ignore[arg-type]

    def test_pack_fills_the_fuller_node_where_the_kubelet_takes_the_lowest(self):
        host = server()
        host.apply(decide_steered(host, marked(make_pod("first", cpu="4")), NODE_1))
        pod = marked(make_pod("new", cpu="3"))

        assert nodes_of(host, host.decide_without_plugins(pod).placements) == NODE_0
        assert self.chosen(host, pod) == "steered to NUMA node 1 (pack)"

    def test_pack_strands_no_device_if_it_can(self):
        """Node 0 has the GPU that is free; its CPUs are left to it."""
        host = server(Policy.SINGLE_NUMA_NODE, cores=6)
        host.apply(decide_steered(host, marked(make_pod("gpu", cpu="1", gpu="1")), NODE_1))
        assert self.chosen(host, marked(make_pod("new", cpu="3"))) == "steered to NUMA node 1 (pack)"

    def test_spread_takes_the_emptiest(self):
        host = server()
        host.apply(decide_steered(host, marked(make_pod("first", cpu="4")), NODE_0))
        pod = marked(make_pod("new", cpu="2", annotations={NUMA_ANNOTATION: "spread"}))
        assert self.chosen(host, pod) == "steered to NUMA node 1 (spread)"

    def test_an_annotation_names_the_node(self):
        pod = marked(make_pod("new", annotations={NUMA_ANNOTATION: "1"}))
        assert self.chosen(server(), pod) == f"steered to NUMA node 1 (annotation {NUMA_ANNOTATION})"

    def test_a_named_node_that_is_full_or_missing_steers_nowhere(self):
        full = server()
        full.apply(decide_steered(full, marked(make_pod("first", cpu="7")), NODE_1))
        assert self.chosen(full, marked(make_pod("new", cpu="2", annotations={NUMA_ANNOTATION: "1"}))) == ""
        assert self.chosen(server(), marked(make_pod("new", annotations={NUMA_ANNOTATION: "7"}))) == ""

    def test_devices_of_claims_come_before_the_order(self):
        choice = self.chosen(server(), marked(make_pod("new")), beside={NODE_1: "gpu"})
        assert choice == "steered to NUMA node 1 because of claim gpu"

    def test_an_unknown_value_counts_as_pack(self):
        order, problem = numa_preference(make_pod(annotations={NUMA_ANNOTATION: "fastest"}))
        assert order is NumaOrder.PACK
        assert problem == f"annotation {NUMA_ANNOTATION} is 'fastest'; use pack, spread, or a NUMA node"

    @pytest.mark.parametrize("policy", [Policy.SINGLE_NUMA_NODE, Policy.RESTRICTED, Policy.BEST_EFFORT])
    @pytest.mark.parametrize("scope", Scope)
    def test_a_node_without_room_is_no_option(self, policy, scope):
        """With best-effort, the kubelet would admit the pod, with parts of it elsewhere."""
        host = with_marker_devices(make_host(policy, scope))
        host.apply(decide_steered(host, marked(make_pod("first", cpu="3")), NODE_1))
        assert list(cluster_with(host).steered(marked(make_pod("new", cpu="2")), "a")) == [NODE_0]

    def test_nothing_without_markers(self):
        assert cluster_with(make_host()).steered(marked(make_pod()), "a") == {}
        assert marker_nodes(make_host().ledger) == 0


class TestSteer:
    """A pod that was assumed, then steered."""

    def start(self, **options: int | None) -> tuple[Host, Cluster, Pod]:
        host, pod = server(), marked(make_pod("new", cpu="2"))
        cluster = cluster_with(host, **options)
        assert cluster.assume(pod, "a").admits
        return host, cluster, pod

    def test_a_certain_one_is_predicted_on_its_node(self):
        host, cluster, pod = self.start()
        verdict = cluster.steer(pod, "a", NODE_1, certain=True)
        assert verdict is not None
        assert verdict.admits
        assert not verdict.alternatives
        assert nodes_of(host, verdict.placements) == NODE_1
        assert nodes_of(host, cluster.verdict(pod, "a").placements) == NODE_1

        host.apply(decide_steered(host, pod, NODE_1))
        (confirmed,) = cluster.confirm(report("a", host, 2))
        assert confirmed.as_predicted

    def test_another_place_is_counted_with_its_cause(self):
        host, cluster, pod = self.start()
        cluster.steer(pod, "a", NODE_1, certain=True)
        host.apply(decide_steered(host, pod, 0))
        (confirmed,) = cluster.confirm(report("a", host, 2))
        assert confirmed.causes == (Cause.STEERING,)

    @pytest.mark.parametrize("certain", [True, False])
    def test_nothing_else_comes_before_it_is_confirmed(self, certain):
        _, cluster, pod = self.start(max_unconfirmed=4)
        cluster.steer(pod, "a", NODE_1, certain=certain)
        cluster.observe(pod, "a", PodStage.RUNNING)
        assert cluster.verdict(make_pod("next"), "a").reason == WAITS_FOR_CONFIRMATION

    def test_a_node_that_would_reject_it_changes_nothing(self):
        host, pod = server(), marked(make_pod("new", cpu="3"))
        host.apply(decide_steered(host, marked(make_pod("first", cpu="6")), NODE_1))
        cluster = cluster_with(host)
        before = cluster.assume(pod, "a")
        assert cluster.steer(pod, "a", NODE_1, certain=True) is None
        assert cluster.verdict(pod, "a").placements == before.placements

    def test_bound_and_unknown_pods_are_not_steered(self):
        _, cluster, pod = self.start()
        assert cluster.steer(make_pod("other"), "a", NODE_1, certain=True) is None
        cluster.observe(pod, "a", PodStage.RUNNING)
        assert cluster.steer(pod, "a", NODE_1, certain=True) is None

    def test_forgetting_it_leaves_nothing(self):
        _, cluster, pod = self.start()
        cluster.steer(pod, "a", NODE_1, certain=True)
        cluster.forget("new")
        assert cluster.verdict(make_pod("next", cpu="7"), "a").admits


class TestMarking:
    def test_all_containers_of_a_guaranteed_pod(self):
        containers = (guaranteed("a", {"cpu": "1", "memory": "1Gi"}), guaranteed("b", {"cpu": "1", "memory": "1Gi"}))
        pod = Pod(name="a", uid="a", containers=containers, init=(guaranteed("i", {"cpu": "1", "memory": "1Gi"}),))
        assert count_markers(marked(pod)) == 3
        assert with_markers(marked(pod)) is None  # it has them already

    def test_no_others(self):
        assert with_markers(Pod(name="a", uid="a", containers=())) is None

    @pytest.mark.parametrize(
        ("asked", "fits"),
        [({"cpu": "7"}, True), ({"cpu": "9", "memory": "20Gi"}, False), ({"cpu": "100"}, None)],
    )
    def test_one_node_can_hold_it(self, asked, fits):
        pod = make_pod("a", **asked)
        assert fits_one_node(server(Policy.RESTRICTED), pod, marked(pod)) is fits


class TestScore:
    @given(hosts(), arrivals("new"))
    @settings(max_examples=examples(50))
    def test_markers_change_no_score(self, host, pod):
        with_and_without = [cluster_with(each).verdict(pod, "a") for each in (host, with_marker_devices(host))]
        plain, other = with_and_without
        assert (plain.kind, plain.score) == (other.kind, other.score)


class TestProperties:
    @given(hosts(), st.lists(arrivals("u"), max_size=4), arrivals("new"), st.data())
    @settings(max_examples=examples(150))
    def test_a_steered_pod_is_on_its_node_and_admitted_both_ways(self, host, earlier, pod, data):
        host = with_marker_devices(host, count=data.draw(st.sampled_from((1, 2, 8))))
        for number, other in enumerate(earlier):
            host.admit(replace(other, uid=f"u{number}", name=f"u{number}"))
        pod = with_markers(pod) or pod
        cluster = cluster_with(host)
        options = cluster.steered(pod, "a")
        plain = host.decide_without_plugins(pod)
        assert plain.admitted or not options
        for nodes, verdict in options.items():
            decision = decide_steered(host, pod, nodes)
            assert decision.admitted
            assert decision.placements == verdict.placements
            assert are_on(nodes, decision.placements, host.ledger)
            assert decision.after is not None
            assert decision.after.devices.inventories == host.ledger.devices.inventories
        kubelet = bits.union(site for each in plain.placements for site in each.sites(host.ledger))
        best = choose_node(options, NumaOrder.PACK)
        if best is not None and kubelet in options:
            order, pack = options[kubelet].score, best.verdict.score
            assert order is not None
            assert pack is not None
            stranded = [score.stranded // DEVICE for score in (pack, order)]
            assert stranded[0] <= stranded[1]
            if stranded[0] == stranded[1] and set(pack.free_capacity.largest) == {"cpu"}:
                assert pack.free_capacity.largest["cpu"] >= order.free_capacity.largest["cpu"]
        if best is not None and cluster.assume(pod, "a").admits:
            certain = data.draw(st.booleans())
            assert cluster.steer(pod, "a", best.nodes, certain=certain)
            host.apply(
                decide_steered(host, pod, best.nodes if certain else data.draw(st.sampled_from((0, best.nodes))))
            )
            assert all(confirmed.as_predicted for confirmed in cluster.confirm(report("a", host, 2)))
