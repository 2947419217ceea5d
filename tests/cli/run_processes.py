"""``alignup`` in forked processes, with a directory of runs."""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from alignup.cli import entry
from alignup.run import cgroup
from tests.cli.commands import in_process
from tests.deadlines import wait_for
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
        return file.read_text("utf-8") if file.exists() else ""

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        self.process.join(120)
        assert self.process.exitcode is not None, f"still running; output: {self.out} {self.err}"
        return self.process.exitcode

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


def start_alignup(
    *words: object,
    directory: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    merged: bool = False,
    largest: int | None = None,
    user: int | None = None,
) -> Runner:
    """Start ``alignup`` with *env* as its whole environment, and its output in *directory*.

    *merged* writes errors to the output; *largest* limits the bytes of every file it writes.
    """
    directory.mkdir()
    arguments = ([str(word) for word in words], directory, dict(env), cwd, merged, largest, user)
    return Runner(forked(_main, *arguments, daemon=False), directory)


@dataclass
class Workbench:
    """A directory of runs, and ``alignup`` processes that use it."""

    root: Path
    runners: list[Runner] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.root / "runs"

    def start(
        self, *words: object, env: Mapping[str, str] | None = None, largest: int | None = None, user: int | None = None
    ) -> Runner:
        """Start ``alignup``; *largest* limits the bytes of every file it writes."""
        output = self.root / str(len(self.runners))
        variables = {**os.environ, "ALIGNUP_RUN_DIR": str(self.directory), "ALIGNUP_AGENT": "", **(env or {})}
        self.runners.append(start_alignup(*words, directory=output, env=variables, largest=largest, user=user))
        return self.runners[-1]

    def run(self, *words: object, **how: Any) -> tuple[int, str, str]:
        """Run ``alignup``; return its exit code, output and error output."""
        runner = self.start(*words, **how)
        code = runner.wait()
        return code, runner.out, runner.err

    def run_here(self, *words: object, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run ``alignup`` in this process, which suits runs that start no command."""
        run = in_process(
            *map(str, words), env={"ALIGNUP_RUN_DIR": str(self.directory), "ALIGNUP_AGENT": "", **(env or {})}
        )
        return run.returncode, run.stdout, run.stderr

    def records(self) -> list[dict[str, Any]]:
        """The records of all runs."""
        return [json.loads(path.read_text()) for path in sorted(self.directory.glob("run-*.json"))]


@contextmanager
def workbench(root: Path) -> Iterator[Workbench]:
    """A workbench whose processes and cgroups are removed at the end, also when a test fails."""
    bench = Workbench(root)
    try:
        yield bench
    finally:
        for runner in bench.runners:
            if runner.process.is_alive():
                for pid in children(runner.pid):
                    _kill(pid)
                _kill(runner.pid)
                runner.process.join()
        for folder in (Path(record["cgroup"]) for record in bench.records() if record.get("cgroup")):
            for pid in cgroup.members(folder):
                _kill(pid)
            wait_for(partial(cgroup.remove, folder))


def children(pid: int) -> list[int]:
    """The pids of the children of a process; empty when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _main(  # noqa: PLR0917 - arguments of a process
    words: list[str],
    directory: Path,
    env: Mapping[str, str],
    cwd: Path | None,
    merged: bool,
    largest: int | None,
    user: int | None,
) -> None:
    """Run ``alignup`` in the forked process."""
    for name, number in (("out", 1), ("out" if merged else "err", 2)):
        stream = os.open(directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd or Path.cwd())
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # a truncated bytecode file would break later imports
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    if user is not None:
        for name in ("local_run", "run_explanation"):  # imported late, and the user may not be able to read this tree
            import_module(f"alignup.cli.{name}")
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    sys.exit(entry.run(words))
