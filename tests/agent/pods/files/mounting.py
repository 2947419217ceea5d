"""Helpers for tests that mount file systems."""

import os
from pathlib import Path

import pytest

from alignup.agent.pods.files import bind_mounts


def skip_unless_mountable(place: Path) -> None:
    """Skip a test without permission to mount."""
    try:
        bind_mounts.mount("tmpfs", place, filesystem="tmpfs", options="size=64k")
    except OSError as error:
        pytest.skip(f"cannot mount: {error.strerror}")
    bind_mounts.unmount(place)


def names_in(directory: Path | str) -> list[str]:
    """The sorted names in a directory."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)
