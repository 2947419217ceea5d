"""Commands for tests of placement. They end with the context, whatever happens in it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.deadlines import wait_for


@contextmanager
def started(
    *command: str, env: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in its own process group, with its output in a pipe; as another *user* if we are root."""
    program = shutil.which(command[0])
    assert program is not None
    with (
        subprocess.Popen(  # noqa: S603 - our own tests
            [program, *command[1:]], env={**os.environ, **(env or {})}, stdout=-1, text=True, process_group=0, user=user
        ) as process
    ):
        try:
            if env:  # the kernel shows the environment a moment after the program has started
                wait_for(Path(f"/proc/{process.pid}/environ").read_bytes)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def python(script: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start Python with a script and this process's import path."""
    return started(sys.executable, "-c", f"import sys\nsys.path[:0] = {sys.path!r}\n{script}", *arguments)


def is_zombie(pid: int) -> bool:
    return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
