"""Cluster simulations: queue, gangs, rejections, and what is measured."""

from collections import defaultdict
from dataclasses import replace

import pytest

from alignup.align.errors import SettingsError
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.documents import codec
from alignup.simulate.arrivals import GANG_LABEL
from alignup.simulate.cluster_hosts import HostGroup
from alignup.simulate.cluster_result import FleetResult, compare_figures
from alignup.simulate.cluster_simulation import ClusterSimulation
from alignup.simulate.generate import Profile, generate_for_cluster
from alignup.simulate.schedulers import STRATEGIES, PredictingScheduler
from tests.align.hosts import GPU, make_host
from tests.simulate.clusters import group, of_host, submission


def run(groups, submissions, strategy="alignup", **options):
    simulation = ClusterSimulation(groups, submissions, strategy, **options)
    return simulation, simulation.run()


def gang(name, *submissions):
    return [replace(submission, pod=replace(submission.pod, labels={GANG_LABEL: name})) for submission in submissions]


def outcomes(simulation):
    return {run.submission.pod.uid: (run.host, run.started) for run in simulation.runs}


class TestQueue:
    def test_a_pod_waits_until_another_one_ends(self):
        simulation, result = run([group()], [submission("a", 0, 50, cpu="4"), submission("b", 1, 10, cpu="4")])

        assert outcomes(simulation) == {"a": ("node-0", 0.0), "b": ("node-0", 50.0)}
        assert (result.started, result.pending, result.waiting.max) == (2, 0, 49.0)

    def test_the_highest_priority_starts_first(self):
        low, high = submission("low", 1, 10, cpu="4"), submission("high", 2, 10, cpu="4")
        high = replace(high, pod=replace(high.pod, priority=7))
        simulation, _ = run([group()], [submission("a", 0, 50, cpu="4"), low, high])

        assert [pod_run.started for pod_run in simulation.runs] == [0.0, 60.0, 50.0]

    def test_a_smaller_pod_overtakes_one_that_does_not_fit(self):
        pods = [submission("a", 0, 50, cpu="4"), submission("large", 1, 10, cpu="4"), submission("b", 2, 10, cpu="2")]
        simulation, _ = run([group()], pods)

        assert outcomes(simulation)["b"] == ("node-0", 2.0)

    def test_pods_that_fit_nowhere_are_pending(self):
        _, result = run([group()], [submission("a", 0, 50, cpu="9"), submission("b", 0, 50, cpu="1")])

        assert (result.started, result.pending, result.rejected) == (1, 1, 0)

    def test_pods_wait_for_hosts_that_place_them_as_they_demand(self):
        """Beside a pod of one CPU, three CPUs of a host without policy would be on both NUMA nodes."""
        demanding = submission("b", 1.0, cpu="3")
        annotations = {POLICY_ANNOTATION: "single-numa-node"}
        demanding = replace(demanding, pod=replace(demanding.pod, annotations=annotations))
        groups = [group(policy=Policy.NONE)]

        other, ours = [
            run(groups, [submission("a", cpu="1"), demanding], strategy)[1] for strategy in ("aggregate", "alignup")
        ]

        assert (other.started, ours.started, ours.pending) == (2, 1, 1)

    def test_a_selector_limits_the_hosts(self):
        wanted = replace(submission("a"), selector={"pool": ("x", "y")})
        simulation, _ = run([group("n"), group("m", pool="y")], [wanted])

        assert outcomes(simulation)["a"][0] == "m-0"

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_pods_that_select_a_host_start_when_it_is_free(self, strategy):
        """When the second pod arrives, the other host is in the state that the selected one returns to."""
        hosts = [group(count=2, policy=Policy.NONE)]
        pods = [submission("a", 0, 10, cpu="5"), submission("b", 1, 10, cpu="4")]
        selector = {"kubernetes.io/hostname": ("node-1",)}
        simulation, _ = run(hosts, [replace(pod, selector=selector) for pod in pods], strategy)

        assert outcomes(simulation) == {"a": ("node-1", 0.0), "b": ("node-1", 10.0)}

    def test_pods_that_request_unknown_devices_are_pending(self):
        _, result = run([group()], [submission("a", 0, None, **{"example.com/other": "1"})])

        assert result.pending == 1

    def test_a_retried_pod_is_no_other_pod(self):
        """The last pod is rejected until another one ends: three CPUs are free, on two NUMA nodes."""
        pods = [submission("a-1", 0, 50, cpu="2"), submission("b", 0, 5, cpu="2"), submission("a", 1, 60, cpu="3")]
        simulation, _ = run([group()], pods, "blind-least-allocated")

        assert outcomes(simulation) == {"a-1": ("node-0", 0.0), "b": ("node-0", 0.0), "a": ("node-0", 11.0)}


class TestGangs:
    def test_all_or_nothing(self):
        """Three pods of four CPUs need two hosts, since node 0 has three."""
        members = gang("g", *(submission(f"g{number}", number, 10, cpu="4") for number in range(3)))
        few, few_result = run([group(count=2)], members)
        _, enough = run([group(count=3)], members)

        assert (few_result.started, few_result.pending) == (0, 3)
        assert enough.started == 3
        assert all(not host.kubelet.ledger.pods for host in few.hosts)

    def test_a_gang_starts_when_its_last_pod_is_created(self):
        members = gang("g", submission("a", 0, 10), submission("b", 5, 10))
        simulation, _ = run([group()], members)

        assert [pod_run.started for pod_run in simulation.runs] == [5.0, 5.0]

    def test_a_gang_of_which_a_kubelet_rejects_a_pod_starts_again(self):
        """Totals suffice for both, NUMA nodes only for one."""
        members = gang("g", submission("a", 0, 10, cpu="3"), submission("b", 0, 10, cpu="2"))
        first = submission("first", 0, 5, cpu="2")
        simulation, result = run([group()], [first, *members], "blind-least-allocated")

        assert result.rejections == {"TopologyAffinityError": 1}
        assert [pod_run.started for pod_run in simulation.runs] == [0.0, 10.0, 10.0]
        assert [pod_run.rejections for pod_run in simulation.runs][1:] == [0, 1]

    def test_started_and_torn_gangs_are_counted(self):
        members = gang("g", submission("a", 0, 10, cpu="3"), submission("b", 0, 10, cpu="2"))
        pods = [submission("first", 0, 5, cpu="2"), *members, *gang("large", submission("c", 0, 1, cpu="9"))]
        _, blind = run([group()], pods, "blind-least-allocated")
        _, ours = run([group()], pods)

        assert (blind.gangs, blind.started_gangs, blind.torn_gangs) == (2, 1, 1)
        assert (ours.gangs, ours.started_gangs, ours.torn_gangs) == (2, 1, 0)
        figures = dict(compare_figures([blind, ours]))
        assert figures["gangs started together"] == ["1 of 2", "1 of 2"]
        assert figures["gangs torn by a rejection"] == ["1", "0"]
        assert "gangs started together" not in dict(compare_figures([run([group()], pods[:1])[1]]))

    @pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name.startswith("alignup")])
    def test_ours_finds_hosts_for_different_members_that_fit_only_together(self, strategy):
        """Two NUMA nodes have four CPUs, and two have three; chosen one by one, the small ones take a larger one."""
        members = gang("g", *(submission(f"m{number}", 0, 10, cpu=cpu) for number, cpu in enumerate("1344")))
        simulation, result = run([group(count=2)], members, strategy)

        assert (result.started, result.rejected, result.mispredictions) == (4, 0, 0)
        assert all(not host.kubelet.ledger.pods for host in simulation.hosts)

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_generated_gangs_start_together_or_not_at_all(self, strategy):
        kubelet = make_host(Policy.RESTRICTED, shape="pack:2 numa:1 core:16 pu:1")
        devices = tuple(Device(GPU, f"{node}-{number}", nodes=1 << node) for node in (0, 1) for number in range(4))
        machine = replace(kubelet.machine, devices=devices)
        groups = [HostGroup(name="gpu", machine=machine, settings=kubelet.settings, count=8)]
        pods = generate_for_cluster(Profile.GANGS, groups, seed=1, pods=120, load=1.2)
        simulation, result = run(groups, pods, strategy)

        starts = defaultdict(set)
        for pod_run in simulation.runs:
            starts[pod_run.submission.gang].add(pod_run.started if pod_run.host else None)
        del starts[""]
        assert {len(times) for times in starts.values()} == {1}
        assert (result.gangs, result.started_gangs) == (
            len(starts),
            sum(None not in times for times in starts.values()),
        )
        assert not (strategy.startswith("alignup") and result.torn_gangs + result.rejected)


class TestRejections:
    PODS = (submission("a", 0, 65, cpu="2"), submission("b", 0, 1000, cpu="3"), submission("c", 0, 10, cpu="2"))

    def test_a_pod_is_created_again_with_back_off(self):
        """After 10, 30, 70 … seconds; the totals fit, but no NUMA node does."""
        simulation, result = run([group()], self.PODS, "blind-most-allocated")

        assert result.rejections == {"TopologyAffinityError": 3}
        assert outcomes(simulation)["c"] == ("node-0", 70.0)
        assert (result.rejected_pods, result.failed) == (1, 0)

    def test_a_pod_fails_in_the_end(self):
        pods = [submission("a", cpu="2"), submission("b", cpu="3"), submission("c", cpu="2")]
        _, result = run([group()], pods, "blind-least-allocated", retries=2)

        assert (result.started, result.failed, result.rejected) == (2, 1, 3)

    def test_ours_waits_instead(self):
        simulation, result = run([group()], self.PODS)

        assert (result.rejected, result.mispredictions) == (0, 0)
        assert outcomes(simulation)["c"] == ("node-0", 65.0)


class TestMeasures:
    def test_use_is_the_mean_until_the_last_creation(self):
        _, result = run([group()], [submission("a", 0, 5, cpu="2"), submission("b", 10, 90, cpu="1")])

        use = result.use["cpu"]
        assert (use.allocatable, use.mean, use.peak) == (7.0, 1.0, 2.0)
        assert result.duration == 100.0

    def test_alignment_counts_numa_nodes(self):
        pods = [submission("a", cpu="2"), submission("b", cpu="5"), submission("c", cpu="100m")]
        _, result = run([of_host("n", make_host(Policy.BEST_EFFORT, memory=False), count=2)], pods)

        assert result.alignment.pods_by_numa_nodes == {"0": 1, "1": 1, "2": 1}

    def test_stranded_is_measured_at_peak_demand(self):
        """At time 1: one CPU is free on each NUMA node, and no pod of the workload wants one."""
        pods = [submission("a", 0, 10, cpu="2"), submission("b", 1, 10, cpu="3"), submission("c", 30, 1, cpu="2")]
        _, result = run([group()], pods)

        assert (result.stranded.time, result.stranded.cpus, result.stranded.free_cpus) == (1.0, 2, 2)

    def test_a_timeline_has_few_points(self):
        pods = [submission(f"p{number}", number, 2, cpu="1") for number in range(250)]
        _, result = run([group()], pods)

        assert 190 <= len([point for point in result.timeline if point.time < 249]) <= 201
        assert [(point.time, point.running) for point in result.timeline if point.time > 247] == [
            *((247.755, 2), (249, 2), (250.245, 1), (251, 0))
        ]

    def test_a_timeline_ends_with_the_last_event_however_late(self):
        pods = [submission("a", 0, 1e9, cpu="1"), *(submission(f"p{number}", number, 1, cpu="1") for number in (1, 2))]
        _, result = run([group()], pods)

        assert (result.timeline[-1].time, result.timeline[-1].running) == (1e9, 0)
        assert all(point.running == 1 for point in result.timeline if 3 < point.time < 1e9)
        assert len(result.timeline) < 2_000

    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_the_last_point_of_a_timeline_agrees_with_the_totals(self, strategy):
        groups = [group(count=2)]
        pods = generate_for_cluster(Profile.MIXED, groups, seed=3, pods=60, load=3.0)
        _, result = run(groups, pods, strategy, retries=2)

        last = result.timeline[-1]
        assert result.pods > result.started > 0
        assert (last.waiting, last.rejections) == (result.pods - result.started, result.rejected)
        assert last.time - result.timeline[0].time == pytest.approx(result.duration, abs=0.01)

    def test_pods_that_never_start_count_as_waiting_until_the_last_event(self):
        pods = [submission("a", 0, 50, cpu="1"), submission("large", 10, 5, cpu="9"), submission("b", 20, 5, cpu="1")]
        _, result = run([group()], pods)

        assert (result.started, result.waiting.p50, result.waiting.max) == (2, 0, 40)
        assert [point.waiting for point in result.timeline if point.time > 10.1] == [1] * sum(
            point.time > 10.1 for point in result.timeline
        )

    def test_pods_that_kubelets_rejected_wait_until_they_start(self):
        """Three CPUs are free, on two NUMA nodes, until a pod ends; the third try comes after that."""
        pods = [submission("a-1", 0, 50, cpu="2"), submission("b", 0, 15, cpu="2"), submission("a", 1, 60, cpu="3")]
        _, result = run([group()], [*pods, submission("last", 40, 1, cpu="1")], "blind-least-allocated")

        assert result.rejected == 2
        assert {point.waiting for point in result.timeline if 1.2 < point.time < 31} == {1}
        assert {point.waiting for point in result.timeline if point.time > 31.2} == {0}

    def test_a_timeline_shows_peaks_between_its_points(self):
        """Points are 5 seconds apart; the pods of time 502 run, or wait, for one second."""
        burst = [submission(f"p{number}", 502, 1, cpu="3") for number in range(5)]
        pods = [submission("first", 0, 1, cpu="1"), *burst, submission("last", 1000, 1, cpu="1")]
        _, result = run([group()], pods)

        times = [point.time for point in result.timeline]
        assert times == sorted(set(times))
        assert [(point.time, point.running, point.waiting) for point in result.timeline if 500 < point.time < 505] == [
            (502, 2, 3)
        ]
        assert all(point.waiting == 0 for point in result.timeline if point.time % 5 == 0)

    def test_the_document_can_be_read_again(self):
        _, result = run([group()], [submission("a", 0, 5)])

        assert codec.decode(codec.encode(result), FleetResult) == result

    def test_progress_reaches_the_number_of_pods(self):
        seen = []
        simulation = ClusterSimulation([group()], [submission("a", 0, 5), submission("b", 0, 5)])
        simulation.run(lambda done, total: seen.append((done, total)))

        assert seen[-1] == (2, 2)


class TestStrategies:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_the_same_input_gives_the_same_result(self, strategy):
        groups = [group("n", count=3), group("m", count=2, policy=Policy.RESTRICTED)]
        pods = generate_for_cluster(Profile.MIXED, groups, seed=3, pods=60, load=1.5)

        first, second = (run(groups, pods, strategy)[1] for _ in range(2))

        assert first == second
        assert first.started + first.failed + first.pending == 60

    @pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name.startswith("alignup")])
    def test_kubelets_never_reject_what_was_predicted(self, strategy):
        groups = [group("n", count=3), group("m", count=2, policy=Policy.RESTRICTED)]
        _, result = run(groups, generate_for_cluster(Profile.MIXED, groups, seed=4, pods=80, load=2.0), strategy)

        assert (result.rejected, result.mispredictions) == (0, 0)

    def test_unknown_names_are_rejected(self):
        with pytest.raises(SettingsError, match="unknown strategy random; expected one of alignup, "):
            ClusterSimulation([group()], (), "random")

    def test_hosts_need_different_names(self):
        with pytest.raises(SettingsError, match="two hosts are called node-0"):
            ClusterSimulation([group(), group()], ())

    def test_the_chosen_host_is_the_best_of_the_service(self):
        """The index over states ranks as ``Cluster.best`` does."""

        class Compared(PredictingScheduler):
            compared = 0

            def choose(self, pod_class, pod):
                best = self.cluster.best(pod, 1, among=pod_class.hosts)
                scores = [self.rate(pod_class, self.hosts[name]) for name in best]
                chosen = self.index.best(pod_class)
                assert scores == [self.rate(pod_class, host) for host in (chosen,) if host is not None]
                Compared.compared += 1
                return super().choose(pod_class, pod)

        groups = [group("n", count=3), group("m", count=2, policy=Policy.RESTRICTED, pool="m")]
        pods = generate_for_cluster(Profile.MIXED, groups, seed=6, pods=60, load=2.0)
        ClusterSimulation(groups, pods, make=Compared).run()

        assert Compared.compared >= 60

    @pytest.mark.parametrize("strategy", ["aggregate", "blind-least-allocated"])
    def test_ours_keeps_hosts_with_devices_free_for_pods_that_need_them(self, strategy):
        """Pods that prepare data run beside the GPUs of a training cluster only if there is no room elsewhere."""
        kubelet = make_host(Policy.RESTRICTED, shape="pack:2 numa:1 core:16 pu:1")
        devices = tuple(Device(GPU, f"{node}-{number}", nodes=1 << node) for node in (0, 1) for number in range(4))
        groups = [
            HostGroup(
                name="gpu", machine=replace(kubelet.machine, devices=devices), settings=kubelet.settings, count=6
            ),
            HostGroup(name="plain", machine=replace(kubelet.machine, devices=()), settings=kubelet.settings, count=2),
        ]
        pods = generate_for_cluster(Profile.TRAINING, groups, seed=2, pods=150, load=1.2)

        ours, others = (run(groups, pods, name)[1] for name in ("alignup", strategy))

        assert (ours.rejected, ours.failed, ours.mispredictions) == (0, 0, 0)
        assert ours.started >= others.started
        assert ours.use[GPU].mean >= others.use[GPU].mean
        assert ours.stranded.devices[GPU] <= others.stranded.devices[GPU]
        on_plain = [next(use.started for use in result.groups if use.name == "plain") for result in (ours, others)]
        assert on_plain[0] > on_plain[1]
