"""The command line: CPU time of whole processes, which is what the user waits for."""

import os
import subprocess
import sys
from collections.abc import Iterator

from alignup.machines import synthetic
from alignup.picture.machine_svg import draw_svg
from alignup.picture.machine_text import draw_text
from bench.harness import Figure, best, user_environment

ROUNDS = 7
EXAMPLE = ("-f", "examples/node/trainer.yaml", "--machine", "examples/node/machine.yaml")


def figures() -> Iterator[Figure]:
    yield Figure("python itself", cpu_seconds("-c", "pass"))
    yield Figure("alignup --help", cpu_seconds("-m", "alignup", "--help"), budget=0.08, note="CPU time")
    yield Figure("alignup why", cpu_seconds("-m", "alignup", "why", *EXAMPLE), budget=0.2, note="CPU time")
    yield Figure("alignup machine show --help", cpu_seconds("-m", "alignup", "machine", "show", "--help"))
    yield Figure("alignup machine show", cpu_seconds("-m", "alignup", "machine", "show"))
    large = synthetic.parse("pack:4 numa:2 l3:8 core:16 pu:2", distances=(10, 32))
    yield Figure("2048 CPUs, text", best(lambda: draw_text(large), rounds=3))
    yield Figure("2048 CPUs, SVG", best(lambda: draw_svg(large), rounds=3))


def cpu_seconds(*arguments: str) -> float:
    """Return the least user and system time of several runs of Python with *arguments*."""
    least = float("inf")
    for _ in range(ROUNDS):
        with subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, *arguments], stdout=subprocess.DEVNULL, env=user_environment()
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        least = min(least, used.ru_utime + used.ru_stime)
    return least
