"""Measure the best of several runs: other load on the machine only ever makes a figure worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured time and its budget in seconds; ``None``: only for comparison."""

    name: str
    seconds: float
    budget: float | None = None
    note: str = ""

    @property
    def over(self) -> bool:
        return self.budget is not None and self.seconds > self.budget


def best(action: Callable[[], object], *, rounds: int = 15, seconds: float = 0.02) -> float:
    """The least time of one call of *action*; each round averages over about *seconds* of calls."""
    action()
    start = perf_counter()
    action()
    once = max(perf_counter() - start, 1e-7)
    calls = max(1, int(seconds / once))
    least = once
    for _ in range(rounds if calls > 1 else 3):
        start = perf_counter()
        for _ in range(calls):
            action()
        least = min(least, (perf_counter() - start) / calls)
    return least


def best_over(make: Callable[[], Sequence[Item]], action: Callable[[Item], object], *, rounds: int = 100) -> float:
    """The least average time of *action* over the items of *make*; making them is not timed."""
    least = inf
    for _ in range(rounds):
        items = make()
        start = perf_counter()
        for item in items:
            action(item)
        least = min(least, (perf_counter() - start) / len(items))
    return least


def show(seconds: float) -> str:
    """Format a time in a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
