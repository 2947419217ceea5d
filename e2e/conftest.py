"""What tests in guests share: one disk for all of them, made when the first one needs it."""

from pathlib import Path

import pytest

from e2e import containerd, disk, recorded
from e2e.guest_node import IMAGES

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "runc", "ctr", "mount", "umount")
SIZE = 700  #: MiB


def pytest_configure(config: pytest.Config) -> None:
    """Recorded runs are told of at the end, one line each."""
    config.stash[recorded.LINES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how they went."""
    lines: list[str] = config.stash[recorded.LINES]
    for line in sorted(lines):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def node_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk of a node: the project with all an agent needs, containerd, and images for containers."""
    scratch = tmp_path_factory.mktemp("node")
    root = disk.fill(scratch / "root", extras=("agent",), programs=PROGRAMS)
    containerd.archive(root / "images.tar", IMAGES)
    return disk.pack(root, scratch / "root.ext4", size=SIZE)
