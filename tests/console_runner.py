"""A runner of the ``console`` blocks in documents, which compares the output.

A ``console`` block holds commands, each after ``$ ``, and their output. A line of three dots stands for any lines left
out. The commands of a document run in order. ``export`` applies to later commands. A command that ends in ``&`` runs
until the document ends or ``kill %1`` names it, as in a shell.
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
from tests.cli.run_processes import Runner, start_alignup

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

_DOTS = re.compile(r"^\.\.\.\n", re.MULTILINE)
_POLL_SECONDS = 0.2
_LOG_TAIL = 3000  #: characters of a log to show on failure


class ConsoleCommand(NamedTuple):
    """A command and its documented output."""

    command: str
    output: str


def parse_commands(text: str) -> list[ConsoleCommand]:
    """Return the commands of a document."""
    commands = []
    for block in CONSOLE.finditer(text):
        head, *pieces = re.split(r"^\$ ", block["body"], flags=re.MULTILINE)
        assert not head, "a console block begins with a command"
        for piece in pieces:
            command, _, output = re.sub(r"\\\n\s*", "", piece).partition("\n")
            commands.append(ConsoleCommand(command, output))
    return commands


def documents() -> dict[str, list[ConsoleCommand]]:
    """Return the commands of every document that has any, by path."""
    return {
        str(path.relative_to(ROOT)): commands
        for path in sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").glob("*.md")))
        if (commands := parse_commands(path.read_text("utf-8")))
    }


class Shell:
    """Runs the commands of one document, after the replacements in *instead*.

    A plain ``alignup`` command is forked from a process that has its modules loaded; a shell runs everything else.
    """

    def __init__(self, directory: Path, *, instead: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = environment({"PATH": path, "ONCE": "1"})
        self.instead = instead or {}
        self.jobs: dict[int, subprocess.Popen[str] | Runner] = {}
        self.started = 0

    def run_all(self, commands: Sequence[ConsoleCommand], *, timeout: float = 0.0, retry: tuple[str, ...] = ()) -> None:
        """Run *commands* and compare; a command that starts with one of *retry* is retried for *timeout* seconds."""
        for command, expected in commands:
            until = time.monotonic() + (timeout if command.startswith(retry or ("\0",)) else 0.0)
            while (wrong := difference(self.output_of(command), expected)) and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
            assert not wrong, f"{command}: {wrong}{self.job_logs()}"

    def output_of(self, command: str) -> str:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return ""
        if command.startswith("kill "):
            self.kill(*shlex.split(command)[1:])
            return ""
        for documented, actual in self.instead.items():
            command = command.replace(documented, actual)
        if command.endswith(" &"):
            job = max(self.jobs, default=0) + 1
            self.jobs[job] = self.start_job(command.removesuffix(" &"))
            self.wait_for_the_job(command)
            return ""
        if is_plain(command):
            runner = self.fork(command)
            code, output = runner.wait(), runner.out
        else:
            code, output = self.run_in_a_shell(command)
        assert code in (0, 1), output
        return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)

    def fork(self, command: str) -> Runner:
        self.started += 1
        output = self.directory / f"output-{self.started}"
        return start_alignup(*shlex.split(command)[1:], directory=output, env=self.env, cwd=self.directory, merged=True)

    def start_job(self, command: str) -> subprocess.Popen[str] | Runner:
        if is_plain(command):
            return self.fork(command)
        self.started += 1
        output = self.directory / f"output-{self.started}"
        output.mkdir()
        with (output / "out").open("w") as log:
            return self.start_shell(f"exec {command}", log)

    def run_in_a_shell(self, command: str) -> tuple[int, str]:
        with self.start_shell(command, subprocess.PIPE) as process:
            try:
                output, _ = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{command}: timed out{self.job_logs()}") from None
        return process.returncode, output

    def start_shell(self, command: str, output: int | TextIO) -> subprocess.Popen[str]:
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

    def wait_for_the_job(self, command: str) -> None:
        """Wait until an agent listens, or until an API server has written its kubeconfig, which it does after that."""
        config = re.search(r"--kubeconfig (\S+)", command)
        end = time.monotonic() + 60
        while not (self.is_complete(config[1]) if config else any(self.directory.rglob("agent.sock"))):
            assert time.monotonic() < end, f"{command}: is not listening{self.job_logs()}"
            time.sleep(0.02)

    def is_complete(self, file: str) -> bool:
        path = self.directory / file
        return path.exists() and path.read_text("utf-8").endswith("}\n")

    def job_logs(self) -> str:
        """Return the end of the output of each command, with that of background jobs."""
        logs = sorted(self.directory.glob("output-*/out"))
        return "".join(f"\n{log.parent.name}:\n{log.read_text('utf-8')[-_LOG_TAIL:]}" for log in logs)

    def kill(self, *words: str) -> None:
        """Act as ``kill``, with or without ``-9``, and wait until the job has exited."""
        *options, job = words
        process = self.jobs.pop(int(job.removeprefix("%")))
        os.kill(process.pid, signal.SIGKILL if options == ["-9"] else signal.SIGTERM)
        process.wait()

    def close(self) -> None:
        """Stop all background jobs, the newest first."""
        for job in sorted(self.jobs, reverse=True):
            self.kill(f"%{job}")


def is_plain(command: str) -> bool:
    """Return whether *command* is ``alignup`` with arguments, without pipes, redirections and other operators."""
    tokens = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    return tokens[0] == "alignup" and not any(set(token) <= set("();<>|&") for token in tokens)


def difference(output: str, expected: str) -> str:
    """Describe how *output* differs from *expected*; empty if it does not."""
    first, *pieces = _DOTS.split(expected)
    if not output.startswith(first):
        return f"expected to start with:\n{first}\ngot:\n{output[: len(first) + 200]}"
    rest = output[len(first) :]
    if rest and not pieces:
        return f"unexpected output:\n{rest}"
    for piece in filter(None, pieces):
        if piece not in rest:
            return f"expected:\n{piece}\ngot:\n{rest}"
        rest = rest[rest.index(piece) + len(piece) :]
    return ""
