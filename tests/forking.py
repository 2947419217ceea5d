"""Processes of our own programs: what takes longest about one is loading Python's modules, so they are forked from one
that has done so.
"""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        "alignup.agent.kubelet_export",
        "alignup.agent.devices.plugin_wiring",
        "alignup.agent.pods.wiring",
        "alignup.agent.daemon",
        "alignup.cli.agent",
        "alignup.cli.why_output",
        "alignup.cli.asking",
        "alignup.cli.inputs",
        "alignup.cli.inspection",
        "alignup.cli.run",
        "alignup.discover",
        "alignup.runs.local_allocator",
        "alignup.runs.lifecycle",
        "alignup.testing.runtime.__main__",
        "encodings.ascii",  # whoever is not root may not be able to load anything where root's Python is
    ]
)


def forked(target: Callable[..., None], *given: Any, daemon: bool = True) -> BaseProcess:
    """A process that has loaded what our programs need, and begins with *target*."""
    process = _FORKING.Process(target=_begin, args=(target, *given), daemon=daemon)
    process.start()
    return process


def _begin(target: Callable[..., None], *given: Any) -> None:
    # There is one process to fork from for all. Who compares on several cores starts it with interruptions held back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    target(*given)
