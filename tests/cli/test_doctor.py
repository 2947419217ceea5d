"""``alignup doctor``."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from alignup.align.reason_codes import REASON_CODES
from alignup.kubernetes.kubelet_files import state_files
from tests.cli.commands import in_process
from tests.cli.manifests import pod_manifest

ROOT = Path(__file__).parents[2]
NODE, DAMAGED = ROOT / "examples" / "node", ROOT / "examples" / "doctor"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
STATE = ("--kubelet-dir", NODE / "state")
BACKUP = re.compile(r"\.backup-\d{8}-\d{6}$")


@pytest.fixture
def damaged(tmp_path):
    """A directory with damaged state files."""
    shutil.copytree(DAMAGED / "state", tmp_path / "kubelet")
    return tmp_path / "kubelet"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_healthy_node():
    run = in_process("doctor", *ON_NODE, *STATE)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\nThis kubelet starts, without warnings.\n")
    assert "  ok       cpu_manager_state: policy static, CPUs held by 4 pods\n" in run.stdout


def test_nothing_changes_without_write(damaged):
    before = contents(damaged)

    run = in_process("doctor", *ON_NODE, "--kubelet-dir", damaged, "--pods", NODE / "running.yaml")

    assert run.returncode == 1
    assert (
        "\n--write would repair\n  cpu_manager_state\n    - restored from its copy for older kubelets\n" in run.stdout
    )
    assert "pod ml/finetune" in run.stdout
    assert contents(damaged) == before


def test_write_repairs_the_files_and_keeps_backups(damaged):
    before = contents(damaged)

    run = in_process("doctor", *ON_NODE, "--kubelet-dir", damaged, "--write")

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\nThis kubelet starts now, without warnings.\n")
    after = contents(damaged)
    assert {BACKUP.sub("", name): text for name, text in after.items() if BACKUP.search(name)} == before
    healthy = contents(NODE / "state")
    assert {name: text for name, text in after.items() if not BACKUP.search(name)} == healthy

    again = in_process("doctor", *ON_NODE, "--kubelet-dir", damaged, "--write")
    assert again.returncode == 0
    assert contents(damaged) == after


def test_write_changes_nothing_when_there_is_nothing_to_repair(tmp_path):
    shutil.copytree(NODE / "state", tmp_path / "kubelet")
    before = contents(tmp_path)

    run = in_process("doctor", *ON_NODE, "--kubelet-dir", tmp_path / "kubelet", "--write")

    assert run.returncode == 0
    assert "Nothing to repair; nothing was written.\n" in run.stdout
    assert contents(tmp_path) == before


def test_write_changes_nothing_while_a_kubelet_runs(damaged, monkeypatch):
    before = contents(damaged)
    monkeypatch.chdir(damaged / "device-plugins")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("kubelet.sock")
        served.listen()

        run = in_process("doctor", *ON_NODE, "--kubelet-dir", damaged, "--write")

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"alignup: {damaged}/device-plugins/kubelet.sock accepts connections\n"
        f"  {damaged} is in use; nothing was written\n"
        "  Stop the kubelet first (systemctl stop kubelet). Containers keep running.\n"
    )
    assert contents(damaged) == before


def test_the_default_configuration_is_that_of_the_directory_or_of_the_kubelet(damaged):
    shutil.copy(NODE / "kubelet.yaml", damaged / "config.yaml")

    of_directory = in_process("doctor", "--machine", NODE / "machine.yaml", "--kubelet-dir", damaged)
    of_kubelet = in_process("doctor", "--machine", "pack:1 numa:1 core:4 pu:1")

    assert of_directory.stdout.startswith(str(damaged / "config.yaml"))
    assert "policy single-numa-node" in of_directory.stdout
    assert of_kubelet.returncode == 0
    assert of_kubelet.stdout.startswith("the kubelet's defaults on pack:1 numa:1 core:4 pu:1\n")


def test_json(damaged):
    run = in_process("doctor", *ON_NODE, "--kubelet-dir", damaged, "--write", "-o", "json")

    document = json.loads(run.stdout)
    assert (run.returncode, document["version"], document["healthy"]) == (0, 1, True)
    assert [finding["severity"] for finding in document["findings"]].count("error") == 3
    assert [finding["severity"] for finding in document["after"]].count("error") == 0
    codes = {(finding["severity"], finding.get("code")) for finding in document["findings"]}
    assert ("error", "StateFileRejected") in codes
    assert {code for severity, code in codes if severity != "ok"} <= REASON_CODES.keys()
    assert {code for severity, code in codes if severity == "ok"} == {None}
    assert [repair["file"] for repair in document["repairs"]] == [
        "cpu_manager_state",
        "memory_manager_state",
        "device-plugins/kubelet_internal_checkpoint",
    ]
    assert (
        Path(document["repairs"][0]["backup"]).read_bytes() == (DAMAGED / "state" / state_files.CPU_FILE).read_bytes()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ("--write",), "--write repairs state files: add --kubelet-dir DIR", id="write without a directory"
        ),
        pytest.param(("--pods", "x"), "--pods names the pods in the state files: add", id="pods without a directory"),
        pytest.param(("--kubelet-dir", "none"), "none: no such directory", id="a missing directory"),
    ],
)
def test_invalid_input_exits_with_2(arguments, message, tmp_path):
    run = in_process("doctor", "--machine", "pack:1 core:4 pu:1", *arguments, cwd=tmp_path)

    assert run.returncode == 2
    assert message in run.stderr
    assert run.stdout == ""


def test_a_file_beyond_a_limit_of_alignup_is_not_called_an_error_of_the_kubelet(tmp_path):
    deep = tmp_path / "deep.yaml"
    deep.write_text("a: " + "[" * 200 + "]" * 200, "utf-8")

    run = in_process("doctor", "--config", str(deep), "--machine", "pack:1 numa:1 core:2 pu:1")

    assert run.returncode == 1
    assert "(a limit of alignup)" in " ".join(run.stdout.split())
    assert "kubelet:" not in run.stdout
    assert run.stdout.splitlines()[-1] == "alignup cannot tell whether this kubelet starts: 1 error."


PROFILE = """apiVersion: performance.openshift.io/v2
kind: PerformanceProfile
metadata: {name: low-latency}
spec:
  cpu: {reserved: "0", isolated: 1-15, offlined: 30-31}
  numa: {topologyPolicy: single-numa-node}
"""


def test_yaml_for_a_profile_of_openshift_can_be_pasted_into_it(tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE)
    run = in_process("doctor", "--machine", NODE / "machine.yaml", "--config", file)

    _, _, rest = run.stdout.partition(f"Replace these keys in {file}\n")
    pasted = yaml.safe_load(rest.partition("\n\n")[0])
    assert pasted == {"spec": {"cpu": {"reserved": "0,16"}}}
    assert "29 for exclusive use" in run.stdout  # of 32, without two that are offline and one that is reserved

    file.write_text(PROFILE.replace('"0"', '"0,16"'))
    again = in_process("doctor", "--machine", NODE / "machine.yaml", "--config", file)
    assert again.stdout.endswith("\nThis kubelet starts, without warnings.\n")


def test_yaml_for_a_kubelet_config_of_openshift_is_below_its_field(tmp_path):
    config = ("--config", "examples/inputs/openshift.yaml", "--set", "memoryManagerPolicy=Static")
    run = in_process("doctor", "--machine", NODE / "machine.yaml", *config, "-o", "json")

    pastes = [yaml.safe_load(finding["paste"]) for finding in json.loads(run.stdout)["findings"] if "paste" in finding]
    assert [list(paste["spec"]["kubeletConfig"]) for paste in pastes] == [["reservedMemory"]]


def test_offline_cpus_are_not_allocated(tmp_path):
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE)
    (tmp_path / "pod.yaml").write_text(pod_manifest(cpu="16", memory="1Gi"))
    run = in_process("why", "-f", tmp_path / "pod.yaml", "--machine", NODE / "machine.yaml", "--config", file)

    assert run.returncode == 1
    assert "14 free" in run.stdout
