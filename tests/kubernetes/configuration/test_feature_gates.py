import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignup.align.errors import ConfigurationError
from alignup.align.release import RELEASES, FeatureStage, find_release
from alignup.align.settings import FEATURE_GATES
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import feature_gates

COMPOSITE_NEEDS = "GenericWorkload TopologyAwareWorkloadScheduling"
NAMES = st.sampled_from([*sorted(feature_gates.kubelet_gates()), "AllAlpha", "AllBeta"])


def messages(chosen):
    return [problem.message for problem in feature_gates.problems(chosen)]


def test_gates_that_matter_to_alignment_agree_with_align():
    for release in RELEASES:
        known = feature_gates.kubelet_gates(release)
        assert {name: known[name] for name in release.gates} == release.gates
        assert not (FEATURE_GATES.keys() - release.gates.keys()) & known.keys()


@pytest.mark.parametrize("release", RELEASES, ids=str)
def test_dependencies_are_known_gates(release):
    for name, needs in feature_gates.dependencies(release).items():
        assert {name, *needs} <= feature_gates.kubelet_gates(release).keys()
        assert name not in needs


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        pytest.param({"NodeSwap": True}, [], id="a locked gate at its default"),
        pytest.param({"AllBeta": False}, [], id="all beta gates off"),
        pytest.param(
            {"EventedPLEG": True, "CompositePodGroup": True},
            [f"CompositePodGroup is enabled, but depends on features that are disabled: [{COMPOSITE_NEEDS}]"],
            id="several disabled dependencies",
        ),
    ],
)
def test_problems(chosen, expected):
    """Vectors have unknown and locked gates: ``../../conformance/test_configuration.py``."""
    assert messages(chosen) == expected


@pytest.mark.parametrize(
    ("chosen", "name", "on"),
    [
        pytest.param({}, "CPUManagerPolicyBetaOptions", True, id="the default"),
        pytest.param({"AllBeta": False}, "CPUManagerPolicyBetaOptions", False, id="all gates of its stage"),
        pytest.param(
            {"AllBeta": False, "CPUManagerPolicyBetaOptions": True},
            "CPUManagerPolicyBetaOptions",
            True,
            id="its own name wins",
        ),
        pytest.param({"AllAlpha": True}, "CPUManagerPolicyBetaOptions", True, id="all gates of another stage"),
        pytest.param({"AllAlpha": True}, "CPUManagerPolicyAlphaOptions", True, id="all alpha gates"),
        pytest.param({"AllBeta": False}, "CPUManagerPolicyOptions", True, id="GA gates are not affected"),
    ],
)
def test_resolve(chosen, name, on):
    assert feature_gates.resolve(chosen).on(name) is on


def test_an_unknown_gate_is_a_defaulting_panic():
    with pytest.raises(ConfigurationError) as raised:
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

    error = raised.value
    assert error.stage == configuration.StartupStage.DEFAULTING_PANIC
    assert [problem.field for problem in error.problems] == ["featureGates[MemoryManager]"]
    assert error.advice == "remove MemoryManager: Kubernetes 1.37 has no such feature gate"


@given(st.dictionaries(NAMES, st.booleans(), max_size=4))
def test_accepted_gates_are_consistent(chosen):
    """Gates without problems keep their values, and their dependencies are enabled."""
    if feature_gates.problems(chosen):
        return
    resolved = feature_gates.resolve(chosen)

    for name in FEATURE_GATES.keys() & chosen.keys():
        assert resolved.on(name) is chosen[name]
    for name in FEATURE_GATES.keys() & feature_gates.dependencies().keys():
        if resolved.on(name):
            assert all(resolved.on(need) for need in feature_gates.dependencies()[name] if need in FEATURE_GATES)
    if chosen.get("AllAlpha") is False:
        named = {name for name in chosen if chosen[name]}
        assert not any(
            resolved.on(name)
            for name in FEATURE_GATES.keys() - named
            if FEATURE_GATES[name].stage is FeatureStage.ALPHA
        )


def test_a_gate_is_known_in_some_releases_only():
    chosen = {"MemoryManager": True}

    assert [str(release) for release in RELEASES if not feature_gates.problems(chosen, release)] == [
        *("1.33", "1.34", "1.35")
    ]
    (problem,) = feature_gates.problems(chosen, find_release("1.36"))
    assert str(problem) == "featureGates[MemoryManager]: unrecognized feature gate: MemoryManager"


def test_dependencies_are_checked_since_1_35():
    chosen = {"DynamicResourceAllocation": False, "DRAPrioritizedList": True}

    assert not feature_gates.problems(chosen, find_release("v1.34.11"))
    assert feature_gates.problems({"PodLevelResources": False, "PodLevelResourceManagers": True}, find_release("1.37"))


@pytest.mark.parametrize(
    "name",
    [
        "AggregatedDiscoveryRemoveBetaType",
        "CRDValidationRatcheting",
        "CustomResourceFieldSelectors",
        "DynamicResourceAllocation",
        "KubeletTracing",
        "MatchLabelKeysInPodAffinity",
        "PodSchedulingReadiness",
        "SeparateTaintEvictionController",
        "ServiceAccountTokenPodNodeInfo",
        "WindowsHostNetwork",
    ],
)
def test_1_38_has_removed_a_gate(name):
    chosen = {name: feature_gates.kubelet_gates()[name].default}

    assert not feature_gates.problems(chosen)
    (problem,) = feature_gates.problems(chosen, find_release("1.38"))
    assert problem.message == f"unrecognized feature gate: {name}"


@pytest.mark.parametrize("name", ["DRADeviceTaintRules", "DRADeviceTaints", "EnvFiles", "HPAGeneration"])
def test_1_38_has_locked_a_gate(name):
    taints = {"DRADeviceTaintRules": False, name: False}  # which depend on DRADeviceTaints

    assert not feature_gates.problems(taints)
    assert not feature_gates.problems({name: True}, find_release("1.38"))
    (problem,) = feature_gates.problems({name: False}, find_release("1.38"))
    assert problem.message == f"cannot set feature gate {name} to false, feature is locked to true"


def test_1_38_has_added_a_gate():
    chosen = {"ManagedFieldsOptOut": True}

    assert feature_gates.problems(chosen)
    assert not feature_gates.problems(chosen, find_release("1.38"))
