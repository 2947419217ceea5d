"""What this package reports to metrics; ``serve`` implements it under the kubelet's metric names."""

from typing import Literal, Protocol

PodResourcesMethod = Literal["list", "get", "get_allocatable"]


class PluginMetrics(Protocol):
    """Counters and durations of device plugins and of the PodResources endpoint."""

    def count_registration(self, resource: str) -> None:
        """Count a registration request, including rejected ones."""

    def observe_allocation(self, resource: str, seconds: float) -> None:
        """Record how long an Allocate call took, including failed ones."""

    def count_request(self, method: PodResourcesMethod) -> None: ...
    def count_error(self, method: PodResourcesMethod) -> None:
        """Count a PodResources request that failed."""
