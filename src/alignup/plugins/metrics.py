"""What the kubelet counts about device plugins and PodResources, under its names.

Whoever serves metrics registers a :class:`PluginMetrics` as a collector: what it hands out has the fields a registry of
Prometheus looks at, and this package needs no library for that.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

REGISTRATIONS = "kubelet_device_plugin_registration_total"
ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds"
ENDPOINT = "kubelet_pod_resources_endpoint_"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  #: seconds
API_VERSION = "v1"

MAX_RESOURCES = 1_000  #: names a metric is kept for
OTHER = "other"  #: all names beyond: plugins choose them, and nobody is to make series without end

_SAYS = {
    REGISTRATIONS: "Registrations of device plugins, also those that were refused.",
    ALLOCATIONS: "How long Allocate of device plugins took, also where it failed.",
    f"{ENDPOINT}requests_total": "Requests to the PodResources endpoint.",
    f"{ENDPOINT}requests_list": "Requests to List of the PodResources endpoint.",
    f"{ENDPOINT}requests_get_allocatable": "Requests to GetAllocatableResources of the PodResources endpoint.",
    f"{ENDPOINT}requests_get": "Requests to Get of the PodResources endpoint.",
    f"{ENDPOINT}errors_list": "Requests to List of the PodResources endpoint that failed.",
    f"{ENDPOINT}errors_get_allocatable": (
        "Requests to GetAllocatableResources of the PodResources endpoint that failed."
    ),
    f"{ENDPOINT}errors_get": "Requests to Get of the PodResources endpoint that failed.",
}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric with all its values."""

    name: str
    documentation: str
    type: str  #: counter or histogram
    samples: tuple[MetricSample, ...]


@dataclass(slots=True)
class _Times:
    """Durations by bucket, each in one only; the last is beyond them all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0


class PluginMetrics:
    """Counts what happens, and shows it to whoever collects metrics."""

    def __init__(self) -> None:
        self._registrations: Counter[str] = Counter()  #: by resource
        self._allocations: dict[str, _Times] = {}  #: by resource
        self._requests: Counter[str] = Counter()  #: by name of the metric

    def registered(self, resource: str) -> None:
        """A plugin asks to register, rightly or not."""
        self._registrations[_name(resource, self._registrations)] += 1

    def allocated(self, resource: str, seconds: float) -> None:
        """Allocate was called and came to an end, good or bad."""
        times = self._allocations.setdefault(_name(resource, self._allocations), _Times())
        times.counts[bisect_left(BUCKETS, seconds)] += 1
        times.total += seconds

    def asked(self, method: str) -> None:
        """Somebody asks PodResources: ``list``, ``get`` or ``get_allocatable``."""
        self._requests[f"{ENDPOINT}requests_total"] += 1
        self._requests[f"{ENDPOINT}requests_{method}"] += 1

    def failed(self, method: str) -> None:
        """And gets an error."""
        self._requests[f"{ENDPOINT}errors_{method}"] += 1

    def collect(self) -> Iterator[MetricFamily]:
        """Every metric that has a value."""
        if self._registrations:
            yield _counter(
                REGISTRATIONS, {name: ("resource_name", name) for name in self._registrations}, self._registrations
            )
        if self._allocations:
            yield self._durations()
        for metric in _SAYS:
            if metric in self._requests:
                yield _counter(metric, {metric: ("server_api_version", API_VERSION)}, self._requests)

    def _durations(self) -> MetricFamily:
        samples: list[MetricSample] = []
        for resource, times in sorted(self._allocations.items()):
            labels, so_far = {"resource_name": resource}, 0
            for bound, count in zip((*map(_bound, BUCKETS), "+Inf"), times.counts, strict=True):
                so_far += count
                samples.append(MetricSample(f"{ALLOCATIONS}_bucket", {**labels, "le": bound}, so_far))
            samples.append(MetricSample(f"{ALLOCATIONS}_sum", labels, times.total))
            samples.append(MetricSample(f"{ALLOCATIONS}_count", labels, so_far))
        return MetricFamily(ALLOCATIONS, _SAYS[ALLOCATIONS], "histogram", tuple(samples))


def _counter(metric: str, labels: Mapping[str, tuple[str, str]], counts: Mapping[str, int]) -> MetricFamily:
    """A counter; *labels* are the one label of each key of *counts*."""
    samples = tuple(MetricSample(metric, dict([labels[key]]), counts[key]) for key in sorted(labels))
    return MetricFamily(metric, _SAYS[metric], "counter", samples)


def _name(name: str, known: Mapping[str, object]) -> str:
    return name if name in known or len(known) < MAX_RESOURCES else OTHER


def _bound(bound: float) -> str:
    return f"{bound:g}"
