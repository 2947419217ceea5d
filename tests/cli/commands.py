"""Run the command line as a process, or faster, in this process."""

import io
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO
from unittest import mock

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
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Like :func:`alignup`, in this process, which saves the start of Python."""
    with ExitStack() as stack:
        # Files with descriptors, since the program may redirect those of its output.
        out, err = (stack.enter_context(tempfile.NamedTemporaryFile("w", encoding="utf-8")) for _ in range(2))
        stack.enter_context(mock.patch.dict(os.environ, environment(env), clear=True))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(chdir(cwd or Path.cwd()))
        code = entry.run([*map(str, arguments)])
        out.flush()
        err.flush()
        stdout, stderr = (Path(file.name).read_text("utf-8") for file in (out, err))
    return subprocess.CompletedProcess([*map(str, arguments)], code, stdout, stderr)


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
        timeout=60,
        check=False,
    )


def start(
    *arguments: str, env: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start ``alignup`` with *arguments*."""
    command = [sys.executable, "-m", "alignup", *arguments]
    return subprocess.Popen(  # noqa: S603 - our own program
        command, env=environment(env), stdout=stdout, stderr=subprocess.PIPE
    )


def on_a_terminal(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The output of ``alignup`` on a terminal."""
    ours, theirs = pty.openpty()
    with start(*arguments, env=env, stdout=theirs) as process:
        os.close(theirs)
        output = bytearray()
        while chunk := _read(ours):
            output += chunk
        process.wait(timeout=60)
    os.close(ours)
    return output.decode()


def _read(terminal: int) -> bytes:
    """Read from a terminal; empty at the end, which is an error of the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
