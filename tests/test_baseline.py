"""The recorded figures of the benchmarks: times of two machines are compared by their ratio to a reference."""

import pytest

from bench.baseline import DEFAULT, TOLERANCE, Baseline
from bench.harness import Figure, peak_megabytes, run_in_fresh_process, show


def test_a_figure_is_compared_by_its_ratio_to_the_reference():
    baseline = Baseline()
    baseline.add("admit: one", Figure("one", 100e-6), reference=20e-6)

    assert baseline.growth("admit: one", Figure("one", 50e-6), reference=10e-6) == pytest.approx(
        0
    )  # a machine twice as fast
    assert baseline.growth("admit: one", Figure("one", 60e-6), reference=10e-6) == pytest.approx(0.2)
    assert baseline.growth("admit: another", Figure("another", 60e-6), reference=10e-6) is None


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    baseline = Baseline(release="1.2", python="3.11.7")
    baseline.add("merge: lists", Figure("lists", 3e-6), reference=20e-6)
    baseline.write(tmp_path / "baseline.json")

    assert Baseline.read(tmp_path / "baseline.json") == baseline


def test_the_figures_of_the_last_release_are_recorded():
    recorded = Baseline.read(DEFAULT)

    assert recorded.release
    assert all(figure["ratio"] > TOLERANCE / 100 for figure in recorded.figures.values())
    assert any(name.startswith("admit: ") for name in recorded.figures)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("admission", 1.5e-3), "1.5 ms"),
        (Figure("memory", 57.3, unit="MB"), "57.3 MB"),
        (Figure("p99 in p50", 2.5, unit="times"), "2.5 times"),
    ],
)
def test_a_figure_is_shown_in_its_own_unit(figure, text):
    assert show(figure.value, figure.unit) == text


def test_memory_is_compared_without_the_speed_of_the_machine():
    baseline = Baseline()
    baseline.add("agent: memory", Figure("memory", 50, unit="MB"), reference=20e-6)

    assert baseline.growth("agent: memory", Figure("memory", 55, unit="MB"), reference=10e-6) == pytest.approx(0.1)


def test_the_memory_of_a_fresh_process_is_not_that_of_its_parent():
    large = b"x" * 100_000_000

    assert peak_megabytes() > len(large) / 1e6
    assert run_in_fresh_process(peak_megabytes) < len(large) / 1e6
