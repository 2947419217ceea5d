"""Fixtures for tests in guests: one disk image for all of them."""

from pathlib import Path

import pytest

from e2e import containerd, disk, recorded
from e2e.guest_node import IMAGES

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr", "mount", "umount")
SIZE = 700  #: MiB


def pytest_configure(config: pytest.Config) -> None:
    """Collect one summary line per recorded run."""
    config.stash[recorded.LINES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the summary lines."""
    lines: list[str] = config.stash[recorded.LINES]
    for line in sorted(lines):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def node_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with the project, the agent's dependencies, containerd, and container images."""
    scratch = tmp_path_factory.mktemp("node")
    root = disk.fill(scratch / "root", extras=("agent",), programs=PROGRAMS)
    containerd.archive(root / "images.tar", IMAGES)
    return disk.pack(root, scratch / "root.ext4", size=SIZE)
