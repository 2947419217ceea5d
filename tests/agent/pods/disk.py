"""For tests of what is on disk: whether they may mount, and what is in a directory."""

import os
from pathlib import Path

import pytest

from alignup.agent.pods import bind_mounts


def may_mount(place: Path) -> None:
    """Skip a test where nothing can be mounted."""
    try:
        bind_mounts.mount("tmpfs", place, filesystem="tmpfs", options="size=64k")
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error.strerror}")
    bind_mounts.unmount(place)


def names_in(directory: Path | str) -> list[str]:
    """What there is, by name."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)
