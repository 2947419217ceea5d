import re
from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import SettingsError
from alignup.align.host import Host
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.simulate.compare import DIMENSIONS, build_grid
from tests.align.hosts import host

ONE = host()
MACHINE, BASE = ONE.machine, ONE.settings


def labels(*dimensions: str, base=BASE) -> list[str]:
    return [variant.label for variant in build_grid(base, dimensions, machine=MACHINE)]


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        pytest.param((), [""], id="nothing varied"),
        pytest.param(
            ("policy",),
            ["policy=none", "policy=best-effort", "policy=restricted", "policy=single-numa-node"],
            id="one dimension",
        ),
        pytest.param(
            ("scope", "policy=none|restricted"),
            ["policy=none scope=-", "policy=restricted scope=container", "policy=restricted scope=pod"],
            id="the scope has no effect with policy none",
        ),
        pytest.param(
            ("cpu-options=full-pcpus-only|strict-cpu-reservation",),
            [
                "cpu-options=none",
                "cpu-options=full-pcpus-only",
                "cpu-options=strict-cpu-reservation",
                "cpu-options=full-pcpus-only+strict-cpu-reservation",
            ],
            id="sets of options",
        ),
        pytest.param(
            ("cpu-policy", "cpu-options=full-pcpus-only"),
            [
                "cpu-policy=none cpu-options=none",
                "cpu-policy=none cpu-options=full-pcpus-only",
                "cpu-policy=static cpu-options=none",
                "cpu-policy=static cpu-options=full-pcpus-only",
            ],
            id="given options are tried with every policy",
        ),
    ],
)
def test_grid(dimensions, expected):
    assert labels(*dimensions) == expected


def test_choices_become_settings():
    (variant,) = build_grid(
        BASE,
        ("policy=restricted", "scope=pod", "topology-options=", "cpu-options=", "memory-policy=None"),
        machine=MACHINE,
    )[:1]
    chosen = variant.settings

    assert (chosen.topology.policy, chosen.topology.scope) == (Policy.RESTRICTED, Scope.POD)
    assert (chosen.memory_policy, chosen.reserved_memory) == ("None", ())
    assert chosen.cpus.options == {}


def test_enabled_cpu_options_are_combined():
    found = build_grid(BASE, ["cpu-options"], machine=MACHINE)

    alpha = [one for one in found if "Alpha" in one.error]
    assert len(found) == 2**4 + 2
    assert [one.choices["cpu-options"] for one in alpha] == ["align-by-socket", "distribute-cpus-across-cores"]


def test_with_the_gate_enabled_all_cpu_options_are_combined():
    opened = replace(BASE, gates=FeatureGates({"CPUManagerPolicyAlphaOptions": True}))

    assert len(build_grid(opened, ["cpu-options"], machine=MACHINE)) == 2**6


@pytest.mark.parametrize(
    ("dimensions", "error", "manager"),
    [
        pytest.param(
            ("cpu-options=distribute-cpus-across-numa|prefer-align-cpus-by-uncorecache",),
            "new static policy error: static policy options prefer-align-cpus-by-uncorecache and "
            "distribute-cpus-across-numa can not be used at the same time",
            "cpu",
            id="options that contradict each other",
        ),
        pytest.param(
            ("memory-policy=BestEffort",),
            'policy "BestEffort" is not available for platform "linux"',
            "memory",
            id="a policy that Linux does not have",
        ),
        pytest.param(
            ("cpu-options=none|full-pcpus-only+distribute-cpus-across-cores",),
            'CPU Manager Policy Alpha-level Options not enabled, but option "distribute-cpus-across-cores" provided',
            "cpu",
            id="a set of options",
        ),
        pytest.param(
            ("topology-options=prefer-closest-numa-nodes",),
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor",
            "topology",
            id="a machine without distances",
        ),
    ],
)
def test_invalid_settings_have_the_error_of_the_kubelet(dimensions, error, manager):
    invalid = [one for one in build_grid(BASE, dimensions, machine=MACHINE) if one.error]

    assert invalid
    assert {(one.error.removeprefix("new static policy error: "), one.manager) for one in invalid} == {
        (error.removeprefix("new static policy error: "), manager)
    }


def test_all_other_variants_start():
    for variant in build_grid(BASE, ("policy", "scope", "cpu-options", "memory-policy"), machine=MACHINE):
        if not variant.error:
            assert Host(MACHINE, variant.settings).settings == variant.settings


class TestMemory:
    def test_reserved_memory_is_proposed_if_not_set(self):
        unset = replace(BASE, memory_policy="None", reserved_memory=())
        none, static = build_grid(unset, ["memory-policy"], machine=MACHINE)

        assert not none.error
        assert not static.error
        kept = static.settings.reserved_memory
        assert sum(entry.limits["memory"].value() for entry in kept) == BASE.reservation["memory"].value()

    def test_reserved_memory_is_kept_if_set(self):
        _, static = build_grid(BASE, ["memory-policy"], machine=MACHINE)

        assert static.settings.reserved_memory == BASE.reserved_memory

    def test_static_memory_requires_a_reservation(self):
        nothing = {name: amount for name, amount in BASE.reservation.items() if name != "memory"}
        base = replace(BASE, reservation=nothing, memory_policy="None", reserved_memory=())
        _, static = build_grid(base, ["memory-policy"], machine=MACHINE)

        assert static.error == "[memorymanager] you should specify the system reserved memory"


def test_unknown_dimensions_are_rejected():
    with pytest.raises(SettingsError, match="unknown dimension colour; expected one of policy, scope"):
        build_grid(BASE, ["colour"], machine=MACHINE)


@pytest.mark.parametrize(
    ("dimension", "error"),
    [
        ("policy=strict", "policy=strict: expected one of none, best-effort, restricted, single-numa-node"),
        ("policy=none|restrictd", "did you mean restricted?"),
        ("scope=node", "scope=node: expected one of container, pod"),
        ("cpu-policy=statik", "did you mean static?"),
        ("cpu-options=full-pcpus-only+fast", "cpu-options=fast: expected one of full-pcpus-only, "),
        ("memory-policy=static", "did you mean Static?"),
        ("topology-options=max-allowable-numa-nodes", "expected one of prefer-closest-numa-nodes"),
    ],
)
def test_unknown_values_are_rejected(dimension, error):
    with pytest.raises(SettingsError, match=re.escape(error)):
        build_grid(BASE, [dimension], machine=MACHINE)


def test_the_scope_matters_if_pods_may_choose_a_policy():
    assert len(labels("policy=none", "scope", base=replace(BASE, pod_policy_annotations=True))) == 2


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_has_several_values(name):
    lenient = replace(BASE, topology=replace(BASE.topology, policy=Policy.RESTRICTED))

    assert len(build_grid(lenient, [name], machine=MACHINE)) > 1


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_is_documented(name):
    page = Path(__file__).parents[2] / "docs" / "simulate.md"

    assert f"\n| `{name}` |" in page.read_text(encoding="utf-8")
