"""Runs as processes of their own, and what becomes of them."""

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
    """``alignup`` with some arguments, and what it has said so far."""

    process: BaseProcess
    place: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return self._said("out")

    @property
    def err(self) -> str:
        return self._said("err")

    def _said(self, name: str) -> str:
        file = self.place / name
        return file.read_text() if file.exists() else ""

    def end(self) -> int:
        """Its exit code, once it has ended."""
        self.process.join(30)
        assert self.process.exitcode is not None, f"it goes on; it said: {self.out} {self.err}"
        return self.process.exitcode

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


@dataclass
class Bench:
    """A directory of runs, and whoever is started with it."""

    root: Path
    started: int = 0

    @property
    def directory(self) -> Path:
        return self.root / "runs"

    def start(
        self, *words: object, env: Mapping[str, str] | None = None, largest: int | None = None, user: int | None = None
    ) -> Runner:
        """``alignup`` with these arguments; no file it writes may be larger than *largest*."""
        self.started += 1
        place = self.root / str(self.started)
        place.mkdir()
        told = {"ALIGNUP_RUN_DIR": str(self.directory), "ALIGNUP_AGENT": "", **(env or {})}
        given = ([str(word) for word in words], place, told, largest, user)
        return Runner(forked(_be, *given, daemon=False), place)

    def run(self, *words: object, **how: Any) -> tuple[int, str, str]:
        """Exit code, what it printed and what it complained about."""
        runner = self.start(*words, **how)
        code = runner.end()
        return code, runner.out, runner.err

    def files(self) -> list[dict[str, Any]]:
        """What is written down about runs."""
        return [json.loads(path.read_text()) for path in sorted(self.directory.glob("run-*.json"))]


def wait_for(true: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} seconds"
        time.sleep(0.01)


def _be(words: list[str], place: Path, env: Mapping[str, str], largest: int | None, user: int | None) -> None:
    """Be ``alignup``, in the process it is forked into."""
    for name, number in (("out", 1), ("err", 2)):
        stream = os.open(place / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    os.environ.update(env)
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # half of a compiled module would stay, and fail whoever loads it next
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    sys.exit(entry.run(words))
