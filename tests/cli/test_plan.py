"""``alignup plan``."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest
from tests.cli.test_why import ON_NODE, TRAINER, WITH_POD_NAMES


def test_the_node_is_shown_before_and_after_the_moves():
    """The lines before are an example of docs/plan.md."""
    run = in_process("plan", "-f", TRAINER, *WITH_POD_NAMES)

    assert (run.returncode, run.stderr) == (0, "")
    before, after = run.stdout.split("\nAfter\n")
    assert "shop/indexer  CPUs" in before
    assert "ml/trainer-0  CPUs" in after


def test_the_document_has_the_moves_and_the_decision():
    run = in_process("plan", "-f", TRAINER, *WITH_POD_NAMES, "-o", "json")

    document = json.loads(run.stdout)
    (plan,) = document["plans"]
    assert document["newPlacesKnown"] is False
    assert [move["pod"]["name"] for move in plan["moves"]] == ["indexer"]
    assert (plan["provedMinimal"], plan["atLeast"], plan["feasible"]) == (True, 1, True)
    assert plan["decision"]["outcome"] == "admitted"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param((*WITH_POD_NAMES, "--exempt", "shop", "--exempt", "ml"), "5 in exempt namespaces", id="exempt"),
        pytest.param(ON_NODE, "4 that --pods does not name", id="pods without names"),
    ],
)
def test_without_a_plan_it_says_why(options, reason):
    run = in_process("plan", "-f", TRAINER, *options)

    assert run.returncode == 1
    assert run.stdout.startswith("No plan for pod ml/trainer-0\n")
    assert reason in " ".join(run.stdout.split())


def test_other_pods_are_evicted_where_the_cheapest_is_exempt():
    run = in_process("plan", "-f", TRAINER, *WITH_POD_NAMES, "--exempt", "shop", "-o", "json")

    (plan,) = json.loads(run.stdout)["plans"]
    assert [move["pod"]["name"] for move in plan["moves"]] == ["inference-b"]


def test_a_pod_that_fits_needs_no_move(tmp_path: Path):
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(pod_manifest("p"))

    run = in_process("plan", manifest, *WITH_POD_NAMES)

    assert run.returncode == 0
    assert run.stdout.startswith("Pod default/p needs no move: the node admits it\n")


def test_a_file_is_required():
    run = in_process("plan", *WITH_POD_NAMES)

    assert run.returncode == 2
    assert "Give FILE, or -f FILE." in run.stderr
