"""Running the command line as people do, as a process of its own; or in this one, where only what it says matters."""

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

QUIET = {"ALIGNUP_DEBUG": "", "NO_COLOR": "", "COLUMNS": "", "PYTHONIOENCODING": ""}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, without what would change the output."""
    kept = {name: value for name, value in os.environ.items() if name not in QUIET}
    return kept | {"PYTHONUTF8": "1"} | dict(extra or {})


def alignup(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``alignup`` with *arguments* to its end."""
    return python("-m", "alignup", *map(str, arguments), env=env, cwd=cwd)


def inside(
    *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """The same in this process, which saves the time a start takes; *given* is what is piped in."""
    with ExitStack() as stack:
        # Files, since the program may let go of its output, and what is behind it.
        out, err = (stack.enter_context(tempfile.NamedTemporaryFile("w", encoding="utf-8")) for _ in range(2))
        stack.enter_context(mock.patch.dict(os.environ, environment(env), clear=True))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode()))))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(chdir(cwd or Path.cwd()))
        code = entry.run([*map(str, arguments)])
        out.flush()
        err.flush()
        said, told = (Path(one.name).read_text("utf-8") for one in (out, err))
    return subprocess.CompletedProcess([*map(str, arguments)], code, said, told)


def python(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: IO[str] | int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with *arguments* to its end."""
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


def started(
    *arguments: str, env: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start ``alignup`` with *arguments*."""
    command = [sys.executable, "-m", "alignup", *arguments]
    return subprocess.Popen(  # noqa: S603 - our own program
        command, env=environment(env), stdout=stdout, stderr=subprocess.PIPE
    )


def on_a_terminal(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What ``alignup`` writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    with started(*arguments, env=env, stdout=theirs) as process:
        os.close(theirs)
        read = bytearray()
        while chunk := _read(ours):
            read += chunk
        process.wait(timeout=60)
    os.close(ours)
    return read.decode()


def _read(terminal: int) -> bytes:
    """What the other side writes; a terminal that was closed there is an error here, and means the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
