"""Predictions and what the kubelets did, over time, for the page of a cluster."""

import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime

from alignup.picture.plots import Series, stacked_plot
from alignup.picture.svg_elements import svg_inline

INTERVAL = 300.0  #: seconds that are counted together
INTERVALS = 288  #: that are kept: a day

OUTCOMES = {"as_predicted": "as predicted", "placed_elsewhere": "placed elsewhere", "rejected": "rejected"}


class PredictionHistory:
    """Counts of outcomes by interval; *now* is in seconds since 1970."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._intervals: deque[tuple[float, Counter[str]]] = deque(maxlen=INTERVALS)

    def add(self, outcome: str) -> None:
        start = self._now() // INTERVAL * INTERVAL
        if not self._intervals or self._intervals[-1][0] < start:
            self._intervals.append((start, Counter()))
        self._intervals[-1][1][outcome] += 1

    @property
    def totals(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for _, counts in self._intervals:
            found += counts
        return found

    def plot(self) -> str:
        """The outcomes as SVG, with the intervals in which nothing happened; empty if nothing happened at all."""
        if not self._intervals:
            return ""
        counts = dict(self._intervals)
        end = self._now() // INTERVAL * INTERVAL
        first = max(self._intervals[0][0], end - (INTERVALS - 1) * INTERVAL)
        first = min(first, end - 11 * INTERVAL)  # an hour at least
        starts = [first + number * INTERVAL for number in range(round((end - first) / INTERVAL) + 1)]
        series = [
            Series(text, [counts.get(start, Counter())[name] for start in starts], style)
            for (name, text), style in zip(OUTCOMES.items(), (0, 1, 3), strict=True)
        ]
        drawn = stacked_plot("Predicted pods by what the kubelet did", starts, series, x=_clock)
        return svg_inline(drawn, "Predictions and outcomes over time")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M UTC")
