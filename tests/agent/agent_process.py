"""Programs that tests fork: agents. This module imports only what these load anyway."""

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from alignup.cli import entry


def serve_command(command: Sequence[str], log: Path, env: Mapping[str, str], largest: int | None) -> None:
    """Run ``alignup`` with these arguments; *largest* limits the size of its files."""
    _prepare(log, env, largest)
    sys.exit(entry.run(list(command)))


def _prepare(log: Path, env: Mapping[str, str], largest: int | None) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(stream, 2)
    faulthandler.enable()
    os.environ.update(env)
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # a truncated compiled module would break later imports
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
