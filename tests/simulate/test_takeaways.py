"""The sentence at the top of each report."""

from dataclasses import replace

import msgspec
import pytest

from alignup.align.settings import Policy, Scope, TopologySettings
from alignup.simulate import compared_settings
from alignup.simulate import node_simulation as simulate
from alignup.simulate.arrivals import arrivals
from alignup.simulate.cluster_result import WaitingTimes
from alignup.simulate.node_simulation import AlignmentCounts
from alignup.simulate.sweeps import combination_means
from alignup.simulate.takeaways import cluster_takeaway, comparison_takeaway, node_takeaway, sweep_takeaway
from alignup.testing.simulated_kubelet import SimulatedKubelet
from tests.align.hosts import make_pod
from tests.simulate.test_html_reports import result as fleet_result
from tests.simulate.test_html_reports import row


@pytest.fixture
def result():
    host = SimulatedKubelet(shape="pack:2 numa:1(memory=8GiB) core:4 pu:1").host
    topology = TopologySettings(policy=Policy.SINGLE_NUMA_NODE, scope=Scope.POD)
    known = simulate.run(host, arrivals([make_pod("small", cpu="2", memory="1Gi")]))
    return replace(
        known,
        settings=replace(known.settings, topology=topology),
        admitted=812,
        rejected=88,
        reasons={"TopologyAffinityError": 80, "Invalid": 8},
        pods=AlignmentCounts(700, 0, 112),
    )


def test_a_node(result):
    assert node_takeaway(result) == (
        "Policy single-numa-node with scope pod admits 812 of 900 pods, 700 of them on one NUMA node. "
        "Rejections are mostly TopologyAffinityError (80 of 88)."
    )


def test_a_node_that_admits_everything(result):
    none = replace(result, settings=replace(result.settings, topology=TopologySettings()), rejected=0, reasons={})

    assert node_takeaway(none) == "Policy none admits 812 of 812 pods, 700 of them on one NUMA node."


def comparison(result, *scores):
    """Variants of the policy with the same score as *result*, other than these changes."""
    names = ("none", "best-effort")
    variants = [compared_settings.Variant({"policy": name, "scope": "-"}, result.settings) for name in names]
    ranked = [
        compared_settings.RankedVariant(number, variant, replace(result, **changes))
        for number, (variant, changes) in enumerate(zip(variants, scores, strict=False), 1)
    ]
    return compared_settings.Comparison(tuple(ranked), ())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"admitted": 826, "rejected": 74}, "; 14 more than the configured settings"),
        ({"admitted": 800, "rejected": 100}, "; 12 fewer than the configured settings"),
        ({"pods": AlignmentCounts(703, 0, 109)}, "admit as many, 3 fewer of them on one NUMA node"),
        ({}, "are as good"),
    ],
)
def test_a_comparison_with_the_configured_settings(changes, text, result):
    takeaway = comparison_takeaway(result, comparison(result, changes, {}))

    assert takeaway.startswith("Policy none admits")
    assert text in takeaway
    assert "(policy single-numa-node with scope pod)" in takeaway
    assert takeaway.endswith("It is the best of 2 combinations.")


def test_a_comparison_without_valid_settings(result):
    broken = compared_settings.Variant({"policy": "x"}, result.settings, error="no")

    assert comparison_takeaway(result, compared_settings.Comparison((), (broken,))) == (
        "The kubelet starts with none of the 1 combination."
    )


def test_a_cluster():
    best = fleet_result()

    assert cluster_takeaway([best]) == "alignup starts 1,111 of 1,234 pods on 3 nodes, with 10 rejections by kubelets."
    assert cluster_takeaway([best, best]).startswith("Each of the 2 strategies starts 1,111 of")


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"started": 999}, "; 112 more than aggregate, which has 10 rejections by kubelets."),
        ({"rejections": {"a": 99}}, "; aggregate starts as many, with 99 rejections by kubelets."),
        ({"waiting": WaitingTimes(p99=90000)}, ", and 99% of them wait at most 2.0 hours; with aggregate, 25.0 hours."),
    ],
)
def test_a_cluster_with_several_strategies(changes, end):
    other = msgspec.structs.replace(fleet_result("aggregate"), **changes)

    for results in ([fleet_result(), other], [other, fleet_result()]):
        takeaway = cluster_takeaway(results)
        assert takeaway.startswith("alignup starts 1,111 of 1,234 pods")
        assert takeaway.endswith(end)


def test_a_sweep():
    rows = [row(strategy="aggregate", started="1000", pending="133"), row()]
    means = sorted(combination_means(rows), key=lambda combination: combination.rank)

    assert sweep_takeaway(means) == (
        "m/c/alignup starts 90.0% of its pods, with 10.0 rejections by kubelets: the best of 2 combinations. "
        "Next is m/c/aggregate with 81.0% and 10.0 rejections."
    )
    assert sweep_takeaway(means[:1]) == "m/c/alignup starts 90.0% of its pods, with 10.0 rejections by kubelets."
    assert sweep_takeaway([]) == "No combination was simulated."
