"""What README and documents show on a terminal is what comes out there.

A ``console`` block holds commands, each after ``$ ``, and what they print. Three dots on a line of their own stand for
any lines left out. The commands of a document are run one after the other, in a directory with the examples in it; what
ends in ``&`` runs until the document ends, and ``export`` counts for the commands after it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import environment

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

#: How a command is run here, where it is not by its name.
PROGRAMS = {"make run": f"{sys.executable} examples/agent_demo.py"}


class Shown(NamedTuple):
    """A command and what it is said to print."""

    command: str
    output: str


def shown(text: str) -> list[Shown]:
    found = []
    for block in CONSOLE.finditer(text):
        head, *pieces = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)
        assert not head, "a console block begins with a command"
        for piece in pieces:
            command, _, output = re.sub(r"\\\n\s*", "", piece).partition("\n")
            found.append(Shown(command, output))
    return found


DOCUMENTS = {
    str(path.relative_to(ROOT)): commands
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if (commands := shown(path.read_text("utf-8")))
}


class Shell:
    """Somebody who types the commands of one document."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = environment({"PATH": path, "ONCE": "1"})
        self.running: list[subprocess.Popen[str]] = []

    def output_of(self, command: str) -> str:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return ""
        if command.endswith(" &"):
            self.running.append(self.started(command.removesuffix(" &"), subprocess.DEVNULL))
            self.wait_for_the_agent()
            return ""
        with self.started(PROGRAMS.get(command, command), subprocess.PIPE) as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode in (0, 1), output
        return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)

    def started(self, command: str, output: int) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S602 - our own documents
            f"exec {command}" if output == subprocess.DEVNULL else command,
            shell=True,
            cwd=self.directory,
            env=self.env,
            stdout=output,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def wait_for_the_agent(self) -> None:
        end = time.monotonic() + 30
        while not any(self.directory.rglob("*.sock")):
            assert time.monotonic() < end, "no agent listens"
            time.sleep(0.05)

    def leave(self) -> None:
        for process in self.running:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def shell() -> Iterator[Shell]:
    """In a place with a short name: those of sockets may not be long."""
    with tempfile.TemporaryDirectory(prefix="docs-") as directory:
        shutil.copytree(ROOT / "examples", Path(directory) / "examples")
        typist = Shell(Path(directory))
        try:
            yield typist
        finally:
            typist.leave()


def test_the_readme_shows_the_main_commands():
    commands = [shlex.split(one.command)[:2] for one in DOCUMENTS["README.md"]]

    assert commands[0] == ["alignup", "why"]
    assert ["make", "run"] in commands


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_show_what_comes_out(document, shell):
    for command, said in DOCUMENTS[document]:
        first, *pieces = re.split(r"^\.\.\.\n", said, flags=re.MULTILINE)
        output = shell.output_of(command)

        assert output.startswith(first), f"not what {command} begins with:\n{first}\nbut:\n{output[: len(first) + 200]}"
        rest = output[len(first) :]
        assert pieces or not rest, f"{command} prints more:\n{rest}"
        for piece in filter(None, pieces):
            assert piece in rest, f"not in the output of {command}:\n{piece}"
            rest = rest[rest.index(piece) + len(piece) :]


def test_the_story_of_the_announcement_is_told_to_its_end():
    told = subprocess.run(  # noqa: S603 - our own
        [sys.executable, ROOT / "examples" / "announcement.py"], capture_output=True, check=True, encoding="utf-8"
    ).stdout

    assert "   Merged: {0}*, preferred by every resource\n" in told
    assert "     train-c   refused:  TopologyAffinityError: Resources cannot be allocated" in told
    assert told.rstrip().splitlines()[-1].startswith("     train-c   admitted: ")
