"""Settings of the topology manager: what the kubelet takes, and how it rejects the rest."""

from dataclasses import replace
from typing import Any

import pytest

from alignup.align.cpus.options import CpuOptions, CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import SettingsError
from alignup.align.host import Settings
from alignup.align.memory.provider import MemoryPolicy, MemorySettings
from alignup.align.policy_overrides import PolicyOverrides
from alignup.align.settings import FEATURE_GATES, FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
from alignup.machines.synthetic import parse as parse_machine

DEFAULT_GATES = FeatureGates()


def parse(policy="best-effort", scope="container", **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return TopologySettings.parse(policy, scope, options=named, gates=DEFAULT_GATES)


def test_valid_settings_are_parsed():
    settings = parse("restricted", "pod", prefer_closest_numa_nodes="T", max_allowable_numa_nodes="+16")

    assert settings == TopologySettings(
        policy=Policy.RESTRICTED, scope=Scope.POD, options=TopologyOptions(prefer_closest=True, max_nodes=16)
    )


def test_policy_none_looks_at_nothing_else():
    assert parse("none", "nonsense", nonsense="1") == TopologySettings()
    TopologySettings().check_machine(nodes=64, distances=False)


def test_more_nodes_than_allowed_are_rejected_unless_the_limit_is_off():
    settings = parse(max_allowable_numa_nodes="10")

    settings.check_machine(nodes=10, distances=False)
    with pytest.raises(SettingsError, match=r"^unsupported on machines with more than 10 NUMA Nodes$"):
        settings.check_machine(nodes=11, distances=False)
    unlimited = TopologySettings.parse("restricted", "pod", options={}, gates=DEFAULT_GATES, limit_nodes=False)
    unlimited.check_machine(nodes=64, distances=False)


def test_closeness_needs_distances():
    settings = parse(prefer_closest_numa_nodes="true")

    settings.check_machine(nodes=8, distances=True)
    with pytest.raises(SettingsError) as caught:
        settings.check_machine(nodes=9, distances=False)
    assert str(caught.value) == "cannot discover NUMA topology: error getting NUMA distances from cadvisor"


def test_overrides_replace_policies_and_add_options():
    options = {"prefer-closest-numa-nodes": "true", "distribute-cpus-across-cores": "true"}

    changed = PolicyOverrides("restricted", "pod", options).apply(Settings())

    assert changed.topology == TopologySettings(Policy.RESTRICTED, Scope.POD, TopologyOptions(prefer_closest=True))
    assert changed.cpus.options == {"distribute-cpus-across-cores": "true"}
    assert changed.gates.on("CPUManagerPolicyAlphaOptions")
    assert PolicyOverrides().apply(Settings()) == Settings()


def test_gates_have_their_defaults_until_changed():
    gates = FeatureGates({"CPUManagerPolicyAlphaOptions": True, "SomethingElse": False})

    assert gates.on("CPUManagerPolicyAlphaOptions")
    assert gates.on("CPUManagerPolicyBetaOptions")
    assert not gates.on("PodLevelResourceManagers")
    assert not gates.on("SomethingElse")
    assert all(FeatureGates().on(name) is gate.default for name, gate in FEATURE_GATES.items())


def test_a_locked_gate_cannot_be_changed():
    with pytest.raises(SettingsError, match="cannot set feature gate TopologyManagerPolicyOptions to false"):
        FeatureGates({"TopologyManagerPolicyOptions": False})


@pytest.mark.parametrize("change", [TopologySettings, lambda **texts: replace(TopologySettings(), **texts)])
def test_text_is_converted_to_a_policy_or_scope(change):
    settings = change(policy="single-numa-node", scope="pod")

    assert settings.policy is Policy.SINGLE_NUMA_NODE
    assert settings.scope is Scope.POD
    with pytest.raises(SettingsError, match='unknown policy: "bogus"'):
        change(policy="bogus")
    with pytest.raises(SettingsError, match='unknown scope: "bogus"'):
        change(scope="bogus")


def test_text_is_converted_to_a_policy_of_the_cpu_or_memory_manager():
    view = parse_machine("core:4 pu:2").kubelet_view()
    none: Any = "none"
    bogus: Any = "bogus"

    assert CpuProvider(view=view, policy=none).policy is CpuPolicy.NONE
    assert MemorySettings(none.capitalize()).policy is MemoryPolicy.NONE
    with pytest.raises(SettingsError, match='unknown policy: "bogus"'):
        CpuProvider(view=view, policy=bogus)
    with pytest.raises(SettingsError, match='unknown policy: "bogus"'):
        MemorySettings(bogus)


def test_align_by_socket_is_checked_with_the_text_of_a_policy():
    single: Any = "single-numa-node"

    with pytest.raises(SettingsError, match="incompatible with CPUManager align-by-socket"):
        CpuOptions(align_by_socket=True).check_machine(single, sockets=1, nodes=1)
