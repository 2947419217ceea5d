"""Fingerprints of machines and settings differ exactly when a fact does."""

from dataclasses import fields, replace
from typing import Any

import pytest

from alignup.align.cpus.options import CpuSettings
from alignup.align.devices.plugin_rules import PluginRule
from alignup.align.host import Settings
from alignup.align.machine import Device, HugePages
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.release import find_release
from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions, TopologySettings
from alignup.machines.synthetic import parse
from alignup.store.fingerprint import fingerprint_of, machine_fingerprint, settings_fingerprint

GIB = 1 << 30
MACHINE = parse("pack:2 numa:1 core:2 pu:2", memory=GIB)
FIRST, SECOND = MACHINE.nodes
AMOUNTS = {"cpu": Quantity.parse("1")}

#: A change of every setting; those with parts have one for each part.
CHANGED: dict[str, list[Any]] = {
    "topology": [
        TopologySettings(policy=Policy.RESTRICTED),
        TopologySettings(scope=Scope.POD),
        TopologySettings(options=TopologyOptions(prefer_closest=True)),
        TopologySettings(options=TopologyOptions(max_nodes=9)),
        TopologySettings(limit_nodes=False),
    ],
    "cpus": [
        CpuSettings(policy="static"),
        CpuSettings(options={"full-pcpus-only": "true"}),
        CpuSettings(reservation=Quantity.parse("1")),
        CpuSettings(explicit=0b10),
    ],
    "memory_policy": ["Static"],
    "reserved_memory": [(ReservedMemory(0, AMOUNTS),), (ReservedMemory(1, AMOUNTS),)],
    "reservation": [AMOUNTS, {"memory": Quantity.parse("1")}],
    "release": [find_release("1.36")],
    "gates": [FeatureGates({"PodLevelResourceManagers": True})],
    "preferred_allocation": [frozenset({"example.com/gpu"})],
    "near_devices": [True],
    "plugin_rules": [{"example.com/gpu": PluginRule.NVIDIA}, {"example.com/gpu": PluginRule.AMD}],
    "fit_check": [False],
    "max_pods": [111],
    "pod_policy_annotations": [True],
    "kubelet_faults": [True],
}


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_counts(name):
    fingerprints = [
        settings_fingerprint(Settings()),
        *(settings_fingerprint(replace(Settings(), **{name: to})) for to in CHANGED[name]),
    ]

    assert len({fingerprint.fingerprint for fingerprint in fingerprints}) == 1 + len(CHANGED[name])
    assert all(len(fingerprints[0].differences(fingerprint)) == 1 for fingerprint in fingerprints[1:])


@pytest.mark.parametrize(
    ("now", "differences"),
    [
        pytest.param(MACHINE, [], id="the same"),
        pytest.param(
            replace(MACHINE, devices=(Device("example.com/gpu", "0", nodes=1),)), [], id="devices do not count"
        ),
        pytest.param(
            replace(MACHINE, cpus=MACHINE.cpus[:-1]),
            [
                "CPUs: was 0-7, is 0-6",
                "CPUs of sockets: was 0: 0-3; 1: 4-7, is 0: 0-3; 1: 4-6",
                f"NUMA node 1: was CPUs 4-7, {GIB} bytes, is CPUs 4-6, {GIB} bytes",
            ],
            id="a CPU is gone",
        ),
        pytest.param(
            replace(MACHINE, nodes=(FIRST, replace(SECOND, memory=5, hugepages=(HugePages(1 << 21, 3),)))),
            [f"NUMA node 1: was CPUs 4-7, {GIB} bytes, is CPUs 4-7, 5 bytes, 3 hugepages-2Mi"],
            id="other memory",
        ),
        pytest.param(
            replace(MACHINE, nodes=(FIRST, SECOND, replace(FIRST, id=2, memory=None))),
            ["NUMA node 2: was nothing, is CPUs none, memory unknown"],
            id="an additional node",
        ),
    ],
)
def test_differences_between_machines_are_sentences(now, differences):
    before, after = machine_fingerprint(MACHINE), machine_fingerprint(now)

    assert list(before.differences(after)) == differences
    assert (before.fingerprint == after.fingerprint) is (not differences)


def test_the_order_of_facts_does_not_matter():
    assert fingerprint_of({"a": "1", "b": "2"}).fingerprint == fingerprint_of({"b": "2", "a": "1"}).fingerprint
