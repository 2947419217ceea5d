"""The console sessions in README and documents show the real output, in a directory with the examples."""

import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import console_runner
from tests.console_runner import ROOT, Shell, difference

#: Pages that need root and a container runtime; ``make e2e`` runs them.
DOCUMENTS = console_runner.documents()

#: Commands that run differently in tests.
PROGRAMS = {"make run": f"{sys.executable} examples/agent_demo.py", " --compare ": " --jobs 1 --compare "}


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A shell in a directory with a short path, since socket paths must be short."""
    with tempfile.TemporaryDirectory(prefix="docs-") as directory:
        for folder in ("examples", "tests/machines/locality"):
            shutil.copytree(ROOT / folder, Path(directory) / folder)
        console = Shell(Path(directory), instead=PROGRAMS)
        try:
            yield console
        finally:
            console.close()


def test_the_readme_shows_the_main_commands():
    commands = [shlex.split(documented.command)[:2] for documented in DOCUMENTS["README.md"]]

    assert commands[:2] == [["make", "run"], ["alignup", "why"]]


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_documents_show_the_real_output(document, shell):
    shell.run_all(DOCUMENTS[document])

    assert contents(shell.directory / "examples") == contents(ROOT / "examples"), "a command changed tracked files"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param("one\n", "two\n", id="other output"),
        pytest.param("one\ntwo\n", "one\n", id="more output"),
        pytest.param("one\nthree\n", "one\n...\ntwo\n", id="missing output after the dots"),
    ],
)
def test_a_difference_is_found(output, expected):
    assert difference(output, expected)


def test_dots_stand_for_any_lines():
    assert not difference("one\ntwo\nthree\nfour\n", "one\n...\nthree\n...\n")


def test_the_announcement_example_runs_to_its_end(capsys):
    runpy.run_path(str(ROOT / "examples" / "announcement.py"), run_name="__main__")
    output = capsys.readouterr().out

    assert "   Merged: {0}*, preferred by every resource\n" in output
    assert "     train-c   rejected: TopologyAffinityError: Resources cannot be allocated" in output
    assert output.rstrip().splitlines()[-1].startswith("     train-c   admitted: ")
