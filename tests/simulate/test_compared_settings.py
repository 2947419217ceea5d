"""Comparisons of settings: the grid of variants, their ranking, and their documents."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from alignup.align.errors import SettingsError, WorkLimitError
from alignup.align.host import Host
from alignup.align.release import STRATEGY_PREVIEW, find_release, with_preview
from alignup.align.settings import FeatureGates, Policy, Scope
from alignup.simulate.arrivals import arrivals
from alignup.simulate.compared_settings import DIMENSIONS, build_grid, columns, compare, rows, to_document
from alignup.simulate.executors import ProcessEngine, SerialEngine
from alignup.simulate.generate import Profile, generate
from alignup.simulate.node_report import write_rows
from alignup.simulate.node_simulation import run
from tests.align.hosts import GPU, NIC, make_host
from tests.simulate.workloads import small

ONE = make_host()
MACHINE, BASE = ONE.machine, ONE.settings
#: Managed memory prefers one node, so policy restricted allows CPUs of two nodes only without it.
UNMANAGED = make_host(memory=False).settings
#: No node has 5 CPUs.
EVENTS = arrivals([small("a", cpu="5"), small("b", cpu="1"), small("c", cpu="2")])


def compared(*dimensions: str, events=EVENTS, **how):
    return compare(MACHINE, build_grid(BASE, dimensions, machine=MACHINE), events, **how)


def test_variants_are_ranked_by_admitted_and_aligned_pods():
    variants = build_grid(UNMANAGED, ["policy"], machine=MACHINE)

    comparison = compare(MACHINE, variants, arrivals([small("b", cpu="1"), small("a", cpu="5"), small("c", gpu="1")]))

    assert [(rank, variant.label, score.admitted, score.pods.on_one) for rank, variant, score in comparison.ranked] == [
        (1, "policy=single-numa-node", 2, 2),
        (2, "policy=none", 2, 1),
        (2, "policy=best-effort", 2, 1),
        (2, "policy=restricted", 2, 1),
    ]


def test_scores_agree_with_a_simulation():
    for ranked in compared("policy", "scope").ranked:
        result = run(Host(MACHINE, ranked.variant.settings), EVENTS)

        assert (ranked.score.admitted, ranked.score.reasons) == (result.admitted, result.reasons)
        assert ranked.score.stranded == result.peak.stranded


def test_fewer_stranded_devices_are_better():
    variants = build_grid(UNMANAGED, ["policy=single-numa-node|restricted"], machine=MACHINE)

    first, second = compare(MACHINE, variants, arrivals([small("a", cpu="5", gpu="2")])).ranked

    assert [first.variant.choices["policy"], second.variant.choices["policy"]] == ["restricted", "single-numa-node"]
    assert [first.score.stranded.devices[GPU], second.score.stranded.devices[GPU]] == [0, 2]


def test_equal_scores_share_a_rank_in_the_order_given():
    comparison = compared("cpu-options=full-pcpus-only|strict-cpu-reservation")

    assert [ranked.rank for ranked in comparison.ranked] == [1, 1, 1, 1]
    assert comparison.ranked[0].variant.choices["cpu-options"] == "none"


UNAVAILABLE = 'policy "BestEffort" is not available for platform "linux"'


def test_invalid_variants_are_listed():
    comparison = compared("memory-policy=None|BestEffort")

    assert [item.variant.label for item in comparison.ranked] == ["memory-policy=None"]
    assert [(item.label, item.error) for item in comparison.invalid] == [("memory-policy=BestEffort", UNAVAILABLE)]


def test_nothing_to_compare():
    comparison = compare(MACHINE, (), EVENTS)

    assert (comparison.ranked, comparison.invalid) == ((), ())


class TestProcesses:
    EVENTS = generate(Profile.MIXED, MACHINE, seed=3, pods=20, load=1.5)
    DIMENSIONS = ("policy", "scope", "memory-policy", "cpu-options=full-pcpus-only|align-by-socket")

    def test_the_order_of_results_does_not_matter(self):
        comparison = compared(*self.DIMENSIONS, events=self.EVENTS, engine=ProcessEngine(2))

        assert comparison == compared(*self.DIMENSIONS, events=self.EVENTS)
        assert len(comparison.ranked) == 28
        assert len(comparison.invalid) == 28


def test_progress_is_reported_per_variant():
    calls: list[tuple[int, int]] = []

    compared("policy", progress=lambda done, total: calls.append((done, total)), now=iter(range(99)).__next__)

    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


class Simulating(SerialEngine):
    """Runs the jobs of a comparison with another function instead of ``node_simulation.run``."""

    def __init__(self, simulate):
        self.simulate = simulate

    def results(self, job, parcels):
        yield from super().results(partial(job, simulate=self.simulate), parcels)


def test_a_work_limit_under_one_variant_does_not_stop_the_others():
    def limited(kubelet, events, **how):
        if kubelet.settings.topology.policy == "restricted":
            raise WorkLimitError("too much work", sources=["cpu"])
        return run(kubelet, events)

    comparison = compared("policy", engine=Simulating(limited))

    assert len(comparison.ranked) == 3
    (limited_variant,) = comparison.invalid
    assert (limited_variant.label, limited_variant.error) == ("policy=restricted", "too much work")


def test_errors_of_jobs_are_raised():
    def broken(kubelet, events, **how):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compared("policy", engine=Simulating(broken))


INTERRUPTED = """
import sys
from alignup.simulate.compared_settings import build_grid, compare
from alignup.simulate.executors import ProcessEngine
from alignup.simulate.generate import Profile, generate
from tests.align.hosts import make_host

def main():
    host = make_host()
    events = generate(Profile.MIXED, host.machine, seed=1, pods=300)
    variants = build_grid(host.settings, ("policy", "scope", "memory-policy", "cpu-options"), machine=host.machine)

    def progress(done, total):
        print(done, flush=True)

    compare(host.machine, variants, events, engine=ProcessEngine(2), progress=progress)

if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
"""


def test_an_interruption_ends_the_comparison(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(textwrap.dedent(INTERRUPTED), encoding="utf-8")
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()

    assert process.returncode == 130
    assert errors == b""


def test_a_table_and_a_document():
    comparison = compared("policy=single-numa-node", "memory-policy=None|BestEffort")
    text = io.StringIO()

    write_rows(columns(comparison), rows(comparison), text)

    figures = (
        "admitted,rejected,one node,several nodes,anywhere,connected gpus,paired gpus,"
        "stranded cpus,stranded devices,reasons"
    )
    assert text.getvalue().splitlines() == [
        f"rank,policy,memory-policy,{figures},error",
        f"1,single-numa-node,None,2,1,2,0,0,0,0,0,{GPU}=2 {NIC}=2,TopologyAffinityError=1,",
        ',single-numa-node,BestEffort,,,,,,,,,,,"policy ""BestEffort"" is not available for platform ""linux"""',
    ]
    document = to_document(comparison)
    assert json.loads(json.dumps(document)) == document
    assert document["ranked"][0]["choices"] == {"policy": "single-numa-node", "memory-policy": "None"}
    assert document["ranked"][0]["alignment"]["pods"]["onOne"] == 2
    assert document["illegal"] == [
        {
            "choices": {"policy": "single-numa-node", "memory-policy": "BestEffort"},
            "manager": "memory",
            "error": UNAVAILABLE,
        }
    ]


def test_the_base_settings_are_not_changed():
    lenient = replace(BASE, memory_policy="None", reserved_memory=())

    compare(MACHINE, build_grid(lenient, ["memory-policy"], machine=MACHINE), EVENTS)

    assert lenient.memory_policy == "None"


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
    variants = build_grid(BASE, ["cpu-options"], machine=MACHINE)

    alpha = [variant for variant in variants if "Alpha" in variant.error]
    assert len(variants) == 2**4 + 2
    assert [variant.choices["cpu-options"] for variant in alpha] == ["align-by-socket", "distribute-cpus-across-cores"]


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
    invalid = [variant for variant in build_grid(BASE, dimensions, machine=MACHINE) if variant.error]

    assert invalid
    assert {(variant.error.removeprefix("new static policy error: "), variant.manager) for variant in invalid} == {
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
    with pytest.raises(SettingsError, match="unknown dimension color; expected one of policy, scope"):
        build_grid(BASE, ["color"], machine=MACHINE)


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
    plan = with_preview(find_release("1.38"), STRATEGY_PREVIEW)
    lenient = replace(BASE, topology=replace(BASE.topology, policy=Policy.RESTRICTED), release=plan)

    assert len(build_grid(lenient, [name], machine=MACHINE)) > 1


def test_a_plan_needs_its_preview():
    with pytest.raises(SettingsError, match="add --preview numa-allocation-strategy"):
        build_grid(BASE, [STRATEGY_PREVIEW], machine=MACHINE)


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_is_documented(name):
    page = Path(__file__).parents[2] / "docs" / "simulate.md"

    assert f"\n| `{name}` |" in page.read_text(encoding="utf-8")
