"""The report of a simulation as HTML, and its timeline."""

import re
from dataclasses import replace

from alignup.simulate import compare, html_report
from alignup.simulate import node_simulation as simulate
from alignup.simulate.arrivals import PodArrival, PodDeparture, arrivals
from alignup.simulate.timeline import build_timeline
from tests.align.hosts import pod
from tests.html_reader import Reader
from tests.observe.kubelets import SimulatedKubelet

HOSTILE = "\"'><script>alert(1)</script>"


def host():
    return SimulatedKubelet(shape="pack:2 numa:1(memory=8GiB) core:4 pu:1").host


def test_the_timeline_counts_what_pods_hold_until_they_depart():
    one, two = pod("one", cpu="2", memory="1Gi"), pod("large", cpu="64", memory="1Gi")
    events = (PodArrival(0, one), PodArrival(5, two), PodDeparture(10, one.uid))
    result = simulate.run(host(), events)

    found = build_timeline(result, events)

    assert list(found.times) == [0, 5, 10]
    total = result.usage["cpu"].total
    assert list(found.held["cpu"]) == [2 / total, 2 / total, 0]
    assert list(found.running) == [1, 1, 0]
    assert {reason: sum(numbers) for reason, numbers in found.rejections.items()} == dict(result.reasons)
    assert sum(found.rejections[next(iter(result.reasons))][30:31]) == 1


def test_the_report_needs_no_other_file_and_contains_only_text_of_strangers():
    pods = [pod("small", cpu="2", memory="1Gi"), pod("large", cpu="64", memory="1Gi")]
    events = arrivals([replace(one, name=HOSTILE, namespace=HOSTILE) for one in pods])
    start = host()
    grid = compare.build_grid(start.settings, ["policy"], machine=start.machine)
    comparison = compare.compare(start.machine, grid, events)

    text = html_report.render(simulate.run(start, events), events, title=HOSTILE, comparison=comparison)

    read = Reader(text)
    assert not re.search(r"<(?:script|link|img|iframe)\b", text)
    assert not re.search(r"(?:src|href)=|url\(|@import", text)
    assert HOSTILE in read.text
    for heading in ("Comparison of settings", "Utilisation over time", "Rejections", "The node at peak demand"):
        assert f"<h2>{heading}</h2>" in text
    assert text.count("<svg ") >= 8
    assert all("aria-label=" in svg for svg in re.findall(r"<svg [^>]*>", text))
