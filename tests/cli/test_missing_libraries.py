"""An installation without extras: every command names the extra that it needs, and how to install it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from alignup.cli.app import COMMANDS
from alignup.cli.installation import EXTRAS, NEEDED_EXTRAS, describe_import_error, install_advice
from alignup.collect.collection import STATE_PARTS, Collection, CollectionIndex, Part, write
from tests.cli.commands import python

ROOT = Path(__file__).parents[2]
MODULES = {"grpcio": "grpc", "protobuf": "google", "nvidia-ml-py": "pynvml"}
_NODE = ["--machine", "examples/node/machine.yaml", "--config", "examples/node/kubelet.yaml"]
#: Command → what makes it do something; all others do without arguments.
ARGUMENTS = {
    "why": ["-f", "examples/node/trainer.yaml", *_NODE],
    "cluster": ["why", "-f", "examples/node/trainer.yaml"],
    "collect": ["trainer"],
    "simulate": ["-f", "examples/node/running.yaml", *_NODE],
    "sweep": ["examples/fleet/sweep.yaml", "--engine", "dask", "--results", "{tmp}/results.csv"],
    "doctor": [*_NODE],
    "upgrade-check": ["--from", "1.35", "--to", "1.37", *_NODE],
    "run": ["--cpus", "1", "--state-dir", "{tmp}", "true"],
    "admit": ["-f", "examples/node/trainer.yaml"],
    "release": ["web"],
    "observe": ["--node", "a"],
    "nri": ["--mode", "assist"],
    "machine": ["show", "examples/node/machine.yaml"],
    "completion": ["bash"],
}
NEEDED = {**NEEDED_EXTRAS, "sweep": ("fleet",)}


def run_without_extras(*words):
    blocked = json.dumps([module for modules in EXTRAS.values() for module in modules])
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked})); from alignup.cli import main; main({list(words)})"
    )
    return python("-c", script, cwd=ROOT, env={"KUBECONFIG": "/nonexistent", "ALIGNUP_AGENT": "unix:/nonexistent"})


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_fails_with_an_internal_error(command, tmp_path):
    run = run_without_extras(command, *[word.format(tmp=tmp_path) for word in ARGUMENTS.get(command, [])])

    assert "internal error" not in run.stderr
    assert "Traceback" not in run.stderr
    if command in NEEDED:
        assert run.returncode == 1
        assert run.stderr.splitlines()[0].endswith(" is not installed")
        assert install_advice(*NEEDED[command]) in run.stderr


def test_an_archive_needs_no_extra(tmp_path):
    node = ROOT / "examples" / "node"
    parts: dict[str, bytes] = {
        Part.POD: (node / "trainer.yaml").read_bytes(),
        Part.CONFIGURATION: (node / "kubelet.yaml").read_bytes(),
        Part.MACHINE: (node / "machine.yaml").read_bytes(),
        **{part: path.read_bytes() for part in STATE_PARTS if (path := node / part).exists()},
    }
    index = CollectionIndex(
        collected_at="2026-11-17T12:00:00Z", pod="ml/trainer-0", node="a", kubelet_version="v1.37.0"
    )
    write(tmp_path / "case.tar.gz", Collection(index, parts))

    run = run_without_extras("why", str(tmp_path / "case.tar.gz"), "--search", "0")

    assert run.returncode == 1, run.stderr
    assert "TopologyAffinityError" in run.stdout


@pytest.mark.parametrize("words", [["cluster", "nodes"], ["cluster", "upgrade-check", "--to", "1.37"]])
def test_every_command_of_a_cluster_names_the_extra(words):
    run = run_without_extras(*words)

    assert (run.returncode, run.stderr.splitlines()[1]) == (1, f"  {install_advice('cluster')}")


def test_every_library_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]

    for extra in EXTRAS:
        names = [re.split("[<>=]", requirement)[0] for requirement in extras[extra]]
        modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
        assert modules <= {module for known in EXTRAS.values() for module in known}, extra


def test_other_missing_modules_stay_internal_errors():
    error = ImportError(name="alignup.nowhere")

    assert describe_import_error(error, "why") is error
