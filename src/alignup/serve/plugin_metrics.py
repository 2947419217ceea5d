"""Metrics of device plugins and of the PodResources endpoint, under the kubelet's names.

It implements what ``plugins.metrics`` expects. The counters are families of their own: the library's ``Counter`` would
append ``_total`` to names that do not have it in the kubelet.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

REGISTRATIONS = "kubelet_device_plugin_registration_total"
ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds"
ENDPOINT = "kubelet_pod_resources_endpoint_"
API_VERSION = "v1"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  #: seconds

MAX_RESOURCES = 1_000  #: distinct resource names; plugins choose them, and series must not grow without limit
OTHER = "other"  #: stands for all further names

_HELP = {
    REGISTRATIONS: "Cumulative number of device plugin registrations, including rejected ones.",
    f"{ENDPOINT}requests_total": "Number of requests to the PodResources endpoint.",
    f"{ENDPOINT}requests_list": "Number of PodResources List requests.",
    f"{ENDPOINT}requests_get_allocatable": "Number of PodResources GetAllocatableResources requests.",
    f"{ENDPOINT}requests_get": "Number of PodResources Get requests.",
    f"{ENDPOINT}errors_list": "Number of PodResources List requests that failed.",
    f"{ENDPOINT}errors_get_allocatable": "Number of PodResources GetAllocatableResources requests that failed.",
    f"{ENDPOINT}errors_get": "Number of PodResources Get requests that failed.",
}


class DevicePluginMetrics(Collector):
    """Registers itself with *registry*; a metric appears with its first value."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registrations: Counter[str] = Counter()  #: by resource
        self._requests: Counter[str] = Counter()  #: by metric
        self._allocated: set[str] = set()
        self._durations = Histogram(
            ALLOCATIONS,
            "Duration in seconds of device plugin Allocate calls, including failed ones.",
            ["resource_name"],
            buckets=BUCKETS,
            registry=None,
        )
        registry.register(self)

    def count_registration(self, resource: str) -> None:
        self._registrations[_limited(resource, self._registrations.keys())] += 1

    def observe_allocation(self, resource: str, seconds: float) -> None:
        name = _limited(resource, self._allocated)
        self._allocated.add(name)
        self._durations.labels(name).observe(seconds)

    def count_request(self, method: str) -> None:
        self._requests[f"{ENDPOINT}requests_total"] += 1
        self._requests[f"{ENDPOINT}requests_{method}"] += 1

    def count_error(self, method: str) -> None:
        self._requests[f"{ENDPOINT}errors_{method}"] += 1

    def collect(self) -> Iterator[Metric]:
        if self._registrations:
            family = Metric(REGISTRATIONS, _HELP[REGISTRATIONS], "counter")
            for resource, count in sorted(self._registrations.items()):
                family.add_sample(REGISTRATIONS, {"resource_name": resource}, count)
            yield family
        for family in self._durations.collect():
            family.samples = [_as_in_go(sample) for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family
        for name, text in _HELP.items():
            if name in self._requests:
                family = Metric(name, text, "counter")
                family.add_sample(name, {"server_api_version": API_VERSION}, self._requests[name])
                yield family


def _as_in_go(sample: Sample) -> Sample:
    """Return a sample whose bucket bound reads ``10``, as the kubelet has it, where the library writes ``10.0``."""
    bound = sample.labels.get("le", "")
    return sample._replace(labels={**sample.labels, "le": bound.removesuffix(".0")}) if bound else sample


def _limited(name: str, known: AbstractSet[str]) -> str:
    return name if name in known or len(known) < MAX_RESOURCES else OTHER
