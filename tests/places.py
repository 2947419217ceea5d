"""Directories for sockets, whose names have to be short: the kernel takes 107 bytes, wherever TMPDIR is."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHORT = 40  #: bytes; leaves room for all that tests put below
_ELSEWHERE = "/dev/shm"  # noqa: S108 - there for everybody, and its name is short


@contextmanager
def short_directory() -> Iterator[Path]:
    """A new directory that is gone afterwards."""
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) <= _SHORT else _ELSEWHERE
    with tempfile.TemporaryDirectory(prefix="alignup-", dir=base) as place:
        own = Path(place) / "t"  # in one of its own, so that whoever renames it meets nobody
        own.mkdir()
        yield own
