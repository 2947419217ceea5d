"""Programs that tests fork: agents and a container runtime. This module imports only what these load anyway."""

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from alignup.agent import daemon
from alignup.agent.daemon import DaemonOptions
from alignup.agent.pods.pod_state import PodIntervals
from alignup.agent.pods.wiring import PodRuntimeOptions
from alignup.agent.recovery import RecoveryOptions
from alignup.agent.wait_queue import WaitQueue
from alignup.align.cpus.options import CpuSettings
from alignup.align.host import Host, Settings
from alignup.align.quantity import Quantity
from alignup.cli import entry
from alignup.machines.synthetic import parse
from alignup.testing.runtime import __main__ as runtime
from alignup.web.address import SOCKET_NAME, UnixAddress

#: Intervals of an agent that notices changes, and retries, at once; other delays are as usual.
FAST = PodIntervals(poll=0.05, initial_retry=0.05, max_retry=0.2)


def serve_command(command: Sequence[str], log: Path, env: Mapping[str, str], largest: int | None) -> None:
    """Run ``alignup`` with these arguments; *largest* limits the size of its files."""
    _prepare(log, env, largest)
    sys.exit(entry.run(list(command)))


def serve_pods(command: Sequence[str], log: Path, env: Mapping[str, str], largest: int | None) -> None:
    """Run an agent with :data:`FAST` intervals for the runtime in the directory *command*; all pods wait if needed."""
    _prepare(log, env, largest)
    directory = Path(*command)
    machine = parse("pack:2 numa:1 core:4 pu:1", memory=16 << 30)
    root = directory / "root"
    daemon.run(
        DaemonOptions(
            host=Host(machine, Settings(cpus=CpuSettings(policy="static", reservation=Quantity(1)))),
            root=root,
            address=UnixAddress(root / SOCKET_NAME),
            manifests=directory / "manifests",
            recovery=RecoveryOptions(waiting=WaitQueue(max_overtakes=10), wait_enabled=True),
            containers=PodRuntimeOptions(
                endpoint=directory / "cri.sock", log_root=root / "logs", cgroup_root=None, intervals=FAST
            ),
        )
    )
    sys.exit(0)


def serve_runtime(command: Sequence[str], output: Path) -> None:
    """Run the container runtime of :mod:`alignup.testing` with these arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stream = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    sys.exit(runtime.main(list(command)))


def _prepare(log: Path, env: Mapping[str, str], largest: int | None) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(stream, 2)
    faulthandler.enable()
    os.environ.update(env)
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # a truncated compiled module would break later imports
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
