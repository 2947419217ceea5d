"""Settings to compare."""

from dataclasses import replace
from pathlib import Path

import pytest

from alignup.align.errors import SettingsError
from alignup.align.host import Host
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.fleet.settings_grid import DIMENSIONS, build_grid
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
            id="the scope means nothing beside policy none",
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
            id="what is asked for is tried",
        ),
    ],
)
def test_combinations(dimensions, expected):
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


def test_every_option_of_the_static_policy_whose_gate_is_on_is_combined():
    found = build_grid(BASE, ["cpu-options"], machine=MACHINE)

    alpha = [one for one in found if "Alpha" in one.error]
    assert len(found) == 2**4 + 2
    assert [one.choices["cpu-options"] for one in alpha] == ["align-by-socket", "distribute-cpus-across-cores"]


def test_with_the_gate_open_all_are():
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
        pytest.param(("policy=strict",), 'unknown policy: "strict"', "topology", id="no policy"),
        pytest.param(("policy=restricted", "scope=node"), 'unknown scope: "node"', "topology", id="no scope"),
        pytest.param(("cpu-policy=dynamic",), 'unknown policy: "dynamic"', "cpu", id="no CPU policy"),
        pytest.param(("cpu-options=fast",), 'unknown CPU Manager Policy option: "fast"', "cpu", id="no CPU option"),
        pytest.param(("memory-policy=dynamic",), 'unknown policy: "dynamic"', "memory", id="no memory policy"),
        pytest.param(
            ("topology-options=prefer-closest-numa-nodes",),
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor",
            "topology",
            id="a machine without distances",
        ),
        pytest.param(
            ("policy=restricted", "topology-options=fast"),
            'unknown Topology Manager Policy option: "fast"',
            "topology",
            id="no topology option",
        ),
    ],
)
def test_what_a_kubelet_would_not_start_with_keeps_its_error(dimensions, error, manager):
    refused = [one for one in build_grid(BASE, dimensions, machine=MACHINE) if one.error]

    assert refused
    assert {(one.error.removeprefix("new static policy error: "), one.manager) for one in refused} == {
        (error.removeprefix("new static policy error: "), manager)
    }


def test_the_first_error_stays():
    (refused,) = build_grid(BASE, ("policy=strict", "memory-policy=dynamic"), machine=MACHINE)

    assert (refused.error, refused.manager) == ('unknown policy: "strict"', "topology")


def test_all_others_would_start():
    for variant in build_grid(BASE, ("policy", "scope", "cpu-options", "memory-policy"), machine=MACHINE):
        if not variant.error:
            assert Host(MACHINE, variant.settings).settings == variant.settings


class TestMemory:
    def test_what_is_kept_back_is_proposed_where_nothing_is_said(self):
        silent = replace(BASE, memory_policy="None", reserved_memory=())
        none, static = build_grid(silent, ["memory-policy"], machine=MACHINE)

        assert not none.error
        assert not static.error
        kept = static.settings.reserved_memory
        assert sum(entry.limits["memory"].value() for entry in kept) == BASE.reservation["memory"].value()

    def test_what_was_said_is_kept(self):
        _, static = build_grid(BASE, ["memory-policy"], machine=MACHINE)

        assert static.settings.reserved_memory == BASE.reserved_memory

    def test_without_a_reservation_memory_cannot_be_managed(self):
        nothing = {name: amount for name, amount in BASE.reservation.items() if name != "memory"}
        base = replace(BASE, reservation=nothing, memory_policy="None", reserved_memory=())
        _, static = build_grid(base, ["memory-policy"], machine=MACHINE)

        assert static.error == "[memorymanager] you should specify the system reserved memory"


def test_a_dimension_there_is_not_is_refused():
    with pytest.raises(SettingsError, match="there is no dimension colour to compare; there are: policy, scope"):
        build_grid(BASE, ["colour"], machine=MACHINE)


def test_pods_that_may_choose_make_the_scope_matter():
    assert len(labels("policy=none", "scope", base=replace(BASE, pod_policy_annotations=True))) == 2


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_has_something_to_vary(name):
    lenient = replace(BASE, topology=replace(BASE.topology, policy=Policy.RESTRICTED))

    assert len(build_grid(lenient, [name], machine=MACHINE)) > 1


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_is_documented(name):
    page = Path(__file__).parents[2] / "docs" / "simulate.md"

    assert f"\n| `{name}` |" in page.read_text(encoding="utf-8")
