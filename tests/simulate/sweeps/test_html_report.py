"""The report of a sweep as HTML."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from alignup.simulate.sweeps import html_report
from alignup.simulate.sweeps.averages import combination_means, invalid_combinations
from alignup.simulate.sweeps.tasks import COLUMNS, figures
from tests.effort import examples
from tests.html_reader import Reader
from tests.simulate.cluster.test_html_report import HOSTILE, result, rows_of


def row(machine="m", configuration="c", strategy="alignup", *, seed=0, **changes):
    keys = {"machine": machine, "configuration": configuration, "strategy": strategy, "seed": str(seed)}
    return {**dict.fromkeys(COLUMNS, ""), **figures(result(strategy)), **keys, **changes}


def test_figures_are_means_over_the_seeds():
    rows = [row(), row(seed=1, rejections="13", waiting_p99="0", requested="cpu=0.75", stranded_devices="")]

    (found,) = combination_means([*rows, row("broken", error="no")])

    assert (found.names, found.seeds) == (("m", "c", "alignup"), 2)
    assert (found.figures["rejections"], found.figures["waiting_p99"]) == ((10 + 13) / 2, 3600)
    assert found.requested == {"cpu": 0.5, "example.com/gpu": 0.0625}
    assert found.stranded_devices == {"example.com/gpu": 2}


def test_the_report_compares_combinations():
    rows = [row(), row(seed=1, rejections="13"), row(strategy="aggregate"), row("broken", error="bad & worse")]

    text = html_report.render(rows, title="A sweep")

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
    text = html_report.render([row(f"m{number}") for number in range(50)], title="A sweep")

    assert "Plots show the first 40 combinations; the table has all." in text
    assert ">m39<" in text.split("</table>")[1]
    assert ">m40<" not in text.split("</table>")[1]
    assert [cells[0] for cells in rows_of(text) if cells[0] == "m49"] == ["m49"]


def test_a_sweep_without_results_says_so():
    rows = [row(seed=seed, error="no") for seed in range(2)]

    text = html_report.render(rows, title="A sweep")

    assert "No combination was simulated." in text
    assert len(invalid_combinations(rows)) == 1
    assert "<svg" not in text


@settings(max_examples=examples(20))
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_names_stay_text(name):
    def tags(text):
        rows = [row(text, text), row(text, text, "aggregate"), row(text, text, error=text)]
        return Reader(html_report.render(rows, title=text)).tags

    assert tags(name) == tags("x")
