"""The kubelet's metrics of device plugins and of the PodResources endpoint."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from alignup.serve.exposition import Counters

REGISTRATIONS = "kubelet_device_plugin_registration_total"
ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds"
ENDPOINT = "kubelet_pod_resources_endpoint_"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  #: seconds
API_VERSION = "v1"

MAX_RESOURCES = 1_000  #: distinct resource names; plugins choose them, and series must not grow without limit
OTHER = "other"  #: stands for all further names

_METHODS = {"list": "List", "get_allocatable": "GetAllocatableResources", "get": "Get"}
_VERSION = ("server_api_version",)
_COUNTERS = {
    REGISTRATIONS: (("resource_name",), "Cumulative number of device plugin registrations, including rejected ones."),
    f"{ENDPOINT}requests_total": (_VERSION, "Number of requests to the PodResources endpoint."),
    **{
        f"{ENDPOINT}requests_{key}": (_VERSION, f"Number of PodResources {name} requests.")
        for key, name in _METHODS.items()
    },
    **{
        f"{ENDPOINT}errors_{key}": (_VERSION, f"Number of PodResources {name} requests that failed.")
        for key, name in _METHODS.items()
    },
}


class DevicePluginMetrics(Collector):
    """Implements ``plugins.manager.PluginMetrics``; a metric appears with its first value."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = Counters(_COUNTERS)
        self._durations = Histogram(
            ALLOCATIONS,
            "Duration in seconds of device plugin Allocate calls, including failed ones.",
            ["resource_name"],
            buckets=BUCKETS,
            registry=None,
        )
        self._resources: set[str] = set()
        registry.register(self)

    def count_registration(self, resource: str) -> None:
        self._counters.add({(REGISTRATIONS, self._label(resource)): 1})

    def observe_allocation(self, resource: str, seconds: float) -> None:
        self._durations.labels(self._label(resource)).observe(seconds)

    def count_request(self, method: str) -> None:
        for name in ("requests_total", f"requests_{method}"):
            self._counters.add({(f"{ENDPOINT}{name}", API_VERSION): 1})

    def count_error(self, method: str) -> None:
        self._counters.add({(f"{ENDPOINT}errors_{method}", API_VERSION): 1})

    def collect(self) -> Iterator[Metric]:
        yield from self._counters.collect()
        yield from (family for family in self._durations.collect() if family.samples)

    def _label(self, resource: str) -> str:
        if resource not in self._resources and len(self._resources) >= MAX_RESOURCES:
            return OTHER
        self._resources.add(resource)
        return resource
