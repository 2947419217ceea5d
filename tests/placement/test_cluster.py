"""Verdicts of hosts, and how events change them.

Unless a test says otherwise, a host has two NUMA nodes with 3 and 4 CPUs for pods, under policy single-numa-node.
"""

from dataclasses import replace

import pytest

from alignup.align import bits
from alignup.align.errors import PodError, WorkLimitError
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.align.workload import Container, Pod
from alignup.placement import cluster as clusters
from alignup.placement import verdict as texts
from alignup.placement.cluster import Cluster
from alignup.placement.report import Cause, PodStage, pod_stage
from alignup.placement.room import DEVICE
from alignup.placement.verdict import VerdictKind
from tests.align.hosts import GPU, NIC, host, pod
from tests.placement.clusters import cluster_of, host_with, report, shared_pod
from tests.strategies_pods import guaranteed


def kinds(cluster: Cluster, wanted: Pod) -> dict[str, VerdictKind]:
    return {name: one.kind for name, one in cluster.feasible(wanted).items()}


class TestVerdicts:
    def test_a_host_admits_with_a_placement_or_rejects_with_a_reason(self):
        cluster = cluster_of(idle=host(), full=host_with(pod("a", cpu="3"), pod("b", cpu="4")))

        found = cluster.feasible(pod("new", cpu="2"))

        assert found.admitting() == ["idle"]
        assert bits.show(found["idle"].placements[0].cpus or 0) == "1-2"
        assert found["full"].kind is VerdictKind.REJECTS
        assert found["full"].rejection
        assert found["full"].rejection.reason == "TopologyAffinityError"
        assert found.by_reason() == {"not enough cpu on one NUMA node": ["full"]}
        assert "cpu: 2 needed, 0 free on NUMA node 1" in found["full"].detail

    def test_a_host_without_a_report_is_unknown(self):
        found = cluster_of(a=host()).feasible(pod())

        assert found["elsewhere"].kind is VerdictKind.UNKNOWN
        assert found["elsewhere"].reason == "no report about this host"
        assert set(found) == {"a"}
        assert ("a" in found, "elsewhere" in found) == (True, False)

    def test_hosts_in_the_same_state_share_verdicts_with_their_own_device_ids(self):
        one = host()
        renamed = tuple(replace(device, id=f"other-{device.id}") for device in one.machine.devices)
        other = Host(replace(one.machine, devices=renamed), one.settings)
        cluster = cluster_of(one=one, other=other)

        found = cluster.feasible(pod("new", gpu="1"))

        assert cluster.distinct_states == 1
        assert found["one"].placements[0].devices == {GPU: ("gpu-0",)}
        assert found["other"].placements[0].devices == {GPU: ("other-gpu-0",)}

    def test_pods_on_shared_cpus_matter_only_to_the_fit_check(self):
        cluster = cluster_of(idle=host(), busy=host_with(shared_pod("s", "6500m")))

        found = cluster.feasible(pod("new", cpu="2"))

        assert cluster.distinct_states == 1
        assert found["idle"].admits
        assert found["busy"].rejection
        assert found["busy"].rejection.reason == "OutOfcpu"
        assert found["busy"].reason == "not enough cpu on the whole host"

    def test_a_reason_without_numbers_to_compare(self):
        one = host(
            cpus=replace(host().settings.cpus, options={"full-pcpus-only": "true"}), shape="pack:2 numa:1 core:2 pu:2"
        )
        cluster = cluster_of(one=one)

        found = cluster.feasible(pod("new", cpu="1"))["one"]

        assert found.reason == "SMTAlignmentError"
        assert found.detail.startswith("container app: SMTAlignmentError: SMT Alignment Error")

    def test_a_pod_that_no_host_could_decide_on_raises(self):
        with pytest.raises(PodError):
            cluster_of(a=host()).feasible(Pod(name="nameless"))

    def test_an_invalid_annotation_is_rejected_only_where_it_is_read(self):
        cluster = cluster_of(deaf=host(), reading=host(pod_policy_annotations=True))

        found = cluster.feasible(pod("new", {"topology.alignup.dev/policy": "strict"}))

        assert found["deaf"].admits
        assert found["reading"].kind is VerdictKind.REJECTS
        assert found["reading"].reason == "invalid pod"
        assert 'Unsupported value: "strict"' in found["reading"].detail

    def test_an_approximate_report_makes_approximate_verdicts(self):
        cluster = cluster_of(exact=host())
        cluster.confirm(report("rough", host(), approximate=True))

        found = cluster.feasible(pod())

        assert [found["exact"].approximate, found["rough"].approximate] == [False, True]

    def test_a_critical_pod_is_decided_on_each_host_by_itself(self):
        critical = replace(pod("new", cpu="4"), priority=2_000_000_000)
        cluster = cluster_of(
            low=host_with(shared_pod("a", "4")), high=host_with(shared_pod("b", "4", priority=2_000_000_001))
        )

        found = cluster.feasible(critical)

        reasons = {name: one.rejection.reason for name, one in found.items() if one.rejection}
        assert reasons == {"low": "OutOfcpu", "high": "UnexpectedAdmissionError"}

    def test_a_result_does_not_change_later(self):
        cluster = cluster_of(a=host())
        before = cluster.feasible(pod("new"))

        cluster.assume(pod("new"), "a")
        cluster.remove_host("a")

        assert before["a"].admits
        assert len(cluster.feasible(pod("other"))) == 0
        assert cluster.hosts == ()

    def test_dropped_shapes_are_decided_again(self):
        cluster = Cluster(max_shapes=1)
        cluster.confirm(report("a", host()))

        answers = [kinds(cluster, pod("new", cpu=cpus))["a"] for cpus in ("2", "5", "2", "5")]

        assert answers == [VerdictKind.ADMITS, VerdictKind.REJECTS] * 2
        assert len(cluster._verdicts._tables) == 1  # noqa: SLF001


class TestAssumedPods:
    def test_an_assumed_pod_takes_its_place(self):
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", host()))

        first = cluster.assume(pod("first", cpu="3"), "a")
        second = cluster.assume(pod("second", cpu="3"), "a")
        third = cluster.assume(pod("third", cpu="3"), "a")

        assert [bits.show(one.placements[0].cpus or 0) for one in (first, second)] == ["1-3", "4-6"]
        assert third.kind is VerdictKind.REJECTS
        assert len(cluster.feasible(pod("new", cpu="1")).admitting()) == 1

    def test_a_pod_with_own_resources_waits_for_the_confirmation_of_the_one_before(self):
        one = host()
        cluster = cluster_of(a=one)
        cluster.assume(pod("first"), "a")

        assert cluster.assume(pod("second"), "a").reason == texts.WAITS_FOR_CONFIRMATION
        assert cluster.feasible(shared_pod("shared"))["a"].admits

        one.admit(pod("first"))
        (confirmed,) = cluster.confirm(report("a", one, 2))

        assert (confirmed.uid, confirmed.as_predicted, confirmed.causes) == ("first", True, ())
        assert cluster.feasible(pod("second"))["a"].admits

    def test_a_pod_without_own_resources_lets_nobody_wait(self):
        cluster = cluster_of(a=host())

        cluster.assume(shared_pod("first"), "a")

        assert cluster.feasible(pod("second"))["a"].admits

    def test_a_forgotten_pod_gives_its_place_back(self):
        cluster = cluster_of(a=host())
        cluster.assume(pod("first", cpu="4"), "a")

        cluster.forget("first")
        cluster.forget("unknown")

        assert cluster.feasible(pod("second", cpu="4"))["a"].admits

    def test_a_bound_pod_is_not_forgotten(self):
        cluster = cluster_of(a=host())
        cluster.assume(pod("first", cpu="4"), "a")
        cluster.observe(pod("first", cpu="4"), "a", PodStage.RUNNING)

        cluster.forget("first")

        assert not cluster.feasible(pod("second", cpu="4"))["a"].admits

    def test_a_pod_is_on_one_host_only(self):
        cluster = cluster_of(a=host(), b=host())
        cluster.assume(pod("first", cpu="4"), "a")

        cluster.assume(pod("first", cpu="4"), "b")

        assert cluster.feasible(pod("second", cpu="4")).admitting() == ["a"]

    def test_an_assumed_pod_keeps_its_placement_on_its_host(self):
        cluster = cluster_of(a=host())
        cluster.assume(pod("other", cpu="1"), "a")
        placed = cluster.assume(pod("first", cpu="2"), "a")
        assert not placed.admits

        cluster.forget("other")
        placed = cluster.assume(pod("first", cpu="2"), "a")

        assert cluster.feasible(pod("first", cpu="2"))["a"].placements == placed.placements
        assert cluster.assume(pod("first", cpu="2"), "a").placements == placed.placements
        assert [one.score for one in cluster.rank(pod("first", cpu="2"))] == [placed.score]

    def test_nothing_is_assumed_on_an_unknown_host(self):
        assert cluster_of(a=host()).assume(pod(), "b").kind is VerdictKind.UNKNOWN

    def test_a_pod_bound_by_others_comes_before_assumed_ones(self):
        """Its binding was recorded first, since that of the assumed pod was not observed yet."""
        one = host()
        cluster = cluster_of(a=one)
        cluster.assume(pod("ours", cpu="2"), "a")

        cluster.observe(pod("foreign", cpu="2"), "a", PodStage.RUNNING)
        cluster.observe(pod("ours", cpu="2"), "a", PodStage.RUNNING)

        one.admit(pod("foreign", cpu="2"))
        one.admit(pod("ours", cpu="2"))
        (ledger,) = cluster.record("a").states().ledgers  # type: ignore[union-attr]
        assert ledger.cpus.held == one.ledger.cpus.held
        (confirmed,) = cluster.confirm(report("a", one, 2))
        assert (confirmed.as_predicted, confirmed.causes) == (False, (Cause.FOREIGN_POD,))

    @pytest.mark.parametrize(("nodes", "as_predicted"), [(1, True), (2, False)])
    def test_another_device_is_as_predicted_if_it_is_on_the_same_numa_nodes(self, nodes, as_predicted):
        """The kubelet takes any of several devices that are alike."""
        one = host(Policy.NONE)
        machine = replace(one.machine, devices=(Device(GPU, "gpu-0", nodes=1), Device(GPU, "gpu-1", nodes=nodes)))
        one = Host(machine, one.settings)
        cluster = cluster_of(a=one)
        cluster.assume(pod("first", gpu="1"), "a")
        cluster.observe(pod("first", gpu="1"), "a", PodStage.RUNNING)

        one.admit(pod("other", cpu="500m", gpu="1"))
        one.admit(pod("first", gpu="1"))
        one.release("other")
        (confirmed,) = cluster.confirm(report("a", one, 2))

        assert one.ledger.devices.owned("first", GPU) == {"gpu-1"}
        assert confirmed.as_predicted is as_predicted

    def test_a_foreign_pod_that_will_probably_be_rejected_is_waited_for(self):
        """A pod that ended a moment ago may make room for it."""
        cluster = cluster_of(a=host_with(pod("x", cpu="4")))

        cluster.observe(pod("foreign", cpu="4"), "a", PodStage.RUNNING)
        assert cluster.feasible(pod("new", cpu="1"))["a"].reason == texts.WAITS_FOR_CONFIRMATION
        assert cluster.feasible(shared_pod("shared"))["a"].reason == texts.WAITS_FOR_CONFIRMATION

        cluster.observe_rejection("foreign", "a", "TopologyAffinityError")
        assert cluster.feasible(pod("new", cpu="1"))["a"].admits

    def test_an_invalid_foreign_pod_takes_nothing(self):
        cluster = cluster_of(a=host(pod_policy_annotations=True))

        cluster.observe(pod("foreign", {"topology.alignup.dev/policy": "strict"}), "a", PodStage.RUNNING)

        record = cluster.record("a")
        assert record
        assert [dict(ledger.pods) for ledger in record.states().ledgers] == [{}]

    def test_a_foreign_pod_that_takes_too_much_work_makes_the_host_unknown(self, monkeypatch):
        def too_much(*_: object) -> None:
            raise WorkLimitError("too many combinations", sources=("memory",))

        cluster = cluster_of(a=host())
        monkeypatch.setattr(Host, "decide_without_plugins", too_much)

        cluster.observe(pod("foreign"), "a", PodStage.RUNNING)

        assert cluster.feasible(pod("new"))["a"].reason == texts.TOO_MUCH_WORK

    def test_the_limit_can_be_chosen(self):
        cluster = Cluster(max_unconfirmed=2)
        cluster.confirm(report("a", host()))

        verdicts = [cluster.assume(pod(uid, cpu="1"), "a") for uid in ("a", "b", "c")]

        assert [one.admits for one in verdicts] == [True, True, False]

    def test_devices_that_the_kubelet_may_choose_differently_are_unsettled(self):
        one = host(Policy.NONE)
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", one))
        assert cluster.assume(pod("first", gpu="1"), "a").admits

        assert cluster.feasible(pod("second", gpu="1"))["a"].reason == texts.UNSETTLED_DEVICES
        assert cluster.feasible(pod("third"))["a"].admits

    def test_devices_of_a_plugin_with_a_preference_are_settled_if_all_are_alike(self):
        one = host(preferred_allocation=frozenset({GPU}))
        machine = replace(one.machine, devices=tuple(Device(GPU, f"g{number}", nodes=1) for number in range(3)))
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", Host(machine, one.settings)))

        assert cluster.assume(pod("first", cpu="1", gpu="1"), "a").admits
        assert cluster.feasible(pod("second", cpu="1", gpu="1"))["a"].admits


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
        cluster = cluster_of(a=host_with(pod("old", cpu="3")))
        assert cluster.feasible(pod("needs both", cpu="3"))["a"].admits

        cluster.observe(pod("old", cpu="3"), "a", PodStage.TERMINATING)

        assert cluster.feasible(pod("fits anyway", cpu="4"))["a"].admits
        assert cluster.feasible(pod("fits nowhere", cpu="5"))["a"].kind is VerdictKind.REJECTS

    def test_a_host_that_admits_only_after_the_end_is_unknown(self):
        full = host_with(pod("old", cpu="3"), pod("other", cpu="4"))
        cluster = cluster_of(a=full)

        cluster.observe(pod("old", cpu="3"), "a", PodStage.TERMINATING)
        assert cluster.feasible(pod("new", cpu="3"))["a"].reason == texts.WAITS_FOR_TERMINATION

        cluster.observe(pod("old", cpu="3"), "a", PodStage.ENDED)
        assert cluster.feasible(pod("new", cpu="3"))["a"].admits

    @pytest.mark.parametrize("ends_first", [False, True])
    def test_what_a_pod_gets_may_depend_on_the_end_of_a_terminating_one(self, ends_first):
        one = host_with(pod("old", cpu="1"))
        cluster = cluster_of(a=one)
        cluster.observe(pod("old", cpu="1"), "a", PodStage.TERMINATING)

        verdict = cluster.assume(pod("new", cpu="1"), "a")
        assert [bits.show(own.cpus or 0) for (own,) in verdict.possible_placements] == ["2", "1"]

        if ends_first:
            one.release("old")
        one.admit(pod("new", cpu="1"))
        (confirmed,) = cluster.confirm(report("a", one, 2))
        assert (confirmed.as_predicted, confirmed.causes) == (True, ())

    def test_a_verdict_shared_by_hosts_has_the_alternatives_of_each(self):
        machine = replace(host().machine, devices=(Device(GPU, "x", nodes=1), Device(GPU, "y", nodes=2)))
        other = Host(machine, host().settings)
        other.admit(pod("holder", gpu="1"))
        cluster = cluster_of(a=host_with(pod("old", gpu="1")), b=other)
        cluster.observe(pod("old", gpu="1"), "a", PodStage.TERMINATING)
        cluster.observe(pod("holder", gpu="1"), "b", PodStage.TERMINATING)

        found = cluster.feasible(pod("new", gpu="1"))

        ids = {name: [own.devices[GPU] for (own,) in found[name].possible_placements] for name in found}
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
        one = host_with(pod("old", cpu="1"), pod("later", cpu="1"))
        cluster = cluster_of(a=one)
        cluster.assume(pod("new", cpu="1"), "a")

        one.release("old")
        one.admit(pod("new", cpu="1"))
        if "old" not in ended:
            one.admit(pod("old", cpu="1"))
        if "later" in ended:
            one.release("later")
        (confirmed,) = cluster.confirm(report("a", one, 2))

        assert "'cpu': '3'" in confirmed.difference
        assert "got app {'cpu': {'cpu': '1'}" in confirmed.difference
        assert confirmed.causes == cause

    def test_too_many_terminating_pods_make_a_host_unknown(self):
        pods = [pod(uid, cpu="1") for uid in "abcd"]
        cluster = cluster_of(a=host_with(*pods))

        for one in pods[:3]:
            cluster.observe(one, "a", PodStage.TERMINATING)
        assert cluster.feasible(pod("new", cpu="1"))["a"].admits

        cluster.observe(pods[3], "a", PodStage.TERMINATING)
        assert cluster.feasible(pod("new", cpu="1"))["a"].reason == texts.TOO_MANY_TERMINATING

    def test_an_ended_pod_stays_ended_in_late_reports(self):
        one = host_with(pod("old", cpu="4"))
        cluster = cluster_of(a=host())

        cluster.observe(pod("old", cpu="4"), "a", PodStage.RUNNING)
        cluster.observe(pod("old", cpu="4"), "a", PodStage.ENDED)
        cluster.observe(pod("old", cpu="4"), "a", PodStage.RUNNING)
        cluster.confirm(report("a", one, 2))

        assert cluster.feasible(pod("new", cpu="4"))["a"].admits

    def test_only_a_limited_number_of_ended_pods_is_remembered(self, monkeypatch):
        monkeypatch.setattr(clusters, "MAX_ENDED", 1)
        cluster = cluster_of(a=host())
        for uid in ("x", "y"):
            cluster.observe(pod(uid), "a", PodStage.ENDED)

        cluster.confirm(report("a", host_with(pod("x", cpu="4"), pod("y", cpu="3")), 2))

        assert kinds(cluster, pod("new", cpu="4"))["a"] is VerdictKind.REJECTS
        assert kinds(cluster, pod("new", cpu="3"))["a"] is VerdictKind.ADMITS

    def test_a_pod_placed_while_an_ended_one_was_there_stays_where_it_is(self):
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", host()))
        for uid in ("first", "second"):
            cluster.assume(pod(uid, cpu="3"), "a")
            cluster.observe(pod(uid, cpu="3"), "a", PodStage.RUNNING)

        cluster.observe(pod("first", cpu="3"), "a", PodStage.ENDED)

        (ledger,) = cluster.record("a").states().ledgers  # type: ignore[union-attr]
        assert {uid: bits.show(ledger.cpus.owned(uid)) for uid in ledger.pods} == {"second": "4-6"}

    def test_pods_that_came_and_ended_leave_nothing_behind(self):
        cluster = cluster_of(a=host())

        cluster.assume(pod("first"), "a")
        cluster.observe(pod("first"), "a", PodStage.RUNNING)
        cluster.observe(pod("first"), "a", PodStage.TERMINATING)
        cluster.observe(pod("first"), "a", PodStage.ENDED)

        record = cluster.record("a")
        assert record
        assert record.states().ledgers == (host().ledger,)
        assert record.bindings == []
        assert cluster.feasible(pod("new"))["a"].admits


class TestReports:
    def test_an_outdated_report_changes_nothing(self):
        cluster = cluster_of()
        cluster.confirm(report("a", host_with(pod("x", cpu="4")), 2))

        cluster.confirm(report("a", host(), 1))
        cluster.confirm(report("a", host(), 2))

        assert not cluster.feasible(pod("new", cpu="4"))["a"].admits

    def test_a_binding_observed_before_the_first_report_counts(self):
        cluster = Cluster()
        cluster.observe(pod("x", cpu="4"), "a", PodStage.RUNNING)
        cluster.observe(pod("y", cpu="3"), "a", PodStage.RUNNING)
        cluster.observe(pod("y", cpu="3"), "a", PodStage.ENDED)
        cluster.observe(pod("z", cpu="3"), "a", PodStage.TERMINATING)

        cluster.confirm(report("a", host()))

        record = cluster.record("a")
        assert record
        assert [one.uid for one in record.bindings] == ["x", "z"]
        assert cluster.feasible(pod("new", cpu="3"))["a"].reason == texts.WAITS_FOR_TERMINATION

    def test_a_pod_that_the_kubelet_passed_over_is_not_waited_for(self):
        """Pods are admitted in order, so one before a confirmed one was rejected."""
        one = host()
        cluster = Cluster(max_unconfirmed=None)
        cluster.confirm(report("a", one))
        for uid in ("rejected", "admitted"):
            cluster.observe(pod(uid, cpu="3"), "a", PodStage.RUNNING)

        one.admit(pod("admitted", cpu="3"))
        cluster.confirm(report("a", one, 2))

        record = cluster.record("a")
        assert record
        assert record.states().ledgers == (one.ledger,)

    def test_pods_that_are_not_listed_have_ended(self):
        cluster = cluster_of(a=host_with(pod("x", cpu="3"), pod("y", cpu="4")))
        cluster.observe(pod("z", cpu="1"), "a", PodStage.RUNNING)

        cluster.relist([(pod("y", cpu="4"), "a", PodStage.RUNNING), (pod("new", cpu="1"), "a", PodStage.RUNNING)])

        record = cluster.record("a")
        assert record
        assert [one.uid for one in record.bindings] == ["z", "new"]
        # It is not known whether x ended before the new pod was bound, so the new pod may have been rejected.
        assert {frozenset(ledger.pods) for ledger in record.states().ledgers} == {
            frozenset({"y"}),
            frozenset({"y", "new"}),
        }

    @pytest.mark.parametrize("report_first", [True, False])
    def test_the_order_of_a_list_says_nothing_about_a_pod_that_no_report_contains(self, report_first):
        """The kubelet has admitted the second pod of a list; the first was bound later, and holds its resources."""
        one = host()
        cluster = Cluster()
        if report_first:
            cluster.confirm(report("a", one))
        older, newer = pod("older", cpu="4"), pod("newer", cpu="3")
        cluster.relist([(older, "a", PodStage.RUNNING), (newer, "a", PodStage.RUNNING)])
        if not report_first:
            cluster.confirm(report("a", one))

        one.admit(newer)
        cluster.confirm(report("a", one, 2))

        assert cluster.verdict(pod("new", cpu="4"), "a").kind is VerdictKind.REJECTS

    @pytest.mark.parametrize("listed", [True, False])
    def test_pods_wait_while_the_order_of_unconfirmed_ones_is_unknown(self, listed):
        """The first gets CPUs of NUMA node 0, whichever it is."""
        one, pods = host(), [pod("x", cpu="3"), pod("y", cpu="2")]
        cluster = Cluster(max_unconfirmed=3)
        cluster.confirm(report("a", one))
        if listed:
            cluster.relist((bound, "a", PodStage.RUNNING) for bound in pods)
        else:
            for bound in pods:
                cluster.observe(bound, "a", PodStage.RUNNING)

        verdict = cluster.verdict(pod("new", cpu="1"), "a")
        assert verdict.reason == texts.WAITS_FOR_CONFIRMATION if listed else verdict.admits

    def test_pods_of_an_earlier_list_come_before_those_of_the_next(self):
        one, (first, second) = host(), (pod("first", cpu="4"), pod("second", cpu="4"))
        cluster = cluster_of(a=one)
        cluster.relist([(first, "a", PodStage.RUNNING)])
        cluster.relist([(second, "a", PodStage.RUNNING), (first, "a", PodStage.RUNNING)])

        one.admit(second)
        cluster.confirm(report("a", one, 2))

        record = cluster.record("a")
        assert record
        assert not record.bindings, "the kubelet has rejected the first pod"

    @pytest.mark.parametrize("report_first", [True, False])
    def test_a_pod_of_a_report_that_no_list_contains_may_have_ended(self, report_first):
        """Or else its binding is still to be observed: the list and the report are of different times."""
        one, (old, wanted) = host(), (pod("old", cpu="4"), pod("new", cpu="4"))
        cluster = Cluster()
        if report_first:
            cluster.confirm(report("a", one))
        cluster.relist([])

        one.admit(old)
        cluster.confirm(report("a", one, 2))
        assert cluster.verdict(wanted, "a").reason == texts.WAITS_FOR_TERMINATION

        cluster.observe(old, "a", PodStage.RUNNING)
        assert cluster.verdict(wanted, "a").kind is VerdictKind.REJECTS
        cluster.observe(old, "a", PodStage.ENDED)
        assert cluster.verdict(wanted, "a").admits

    def test_a_report_can_change_settings_and_machine(self):
        cluster = cluster_of(a=host(), b=host())
        assert cluster.feasible(pod("new", cpu="5")).admitting() == []

        cluster.confirm(report("b", host(Policy.BEST_EFFORT), 2))

        assert cluster.feasible(pod("new", cpu="5")).admitting() == ["b"]


class TestCausesOfRejections:
    """A pod is rejected that was predicted to be admitted."""

    def assumed(self, *, approximate: bool = False) -> Cluster:
        cluster = Cluster()
        cluster.confirm(report("a", host(), approximate=approximate))
        assert cluster.assume(pod("ours"), "a").admits
        return cluster

    def cause(self, cluster: Cluster, reason: str = "TopologyAffinityError", *later: Host) -> Cause:
        """The cause, known after these reports and as many unchanged ones as needed."""
        cluster.observe_rejection("ours", "a", reason)
        record = cluster.record("a")
        assert record
        found = cluster.take_rejections()
        for number in range(3):
            one = later[number] if number < len(later) else host()
            cluster.confirm(report("a", one, record.report.sequence + 1, kubelet=record.report.kubelet))
            found += cluster.take_rejections()
        ((uid, name, cause),) = found
        assert (uid, name) == ("ours", "a")
        return cause

    def test_a_foreign_pod(self):
        cluster = self.assumed()
        cluster.observe(pod("foreign"), "a", PodStage.RUNNING)

        assert self.cause(cluster) is Cause.FOREIGN_POD

    def test_a_foreign_pod_in_a_report(self):
        cluster = self.assumed()
        cluster.confirm(report("a", host_with(pod("static")), 2))

        assert self.cause(cluster) is Cause.FOREIGN_POD

    @pytest.mark.parametrize("observed", [True, False])
    def test_a_pod_that_ended_unseen(self, observed):
        """The first container gets the CPUs that are free now, on the node whose GPU the second one needs."""
        gpu_on_node_0 = replace(host().machine, devices=(Device(GPU, "x", nodes=1),))
        one = Host(gpu_on_node_0, host().settings)
        one.admit(pod("old", cpu="1"))
        cluster = cluster_of(a=one)
        wide, near = {"cpu": "3", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi", GPU: "1"}
        ours = Pod(name="ours", uid="ours", containers=(guaranteed("first", wide), guaranteed("second", near)))
        assert cluster.assume(ours, "a").admits

        one.release("old")
        assert not one.admit(ours).admitted
        if observed:
            cluster.observe(pod("old", cpu="1"), "a", PodStage.ENDED)

        assert self.cause(cluster, "TopologyAffinityError", one, one, one) is Cause.POD_END

    def test_a_restart_of_the_kubelet(self):
        cluster = self.assumed()
        cluster.confirm(report("a", host(), 2, kubelet="again"))

        assert self.cause(cluster) is Cause.KUBELET_RESTART

    def test_another_configuration(self):
        cluster = self.assumed()
        cluster.confirm(report("a", host(Policy.RESTRICTED), 2, kubelet="again"))

        assert self.cause(cluster) is Cause.CONFIGURATION

    def test_a_pod_that_the_kubelet_preempted(self):
        cluster = self.assumed()
        cluster.observe_preemption(pod("victim"), "a")

        assert self.cause(cluster) is Cause.PREEMPTION

    def test_a_device_that_failed_as_a_later_report_shows(self):
        ill = host()
        ill.update_devices(GPU, (Device(GPU, "gpu-0", nodes=1, healthy=False),))

        assert self.cause(self.assumed(), "UnexpectedAdmissionError", host(), ill) is Cause.DEVICES

    def test_the_host_as_a_whole(self):
        assert self.cause(self.assumed(), "OutOfephemeral-storage") is Cause.HOST_RESOURCES

    def test_an_approximate_report(self):
        cluster = self.assumed(approximate=True)
        cluster.observe_rejection("ours", "a", "TopologyAffinityError")
        for sequence in (2, 3, 4):
            cluster.confirm(report("a", host(), sequence, approximate=True))

        assert [one.cause for one in cluster.take_rejections()] == [Cause.APPROXIMATE]

    def test_none_of_them(self):
        assert self.cause(self.assumed()) is Cause.UNEXPLAINED

    def test_a_rejection_counts_also_after_the_report_that_told_of_it(self):
        """A pod of others came before ours, and one after it, which is the only one that the report contains."""
        cluster, one = self.assumed(), host()
        later = pod("later")
        for uid in ("earlier", "ours", "later"):
            cluster.observe(pod(uid), "a", PodStage.RUNNING)
        cluster.observe(pod("earlier"), "a", PodStage.ENDED)
        one.admit(later)
        cluster.confirm(report("a", one, 2))

        assert self.cause(cluster) is Cause.FOREIGN_POD

    def test_a_pod_that_was_passed_over_and_ended_counts_no_more(self):
        cluster, one = self.assumed(), host()
        later = pod("later")
        for uid in ("ours", "later"):
            cluster.observe(pod(uid), "a", PodStage.RUNNING)
        one.admit(later)
        cluster.confirm(report("a", one, 2))
        cluster.observe(pod("ours"), "a", PodStage.ENDED)

        cluster.observe_rejection("ours", "a", "TopologyAffinityError")

        record = cluster.record("a")
        assert record
        assert (cluster.take_rejections(), record.rejected) == ([], [])

    def test_a_pod_that_was_not_predicted_is_not_listed(self):
        cluster = self.assumed()
        cluster.observe(pod("foreign"), "a", PodStage.RUNNING)

        cluster.observe_rejection("foreign", "a", "TopologyAffinityError")
        cluster.observe_rejection("unknown", "b", "TopologyAffinityError")

        record = cluster.record("a")
        assert record
        assert (cluster.take_rejections(), record.rejected) == ([], [])

    def test_a_rejected_pod_gives_its_place_back(self):
        cluster = self.assumed()
        cluster.observe_rejection("ours", "a", "TopologyAffinityError")

        assert cluster.feasible(pod("new"))["a"].admits


class TestRank:
    def test_one_numa_node_is_better_than_two(self):
        lenient = host(Policy.BEST_EFFORT)
        split = host(Policy.BEST_EFFORT)
        for uid in ("x", "y"):
            split.admit(pod(uid, cpu="2"))
        cluster = cluster_of(split=split, whole=lenient)

        ranked = cluster.rank(pod("new", cpu="3"))

        assert [(one.host, one.score.nodes, one.score.preferred) for one in ranked] == [
            ("whole", 1, True),
            ("split", 2, False),
        ]

    def test_only_the_given_hosts_and_as_many_as_wanted(self):
        cluster = cluster_of(a=host(), b=host(), c=host(), full=host_with(pod("x", cpu="3"), pod("y", cpu="4")))

        assert [one.host for one in cluster.rank(pod("new"), ["c", "b", "full", "unknown"])] == ["b", "c"]
        assert [one.host for one in cluster.rank(pod("new"), limit=2)] == ["a", "b"]

    def test_what_stays_possible_is_part_of_the_score(self):
        cluster = cluster_of(a=host())

        (ranked,) = cluster.rank(pod("new", cpu="3", gpu="1"))

        room = ranked.score.room
        assert room.largest["cpu"] == 4
        assert (room.stranded_cpus, room.stranded_devices) == (0, {GPU: 0, NIC: DEVICE})
        assert ranked.score.stranded == DEVICE  # the network card of node 0, which has no CPUs left

    def test_a_pod_without_resources_of_its_own_is_ranked_too(self):
        (ranked,) = cluster_of(a=host()).rank(shared_pod("new"))

        assert (ranked.score.nodes, ranked.score.points.numa_nodes) == (0, 20_000)


def test_containers_of_one_pod_are_placed_one_after_the_other():
    """A pod of two containers fits where each has a NUMA node of its own."""
    both = Pod(
        name="both",
        uid="both",
        containers=tuple(Container(name, pod("x", cpu="3").containers[0].resources) for name in ("one", "two")),
    )

    found = cluster_of(a=host()).feasible(both)["a"]

    assert [bits.show(one.cpus or 0) for one in found.placements] == ["1-3", "4-6"]


@pytest.mark.parametrize(("kept", "states"), [(0, 1), (10, 2)])
def test_states_in_which_no_host_is_any_more_are_kept_on_request(kept, states):
    cluster = Cluster(max_states=kept, compact=False)
    for sequence, one in enumerate((host(), host_with(pod("a", cpu="3"))), start=1):
        cluster.confirm(report("a", one, sequence=sequence))
        assert cluster.feasible(pod("new", cpu="2"))["a"].admits

    assert cluster.distinct_states == states
