"""Distances that cannot be true, and the kernel's own balancing."""

from dataclasses import replace

import pytest

from alignup.align.machine import Distances
from alignup.doctor.configuration import check_configuration
from alignup.doctor.findings import Severity
from alignup.kubernetes.manifests.documents import to_yaml
from alignup.machines import load_machine

KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "topologyManagerPolicy": "best-effort",
}
CLOSEST = {"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}}


def findings(matrix=((10, 20), (20, 10)), balancing=None, **fields):
    """The findings about the machine itself."""
    distances = Distances({a: dict(enumerate(row)) for a, row in enumerate(matrix)})
    machine = replace(load_machine("numa:2(memory=8GiB) core:4 pu:1"), distances=distances, numa_balancing=balancing)
    report = check_configuration(to_yaml(KUBELET | fields).encode(), machine, name="kubelet.yaml")
    return [finding for finding in report.findings if finding.where == "machine"]


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        pytest.param(((10, 20), (21, 10)), "it is 20 from NUMA node 0 to 1, and 21 back", id="asymmetric"),
        pytest.param(((10, 10), (10, 10)), "NUMA nodes 0 and 1 have 10", id="remote as near as local"),
        pytest.param(((10, 255), (255, 10)), "NUMA nodes 0 and 1 have 255", id="unreachable"),
        pytest.param(((0, 20), (20, 10)), "NUMA node 0 has 0 to itself, not 10", id="local distance of 0"),
    ],
)
def test_implausible_distances_are_a_warning_where_they_decide(matrix, text):
    (finding,) = findings(matrix, **CLOSEST)
    (harmless,) = findings(matrix)

    assert (finding.severity, harmless.severity) == (Severity.WARNING, Severity.NOTE)
    assert text in finding.summary


def test_usual_distances_are_not_mentioned():
    assert findings(((10, 11), (11, 10)), **CLOSEST) == []
    assert findings(((10, 254), (254, 10)), **CLOSEST) == []


@pytest.mark.parametrize(
    ("balancing", "policy", "warned"),
    [(1, "static", True), (2, "static", True), (0, "static", False), (None, "static", False), (1, "none", False)],
)
def test_the_kernels_balancing_is_a_warning_beside_static_managers(balancing, policy, warned):
    reported = findings(balancing=balancing, cpuManagerPolicy=policy)

    assert [finding.severity for finding in reported] == [Severity.WARNING] * warned
