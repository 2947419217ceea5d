"""The data of charts, and the library that draws them."""

import json
import re
from importlib.resources import files

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.web.charts import MAX_POINTS, Chart, ChartLine, chart_script, chart_style, select_points
from tests.console_runner import ROOT
from tests.effort import examples

VENDOR = files("alignup.web") / "static" / "vendor"

numbers = st.integers(0, 5).map(float)


@st.composite
def drawings(draw):
    """Times, and the values of one to three series."""
    times = sorted(draw(st.lists(st.floats(0, 1000, allow_nan=False), min_size=1, max_size=60)))
    count = draw(st.integers(1, 3))
    return times, [draw(st.lists(numbers, min_size=len(times), max_size=len(times))) for _ in range(count)]


@settings(max_examples=examples(100))
@given(drawings(), st.integers(8, 40))
def test_selected_points_keep_the_ends_and_every_extreme(drawing, limit):
    times, columns = drawing

    points = select_points(times, columns, limit)

    assert points == sorted(set(points))
    assert len(points) <= limit
    assert {points[0], points[-1]} == {0, len(times) - 1}
    for values in columns:
        kept = [values[point] for point in points]
        assert (min(kept), max(kept)) == (min(values), max(values))


@settings(max_examples=examples(100))
@given(drawings())
def test_few_points_show_the_same_steps_as_all(drawing):
    times, columns = drawing

    points = select_points(times, columns, len(times))

    for values in columns:
        shown, steps = None, []
        for place in range(len(times)):
            shown = values[place] if place in points else shown
            steps.append(shown)
        assert steps == values


def test_every_interval_keeps_its_lowest_and_its_highest_value():
    times = [float(number) for number in range(100_000)]
    values = [number % 7 / 7 for number in range(100_000)]
    peaks = {10_123: 5.0, 55_555: -3.0, 99_998: 4.0}
    for place, value in peaks.items():
        values[place] = value

    points = select_points(times, [values], MAX_POINTS)

    assert set(points) >= peaks.keys()
    width = len(times) / (MAX_POINTS // 4)
    for number in range(MAX_POINTS // 4):
        inside = [place for place in points if number * width <= place < (number + 1) * width]
        extremes = values[int(number * width) : int((number + 1) * width)]
        assert {min(extremes), max(extremes)} <= {values[place] for place in inside}


def test_data_is_short_and_what_the_script_reads():
    chart = Chart(
        title="Requested",
        times=[0, 1 / 3, 2],
        series=[ChartLine("a", [0, 1 / 3, 1.0]), ChartLine("b", [0, 0, 0])],
        unit="share",
    )

    text = json.dumps(chart.data)

    assert json.loads(text) == {
        "unit": "share",
        "names": ["a", "b"],
        "columns": [[0, 0.333, 2], [0, 0.33333, 1], [0, 0, 0]],
    }
    assert "1.0" not in text


def test_tables_have_the_highest_value_of_each_interval():
    times = [float(number) for number in range(101)]
    chart = Chart(
        title="Pods", times=times, series=[ChartLine("pods", [2000.0 if time == 33 else time for time in times])]
    )

    rows = chart.rows(10)

    assert [start for start, _ in rows] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert [texts[0] for _, texts in rows] == ["9", "19", "29", "2,000", "49", "59", "69", "79", "89", "100"]


def test_a_value_lasts_into_the_intervals_after_it():
    chart = Chart(title="Pods", times=[0, 1, 100], series=[ChartLine("pods", [0, 0.25, 0])], unit="share")

    assert [texts for _, texts in chart.rows()] == [["25.0%"], ["25.0%"], ["25.0%"]]
    assert Chart(title="Pods", times=[], series=[ChartLine("pods", [])]).rows() == []


def test_the_library_has_its_version_and_its_license():
    readme, script = ((VENDOR / name).read_text("utf-8") for name in ("README.md", "uPlot.iife.min.js"))
    (version,) = re.findall(r"uPlot \(v([\d.]+)\)", script)

    assert f"| {version} | MIT, `uPlot.LICENSE` |" in readme
    assert "MIT License" in (VENDOR / "uPlot.LICENSE").read_text("utf-8")
    assert "vendor/uPlot.LICENSE" in (ROOT / "pyproject.toml").read_text("utf-8")


def test_scripts_and_styles_need_no_other_server_and_fit_into_a_page():
    for text in (chart_script(), chart_style()):
        assert not re.search(r"url\(|@import|\bfetch\(|XMLHttpRequest|new Function|\beval\(", text)
        assert not re.search("</(script|style)", text, re.IGNORECASE)
