"""A container's process, in a new session and optionally bound to CPUs, and the log of its output."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

MAX_LOG_ENTRY = 16 * 1024  #: bytes
SIGNAL_EXIT_BASE = 128
_CHUNK = 1 << 16  #: bytes

OutputHandler = Callable[[str, bytes], None]  #: gets the stream and its data; empty data is the end


class ProcessStartError(Exception):
    """The command does not exist or cannot be run."""


class ChildProcess:
    """A running command; raises :class:`ProcessStartError` if it cannot run.

    It is bound to *cpus*, if there are any. *stdin* gives it a standard input that stays open; *merge_output* sends
    stderr to stdout, as on a terminal. Once it has ended, its output may take *drain* seconds to end: a process that
    left the session may keep the pipe open.
    """

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        cpus: frozenset[int],
        stdin: bool,
        merge_output: bool,
        take: OutputHandler,
        drain: float = 1.0,
    ) -> None:
        try:
            with _affinity(cpus):
                self._child = subprocess.Popen(  # noqa: S603 - the container's command
                    list(command),
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT if merge_output else subprocess.PIPE,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            raise ProcessStartError(_runc_error(command, error)) from error
        self.pid = self._child.pid
        self._running = True
        self._drain = drain
        streams = (("stdout", self._child.stdout), ("stderr", self._child.stderr))
        self._pumps = [asyncio.create_task(_pump(name, pipe, take)) for name, pipe in streams if pipe]
        self._end = asyncio.create_task(self._watch(), name=f"process {self.pid}")

    async def wait(self) -> int:
        """Return the exit code, as a shell reports it, once the process has ended and its output is handled."""
        return await asyncio.shield(self._end)

    def signal(self, number: signal.Signals) -> None:
        if self._running:
            os.killpg(self.pid, number)

    def set_affinity(self, cpus: frozenset[int]) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(ProcessLookupError, FileNotFoundError):
                in_session = os.getsid(int(process.name)) == self.pid
                for thread in (process / "task").iterdir() if in_session else ():
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread.name), cpus)

    async def _watch(self) -> int:
        await _wait_ended(self.pid)
        # Descendants end with it, as in a container. Its pid cannot be reused before it is reaped.
        self.signal(signal.SIGKILL)
        self._running = False
        code = self._child.wait()
        if self._child.stdin:
            self._child.stdin.close()
        _, late = await asyncio.wait(self._pumps, timeout=self._drain)
        for pump in late:
            pump.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return code if code >= 0 else SIGNAL_EXIT_BASE - code


class ContainerLog:
    """Appends to the log at *path*, whose directory it creates if needed; raises ``OSError`` if it cannot.

    The CRI log format:

        2026-01-02T03:04:05.123456789Z stdout F a full line
        2026-01-02T03:04:05.123456789Z stderr P a partial line, which continues in the next entry or has no end
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial: dict[str, bytes] = {}  #: the unfinished line of each stream
        self._file = path.open("ab", buffering=0)
        path.chmod(0o640)

    def take(self, stream: str, data: bytes) -> None:
        """Write output of *stream*; empty *data* is its end."""
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        for line in lines:
            self._write(stream, "F", self._split(stream, line))
        rest = self._split(stream, rest)
        if data:
            self._partial[stream] = rest
        elif rest:
            self._write(stream, "P", rest)

    def reopen(self) -> None:
        """Continue in a new file after the old one was moved away."""
        fresh = self._path.open("ab", buffering=0)
        self._path.chmod(0o640)
        self._file.close()
        self._file = fresh

    def close(self) -> None:
        self._file.close()

    def _split(self, stream: str, line: bytes) -> bytes:
        """Write full-size partial entries of a long line, and return the rest."""
        while len(line) > MAX_LOG_ENTRY:
            self._write(stream, "P", line[:MAX_LOG_ENTRY])
            line = line[MAX_LOG_ENTRY:]
        return line

    def _write(self, stream: str, tag: str, text: bytes) -> None:
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        self._file.write(f"{now}.{nanoseconds:09}Z {stream} {tag} ".encode() + text + b"\n")


async def _wait_ended(pid: int) -> None:
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


def _runc_error(command: Sequence[str], error: Exception) -> str:
    name = command[0] if command else ""
    match error:
        case FileNotFoundError() if "/" not in name:
            why = "executable file not found in $PATH"
        case FileNotFoundError():
            why = f"stat {name}: no such file or directory"
        case OSError():
            why = os.strerror(error.errno or 0).lower()
        case _:
            why = str(error)
    return f'unable to start container process: exec: "{name}": {why}: unknown'
