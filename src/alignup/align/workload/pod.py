"""Pods, containers, their resources and QoS class, as parsed: ``validation`` applies defaults and checks.

A missing list of amounts and an empty one mean the same, so both are an empty mapping.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import Self

from alignup.align.quantity import Quantity, read_amounts
from alignup.align.workload import names
from alignup.align.workload.names import CPU, HUGEPAGES, MEMORY

Amounts = Mapping[str, Quantity]  #: by resource

_WRAP = 1 << 64  #: Kubernetes uses 64-bit integers, which wrap around


class QoS(StrEnum):
    """The QoS class; CPUs and memory are aligned only for Guaranteed pods."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True)
class Resources:
    """What a container or pod requests; an amount may be given as text, such as ``{"cpu": "4"}``."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    #: names of the pod's resource claims; ``gpus/first`` for the devices of request ``first`` of claim ``gpus`` only
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:  # the check of what decoders parsed is as cheap as possible
            for amount in self.requests.values():
                if type(amount) is not Quantity:
                    read_amounts(self, "requests")
                    break
            for amount in self.limits.values():
                if type(amount) is not Quantity:
                    read_amounts(self, "limits")
                    break
        except AttributeError:
            read_amounts(self, "requests")
            read_amounts(self, "limits")

    @property
    def claim_names(self) -> tuple[str, ...]:
        """The names of the claims, each once."""
        return tuple(dict.fromkeys(claim.partition("/")[0] for claim in self.claims))

    @cached_property
    def qos(self) -> QoS:
        """The class of these resources alone: the class of cpu and memory if both have the same, else Burstable."""
        classes = []
        for name in (CPU, MEMORY):
            request, limit = self.requests.get(name), self.limits.get(name)
            if request is not None and request.unscaled:
                classes.append(QoS.GUARANTEED if request is limit or request == limit else QoS.BURSTABLE)
            else:
                classes.append(QoS.BEST_EFFORT if limit is None or not limit.unscaled else QoS.BURSTABLE)
        return classes[0] if classes[0] is classes[1] else QoS.BURSTABLE

    @cached_property
    def whole_cpus(self) -> int:
        """The CPU request, if it is a whole number of CPUs; else 0."""
        request = self.requests.get(CPU)
        if request is None:
            return 0
        value = request.value()
        return 0 if (value * 1000 - request.milli()) % _WRAP else value

    @cached_property
    def memory(self) -> Mapping[str, int] | None:
        """The requested bytes of memory and of each huge page size; ``None`` if one is not a whole number."""
        sizes = {}
        for name, amount in self.requests.items():
            if name == MEMORY or name.startswith(HUGEPAGES):
                size = amount.as_int64()
                if size is None:
                    return None
                sizes[name] = size
        return sizes


@dataclass(frozen=True, slots=True)
class Container:
    """One container; ``restartable`` marks a sidecar among init containers and is ignored elsewhere."""

    name: str
    resources: Resources = field(default_factory=Resources)
    restartable: bool = False
    unknown_restart_policy: str | None = None  #: a restart policy that does not exist (also ""); validation rejects it


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The allocated and the actual requests of a running container; empty: unknown."""

    allocated: Amounts = field(default_factory=dict)
    actual: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One entry of a pod's resource claims."""

    name: str  #: in the pod
    claim: str = ""  #: the name of the ResourceClaim; empty: unknown, or not created yet
    template: str = ""  #: the name of the ResourceClaimTemplate that it is made from


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod, with the fields that alignment, the fit check and messages need."""

    name: str
    namespace: str = "default"
    uid: str = ""
    init: tuple[Container, ...] = ()  #: in the order they run, including sidecars
    containers: tuple[Container, ...] = ()
    resources: Resources = field(default_factory=Resources)  #: pod-level resources
    overhead: Amounts = field(default_factory=dict)  #: of running the pod, beyond its containers
    claims: tuple[PodClaim, ...] = ()
    #: (container, extended resource) requests that a ResourceClaim serves, not a device plugin; from the status, which
    #: the scheduler writes before it binds the pod
    claimed_requests: tuple[tuple[str, str], ...] = ()
    extended_claim: str = ""  #: the name of the ResourceClaim that serves them
    #: extended resources that a DeviceClass of the cluster offers, sorted; a host without such devices of a plugin
    #: serves them by a claim
    class_resources: tuple[str, ...] = ()
    recorded_qos: QoS | None = None  #: from the pod's status; ``None``: unknown
    statuses: Mapping[str, ContainerStatus] = field(default_factory=dict)  #: by container; not every container has one
    resize_infeasible: bool = False  #: from the status: the requested resize is impossible
    priority: int | None = None
    os: str = ""  #: the operating system; empty: any
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.overhead:
            read_amounts(self, "overhead")

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers in the order of admission: init containers first."""
        return self.init + self.containers

    @cached_property
    def ordinary_init(self) -> tuple[str, ...]:
        """The names of the ordinary init containers: each ends before the next container starts."""
        return tuple([container.name for container in self.init if not container.restartable]) if self.init else ()

    @cached_property
    def _init_positions(self) -> Mapping[str, int]:
        """The number of ordinary init containers before each init container."""
        counts = accumulate((not container.restartable for container in self.init), initial=0)
        return {container.name: count for container, count in zip(self.init, counts, strict=False)}

    def is_ordinary_init(self, container: str) -> bool:
        """Return whether *container* is an init container that ends before the next one starts."""
        position = self._init_positions.get(container) if self.init else None
        return position is not None and self.ordinary_init[position : position + 1] == (container,)

    def ended_before(self, container: str) -> tuple[str, ...]:
        """Return the ordinary init containers that have ended when *container* starts."""
        return self.ordinary_init[: self._init_positions.get(container)] if self.init else ()

    @cached_property
    def request_key(self) -> str:
        """Equal for pods with equal requests: on one ledger, the same decision applies to all such pods."""
        return repr(replace(self, name="", namespace="", uid="", labels={}))

    @cached_property
    def _amounts(self) -> tuple[Quantity, ...]:
        lists = [self.overhead, self.resources.requests, self.resources.limits]
        for container in self.all_containers:
            lists += (container.resources.requests, container.resources.limits)
        return tuple([amount for amounts in lists for amount in amounts.values()])

    @cached_property
    def depends_on_release(self) -> bool:
        """Whether the pod has amounts that releases of Kubernetes may evaluate differently."""
        return any(amount.depends_on_release for amount in self._amounts)

    @cached_property
    def is_consistent(self) -> bool:
        """Whether ledgers can hold the pod: each container has a name of its own, and no amount is negative."""
        containers = self.all_containers
        for amount in self._amounts:
            if amount.unscaled < 0:
                return False
        return len(containers) == 1 or len({container.name for container in containers}) == len(containers)

    def without_requests(self, requests: Collection[tuple[str, str]]) -> Self:
        """Return the pod without these (container, resource) requests and limits."""

        def strip(container: Container) -> Container:
            requests_left, limits_left = (
                {name: amount for name, amount in amounts.items() if (container.name, name) not in requests}
                for amounts in (container.resources.requests, container.resources.limits)
            )
            resources = replace(container.resources, requests=requests_left, limits=limits_left)
            return replace(container, resources=resources)

        return replace(self, init=tuple(map(strip, self.init)), containers=tuple(map(strip, self.containers)))

    def without_pod_level_resources(self) -> Self:
        """Return the pod as it is without feature gate PodLevelResources.

        Neither the kubelet sees the field nor the API server, which records the QoS class.
        """
        return replace(self, resources=Resources(), recorded_qos=None)

    @cached_property
    def uses_claims(self) -> bool:
        """Whether it has resource claims, or extended resources that a claim can serve."""
        if self.claims or self.claimed_requests or self.class_resources:
            return True
        resource_names = [name for container in self.all_containers for name in container.resources.requests]
        return any(name.startswith(names.DEVICE_CLASS_PREFIX) for name in resource_names)

    @property
    def has_pod_level_resources(self) -> bool:
        """Whether CPU, memory or huge pages are requested for the pod as a whole."""
        resources = self.resources
        if not resources.requests and not resources.limits:
            return False
        return any(map(names.is_pod_level, resources.requests)) or any(map(names.is_pod_level, resources.limits))

    @cached_property
    def qos(self) -> QoS:
        """The class from the status.

        Else that of the pod-level resources if there are any, else that of all containers, or Burstable if mixed.
        """
        if self.recorded_qos:
            return self.recorded_qos
        if self.has_pod_level_resources:
            return self.resources.qos
        common: QoS | None = None
        for container in self.all_containers:
            qos = container.resources.qos
            if common is not None and qos is not common:
                return QoS.BURSTABLE
            common = qos
        return common or QoS.BEST_EFFORT

    @property
    def computed_qos(self) -> QoS:
        """The class without that of the status."""
        return replace(self, recorded_qos=None).qos
