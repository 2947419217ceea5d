"""Run the command line as a process, or faster, in this process."""

import io
import os
import pty
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO
from unittest import mock

import structlog

from alignup.cli import entry

#: Variables that change the output.
UNSET = {"ALIGNUP_DEBUG", "NO_COLOR", "COLUMNS", "PYTHONIOENCODING"}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process without the variables that change the output."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return kept | {"PYTHONUTF8": "1"} | dict(extra or {})


def alignup(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return python("-m", "alignup", *map(str, arguments), env=env, cwd=cwd)


def in_process(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = "",
    encoding: str = "utf-8",
) -> subprocess.CompletedProcess[str]:
    """Like :func:`alignup`, in this process, which saves the start of Python.

    *stdin* ``None``: closed. *encoding* is that of the output.
    """
    with ExitStack() as stack:
        stack.callback(structlog.reset_defaults)  # the command may have configured the log of its process
        # Files with descriptors, since the program may redirect those of its output.
        out, err = (stack.enter_context(tempfile.NamedTemporaryFile("w", encoding=encoding)) for _ in range(2))
        code = _run([*map(str, arguments)], out.file, err.file, env=env, cwd=cwd, stdin=stdin)
        stdout, stderr = (Path(file.name).read_text("utf-8") for file in (out, err))
    return subprocess.CompletedProcess([*map(str, arguments)], code, stdout, stderr)


def on_a_terminal(*arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
    """The output of ``alignup`` on a terminal, in this process."""
    ours, theirs = pty.openpty()
    output = bytearray()

    def collect() -> None:
        while chunk := _read(ours):
            output.extend(chunk)

    reading = threading.Thread(target=collect)
    reading.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal, io.StringIO() as errors:
            _run([*map(str, arguments)], terminal, errors, env=env)
    finally:
        reading.join()
        os.close(ours)
    return output.decode()


def into_a_closed_pipe(*arguments: str | Path) -> tuple[int, str]:
    """Run ``alignup`` in this process with a pipe as output that nothing reads; return exit code and errors."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as pipe, io.StringIO() as errors:
        code = _run([*map(str, arguments)], pipe, errors)
        return code, errors.getvalue()


def _run(
    arguments: list[str],
    out: IO[str],
    err: IO[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = "",
) -> int:
    """Run ``alignup`` in this process, and return its exit code."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment(env), clear=True))
        text = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin.encode()))
        stack.enter_context(mock.patch.object(sys, "stdin", text))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(chdir(cwd or Path.cwd()))
        code = entry.run(arguments)
        out.flush()
        err.flush()
    return code


def python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: IO[str] | int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with *arguments*."""
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, *arguments],
        env=environment(env),
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


@contextmanager
def start(
    *arguments: str, env: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``alignup`` with *arguments*; it is killed at the end if it is still running."""
    command = [sys.executable, "-m", "alignup", *arguments]
    with subprocess.Popen(  # noqa: S603 - our own program
        command, env=environment(env), stdout=stdout, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _read(terminal: int) -> bytes:
    """Read from a terminal; empty at the end, which is an error of the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


_MEASURED = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)"""


def measured(*arguments: str) -> tuple[int, int, str]:
    """Run ``alignup``; return its exit status, the largest memory of it and its children in MB, and its errors.

    A small process starts it: what Linux reports begins with the memory of the process that starts another.
    """
    command = [sys.executable, "-c", _MEASURED, sys.executable, "-m", "alignup", *arguments]
    run = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)  # noqa: S603
    code, megabytes = map(int, run.stdout.split())
    return code, megabytes, " ".join(run.stderr.split())
