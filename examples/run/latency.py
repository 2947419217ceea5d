"""How long reading memory takes from where this process is: a walk through memory that no cache can guess.

    alignup run --cpus 1 --policy single-numa-node -- python3 examples/run/latency.py

Every step reads the place of the next one, so that steps cannot overlap. Python itself takes part of the time, the same
on every node: compare runs with each other, not with what a data sheet says. A number is a node's to take memory from,
which needs no privileges; without one memory comes from wherever the process was put.
"""

import os
import random
import sys
import time
from array import array

from alignup.enforce import memory

SIZE = int(os.environ.get("LATENCY_MIB", "64")) << 20
STEPS = int(os.environ.get("LATENCY_STEPS", "2000000"))


def walk(size: int) -> "array[int]":
    """One circle through *size* bytes, in an order nobody can guess."""
    count = size // 8
    order = list(range(count))
    random.Random(1).shuffle(order)  # noqa: S311 - the same order every time
    steps = array("q", bytes(size))
    for here, there in zip(order, [*order[1:], order[0]], strict=True):
        steps[here] = there
    return steps


def measure(steps: "array[int]") -> float:
    """Nanoseconds a step, the best of three."""
    best = float("inf")
    for _ in range(3):
        place, start = 0, time.perf_counter()
        for _ in range(STEPS):
            place = steps[place]
        best = min(best, time.perf_counter() - start)
    return best / STEPS * 1e9


def main() -> None:
    """Take memory, walk, and say what was seen."""
    cpus = os.environ.get("ALIGNUP_NUMA_NODES", "any")
    taken = os.environ.get("ALIGNUP_MEMORY_NODES", "any")
    if len(sys.argv) > 1:
        taken = sys.argv[1]
        memory.bind(1 << int(taken))
    print(f"CPUs of node {cpus}, memory of node {taken}: {measure(walk(SIZE)):.1f} ns a step")


if __name__ == "__main__":
    main()
