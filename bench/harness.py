"""Measurements, each the best of several runs: other load on the machine only ever makes a figure worse."""

import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import inf
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value and its budget in the same unit; ``None``: only for comparison. Less is better."""

    name: str
    value: float
    budget: float | None = None
    note: str = ""
    unit: str = "s"  #: ``s``, ``MB``, or ``times`` for a ratio of two times of the same run

    @property
    def over(self) -> bool:
        return self.budget is not None and self.value > self.budget


def best(
    action: Callable[[], object],
    *,
    rounds: int = 15,
    seconds: float = 0.02,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Return the least time of one call of *action*; each round averages over about *seconds* of calls."""
    action()
    start = clock()
    action()
    once = max(clock() - start, 1e-7)
    calls = max(1, int(seconds / once))
    least = once
    for _ in range(rounds if calls > 1 else 3):
        start = clock()
        for _ in range(calls):
            action()
        least = min(least, (clock() - start) / calls)
    return least


def best_cpu(action: Callable[[], object], *, rounds: int = 15, seconds: float = 0.02) -> float:
    """Like ``best``, in CPU time: for work that waits for nothing, on a machine that others use too."""
    return best(action, rounds=rounds, seconds=seconds, clock=process_time)


def best_over(make: Callable[[], Sequence[Item]], action: Callable[[Item], object], *, rounds: int = 500) -> float:
    """Return the least average CPU time of *action* over the items of *make*; making them is not timed.

    With few items a round is short, and some of many short rounds are without other load.
    """
    least = inf
    for _ in range(rounds):
        items = make()
        start = process_time()
        for item in items:
            action(item)
        least = min(least, (process_time() - start) / len(items))
    return least


def cpu_time(action: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU time of one call of *action*, and its result."""
    start = process_time()
    result = action()
    return process_time() - start, result


def median_time(action: Callable[[], object], *, times: int = 101) -> float:
    """Return the median duration of *action*: the speed of a disk varies."""
    spent = []
    for _ in range(times):
        start = perf_counter()
        action()
        spent.append(perf_counter() - start)
    return median(spent)


def durable_write_time(directory: Path) -> float:
    """Return the median duration of a durable write of 4 KiB, the lower bound of what is saved there."""
    with (directory / "floor").open("wb", buffering=0) as file:

        def append() -> None:
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())

        return median_time(append)


def run_in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Return what *function* returns in a new process, which has none of this one's memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(function, *arguments).result()


def peak_megabytes(process: int | str = "self") -> float:
    """Return the most memory that a process has had.

    ``ru_maxrss`` is no measure of it: a new process starts with that of the one that started it.
    """
    return _megabytes("VmHWM:", process)


def resident_megabytes(process: int | str = "self") -> float:
    """Return the memory that a process has now."""
    return _megabytes("VmRSS:", process)


def _megabytes(field: str, process: int | str) -> float:
    status = Path(f"/proc/{process}/status").read_text("ascii")
    (kilobytes,) = [line.split()[1] for line in status.splitlines() if line.startswith(field)]
    return int(kilobytes) * 1024 / 1e6


@cache
def user_environment() -> Mapping[str, str]:
    """Return the environment of a process that starts as it does for a user: compiled modules are cached."""
    compiled = TemporaryDirectory(prefix="alignup-")
    atexit.register(compiled.cleanup)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": compiled.name}


def reference() -> float:
    """Return the CPU time of a fixed piece of plain Python: how fast this machine is now.

    A figure divided by it hardly depends on the machine, so figures of different machines can be compared.
    """
    return best_cpu(_reference_work, rounds=40, seconds=0.005)


@dataclass(frozen=True, slots=True)
class _Amount:
    node: int
    amount: int


def _reference_work() -> int:
    """Small objects, dicts, sorting and calls, in about the mix of an admission."""
    amounts = [_Amount(node, node * 7919 % 31) for node in range(16)]
    by_node = {entry.node: entry for entry in amounts}
    richest = sorted(amounts, key=lambda entry: entry.amount, reverse=True)
    held = 0
    for entry in richest:
        if by_node[entry.node].amount & 1:
            held |= 1 << entry.node
    return held.bit_count() + sum([entry.amount for entry in {**by_node, 16: amounts[0]}.values()])


def show(value: float, unit: str) -> str:
    """Format a value; a time in a suitable unit."""
    if unit != "s":
        return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    for name, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {name}"
    return f"{value * 1e9:.3g} ns"
