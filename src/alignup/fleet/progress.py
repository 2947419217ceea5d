"""Limits how often progress is reported."""

from collections.abc import Callable
from time import monotonic

Progress = Callable[[int, int], object]  #: called with the number of finished items and the total

MIN_INTERVAL = 0.05  #: seconds between two calls


class ProgressReporter:
    """Calls *progress* at most once per ``MIN_INTERVAL``, and at the end."""

    def __init__(self, progress: Progress | None, total: int, *, now: Callable[[], float] = monotonic) -> None:
        self._progress, self._total, self._now = progress, total, now
        self._reported = -1
        self._next = now() + MIN_INTERVAL

    def report(self, count: int) -> None:
        """*count* items are finished."""
        if self._progress is None or count == self._reported or (count < self._total and self._now() < self._next):
            return
        self._reported = count
        self._progress(count, self._total)
        self._next = self._now() + MIN_INTERVAL
