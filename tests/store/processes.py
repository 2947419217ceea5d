"""Run functions in processes of their own, and kill them.

They take and return what JSON can represent. This module and ``programs`` import little, so that a process starts fast.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from alignup import atomic_files
from alignup.store.lock import lock

ROOT = Path(__file__).parents[2]
Report = Callable[[int], object]


def command(program: Callable[..., Any], *arguments: Path | int) -> list[str]:
    """Return the command that runs a function, in the root of the repository."""
    return [sys.executable, "-m", program.__module__, program.__name__, json.dumps(arguments, default=str)]


def run(program: Callable[..., Any], *arguments: Path | int) -> Any:
    """Run a function in a process of its own, and return what it returns."""
    done = subprocess.run(  # noqa: S603 - our own program
        command(program, *arguments), cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def hold_lock(directory: str) -> None:
    """Hold the lock until standard input ends."""
    with lock(Path(directory)):
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        sys.stdin.read()


def kill_writer(write: Callable[[Report], None], *, after: int) -> int:
    """Fork a process that writes and reports each number, kill it *after* so many, and return the last number."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        try:
            write(lambda number: os.write(writer, number.to_bytes(8, "big")))
        finally:
            os._exit(9)
    os.close(writer)
    reported = b""
    while len(reported) < 8 * after and (part := os.read(reader, 8)):
        reported += part
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "the writer failed"
    while part := os.read(reader, 1 << 16):
        reported += part
    os.close(reader)
    return int.from_bytes(reported[-8:], "big")


def kill_before_each_call(work: Callable[[], None], check: Callable[[], None]) -> int:
    """Do *work* in forked processes, each killed before one more system call; return how many were killed."""
    for number in count():
        pid = os.fork()
        if not pid:
            try:
                sys.setprofile(killer(number))
                work()
                sys.setprofile(None)
            except BaseException:  # noqa: BLE001 - the parent reports it
                os._exit(9)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status) or status == 0, "the work failed"
        check()
        if status == 0:
            return number
    raise AssertionError


def killer(number: int) -> Callable[[FrameType, str, object], None]:
    """Return a profile function that kills this process before the system call with this *number*."""
    left = number

    def on_event(_frame: FrameType, event: str, called: object) -> None:
        nonlocal left
        system_call = getattr(called, "__module__", "") in ("posix", "fcntl")
        if event == "c_call" and (system_call or getattr(called, "__name__", "") in ("write", "flush")):
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    return on_event


def kill_file_writers(path: str, rounds: int, seed: int) -> None:
    """Kill processes that write one of two contents over and over."""
    contents = [letter * 1_000_000 for letter in (b"a", b"b")]
    rng = random.Random(seed)

    def write(report: Report) -> None:
        for number in count():
            atomic_files.write(Path(path), contents[number % 2])
            report(number)

    for _ in range(rounds):
        kill_writer(write, after=rng.randrange(1, 8))
        assert atomic_files.read(Path(path)) in contents


def kill_file_writer_before_each_call(path: str) -> int:
    """Return how many processes were killed."""
    atomic_files.write(Path(path), b"old")

    def check() -> None:
        assert atomic_files.read(Path(path)) in (b"old", b"new")
        atomic_files.write(Path(path), b"old")

    return kill_before_each_call(lambda: atomic_files.write(Path(path), b"new"), check)


def main(programs: dict[str, Any]) -> None:
    """Run the program that the command line names."""
    sys.stdout.write(json.dumps(programs[sys.argv[1]](*json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main(globals())
