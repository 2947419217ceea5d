"""``alignup.simulate.run`` and ``compare``, as programs call them."""

import pytest

import alignup
from alignup.simulate import PodArrival, PodDeparture, compare, run


@pytest.fixture
def host():
    machine = alignup.load_machine("pack:2 numa:1(memory=8GiB) core:4 pu:2")
    settings = alignup.Settings(
        topology=alignup.TopologySettings(policy=alignup.Policy.SINGLE_NUMA_NODE),
        cpus=alignup.CpuSettings(policy="static", reservation=alignup.Quantity.of(2)),
        reservation={"cpu": alignup.Quantity.of(2)},
    )
    return alignup.Host(machine, settings)


def limited(name, cpu):
    container = alignup.Container(
        "app",
        alignup.Resources(
            limits={name: alignup.Quantity.parse(text) for name, text in (("cpu", cpu), ("memory", "1Gi"))}
        ),
    )
    return alignup.accept(alignup.Pod(name=name, uid=name, containers=(container,)))


def test_pods_arrive_in_order_and_the_host_stays_as_it_is(host):
    result = run(host, [limited("wide", "10"), limited("narrow", "4")])

    assert [(row["name"], row["outcome"], row["time"]) for row in result.to_rows()] == [
        ("wide", "rejected", 0.0),
        ("narrow", "admitted", 1.0),
    ]
    assert repr(result) == "<SimulationResult: 1 pods admitted, 1 rejected>"
    assert "TopologyAffinityError" in result._repr_html_()
    assert len(host.ledger.pods) == 0


def test_events_have_their_own_times(host):
    first, second = limited("first", "8"), limited("second", "8")
    arrivals = [PodArrival(0.0, first), PodArrival(9.0, second)]

    assert run(host, [*arrivals, PodDeparture(5.0, "first")]).admitted == 2


def test_what_a_host_holds_counts(host):
    host.admit(limited("running", "8"))

    assert run(host, [limited("late", "8")]).rejected == 1


def test_policies_are_compared_and_the_best_is_first(host):
    comparison = compare(host, [limited("wide", "10"), limited("narrow", "4")], "policy=restricted|single-numa-node")

    assert [(row["policy"], row["rank"], row["admitted"]) for row in comparison.to_rows()] == [
        ("restricted", 1, 2),
        ("single-numa-node", 2, 1),
    ]
    assert repr(comparison) == "<Comparison: 2 variants, best: policy=restricted>"
    assert comparison._repr_html_().count("<tr>") == 3


def test_the_policy_is_compared_by_default(host):
    assert {row["policy"] for row in compare(host, [limited("a", "2")]).to_rows()} == set(map(str, alignup.Policy))


def test_an_unknown_dimension_is_an_error(host):
    with pytest.raises(alignup.SettingsError, match="unknown dimension color"):
        compare(host, [], "color")
