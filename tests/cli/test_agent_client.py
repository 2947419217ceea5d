"""What the commands send to an agent, and how they show what it says."""

import json

import pytest
from hypothesis import given

from alignup.agent.pod_record import same_workload
from alignup.align.workload.validation import accept
from alignup.cli import app, tables
from alignup.cli.client import pod_manifest
from alignup.kube.pod import read_pod_text
from tests.align.hosts import arrivals


@given(arrivals("some-uid"))
def test_a_pod_that_is_sent_arrives_as_it_was(pod):
    sent = json.dumps(pod_manifest(pod))

    arrived = accept(read_pod_text(sent))

    assert same_workload(arrived, pod)
    assert (arrived.uid, arrived.name, arrived.namespace) == (pod.uid, pod.name, pod.namespace)
    assert (arrived.labels, arrived.annotations, arrived.priority) == (pod.labels, pod.annotations, pod.priority)
    assert arrived.computed_qos is pod.computed_qos


def test_columns_are_as_wide_as_what_is_in_them(capfd):
    tables.print_table(("A", "LONGER", "LAST"), [("wide cell", "x", "and so on"), ("y", "z", "")])

    assert capfd.readouterr().out.splitlines() == [
        "A          LONGER  LAST",
        "wide cell  x       and so on",
        "y          z",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("web", "web", id="a name"),
        pytest.param("größer · 漢字", "größer · 漢字", id="any script"),
        pytest.param("a\nb\x1b[2Jc", "a\\nb\\x1b[2Jc", id="what a terminal would obey"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_instead(text, shown):
    assert app.escape_control(text) == shown


def test_nodes_of_containers_are_told_once_each():
    placements = [{"hint": {"nodes": nodes}} for nodes in ("0", None, "1", "0")]

    assert tables.numa_nodes(placements) == "0,1"
    assert tables.numa_nodes([]) == "-"
