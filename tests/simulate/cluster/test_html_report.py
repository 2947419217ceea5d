"""The report of a simulated cluster as HTML."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.picture.text_format import clean, format_size
from alignup.simulate.arrivals import format_duration
from alignup.simulate.cluster import html_report
from alignup.simulate.cluster.result_documents import (
    Alignment,
    FleetReport,
    FleetResult,
    HostGroupUse,
    ResourceUse,
    StrandedTotals,
    TimelinePoint,
    WaitingTimes,
)
from tests.effort import examples
from tests.html_reader import Reader

DEVICE = "example.com/gpu"


def result(strategy: str = "alignup", *, name: str = DEVICE, rejected: int = 7, group: str = "a") -> FleetResult:
    points = [
        TimelinePoint(time=time, running=n, waiting=n % 3, rejections=n, requested={"cpu": 5.0 * n, name: n})
        for n, time in enumerate((1000.0, 1600.0, 8200.0))
    ]
    return FleetResult(
        strategy=strategy,
        hosts=3,
        pods=1234,
        started=1111,
        failed=101,
        pending=22,
        rejections={"TopologyAffinityError": rejected, name: 3} if rejected else {},
        rejected_pods=rejected,
        mispredictions=0,
        waiting=WaitingTimes(mean=61, p50=31.5, p90=77, p99=7200, max=9000),
        use={
            "cpu": ResourceUse(allocatable=40, mean=10, peak=20),
            name: ResourceUse(allocatable=8, mean=1, peak=2),
        },
        stranded=StrandedTotals(
            time=1600,
            free_cpus=17,
            free_memory=3 << 30,
            free_devices={name: 5},
            cpus=13,
            memory=2 << 30,
            devices={name: 4},
            more=6,
        ),
        alignment=Alignment(pods_by_numa_nodes={"0": 11, "1": 1000, "2": 100}, mean_distance=10.25),
        groups=(HostGroupUse(name=group, hosts=3, started=1111, rejections=rejected),),
        duration=7200,
        timeline=tuple(points),
    )


def rows_of(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    rows = re.findall("<tr>(.*?)</tr>", text)
    return [[Reader(cell).text for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows]


def test_the_report_has_the_figures_of_every_strategy():
    one, two = result(), replace_result(result("aggregate", rejected=0), started=999)

    text = html_report.render(FleetReport(results=(one, two)), title="A cluster")

    rows = rows_of(text)
    assert ["", "alignup", "aggregate"] in rows
    assert ["started", "1,111", "999"] in rows
    assert ["waiting, p99", "2.0 hours", "2.0 hours"] in rows
    assert ["TopologyAffinityError", "7", "0"] in rows
    assert ["pods on 1 NUMA node", "1,000", "1,000"] in rows
    assert ["cpu", "alignup", "40", "10", "20", "25.0%"] in rows
    assert ["memory", "aggregate", format_size(2 << 30), format_size(3 << 30)] in rows
    assert [DEVICE, "alignup", "4", "5"] in rows
    assert ["alignup", "6", format_duration(600)] in rows  # the trace begins at 1000 s
    assert ["a", "3", "1,111", "7", "999", "0"] not in rows  # groups have figures of their own
    assert ["a", "3", "1,111", "7", "1,111", "0"] in rows


def replace_result(known: FleetResult, **changes: object) -> FleetResult:
    return FleetResult(**{**{name: getattr(known, name) for name in known.__struct_fields__}, **changes})


def test_plots_have_names_and_a_line_for_each_strategy():
    text = html_report.render(FleetReport(results=(result(), result("aggregate"))), title="A cluster")

    plots = re.findall(r"<svg .*?</svg>", text)
    assert all("aria-label=" in plot for plot in plots)
    over_time = [plot for plot in plots if ", over time" in plot]
    assert len(over_time) == 5  # two resources, running, waiting, rejections
    assert all("line series0" in plot and "line series1" in plot for plot in over_time)
    assert all("2.0 hours" in plot for plot in over_time)  # since the first creation, not since 0
    for heading in ("Utilisation", "Rejections", "Waiting times", "Alignment", "Stranded resources at peak demand"):
        assert f"<h2>{heading}</h2>" in text


@pytest.mark.parametrize("points", [0, 1])
def test_a_workload_of_one_moment_has_no_timeline(points):
    known = result(rejected=0)
    one = replace_result(known, timeline=known.timeline[:points])

    text = html_report.render(FleetReport(results=(one,)), title="A cluster")

    assert "All pods are created at the same time." in text
    assert "No kubelet rejected a pod." in text
    assert ", over time" not in text


HOSTILE = "\"'><script>alert(1)</script>"


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_stay_text(name):
    plain = html_report.render(FleetReport(results=(result(name="x"),)), title="x")

    text = html_report.render(FleetReport(results=(result(name, name=name, group=name),)), title=name)

    read = Reader(text)
    assert read.tags == Reader(plain).tags
    assert clean(name) in [cell for row in rows_of(text) for cell in row] or not name.isprintable()
