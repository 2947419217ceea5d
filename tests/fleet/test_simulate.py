"""Workloads played on hosts."""

from dataclasses import replace

import pytest
from hypothesis import event, given

from alignup.align.admit import POLICY_ANNOTATION
from alignup.align.errors import TraceError
from alignup.align.fit import UsedResources
from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.align.workload import Pod
from alignup.fleet.events import PodArrival, PodDeparture
from alignup.fleet.report import to_document
from alignup.fleet.simulate import INVALID, AlignmentCounts, run
from tests.align.hosts import GIB, GPU, NIC, host, hosts
from tests.fleet.workloads import came, small, some, workloads
from tests.soundness import check_sound
from tests.strategies_pods import container

BOTH = 3


class TestFates:
    def test_pods_are_placed_and_refused_as_the_host_decides(self):
        result = run(host(), came(small("a", gpu="1"), small("b", cpu="4"), small("c", cpu="3"), small("d", cpu="1")))

        assert [(fate.uid, fate.admitted, fate.nodes) for fate in result.outcomes] == [
            ("a", True, 1),
            ("b", True, 2),
            ("c", False, 0),
            ("d", True, 1),
        ]
        assert result.reasons == {"TopologyAffinityError": 1}
        assert (result.admitted, result.refused) == (3, 1)

    def test_a_refusal_says_why(self):
        (fate,) = run(host(), came(small("a", cpu="5"))).outcomes

        assert fate.rejection
        assert (fate.rejection.reason, fate.rejection.container) == ("TopologyAffinityError", "app")
        assert {(short.resource, short.missing, short.nodes) for short in fate.rejection.shortfalls} == {
            ("cpu", 2, 1),
            ("cpu", 1, 2),
        }

    def test_what_leaves_makes_room(self):
        events = (PodArrival(0, small("a", cpu="4")), PodDeparture(5, "a"), PodArrival(5, small("b", cpu="4")))

        assert run(host(), events).admitted == 2

    def test_the_time_of_arrival_is_kept(self):
        assert [fate.time for fate in run(host(), came(small("a"), small("b"), every=2.5)).outcomes] == [0.0, 2.5]

    def test_a_pod_no_host_takes_is_refused_and_the_rest_goes_on(self):
        chooser = replace(small("a"), annotations={POLICY_ANNOTATION: "strictest"})
        result = run(host(pod_policy_annotations=True), came(chooser, small("b")))

        assert [fate.admitted for fate in result.outcomes] == [False, True]
        assert result.reasons == {INVALID: 1}
        assert "strictest" in str(result.outcomes[0].rejection)

    def test_device_plugins_that_want_to_be_asked_are_answered_for(self):
        one = host(preferred_allocation=frozenset({GPU}))

        result = run(one, came(small("a", gpu="1")))

        assert result.outcomes[0].places[0].devices == {GPU: ("gpu-0",)}

    def test_a_refused_pod_may_leave(self):
        result = run(host(), [PodArrival(0, small("a", cpu="9")), PodDeparture(1, "a"), PodDeparture(2, "nobody")])

        assert (result.refused, result.duration) == (1, 2)

    def test_what_cannot_happen_is_refused_before_anything_does(self):
        one = host()
        before = one.ledger

        with pytest.raises(TraceError, match="pod a arrives at 1 s, but is there since 0 s"):
            run(one, came(small("a"), small("a")))

        assert one.ledger is before


class TestAlignment:
    def test_pods_and_containers_are_counted(self):
        shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "100m"}),))
        result = run(host(Policy.BEST_EFFORT, memory=False), came(small("a", cpu="1"), small("b", cpu="5"), shared))

        assert result.pods == AlignmentCounts(on_one=1, on_several=1, anywhere=1)
        assert result.containers == result.pods

    def test_a_pod_of_two_containers_on_two_nodes_is_not_on_one(self):
        one = small("a", cpu="3")
        other = replace(one.containers[0], name="other")
        result = run(host(), came(replace(one, containers=(*one.containers, other))))

        assert result.pods == AlignmentCounts(on_one=0, on_several=1, anywhere=0)
        assert result.containers == AlignmentCounts(on_one=2, on_several=0, anywhere=0)
        assert result.outcomes[0].nodes == BOTH


class TestMoments:
    def test_nobody_leaves_so_demand_is_highest_at_the_end(self):
        result = run(host(), came(small("a"), small("b")))

        assert result.height == result.end
        assert result.end.room[0] == {"cpu": 1, "memory": 15 * GIB - (64 << 20), GPU: 1, NIC: 1}
        assert result.end.largest == {"cpu": 2, "memory": 15 * GIB, GPU: 1, NIC: 1}

    def test_in_the_end_a_host_may_be_idle_again(self):
        one = host()
        idle = one.ledger.cpus.available
        result = run(one, [*came(small("a"), small("b")), PodDeparture(9, "a"), PodDeparture(9, "b")])

        assert result.height.time == 1.0
        assert set(result.height.ledger.pods) == {"a", "b"}
        assert result.end.ledger.cpus.available == idle
        assert result.end.ledger is one.ledger

    def test_pods_that_were_refused_are_part_of_demand(self):
        events = [
            *came(small("a"), small("b", cpu="9")),
            PodDeparture(2, "b"),
            PodArrival(3, small("c")),
            PodDeparture(9, "c"),
        ]

        assert run(host(), events).height.time == 1.0

    def test_stranded_is_what_the_workload_cannot_use(self):
        result = run(host(), came(small("a", cpu="2"), small("b", cpu="3")))

        assert (result.end.stranded.cpus, result.end.stranded.more) == (2, 0)


def test_an_empty_workload_leaves_an_idle_host():
    result = run(host(), ())

    assert (result.admitted, result.refused, result.duration) == (0, 0, 0.0)
    assert result.end.largest["cpu"] == 4


def test_progress_is_told():
    calls: list[tuple[int, int]] = []

    run(host(), came(small("a"), small("b")), progress=lambda done, total: calls.append((done, total)))

    assert calls[-1] == (2, 2)


@some
@given(hosts(), workloads())
def test_whatever_happens_nothing_is_given_twice_and_nothing_is_lost(one, events):
    again = Host(one.machine, one.settings)
    idle = one.ledger

    result = run(one, events)

    check_sound(one, "after the last event")
    event(f"{result.admitted} admitted")
    assert {fate.uid for fate in result.outcomes if fate.admitted} >= set(one.ledger.pods)
    for place in (place for fate in result.outcomes for place in fate.places):
        assert not place.cpus & ~one.view.all_cpus
        assert not place.nodes & ~one.view.all_nodes
    assert to_document(run(again, events)) == to_document(result)
    for uid in tuple(one.ledger.pods):
        one.release(uid)
    assert (one.ledger.pods, one.ledger.used) == ({}, UsedResources())
    assert one.ledger.cpus.shared == idle.cpus.shared
    assert one.ledger.memory.nodes == idle.memory.nodes
    assert one.ledger.devices.free == idle.devices.free


@some
@given(workloads())
def test_a_strict_host_has_every_container_on_one_node(events):
    result = run(host(), events)

    assert result.containers.on_several == 0
