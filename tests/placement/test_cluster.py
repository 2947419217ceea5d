"""Verdicts of hosts, and how events change them.

Unless a test says otherwise, a host has two NUMA nodes with 3 and 4 CPUs for pods, under policy single-numa-node.
"""

import gc
from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import PodError, WorkLimitError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.release import find_release
from alignup.align.settings import Policy
from alignup.align.workload import Container, Pod
from alignup.placement import cluster as clusters
from alignup.placement import verdict as texts
from alignup.placement.cluster import Cluster
from alignup.placement.free_capacity import DEVICE
from alignup.placement.host_model import HostModel
from alignup.placement.host_record import HostRecord
from alignup.placement.host_report import Cause, PodStage, pod_stage
from alignup.placement.verdict import VerdictKind
from tests.align.hosts import GPU, NIC, make_host, make_pod
from tests.placement.clusters import cluster_of, host_with, report, shared_pod
from tests.strategies_pods import guaranteed


def kinds(cluster: Cluster, wanted: Pod) -> dict[str, VerdictKind]:
    return {name: verdict.kind for name, verdict in cluster.feasible(wanted).items()}


def record_of(cluster: Cluster) -> HostRecord:
    record = cluster.record("a")
    assert record
    return record


class TestVerdicts:
    @pytest.mark.parametrize(
        ("container", "whole", "admits"), [("2", "3", True), ("2", "100", True), ("4", "1", False)]
    )
    def test_a_kubelet_without_pod_level_resources_counts_the_containers(self, container, whole, admits):
        full = make_host(release=find_release("1.33"))
        full.admit(make_pod("first", cpu="4"))
        hosts = {"idle": make_host(release=find_release("1.33")), "full": full}
        level = make_pod("any", cpu=whole).containers[0].resources
        wanted = replace(make_pod("new", cpu=container), resources=level)
        decisions = {name: host.decide(wanted) for name, host in hosts.items()}

        verdicts = cluster_of(**hosts).feasible(wanted)
        assert {name: verdicts[name].admits for name in hosts} == {"idle": True, "full": admits}
        assert {name: verdicts[name].placements for name in hosts} == {
            name: decision.placements for name, decision in decisions.items()
        }

    def test_a_host_admits_with_a_placement_or_rejects_with_a_reason(self):
        cluster = cluster_of(idle=make_host(), full=host_with(make_pod("a", cpu="3"), make_pod("b", cpu="4")))

        verdicts = cluster.feasible(make_pod("new", cpu="2"))

        assert verdicts.admitting() == ["idle"]
        assert bits.show(verdicts["idle"].placements[0].cpus or 0) == "1-2"
        assert verdicts["full"].kind is VerdictKind.REJECTS
        assert verdicts["full"].rejection
        assert verdicts["full"].rejection.reason == "TopologyAffinityError"
        assert {name: verdict.reason for name, verdict in verdicts.items() if not verdict.admits} == {
            "full": "not enough cpu on one NUMA node"
        }
        assert "cpu: 2 needed, 0 free on NUMA node 1" in verdicts["full"].detail

    def test_resources_that_prefer_different_nodes_are_not_called_scarce(self):
        host = make_host(Policy.RESTRICTED)
        for running in (make_pod("web", cpu="2", gpu="1"), make_pod("renderer", cpu="500m", gpu="1")):
            assert host.admit(running).admitted
        # Node 0 has one CPU and a GPU left, node 1 four CPUs and no GPU.
        host.update_devices(GPU, [Device(GPU, f"gpu-{number}", nodes=nodes) for number, nodes in enumerate((1, 2, 1))])

        reasons = [
            verdict.reason for verdict in cluster_of(a=host).feasible(make_pod("new", cpu="3", gpu="1")).values()
        ]

        assert reasons == ["no NUMA nodes are preferred by example.com/gpu and cpu alike"]

    def test_a_host_without_a_report_is_unknown(self):
        verdicts = cluster_of(a=make_host()).feasible(make_pod())

        assert verdicts["elsewhere"].kind is VerdictKind.UNKNOWN
        assert verdicts["elsewhere"].reason == "no report about this host"
        assert set(verdicts) == {"a"}
        assert ("a" in verdicts, "elsewhere" in verdicts) == (True, False)

    def test_hosts_in_the_same_state_share_verdicts_with_their_own_device_ids(self):
        host = make_host()
        renamed = tuple(replace(device, id=f"other-{device.id}") for device in host.machine.devices)
        other = Host(host.machine.with_reported(renamed), host.settings)
        cluster = cluster_of(one=host, other=other)

        verdicts = cluster.feasible(make_pod("new", gpu="1"))

        assert cluster.distinct_states == 1
        assert verdicts["one"].placements[0].devices == {GPU: ("gpu-0",)}
        assert verdicts["other"].placements[0].devices == {GPU: ("other-gpu-0",)}

    def test_pods_on_shared_cpus_matter_only_to_the_fit_check(self):
        cluster = cluster_of(idle=make_host(), busy=host_with(shared_pod("s", "6500m")))

        verdicts = cluster.feasible(make_pod("new", cpu="2"))

        assert cluster.distinct_states == 1
        assert verdicts["idle"].admits
        assert verdicts["busy"].rejection
        assert verdicts["busy"].rejection.reason == "OutOfcpu"
        assert verdicts["busy"].reason == "not enough cpu on the whole host"

    def test_a_reason_without_numbers_to_compare(self):
        host = make_host(
            cpus=replace(make_host().settings.cpus, options={"full-pcpus-only": "true"}),
            shape="pack:2 numa:1 core:2 pu:2",
        )
        cluster = cluster_of(one=host)

        verdict = cluster.feasible(make_pod("new", cpu="1"))["one"]

        assert verdict.reason == "SMTAlignmentError"
        assert verdict.detail.startswith("container app: SMTAlignmentError: SMT Alignment Error")

    def test_a_pod_that_no_host_could_decide_on_raises(self):
        with pytest.raises(PodError):
            cluster_of(a=make_host()).feasible(Pod(name="nameless"))

    def test_a_pod_with_an_unknown_policy_goes_nowhere(self):
        cluster = cluster_of(deaf=make_host(), reading=make_host(pod_policy_annotations=True))

        verdicts = cluster.feasible(make_pod("new", {"topology.alignup.dev/policy": "strict"}))

        reason = "annotation topology.alignup.dev/policy is 'strict'; use none, best-effort, restricted, "
        for name in ("deaf", "reading"):
            assert verdicts[name].kind is VerdictKind.REJECTS
            assert verdicts[name].reason == f"{reason}single-numa-node"

    def test_an_approximate_report_makes_approximate_verdicts(self):
        cluster = cluster_of(exact=make_host())
        cluster.confirm(report("rough", make_host(), approximate=True))

        verdicts = cluster.feasible(make_pod())

        assert [verdicts["exact"].approximate, verdicts["rough"].approximate] == [False, True]

    def test_a_critical_pod_is_decided_on_each_host_by_itself(self):
        critical = replace(make_pod("new", cpu="4"), priority=2_000_000_000)
        cluster = cluster_of(
            low=host_with(shared_pod("a", "4")), high=host_with(shared_pod("b", "4", priority=2_000_000_001))
        )

        verdicts = cluster.feasible(critical)

        reasons = {name: verdict.rejection.reason for name, verdict in verdicts.items() if verdict.rejection}
        assert reasons == {"low": "OutOfcpu", "high": "UnexpectedAdmissionError"}

    def test_a_result_does_not_change_later(self):
        cluster = cluster_of(a=make_host())
        before = cluster.feasible(make_pod("new"))

        cluster.assume(make_pod("new"), "a")
        cluster.remove_host("a")

        assert before["a"].admits
        assert len(cluster.feasible(make_pod("other"))) == 0
        assert cluster.hosts == ()

    def test_dropped_shapes_are_decided_again(self):
        cluster = Cluster(max_shapes=1)
        cluster.confirm(report("a", make_host()))

        answers = [kinds(cluster, make_pod("new", cpu=cpus))["a"] for cpus in ("2", "5", "2", "5")]

        assert answers == [VerdictKind.ADMITS, VerdictKind.REJECTS] * 2
        assert len(cluster._verdicts._tables) == 1  # noqa: SLF001

    def test_of_many_shapes_the_last_ones_are_kept(self):
        cluster = Cluster(max_shapes=16)
        cluster.confirm(report("a", make_host()))
        pods = [make_pod("new", cpu="2", memory=f"{number + 1}Mi") for number in range(100)]

        for pod in pods:
            assert cluster.feasible(pod)["a"].admits
            assert len(cluster._verdicts._tables) <= 16  # noqa: SLF001

        before = cluster.renewed_verdicts
        for pod in pods[-12:]:
            assert cluster.feasible(pod)["a"].admits
        assert cluster.renewed_verdicts == before


class TestAssumedPods:
    def test_an_assumed_pod_takes_its_place(self):
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", make_host()))

        first = cluster.assume(make_pod("first", cpu="3"), "a")
        second = cluster.assume(make_pod("second", cpu="3"), "a")
        third = cluster.assume(make_pod("third", cpu="3"), "a")

        assert [bits.show(verdict.placements[0].cpus or 0) for verdict in (first, second)] == ["1-3", "4-6"]
        assert third.kind is VerdictKind.REJECTS
        assert len(cluster.feasible(make_pod("new", cpu="1")).admitting()) == 1

    def test_a_pod_with_own_resources_waits_for_the_confirmation_of_the_one_before(self):
        host = make_host()
        cluster = cluster_of(a=host)
        cluster.assume(make_pod("first"), "a")

        assert cluster.assume(make_pod("second"), "a").reason == texts.WAITS_FOR_CONFIRMATION
        assert cluster.feasible(shared_pod("shared"))["a"].admits

        host.admit(make_pod("first"))
        (confirmed,) = cluster.confirm(report("a", host, 2))

        assert (confirmed.uid, confirmed.as_predicted, confirmed.causes) == ("first", True, ())
        assert cluster.feasible(make_pod("second"))["a"].admits

    def test_a_pod_without_own_resources_lets_nobody_wait(self):
        cluster = cluster_of(a=make_host())

        cluster.assume(shared_pod("first"), "a")

        assert cluster.feasible(make_pod("second"))["a"].admits

    def test_a_forgotten_pod_gives_its_place_back(self):
        cluster = cluster_of(a=make_host())
        cluster.assume(make_pod("first", cpu="4"), "a")

        cluster.forget("first")
        cluster.forget("unknown")

        assert cluster.feasible(make_pod("second", cpu="4"))["a"].admits

    def test_a_bound_pod_is_not_forgotten(self):
        cluster = cluster_of(a=make_host())
        cluster.assume(make_pod("first", cpu="4"), "a")
        cluster.observe(make_pod("first", cpu="4"), "a", PodStage.RUNNING)

        cluster.forget("first")

        assert not cluster.feasible(make_pod("second", cpu="4"))["a"].admits

    def test_a_pod_is_on_one_host_only(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        cluster.assume(make_pod("first", cpu="4"), "a")

        cluster.assume(make_pod("first", cpu="4"), "b")

        assert cluster.feasible(make_pod("second", cpu="4")).admitting() == ["a"]

    def test_an_assumed_pod_keeps_its_placement_on_its_host(self):
        cluster = cluster_of(a=make_host())
        cluster.assume(make_pod("other", cpu="1"), "a")
        placed = cluster.assume(make_pod("first", cpu="2"), "a")
        assert not placed.admits

        cluster.forget("other")
        placed = cluster.assume(make_pod("first", cpu="2"), "a")

        assert cluster.feasible(make_pod("first", cpu="2"))["a"].placements == placed.placements
        assert cluster.assume(make_pod("first", cpu="2"), "a").placements == placed.placements
        assert [ranked_host.score for ranked_host in cluster.rank(make_pod("first", cpu="2"))] == [placed.score]

    def test_a_pod_may_be_assumed_on_several_hosts_until_it_is_bound_to_one(self):
        cluster = Cluster(max_unconfirmed=None)
        for host in "ab":
            cluster.confirm(report(host, make_host()))
        either, small, wide = make_pod("either", cpu="4"), make_pod("small", cpu="3"), make_pod("wide", cpu="4")
        for host in "ab":
            assert cluster.assume(either, host, or_elsewhere=True).admits
        # A pod that is admitted in any case passes; one for which it depends on the other does not.
        assert kinds(cluster, small) == dict.fromkeys("ab", VerdictKind.ADMITS)
        assert kinds(cluster, wide) == dict.fromkeys("ab", VerdictKind.UNKNOWN)

        cluster.observe(either, "b", PodStage.RUNNING)

        assert kinds(cluster, wide) == {"a": VerdictKind.ADMITS, "b": VerdictKind.REJECTS}

    def test_a_report_can_show_one_of_several_hosts_before_the_watch_does(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        either = make_pod("either", cpu="4")
        for host in "ab":
            cluster.assume(either, host, or_elsewhere=True)
        (confirmed,) = cluster.confirm(report("b", host_with(either), 2))
        assert confirmed.as_predicted
        cluster.observe(either, "b", PodStage.RUNNING)
        assert kinds(cluster, make_pod("wide", cpu="4")) == {"a": VerdictKind.ADMITS, "b": VerdictKind.REJECTS}

    def test_nothing_is_assumed_on_an_unknown_host(self):
        assert cluster_of(a=make_host()).assume(make_pod(), "b").kind is VerdictKind.UNKNOWN

    def test_a_pod_bound_by_others_comes_before_assumed_ones(self):
        """Its binding was recorded first, since that of the assumed pod was not observed yet."""
        host = make_host()
        cluster = cluster_of(a=host)
        cluster.assume(make_pod("ours", cpu="2"), "a")

        cluster.observe(make_pod("foreign", cpu="2"), "a", PodStage.RUNNING)
        cluster.observe(make_pod("ours", cpu="2"), "a", PodStage.RUNNING)

        host.admit(make_pod("foreign", cpu="2"))
        host.admit(make_pod("ours", cpu="2"))
        (ledger,) = record_of(cluster).states().ledgers
        assert ledger.cpus.held == host.ledger.cpus.held
        (confirmed,) = cluster.confirm(report("a", host, 2))
        assert (confirmed.as_predicted, confirmed.causes) == (False, (Cause.FOREIGN_POD,))

    @pytest.mark.parametrize(
        ("policy", "nodes", "as_predicted"),
        [(Policy.NONE, 1, True), (Policy.NONE, 2, True), (Policy.BEST_EFFORT, 1, True), (Policy.BEST_EFFORT, 2, False)],
    )
    def test_another_device_is_as_predicted_if_the_kubelet_may_choose_it(self, policy, nodes, as_predicted):
        """The kubelet takes any device near the chosen NUMA nodes; without a policy these are all devices."""
        host = make_host(policy)
        machine = replace(host.machine, devices=(Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=nodes)))
        host = Host(machine, host.settings)
        cluster = cluster_of(a=host)
        cluster.assume(make_pod("first", gpu="1"), "a")
        cluster.observe(make_pod("first", gpu="1"), "a", PodStage.RUNNING)

        host.admit(make_pod("other", cpu="500m", gpu="1"))
        host.admit(make_pod("first", gpu="1"))
        host.release("other")
        (confirmed,) = cluster.confirm(report("a", host, 2))

        assert host.ledger.devices.owned("first", GPU) == {"gpu-1"}
        assert confirmed.as_predicted is as_predicted

    def test_a_foreign_pod_that_will_probably_be_rejected_is_waited_for(self):
        """A pod that ended a moment ago may make room for it."""
        cluster = cluster_of(a=host_with(make_pod("x", cpu="4")))

        cluster.observe(make_pod("foreign", cpu="4"), "a", PodStage.RUNNING)
        assert cluster.feasible(make_pod("new", cpu="1"))["a"].reason == texts.WAITS_FOR_CONFIRMATION
        assert cluster.feasible(shared_pod("shared"))["a"].reason == texts.WAITS_FOR_CONFIRMATION

        cluster.observe_rejection("foreign", "a", "TopologyAffinityError")
        assert cluster.feasible(make_pod("new", cpu="1"))["a"].admits

    def test_an_invalid_foreign_pod_takes_nothing(self):
        cluster = cluster_of(a=make_host(pod_policy_annotations=True))

        cluster.observe(make_pod("foreign", {"topology.alignup.dev/policy": "strict"}), "a", PodStage.RUNNING)

        record = record_of(cluster)
        assert [dict(ledger.pods) for ledger in record.states().ledgers] == [{}]

    def test_a_foreign_pod_that_takes_too_much_work_makes_the_host_unknown(self, monkeypatch):
        def too_much(*_: object) -> None:
            raise WorkLimitError("too many combinations", sources=("memory",))

        cluster = cluster_of(a=make_host())
        monkeypatch.setattr(Host, "decide_without_plugins", too_much)

        cluster.observe(make_pod("foreign"), "a", PodStage.RUNNING)

        assert cluster.feasible(make_pod("new"))["a"].reason == texts.TOO_MUCH_WORK

    def test_the_limit_can_be_chosen(self):
        cluster = Cluster(max_unconfirmed=2)
        cluster.confirm(report("a", make_host()))

        verdicts = [cluster.assume(make_pod(uid, cpu="1"), "a") for uid in ("a", "b", "c")]

        assert [verdict.admits for verdict in verdicts] == [True, True, False]

    def test_devices_that_the_kubelet_may_choose_differently_are_unsettled(self):
        host = make_host(Policy.NONE)
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", host))
        assert cluster.assume(make_pod("first", gpu="1"), "a").admits

        assert cluster.feasible(make_pod("second", gpu="1"))["a"].reason == texts.UNSETTLED_DEVICES
        assert cluster.feasible(make_pod("third"))["a"].admits

    def test_devices_of_a_plugin_with_a_preference_are_settled_if_all_are_alike(self):
        host = make_host(preferred_allocation=frozenset({GPU}))
        machine = replace(host.machine, devices=tuple(Device(GPU, f"g{number}", nodes=1) for number in range(3)))
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", Host(machine, host.settings)))

        assert cluster.assume(make_pod("first", cpu="1", gpu="1"), "a").admits
        assert cluster.feasible(make_pod("second", cpu="1", gpu="1"))["a"].admits


class TestEndingPods:
    @pytest.mark.parametrize(
        ("facts", "stage"),
        [
            pytest.param({}, PodStage.RUNNING, id="a running pod holds its resources"),
            pytest.param({"containers_terminated": True}, PodStage.RUNNING, id="also when its containers ended"),
            pytest.param({"phase": "Pending"}, PodStage.RUNNING, id="also before it started"),
            pytest.param({"deleting": True}, PodStage.TERMINATING, id="a deletion timestamp frees nothing yet"),
            pytest.param({"deleting": True, "containers_terminated": True}, PodStage.ENDED, id="ended containers do"),
            pytest.param({"phase": "Succeeded"}, PodStage.ENDED, id="a succeeded pod has ended"),
            pytest.param({"phase": "Failed", "deleting": True}, PodStage.ENDED, id="a failed pod has ended"),
            pytest.param({"deleted": True}, PodStage.ENDED, id="a deleted object has ended"),
            pytest.param(
                {"deleted": True, "force_deleted_may_run": True},
                PodStage.TERMINATING,
                id="containers of a force-deleted pod may run",
            ),
        ],
    )
    def test_stages(self, facts, stage):
        assert pod_stage(**facts) is stage

    def test_a_terminating_pod_may_or_may_not_hold_its_resources(self):
        cluster = cluster_of(a=host_with(make_pod("old", cpu="3")))
        assert cluster.feasible(make_pod("needs both", cpu="3"))["a"].admits

        cluster.observe(make_pod("old", cpu="3"), "a", PodStage.TERMINATING)

        assert cluster.feasible(make_pod("fits anyway", cpu="4"))["a"].admits
        assert cluster.feasible(make_pod("fits nowhere", cpu="5"))["a"].kind is VerdictKind.REJECTS

    def test_a_host_that_admits_only_after_the_end_is_unknown(self):
        full = host_with(make_pod("old", cpu="3"), make_pod("other", cpu="4"))
        cluster = cluster_of(a=full)

        cluster.observe(make_pod("old", cpu="3"), "a", PodStage.TERMINATING)
        assert cluster.feasible(make_pod("new", cpu="3"))["a"].reason == texts.WAITS_FOR_TERMINATION

        cluster.observe(make_pod("old", cpu="3"), "a", PodStage.ENDED)
        assert cluster.feasible(make_pod("new", cpu="3"))["a"].admits

    @pytest.mark.parametrize("ends_first", [False, True])
    def test_what_a_pod_gets_may_depend_on_the_end_of_a_terminating_one(self, ends_first):
        host = host_with(make_pod("old", cpu="1"))
        cluster = cluster_of(a=host)
        cluster.observe(make_pod("old", cpu="1"), "a", PodStage.TERMINATING)

        verdict = cluster.assume(make_pod("new", cpu="1"), "a")
        assert [bits.show(placement.cpus or 0) for (placement,) in verdict.possible_placements] == ["2", "1"]

        if ends_first:
            host.release("old")
        host.admit(make_pod("new", cpu="1"))
        (confirmed,) = cluster.confirm(report("a", host, 2))
        assert (confirmed.as_predicted, confirmed.causes) == (True, ())

    def test_a_verdict_shared_by_hosts_has_the_alternatives_of_each(self):
        machine = replace(make_host().machine, devices=(Device(GPU, "x", nodes=1), Device(GPU, "y", nodes=2)))
        other = Host(machine, make_host().settings)
        other.admit(make_pod("holder", gpu="1"))
        cluster = cluster_of(a=host_with(make_pod("old", gpu="1")), b=other)
        cluster.observe(make_pod("old", gpu="1"), "a", PodStage.TERMINATING)
        cluster.observe(make_pod("holder", gpu="1"), "b", PodStage.TERMINATING)

        verdicts = cluster.feasible(make_pod("new", gpu="1"))

        ids = {
            name: [placement.devices[GPU] for (placement,) in verdicts[name].possible_placements] for name in verdicts
        }
        assert ids == {"a": [("gpu-1",), ("gpu-0",)], "b": [("y",), ("x",)]}

    @pytest.mark.parametrize(
        ("ended", "cause"),
        [
            pytest.param(("old",), (Cause.POD_END,), id="it took the place of an ended pod"),
            pytest.param(("old", "later"), (Cause.POD_END,), id="of one of those that ended"),
            pytest.param(("later",), (), id="the end of this pod does not explain its place"),
        ],
    )
    def test_a_pod_may_end_before_the_api_server_knows(self, ended, cause):
        host = host_with(make_pod("old", cpu="1"), make_pod("later", cpu="1"))
        cluster = cluster_of(a=host)
        cluster.assume(make_pod("new", cpu="1"), "a")

        host.release("old")
        host.admit(make_pod("new", cpu="1"))
        if "old" not in ended:
            host.admit(make_pod("old", cpu="1"))
        if "later" in ended:
            host.release("later")
        (confirmed,) = cluster.confirm(report("a", host, 2))

        assert "'cpu': '3'" in confirmed.difference
        assert "got app {'cpu': {'cpu': '1'}" in confirmed.difference
        assert confirmed.causes == cause

    def test_too_many_terminating_pods_make_a_host_unknown(self):
        pods = [make_pod(uid, cpu="1") for uid in "abcd"]
        cluster = cluster_of(a=host_with(*pods))

        for pod in pods[:3]:
            cluster.observe(pod, "a", PodStage.TERMINATING)
        assert cluster.feasible(make_pod("new", cpu="1"))["a"].admits

        cluster.observe(pods[3], "a", PodStage.TERMINATING)
        assert cluster.feasible(make_pod("new", cpu="1"))["a"].reason == texts.TOO_MANY_TERMINATING

    def test_an_ended_pod_stays_ended_in_late_reports(self):
        host = host_with(make_pod("old", cpu="4"))
        cluster = cluster_of(a=make_host())

        cluster.observe(make_pod("old", cpu="4"), "a", PodStage.RUNNING)
        cluster.observe(make_pod("old", cpu="4"), "a", PodStage.ENDED)
        cluster.observe(make_pod("old", cpu="4"), "a", PodStage.RUNNING)
        cluster.confirm(report("a", host, 2))

        assert cluster.feasible(make_pod("new", cpu="4"))["a"].admits

    def test_only_a_limited_number_of_ended_pods_is_remembered(self, monkeypatch):
        monkeypatch.setattr(clusters, "MIN_ENDED", 1)
        monkeypatch.setattr(clusters, "ENDED_PER_HOST", 1)
        cluster = cluster_of(a=make_host())
        for uid in ("x", "y"):
            cluster.observe(make_pod(uid), "a", PodStage.ENDED)

        cluster.confirm(report("a", host_with(make_pod("x", cpu="4"), make_pod("y", cpu="3")), 2))

        assert kinds(cluster, make_pod("new", cpu="4"))["a"] is VerdictKind.REJECTS
        assert kinds(cluster, make_pod("new", cpu="3"))["a"] is VerdictKind.ADMITS

    def test_a_terminating_pod_is_remembered_whatever_ends_meanwhile(self, monkeypatch):
        monkeypatch.setattr(clusters, "MIN_ENDED", 1)
        monkeypatch.setattr(clusters, "ENDED_PER_HOST", 1)
        cluster = cluster_of(a=make_host())
        cluster.observe(make_pod("terminating", cpu="4"), "a", PodStage.TERMINATING)
        for uid in ("x", "y"):
            cluster.observe(make_pod(uid), "a", PodStage.ENDED)

        cluster.confirm(report("a", host_with(make_pod("terminating", cpu="4")), 2))

        assert cluster.feasible(make_pod("new", cpu="4"))["a"].reason == texts.WAITS_FOR_TERMINATION

    def test_a_pod_placed_while_an_ended_one_was_there_stays_where_it_is(self):
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", make_host()))
        for uid in ("first", "second"):
            cluster.assume(make_pod(uid, cpu="3"), "a")
            cluster.observe(make_pod(uid, cpu="3"), "a", PodStage.RUNNING)

        cluster.observe(make_pod("first", cpu="3"), "a", PodStage.ENDED)

        (ledger,) = record_of(cluster).states().ledgers
        assert {uid: bits.show(ledger.cpus.owned(uid)) for uid in ledger.pods} == {"second": "4-6"}


class TestReports:
    def test_an_outdated_report_changes_nothing(self):
        cluster = cluster_of()
        cluster.confirm(report("a", host_with(make_pod("x", cpu="4")), 2))

        cluster.confirm(report("a", make_host(), 1))
        cluster.confirm(report("a", make_host(), 2))

        assert not cluster.feasible(make_pod("new", cpu="4"))["a"].admits

    def test_a_binding_observed_before_the_first_report_counts(self):
        cluster = Cluster()
        cluster.observe(make_pod("x", cpu="4"), "a", PodStage.RUNNING)
        cluster.observe(make_pod("y", cpu="3"), "a", PodStage.RUNNING)
        cluster.observe(make_pod("y", cpu="3"), "a", PodStage.ENDED)
        cluster.observe(make_pod("z", cpu="3"), "a", PodStage.TERMINATING)

        cluster.confirm(report("a", make_host()))

        record = record_of(cluster)
        assert [binding.uid for binding in record.bindings] == ["x", "z"]
        assert cluster.feasible(make_pod("new", cpu="3"))["a"].reason == texts.WAITS_FOR_TERMINATION

    def test_a_pod_that_the_kubelet_passed_over_is_not_waited_for(self):
        """Pods are admitted in order, so one before a confirmed one was rejected."""
        host = make_host()
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", host))
        for uid in ("rejected", "admitted"):
            cluster.observe(make_pod(uid, cpu="3"), "a", PodStage.RUNNING)

        host.admit(make_pod("admitted", cpu="3"))
        cluster.confirm(report("a", host, 2))

        record = record_of(cluster)
        assert record.states().ledgers == (host.ledger,)

    def test_pods_that_are_not_listed_have_ended(self):
        cluster = cluster_of(a=host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4")))
        cluster.observe(make_pod("z", cpu="1"), "a", PodStage.RUNNING)

        cluster.relist(
            [(make_pod("y", cpu="4"), "a", PodStage.RUNNING), (make_pod("new", cpu="1"), "a", PodStage.RUNNING)]
        )

        record = record_of(cluster)
        assert [binding.uid for binding in record.bindings] == ["z", "new"]
        # It is not known whether x ended before the new pod was bound, so the new pod may have been rejected.
        assert {frozenset(ledger.pods) for ledger in record.states().ledgers} == {
            frozenset({"y"}),
            frozenset({"y", "new"}),
        }

    def test_a_pod_that_is_not_listed_is_not_expected_on_a_host_that_has_not_reported(self):
        cluster = Cluster()
        cluster.observe(make_pod("ended", cpu="4"), "a", PodStage.TERMINATING)

        cluster.relist([])
        cluster.confirm(report("a", make_host()))

        record = record_of(cluster)
        assert record.bindings == []
        assert cluster.verdict(make_pod("next", cpu="4"), "a").admits

    @pytest.mark.parametrize("report_first", [True, False])
    def test_the_order_of_a_list_says_nothing_about_a_pod_that_no_report_contains(self, report_first):
        """The kubelet has admitted the second pod of a list; the first was bound later, and holds its resources."""
        host = make_host()
        cluster = Cluster()
        if report_first:
            cluster.confirm(report("a", host))
        older, newer = make_pod("older", cpu="4"), make_pod("newer", cpu="3")
        cluster.relist([(older, "a", PodStage.RUNNING), (newer, "a", PodStage.RUNNING)])
        if not report_first:
            cluster.confirm(report("a", host))

        host.admit(newer)
        cluster.confirm(report("a", host, 2))

        assert cluster.verdict(make_pod("new", cpu="4"), "a").kind is VerdictKind.REJECTS

    @pytest.mark.parametrize("listed", [True, False])
    def test_pods_wait_while_the_order_of_unconfirmed_ones_is_unknown(self, listed):
        """The first gets CPUs of NUMA node 0, whichever it is."""
        host, pods = make_host(), [make_pod("x", cpu="3"), make_pod("y", cpu="2")]
        cluster = Cluster(max_unconfirmed=3)
        cluster.confirm(report("a", host))
        if listed:
            cluster.relist((bound, "a", PodStage.RUNNING) for bound in pods)
        else:
            for bound in pods:
                cluster.observe(bound, "a", PodStage.RUNNING)

        verdict = cluster.verdict(make_pod("new", cpu="1"), "a")
        assert verdict.reason == texts.WAITS_FOR_CONFIRMATION if listed else verdict.admits

    def test_pods_of_an_earlier_list_come_before_those_of_the_next(self):
        host, (first, second) = make_host(), (make_pod("first", cpu="4"), make_pod("second", cpu="4"))
        cluster = cluster_of(a=host)
        cluster.relist([(first, "a", PodStage.RUNNING)])
        cluster.relist([(second, "a", PodStage.RUNNING), (first, "a", PodStage.RUNNING)])

        host.admit(second)
        cluster.confirm(report("a", host, 2))

        record = record_of(cluster)
        assert not record.bindings, "the kubelet has rejected the first pod"

    @pytest.mark.parametrize("report_first", [True, False])
    def test_a_pod_of_a_report_that_no_list_contains_may_have_ended(self, report_first):
        """Or else its binding is still to be observed: the list and the report are of different times."""
        host, (old, wanted) = make_host(), (make_pod("old", cpu="4"), make_pod("new", cpu="4"))
        cluster = Cluster()
        if report_first:
            cluster.confirm(report("a", host))
        cluster.relist([])

        host.admit(old)
        cluster.confirm(report("a", host, 2))
        assert cluster.verdict(wanted, "a").reason == texts.WAITS_FOR_TERMINATION

        cluster.observe(old, "a", PodStage.RUNNING)
        assert cluster.verdict(wanted, "a").kind is VerdictKind.REJECTS
        cluster.observe(old, "a", PodStage.ENDED)
        assert cluster.verdict(wanted, "a").admits

    def test_a_report_can_change_settings_and_machine(self):
        cluster = cluster_of(a=make_host(), b=make_host())
        assert cluster.feasible(make_pod("new", cpu="5")).admitting() == []

        cluster.confirm(report("b", make_host(Policy.BEST_EFFORT), 2))

        assert cluster.feasible(make_pod("new", cpu="5")).admitting() == ["b"]


class TestCausesOfRejections:
    """A pod is rejected that was predicted to be admitted."""

    def assumed(self, *, approximate: bool = False) -> Cluster:
        cluster = Cluster()
        cluster.confirm(report("a", make_host(), approximate=approximate))
        assert cluster.assume(make_pod("ours"), "a").admits
        return cluster

    def cause(self, cluster: Cluster, reason: str = "TopologyAffinityError", *later: Host) -> Cause:
        """The cause, known after these reports and as many unchanged ones as needed."""
        cluster.observe_rejection("ours", "a", reason)
        record = record_of(cluster)
        rejections = cluster.take_rejections()
        for number in range(3):
            host = later[number] if number < len(later) else make_host()
            cluster.confirm(report("a", host, record.report.sequence + 1, kubelet=record.report.kubelet))
            rejections += cluster.take_rejections()
        ((uid, name, cause),) = rejections
        assert (uid, name) == ("ours", "a")
        return cause

    def test_a_foreign_pod(self):
        cluster = self.assumed()
        cluster.observe(make_pod("foreign"), "a", PodStage.RUNNING)

        assert self.cause(cluster) is Cause.FOREIGN_POD

    def test_a_foreign_pod_in_a_report(self):
        cluster = self.assumed()
        cluster.confirm(report("a", host_with(make_pod("static")), 2))

        assert self.cause(cluster) is Cause.FOREIGN_POD

    @pytest.mark.parametrize("observed", [True, False])
    def test_a_pod_that_ended_unseen(self, observed):
        """The first container gets the CPUs that are free now, on the node whose GPU the second one needs."""
        gpu_on_node_0 = replace(make_host().machine, devices=(Device(GPU, "x", nodes=1),))
        host = Host(gpu_on_node_0, make_host().settings)
        host.admit(make_pod("old", cpu="1"))
        cluster = cluster_of(a=host)
        wide, near = {"cpu": "3", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi", GPU: "1"}
        ours = Pod(name="ours", uid="ours", containers=(guaranteed("first", wide), guaranteed("second", near)))
        assert cluster.assume(ours, "a").admits

        host.release("old")
        assert not host.admit(ours).admitted
        if observed:
            cluster.observe(make_pod("old", cpu="1"), "a", PodStage.ENDED)

        assert self.cause(cluster, "TopologyAffinityError", host, host, host) is Cause.POD_END

    def test_a_restart_of_the_kubelet(self):
        cluster = self.assumed()
        cluster.confirm(report("a", make_host(), 2, kubelet="again"))

        assert self.cause(cluster) is Cause.KUBELET_RESTART

    @pytest.mark.parametrize("reported", [True, False])
    def test_a_restarted_kubelet_that_rejects_a_pod_that_it_had_admitted(self, reported):
        """The report about the restarted kubelet can come before or after the new status of the pod."""
        cluster, host = self.assumed(), host_with(make_pod("ours"))
        cluster.observe(make_pod("ours"), "a", PodStage.RUNNING)
        (confirmed,) = cluster.confirm(report("a", host, 2))
        assert confirmed.as_predicted
        if reported:
            cluster.confirm(report("a", make_host(), 3, kubelet="again"))
            cluster.confirm(report("a", make_host(), 4, kubelet="again"))

        assert self.cause(cluster, "UnexpectedAdmissionError") is Cause.READMISSION

    def test_another_configuration(self):
        cluster = self.assumed()
        cluster.confirm(report("a", make_host(Policy.RESTRICTED), 2, kubelet="again"))

        assert self.cause(cluster) is Cause.CONFIGURATION

    def test_a_pod_that_the_kubelet_preempted(self):
        cluster = self.assumed()
        cluster.observe_preemption(make_pod("victim"), "a")

        assert self.cause(cluster) is Cause.PREEMPTION

    def test_a_device_that_failed_as_a_later_report_shows(self):
        ill = make_host()
        ill.update_devices(GPU, (Device(GPU, "gpu-0", nodes=1, healthy=False),))

        assert self.cause(self.assumed(), "UnexpectedAdmissionError", make_host(), ill) is Cause.DEVICES

    def test_the_host_as_a_whole(self):
        assert self.cause(self.assumed(), "OutOfephemeral-storage") is Cause.HOST_RESOURCES

    def test_an_approximate_report(self):
        cluster = self.assumed(approximate=True)
        cluster.observe_rejection("ours", "a", "TopologyAffinityError")
        for sequence in (2, 3, 4):
            cluster.confirm(report("a", make_host(), sequence, approximate=True))

        assert [rejection.cause for rejection in cluster.take_rejections()] == [Cause.APPROXIMATE]

    def test_none_of_them(self):
        assert self.cause(self.assumed()) is Cause.UNEXPLAINED

    def test_a_rejection_counts_also_after_the_report_that_told_of_it(self):
        """A pod of others came before ours, and one after it, which is the only one that the report contains."""
        cluster, host = self.assumed(), make_host()
        later = make_pod("later")
        for uid in ("earlier", "ours", "later"):
            cluster.observe(make_pod(uid), "a", PodStage.RUNNING)
        cluster.observe(make_pod("earlier"), "a", PodStage.ENDED)
        host.admit(later)
        cluster.confirm(report("a", host, 2))

        assert self.cause(cluster) is Cause.FOREIGN_POD

    def test_a_pod_that_was_passed_over_and_ended_counts_no_more(self):
        cluster, host = self.assumed(), make_host()
        later = make_pod("later")
        for uid in ("ours", "later"):
            cluster.observe(make_pod(uid), "a", PodStage.RUNNING)
        host.admit(later)
        cluster.confirm(report("a", host, 2))
        cluster.observe(make_pod("ours"), "a", PodStage.ENDED)

        cluster.observe_rejection("ours", "a", "TopologyAffinityError")

        record = record_of(cluster)
        assert (cluster.take_rejections(), record.rejected) == ([], [])

    def test_a_pod_that_was_not_predicted_is_not_listed(self):
        cluster = self.assumed()
        cluster.observe(make_pod("foreign"), "a", PodStage.RUNNING)

        cluster.observe_rejection("foreign", "a", "TopologyAffinityError")
        cluster.observe_rejection("unknown", "b", "TopologyAffinityError")

        record = record_of(cluster)
        assert (cluster.take_rejections(), record.rejected) == ([], [])

    @pytest.mark.parametrize("reported_first", [True, False])
    def test_a_rejected_foreign_pod_explains_what_later_pods_got(self, reported_first):
        """The prediction counted on a pod of others that the kubelet then rejected, so ours got its CPUs."""
        cluster, host = Cluster(max_unconfirmed=None), make_host()
        cluster.confirm(report("a", host))
        cluster.observe(make_pod("foreign", cpu="2"), "a", PodStage.RUNNING)
        ours = make_pod("ours", cpu="2")
        assert cluster.assume(ours, "a").admits
        cluster.observe(ours, "a", PodStage.RUNNING)
        host.admit(ours)
        if not reported_first:
            cluster.observe_rejection("foreign", "a", "OutOfephemeral-storage")
        (confirmed,) = cluster.confirm(report("a", host, 2))
        if reported_first:
            cluster.observe_rejection("foreign", "a", "OutOfephemeral-storage")

        assert (confirmed.as_predicted, confirmed.causes) == (False, (Cause.FOREIGN_POD,))
        assert cluster.take_foreign_rejections() == [("foreign", "a")]
        assert (cluster.take_foreign_rejections(), cluster.take_rejections()) == ([], [])

    def test_a_foreign_pod_that_nobody_counted_on_is_rejected_in_silence(self):
        cluster = Cluster()
        cluster.confirm(report("a", make_host()))
        cluster.observe(make_pod("foreign", cpu="2"), "a", PodStage.RUNNING)
        cluster.observe_rejection("foreign", "a", "TopologyAffinityError")

        assert cluster.take_foreign_rejections() == []

    def test_a_rejected_pod_gives_its_place_back(self):
        cluster = self.assumed()
        cluster.observe_rejection("ours", "a", "TopologyAffinityError")

        assert cluster.feasible(make_pod("new"))["a"].admits


class TestRank:
    def test_one_numa_node_is_better_than_two(self):
        lenient = make_host(Policy.BEST_EFFORT)
        split = make_host(Policy.BEST_EFFORT)
        for uid in ("x", "y"):
            split.admit(make_pod(uid, cpu="2"))
        cluster = cluster_of(split=split, whole=lenient)

        ranked = cluster.rank(make_pod("new", cpu="3"))

        assert [(ranked_host.host, ranked_host.score.nodes, ranked_host.score.preferred) for ranked_host in ranked] == [
            ("whole", 1, True),
            ("split", 2, False),
        ]

    def test_only_the_given_hosts_and_as_many_as_wanted(self):
        cluster = cluster_of(
            a=make_host(), b=make_host(), c=make_host(), full=host_with(make_pod("x", cpu="3"), make_pod("y", cpu="4"))
        )

        assert [ranked_host.host for ranked_host in cluster.rank(make_pod("new"), ["c", "b", "full", "unknown"])] == [
            "b",
            "c",
        ]
        assert [ranked_host.host for ranked_host in cluster.rank(make_pod("new"), limit=2)] == ["a", "b"]

    def test_what_stays_possible_is_part_of_the_score(self):
        cluster = cluster_of(a=make_host())

        (ranked,) = cluster.rank(make_pod("new", cpu="3", gpu="1"))

        free = ranked.score.free_capacity
        assert free.largest["cpu"] == 4
        assert (free.stranded_cpus, free.stranded_devices) == (0, {GPU: 0, NIC: DEVICE})
        assert ranked.score.stranded == DEVICE  # the network card of node 0, which has no CPUs left

    def test_a_pod_without_resources_of_its_own_is_ranked_too(self):
        (ranked,) = cluster_of(a=make_host()).rank(shared_pod("new"))

        assert (ranked.score.nodes, ranked.score.points.numa_nodes) == (0, 20_000)


def test_containers_of_one_pod_are_placed_one_after_the_other():
    """A pod of two containers fits where each has a NUMA node of its own."""
    both = Pod(
        name="both",
        uid="both",
        containers=tuple(Container(name, make_pod("x", cpu="3").containers[0].resources) for name in ("one", "two")),
    )

    verdict = cluster_of(a=make_host()).feasible(both)["a"]

    assert [bits.show(placement.cpus or 0) for placement in verdict.placements] == ["1-3", "4-6"]


@pytest.mark.parametrize(("kept", "states"), [(0, 1), (10, 2)])
def test_states_in_which_no_host_is_any_more_are_kept_on_request(kept, states):
    cluster = Cluster(max_states=kept)
    for sequence, host in enumerate((make_host(), host_with(make_pod("a", cpu="3"))), start=1):
        cluster.confirm(report("a", host, sequence=sequence))
        assert cluster.feasible(make_pod("new", cpu="2"))["a"].admits

    assert cluster.distinct_states == states


def test_kinds_of_hosts_that_no_longer_exist_are_forgotten():
    """A host that reports other settings every second does not fill the memory."""
    cluster = cluster_of(a=make_host(), b=make_host())
    expected = cluster.feasible(make_pod())["a"]
    for number in range(300):
        host = make_host()
        cluster.confirm(report("b", Host(host.machine, replace(host.settings, max_pods=1_000 + number)), number + 2))
        cluster.feasible(make_pod(cpu="500m"))
    gc.collect()

    assert sum(type(obj) is HostModel for obj in gc.get_objects()) < 150
    assert cluster.feasible(make_pod())["a"] == expected


def test_a_defect_makes_one_verdict_unknown(monkeypatch):
    """Whatever a pod and a host cause together, the other hosts answer, and so does this host about other pods."""
    failed = []
    cluster = Cluster(on_defect=lambda host, error: failed.append((host, str(error))))
    unaware = Cluster()
    for name, host in (("a", make_host()), ("b", make_host(Policy.RESTRICTED))):
        cluster.confirm(report(name, host))
        unaware.confirm(report(name, host))
    align = HostModel.align

    def fail(self, ledger, pod):
        if self.settings.topology.policy is Policy.RESTRICTED and pod.containers[0].resources.whole_cpus == 2:
            raise ZeroDivisionError("a defect")
        return align(self, ledger, pod)

    monkeypatch.setattr(HostModel, "align", fail)
    verdicts = cluster.feasible(make_pod(cpu="2"))

    assert verdicts["a"].admits
    assert (verdicts["b"].kind, verdicts["b"].reason) == (VerdictKind.UNKNOWN, "the decision failed")
    assert verdicts["b"].detail == "ZeroDivisionError: a defect"
    assert failed == [("b", "a defect")]
    assert cluster.feasible(make_pod(cpu="1"))["b"].admits
    assert not cluster.assume(make_pod("other", cpu="2"), "b").admits
    with pytest.raises(ZeroDivisionError):
        unaware.feasible(make_pod(cpu="2"))
