"""Measuring: the best of several runs, since a busy machine can only make a figure worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import TypeVar

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured time, the most it may be (``None``: only for comparison), and what stands beside it."""

    name: str
    seconds: float
    budget: float | None = None
    note: str = ""

    @property
    def over(self) -> bool:
        """Whether the budget is broken."""
        return self.budget is not None and self.seconds > self.budget


def best(action: Callable[[], object], *, rounds: int = 15, seconds: float = 0.02) -> float:
    """The least time one call of *action* took, each round averaging over about *seconds* of calls."""
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


def best_over(make: Callable[[], Sequence[Thing]], action: Callable[[Thing], object], *, rounds: int = 100) -> float:
    """The least time one call of *action* took on average over the things *make* made, which is not timed."""
    least = inf
    for _ in range(rounds):
        things = make()
        start = perf_counter()
        for thing in things:
            action(thing)
        least = min(least, (perf_counter() - start) / len(things))
    return least


def show(seconds: float) -> str:
    """A time in the unit that fits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
