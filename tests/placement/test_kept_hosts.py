"""Hosts that are kept for a gang: all of it fits there once the other pods have ended."""

from unittest.mock import create_autospec

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.align.host import Host
from alignup.align.settings import Policy
from alignup.placement.cluster import Cluster
from alignup.placement.kept_hosts import admits_alone, find_hosts
from tests.align.hosts import host, pod
from tests.effort import examples
from tests.placement.clusters import report

sizes = st.lists(st.sampled_from("1234"), max_size=4)


@settings(max_examples=examples(100))
@given(running=st.lists(sizes, min_size=1, max_size=3), gang=sizes, forbidden=st.sets(st.sampled_from("abc")))
def test_the_pods_of_each_host_fit_there_without_others(running, gang, forbidden):
    cluster = Cluster()
    for name, cpus in zip("abc", running, strict=False):
        made = host(Policy.SINGLE_NUMA_NODE)
        for number, cpu in enumerate(cpus):
            made.admit(pod(f"{name}-{number}", cpu=cpu, memory="1Gi"))
        cluster.confirm(report(name, made, 1))
    pods = [pod(f"gang-{number}", cpu=cpu, memory="1Gi") for number, cpu in enumerate(gang)]
    records = [record for name in cluster.hosts if (record := cluster.record(name))]

    hosts = find_hosts(records, pods, {each.uid: set("abc") - forbidden for each in pods})

    assert not forbidden & hosts.keys()
    placed = sorted(each.uid for held in hosts.values() for each in held)
    assert placed == (sorted(each.uid for each in pods) if hosts else [])
    for name, held in hosts.items():
        record = cluster.record(name)
        assert record is not None
        assert admits_alone(record.model, record.ledger, *held)
    if gang and not hosts:  # with one kind of pods, no others would suffice
        free = [record for record in records if record.name not in forbidden]
        same = len(set(gang)) == 1
        room = sum(count_alone(record, pods) for record in free)
        assert not same or room < len(pods)


def count_alone(record, pods):
    return max(number for number in range(len(pods) + 1) if admits_alone(record.model, record.ledger, *pods[:number]))


def test_each_host_decides_once_on_each_pod_that_it_gets_and_once_on_the_next(monkeypatch):
    """Also if there are many pods: the others of its shape are rejected as well."""
    cluster = Cluster()
    for number in range(16):
        cluster.confirm(report(f"host-{number:02}", host(Policy.SINGLE_NUMA_NODE), 1))
    records = [record for name in cluster.hosts if (record := cluster.record(name))]
    pods = [pod(f"gang-{number}", cpu="3", memory="1Gi") for number in range(32)]
    decide = create_autospec(Host.decide_without_plugins, side_effect=Host.decide_without_plugins)
    monkeypatch.setattr(Host, "decide_without_plugins", decide)

    hosts = find_hosts(records, pods, {each.uid: cluster.hosts for each in pods})

    assert [len(held) for held in hosts.values()] == [2] * 16
    assert decide.call_count == 32 + 15


def test_hosts_that_no_pod_may_use_do_not_end_the_search():
    cluster = Cluster()
    for number in range(40):
        cluster.confirm(report(f"host-{number:02}", host(Policy.SINGLE_NUMA_NODE), 1))
    records = [record for name in sorted(cluster.hosts) if (record := cluster.record(name))]

    assert list(find_hosts(records, [pod("last", cpu="3")], {"last": {"host-39"}})) == ["host-39"]
