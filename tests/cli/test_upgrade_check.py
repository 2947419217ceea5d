"""``alignup upgrade-check``."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from alignup.align.workload.validation import accept
from alignup.kubernetes.manifests.pod_decoder import read_pod
from alignup.machines.synthetic import parse
from alignup.testing.simulated_kubelet import SimulatedKubelet
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest

NODE = Path(__file__).parents[2] / "examples" / "node"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
MACHINE = "pack:1 numa:1(memory=8GiB) core:3 pu:2"
WHOLE_CORES: dict[str, Any] = {
    "topologyManagerPolicy": "none",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "reservedSystemCPUs": "0-1",
    "memoryManagerPolicy": "None",
    "reservedMemory": None,
}
NOT_RELEASED = "1.38 is not released; known up to alpha.2, 2026-10-07"


def upgrade_check(old: str, new: str, *words: str | Path):
    return in_process("upgrade-check", "--from", old, "--to", new, *words)


def test_nothing_breaks_on_the_node_of_the_examples():
    run = upgrade_check(
        "1.35", "v1.37.2", *ON_NODE, "--kubelet-dir", NODE / "state", "--pods", NODE / "running.yaml", "-o", "json"
    )

    report = json.loads(run.stdout)
    assert run.returncode == 0
    assert (report["from"], report["to"], report["safe"], report["checkedPods"]) == ("1.35", "1.37", True, 5)


@pytest.mark.parametrize("change", ["featureGates.MemoryManager=true", "cpuManagerPolicy=nonsense"])
def test_what_both_kubelets_refuse_is_named_and_no_pod_counts_as_checked(change):
    words = (*ON_NODE, "--kubelet-dir", NODE / "state", "--pods", NODE / "running.yaml", "--set", change)

    run = upgrade_check("1.36", "1.37", *words)

    assert run.returncode == 1
    assert run.stdout.startswith("no kubelet starts\nFrom Kubernetes 1.36 to 1.37: 0 running pods checked\n")
    assert "the present kubelet does not start either" in " ".join(run.stdout.split())


def test_a_file_that_cannot_be_read_is_no_safe_upgrade(tmp_path):
    (tmp_path / "kubelet.yaml").write_text("kind: [")

    run = upgrade_check("1.35", "1.37", "--machine", MACHINE, "--config", tmp_path / "kubelet.yaml")

    assert run.returncode == 1
    assert "the kubelet stops at load" in run.stdout


def test_pods_of_the_state_files_that_are_not_listed_are_not_checked(tmp_path):
    """A pod that only the state files name may be rejected by the new kubelet, or not: nobody knows its requests."""
    words, uid = (*ON_NODE, "--kubelet-dir", NODE / "state"), "6d1f0c5e-0000-4000-8000-00000000000{}"
    listed = yaml.safe_load((NODE / "running.yaml").read_text())["items"]
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(listed[1:]))

    run = upgrade_check("1.35", "1.37", *words)
    document = json.loads(upgrade_check("1.35", "1.37", *words, "-o", "json").stdout)
    some = upgrade_check("1.35", "1.37", *words, "--pods", tmp_path / "pods.yaml")

    assert run.returncode == 1
    assert run.stdout.splitlines()[0] == "not all pods are checked"
    assert run.stdout.splitlines()[1] == "From Kubernetes 1.35 to 1.37: 0 running pods checked, 4 not checked"
    assert all(uid.format(number) in run.stdout for number in (1, 2, 3, 5))
    assert (document["safe"], document["uncheckedPods"]) == (False, [uid.format(number) for number in (1, 2, 3, 5)])
    assert some.returncode == 1
    assert some.stdout.splitlines()[1].endswith(": 4 running pods checked, 1 not checked")


@pytest.fixture
def full_node(tmp_path):
    """A node whose cores are all taken, with its state files: the options that name it."""
    kubelet = SimulatedKubelet(machine=parse(MACHINE), devices=(), **WHOLE_CORES)
    manifests = []
    for day, name in ((2, "young"), (1, "old")):
        manifests.append(json.loads(pod_manifest(name, cpu="2", memory="1Gi")))
        manifests[-1]["metadata"] |= {"uid": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
        kubelet.run(accept(read_pod(manifests[-1])))
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(manifests))
    (tmp_path / "kubelet.yaml").write_bytes(kubelet.text)
    kubelet.write(tmp_path / "state")
    words = (
        "--config",
        tmp_path / "kubelet.yaml",
        "--kubelet-dir",
        tmp_path / "state",
        "--pods",
        tmp_path / "pods.yaml",
    )
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kubernetes-version", "1.36"), "give --from and --to instead"),
        (("--pods", NODE / "running.yaml"), "--pods requires --kubelet-dir"),
        (("--kubelet-dir", "missing"), "missing"),
    ],
)
def test_unusable_input_is_refused(words, message):
    run = upgrade_check("1.35", "1.37", *ON_NODE, *words)

    assert run.returncode == 2
    assert message in run.stderr


BROKEN, BROKEN_IN_1_38 = "the upgrade breaks something", f"the upgrade breaks something ({NOT_RELEASED})"
DUE = "is due to be"


@pytest.mark.parametrize(
    ("old", "new", "gate", "verdict", "finding"),
    [
        ("1.35", "1.37", "MemoryManager=true", BROKEN, "unrecognized feature gate: MemoryManager"),
        ("1.37", "1.38", "KubeletTracing=true", BROKEN_IN_1_38, "KubeletTracing"),
        ("1.35", "1.36", "PodLevelResourceManagers=true", "nothing breaks", ""),
        ("1.37", "1.38", "SELinuxMount=false", f"nothing known breaks ({NOT_RELEASED})", DUE),
        ("1.37", "1.38", "JobManagedBy=true", f"nothing known breaks ({NOT_RELEASED})", DUE),
        ("1.37", "1.38", "PodLevelResources=true", f"nothing known breaks ({NOT_RELEASED})", ""),
    ],
)
def test_gates_that_the_new_kubelet_refuses_break_the_upgrade(old, new, gate, verdict, finding):
    """A gate that only the present kubelet refuses breaks nothing, and one that is due to be removed is a warning."""
    run = upgrade_check(old, new, *ON_NODE, "--set", f"featureGates.{gate}")

    text = " ".join(run.stdout.split())
    assert run.returncode == (1 if "something" in verdict else 0)
    assert text.startswith(f"{verdict} From Kubernetes {old} to {new}: 0 running pods checked")
    assert finding in text
    assert ("remove it before the upgrade" in text) is (DUE in text) is (finding == DUE)


def test_every_answer_about_1_38_has_the_date_of_knowledge():
    document = json.loads(upgrade_check("1.37", "1.38", *ON_NODE, "-o", "json").stdout)

    assert document["knownUpTo"] == "alpha.2, 2026-10-07"
    assert "knownUpTo" not in json.loads(upgrade_check("1.36", "1.37", *ON_NODE, "-o", "json").stdout)


def test_sub_ids_that_end_with_the_largest_number_stop_the_kubelet(tmp_path):
    (tmp_path / "subuid").write_text("root:0:1\nkubelet:65536:4294901760\n")

    run = upgrade_check("1.37", "1.38", *ON_NODE, "--etc", tmp_path)

    assert run.returncode == 1
    assert "/etc/subuid: a kubelet 1.38 does not start" in " ".join(run.stdout.split())
    assert upgrade_check("1.36", "1.37", *ON_NODE, "--etc", tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"uidMappings":[{"hostId":4294901760,"containerId":0,"length":65536}],"gidMappings":[]}', 1),
        ('{"uidMappings":[],"gidMappings":[{"hostId":4294901760,"containerId":0,"length":65536}]}', 1),
        ('{"uidMappings":[{"hostId":4294836224,"containerId":0,"length":65536}],"gidMappings":[]}', 0),
        ("not JSON", 0),
    ],
)
def test_a_pod_with_the_last_ids_stops_the_kubelet(tmp_path, text, code):
    state = shutil.copytree(NODE / "state", tmp_path / "state")
    (state / "pods" / "uid-1").mkdir(parents=True)
    (state / "pods" / "uid-1" / "userns").write_text(text)
    words = (*ON_NODE, "--kubelet-dir", state, "--pods", NODE / "running.yaml")

    run = upgrade_check("1.37", "1.38", *words)

    assert run.returncode == code, run.stdout
    said = 'pods/uid-1/userns: a kubelet 1.38 does not start: pod "uid-1": id 4294901760 is out of range'
    assert (said in " ".join(run.stdout.split())) == bool(code)
    assert upgrade_check("1.36", "1.37", *words).returncode == 0


def test_pods_that_wait_and_get_another_answer_are_named(tmp_path):
    """A kubelet up to 1.37 does not return from this selection of CPUs, so it counts as rejected."""
    example = NODE.parent / "defects"
    words = ("--machine", "pack:2 numa:4(memory=8GiB) core:4 pu:2", "--config", example / "distribute-cores.yaml")
    (tmp_path / "small.yaml").write_text(pod_manifest("small", cpu="2", memory="1Gi"))

    up = upgrade_check("1.37", "1.38", *words, "-f", example / "twenty-two-cpus.yaml", "-f", tmp_path / "small.yaml")
    down = upgrade_check("1.38", "1.37", *words, "-f", example / "twenty-two-cpus.yaml")

    assert up.returncode == 0
    assert "2 waiting pods asked about" in up.stdout
    text = " ".join(up.stdout.split())
    assert "default/twenty-two-cpus, which waits, would be admitted by a kubelet 1.38, and is rejected now" in text
    assert down.returncode == 1
    assert down.stdout.splitlines()[0] == "the rollback breaks something"
    assert "would be rejected by a kubelet 1.37: KubeletHangs" in " ".join(down.stdout.split())


def test_the_worst_comes_first(full_node, tmp_path):
    (tmp_path / "wide.yaml").write_text(pod_manifest("wide", cpu="2", memory="1Gi"))

    words = (*full_node, "--set", "featureGates.EnvFiles=true", "-f", tmp_path / "wide.yaml")
    run = upgrade_check("1.37", "1.36", *words)

    rejected = [line for line in run.stdout.splitlines() if line.startswith("  - ")]
    assert [" is rejected when " in line for line in rejected[:2]] == [True, True]
    assert run.stdout.count("→ drain the node before") == 2
