"""The HTML reports of a node, of a cluster and of a sweep."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.picture.text_format import format_size
from alignup.simulate import compared_settings, html_reports
from alignup.simulate import node_simulation as simulate
from alignup.simulate.arrivals import PodArrival, PodDeparture, WorkloadEvent, arrivals, format_duration
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
from alignup.testing.simulated_kubelet import SimulatedKubelet
from alignup.web.charts import MAX_POINTS
from tests.align.hosts import make_pod
from tests.effort import examples
from tests.html_reader import HtmlReader, rows_of

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
    assert ["Figure", "alignup", "aggregate"] in rows
    assert ["started", "1,111", "999"] in rows
    assert ["waiting, p99", "2.0 hours", "2.0 hours"] in rows
    assert ["TopologyAffinityError", "7", "0"] in rows
    assert ["pods on 1 NUMA node", "1,000", "1,000"] in rows
    assert ["cpu", "40", *["25.0%, 50.0%"] * 2] in rows
    assert ["memory", *[f"{format_size(2 << 30)} of {format_size(3 << 30)}"] * 2] in rows
    assert [DEVICE, *["4 of 5"] * 2] in rows
    assert ["pods that still fit", "6", "6"] in rows
    assert ["peak demand after", *[format_duration(600)] * 2] in rows  # the trace begins at 1000 s
    assert ["a", "3", "aggregate", "999", "0"] not in rows  # groups have figures of their own
    assert ["a", "3", "alignup", "1,111", "7"] in rows
    assert ["a", "3", "aggregate", "1,111", "0"] in rows


def replace_result(known: FleetResult, **changes: object) -> FleetResult:
    return FleetResult(**{**{name: getattr(known, name) for name in known.__struct_fields__}, **changes})


def charts_of(text: str) -> dict[str, dict]:
    """The data of every chart of a report, by title."""
    figures = re.findall(r"<figure data-chart .*?</figure>", text)
    return {
        re.findall("<figcaption>(.*?)</figcaption>", figure)[0]: json.loads(
            re.findall('json">(.*?)</script>', figure)[0]
        )
        for figure in figures
    }


def test_charts_have_a_line_for_each_strategy():
    text = html_reports.render_cluster(FleetReport(results=(result(), result("aggregate"))), title="A cluster")

    charts = charts_of(text)
    requested = [f"Requested {name}, as a share of all nodes" for name in ("cpu", DEVICE)]
    assert list(charts) == ["Running pods", "Waiting pods", "Rejections until then", *requested]
    assert all(chart["names"] == ["alignup", "aggregate"] for chart in charts.values())
    assert charts["Running pods"]["columns"] == [[0, 600, 7200], [0, 1, 2], [0, 1, 2]]  # since the first creation
    assert charts[requested[0]]["columns"][1] == [0, 0.125, 0.25]
    assert ["10.0 minutes", "1", "1"] not in rows_of(text)
    assert ["2.0 hours", "2", "2"] not in rows_of(text)


def test_every_chart_has_a_table():
    text = html_reports.render_cluster(FleetReport(results=(result(),)), title="A cluster")

    for figure in re.findall(r"<figure data-chart .*?</figure>", text):
        assert rows_of(figure)[0] == ["After", "alignup"]
        assert len(rows_of(figure)) == 1 + 3
        assert '<div class="table" role="region"' in figure
        assert 'tabindex="0"' in figure


def test_a_report_begins_with_its_takeaway_and_its_contents():
    text = html_reports.render_cluster(FleetReport(results=(result(),)), title="A cluster")

    headings = re.findall(r'<h2 id="([\w-]+)-title">(.*?)</h2>', text)
    contents = re.findall(r'<li><a href="#([\w-]+)">(.*?)</a></li>', text)
    assert contents == headings
    assert len(contents) == 8
    assert all(f'id="{id_}"' in text for id_, _ in contents)
    takeaway = "alignup starts 1,111 of 1,234 pods on 3 nodes, with 10 rejections by kubelets."
    assert text.index("<h1>") < text.index(takeaway) < text.index('class="tiles"') < text.index("<h2")


@pytest.mark.parametrize("points", [0, 1])
def test_a_workload_of_one_moment_has_no_timeline(points):
    known = result(rejected=0)
    shortened = replace_result(known, timeline=known.timeline[:points])

    text = html_reports.render_cluster(FleetReport(results=(shortened,)), title="A cluster")

    assert "All pods are created at the same time." in text
    assert "No kubelet rejected a pod." in text
    assert "data-chart" not in text
    assert "uPlot" not in text


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_stay_text(name):
    plain = html_reports.render_cluster(FleetReport(results=(result(name="x"),)), title="x")

    text = html_reports.render_cluster(FleetReport(results=(result(name, name=name, group=name),)), title=name)

    read = HtmlReader(text)
    assert read.tags == HtmlReader(plain).tags
    assert name in [cell for row in rows_of(text) for cell in row] or not name.isprintable()


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


def test_the_timeline_has_what_lasts_after_all_events_of_a_time():
    pods = [make_pod(name, cpu="2", memory="1Gi") for name in ("first", "second")]
    events = (
        PodArrival(0, pods[0]),
        PodDeparture(5, pods[0].uid),
        PodArrival(5, pods[1]),
        PodDeparture(9, pods[1].uid),
    )

    timeline = build_timeline(simulate.run(host(), events), events)

    assert (list(timeline.times), list(timeline.running)) == ([0, 5, 9], [1, 1, 0])


def test_the_report_needs_no_other_file_and_contains_only_text_of_strangers():
    pods = [make_pod("small", cpu="2", memory="1Gi"), make_pod("large", cpu="64", memory="1Gi")]
    events = arrivals([replace(wanted, name=HOSTILE, namespace=HOSTILE) for wanted in pods])
    start = host()
    grid = compared_settings.build_grid(start.settings, ["policy"], machine=start.machine)
    comparison = compared_settings.compare(start.machine, grid, events)

    text = html_reports.render_node(simulate.run(start, events), events, title=HOSTILE, comparison=comparison)

    read = HtmlReader(text)
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=", text)
    assert set(re.findall(r'href="(.)', text)) == {"#"}
    assert HOSTILE in read.text
    for heading in ("Comparison of settings", "Utilization over time", "Rejections", "The node at peak demand"):
        assert f">{heading}</h2>" in text
    drawn = [svg for svg in re.findall(r"<svg [^>]*>", text) if "aria-hidden" not in svg]
    assert all("aria-label=" in svg for svg in drawn)
    assert len(charts_of(text)) >= 4


def test_pods_that_arrive_at_the_same_time_have_no_charts():
    events = [PodArrival(5, make_pod("small", cpu="2", memory="1Gi")), PodArrival(5, make_pod("large", cpu="64"))]

    text = html_reports.render_node(simulate.run(host(), events), events, title="Two pods")

    assert charts_of(text) == {}
    assert ">Rejections</h2>" in text
    assert "Utilization over time" not in text


def test_only_the_scripts_of_the_package_run():
    text = html_reports.render_cluster(FleetReport(results=(result(),)), title="A cluster")

    digests = re.findall(r"'sha256-(.*?)'", text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert [b64encode(sha256(script.encode()).digest()).decode() for script in scripts] == digests
    assert len(scripts) == 1
    assert "default-src 'none'" in text


def test_the_report_of_many_events_is_small():
    """It stays below the limit of docs/simulate.md."""
    start = host()
    known = simulate.run(start, arrivals([make_pod("small", cpu="2", memory="1Gi")]))
    (outcome,) = known.outcomes
    events: list[WorkloadEvent] = []
    for number in range(50_000):
        uid = str(number)
        events.append(PodArrival(number, replace(outcome.pod, uid=uid)))
        events.append(PodDeparture(number + 3.5 + number % 5, uid))
    many = replace(known, outcomes=(outcome,) * 50_000, duration=50_007.0)

    text = html_reports.render_node(many, events, title="Many pods")

    assert len(text.encode()) < 1_000_000
    points = [len(chart["columns"][0]) for chart in charts_of(text).values()]
    assert 1000 < max(points) <= MAX_POINTS


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

    heads, best, second, *_ = outcome = rows_of(text)
    cells = dict(zip(heads, second, strict=True))
    assert (cells["Machine"], cells["Configuration"], cells["Strategy"]) == ("m", "c", "alignup")
    assert (cells["Started"], cells["Rejections"], cells["Waiting p99"]) == ("1,111", "11.5", "2.0 hours")
    assert best[2] == "aggregate"  # which has fewer rejections
    assert ["m", "c", "alignup", "25.0%", "12.5%", "10.25"] in outcome
    assert ["m", "c", "alignup", "13", "2 GiB", "4"] in outcome
    assert outcome[-1] == ["broken", "c", "bad & worse"]
    assert text.count('<rect width="100.0%"') > 2


def test_a_report_has_the_best_combinations():
    rows = [row(f"m{number}", rejections=str(number)) for number in range(250)]

    text = html_reports.render_sweep(rows, title="A sweep")

    shown = [cells[0] for cells in rows_of(text)]
    assert (shown.count("m0"), shown.count("m199"), shown.count("m200")) == (3, 3, 0)
    assert "The tables have the 200 best combinations; the results file has 50 more." in text
    assert len(text.encode()) < 1_000_000


def test_a_sweep_without_results_says_so():
    rows = [row(seed=seed, error="no") for seed in range(2)]

    text = html_reports.render_sweep(rows, title="A sweep")

    assert "No combination was simulated." in text
    assert len(invalid_combinations(rows)) == 1
    assert "<svg" not in text
    assert "script-src 'none'" in text


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_in_a_sweep_stay_text(name):
    def tags(text):
        rows = [row(text, text), row(text, text, "aggregate"), row(text, text, error=text)]
        return HtmlReader(html_reports.render_sweep(rows, title=text)).tags

    assert tags(name) == tags("x")
