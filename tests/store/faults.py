"""Real faults for a part of a test: a full disk, and missing rights."""

import os
import resource
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

NOBODY = 65534


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Limit the size of files, which fails like a full disk."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def without_rights(directory: Path) -> Iterator[None]:
    """Make *directory* the current one, and become another user if this is root, who can write anywhere."""
    with chdir(directory):
        if os.geteuid() != 0:
            yield
            return
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)


@contextmanager
def private_directory() -> Iterator[Path]:
    """Yield a new directory, and become its owner, another user if this is root: permissions do not stop root.

    It is where every user can reach it, unlike the directories of pytest.
    """
    with TemporaryDirectory(prefix="alignup-") as place:
        directory = Path(place)
        if os.geteuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
        with without_rights(directory):
            yield directory
