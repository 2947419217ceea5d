"""Gauges, the text format, and the duration histogram."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from alignup.agent.metrics import BUCKETS, DURATION, Metrics
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.settings import Policy
from alignup.machines.synthetic import parse
from alignup.web.metrics import metrics_lines
from tests.agent.fake_backend import GPU, host
from tests.agent.test_decision_metrics import TWO, container, pod

GIB = 1 << 30


def read(metrics):
    """Name and labels → value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families("".join(metrics_lines(metrics.registry)))
        for sample in family.samples
    }


def test_gauges_show_the_use_of_each_node():
    on = host(Policy.SINGLE_NUMA_NODE)
    metrics = Metrics(lambda: on, waiting=lambda: 3)
    on.admit(pod(container("a", cpu="4", memory="2Gi", gpu="1")))

    seen = read(metrics)

    assert {key[1:]: value for key, value in seen.items() if key[0] == "alignup_numa_cpus"} == {
        ("0", "free"): 2,
        ("0", "held"): 4,
        ("0", "reserved"): 2,
        ("1", "free"): 8,
        ("1", "held"): 0,
        ("1", "reserved"): 0,
    }
    assert seen["alignup_numa_memory_bytes", "0", "held", "memory"] == 2 * GIB
    assert seen["alignup_numa_memory_bytes", "0", "free", "memory"] == 13 * GIB
    assert seen["alignup_numa_memory_bytes", "0", "reserved", "memory"] == GIB
    assert [seen["alignup_numa_devices", "0", GPU, state] for state in ("free", "held", "unhealthy")] == [1, 1, 0]
    assert (seen["alignup_pods", "admitted"], seen["alignup_pods", "waiting"]) == (1, 3)


def test_gauges_return_to_0_after_a_release():
    on = host()
    metrics = Metrics(lambda: on)
    before = read(metrics)
    on.admit(TWO)
    assert read(metrics) != before

    on.release(TWO.uid)

    assert read(metrics) == before


def test_devices_near_several_nodes_are_counted_once_and_unhealthy_ones_apart():
    on = host()
    on.update_devices(GPU, [Device(GPU, "a", 0b11), Device(GPU, "b", None), Device(GPU, "c", 0b10, healthy=False)])

    seen = {key[1:]: value for key, value in read(Metrics(lambda: on)).items() if key[0] == "alignup_numa_devices"}

    assert {key for key, value in seen.items() if value} == {
        ("0-1", GPU, "free"),
        ("none", GPU, "free"),
        ("1", GPU, "unhealthy"),
    }


def test_unmanaged_resources_have_no_gauges():
    on = Host(parse("numa:2(memory=1GiB) core:2 pu:1"))

    names = {key[0] for key in read(Metrics(lambda: on))}

    assert not {name for name in names if name.startswith(("alignup_numa", "kubelet_cpu_manager_allocation"))}
    assert "kubelet_container_aligned_compute_resources_count" not in names


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        pytest.param(0.0, 0.05, id="no time"),
        pytest.param(0.0009, 0.05, id="less than a millisecond counts as zero"),
        pytest.param(0.0019, 1.6, id="fractions are dropped"),
        pytest.param(0.0512, 51.2, id="just inside"),
        pytest.param(0.052, 102.4, id="just outside"),
        pytest.param(145.3, math.inf, id="beyond all buckets"),
    ],
)
def test_durations_fall_into_the_kubelets_buckets(seconds, bucket):
    on = host()
    metrics = Metrics(lambda: on)

    metrics.decided(on.decide(TWO), pod=TWO, seconds=seconds)

    seen = read(metrics)
    full = [float(key[1]) for key, value in seen.items() if key[0] == DURATION + "_bucket" and value == 1]
    assert sorted(full) == [limit for limit in (*BUCKETS, math.inf) if limit >= bucket]
    assert (seen[(DURATION + "_sum",)], seen[(DURATION + "_count",)]) == (int(seconds * 1000), 1)


def test_label_values_are_escaped():
    on = host()
    odd = 'a"b\\c\nd{}'
    on.update_devices(odd, [Device(odd, "x", 1)])

    assert read(Metrics(lambda: on))["alignup_numa_devices", "0", odd, "free"] == 1
