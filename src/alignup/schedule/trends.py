"""Trends of the cluster for the tiles of its page: some numbers, sampled when something changes.

A number that is not sampled in an interval is as it was before.
"""

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

INTERVAL = 10.0  #: seconds
INTERVALS = 60  #: that are kept: ten minutes


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
