"""Measure memory latency: walk through memory in an order that caches cannot predict.

    alignup run --cpus 1 --policy single-numa-node -- python3 examples/run/latency.py

Every step reads the index of the next one, so steps cannot overlap. Part of the time is Python's own, and the same on
every node: compare runs with each other, not with a data sheet. An argument is the NUMA node to take memory from,
which needs no privileges (default: the placement of the process).
"""

import os
import random
import sys
import time
from array import array

from alignup.run import process

SIZE = int(os.environ.get("LATENCY_MIB", "64")) << 20
STEPS = int(os.environ.get("LATENCY_STEPS", "2000000"))


def random_cycle(size: int) -> "array[int]":
    """Return a random cycle through *size* bytes: each entry is the index of the next."""
    count = size // 8
    order = list(range(count))
    random.Random(1).shuffle(order)  # noqa: S311 - the same order every time
    steps = array("q", bytes(size))
    for current, following in zip(order, [*order[1:], order[0]], strict=True):
        steps[current] = following
    return steps


def measure(steps: "array[int]") -> float:
    """Nanoseconds per step, best of three."""
    best = float("inf")
    for _ in range(3):
        position, start = 0, time.perf_counter()
        for _ in range(STEPS):
            position = steps[position]
        best = min(best, time.perf_counter() - start)
    return best / STEPS * 1e9


def main() -> None:
    cpu_nodes = os.environ.get("ALIGNUP_NUMA_NODES", "any")
    memory_nodes = os.environ.get("ALIGNUP_MEMORY_NODES", "any")
    if len(sys.argv) > 1:
        memory_nodes = sys.argv[1]
        process.bind_memory(1 << int(memory_nodes))
    print(f"CPUs of node {cpu_nodes}, memory of node {memory_nodes}: {measure(random_cycle(SIZE)):.1f} ns per step")


if __name__ == "__main__":
    main()
