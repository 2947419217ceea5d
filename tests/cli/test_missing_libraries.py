"""An installation without extras: every command names the extra that it needs, and how to install it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from alignup.cli.app import COMMANDS
from alignup.cli.installation import EXTRAS, NEEDED_EXTRAS, describe_import_error, install_advice
from alignup.collect.collection import STATE_PARTS, Collection, CollectionIndex, Part, write
from tests.cli.commands import environment

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


SCRIPT = """import json, os, sys
blocked, commands = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(blocked))
from alignup.cli import main
import alignup.cli.doctor, alignup.cli.why  # they need no extra; forks share what they import
for number, words in enumerate(commands):
    if not os.fork():
        os.dup2(os.open(f"{number}.out", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(f"{number}.err", os.O_WRONLY | os.O_CREAT), 2)
        os.chdir(sys.argv[1])
        main(words)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def run_without_extras(directory, *commands):
    """Run commands as forks of one process, with their output in *directory*; return exit code and output of each."""
    blocked = [module for modules in EXTRAS.values() for module in modules]
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", SCRIPT, ROOT],
        input=json.dumps([blocked, commands]),
        env=environment({"KUBECONFIG": "/nonexistent", "ALIGNUP_AGENT": "unix:/nonexistent"}),
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        (int(code), *((directory / f"{number}.{end}").read_text("utf-8") for end in ("out", "err")))
        for number, code in enumerate(done.stdout.split())
    ]


def test_no_command_fails_with_an_internal_error(tmp_path):
    words = {name: [word.format(tmp=tmp_path) for word in ARGUMENTS.get(name, [])] for name in COMMANDS}
    commands = [[name, *arguments] for name, arguments in words.items()]
    commands += [["cluster", "nodes"], ["cluster", "upgrade-check", "--to", "1.37"]]
    runs = run_without_extras(tmp_path, *commands)

    for (command, *_), (code, _, errors) in zip(commands, runs, strict=True):
        assert "internal error" not in errors, command
        assert "Traceback" not in errors, command
        if command in NEEDED:
            assert code == 1, command
            assert errors.splitlines()[0].endswith(" is not installed"), command
            assert install_advice(*NEEDED[command]) in errors, command


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

    ((code, output, errors),) = run_without_extras(tmp_path, ["why", str(tmp_path / "case.tar.gz"), "--search", "0"])

    assert code == 1, errors
    assert "TopologyAffinityError" in output


def test_every_library_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]

    for extra in EXTRAS:
        names = [re.split("[<>=]", requirement)[0] for requirement in extras[extra]]
        modules = {MODULES.get(name, name.replace("-", "_")) for name in names}
        assert modules <= {module for known in EXTRAS.values() for module in known}, extra


def test_other_missing_modules_stay_internal_errors():
    error = ImportError(name="alignup.nowhere")

    assert describe_import_error(error, "why") is error
