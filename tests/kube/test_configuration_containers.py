"""What a kubelet's configuration says about running containers."""

import json

import pytest

from alignup.align import synthetic
from alignup.align.errors import ConfigurationError
from alignup.align.quantity import Quantity
from alignup.kube.configuration import (
    Configuration,
    ContainerSettings,
    container_settings,
    ignored_fields,
    pods_limits,
    read,
)
from alignup.kube.configuration.containers import _OPTIONS, _UNHEEDED
from alignup.kube.configuration.schema import FIELDS


def given(**fields):
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    return read(json.dumps({**head, **fields}))


def test_a_file_that_says_nothing_means_the_defaults():
    assert container_settings(given()) == container_settings(Configuration()) == ContainerSettings()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"seccompDefault": True}, {"seccomp_default": True}, id="seccomp for all who do not say"),
        pytest.param({"containerLogMaxSize": "50Mi"}, {"log_max_bytes": 50 << 20}, id="larger logs"),
        pytest.param({"containerLogMaxSize": "-1"}, {"log_max_bytes": -1}, id="logs without end"),
        pytest.param({"containerLogMaxSize": ""}, {}, id="an empty text is as good as nothing"),
        pytest.param({"containerLogMaxFiles": 2}, {"log_max_files": 2}, id="fewer logs"),
        pytest.param({"cpuCFSQuota": False}, {"cpu_quota": False}, id="no quota"),
        pytest.param({"cpuCFSQuotaPeriod": "5ms"}, {"cpu_period": 5_000}, id="a shorter period"),
        pytest.param({"cpuCFSQuotaPeriod": None}, {}, id="null means the default"),
        pytest.param({"podPidsLimit": 1024}, {"pids_limit": 1024}, id="so many processes"),
        pytest.param({"podPidsLimit": -5}, {}, id="any number of processes"),
        pytest.param({"singleProcessOOMKill": True}, {"oom_kill_group": False}, id="killed one by one"),
    ],
)
def test_what_is_heeded(fields, expected):
    assert container_settings(given(**fields)) == ContainerSettings(**expected)


@pytest.mark.parametrize(
    ("fields", "field", "what"),
    [
        pytest.param(
            {"cpuCFSQuotaPeriod": "2s"},
            "cpuCFSQuotaPeriod",
            "invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, "
            "inclusive",
            id="a period too long",
        ),
        pytest.param(
            {"cpuCFSQuotaPeriod": "999us"}, "cpuCFSQuotaPeriod", "999µs must be between 1ms", id="a period too short"
        ),
        pytest.param(
            {"cpuCFSQuotaPeriod": "10ms", "featureGates": {"CustomCPUCFSQuotaPeriod": False}},
            "cpuCFSQuotaPeriod",
            "10ms requires feature gate CustomCPUCFSQuotaPeriod",
            id="a period of one's own that the gate forbids",
        ),
        pytest.param(
            {"containerLogMaxFiles": 1},
            "containerLogMaxFiles",
            "invalid configuration: containerLogMaxFiles must be greater than 1",
            id="a single log",
        ),
        pytest.param(
            {"containerLogMaxSize": "much"},
            "containerLogMaxSize",
            'failed to parse container log max size "much"',
            id="no size",
        ),
    ],
)
def test_what_keeps_a_kubelet_from_starting(fields, field, what):
    with pytest.raises(ConfigurationError) as raised:
        container_settings(given(**fields))

    (problem,) = raised.value.problems
    assert problem.field == field
    assert what in problem.what


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigurationError) as raised:
        container_settings(given(containerLogMaxFiles=0, containerLogMaxSize="x", cpuCFSQuotaPeriod="0s"))

    assert [one.field for one in raised.value.problems] == [
        "cpuCFSQuotaPeriod",
        "containerLogMaxFiles",
        "containerLogMaxSize",
    ]


@pytest.mark.parametrize(
    ("fields", "cpu", "memory"),
    [
        pytest.param({}, "8", "8Gi", id="nothing is reserved"),
        pytest.param(
            {"reservedSystemCPUs": "0", "systemReserved": {"memory": "1Gi"}, "kubeReserved": {"memory": "512Mi"}},
            "7",
            "6656Mi",
            id="what is reserved is taken off, and thresholds are not",
        ),
        pytest.param(
            {"systemReserved": {"memory": "1Gi"}, "enforceNodeAllocatable": ["none"]}, "8", "8Gi", id="not enforced"
        ),
    ],
)
def test_what_all_pods_together_are_held_to(fields, cpu, memory):
    machine = synthetic.parse("pack:2 numa:1(memory=4GiB) core:4 pu:1")

    found = pods_limits(given(**fields), machine)

    assert (found["cpu"], found["memory"]) == (Quantity.parse(cpu), Quantity.parse(memory))


def test_what_is_not_heeded_is_named_with_the_option_that_says_it():
    found = ignored_fields(given(clusterDNS=["10.0.0.10"], cgroupDriver="systemd", maxPods=20, memorySwap={}))

    assert found == (
        "not heeded where an agent runs pods: cgroupDriver (--cgroup-driver says it here), clusterDNS, memorySwap",
    )


def test_a_file_without_such_fields_is_not_worth_a_word():
    assert ignored_fields(given(topologyManagerPolicy="restricted", port=1, seccompDefault=True)) == ()


def test_only_fields_that_there_are_are_looked_for():
    assert not (_UNHEEDED | _OPTIONS.keys()) - FIELDS.keys()
