"""Commands for tests of placement."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping


def started(*command: str, env: Mapping[str, str] | None = None, group: int | None = None) -> subprocess.Popen[str]:
    """Start a command with its output in a pipe; with *group* 0 in its own process group."""
    program = shutil.which(command[0])
    assert program is not None
    return subprocess.Popen(  # noqa: S603 - our own tests
        [program, *command[1:]], env={**os.environ, **(env or {})}, stdout=-1, text=True, process_group=group
    )


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python with a script and this process's import path."""
    return started(sys.executable, "-c", f"import sys\nsys.path[:0] = {sys.path!r}\n{script}", *arguments)
