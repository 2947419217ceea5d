import json

import pytest

from alignup.align.errors import ConfigurationError
from alignup.align.quantity import Quantity
from alignup.kubernetes.configuration import (
    Configuration,
    ContainerSettings,
    container_settings,
    ignored_fields,
    pods_limits,
    read,
)
from alignup.kubernetes.configuration.fields import FIELDS
from alignup.kubernetes.configuration.managers import IGNORED, OPTIONS
from alignup.machines import synthetic


def given(**fields):
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    return read(json.dumps({**head, **fields}))


def test_defaults():
    assert container_settings(given()) == container_settings(Configuration()) == ContainerSettings()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"seccompDefault": True}, {"seccomp_default": True}, id="seccomp by default"),
        pytest.param({"containerLogMaxSize": "50Mi"}, {"log_max_bytes": 50 << 20}, id="larger logs"),
        pytest.param({"containerLogMaxSize": "-1"}, {"log_max_bytes": -1}, id="unlimited logs"),
        pytest.param({"containerLogMaxSize": ""}, {}, id="an empty string means the default"),
        pytest.param({"containerLogMaxFiles": 2}, {"log_max_files": 2}, id="fewer logs"),
        pytest.param({"cpuCFSQuota": False}, {"cpu_quota": False}, id="no quota"),
        pytest.param({"cpuCFSQuotaPeriod": "5ms"}, {"cpu_period": 5_000}, id="a shorter period"),
        pytest.param({"cpuCFSQuotaPeriod": None}, {}, id="null means the default"),
        pytest.param({"podPidsLimit": 1024}, {"pids_limit": 1024}, id="a process limit"),
        pytest.param({"podPidsLimit": -5}, {}, id="unlimited processes"),
        pytest.param({"singleProcessOOMKill": True}, {"oom_kill_group": False}, id="single-process OOM kill"),
    ],
)
def test_container_settings(fields, expected):
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
            id="a custom period with the gate off",
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
            id="an invalid size",
        ),
    ],
)
def test_invalid_container_settings(fields, field, what):
    with pytest.raises(ConfigurationError) as raised:
        container_settings(given(**fields))

    (problem,) = raised.value.problems
    assert problem.field == field
    assert what in problem.what


def test_all_problems_are_reported_at_once():
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
        pytest.param({}, "8", "8Gi", id="no reservations"),
        pytest.param(
            {"reservedSystemCPUs": "0", "systemReserved": {"memory": "1Gi"}, "kubeReserved": {"memory": "512Mi"}},
            "7",
            "6656Mi",
            id="reservations are subtracted, thresholds are not",
        ),
        pytest.param(
            {"systemReserved": {"memory": "1Gi"}, "enforceNodeAllocatable": ["none"]}, "8", "8Gi", id="not enforced"
        ),
    ],
)
def test_pods_limits(fields, cpu, memory):
    machine = synthetic.parse("pack:2 numa:1(memory=4GiB) core:4 pu:1")

    found = pods_limits(given(**fields), machine)

    assert (found["cpu"], found["memory"]) == (Quantity.parse(cpu), Quantity.parse(memory))


def test_ignored_fields_are_listed_with_the_option_to_use():
    found = ignored_fields(given(clusterDNS=["10.0.0.10"], cgroupDriver="systemd", maxPods=20, memorySwap={}))

    assert found == ("the agent ignores cgroupDriver (use --cgroup-driver), clusterDNS, memorySwap",)


def test_no_warning_without_ignored_fields():
    assert ignored_fields(given(topologyManagerPolicy="restricted", port=1, seccompDefault=True)) == ()


def test_ignored_fields_exist():
    assert {*IGNORED.split(), *OPTIONS} <= FIELDS.keys()
