"""A child process in a new session, optionally bound to CPUs, whose output goes to a handler."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SIGNAL_EXIT_BASE = 128
_CHUNK = 1 << 16  #: bytes
_DRAIN = 1.0  #: seconds for output to end after the command; a process that left the session may keep the pipe open

OutputHandler = Callable[[str, bytes], None]  #: gets the stream and its data; empty data is the end


class ProcessStartError(Exception):
    """The command does not exist or cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    cwd: Path
    env: Mapping[str, str]
    cpus: frozenset[int] = frozenset()  #: empty: any
    stdin: bool = False  #: give it a standard input that stays open
    merge_output: bool = False  #: send stderr to stdout, as on a terminal


class ChildProcess:
    """A running command; raises :class:`ProcessStartError` if it cannot run."""

    def __init__(self, command: Sequence[str], options: ProcessOptions, *, take: OutputHandler) -> None:
        try:
            with _affinity(options.cpus):
                self._child = subprocess.Popen(  # noqa: S603 - the container's command
                    list(command),
                    cwd=options.cwd,
                    env=dict(options.env),
                    stdin=subprocess.PIPE if options.stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if options.merge_output else subprocess.PIPE,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ProcessStartError(_runc_error(command, error)) from error
        self.pid = self._child.pid
        self._running = True
        streams = (("stdout", self._child.stdout), ("stderr", self._child.stderr))
        self._pumps = [asyncio.create_task(_pump(name, pipe, take)) for name, pipe in streams if pipe]
        self._end = asyncio.create_task(self._watch(), name=f"process {self.pid}")

    async def wait(self) -> int:
        """Return the exit code, as a shell reports it, once the process has ended and its output is handled."""
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and its descendants."""
        if self._running:
            os.killpg(self.pid, number)

    def set_affinity(self, cpus: frozenset[int]) -> None:
        """Bind the command and its descendants to *cpus*."""
        for thread in _session_threads(self.pid):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)

    async def _watch(self) -> int:
        await _wait_ended(self.pid)
        # Descendants end with it, as in a container. Its pid cannot be reused before it is reaped.
        self.signal(signal.SIGKILL)
        self._running = False
        code = self._child.wait()
        if self._child.stdin:
            self._child.stdin.close()
        _, late = await asyncio.wait(self._pumps, timeout=_DRAIN)
        for pump in late:
            pump.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return code if code >= 0 else SIGNAL_EXIT_BASE - code


async def _wait_ended(pid: int) -> None:
    """Return when the process has ended, without reaping it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    handle = os.pidfd_open(pid)
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _pump(name: str, pipe: IO[bytes], take: OutputHandler) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(_CHUNK):
            take(name, data)
    finally:
        take(name, b"")
        transport.close()


@contextmanager
def _affinity(cpus: frozenset[int]) -> Iterator[None]:
    """Bind this thread to *cpus* temporarily, so that a child inherits the affinity from its first instruction."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _session_threads(session: int) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.getsid(int(process.name)) == session:
                yield from (int(thread.name) for thread in (process / "task").iterdir())


def _runc_error(command: Sequence[str], error: Exception) -> str:
    """Return runc's message for a command that cannot be run."""
    name = command[0] if command else ""
    prefix = f'unable to start container process: exec: "{name}"'
    match error:
        case FileNotFoundError() if "/" not in name:
            return f"{prefix}: executable file not found in $PATH: unknown"
        case FileNotFoundError():
            return f"{prefix}: stat {name}: no such file or directory: unknown"
        case OSError():
            return f"{prefix}: {os.strerror(error.errno or 0).lower()}: unknown"
        case _:
            return f"{prefix}: {error}: unknown"
