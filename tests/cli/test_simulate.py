"""``alignup simulate``."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from alignup.cli.inputs import check_writable
from tests.cli.commands import in_process

ROOT = Path(__file__).parents[2]
NODE = ROOT / "examples" / "node"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
SMALL = ("--machine", "pack:2 numa:1 core:4 pu:1")
POD_LEVEL_MANAGERS = (
    *("--set", "cpuManagerPolicy=static", "--set", "reservedSystemCPUs=0"),
    *("--set", "topologyManagerPolicy=single-numa-node", "--set", "featureGates.PodLevelResourceManagers=true"),
)
_AMOUNTS = {"cpu": "2", "memory": "1Gi"}
#: Guaranteed where the API server sets pod-level limits
POD_LEVEL = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "whole"},
    "spec": {
        "resources": {"requests": _AMOUNTS},
        "containers": [{"name": "app", "resources": {"limits": _AMOUNTS}}],
    },
}


def test_json_holds_the_whole_result_and_csv_one_row_per_pod():
    run = in_process("simulate", "-f", NODE / "running.yaml", *ON_NODE, "-o", "json")

    document = json.loads(run.stdout)
    assert (document["admitted"], document["rejected"]) == (5, 0)
    assert [pod["name"] for pod in document["pods"]][:2] == ["finetune", "inference-a"]
    assert set(document["nodes"]) == {"0", "1"}
    table = in_process("simulate", "-f", NODE / "running.yaml", *ON_NODE, "-o", "csv").stdout
    outcomes = [(row["name"], row["outcome"]) for row in csv.DictReader(io.StringIO(table))]
    assert outcomes == [(pod["name"], pod["outcome"]) for pod in document["pods"]]


def test_a_generated_workload_is_reproducible_and_can_be_saved(tmp_path):
    generated = ("--generate", "mixed", "--count", "50", "--seed", "7")

    first = in_process("simulate", *generated, *ON_NODE, "-o", "json", "--save", tmp_path / "trace.jsonl")
    again = in_process("simulate", *generated, *ON_NODE, "-o", "json")
    replayed = in_process("simulate", "--trace", tmp_path / "trace.jsonl", "--seed", "7", *ON_NODE, "-o", "json")
    other = in_process("simulate", *generated[:-1], "8", *ON_NODE, "-o", "json")

    assert first.stderr == f"Wrote 50 pods to {tmp_path / 'trace.jsonl'}.\n"
    assert first.stdout == again.stdout == replayed.stdout
    assert other.stdout != first.stdout


@pytest.mark.parametrize(("version", "place"), [("1.36", "any node"), ("1.37", "node 0 CPUs 1-2")])
def test_pod_level_resources_have_the_defaults_of_the_release(tmp_path, version, place):
    (tmp_path / "pod.json").write_text(json.dumps(POD_LEVEL))
    options = (*SMALL, *POD_LEVEL_MANAGERS, "--kubernetes-version", version)

    loaded = in_process("simulate", "-f", tmp_path / "pod.json", *options, "--save", tmp_path / "trace.jsonl")
    replayed = in_process("simulate", "--trace", tmp_path / "trace.jsonl", *options)

    assert f"  default/whole  admitted  {place}\n" in loaded.stdout
    assert f"  default/whole  admitted  {place}\n" in replayed.stdout


def test_a_node_with_state():
    state = ("--kubelet-dir", NODE / "state", "--pods", NODE / "running.yaml")

    run = in_process("simulate", "-f", NODE / "trainer.yaml", *ON_NODE, *state)

    assert run.stdout.startswith("1 pod: 0 admitted, 1 rejected\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_compare_simulates_every_combination(jobs):
    generated = ("--generate", "training", "--count", "8")

    run = in_process("simulate", *generated, *ON_NODE, "--compare", "policy,cpu-options", "--jobs", jobs, "-o", "json")

    document = json.loads(run.stdout)
    ranks = [variant["rank"] for variant in document["ranked"]]
    assert ranks == sorted(ranks)
    assert {variant["choices"]["policy"] for variant in document["ranked"]} == {
        "none",
        "best-effort",
        "restricted",
        "single-numa-node",
    }
    assert any("can not be used at the same time" in variant["error"] for variant in document["illegal"])


@pytest.mark.parametrize("dimensions", ["policy,scope", "policy,cpu-options"])
def test_a_comparison_fits_80_columns_and_folds_ties(dimensions):
    generated = ("--generate", "training", "--count", "8")
    run = in_process("simulate", *generated, *ON_NODE, "--compare", dimensions, "--jobs", "1", env={"COLUMNS": "80"})

    assert max(map(len, run.stdout.splitlines())) <= 80
    assert ("The kubelet does not start with" in run.stdout) is ("cpu-options" in dimensions)
    ranks = re.findall(r"^ {1,3}(\d+)  ", run.stdout.partition("Why pods")[0], re.MULTILINE)
    assert 1 < len(ranks) == len(set(ranks)) < 7


def test_the_pictures_show_the_node_at_peak_demand(tmp_path):
    """At the end of a generated workload, all pods have left."""
    svg, html = tmp_path / "node.svg", tmp_path / "report.html"
    generated = ("--generate", "training", "--count", "20")
    run = in_process("simulate", *generated, *ON_NODE, "--svg", svg, "--html", html)

    assert run.returncode == 0
    assert "data-holder=" in svg.read_text()
    assert "data-holder=" in html.read_text()
    assert f"Wrote {html}." in run.stderr
    again = in_process("simulate", *generated, *ON_NODE, "--html", tmp_path / "missing" / "x")
    assert (again.returncode, "--html: " in again.stderr) == (2, True)


def test_a_link_to_a_report_stays_a_link(tmp_path):
    link, target = tmp_path / "link.html", tmp_path / "report.html"
    link.symlink_to(target)

    check_writable("--html", link)

    assert (link.is_symlink(), target.exists()) == (True, False)


BAD = {
    "no workload": ((), "give exactly one workload"),
    "two workloads": (("--generate", "telco", "--trace", "x"), "give exactly one workload"),
    "an unknown dimension": (("--generate", "telco", "--compare", "weather"), "unknown dimension weather"),
    "an unknown value": (("--generate", "telco", "--compare", "policy=restrictd"), "did you mean restricted?"),
    "an endless trace": (("--trace", "/dev/zero"), "it is a device"),
    "an SVG of a comparison": (
        ("--generate", "telco", "--compare", "policy", "--svg", "x"),
        "--svg and --compare exclude each other",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_invalid_input_reports_what_is_wrong_where_and_what_to_do(arguments, message):
    run = in_process("simulate", *arguments, *SMALL)

    lines = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (2, "")
    assert message in lines[0]
    assert lines[0].startswith("alignup: ")
    assert len(lines) >= 2


def test_a_trace_has_a_duration_and_manifests_have_none(tmp_path):
    trace = "apiVersion: alignup.dev/v1\nkind: Trace\nevents:\n- {at: 0, arrive: a, requests: {cpu: 1}, lifetime: 30}\n"
    (tmp_path / "trace.yaml").write_text(trace)

    files = in_process("simulate", "-f", NODE / "running.yaml", *ON_NODE)
    traced = in_process("simulate", "--trace", tmp_path / "trace.yaml", *SMALL)

    assert files.stdout.splitlines()[1] == "policy single-numa-node · scope container"
    assert traced.stdout.splitlines()[3] == "policy none · scope container · 30 s of workload"


def test_the_default_configuration_allocates_nothing_per_node():
    run = in_process("simulate", "--generate", "mixed", "--count", "10", *SMALL)

    assert (run.returncode, run.stderr) == (0, "")
    assert "no manager allocates per NUMA node with these settings" in " ".join(run.stdout.split())


def test_finished_pods_are_skipped(tmp_path):
    listed = (NODE / "running.yaml").read_text("utf-8")
    (tmp_path / "pods.yaml").write_text(listed + "  status: {phase: Succeeded}\n")

    run = in_process("simulate", "-f", tmp_path / "pods.yaml", *ON_NODE)

    assert run.stderr == "note: skipped 1 finished pod\n"
    assert run.stdout.startswith("4 pods: 4 admitted")


def test_a_pod_without_a_device_plugin_is_not_schedulable():
    words = ("simulate", "-f", NODE / "trainer.yaml", "--machine", "pack:2 numa:1(memory=64GiB) core:8 pu:2")
    missing = "no device plugin provides example.com/gpu, example.com/nic"

    text, as_kubelet = (
        " ".join(in_process(*words, *more).stdout.split()) for more in ((), ("--ignore-missing-devices",))
    )
    documents = [
        json.loads(in_process(*words, "-o", "json", *more).stdout)["pods"][0]
        for more in ((), ("--ignore-missing-devices",))
    ]
    compared = [
        json.loads(in_process(*words, "-o", "json", "--jobs", "1", "--compare", "scope", *more).stdout)["ranked"][0]
        for more in ((), ("--ignore-missing-devices",))
    ]

    assert "1 pod: 0 admitted, 1 rejected" in text
    assert f"NotSchedulable: {missing} (a kubelet that got it: admitted)" in text
    assert "1 pod: 1 admitted, 0 rejected" in as_kubelet
    assert f"(not schedulable: {missing})" in as_kubelet
    outcomes = [(document["outcome"], document["kubelet"]) for document in documents]
    assert outcomes == [("rejected", "admitted"), ("admitted", None)]
    assert [document["missingDevices"] for document in documents] == [["example.com/gpu", "example.com/nic"]] * 2
    assert [document["reasons"] for document in compared] == [{"NotSchedulable": 1}, {}]
