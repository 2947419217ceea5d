"""``alignup upgrade-check``."""

import json
from pathlib import Path

import pytest
import yaml

from alignup.align.host import Host
from alignup.kubernetes import configuration
from alignup.kubernetes.kubelet_files.ledger import export_ledger
from alignup.kubernetes.kubelet_files.state_files import write_state_files
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from tests.cli.commands import in_process

NODE = Path(__file__).parents[2] / "examples" / "node"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
MACHINE = "pack:1 numa:1(memory=8GiB) core:3 pu:2"
CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "reservedSystemCPUs": "0-1",
}


def upgrade_check(old: str, new: str, *words: str | Path):
    return in_process("upgrade-check", "--from", old, "--to", new, *words)


def test_nothing_breaks_on_the_node_of_the_examples():
    run = upgrade_check(
        "1.35", "v1.37.2", *ON_NODE, "--state", NODE / "state", "--pods", NODE / "running.yaml", "-o", "json"
    )

    report = json.loads(run.stdout)
    assert run.returncode == 0
    assert (report["from"], report["to"], report["safe"], report["checkedPods"]) == ("1.35", "1.37", True, 5)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ("featureGates.MemoryManager=true", "unrecognized feature gate: MemoryManager"),
        ("featureGates.TopologyManagerPolicyOptions=false", "feature is locked to true"),
    ],
)
def test_a_setting_that_the_new_kubelet_refuses_breaks_the_upgrade(change, finding):
    run = upgrade_check("1.35", "1.37", *ON_NODE, "--set", change)

    assert run.returncode == 1
    assert finding in " ".join(run.stdout.split())
    assert "the upgrade breaks something" in run.stdout


@pytest.mark.parametrize("change", ["featureGates.MemoryManager=true", "cpuManagerPolicy=nonsense"])
def test_what_both_kubelets_refuse_is_named_and_no_pod_counts_as_checked(change):
    words = (*ON_NODE, "--state", NODE / "state", "--pods", NODE / "running.yaml", "--set", change)

    run = upgrade_check("1.36", "1.37", *words)

    assert run.returncode == 1
    assert "What both kubelets refuse: neither starts" in run.stdout
    assert run.stdout.endswith("0 running pods checked: no kubelet starts\n")


def test_a_file_that_cannot_be_read_is_no_safe_upgrade(tmp_path):
    (tmp_path / "kubelet.yaml").write_text("kind: [")

    run = upgrade_check("1.35", "1.37", "--machine", MACHINE, "--config", tmp_path / "kubelet.yaml")

    assert run.returncode == 1
    assert "the kubelet stops at load" in run.stdout


def test_a_setting_that_only_the_present_kubelet_refuses_breaks_nothing():
    run = upgrade_check("1.35", "1.36", *ON_NODE, "--set", "featureGates.PodLevelResourceManagers=true")

    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "0 running pods checked: nothing breaks")


@pytest.mark.parametrize("change", ["KubeletTracing=true", "EnvFiles=false"])
def test_gates_that_1_38_removes_or_locks_break_the_upgrade(change):
    run = upgrade_check("1.37", "1.38", *ON_NODE, "--set", f"featureGates.{change}")

    assert run.returncode == 1
    assert run.stdout.endswith("0 running pods checked: the upgrade breaks something\n")


def test_pods_of_the_state_files_that_are_not_listed_are_not_checked(tmp_path):
    """A pod that only the state files name may be rejected by the new kubelet, or not: nobody knows its requests."""
    words, uid = (*ON_NODE, "--state", NODE / "state"), "6d1f0c5e-0000-4000-8000-00000000000{}"
    listed = yaml.safe_load((NODE / "running.yaml").read_text())["items"]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(listed[1:]))

    run = upgrade_check("1.35", "1.37", *words)
    document = json.loads(upgrade_check("1.35", "1.37", *words, "-o", "json").stdout)
    some = upgrade_check("1.35", "1.37", *words, "--pods", tmp_path / "pods.yaml")

    assert run.returncode == 1
    assert run.stdout.endswith("0 running pods checked, 4 not checked: add them to --pods\n")
    assert all(uid.format(number) in run.stdout for number in (1, 2, 3, 5))
    assert (document["safe"], document["uncheckedPods"]) == (False, [uid.format(number) for number in (1, 2, 3, 5)])
    assert (some.returncode, some.stdout.splitlines()[-1].split(":")[0]) == (
        1,
        "4 running pods checked, 1 not checked",
    )


@pytest.fixture
def full_node(tmp_path):
    """A node whose cores are all taken, with its state files: the options that name it."""
    machine = parse(MACHINE)
    host = Host(machine, configuration.host_settings(configuration.read(json.dumps(CONFIGURATION)), machine))
    manifests = []
    for day, name in ((2, "young"), (1, "old")):
        amounts = {"cpu": "2", "memory": "1Gi"}
        containers = [{"name": "app", "image": "none", "resources": {"requests": amounts, "limits": amounts}}]
        metadata = {"name": name, "uid": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
        manifests.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})
        assert host.admit(read_pod(manifests[-1])).admitted
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(manifests))
    (tmp_path / "kubelet.yaml").write_text(yaml.safe_dump(CONFIGURATION))
    write_state_files(tmp_path / "state", export_ledger(host), gates=host.settings.gates)
    words = ("--config", tmp_path / "kubelet.yaml", "--state", tmp_path / "state", "--pods", tmp_path / "pods.yaml")
    return ("--machine", MACHINE, *words)


def test_pods_that_the_new_kubelet_rejects_are_named_oldest_first(full_node):
    """Up to 1.36, a restarted kubelet checks under full-pcpus-only whether the container would fit once more."""
    run = upgrade_check("1.37", "1.36", *full_node)

    text = " ".join(run.stdout.split())
    rejected = "default/{} is rejected when a kubelet 1.36 starts: SMTAlignmentError"
    assert run.returncode == 1
    assert 0 < text.index(rejected.format("old")) < text.index(rejected.format("young"))
    assert "present kubelet" not in text
    assert upgrade_check("1.36", "1.37", *full_node).returncode == 0


def test_what_a_restart_does_already_is_said(full_node):
    (change, _) = json.loads(upgrade_check("1.35", "1.36", *full_node, "-o", "json").stdout)["pods"]

    assert (change["pod"], change["reason"], change["alsoNow"]) == ("default/old", "SMTAlignmentError", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kubernetes-version", "1.36"), "give --from and --to instead"),
        (("--pods", NODE / "running.yaml"), "--pods requires --state"),
        (("--state", "missing"), "missing"),
    ],
)
def test_unusable_input_is_refused(words, message):
    run = upgrade_check("1.35", "1.37", *ON_NODE, *words)

    assert run.returncode == 2
    assert message in run.stderr
