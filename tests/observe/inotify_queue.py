"""Fills the queues of inotify, so that the kernel drops further events."""

import os
from pathlib import Path

import pytest

_LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")
_MOST = 1 << 16  #: events, beyond which this takes too long


def fill_queue(directory: Path) -> None:
    """Make more events in *directory* than the kernel keeps for a reader; skip the test if it keeps very many."""
    events = int(_LIMIT.read_text("ascii"))
    if events > _MOST:
        pytest.skip(f"{_LIMIT} is {events}")
    names = [os.fsencode(directory / f"event-{number}") for number in range(2)]
    os.close(os.open(names[0], os.O_CREAT))
    for _ in range(events // 4 + 2):  # each renaming is two events; equal ones in a row would be one
        os.rename(names[0], names[1])  # noqa: PTH104 - a path is made too slowly
        os.rename(names[1], names[0])  # noqa: PTH104
