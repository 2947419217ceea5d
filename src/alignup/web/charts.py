"""Charts over time: their data, reduced to what a screen can show, and the table beside each chart.

A page has the data as JSON, which ``static/charts.js`` draws with uPlot (``static/vendor``), and a table for readers
without a screen or without scripts. Values are steps: each lasts until the next time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, Literal, NamedTuple

MAX_POINTS = 4000  #: of a chart; more are reduced, and a wide screen does not show the difference
TABLE_ROWS = 20

_DIGITS = 5  #: of shares; a pixel is more

Unit = Literal["share", "count"]


class ChartLine(NamedTuple):
    name: str
    values: Sequence[float]  #: one for each time of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    times: Sequence[float]  #: seconds, ascending
    series: Sequence[ChartLine]
    unit: Unit = "count"

    @property
    def data(self) -> dict[str, Any]:
        """The data for the script: at most ``MAX_POINTS`` times, and the values of each series."""
        columns = [series.values for series in self.series]
        points = select_points(self.times, columns, MAX_POINTS)
        digits = _DIGITS if self.unit == "share" else 3
        return {
            "unit": self.unit,
            "names": [series.name for series in self.series],
            "columns": [
                [_short(self.times[point], 3) for point in points],
                *([_short(values[point], digits) for point in points] for values in columns),
            ],
        }

    def rows(self, count: int = TABLE_ROWS) -> list[tuple[float, list[str]]]:
        """Return the start of each of *count* equal intervals, and the highest value of each series in it."""
        if not self.times:
            return []
        first, last = self.times[0], self.times[-1]
        count = min(count, len(self.times))
        starts = [first + (last - first) * number / count for number in range(count)]
        places = [*(bisect_left(self.times, start) for start in starts), len(self.times)]
        rows = []
        for number, start in enumerate(starts):
            begin = max(0, bisect_right(self.times, start) - 1)  # the value at the start began at or before it
            end = max(begin + 1, places[number + 1])
            rows.append((start, [self.format(max(series.values[begin:end])) for series in self.series]))
        return rows

    def format(self, value: float) -> str:
        if self.unit == "share":
            return f"{value:.1%}"
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def select_points(times: Sequence[float], columns: Sequence[Sequence[float]], limit: int) -> list[int]:
    """Return the places of at most *limit* points that show the same steps as all of them.

    Points at which no value changes are left out. If more remain, time is divided into equal intervals, of which the
    first and the last point stay, and the lowest and the highest of each column: every extreme stays visible.
    """
    total = len(times)
    changes = [
        index
        for index in range(total)
        if index in {0, total - 1} or any(values[index] != values[index - 1] for values in columns)
    ]
    if len(changes) <= limit:
        return changes
    intervals = max(1, limit // (2 + 2 * len(columns)))
    first, span = times[0], (times[-1] - times[0]) or 1.0
    indexes: set[int] = set()
    for _, places in groupby(changes, lambda index: min(int((times[index] - first) / span * intervals), intervals - 1)):
        members = list(places)
        indexes |= {members[0], members[-1]}
        for values in columns:
            indexes |= {min(members, key=values.__getitem__), max(members, key=values.__getitem__)}
    return sorted(indexes)


def _short(value: float, digits: int) -> float:
    """Return a number with few digits in JSON."""
    short_value = round(value, digits)
    return int(short_value) if short_value == int(short_value) else short_value


@cache
def chart_script() -> str:
    """Return uPlot and the script that draws charts."""
    static = files(__package__) / "static"
    return "\n".join((static / name).read_text("utf-8") for name in ("vendor/uPlot.iife.min.js", "charts.js"))


@cache
def chart_style() -> str:
    static = files(__package__) / "static"
    return "\n".join((static / name).read_text("utf-8") for name in ("vendor/uPlot.min.css", "charts.css"))
