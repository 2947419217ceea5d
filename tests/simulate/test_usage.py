from hypothesis import given

from alignup.align.fit import PODS
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.simulate.arrivals import PodArrival
from alignup.simulate.container_placements import admit
from alignup.simulate.usage import UsageMeter, UsageStats
from tests.align.hosts import GIB, GPU, NIC, hosts, make_host, make_pod
from tests.simulate.workloads import some, workloads


def test_an_idle_host_has_no_usage():
    usage = UsageMeter(make_host(), 0.0).stats()

    assert usage[0] == {
        "cpu": UsageStats(3, 0, 0, 0.0),
        "memory": UsageStats(16 * GIB - (64 << 20), 0, 0, 0.0),
        GPU: UsageStats(1, 0, 0, 0.0),
        NIC: UsageStats(1, 0, 0, 0.0),
    }
    assert usage[None]["cpu"] == UsageStats(7, 0, 0, 0.0)
    assert usage[None][GPU] == UsageStats(2, 0, 0, 0.0)
    assert usage[None][PODS] == UsageStats(110, 0, 0, 0.0)


def test_the_mean_is_weighted_by_time():
    kubelet = make_host()
    meter = UsageMeter(kubelet, 10.0)
    admit(kubelet, make_pod("a", cpu="2"))
    meter.record(12.0, kubelet.ledger)
    admit(kubelet, make_pod("b", cpu="4"))
    meter.record(13.0, kubelet.ledger)
    kubelet.release("b")
    meter.record(14.0, kubelet.ledger)
    meter.record(20.0, kubelet.ledger)

    usage = meter.stats()

    assert meter.duration == 10.0
    assert usage[None]["cpu"] == UsageStats(7, 2, 6, (2 * 1 + 6 * 1 + 2 * 6) / 10)
    assert usage[0]["cpu"] == UsageStats(3, 2, 2, 2 * 8 / 10)
    assert usage[1]["cpu"] == UsageStats(4, 0, 4, 4 / 10)
    assert usage[None][PODS] == UsageStats(110, 1, 2, (1 + 2 + 6) / 10)


def test_a_device_on_two_nodes_counts_on_both_and_once_in_total():
    kubelet = make_host(Policy.BEST_EFFORT)
    kubelet.update_devices(NIC, [Device(NIC, "x", nodes=3)])
    admit(kubelet, make_pod("a", nic="1"))

    usage = UsageMeter(kubelet, 0.0).stats()

    assert [usage[node][NIC].end for node in (0, 1, None)] == [1, 1, 1]


def test_unmanaged_resources_are_not_measured():
    usage = UsageMeter(make_host(memory=False), 0.0).stats()

    assert set(usage[0]) == {"cpu", GPU, NIC}


@some
@given(hosts(), workloads())
def test_nodes_add_up_and_usage_never_exceeds_the_total(kubelet, events):
    meter = UsageMeter(kubelet, 0.0)
    for event in events:
        if isinstance(event, PodArrival):
            admit(kubelet, event.pod)
        else:
            kubelet.release(event.uid)
        meter.record(event.time, kubelet.ledger)

    usage, now = meter.stats(), UsageMeter(kubelet, 0.0).stats()

    assert usage.keys() == now.keys()
    for node, stats in usage.items():
        assert {name: use.end for name, use in stats.items()} == {name: use.end for name, use in now[node].items()}
        for resource, use in stats.items():
            assert 0 <= use.end <= use.peak, (node, resource)
            assert use.peak <= use.total
            assert -1e-9 <= use.mean <= use.peak + 1e-9
    for resource in ("cpu", "memory"):
        if resource in usage[None]:
            per_node = [stats[resource] for node, stats in usage.items() if node is not None and resource in stats]
            assert sum(use.end for use in per_node) == usage[None][resource].end
            assert sum(use.total for use in per_node) == usage[None][resource].total
