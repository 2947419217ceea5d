"""What README and documents show on a terminal is what comes out there.

A ``console`` block holds commands, each after ``$ ``, and what they print. Three dots on a line of their own stand for
any lines left out. The commands of a document are run one after the other, in a directory with the examples in it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import environment

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

#: How a command is run here, where it is not by its name.
PROGRAMS = {"make run": f"{sys.executable} examples/announcement.py"}


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


def output_of(command: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(  # noqa: S602 - our own documents
        PROGRAMS.get(command, command),
        shell=True,
        cwd=directory,
        env=environment({"PATH": path}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        encoding="utf-8",
        timeout=60,
    )
    assert ran.returncode in (0, 1), ran.stdout
    return ran.stdout


def test_the_readme_shows_the_main_commands():
    commands = [shlex.split(one.command)[:2] for one in DOCUMENTS["README.md"]]

    assert commands[0] == ["alignup", "why"]
    assert ["make", "run"] in commands


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_show_what_comes_out(document, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    for command, said in DOCUMENTS[document]:
        first, *pieces = re.split(r"^\.\.\.\n", said, flags=re.MULTILINE)
        output = output_of(command, tmp_path)

        assert output.startswith(first), f"not what {command} begins with:\n{first}\nbut:\n{output[: len(first) + 200]}"
        rest = output[len(first) :]
        assert pieces or not rest, f"{command} prints more:\n{rest}"
        for piece in filter(None, pieces):
            assert piece in rest, f"not in the output of {command}:\n{piece}"
            rest = rest[rest.index(piece) + len(piece) :]
