"""The page "A node without a kubelet" (``docs/node.md``), typed as it stands, on a containerd of its own."""
# ruff: noqa: S101 - a test, as those in tests/

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import containerd
from tests import console_runner
from tests.short_paths import short_directory

PAGE = "docs/node.md"
IMAGES = {"docker.io/library/busybox:1.37": ""}  #: what would be fetched

#: Containers take a moment to start, and agents and plugins to come back: whoever looks too early looks again.
LOOKS = ("alignup ps", "alignup logs", "alignup audit", "curl ")
PATIENCE = 20.0  #: seconds

#: The machine of the page. On a larger one the agent is told of two CPUs only.
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
    """With the examples, and a containerd where the page has the system's."""
    with short_directory() as place, containerd.containerd(place / "c") as runtime:
        runtime.load(containerd.archive(place / "busybox.tar", IMAGES), IMAGES)
        own = place / "d"
        shutil.copytree(console_runner.ROOT / "examples", own / "examples")
        instead = {"unix:///run/containerd/containerd.sock": runtime.endpoint}
        if os.sched_getaffinity(0) != CPUS:
            instead["alignup agent "] = f"alignup agent --machine '{MACHINE}' "
        typist = console_runner.Shell(own, instead=instead)
        try:
            yield typist
        finally:
            typist.close()


@pytest.mark.skipif(bool(missing()), reason=missing() or "it can be had")
def test_the_page_shows_what_comes_out(shell: console_runner.Shell) -> None:
    commands = console_runner.documents()[PAGE]

    shell.run_all(commands, timeout=PATIENCE, retry=LOOKS)

    assert not any(Path(shell.directory, "node", "pods").iterdir()), "nothing of a pod is left"
