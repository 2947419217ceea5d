"""``alignup`` in forked processes, with a directory of runs."""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from alignup.cli import entry
from tests.forked_processes import forked


@dataclass(frozen=True)
class Runner:
    """A running ``alignup``, and its output so far."""

    process: BaseProcess
    directory: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return self._output("out")

    @property
    def err(self) -> str:
        return self._output("err")

    def _output(self, name: str) -> str:
        file = self.directory / name
        return file.read_text() if file.exists() else ""

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        self.process.join(30)
        assert self.process.exitcode is not None, f"still running; output: {self.out} {self.err}"
        return self.process.exitcode

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


@dataclass
class Workbench:
    """A directory of runs, and ``alignup`` processes that use it."""

    root: Path
    count: int = 0

    @property
    def directory(self) -> Path:
        return self.root / "runs"

    def start(
        self, *words: object, env: Mapping[str, str] | None = None, largest: int | None = None, user: int | None = None
    ) -> Runner:
        """Start ``alignup``; *largest* limits the bytes of every file it writes."""
        self.count += 1
        directory = self.root / str(self.count)
        directory.mkdir()
        variables = {"ALIGNUP_RUN_DIR": str(self.directory), "ALIGNUP_AGENT": "", **(env or {})}
        arguments = ([str(word) for word in words], directory, variables, largest, user)
        return Runner(forked(_main, *arguments, daemon=False), directory)

    def run(self, *words: object, **how: Any) -> tuple[int, str, str]:
        """Run ``alignup``; return its exit code, output and error output."""
        runner = self.start(*words, **how)
        code = runner.wait()
        return code, runner.out, runner.err

    def records(self) -> list[dict[str, Any]]:
        """The records of all runs."""
        return [json.loads(path.read_text()) for path in sorted(self.directory.glob("run-*.json"))]


def wait_for(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"condition is still false after {seconds} seconds"
        time.sleep(0.01)


def _main(words: list[str], directory: Path, env: Mapping[str, str], largest: int | None, user: int | None) -> None:
    """Run ``alignup`` in the forked process."""
    for name, number in (("out", 1), ("err", 2)):
        stream = os.open(directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    os.environ.update(env)
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # a truncated bytecode file would break later imports
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    sys.exit(entry.run(words))
