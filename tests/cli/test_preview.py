"""``--preview``: plans of Kubernetes, in commands that predict."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import in_process

NODE = Path(__file__).parents[2] / "examples" / "node"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
PLAN = "numa-allocation-strategy"
PREVIEW = ("--preview", PLAN)
GATE = ("--set", "featureGates.TopologyManagerPolicyAlphaOptions=true")


def strategy(value: str) -> tuple[str, ...]:
    return ("--set", f"topologyManagerPolicyOptions.{PLAN}={value}", *GATE)


def why(*words):
    state = ("--kubelet-dir", NODE / "state", "--pods", NODE / "running.yaml")
    return in_process("why", NODE / "trainer.yaml", *ON_NODE, *state, "--search", "0", *words)


def test_why_says_that_it_is_a_preview():
    run = why(*PREVIEW, *strategy("most-allocated"), "-o", "json")
    text = why(*PREVIEW, *strategy("most-allocated"))

    document = json.loads(run.stdout)
    assert (document["kubernetes"], document["knownUpTo"], document["previews"]) == (
        "1.38",
        "alpha.2, 2026-10-07",
        [PLAN],
    )
    assert "preview of a plan, as of 2026-10" in text.stderr
    assert f"preview of a plan, as of 2026-10: {PLAN}" in " ".join(text.stdout.split())


@pytest.mark.parametrize("words", [(), ("--kubernetes-version", "1.38")])
def test_without_the_preview_the_option_is_refused(words):
    run = why(*strategy("most-allocated"), *words)

    assert run.returncode == 2
    assert f'unknown Topology Manager Policy option: "{PLAN}"' in run.stderr


def test_a_preview_needs_a_release_that_can_have_it():
    run = why(*PREVIEW, "--kubernetes-version", "1.37")

    assert run.returncode == 2
    assert "is for Kubernetes 1.38 and later, not 1.37" in run.stderr


def test_doctor_and_upgrade_check_have_no_previews():
    assert in_process("doctor", *ON_NODE, *PREVIEW).returncode == 2
    assert in_process("upgrade-check", *ON_NODE, "--from", "1.37", "--to", "1.38", *PREVIEW).returncode == 2


def test_a_cluster_is_simulated_and_swept_with_a_plan(tmp_path):
    words = ("simulate", "--nodes", "2", "--generate", "mixed", "--count", "20", *ON_NODE)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"""
apiVersion: alignup.dev/v1
kind: Sweep
machines: [{{name: m, count: 1, machine: "pack:2 numa:1(memory=16GiB) core:4 pu:1"}}]
configurations:
- name: packed
  set:
  - topologyManagerPolicy=restricted
  - topologyManagerPolicyOptions.{PLAN}=most-allocated
  - featureGates.TopologyManagerPolicyAlphaOptions=true
strategies: [alignup]
workload: {{generate: telco, pods: 4, load: 1}}
"""
    )
    sweep = ("sweep", spec, "--engine", "serial", "--results", tmp_path / "r.csv", "-o", "csv")

    assert in_process(*words, *PREVIEW, *strategy("least-allocated")).returncode == 0
    run = in_process(*sweep, *PREVIEW)
    refused = in_process(*sweep[:-3], tmp_path / "other.csv", "-o", "csv")

    assert run.returncode == 0, run.stderr
    assert "unknown Topology Manager" not in run.stdout
    assert "unknown Topology Manager" in refused.stdout + refused.stderr


def test_why_lists_what_the_plan_may_choose_at_random(tmp_path):
    """Neither NUMA node suits all resources of the second container, and two orders of its resources differ."""
    amounts = {"c0": {"cpu": "5"}, "c1": {"cpu": "2", "example.com/gpu": "2", "example.com/nic": "1"}}
    containers = [
        {"name": name, "image": "i", "resources": {"limits": limits | {"memory": "1Mi"}}}
        for name, limits in amounts.items()
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    devices = ("example.com/gpu=1@0", "example.com/gpu=2@1", "example.com/nic=1@0", "example.com/nic=1@1")
    options = ("cpuManagerPolicy=static", "topologyManagerPolicy=best-effort", "reservedSystemCPUs=0")
    words = (
        *("why", "-f", tmp_path / "pod.json", "--machine", "pack:2 numa:1(memory=8GiB) core:4 pu:1", *PREVIEW),
        *(word for device in devices for word in ("--devices", device)),
        *(word for option in options for word in ("--set", option)),
    )

    run = in_process(*words, *strategy("most-allocated"), "-o", "json")
    text = in_process(*words, *strategy("most-allocated"))
    plain = in_process(*words, *strategy("none"), "-o", "json")

    (answer,) = json.loads(run.stdout)["answers"]
    steps = [decision["steps"][1] for decision in (answer["decision"], *answer["otherDecisions"])]
    assert [step["rule"] for step in steps] == ["RANDOM", "RANDOM"]
    assert sorted(step["hint"]["nodes"] for step in steps) == ["0", "1"]
    assert "Or, at random, on" in text.stdout
    assert "{0} or {1}, at random: not preferred by every resource" in " ".join(text.stdout.split())
    assert not json.loads(plain.stdout)["answers"][0]["otherDecisions"]
