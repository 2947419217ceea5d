"""What README and documents show on a terminal is what comes out there, in a directory with the examples in it."""

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import consoles
from tests.consoles import ROOT, Shell, difference

#: What needs root and a container runtime is typed by ``make e2e``.
ELSEWHERE = {"docs/node.md"}
DOCUMENTS = consoles.documents()

#: How a command is run here, where it is not by its name.
PROGRAMS = {"make run": f"{sys.executable} examples/agent_demo.py"}


@pytest.fixture
def shell() -> Iterator[Shell]:
    """In a place with a short name: those of sockets may not be long."""
    with tempfile.TemporaryDirectory(prefix="docs-") as directory:
        shutil.copytree(ROOT / "examples", Path(directory) / "examples")
        typist = Shell(Path(directory), instead=PROGRAMS)
        try:
            yield typist
        finally:
            typist.leave()


def test_the_readme_shows_the_main_commands():
    commands = [shlex.split(one.command)[:2] for one in DOCUMENTS["README.md"]]

    assert commands[0] == ["alignup", "why"]
    assert ["make", "run"] in commands


def test_only_the_page_that_needs_a_container_runtime_is_left_to_others():
    needing = {page for page, commands in DOCUMENTS.items() if any("--runtime cri" in one.command for one in commands)}

    assert needing == ELSEWHERE
    assert all(page in (ROOT / "e2e" / "test_node_page.py").read_text("utf-8") for page in needing)


@pytest.mark.parametrize("document", sorted(DOCUMENTS.keys() - ELSEWHERE))
def test_documents_show_what_comes_out(document, shell):
    shell.follow(DOCUMENTS[document])


@pytest.mark.parametrize(
    ("output", "said"),
    [
        pytest.param("one\n", "two\n", id="something else"),
        pytest.param("one\ntwo\n", "one\n", id="more than is said"),
        pytest.param("one\nthree\n", "one\n...\ntwo\n", id="something that is missing after the dots"),
    ],
)
def test_what_does_not_come_out_is_noticed(output, said):
    assert difference(output, said)


def test_dots_stand_for_any_lines():
    assert not difference("one\ntwo\nthree\nfour\n", "one\n...\nthree\n...\n")


def test_the_story_of_the_announcement_is_told_to_its_end():
    told = subprocess.run(  # noqa: S603 - our own
        [sys.executable, ROOT / "examples" / "announcement.py"], capture_output=True, check=True, encoding="utf-8"
    ).stdout

    assert "   Merged: {0}*, preferred by every resource\n" in told
    assert "     train-c   refused:  TopologyAffinityError: Resources cannot be allocated" in told
    assert told.rstrip().splitlines()[-1].startswith("     train-c   admitted: ")
