"""Trends of the cluster for its page: some numbers, sampled when something changes.

``Trends`` has the last minutes for the tiles, ``PodCountHistory`` everything since the start, in less and less detail.
A number that is not sampled in an interval is as it was before.
"""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

INTERVAL = 10.0  #: seconds
INTERVALS = 60  #: that are kept: ten minutes
MAX_INTERVALS = 288  #: of a history


class Trends:
    def __init__(self) -> None:
        self._samples: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=INTERVALS + 1)

    def add(self, now: float, numbers: Mapping[str, float]) -> None:
        """Note *numbers* as of *now*, in seconds of a clock that never jumps."""
        interval = int(now // INTERVAL)
        if self._samples and self._samples[-1][0] == interval:
            self._samples.pop()
        self._samples.append((interval, dict(numbers)))

    def series(self, name: str, now: float) -> list[float]:
        """Return a number at the end of each interval since the first sample, at most ``INTERVALS`` of them."""
        if not self._samples:
            return []
        end = int(now // INTERVAL)
        values: list[float] = []
        samples = deque(self._samples)
        value = samples[0][1].get(name, 0.0)
        for interval in range(max(samples[0][0], end - INTERVALS + 1), end + 1):
            while samples and samples[0][0] <= interval:
                value = samples.popleft()[1].get(name, value)
            values.append(value)
        return values

    def rates(self, name: str, now: float) -> list[float]:
        """Return how much a counter rises per second, for each interval but the first."""
        values = self.series(name, now)
        return [max(0.0, after - before) / INTERVAL for before, after in pairwise(values)]


class PodCountHistory:
    """The highest values of some numbers in each interval since *start*; when it is full, intervals become longer."""

    def __init__(self, start: float, *, intervals: int = MAX_INTERVALS) -> None:
        self._start = start
        self._intervals = intervals  #: at most
        self._length = INTERVAL  #: seconds of an interval
        self._highest: dict[int, Mapping[str, float]] = {}  #: interval → the highest values in it
        self._last: dict[int, Mapping[str, float]] = {}  #: interval → the values at its end

    def add(self, now: float, numbers: Mapping[str, float]) -> None:
        """Note *numbers* as of *now*, in seconds of a clock that never jumps."""
        interval = self._find_interval(now)
        numbers_before = self._highest.get(interval) or next(reversed(self._last.values()), {})
        self._highest[interval] = {name: max(value, numbers_before.get(name, 0.0)) for name, value in numbers.items()}
        self._last[interval] = dict(numbers)

    def series(self, name: str, now: float) -> list[float]:
        """Return the highest value in each interval up to *now*."""
        values = []
        value = 0.0
        for interval in range(self._find_interval(now) + 1):
            values.append(self._highest.get(interval, {}).get(name, value))
            value = self._last.get(interval, {}).get(name, value)
        return values

    def starts(self, now: float) -> list[float]:
        """Return when the intervals began, in seconds before *now*, negative."""
        return [self._start + interval * self._length - now for interval in range(self._find_interval(now) + 1)]

    def _find_interval(self, now: float) -> int:
        while (interval := int((now - self._start) // self._length)) >= self._intervals:
            self._length *= 2
            highest, last = self._highest, self._last
            self._highest = {}
            self._last = {}
            for number, values in highest.items():  # in order
                column = self._highest.get(number // 2, {})
                self._highest[number // 2] = {name: max(value, column.get(name, 0.0)) for name, value in values.items()}
                self._last[number // 2] = last[number]
        return interval
