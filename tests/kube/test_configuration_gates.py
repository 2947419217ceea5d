import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ConfigurationError
from alignup.align.settings import FEATURE_GATES, FeatureStage
from alignup.kube import configuration, feature_gates

COMPOSITE_NEEDS = "GenericWorkload TopologyAwareWorkloadScheduling"
NAMES = st.sampled_from([*sorted(feature_gates.KUBELET_GATES), "AllAlpha", "AllBeta"])


def whats(chosen):
    return [problem.what for problem in feature_gates.problems(chosen)]


def test_the_gates_that_matter_are_the_same_in_the_heart():
    assert {name: feature_gates.KUBELET_GATES[name] for name in FEATURE_GATES} == FEATURE_GATES


def test_what_is_needed_is_known_and_no_gate_needs_itself():
    for name, needs in feature_gates.DEPENDENCIES.items():
        assert {name, *needs} <= feature_gates.KUBELET_GATES.keys()
        assert name not in needs


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param({}, [], id="nothing chosen"),
        pytest.param({"NodeSwap": True}, [], id="a fixed gate left as it is"),
        pytest.param(
            {"NodeSwap": False},
            ["cannot set feature gate NodeSwap to false, feature is locked to true"],
            id="a fixed gate",
        ),
        pytest.param({"CPUManager": True}, ["unrecognized feature gate: CPUManager"], id="a gate of old days"),
        pytest.param(
            {"topologyManagerPolicyOptions": True},
            ["unrecognized feature gate: topologyManagerPolicyOptions"],
            id="a small letter",
        ),
        pytest.param(
            {"PodLevelResourceManagers": True, "AllBeta": False},
            ["PodLevelResourceManagers is enabled, but depends on features that are disabled: [PodLevelResources]"],
            id="one needs another",
        ),
        pytest.param({"AllBeta": False}, [], id="all of one stage off"),
        pytest.param(
            {"EventedPLEG": True, "CompositePodGroup": True},
            [f"CompositePodGroup is enabled, but depends on features that are disabled: [{COMPOSITE_NEEDS}]"],
            id="one needs several",
        ),
    ],
)
def test_problems(chosen, expected):
    assert whats(chosen) == expected


@pytest.mark.parametrize(
    ("chosen", "name", "on"),
    [
        pytest.param({}, "CPUManagerPolicyBetaOptions", True, id="its default"),
        pytest.param({"AllBeta": False}, "CPUManagerPolicyBetaOptions", False, id="all of its stage"),
        pytest.param(
            {"AllBeta": False, "CPUManagerPolicyBetaOptions": True},
            "CPUManagerPolicyBetaOptions",
            True,
            id="its name wins",
        ),
        pytest.param({"AllAlpha": True}, "CPUManagerPolicyBetaOptions", True, id="all of another stage"),
        pytest.param({"AllAlpha": True}, "CPUManagerPolicyAlphaOptions", True, id="all of alpha"),
        pytest.param({"AllBeta": False}, "CPUManagerPolicyOptions", True, id="grown-up gates have no stage"),
    ],
)
def test_resolve(chosen, name, on):
    assert feature_gates.resolve(chosen).on(name) is on


def test_a_file_with_an_unknown_gate_crashes_a_kubelet():
    with pytest.raises(ConfigurationError) as refused:
        configuration.read(
            json.dumps(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "featureGates": {"MemoryManager": True},
                    "maxPods": -1,
                }
            )
        )

    error = refused.value
    assert error.stage == configuration.StartupStage.DEFAULTING_PANIC
    assert [problem.field for problem in error.problems] == ["featureGates[MemoryManager]"]
    assert error.advice == "leave out MemoryManager: Kubernetes 1.37 has no such feature gate"


@given(st.dictionaries(NAMES, st.booleans(), max_size=4))
def test_what_is_taken_holds_together(chosen):
    """Gates without problems are as they were chosen, and have all they need."""
    if feature_gates.problems(chosen):
        return
    resolved = feature_gates.resolve(chosen)

    for name in FEATURE_GATES.keys() & chosen.keys():
        assert resolved.on(name) is chosen[name]
    for name in FEATURE_GATES.keys() & feature_gates.DEPENDENCIES.keys():
        if resolved.on(name):
            assert all(resolved.on(need) for need in feature_gates.DEPENDENCIES[name] if need in FEATURE_GATES)
    if chosen.get("AllAlpha") is False:
        named = {name for name in chosen if chosen[name]}
        assert not any(
            resolved.on(name)
            for name in FEATURE_GATES.keys() - named
            if FEATURE_GATES[name].stage is FeatureStage.ALPHA
        )
