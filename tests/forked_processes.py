"""Processes that start quickly: forks of one server process that has already imported the modules of our programs."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from tests.virtual_clock import PROCESSES

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "alignup.agent.kubelet_export",
        "alignup.agent.device_allocator",
        "alignup.agent.daemon",
        "alignup.cli.admit",
        "alignup.cli.agent",
        "alignup.cli.audit",
        "alignup.cli.decisions",
        "alignup.cli.doctor",
        "alignup.cli.inputs",
        "alignup.cli.machine",
        "alignup.cli.ps",
        "alignup.cli.release",
        "alignup.cli.run",
        "alignup.cli.simulate",
        "alignup.cli.simulate_output",
        "alignup.cli.why",
        "alignup.machines",
        "alignup.run.local_allocator",
        "alignup.run.lifecycle",
        "alignup.testing.plugin",
        "encodings.ascii",  # a child that dropped root may not be able to read root's Python files
    ]
)


def forked(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> BaseProcess:
    """Run *target* in a new process that has our modules loaded."""
    process = _FORKING.Process(target=_begin, args=(target, *arguments), daemon=daemon)
    process.start()
    PROCESSES.started = True  # by the server, which the virtual clock does not see
    return process


def _begin(target: Callable[..., None], *arguments: Any) -> None:
    # The fork server is shared. `simulate.executors` starts it with SIGINT blocked, and children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    target(*arguments)
