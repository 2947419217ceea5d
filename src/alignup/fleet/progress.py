"""Saying how far a long piece of work has come, often enough for people and seldom enough for machines."""

from collections.abc import Callable
from time import monotonic

Progress = Callable[[int, int], object]  #: called with how much is done, and how much there is to do

#: Seconds between two calls.
MIN_INTERVAL = 0.05


class ProgressReporter:
    """Tells *progress* what is done: at most once in ``MIN_INTERVAL`` seconds, and at the end."""

    def __init__(self, progress: Progress | None, total: int, *, now: Callable[[], float] = monotonic) -> None:
        self._progress, self._total, self._now = progress, total, now
        self._told = -1
        self._next = now() + MIN_INTERVAL

    def done(self, count: int) -> None:
        """So much of it is done."""
        if self._progress is None or count == self._told or (count < self._total and self._now() < self._next):
            return
        self._told = count
        self._progress(count, self._total)
        self._next = self._now() + MIN_INTERVAL
