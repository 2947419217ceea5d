from dataclasses import replace

import pytest
from hypothesis import given

from alignup.align.quantity import Quantity
from alignup.align.workload import Container, ContainerStatus, Pod, Resources
from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod import pod_to_dict, read_pod
from tests.strategies_pods import pods

TWO = {"cpu": Quantity.parse("2")}


@given(pods())
def test_pods_round_trip(pod):
    assert read_pod(pod_to_dict(pod)) == pod
    assert accept(read_pod(pod_to_dict(accept(pod)))) == accept(pod)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": {"app": "web"}, "annotations": {"a/b": "c"}}, id="labels and annotations"),
        pytest.param({"claims": ("gpu",)}, id="resource claims"),
        pytest.param({"priority": 0, "os": "linux"}, id="priority and operating system"),
        pytest.param({"statuses": {"app": ContainerStatus(TWO, TWO)}}, id="container statuses"),
        pytest.param({"resize_infeasible": True}, id="an infeasible resize"),
        pytest.param({"uid": "1-2-3", "namespace": "prod"}, id="uid and namespace"),
    ],
)
def test_all_fields_are_written(changes):
    own = Resources(TWO, TWO, claims=("gpu",) if "claims" in changes else ())
    pod = replace(Pod(name="p", containers=(Container("app", own),)), **changes)

    assert read_pod(pod_to_dict(pod)) == pod


def test_empty_fields_are_omitted():
    assert pod_to_dict(Pod(name="p", containers=(Container("app"),))) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "app"}]},
    }
