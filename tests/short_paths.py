"""Directories for unix sockets, whose paths may have at most 107 bytes, whatever TMPDIR is."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHORT = 40  #: bytes; leaves room for the paths that tests create below it
_ELSEWHERE = "/dev/shm"  # noqa: S108 - always there, and short


@contextmanager
def short_directory() -> Iterator[Path]:
    """Yield a new directory and remove it afterwards."""
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) <= _SHORT else _ELSEWHERE
    with tempfile.TemporaryDirectory(prefix="alignup-", dir=base) as place:
        directory = Path(place) / "t"  # nested, so that a test may rename it
        directory.mkdir()
        yield directory
