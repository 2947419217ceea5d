"""The metrics of the node observer, and its HTTP endpoints: ``/healthz``, ``/readyz`` and ``/metrics``."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.applications import Starlette

from alignup.observe.published_objects import NumaAmounts
from alignup.web.metrics import health_app

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  #: seconds


class ObserverMetrics:
    """Metrics of what the observer of node *host* does and sees."""

    def __init__(self, host: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._host = host
        name = "alignup_observer"
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.observations = counter(f"{name}_observations", "How often the host was read, by result.", ["result"])
        self.writes = counter(f"{name}_writes", "Writes to the API server, by result.", ["result"])
        delay = "Time from the first notice of a change until it is written."
        self._delays = Histogram(f"{name}_publish_delay_seconds", delay, buckets=_BUCKETS, registry=self.registry)
        self._gaps = gauge(f"{name}_gaps", "What no source contains.")
        self._contradictions = gauge(f"{name}_contradictions", "Where the sources about this host disagree.")
        self._bytes = gauge(f"{name}_object_bytes", "Size of the published objects.", ["resource"])
        self._resources = gauge(
            "alignup_numa_node_resources",
            "Resources of each NUMA node in base units: allocatable, and available to new pods.",
            ["node", "numa_node", "resource", "state"],
        )
        self._shown: dict[tuple[str, str, str, str], Gauge] = {}  #: of the resources, by their labels
        for result in ("ok", "unsettled", "error"):
            self.observations.labels(result)
        for result in ("ok", "error"):
            self.writes.labels(result)

    def published(self, *, seconds: float | None, sizes: dict[str, int]) -> None:
        self.writes.labels("ok").inc()
        if seconds is not None:
            self._delays.observe(seconds)
        for resource, size in sizes.items():
            self._bytes.labels(resource).set(size)

    def state(self, *, gaps: int, contradictions: int, amounts: NumaAmounts) -> None:
        """Set what the last observation shows."""
        self._gaps.set(gaps)
        self._contradictions.set(contradictions)
        values = {
            (self._host, str(node), resource.resource, state): value
            for node, resources in amounts.items()
            for resource in resources
            for state, value in (("allocatable", resource.allocatable), ("available", resource.available))
        }
        if values.keys() != self._shown.keys():
            self._resources.clear()
            self._shown = {labels: self._resources.labels(*labels) for labels in values}
        for labels, value in values.items():
            self._shown[labels].set(value)


def observer_app(
    metrics: ObserverMetrics, *, alive: Callable[[], bool], problems: Callable[[], tuple[str, ...]]
) -> Starlette:
    """Build the application; *problems* says why the observer is not ready."""

    def liveness() -> tuple[str, ...]:
        return () if alive() else ("the observer does not check the host any more",)

    return health_app(metrics.registry, readiness=problems, liveness=liveness)
