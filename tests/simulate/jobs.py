"""Jobs that workers of tests import."""

import os
import signal

from alignup.simulate.sweeps import Row, run_packed


def die_once(marker: str, parcel: bytes) -> Row:
    """Like ``run_packed``, but the first worker that runs this job is killed; then the file *marker* exists."""
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return run_packed(parcel)
    os.close(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die(_parcel: bytes) -> Row:
    """Kill the worker that runs this job, whichever it is."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
