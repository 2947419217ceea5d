import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given

from alignup.align.decision import Rejection, Shortfall
from alignup.align.workload import Pod
from alignup.simulate.node_report import COLUMNS, rows, to_document, write_rows
from alignup.simulate.node_simulation import run, shortfall
from tests.align.hosts import GIB, GPU, hosts, make_host
from tests.simulate.workloads import arriving_in_order, small, some, workloads
from tests.strategies_pods import container

PAGE = Path(__file__).parents[2] / "docs" / "simulate-data.md"


def example():
    shared = Pod(name="s", uid="s", containers=(container("app", {"cpu": "100m"}),))
    return run(make_host(), arriving_in_order(small("a", gpu="1"), small("b", cpu="5"), shared))


def test_rows_of_pods_that_are_admitted_rejected_and_without_nodes():
    first, second, third = rows(example())

    assert first == {
        "time": "0",
        "namespace": "default",
        "name": "a",
        "uid": "a",
        "qos": "Guaranteed",
        "outcome": "admitted",
        "aligned": "one node",
        "nodes": "0",
        "cpus": "1-2",
        "memory": f"memory@0={GIB}",
        "devices": f"{GPU}=gpu-0",
        "claims": "",
        "reason": "",
        "container": "",
        "shortfall": "",
        "message": "",
        "missing": "",
        "kubelet": "",
    }
    assert second["outcome"] == "rejected"
    assert second["reason"] == "TopologyAffinityError"
    assert second["container"] == "app"
    assert second["shortfall"] == "cpu: 5 needed, at most 4 free on nodes 0-1"
    assert second["message"] == "Resources cannot be allocated with Topology locality"
    assert (third["aligned"], third["nodes"], third["cpus"]) == ("", "", "")


@some
@given(hosts(), workloads())
def test_tables_and_documents_round_trip(kubelet, events):
    result = run(kubelet, events)
    text = io.StringIO()

    write_rows(COLUMNS, rows(result), text)

    assert list(csv.DictReader(io.StringIO(text.getvalue()))) == list(rows(result))
    assert all(tuple(row) == COLUMNS for row in rows(result))
    document = to_document(result)
    assert json.loads(json.dumps(document)) == document
    assert len(document["pods"]) == document["arrived"] == document["admitted"] + document["rejected"]


def test_the_document():
    document = to_document(example())

    assert (document["arrived"], document["admitted"], document["rejected"]) == (3, 2, 1)
    assert document["alignment"]["pods"] == {"onOne": 1, "onSeveral": 0, "anywhere": 1}
    assert document["uses"]["cpu"] == {"total": 7, "end": 2, "peak": 2, "mean": 2.0}
    assert document["nodes"]["0"]["cpu"]["end"] == 2
    assert document["end"]["largest"]["cpu"] == 4
    assert document["pods"][1]["rejection"]["shortfall"] == "cpu: 5 needed, at most 4 free on nodes 0-1"


@pytest.mark.parametrize(
    ("shortfalls", "text"),
    [
        pytest.param((), "", id="no shortfalls"),
        pytest.param((Shortfall("host", "pods", 1, 0),), "pods: 1 needed, 0 free", id="the host as a whole"),
        pytest.param((Shortfall("cpu", "cpu", 4, 3, 1 << 7),), "cpu: 4 needed, 3 free on node 7", id="one node"),
        pytest.param(
            (
                Shortfall("cpu", "cpu", 4, 3, 1),
                Shortfall("memory", "memory", 9, 8, 2),
                Shortfall("cpu", "cpu", 4, 2, 4),
            ),
            "cpu: 4 needed, at most 3 free on nodes 0,2; memory: 9 needed, 8 free on node 1",
            id="several of each",
        ),
    ],
)
def test_shortfalls(shortfalls, text):
    assert shortfall(Rejection("Reason", "message", shortfalls=shortfalls)) == text


def test_spreadsheet_formulas_are_quoted():
    stream = io.StringIO()

    write_rows(("name",), [{"name": "=1+1"}, {"name": "plain"}], stream)

    assert stream.getvalue() == "name\n'=1+1\nplain\n"


def test_every_column_and_field_is_documented():
    page = PAGE.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([\w ]+)`", page, re.MULTILINE))

    document = to_document(example())
    fields = {
        *document,
        *document["pods"][0],
        *document["pods"][0]["places"][0],
        *document["end"],
        *document["stranded"],
    }

    assert fields | set(COLUMNS) <= documented
