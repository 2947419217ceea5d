"""What notebooks show: pictures, HTML, rows and short representations."""

import sys
from dataclasses import replace

import pytest

import alignup
from alignup.align.display import HtmlTable, html_table

GPU = "example.com/gpu"


@pytest.fixture
def host():
    devices = tuple(alignup.Device(GPU, f"gpu-{number}", node=number) for number in range(2))
    machine = replace(alignup.load_machine("pack:2 numa:1(memory=8GiB) core:4 pu:2"), devices=devices)
    settings = alignup.Settings(
        topology=alignup.TopologySettings(policy=alignup.Policy.SINGLE_NUMA_NODE),
        cpus=alignup.CpuSettings(policy="static", reservation=alignup.Quantity.of(2)),
        reservation={"cpu": alignup.Quantity.of(2)},
    )
    return alignup.Host(machine, settings)


def limited(name, **limits):
    container = alignup.Container("app", alignup.Resources(limits=limits))
    return alignup.accept(alignup.Pod(name=name, uid=name, containers=(container,)))


def test_a_machine_is_a_picture_and_a_row_per_numa_node(host):
    machine = host.machine

    assert machine._repr_svg_().startswith("<svg")
    assert repr(machine) == f"<Machine: 2 NUMA nodes, 16 CPUs, 2 {GPU}>"
    assert machine.to_rows() == [
        {"node": 0, "cpus": "0-7", "memory": 8 << 30, GPU: 1},
        {"node": 1, "cpus": "8-15", "memory": 8 << 30, GPU: 1},
    ]


def test_a_host_is_a_picture_with_its_pods_and_a_row_per_container(host):
    empty = host._repr_svg_()
    host.admit(limited("trainer", cpu="4", memory="1Gi", **{GPU: "1"}))

    assert "default/trainer" in host._repr_svg_()
    assert "default/trainer" not in empty
    assert host.to_rows() == [{"pod": "default/trainer", "container": "app", "nodes": "0", "cpus": "2-5", GPU: "gpu-0"}]
    assert repr(host).startswith("<Host: single-numa-node, 1 pods, <Machine: ")


def test_an_admission_is_html_with_a_row_per_container(host):
    decision = host.decide(limited("trainer", cpu="4", memory="1Gi"))

    assert repr(decision) == "<Decision: default/trainer admitted>"
    assert decision.to_rows() == [
        {"pod": "default/trainer", "outcome": "admitted", "container": "app", "nodes": "0", "cpus": "2-5"}
    ]
    assert "<td" in decision._repr_html_()


def test_a_rejection_is_html_with_a_row_per_shortfall(host):
    decision = host.decide(limited("wide", cpu="10", memory="1Gi"))

    assert repr(decision) == "<Decision: default/wide rejected: TopologyAffinityError>"
    assert [(row["resource"], row["missing"], row["nodes"]) for row in decision.to_rows()] == [
        ("cpu", 4, "0"),
        ("cpu", 2, "1"),
    ]
    assert "too large for any single NUMA node" in decision._repr_html_()


def test_what_pods_are_called_is_escaped_in_html(host):
    decision = replace(host.decide(limited("trainer", cpu="4")), name="<script>")

    assert "<script>" not in decision._repr_html_()
    assert "<b>" not in html_table([{"a": "<b>"}])


def test_a_table_has_only_columns_with_values():
    class Result(HtmlTable):
        def to_rows(self):
            return [{"a": 1, "b": ""}, {"a": 0, "c": None}]

    assert Result()._repr_html_().count("<th ") == 1
    with pytest.raises(NotImplementedError):
        HtmlTable()._repr_html_()


def test_a_copy_of_a_host_changes_alone(host):
    copy = host.copy()
    copy.admit(limited("trainer", cpu="4", memory="1Gi"))

    assert (len(copy.ledger.pods), len(host.ledger.pods)) == (1, 0)


class TestFrames:
    def test_without_pandas_the_error_names_the_way_without(self, host, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)

        with pytest.raises(ImportError, match="pip install pandas; to_rows returns the same rows"):
            host.to_frame()

    def test_with_pandas_a_frame_has_the_rows(self, host, monkeypatch):
        class Pandas:
            """Only what is used of pandas, which is not installed for tests."""

            DataFrame = list

        monkeypatch.setitem(sys.modules, "pandas", Pandas)

        assert host.machine.to_frame() == host.machine.to_rows()
