"""Resizes of running pods under the policies of the managers, release by release."""

from dataclasses import replace
from typing import Any

import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.release import find_release
from alignup.align.resize import ResizeOutcome, ResizeVerdict, decide_resize
from alignup.align.settings import FeatureGates, TopologySettings
from tests.align.hosts import make_host, pod

GUARANTEED = pod("web", cpu="2", memory="1Gi")
STATIC_CPU = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
STATIC_MEMORY = 'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"'


NO_POLICIES: dict[str, Any] = {
    "cpus": CpuSettings(),
    "memory_policy": "None",
    "topology": TopologySettings(),
}


def resize(resized, running=GUARANTEED, *, release="1.37", others=(), **settings):
    host = make_host(release=find_release(release), **settings)
    for admitted in (running, *others):
        assert host.admit(admitted).admitted
    return decide_resize(host, running, resized)


@pytest.mark.parametrize(
    ("amounts", "release", "message"),
    [
        ({"cpu": "3", "memory": "1Gi"}, "1.37", STATIC_CPU),
        ({"cpu": "2", "memory": "2Gi"}, "1.36", STATIC_MEMORY),
        ({"cpu": "2500m", "memory": "1Gi"}, "1.34", STATIC_CPU),
        (
            {"cpu": "2", "memory": "2Gi"},
            "1.33",
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy",
        ),
    ],
)
def test_a_guaranteed_pod_cannot_be_resized_under_a_static_policy(amounts, release, message):
    assert resize(pod("web", **amounts), release=release) == (ResizeOutcome.INFEASIBLE, message)


def test_a_gate_permits_it():
    gates = FeatureGates({"InPlacePodVerticalScalingExclusiveCPUs": True})

    assert resize(pod("web", cpu="3", memory="1Gi"), gates=gates).outcome is ResizeOutcome.DONE


def test_without_static_policies_any_pod_can_be_resized():
    verdict = resize(pod("web", cpu="3", memory="1Gi"), **NO_POLICIES)

    assert verdict == (ResizeOutcome.DONE, "")


def test_a_resize_waits_until_the_node_has_enough():
    others = [pod("other", cpu="3", memory="1Gi")]

    verdict = resize(pod("web", cpu="5", memory="1Gi"), others=others, **NO_POLICIES)

    assert verdict.outcome is ResizeOutcome.DEFERRED
    assert verdict.message.startswith("Node didn't have enough resource: cpu, requested: 5000, used: 3000")


@pytest.mark.parametrize(("release", "outcome"), [("1.35", "infeasible"), ("1.36", "deferred")])
def test_more_than_the_node_has_is_infeasible_up_to_1_35(release, outcome):
    verdict = resize(pod("web", cpu="100", memory="1Gi"), release=release, **NO_POLICIES)

    assert verdict.outcome == outcome
    assert "cpu, requested: 100000" in verdict.message


def test_resizes_can_be_disabled_up_to_1_34():
    gates = FeatureGates({"InPlacePodVerticalScaling": False}, find_release("1.34"))

    assert resize(GUARANTEED, release="1.34", gates=gates).message == "InPlacePodVerticalScaling is disabled"


def pod_level(cpu):
    return replace(pod("web", cpu="1"), resources=pod("web", cpu=cpu).containers[0].resources)


@pytest.mark.parametrize(
    ("release", "gates", "message"),
    [
        ("1.33", {"PodLevelResources": True}, "pods with pod-level resources cannot be resized"),
        ("1.34", {}, "pods with pod-level resources cannot be resized"),
        ("1.35", {}, "InPlacePodLevelResourcesVerticalScaling is disabled"),
        (
            "1.37",
            {"InPlacePodLevelResourcesVerticalScaling": False},
            "InPlacePodLevelResourcesVerticalScaling is disabled",
        ),
    ],
)
def test_pod_level_resources_cannot_be_resized_without_their_feature_gate(release, gates, message):
    changed = FeatureGates(gates, find_release(release))

    verdict = resize(pod_level("3"), pod_level("2"), release=release, gates=changed, **NO_POLICIES)

    assert verdict == (ResizeOutcome.INFEASIBLE, message)


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_pod_level_resources_can_be_resized_since_1_36(release):
    assert resize(pod_level("3"), pod_level("2"), release=release, **NO_POLICIES).outcome is ResizeOutcome.DONE


def test_pod_level_resources_are_ignored_in_a_resize_without_their_gate():
    assert resize(pod_level("100"), pod_level("2"), release="1.33", **NO_POLICIES).outcome is ResizeOutcome.DONE


def test_without_a_fit_check_any_size_is_done():
    assert resize(pod("web", cpu="100", memory="1Gi"), fit_check=False, **NO_POLICIES).outcome is ResizeOutcome.DONE


def test_a_small_resize_is_done_in_1_35():
    verdict = resize(pod("web", cpu="3", memory="1Gi"), release="1.35", **NO_POLICIES)

    assert verdict.describe(pod("web")) == "The resize of pod default/web is done"


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(ResizeOutcome.DONE, ""), (ResizeOutcome.DEFERRED, "Deferred"), (ResizeOutcome.INFEASIBLE, "Infeasible")],
)
def test_outcomes_have_the_reasons_of_the_kubelet(outcome, code):
    assert ResizeVerdict(outcome).code == code
