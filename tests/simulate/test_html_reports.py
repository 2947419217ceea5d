"""The HTML reports of a node, of a cluster and of a sweep."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.picture.text_format import clean, format_size
from alignup.simulate import compare, html_reports
from alignup.simulate import node_simulation as simulate
from alignup.simulate.arrivals import PodArrival, PodDeparture, arrivals, format_duration
from alignup.simulate.cluster_result import (
    Alignment,
    FleetReport,
    FleetResult,
    HostGroupUse,
    ResourceUse,
    StrandedTotals,
    TimelinePoint,
    WaitingTimes,
)
from alignup.simulate.node_report import build_timeline
from alignup.simulate.sweeps import COLUMNS, combination_means, figures, invalid_combinations
from tests.align.hosts import make_pod
from tests.effort import examples
from tests.html_reader import HtmlReader, rows_of
from tests.observe.kubelets import SimulatedKubelet

DEVICE = "example.com/gpu"
HOSTILE = "\"'><script>alert(1)</script>"


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


def test_the_report_has_the_figures_of_every_strategy():
    alignup, aggregate = result(), replace_result(result("aggregate", rejected=0), started=999)

    text = html_reports.render_cluster(FleetReport(results=(alignup, aggregate)), title="A cluster")

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
    text = html_reports.render_cluster(FleetReport(results=(result(), result("aggregate"))), title="A cluster")

    plots = re.findall(r"<svg .*?</svg>", text)
    assert all("aria-label=" in plot for plot in plots)
    over_time = [plot for plot in plots if ", over time" in plot]
    assert len(over_time) == 5  # two resources, running, waiting, rejections
    assert all("line series0" in plot and "line series1" in plot for plot in over_time)
    assert all("2.0 hours" in plot for plot in over_time)  # since the first creation, not since 0
    for heading in ("Utilization", "Rejections", "Waiting times", "Alignment", "Stranded resources at peak demand"):
        assert f"<h2>{heading}</h2>" in text


@pytest.mark.parametrize("points", [0, 1])
def test_a_workload_of_one_moment_has_no_timeline(points):
    known = result(rejected=0)
    shortened = replace_result(known, timeline=known.timeline[:points])

    text = html_reports.render_cluster(FleetReport(results=(shortened,)), title="A cluster")

    assert "All pods are created at the same time." in text
    assert "No kubelet rejected a pod." in text
    assert ", over time" not in text


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_stay_text(name):
    plain = html_reports.render_cluster(FleetReport(results=(result(name="x"),)), title="x")

    text = html_reports.render_cluster(FleetReport(results=(result(name, name=name, group=name),)), title=name)

    read = HtmlReader(text)
    assert read.tags == HtmlReader(plain).tags
    assert clean(name) in [cell for row in rows_of(text) for cell in row] or not name.isprintable()


def host():
    return SimulatedKubelet(shape="pack:2 numa:1(memory=8GiB) core:4 pu:1").host


def test_the_timeline_counts_what_pods_hold_until_they_depart():
    small, large = make_pod("one", cpu="2", memory="1Gi"), make_pod("large", cpu="64", memory="1Gi")
    events = (PodArrival(0, small), PodArrival(5, large), PodDeparture(10, small.uid))
    result = simulate.run(host(), events)

    timeline = build_timeline(result, events)

    assert list(timeline.times) == [0, 5, 10]
    total = result.usage["cpu"].total
    assert list(timeline.held["cpu"]) == [2 / total, 2 / total, 0]
    assert list(timeline.running) == [1, 1, 0]
    assert {reason: sum(numbers) for reason, numbers in timeline.rejections.items()} == dict(result.reasons)
    assert sum(timeline.rejections[next(iter(result.reasons))][30:31]) == 1


def test_the_report_needs_no_other_file_and_contains_only_text_of_strangers():
    pods = [make_pod("small", cpu="2", memory="1Gi"), make_pod("large", cpu="64", memory="1Gi")]
    events = arrivals([replace(wanted, name=HOSTILE, namespace=HOSTILE) for wanted in pods])
    start = host()
    grid = compare.build_grid(start.settings, ["policy"], machine=start.machine)
    comparison = compare.compare(start.machine, grid, events)

    text = html_reports.render_node(simulate.run(start, events), events, title=HOSTILE, comparison=comparison)

    read = HtmlReader(text)
    assert not re.search(r"<(?:script|link|img|iframe)\b", text)
    assert not re.search(r"(?:src|href)=|url\(|@import", text)
    assert HOSTILE in read.text
    for heading in ("Comparison of settings", "Utilization over time", "Rejections", "The node at peak demand"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<svg ") >= 8
    assert all("aria-label=" in svg for svg in re.findall(r"<svg [^>]*>", text))


def row(machine="m", configuration="c", strategy="alignup", *, seed=0, **changes):
    keys = {"machine": machine, "configuration": configuration, "strategy": strategy, "seed": str(seed)}
    return {**dict.fromkeys(COLUMNS, ""), **figures(result(strategy)), **keys, **changes}


def test_figures_are_means_over_the_seeds():
    rows = [row(), row(seed=1, rejections="13", waiting_p99="0", requested="cpu=0.75", stranded_devices="")]

    (means,) = combination_means([*rows, row("broken", error="no")])

    assert (means.names, means.seeds) == (("m", "c", "alignup"), 2)
    assert (means.figures["rejections"], means.figures["waiting_p99"]) == ((10 + 13) / 2, 3600)
    assert means.requested == {"cpu": 0.5, "example.com/gpu": 0.0625}
    assert means.stranded_devices == {"example.com/gpu": 2}


def test_the_report_compares_combinations():
    rows = [row(), row(seed=1, rejections="13"), row(strategy="aggregate"), row("broken", error="bad & worse")]

    text = html_reports.render_sweep(rows, title="A sweep")

    heads, first, second, *_, last = rows_of(text)
    cells = dict(zip(heads, first, strict=True))
    assert (cells["Machine"], cells["Configuration"], cells["Strategy"]) == ("m", "c", "alignup")
    assert (cells["Started"], cells["Rejections"], cells["Waiting p99"]) == ("1,111", "11.5", "2.0 hours")
    assert (cells["Requested cpu"], cells["Stranded CPUs"], cells["Stranded memory"]) == ("25.0%", "13", "2 GiB")
    assert (second[2], cells["Stranded example.com/gpu"]) == ("aggregate", "4")
    assert last == ["broken", "c", "bad & worse"]
    plots = re.findall(r"<svg .*?</svg>", text)
    names = re.findall('aria-label="(.*?)"', text)
    shares = [f"Requested {name}, as a share of all nodes" for name in ("cpu", "example.com/gpu")]
    stranded = ["Stranded CPUs", "Stranded memory", "Stranded example.com/gpu"]
    assert names == ["Rejections by kubelets", *shares, "Waiting, p99", *stranded]
    assert ">11.5<" in plots[0]
    assert ">aggregate<" in plots[0]  # only the strategies differ


def test_plots_of_many_combinations_are_cut_and_say_so():
    text = html_reports.render_sweep([row(f"m{number}") for number in range(50)], title="A sweep")

    assert "Plots show the first 40 combinations; the table has all." in text
    assert ">m39<" in text.split("</table>")[1]
    assert ">m40<" not in text.split("</table>")[1]
    assert [cells[0] for cells in rows_of(text) if cells[0] == "m49"] == ["m49"]


def test_a_sweep_without_results_says_so():
    rows = [row(seed=seed, error="no") for seed in range(2)]

    text = html_reports.render_sweep(rows, title="A sweep")

    assert "No combination was simulated." in text
    assert len(invalid_combinations(rows)) == 1
    assert "<svg" not in text


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_in_a_sweep_stay_text(name):
    def tags(text):
        rows = [row(text, text), row(text, text, "aggregate"), row(text, text, error=text)]
        return HtmlReader(html_reports.render_sweep(rows, title=text)).tags

    assert tags(name) == tags("x")
