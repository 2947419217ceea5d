"""Run the commands of ``docs/node.md`` with a private containerd."""
# ruff: noqa: S101

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import containerd
from tests import console_runner
from tests.short_paths import short_directory

PAGE = "docs/node.md"
IMAGES = {"docker.io/library/busybox:1.37": ""}  #: images that would be pulled

#: Commands to repeat, because containers, agents and plugins take a moment to start.
RETRIED = ("alignup ps", "alignup logs", "alignup audit", "curl ")
TIMEOUT = 20.0  #: seconds

#: The machine of the page; on a larger machine the agent gets two CPUs only.
CPUS = {0, 1}
MACHINE = "numa:1 core:2 pu:1"


def missing() -> str | None:
    if not os.sched_getaffinity(0) >= CPUS:
        return "the page needs CPUs 0 and 1"
    if not shutil.which("curl"):
        return "not installed: curl"
    return containerd.missing()


@pytest.fixture
def shell() -> Iterator[console_runner.Shell]:
    """A shell with the examples, and the private containerd in place of the system's."""
    with short_directory() as place, containerd.containerd(place / "c") as runtime:
        runtime.load(containerd.archive(place / "busybox.tar", IMAGES), IMAGES)
        own = place / "d"
        shutil.copytree(console_runner.ROOT / "examples", own / "examples")
        instead = {"unix:///run/containerd/containerd.sock": runtime.endpoint}
        if os.sched_getaffinity(0) != CPUS:
            instead["alignup agent "] = f"alignup agent --machine '{MACHINE}' "
        made = console_runner.Shell(own, instead=instead)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.skipif(bool(missing()), reason=str(missing()))
def test_the_page_shows_the_real_output(shell: console_runner.Shell) -> None:
    commands = console_runner.documents()[PAGE]

    shell.run_all(commands, timeout=TIMEOUT, retry=RETRIED)

    assert not any(Path(shell.directory, "node", "pods").iterdir()), "no pod directory is left"
