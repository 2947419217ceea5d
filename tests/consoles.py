"""What documents show on a terminal, typed by somebody who looks whether it comes out.

A ``console`` block holds commands, each after ``$ ``, and what they print. Three dots on a line of their own stand for
any lines left out. The commands of a document are run one after the other; ``export`` counts for those after it, what
ends in ``&`` runs until the document ends or ``kill %1`` names it, as in a shell.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from tests.cli.commands import environment

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

_DOTS = re.compile(r"^\.\.\.\n", re.MULTILINE)
_AGAIN = 0.2  #: seconds between two looks at the same thing
_ENOUGH = 3000  #: characters of a log


class Shown(NamedTuple):
    """A command and what it is said to print."""

    command: str
    output: str


def shown(text: str) -> list[Shown]:
    """The commands of a document."""
    found = []
    for block in CONSOLE.finditer(text):
        head, *pieces = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)
        assert not head, "a console block begins with a command"
        for piece in pieces:
            command, _, output = re.sub(r"\\\n\s*", "", piece).partition("\n")
            found.append(Shown(command, output))
    return found


def documents() -> dict[str, list[Shown]]:
    """Every document that has commands, by its path."""
    return {
        str(path.relative_to(ROOT)): commands
        for path in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")))
        if (commands := shown(path.read_text("utf-8")))
    }


class Shell:
    """Somebody who types the commands of one document; *instead* says what is another way here."""

    def __init__(self, directory: Path, *, instead: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = environment({"PATH": path, "ONCE": "1"})
        self.instead = instead or {}
        self.jobs: dict[int, subprocess.Popen[str]] = {}

    def follow(self, commands: Sequence[Shown], *, patience: float = 0.0, looks: tuple[str, ...] = ()) -> None:
        """Type *commands* and compare; what begins as one of *looks* may be asked again for *patience* seconds."""
        for command, said in commands:
            until = time.monotonic() + (patience if command.startswith(looks or ("\0",)) else 0.0)
            while (wrong := difference(self.output_of(command), said)) and time.monotonic() < until:
                time.sleep(_AGAIN)
            assert not wrong, f"{command}: {wrong}{self.said_by_jobs()}"

    def output_of(self, command: str) -> str:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return ""
        if command.startswith("kill "):
            self.end(*shlex.split(command)[1:])
            return ""
        for shown_so, so_here in self.instead.items():
            command = command.replace(shown_so, so_here)
        if command.endswith(" &"):
            job = max(self.jobs, default=0) + 1
            with (self.directory / f"job-{job}.log").open("a") as log:
                self.jobs[job] = self.started(f"exec {command.removesuffix(' &')}", log)
            self.wait_for_the_agent()
            return ""
        with self.started(command, subprocess.PIPE) as process:
            try:
                output, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{command}: it does not end{self.said_by_jobs()}") from None
        assert process.returncode in (0, 1), output
        return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)

    def started(self, command: str, output: int | TextIO) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S602 - our own documents
            command,
            shell=True,
            cwd=self.directory,
            env=self.env,
            stdout=output,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )

    def wait_for_the_agent(self) -> None:
        end = time.monotonic() + 30
        while not any(self.directory.rglob("*.sock")):
            assert time.monotonic() < end, "no agent listens"
            time.sleep(0.05)

    def said_by_jobs(self) -> str:
        """The last that was said by what runs, or ran, beside."""
        logs = sorted(self.directory.glob("job-*.log"))
        return "".join(f"\n{log.name}:\n{log.read_text('utf-8')[-_ENOUGH:]}" for log in logs)

    def end(self, *words: str) -> None:
        """Do as ``kill`` does with ``-9`` or without, and wait until the job has ended."""
        *options, job = words
        process = self.jobs.pop(int(job.removeprefix("%")))
        process.send_signal(signal.SIGKILL if options == ["-9"] else signal.SIGTERM)
        process.wait(timeout=30)

    def leave(self) -> None:
        """End all that still runs, the youngest first."""
        for job in sorted(self.jobs, reverse=True):
            self.end(f"%{job}")


def difference(output: str, said: str) -> str:
    """What is not as it is said to be; empty when all is."""
    first, *pieces = _DOTS.split(said)
    if not output.startswith(first):
        return f"it should begin:\n{first}\nbut does:\n{output[: len(first) + 200]}"
    rest = output[len(first) :]
    if rest and not pieces:
        return f"it prints more:\n{rest}"
    for piece in filter(None, pieces):
        if piece not in rest:
            return f"it should print:\n{piece}\nbut there is:\n{rest}"
        rest = rest[rest.index(piece) + len(piece) :]
    return ""
