"""Run the commands of ``docs/node.md`` with a private containerd."""
# ruff: noqa: S101

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e import containerd
from e2e.node import remove_cgroups
from e2e.programs import not_installed
from tests import console_runner
from tests.short_paths import short_directory

PAGE = "docs/node.md"
IMAGES = {"docker.io/library/busybox:1.37": ""}  #: images that would be pulled

#: Commands to repeat, because containers, agents and plugins take a moment to start.
RETRIED = ("alignup ps", "alignup logs", "alignup audit", "curl ")
TIMEOUT = 120.0  #: seconds

#: The machine of the page; on a larger machine the agent gets two CPUs only.
CPUS = {0, 1}
MACHINE = "numa:1 core:2 pu:1"


def missing() -> str | None:
    if not os.sched_getaffinity(0) >= CPUS:
        return "the page needs CPUs 0 and 1"
    return not_installed(["curl"]) or containerd.missing()


@pytest.fixture
def shell() -> Iterator[console_runner.Shell]:
    """A shell with the examples, and the private containerd in place of the system's."""
    root = f"alignup-e2e-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        place = stack.enter_context(short_directory())
        stack.callback(remove_cgroups, root)
        runtime = stack.enter_context(containerd.containerd(place / "c"))
        runtime.load(containerd.archive(place / "busybox.tar", IMAGES), IMAGES)
        own = place / "d"
        shutil.copytree(console_runner.ROOT / "examples", own / "examples")
        machine = "" if os.sched_getaffinity(0) == CPUS else f"--machine '{MACHINE}' "
        instead = {
            "unix:///run/containerd/containerd.sock": runtime.endpoint,
            "alignup agent ": f"alignup agent --cgroup-root {root} {machine}",
        }
        made = console_runner.Shell(own, instead=instead)
        stack.callback(made.close)
        yield made


@pytest.mark.skipif(bool(missing()), reason=str(missing()))
def test_the_page_shows_the_real_output(shell: console_runner.Shell) -> None:
    commands = console_runner.documents()[PAGE]

    shell.run_all(commands, timeout=TIMEOUT, retry=RETRIED)

    assert not any(Path(shell.directory, "node", "pods").iterdir()), "no pod directory is left"
