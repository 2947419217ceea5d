"""``alignup simulate``, run as people run it."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.commands import alignup, started

ROOT = Path(__file__).parents[2]
NODE = ROOT / "examples" / "node"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
SMALL = ("--machine", "pack:2 numa:1 core:4 pu:1")


def test_pods_in_the_order_of_their_files():
    run = alignup("simulate", "-f", NODE / "running.yaml", "-f", NODE / "trainer.yaml", *ON_NODE)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("6 pods: 5 admitted, 1 refused\npolicy single-numa-node")
    assert "  TopologyAffinityError  1\n" in run.stdout
    assert "ml/finetune     admitted  node 0 CPUs 1-4,17-20 example.com/gpu=gpu-0" in run.stdout


def test_machines_get_everything():
    run = alignup("simulate", "-f", NODE / "running.yaml", *ON_NODE, "-o", "json")

    document = json.loads(run.stdout)
    assert (document["admitted"], document["refused"]) == (5, 0)
    assert [pod["name"] for pod in document["pods"]][:2] == ["finetune", "inference-a"]
    assert set(document["nodes"]) == {"0", "1"}


def test_a_table_has_a_row_a_pod():
    run = alignup("simulate", "--generate", "telco", "--count", "30", *ON_NODE, "-o", "csv")

    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert len(rows) == 30
    assert {row["outcome"] for row in rows} <= {"admitted", "refused"}


def test_a_made_up_workload_is_the_same_again_and_can_be_saved_and_played(tmp_path):
    made = ("--generate", "mixed", "--count", "50", "--seed", "7")

    first = alignup("simulate", *made, *ON_NODE, "-o", "json", "--save", tmp_path / "trace.jsonl")
    again = alignup("simulate", *made, *ON_NODE, "-o", "json")
    played = alignup("simulate", "--trace", tmp_path / "trace.jsonl", *ON_NODE, "-o", "json")
    other = alignup("simulate", *made[:-1], "8", *ON_NODE, "-o", "json")

    assert first.stderr == f"Wrote 50 pods to {tmp_path / 'trace.jsonl'}.\n"
    assert first.stdout == again.stdout == played.stdout
    assert other.stdout != first.stdout


def test_a_picture_of_the_end(tmp_path):
    run = alignup("simulate", "-f", NODE / "running.yaml", *ON_NODE, "--svg", tmp_path / "end.svg")

    assert run.returncode == 0
    assert "ml/finetune" in (tmp_path / "end.svg").read_text("utf-8")


def test_the_node_as_it_is():
    state = ("--state", NODE / "state", "--pods", NODE / "running.yaml")

    run = alignup("simulate", "-f", NODE / "trainer.yaml", *ON_NODE, *state)

    assert run.stdout.startswith("1 pod: 0 admitted, 1 refused\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_every_combination_side_by_side(jobs):
    made = ("--generate", "training", "--count", "20")

    run = alignup("simulate", *made, *ON_NODE, "--compare", "policy,cpu-options", "--jobs", jobs, "-o", "json")

    document = json.loads(run.stdout)
    ranks = [one["rank"] for one in document["ranked"]]
    assert ranks == sorted(ranks)
    assert {one["choices"]["policy"] for one in document["ranked"]} == {
        "none",
        "best-effort",
        "restricted",
        "single-numa-node",
    }
    assert any("can not be used at the same time" in one["error"] for one in document["illegal"])


def test_a_comparison_for_people():
    run = alignup("simulate", "--generate", "training", "--count", "20", *ON_NODE, "--compare", "policy,cpu-options")

    assert "the best first" in run.stdout
    assert "With these a kubelet would not start" in run.stdout


BAD = {
    "no workload": ((), "there has to be one workload"),
    "two workloads": (("--generate", "telco", "--trace", "x"), "there has to be one workload"),
    "no trace": (("--trace", "nowhere.yaml"), "nowhere.yaml"),
    "no file": (("-f", "nowhere.yaml"), "cannot be read"),
    "an unknown dimension": (("--generate", "telco", "--compare", "weather"), "there is no dimension weather"),
    "a picture of a comparison": (("--generate", "telco", "--compare", "policy", "--svg", "x"), "--svg draws one host"),
    "a picture nowhere": (("--generate", "telco", "--count", "1", "--svg", "nowhere/x.svg"), "nowhere/x.svg"),
    "a trace saved nowhere": (("--generate", "telco", "--count", "1", "--save", "nowhere/x"), "nowhere/x"),
}


@pytest.mark.parametrize(("arguments", "told"), BAD.values(), ids=BAD)
def test_bad_input_says_what_where_and_what_to_do(arguments, told):
    run = alignup("simulate", *arguments, *SMALL)

    lines = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (2, "")
    assert told in lines[0]
    assert lines[0].startswith("alignup: ")
    assert len(lines) >= 2


def test_a_trace_with_a_mistake_names_the_line(tmp_path):
    (tmp_path / "trace.yaml").write_text(
        "apiVersion: alignup.dev/v1\nkind: Trace\nevents:\n- {at: 0, arrive: a, requests: {cpu: much}}\n"
    )

    run = alignup("simulate", "--trace", tmp_path / "trace.yaml", *SMALL)

    assert run.returncode == 2
    assert "trace.yaml" in run.stderr
    assert "quantities must match" in run.stderr


def test_output_that_nobody_reads_ends_quietly():
    with started("simulate", "--generate", "telco", "--count", "100", *map(str, ON_NODE), "-o", "csv") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (141, b"")
