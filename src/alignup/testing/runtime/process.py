"""A command as a child of ours: in a session of its own, on some CPUs if need be, and its output handed on."""

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
_PIECE = 1 << 16  #: bytes read at once
_DRAIN = 1.0  #: seconds for output to end after the command has; somebody who left the session may hold it open

OutputHandler = Callable[[str, bytes], None]  #: told of the stream and what came on it; no data: it has ended


class ProcessStartError(Exception):
    """There is no such command, or it cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """In which a command runs."""

    cwd: Path
    env: Mapping[str, str]
    cpus: frozenset[int] = frozenset()  #: empty: any
    stdin: bool = False  #: it has an input, which stays open
    one_stream: bool = False  #: errors and output come together, as on a terminal


class ChildProcess:
    """A command that runs; :class:`ProcessStartError` where it cannot."""

    def __init__(self, command: Sequence[str], around: ProcessOptions, *, take: OutputHandler) -> None:
        try:
            with _bound_to(around.cpus):
                self._child = subprocess.Popen(  # noqa: S603 - what it was told to run
                    list(command),
                    cwd=around.cwd,
                    env=dict(around.env),
                    stdin=subprocess.PIPE if around.stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if around.one_stream else subprocess.PIPE,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ProcessStartError(_why(command, error)) from error
        self.pid = self._child.pid
        self._running = True
        streams = (("stdout", self._child.stdout), ("stderr", self._child.stderr))
        self._pumps = [asyncio.create_task(_pump(name, pipe, take)) for name, pipe in streams if pipe]
        self._end = asyncio.create_task(self._mind(), name=f"process {self.pid}")

    async def ended(self) -> int:
        """When it has ended and all it wrote was handed on: its exit code, as a shell gives it."""
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        """Send it to the command and all it started."""
        if self._running:
            os.killpg(self.pid, number)

    def move(self, cpus: frozenset[int]) -> None:
        """Have the command and all it started run on *cpus*."""
        for thread in _threads(self.pid):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)

    async def _mind(self) -> int:
        await _gone(self.pid)
        # What is left of it ends too, as in a container; until it is waited for, nobody else has its number.
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


async def _gone(pid: int) -> None:
    """Return when the process has ended; it is not waited for."""
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
        while data := await reader.read(_PIECE):
            take(name, data)
    finally:
        take(name, b"")
        transport.close()


@contextmanager
def _bound_to(cpus: frozenset[int]) -> Iterator[None]:
    """Run on *cpus* for a moment: what is started then does, and from its first step."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _threads(session: int) -> Iterator[int]:
    """All threads of all processes in a session."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):
            if os.getsid(int(process.name)) == session:
                yield from (int(thread.name) for thread in (process / "task").iterdir())


def _why(command: Sequence[str], error: Exception) -> str:
    """In runc's words."""
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
