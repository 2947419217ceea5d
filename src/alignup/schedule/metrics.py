"""Metrics of the cluster service, and what became of its predictions."""

import collections
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from alignup.picture.plots import Series, stacked_plot
from alignup.picture.svg_elements import svg_inline
from alignup.placement.host_report import Cause
from alignup.web.metrics import CallbackCollector

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  #: seconds

INTERVAL = 300.0  #: seconds that are counted together
INTERVALS = 288  #: that are kept: a day

OUTCOMES = {"as_predicted": "as predicted", "placed_elsewhere": "placed elsewhere", "rejected": "rejected"}


class ScheduleMetrics:
    """The metrics of the cluster service."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry(auto_describe=True)
        counter = partial(Counter, registry=registry)
        self._predictions = counter(
            "alignup_prediction",
            "Predicted pods by what the kubelet did, and why where it was something else.",
            ["verdict", "outcome", "cause"],
        )
        self.foreign_rejections = counter(
            "alignup_schedule_foreign_rejections",
            "Pods of others that a kubelet rejected although predictions counted on them.",
        )
        self.claimed_pods = counter(
            "alignup_claimed_pods",
            "Bound pods with ResourceClaims by whether their CPUs and memory are beside the devices, and refused ones.",
            ["alignment"],
        )
        self.admission_checks = counter(
            "alignup_admission_checks", "Answers to Kueue's admission checks by state.", ["state"]
        )
        self.failed_steps = counter(
            "alignup_schedule_failed_steps",
            "Steps about one pod, gang, workload or node that a defect prevented, and that are tried again.",
            ["step"],
        )
        self.recording_failures = counter(
            "alignup_schedule_recording_failures",
            "Recordings of decisions that ended because a file could not be written.",
        )
        self._requests = Histogram(
            "alignup_extender_request_duration_seconds",
            "Time to answer a request of a scheduler.",
            ["verb", "code"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._children: dict[tuple[str, int], Histogram] = {}  #: of requests, by verb and code: looking them up is slow
        self.predictions = PredictionHistory()
        self.placed_pods = 0  #: for the page
        self._predictions.labels("admits", "as_predicted", "")
        for cause in Cause:  # a counter that appears with its first event hides this event from rate() and increase()
            for outcome in ("placed_elsewhere", "rejected"):
                self._predictions.labels("admits", outcome, cause)
        for alignment in ("aligned", "unaligned", "unknown", "refused"):
            self.claimed_pods.labels(alignment)

    def prediction(self, *, outcome: str, cause: str) -> None:
        self._predictions.labels("admits", outcome, cause).inc()
        self.predictions.add(outcome)
        self.placed_pods += outcome != "rejected"

    def request(self, verb: str, code: int, seconds: float) -> None:
        child = self._children.get((verb, code))
        if child is None:
            child = self._children[verb, code] = self._requests.labels(verb, str(code))
        child.observe(seconds)

    def collect_from(self, numbers: Callable[[], Mapping[str, tuple[str, float]]]) -> None:
        """Add what *numbers* returns: name → (description, value); names that end in _total are counters."""

        def families() -> Iterator[Metric]:
            for name, (description, value) in numbers().items():
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield kind(name, description, value=value)

        self.registry.register(CallbackCollector(families))


class PredictionHistory:
    """Predictions of the last day by what the kubelets did, for the page; *now* is in seconds since 1970.

    The time of day can jump, so an interval may come twice, or before intervals that were counted earlier.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._intervals: deque[tuple[float, collections.Counter[str]]] = deque(maxlen=INTERVALS)

    def add(self, outcome: str) -> None:
        start = self._now() // INTERVAL * INTERVAL
        if not self._intervals or self._intervals[-1][0] != start:
            self._intervals.append((start, collections.Counter()))
        self._intervals[-1][1][outcome] += 1

    @property
    def totals(self) -> collections.Counter[str]:
        totals: collections.Counter[str] = collections.Counter()
        for _, counts in self._intervals:
            totals += counts
        return totals

    def plot(self) -> str:
        """Return the outcomes as SVG, with the intervals in which nothing happened; empty: nothing happened at all."""
        if not self._intervals:
            return ""
        counts: dict[float, collections.Counter[str]] = {}
        for start, interval_counts in self._intervals:
            counts[start] = counts.get(start, collections.Counter()) + interval_counts
        end = self._now() // INTERVAL * INTERVAL
        first = max(min(counts), end - (INTERVALS - 1) * INTERVAL)
        first = min(first, end - 11 * INTERVAL)  # an hour at least
        starts = [first + number * INTERVAL for number in range(round((end - first) / INTERVAL) + 1)]
        series = [
            Series(text, [counts.get(start, collections.Counter())[name] for start in starts], style)
            for (name, text), style in zip(OUTCOMES.items(), (0, 1, 3), strict=True)
        ]
        title = "Predicted pods by what the kubelet did"
        plot = stacked_plot(title, starts, series, x=lambda start: ago(end - start))
        return svg_inline(plot, "Predictions and outcomes over time")


def ago(seconds: float) -> str:
    """Return a time that is the same in every time zone."""
    minutes = round(seconds / 60)
    return "now" if minutes <= 0 else f"{minutes} min ago" if minutes < 120 else f"{minutes / 60:.1f} h ago"
