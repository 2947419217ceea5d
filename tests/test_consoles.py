"""What the README shows on a terminal is what comes out there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = {found["command"]: found["output"] for found in CONSOLE.finditer((ROOT / "README.md").read_text("utf-8"))}

#: How a command of the README is run here, in the environment the tests are in.
PROGRAMS = {
    "make run": [sys.executable, "examples/announcement.py"],
    "alignup": [sys.executable, "-m", "alignup"],
}


def output_of(command: str) -> str:
    program = PROGRAMS.get(command) or [*PROGRAMS["alignup"], *shlex.split(command)[1:]]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, check=True, encoding="utf-8")  # noqa: S603 - our own
    return ran.stdout


def test_there_are_examples():
    assert "make run" in SHOWN
    assert any(command.startswith("alignup ") for command in SHOWN)


@pytest.mark.parametrize("command", SHOWN)
def test_the_readme_shows_what_comes_out(command):
    """Lines shown follow each other in the output; three dots stand for any lines left out."""
    first, *pieces = SHOWN[command].split("...\n")
    output = output_of(command)

    assert output.startswith(first)
    rest = output[len(first) :]
    for piece in filter(None, pieces):
        assert piece in rest, f"not in the output of {command}:\n{piece}"
        rest = rest[rest.index(piece) + len(piece) :]
