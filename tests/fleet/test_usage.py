"""How much is given out: at the end, at the most, over time."""

from hypothesis import given

from alignup.align.fit import PODS
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.fleet.admission import admit
from alignup.fleet.events import PodArrival
from alignup.fleet.usage import UsageMeter, UsageStats
from tests.align.hosts import GIB, GPU, NIC, host, hosts, pod
from tests.fleet.workloads import some, workloads


def test_an_idle_host_gives_nothing_out():
    uses = UsageMeter(host(), 0.0).uses()

    assert uses[0] == {
        "cpu": UsageStats(3, 0, 0, 0.0),
        "memory": UsageStats(16 * GIB - (64 << 20), 0, 0, 0.0),
        GPU: UsageStats(1, 0, 0, 0.0),
        NIC: UsageStats(1, 0, 0, 0.0),
    }
    assert uses[None]["cpu"] == UsageStats(7, 0, 0, 0.0)
    assert uses[None][GPU] == UsageStats(2, 0, 0, 0.0)
    assert uses[None][PODS] == UsageStats(110, 0, 0, 0.0)


def test_the_mean_weighs_what_was_given_out_by_how_long_it_was():
    one = host()
    meter = UsageMeter(one, 10.0)
    admit(one, pod("a", cpu="2"))
    meter.note(12.0, one.ledger)
    admit(one, pod("b", cpu="4"))
    meter.note(13.0, one.ledger)
    one.release("b")
    meter.note(14.0, one.ledger)
    meter.note(20.0, one.ledger)

    uses = meter.uses()

    assert meter.duration == 10.0
    assert uses[None]["cpu"] == UsageStats(7, 2, 6, (2 * 1 + 6 * 1 + 2 * 6) / 10)
    assert uses[0]["cpu"] == UsageStats(3, 2, 2, 2 * 8 / 10)
    assert uses[1]["cpu"] == UsageStats(4, 0, 4, 4 / 10)
    assert uses[None][PODS] == UsageStats(110, 1, 2, (1 + 2 + 6) / 10)


def test_a_device_on_two_nodes_counts_on_both_and_once_in_all():
    one = host(Policy.BEST_EFFORT)
    one.update_devices(NIC, [Device(NIC, "x", nodes=3)])
    admit(one, pod("a", nic="1"))

    uses = UsageMeter(one, 0.0).uses()

    assert [uses[node][NIC].end for node in (0, 1, None)] == [1, 1, 1]


def test_what_nobody_manages_is_not_measured():
    uses = UsageMeter(host(memory=False), 0.0).uses()

    assert set(uses[0]) == {"cpu", GPU, NIC}


@some
@given(hosts(), workloads())
def test_nodes_add_up_and_nothing_exceeds_what_there_is(one, events):
    meter = UsageMeter(one, 0.0)
    for event in events:
        if isinstance(event, PodArrival):
            admit(one, event.pod)
        else:
            one.release(event.uid)
        meter.note(event.time, one.ledger)

    uses = meter.uses()

    for node, own in uses.items():
        for resource, use in own.items():
            assert 0 <= use.end <= use.peak, (node, resource)
            assert use.peak <= use.total
            assert -1e-9 <= use.mean <= use.peak + 1e-9
    for resource in ("cpu", "memory"):
        if resource in uses[None]:
            per_node = [own[resource] for node, own in uses.items() if node is not None and resource in own]
            assert sum(use.end for use in per_node) == uses[None][resource].end
            assert sum(use.total for use in per_node) == uses[None][resource].total
