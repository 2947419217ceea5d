"""``alignup simulate`` for whole clusters."""

import csv
import io
import json
from pathlib import Path

import pytest

from alignup.documents import codec
from alignup.simulate.cluster_result import FleetReport
from tests.cli.commands import in_process
from tests.cli.test_simulate import POD_LEVEL, POD_LEVEL_MANAGERS, SMALL
from tests.html_reader import rows_of

ROOT = Path(__file__).parents[2]
NODE, FLEET = ROOT / "examples" / "node", ROOT / "examples" / "fleet"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
CLUSTER = """
apiVersion: alignup.dev/v1
kind: Cluster
groups:
- name: a
  count: 2
  machine: machine.yaml
  config: kubelet.yaml
- name: b
  machine: "pack:2 numa:1(memory=16GiB) core:4 pu:1"
  labels: {pool: small}
"""


@pytest.fixture
def cluster(tmp_path):
    for name in ("machine.yaml", "kubelet.yaml"):
        (tmp_path / name).write_text((NODE / name).read_text())
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return tmp_path / "cluster.yaml"


def test_html_has_the_figures_of_every_strategy(tmp_path):
    file = tmp_path / "report.html"
    common = ("simulate", "--nodes", "2", "--generate", "training", "--count", "20", "--load", "2", *ON_NODE)

    run = in_process(*common, "--strategy", "alignup,blind-most-allocated", "-o", "json", "--html", file)

    assert (run.returncode, run.stderr) == (0, f"Wrote {file}.\n")
    results = codec.decode(run.stdout, FleetReport).results
    rows = rows_of(file.read_text())
    assert ["started", *(f"{result.started:,}" for result in results)] in rows
    assert ["rejections by kubelets", *(f"{result.rejected:,}" for result in results)] in rows
    again = in_process(*common, "--html", tmp_path / "missing" / "x")
    assert again.returncode == 2
    assert f"--html: {tmp_path}/missing/x: No such file or directory" in again.stderr


def test_groups_come_from_a_file(cluster):
    run = in_process("simulate", "--cluster", cluster, "-f", NODE / "running.yaml", "-o", "json")

    report = codec.decode(run.stdout, FleetReport)
    assert run.returncode == 0
    assert [(group.name, group.hosts) for group in report.results[0].groups] == [("a", 2), ("b", 1)]
    assert report.results[0].started == 5


def test_node_selectors_of_manifests_count(cluster, tmp_path):
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"pool": "small"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    (tmp_path / "pod.json").write_text(json.dumps(pod))

    run = in_process("simulate", "--cluster", cluster, "-f", tmp_path / "pod.json", "-o", "csv")

    assert [row["node"] for row in csv.DictReader(io.StringIO(run.stdout))] == ["b-0"]


@pytest.mark.parametrize(("versions", "numa_nodes"), [(["1.36"], "0"), (["1.36", "1.37"], "1")])
def test_pod_level_resources_have_the_defaults_of_the_newest_release(tmp_path, versions, numa_nodes):
    common = {"machine": SMALL[1], "set": [change for change in POD_LEVEL_MANAGERS if change != "--set"]}
    groups = [{"name": f"v{version}", "kubernetes-version": version, **common} for version in versions]
    document = {"apiVersion": "alignup.dev/v1", "kind": "Cluster", "groups": groups}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    (tmp_path / "pod.json").write_text(json.dumps(POD_LEVEL))
    options = ("--cluster", tmp_path / "cluster.json", "-o", "json")

    loaded = in_process("simulate", "-f", tmp_path / "pod.json", *options, "--save", tmp_path / "trace.jsonl")
    replayed = in_process("simulate", "--trace", tmp_path / "trace.jsonl", *options)

    for run in (loaded, replayed):
        (result,) = json.loads(run.stdout)["results"]
        assert result["alignment"]["podsByNumaNodes"] == {numa_nodes: 1}


def test_openb_and_a_saved_trace_give_the_same_result(tmp_path):
    common = ("simulate", "--cluster", FLEET / "openb_nodes.csv", "--config", FLEET / "openb-kubelet.yaml", "-o", "csv")
    trace = tmp_path / "saved.jsonl"

    first = in_process(*common, "--trace", FLEET / "openb_pods.csv", "--save", trace)
    again = in_process(*common, "--trace", trace)

    assert first.returncode == 0
    assert again.stdout == first.stdout
    assert len(first.stdout.splitlines()) == 121


def test_rate_and_stay_change_the_workload():
    common = ("simulate", "--nodes", "2", "--generate", "telco", "--count", "30", *ON_NODE, "-o", "json")

    normal, fast, stay = (json.loads(in_process(*common, *more).stdout) for more in ((), ("--rate", "10"), ("--stay",)))

    assert normal["results"][0]["duration"] > fast["results"][0]["duration"]
    assert stay["results"][0]["use"]["cpu"]["mean"] > normal["results"][0]["use"]["cpu"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--nodes", "2", "--cluster", "x"), "--cluster and --nodes exclude each other", id="both"),
        pytest.param(("--nodes", "2", "--compare", "policy"), "--compare is for one node", id="compare"),
        pytest.param(("--nodes", "2", "--strategy", "all", "-o", "csv"), "-o csv is for one strategy", id="csv"),
    ],
)
def test_what_cannot_be_simulated(arguments, message):
    run = in_process("simulate", "--generate", "telco", *ON_NODE, *arguments)

    assert run.returncode == 2
    assert message in run.stderr


def test_a_report_that_cannot_be_written_is_an_error_before_the_simulation(tmp_path):
    no_cluster = ("simulate", "--cluster", tmp_path / "none.yaml", "--generate", "telco")

    early = in_process(*no_cluster, "--html", tmp_path / "missing" / "x")
    later = in_process(*no_cluster, "--html", tmp_path / "report.html")

    assert "--html" in early.stderr
    assert "none.yaml" not in early.stderr
    assert "none.yaml: cannot be read" in later.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(("rule", "started"), [("any", 1), ("nvidia", 2)])
def test_pods_start_where_every_choice_is_as_near_as_they_demand(tmp_path, rule, started):
    """NVIDIA's plugin chooses linked GPUs; any other choice may not."""
    text = (ROOT / "examples" / "locality" / "pods.yaml").read_text("utf-8").partition("---")[0]
    demanding = text.replace("name: pair}", "name: linked, annotations: {topology.alignup.dev/devices: nvlink}}")
    (tmp_path / "pods.yaml").write_text(f"{text}\n---\n{demanding}")
    machine = ROOT / "examples" / "locality" / "machine.yaml"
    run = in_process(
        *("simulate", "--nodes", "2", "-f", tmp_path / "pods.yaml", "--machine", machine, "--strategy", "alignup"),
        *("--set", "topologyManagerPolicy=best-effort", "--plugin-rule", f"nvidia.com/gpu={rule}"),
    )

    assert run.returncode in {0, 1}, run.stderr
    assert ["started", str(started)] in [line.split() for line in run.stdout.splitlines()]


def test_the_pods_of_a_shape_that_fit_after_moves_are_counted():
    fleet = ("--cluster", FLEET / "training.yaml", "--generate", "training", "--count", "90")
    run = in_process("simulate", *fleet, "--shape", NODE / "trainer.yaml", "-o", "json")

    (result,) = json.loads(run.stdout)["results"]
    counts = [result["fittingAfterMoves"][moves] for moves in ("0", "1", "5", "20", "100")]
    assert counts == sorted(counts)
    assert counts[1] == counts[0] + 1
