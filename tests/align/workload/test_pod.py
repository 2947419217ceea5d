from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Pod, PodClaim, QoS, Resources
from tests.strategies_pods import aligned, amounts, container, guaranteed, pods

BOTH = {"cpu": "2", "memory": "1Gi"}
IDLE = container("idle")


def test_pod_level_resources_override_those_of_containers():
    silent = Pod(name="p", containers=(IDLE,))
    firm = replace(silent, resources=Resources(amounts(BOTH), amounts(BOTH)))
    off_topic = replace(silent, resources=Resources(amounts({"x.y/gpu": "1"})))

    assert firm.qos is QoS.GUARANTEED
    assert off_topic.qos is QoS.BEST_EFFORT
    assert not off_topic.has_pod_level_resources


def test_a_recorded_class_wins():
    pod = Pod(name="p", containers=(IDLE,), recorded_qos=QoS.GUARANTEED)

    assert pod.qos is QoS.GUARANTEED
    assert pod.computed_qos is QoS.BEST_EFFORT


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("2000m", 2, id="in thousandths"),
        pytest.param("1500m", 0, id="one and a half is not whole"),
        pytest.param("1.9999999", 2, id="less than a thousandth short is rounded up"),
    ],
)
def test_whole_cpus(text, cpus):
    assert Resources(amounts({"cpu": text})).whole_cpus == cpus


@given(pods(asks=aligned, with_pod_level=False))
def test_a_pod_of_guaranteed_containers_is_guaranteed(pod):
    assert pod.qos is QoS.GUARANTEED


@given(pods(with_pod_level=False))
def test_order_of_containers_never_matters_to_the_class(pod):
    turned = replace(pod, init=pod.init[::-1], containers=pod.containers[::-1])

    assert turned.qos is pod.qos


@pytest.mark.parametrize(
    ("pod", "uses"),
    [
        (Pod(name="p", containers=(IDLE,)), False),
        (Pod(name="p", containers=(IDLE,), claims=(PodClaim("gpu", "c"),)), True),
        (Pod(name="p", containers=(container("a", {"deviceclass.resource.kubernetes.io/gpu": "1"}),)), True),
    ],
)
def test_claims_may_serve_extended_resources(pod, uses):
    assert pod.uses_claims is uses


def test_pods_with_equal_requests_have_the_same_request_key():
    first = Pod(name="one", uid="one", containers=(guaranteed("app", {"cpu": "2"}),))
    renamed = replace(first, name="two", uid="two", namespace="other", labels={"app": "two"})
    larger = replace(first, containers=(guaranteed("app", {"cpu": "3"}),))

    assert renamed.request_key == first.request_key != larger.request_key


def test_amounts_may_be_text():
    text: Any = {"cpu": "4", "memory": Quantity.parse("1Gi")}
    resources = Resources(text, limits=text)

    assert resources == Resources(amounts({"cpu": "4", "memory": "1Gi"}), amounts({"cpu": "4", "memory": "1Gi"}))
    assert (resources.qos, resources.whole_cpus) == (QoS.GUARANTEED, 4)
    assert Pod(name="p", overhead=text).overhead["cpu"] == Quantity.of(4)


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"cpu": "4 cores"}, QuantityError, r'limits\[cpu\]: "4 cores": quantities must match .*; write 4$'),
        ({"cpu": 4}, TypeError, r"limits\[cpu\] needs a Quantity or its text, not int"),
        (None, TypeError, "limits needs a Mapping of resources to amounts, not NoneType"),
    ],
)
def test_amounts_of_another_kind_are_refused(limits: Any, error, message):
    with pytest.raises(error, match=message):
        Resources(limits=limits)
