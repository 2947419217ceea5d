"""Running the command line as people do: as a process of its own."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

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
