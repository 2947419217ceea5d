"""What the commands send to the agent, and how they print its responses."""

import json

import pytest
from hypothesis import given

from alignup.agent.pod_record import same_workload
from alignup.align.workload.validation import accept
from alignup.cli import app, layout, pod_status
from alignup.cli.admit import pod_manifest
from alignup.kubernetes.manifests.pod import pod_to_dict, read_pod_text
from alignup.kubernetes.manifests.workloads import read_workloads
from tests.align.hosts import arrivals


@given(arrivals("some-uid"))
def test_a_pod_survives_the_round_trip(pod):
    (workload,) = read_workloads(json.dumps(pod_to_dict(pod)), name="pod.json").workloads
    sent = json.dumps(pod_manifest(workload, workload.pod))

    arrived = accept(read_pod_text(sent))

    assert same_workload(arrived, pod)
    assert (arrived.uid, arrived.name, arrived.namespace) == (pod.uid, pod.name, pod.namespace)
    assert (arrived.labels, arrived.annotations, arrived.priority) == (pod.labels, pod.annotations, pod.priority)
    assert arrived.computed_qos is pod.computed_qos


def test_columns_are_as_wide_as_their_cells(capfd):
    layout.print_table(("A", "LONGER", "LAST"), [("wide cell", "x", "and so on"), ("y", "z", "")])

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
        pytest.param("a\nb\x1b[2Jc", "a\\nb\\x1b[2Jc", id="control characters"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert app.escape_control(text) == shown


def test_each_numa_node_is_listed_once():
    placements = [{"hint": {"nodes": nodes}} for nodes in ("0", None, "1", "0")]

    assert pod_status.numa_nodes(placements) == "0,1"
    assert pod_status.numa_nodes([]) == "-"
