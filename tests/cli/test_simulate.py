"""``alignup simulate``, run as people run it."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.commands import alignup, inside, started

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
    run = inside("simulate", "-f", NODE / "running.yaml", *ON_NODE, "-o", "json")

    document = json.loads(run.stdout)
    assert (document["admitted"], document["refused"]) == (5, 0)
    assert [pod["name"] for pod in document["pods"]][:2] == ["finetune", "inference-a"]
    assert set(document["nodes"]) == {"0", "1"}


def test_a_table_has_a_row_a_pod():
    run = inside("simulate", "--generate", "telco", "--count", "30", *ON_NODE, "-o", "csv")

    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert len(rows) == 30
    assert {row["outcome"] for row in rows} <= {"admitted", "rejected"}


def test_a_made_up_workload_is_the_same_again_and_can_be_saved_and_played(tmp_path):
    made = ("--generate", "mixed", "--count", "50", "--seed", "7")

    first = inside("simulate", *made, *ON_NODE, "-o", "json", "--save", tmp_path / "trace.jsonl")
    again = inside("simulate", *made, *ON_NODE, "-o", "json")
    played = inside("simulate", "--trace", tmp_path / "trace.jsonl", *ON_NODE, "-o", "json")
    other = inside("simulate", *made[:-1], "8", *ON_NODE, "-o", "json")

    assert first.stderr == f"Wrote 50 pods to {tmp_path / 'trace.jsonl'}.\n"
    assert first.stdout == again.stdout == played.stdout
    assert other.stdout != first.stdout


def test_a_picture_of_the_end(tmp_path):
    run = inside("simulate", "-f", NODE / "running.yaml", *ON_NODE, "--svg", tmp_path / "end.svg")

    assert run.returncode == 0
    assert "ml/finetune" in (tmp_path / "end.svg").read_text("utf-8")


def test_the_node_as_it_is():
    state = ("--state", NODE / "state", "--pods", NODE / "running.yaml")

    run = inside("simulate", "-f", NODE / "trainer.yaml", *ON_NODE, *state)

    assert run.stdout.startswith("1 pod: 0 admitted, 1 refused\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_every_combination_side_by_side(jobs):
    made = ("--generate", "training", "--count", "20")

    call = inside if jobs == "1" else alignup
    run = call("simulate", *made, *ON_NODE, "--compare", "policy,cpu-options", "--jobs", jobs, "-o", "json")

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
    made = ("--generate", "training", "--count", "20")
    run = inside("simulate", *made, *ON_NODE, "--compare", "policy,cpu-options", "--jobs", "1")

    assert "the best first" in run.stdout
    assert "With these a kubelet would not start" in run.stdout


BAD = {
    "no workload": ((), "there has to be one workload"),
    "two workloads": (("--generate", "telco", "--trace", "x"), "there has to be one workload"),
    "no trace": (("--trace", "nowhere.yaml"), "nowhere.yaml"),
    "no file": (("-f", "nowhere.yaml"), "cannot be read"),
    "an unknown dimension": (("--generate", "telco", "--compare", "weather"), "there is no dimension weather"),
    "no dimension": (("--generate", "telco", "--compare", ""), "there is no dimension"),
    "a load that is no number": (("--generate", "telco", "--load", "nan"), "a load of nan"),
    "an endless trace": (("--trace", "/dev/zero"), "more than 256 MiB are not read"),
    "a picture of a comparison": (("--generate", "telco", "--compare", "policy", "--svg", "x"), "--svg draws one host"),
    "a picture nowhere": (("--generate", "telco", "--count", "1", "--svg", "nowhere/x.svg"), "nowhere/x.svg"),
    "a trace saved nowhere": (("--generate", "telco", "--count", "1", "--save", "nowhere/x"), "nowhere/x"),
}


@pytest.mark.parametrize(("arguments", "told"), BAD.values(), ids=BAD)
def test_bad_input_says_what_where_and_what_to_do(arguments, told):
    run = inside("simulate", *arguments, *SMALL)

    lines = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (2, "")
    assert told in lines[0]
    assert lines[0].startswith("alignup: ")
    assert len(lines) >= 2


def test_pods_from_files_have_no_time_of_their_own_and_those_of_traces_do(tmp_path):
    trace = "apiVersion: alignup.dev/v1\nkind: Trace\nevents:\n- {at: 0, arrive: a, requests: {cpu: 1}, lifetime: 30}\n"
    (tmp_path / "trace.yaml").write_text(trace)

    files = inside("simulate", "-f", NODE / "running.yaml", *ON_NODE)
    traced = inside("simulate", "--trace", tmp_path / "trace.yaml", *SMALL)

    assert files.stdout.splitlines()[1] == "policy single-numa-node · scope container"
    assert traced.stdout.splitlines()[1] == "policy none · scope container · 30 s of workload"


def test_a_kubelet_as_it_is_out_of_the_box_gives_nothing_out():
    run = inside("simulate", "--generate", "mixed", "--count", "10", *SMALL)

    assert (run.returncode, run.stderr) == (0, "")
    assert "no manager of these settings gives any out" in " ".join(run.stdout.split())


def test_where_only_ascii_can_be_shown():
    plain = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}

    run = alignup("simulate", "-f", NODE / "running.yaml", "-f", NODE / "trainer.yaml", *ON_NODE, env=plain)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.isascii()


def test_pods_that_ran_to_the_end_are_not_played(tmp_path):
    listed = (NODE / "running.yaml").read_text("utf-8")
    (tmp_path / "pods.yaml").write_text(listed + "  status: {phase: Succeeded}\n")

    run = inside("simulate", "-f", tmp_path / "pods.yaml", *ON_NODE)

    assert run.stderr == "note: 1 pod that ran to the end left out\n"
    assert run.stdout.startswith("4 pods: 4 admitted")


def test_what_nobody_offers_is_told():
    run = inside("simulate", "-f", NODE / "trainer.yaml", *SMALL)

    assert "note: nobody offers example.com/gpu here" in run.stderr


def test_a_trace_with_a_mistake_names_the_line(tmp_path):
    (tmp_path / "trace.yaml").write_text(
        "apiVersion: alignup.dev/v1\nkind: Trace\nevents:\n- {at: 0, arrive: a, requests: {cpu: much}}\n"
    )

    run = inside("simulate", "--trace", tmp_path / "trace.yaml", *SMALL)

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
