"""Directories for Unix sockets, whose paths may have at most 107 bytes, whatever TMPDIR and the user's name are."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OTHERS_MAY_ENTER = 0o001  #: the mode bit
_SHORT = 40  #: bytes; leaves room for the paths that tests create below it
_LONG = 100  #: bytes
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


def make_long_root() -> Path:
    """Return a directory, the same for all runs of this user, below which every path is too long for a socket."""
    directory = Path(tempfile.gettempdir()).resolve() / f"tests-of-{os.getuid()}-".ljust(_LONG, "x")
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextmanager
def directory_for_all_users() -> Iterator[Path]:
    """Yield a new directory that every user may enter, whatever TMPDIR is, and remove it afterwards."""
    bases = [Path(base).resolve() for base in (tempfile.gettempdir(), _ELSEWHERE)]
    base = next(
        base for base in bases if all(path.stat().st_mode & _OTHERS_MAY_ENTER for path in (base, *base.parents))
    )
    with tempfile.TemporaryDirectory(prefix="alignup-", dir=base) as place:
        Path(place).chmod(0o711)
        yield Path(place)
