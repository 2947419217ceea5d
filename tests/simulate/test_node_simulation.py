"""Simulations of a node: outcomes, alignment, snapshots, and progress."""

from dataclasses import replace

import pytest
from hypothesis import event, given

from alignup.align.errors import TraceError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.reason_codes import INVALID
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.align.workload.names import POLICY_ANNOTATION
from alignup.simulate.arrivals import PodArrival, PodDeparture
from alignup.simulate.node_report import to_document
from alignup.simulate.node_simulation import MIN_INTERVAL, AlignmentCounts, ProgressReporter, run
from tests.align.hosts import GIB, GPU, NIC, hosts, make_host
from tests.simulate.workloads import arriving_in_order, small, some, workloads
from tests.soundness import check_sound
from tests.strategies_pods import container

BOTH = 3


class TestOutcomes:
    def test_pods_are_admitted_and_rejected_as_the_host_decides(self):
        result = run(
            make_host(),
            arriving_in_order(small("a", gpu="1"), small("b", cpu="4"), small("c", cpu="3"), small("d", cpu="1")),
        )

        assert [(outcome.pod.uid, outcome.time, outcome.admitted, outcome.nodes) for outcome in result.outcomes] == [
            ("a", 0.0, True, 1),
            ("b", 1.0, True, 2),
            ("c", 2.0, False, 0),
            ("d", 3.0, True, 1),
        ]
        assert result.reasons == {"TopologyAffinityError": 1}
        assert (result.admitted, result.rejected) == (3, 1)

    def test_a_departure_frees_resources(self):
        events = (PodArrival(0, small("a", cpu="4")), PodDeparture(5, "a"), PodArrival(5, small("b", cpu="4")))

        assert run(make_host(), events).admitted == 2

    def test_a_pod_does_not_come_to_a_node_that_does_not_meet_its_demand(self):
        demanding = replace(small("b", cpu="3"), annotations={POLICY_ANNOTATION: "single-numa-node"})
        result = run(make_host(Policy.NONE), arriving_in_order(small("a", cpu="1"), demanding, small("c", cpu="3")))

        assert [(outcome.pod.uid, outcome.kubelet) for outcome in result.outcomes if not outcome.admitted] == [
            ("b", "admitted")
        ]
        assert result.reasons == {"DemandNotMet": 1}

    def test_an_invalid_pod_is_rejected_and_the_simulation_continues(self):
        chooser = replace(small("a"), annotations={POLICY_ANNOTATION: "strictest"})
        result = run(make_host(pod_policy_annotations=True), arriving_in_order(chooser, small("b")))

        assert [outcome.admitted for outcome in result.outcomes] == [False, True]
        assert result.reasons == {INVALID: 1}
        assert "strictest" in str(result.outcomes[0].rejection)

    def test_preferred_allocations_are_the_first_devices(self):
        kubelet = make_host(preferred_allocation=frozenset({GPU}))

        result = run(kubelet, arriving_in_order(small("a", gpu="1")))

        assert result.outcomes[0].placements[0].devices == {GPU: ("gpu-0",)}

    def test_a_rejected_pod_may_depart(self):
        result = run(
            make_host(), [PodArrival(0, small("a", cpu="9")), PodDeparture(1, "a"), PodDeparture(2, "unknown")]
        )

        assert (result.rejected, result.duration) == (1, 2)

    def test_inconsistent_events_are_rejected_before_the_start(self):
        kubelet = make_host()
        before = kubelet.ledger

        with pytest.raises(TraceError, match="pod a arrives at 1 s but is present since 0 s"):
            run(kubelet, arriving_in_order(small("a"), small("a")))

        assert kubelet.ledger is before


class TestAlignment:
    def test_pods_and_containers_are_counted(self):
        shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "100m"}),))
        result = run(
            make_host(Policy.BEST_EFFORT, memory=False),
            arriving_in_order(small("a", cpu="1"), small("b", cpu="5"), shared),
        )

        assert result.pods == AlignmentCounts(on_one=1, on_several=1, anywhere=1)
        assert result.containers == result.pods

    def test_a_pod_of_two_containers_on_two_nodes_is_not_on_one(self):
        pod = small("a", cpu="3")
        other = replace(pod.containers[0], name="other")
        result = run(make_host(), arriving_in_order(replace(pod, containers=(*pod.containers, other))))

        assert result.pods == AlignmentCounts(on_one=0, on_several=1, anywhere=0)
        assert result.containers == AlignmentCounts(on_one=2, on_several=0, anywhere=0)
        assert result.outcomes[0].nodes == BOTH


class TestSnapshots:
    def test_without_departures_peak_demand_is_at_the_end(self):
        result = run(make_host(), arriving_in_order(small("a"), small("b")))

        assert result.peak == result.end
        assert result.end.largest_by_node[0] == {"cpu": 1, "memory": 15 * GIB - (64 << 20), GPU: 1, NIC: 1}
        assert result.end.largest == {"cpu": 2, "memory": 15 * GIB, GPU: 1, NIC: 1}

    def test_the_host_may_be_idle_at_the_end(self):
        kubelet = make_host()
        idle = kubelet.ledger.cpus.available
        result = run(kubelet, [*arriving_in_order(small("a"), small("b")), PodDeparture(9, "a"), PodDeparture(9, "b")])

        assert result.peak.time == 1.0
        assert set(result.peak.ledger.pods) == {"a", "b"}
        assert result.end.ledger.cpus.available == idle
        assert result.end.ledger is kubelet.ledger

    def test_rejected_pods_count_towards_demand(self):
        events = [
            *arriving_in_order(small("a"), small("b", cpu="9")),
            PodDeparture(2, "b"),
            PodArrival(3, small("c")),
            PodDeparture(9, "c"),
        ]

        assert run(make_host(), events).peak.time == 1.0

    def test_stranded_is_what_the_workload_cannot_use(self):
        result = run(make_host(), arriving_in_order(small("a", cpu="2"), small("b", cpu="3")))

        assert (result.end.stranded.cpus, result.end.stranded.more) == (2, 0)


def test_an_empty_workload_leaves_an_idle_host():
    result = run(make_host(), ())

    assert (result.admitted, result.rejected, result.duration) == (0, 0, 0.0)
    assert result.end.largest["cpu"] == 4


def test_progress_is_reported():
    calls: list[tuple[int, int]] = []

    run(
        make_host(), arriving_in_order(small("a"), small("b")), progress=lambda done, total: calls.append((done, total))
    )

    assert calls[-1] == (2, 2)


@some
@given(hosts(), workloads())
def test_no_resource_is_allocated_twice_or_lost(kubelet, events):
    again = Host(kubelet.machine, kubelet.settings)
    idle = kubelet.ledger

    result = run(kubelet, events)

    check_sound(kubelet, "after the last event")
    event(f"{result.admitted} admitted")
    assert {outcome.pod.uid for outcome in result.outcomes if outcome.admitted} >= set(kubelet.ledger.pods)
    for placement in (placement for outcome in result.outcomes for placement in outcome.placements):
        assert not placement.cpus & ~kubelet.view.all_cpus
        assert not placement.nodes & ~kubelet.view.all_nodes
    assert to_document(run(again, events)) == to_document(result)
    for uid in tuple(kubelet.ledger.pods):
        kubelet.release(uid)
    assert (kubelet.ledger.pods, kubelet.ledger.used) == ({}, UsedResources())
    assert kubelet.ledger.cpus.shared == idle.cpus.shared
    assert kubelet.ledger.memory.nodes == idle.memory.nodes
    assert kubelet.ledger.devices.free == idle.devices.free


@some
@given(workloads())
def test_single_numa_node_puts_every_container_on_one_node(events):
    result = run(make_host(), events)

    assert result.containers.on_several == 0


class Clock:
    """Advances by *step* on every call."""

    def __init__(self, step: float) -> None:
        self.step, self.time = step, 0.0

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def calls_of(step: float, counts: list[int], total: int) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    reporter = ProgressReporter(lambda done, all_: calls.append((done, all_)), total, now=Clock(step))
    for count in counts:
        reporter.report(count)
    return calls


def test_slow_work_is_reported_step_by_step():
    assert calls_of(1.0, [1, 2, 3], 3) == [(1, 3), (2, 3), (3, 3)]


def test_fast_work_is_reported_at_most_once_per_interval():
    calls = calls_of(MIN_INTERVAL / 10, list(range(1, 1001)), 1000)

    assert calls[-1] == (1000, 1000)
    assert len(calls) <= 1000 / 10 + 2


def test_the_end_is_reported_exactly_once():
    assert calls_of(0.0, [1, 2, 2], 2) == [(2, 2)]
