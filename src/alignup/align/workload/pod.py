"""What is to be placed: a pod, its containers, the resources they name, and the QoS class that follows.

A list of amounts that is missing and one that is empty say the same, so an empty mapping stands for both. A pod here
is only a reading of a document: ``align.workload.validation`` makes of it what the API server or the kubelet would, and
``align.workload.demand`` says what it then asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from alignup.align.caching import lock_free_cached_property
from alignup.align.quantity import Quantity
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY

Amounts = Mapping[str, Quantity]  #: resource → how much of it

_WRAP = 1 << 64  #: Kubernetes counts in 64-bit integers that wrap around


class QoS(StrEnum):
    """How firmly a pod's resources are promised; only Guaranteed pods are aligned."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True)
class Resources:
    """What one container, or the pod as a whole, asks for and is held to."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    claims: tuple[str, ...] = ()  #: names of the pod's resource claims

    @lock_free_cached_property
    def qos(self) -> QoS:
        """The class these resources alone would give: what cpu and memory agree on, or Burstable."""
        cpu, memory = self._promise(CPU), self._promise(MEMORY)
        return cpu if cpu is memory else QoS.BURSTABLE

    def _promise(self, name: str) -> QoS:
        request, limit = self.requests.get(name), self.limits.get(name)
        asked = request is not None and not request.is_zero
        capped = limit is not None and not limit.is_zero
        if not asked and not capped:
            return QoS.BEST_EFFORT
        return QoS.GUARANTEED if asked and request == limit else QoS.BURSTABLE

    @lock_free_cached_property
    def whole_cpus(self) -> int:
        """The CPU request, if it is a whole number of CPUs; else 0."""
        request = self.requests.get(CPU)
        if request is None:
            return 0
        value = request.value()
        return 0 if (value * 1000 - request.milli()) % _WRAP else value

    @lock_free_cached_property
    def memory(self) -> Mapping[str, int] | None:
        """The bytes of memory and of each huge-page size requested; ``None`` when one is not written as whole bytes."""
        sizes = {}
        for name, amount in self.requests.items():
            if name == MEMORY or names.is_hugepages(name):
                size = amount.as_int64()
                if size is None:
                    return None
                sizes[name] = size
        return sizes


@dataclass(frozen=True, slots=True)
class Container:
    """One container; ``restartable`` tells a sidecar from an ordinary init container and means nothing elsewhere."""

    name: str
    resources: Resources = field(default_factory=Resources)
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The requests a running container was allocated, and those in force; empty: not said."""

    allocated: Amounts = field(default_factory=dict)
    actual: Amounts = field(default_factory=dict)


class Manifest(Protocol):
    """What the pod runs; decisions only carry it."""

    @property
    def text(self) -> str:
        """Metadata and spec as JSON."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod, as far as alignment, the fit check and people are concerned."""

    name: str
    namespace: str = "default"
    uid: str = ""
    init: tuple[Container, ...] = ()  #: in the order they run, sidecars among them
    containers: tuple[Container, ...] = ()
    resources: Resources = field(default_factory=Resources)  #: of the pod as a whole
    overhead: Amounts = field(default_factory=dict)  #: what running the pod costs beyond its containers
    claims: tuple[str, ...] = ()  #: names of its resource claims
    recorded_qos: QoS | None = None  #: from the pod's status; ``None``: not recorded
    statuses: Mapping[str, ContainerStatus] = field(default_factory=dict)  #: container → its status, where there is one
    resize_infeasible: bool = False  #: from the status: what the pod now asks for can never be had
    priority: int | None = None
    os: str = ""  #: the operating system it is made for; empty: not said
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    manifest: Manifest | None = field(default=None, compare=False, repr=False)  #: ``None``: the pod does not run here

    @lock_free_cached_property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers in the order they are admitted: init containers first."""
        return self.init + self.containers

    @lock_free_cached_property
    def has_pod_level_resources(self) -> bool:
        """Whether the pod as a whole asks for, or is held to, anything it may."""
        own = self.resources
        return any(map(names.is_pod_level, own.requests)) or any(map(names.is_pod_level, own.limits))

    @lock_free_cached_property
    def qos(self) -> QoS:
        """The class recorded in the status, else the one that follows from the resources."""
        return self.recorded_qos or self.computed_qos

    @lock_free_cached_property
    def computed_qos(self) -> QoS:
        """What the pod as a whole says, if it says anything; else what all containers agree on, or Burstable."""
        if self.has_pod_level_resources:
            return self.resources.qos
        classes = {container.resources.qos for container in self.all_containers} or {QoS.BEST_EFFORT}
        return classes.pop() if len(classes) == 1 else QoS.BURSTABLE
