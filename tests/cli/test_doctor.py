"""``alignup doctor``, run as people run it."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from alignup.state.kubelet import cpu_file, device_file, memory_file
from tests.cli.commands import alignup, on_a_terminal

ROOT = Path(__file__).parents[2]
NODE, SICK = ROOT / "examples" / "node", ROOT / "examples" / "doctor"
ON_NODE = ("--machine", NODE / "machine.yaml", "--config", NODE / "kubelet.yaml")
STATE = ("--kubelet-dir", NODE / "state")
BACKUP = re.compile(r"\.backup-\d{8}-\d{6}$")


@pytest.fixture
def sick(tmp_path):
    """A directory with damaged state files."""
    shutil.copytree(SICK / "state", tmp_path / "kubelet")
    return tmp_path / "kubelet"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(one.relative_to(directory)): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


def test_a_healthy_node_is_told_so():
    run = alignup("doctor", *ON_NODE, *STATE)

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\nThis kubelet starts, and behaves.\n")
    assert "  ok       cpu_manager_state: policy static, CPUs held by 4 pods\n" in run.stdout


def test_a_broken_configuration_is_told_everything_at_once():
    run = alignup("doctor", "--machine", NODE / "machine.yaml", "--config", SICK / "kubelet.yaml")

    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.count("  ERROR ") == 3
    assert run.stdout.endswith("\nThis kubelet does not start: 3 errors and 3 warnings.\n")


def test_what_is_to_be_pasted_can_be(tmp_path):
    broken = yaml.safe_load((SICK / "kubelet.yaml").read_text("utf-8"))
    run = alignup("doctor", "--machine", NODE / "machine.yaml", "--config", SICK / "kubelet.yaml")
    _, _, rest = run.stdout.partition(", in place of what it has under these keys\n")
    pasted = yaml.safe_load(rest.partition("\n\n")[0])

    (tmp_path / "k.yaml").write_text(yaml.safe_dump(broken | pasted), "utf-8")
    again = alignup("doctor", "--machine", NODE / "machine.yaml", "--config", tmp_path / "k.yaml")

    assert set(pasted) == {"featureGates", "reservedSystemCPUs", "reservedMemory"}
    assert "ERROR" not in again.stdout
    assert again.stdout.endswith("\nThis kubelet starts, with 2 warnings.\n")


def test_without_write_nothing_is_written(sick):
    before = contents(sick)

    run = alignup("doctor", *ON_NODE, "--kubelet-dir", sick, "--pods", NODE / "running.yaml")

    assert run.returncode == 1
    assert "\nWhat --write would do\n  cpu_manager_state\n    - taken from its copy for older kubelets\n" in run.stdout
    assert "pod ml/finetune" in run.stdout
    assert contents(sick) == before


def test_with_write_the_files_are_repaired_and_the_old_ones_kept(sick):
    before = contents(sick)

    run = alignup("doctor", *ON_NODE, "--kubelet-dir", sick, "--write")

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.endswith("\nThis kubelet starts now, and behaves.\n")
    after = contents(sick)
    assert {BACKUP.sub("", name): text for name, text in after.items() if BACKUP.search(name)} == before
    healthy = contents(NODE / "state")
    assert {name: text for name, text in after.items() if not BACKUP.search(name)} == healthy

    again = alignup("doctor", *ON_NODE, "--kubelet-dir", sick, "--write")
    assert again.returncode == 0
    assert contents(sick) == after


def test_where_there_is_nothing_to_repair_nothing_is_written(tmp_path):
    shutil.copytree(NODE / "state", tmp_path / "kubelet")
    before = contents(tmp_path)

    run = alignup("doctor", *ON_NODE, "--kubelet-dir", tmp_path / "kubelet", "--write")

    assert run.returncode == 0
    assert "There was nothing to repair, so nothing was written.\n" in run.stdout
    assert contents(tmp_path) == before


def test_nothing_is_written_while_a_kubelet_answers(sick, monkeypatch):
    before = contents(sick)
    monkeypatch.chdir(sick / "device-plugins")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("kubelet.sock")
        served.listen()

        run = alignup("doctor", *ON_NODE, "--kubelet-dir", sick, "--write")

    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"alignup: {sick}/device-plugins/kubelet.sock answers\n"
        f"  {sick} is in use, so nothing was written\n"
        "  Stop the kubelet first (systemctl stop kubelet); containers go on running.\n"
    )
    assert contents(sick) == before


def test_state_files_wait_for_a_configuration_that_is_right(sick):
    run = alignup(
        *("doctor", "--machine", NODE / "machine.yaml", "--config", SICK / "kubelet.yaml"),
        *("--kubelet-dir", sick, "--write"),
    )

    assert run.returncode == 1
    assert "→ put the configuration right first" in run.stdout.replace("\n           ", " ")
    assert (sick / cpu_file.NAME).read_bytes() == (SICK / "state" / cpu_file.NAME).read_bytes()
    assert (sick / memory_file.NAME).read_bytes() == (SICK / "state" / memory_file.NAME).read_bytes()
    device_file.parse((sick / "device-plugins" / device_file.NAME).read_bytes(), path="")


def test_the_configuration_of_the_directory_is_taken_unless_another_is_given(sick):
    shutil.copy(NODE / "kubelet.yaml", sick / "config.yaml")

    run = alignup("doctor", "--machine", NODE / "machine.yaml", "--kubelet-dir", sick)

    assert run.stdout.startswith(str(sick / "config.yaml"))
    assert "policy single-numa-node" in run.stdout


def test_values_can_be_tried():
    run = alignup("doctor", *ON_NODE, *STATE, "--set", "cpuManagerPolicy=none", "--set", "reservedSystemCPUs=")

    assert run.returncode == 1
    assert 'the file is of policy "static", "none" is configured' in run.stdout.replace("\n           ", " ")


def test_machines_read_json(sick):
    run = alignup("doctor", *ON_NODE, "--kubelet-dir", sick, "--write", "-o", "json")

    document = json.loads(run.stdout)
    assert (run.returncode, document["version"], document["healthy"]) == (0, 1, True)
    assert [one["severity"] for one in document["findings"]].count("error") == 3
    assert [one["severity"] for one in document["after"]].count("error") == 0
    assert [repair["file"] for repair in document["repairs"]] == [
        "cpu_manager_state",
        "memory_manager_state",
        "device-plugins/kubelet_internal_checkpoint",
    ]
    assert Path(document["repairs"][0]["backup"]).read_bytes() == (SICK / "state" / cpu_file.NAME).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ("--write",), "--write repairs state files: add --kubelet-dir DIR", id="write without a directory"
        ),
        pytest.param(("--pods", "x"), "--pods names the pods in the state files: add", id="pods without a directory"),
        pytest.param(("--config", "none.yaml"), "none.yaml: No such file or directory", id="no such configuration"),
        pytest.param(("--kubelet-dir", "none"), "none: there is no such directory", id="no such directory"),
        pytest.param(("--machine", "none.yaml"), "none.yaml", id="no such machine"),
        pytest.param(("-o", "xml"), "'xml' is not one of", id="no such form"),
    ],
)
def test_what_cannot_be_used_is_wrong_usage(arguments, said, tmp_path):
    machine = () if "--machine" in arguments else ("--machine", "pack:1 core:4 pu:1")

    run = alignup("doctor", *machine, *arguments, cwd=tmp_path)

    assert run.returncode == 2
    assert said in run.stderr
    assert run.stdout == ""


def test_colours_are_on_top_of_words():
    shown = on_a_terminal("doctor", *map(str, ON_NODE), env={"TERM": "xterm-256color"})

    assert "\x1b[" in shown
    assert "  ok" in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_a_terminal_that_shows_ascii_only_is_enough():
    run = alignup(
        *("doctor", "--machine", NODE / "machine.yaml", "--config", SICK / "kubelet.yaml"),
        env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )

    assert run.returncode == 1
    assert run.stdout.isascii()


def test_without_a_configuration_the_kubelets_defaults_are_looked_at():
    run = alignup("doctor", "--machine", "pack:1 numa:1 core:4 pu:1")

    assert run.returncode == 0
    assert run.stdout.startswith("the kubelet's defaults on pack:1 numa:1 core:4 pu:1\n")
