"""The fit check: whether a host has enough resources for a pod, as totals. The last step of an admission.

An extended resource unknown to the host rejects no pod, while a known one with capacity 0 does: Kubernetes leaves the
former to the cluster's scheduler. The kubelet preempts other pods for a critical one. This package preempts none: such
a pod is rejected like any other, with the kubelet's special message only if even preemption would not help.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from alignup.align.quantity import Quantity
from alignup.align.reason_codes import OUT_OF, POD_OS, POD_OS_SELECTOR, UNEXPECTED_ADMISSION
from alignup.align.release import ClaimRule
from alignup.align.workload import Pod, demand, names
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.align.workload.validation import MIRROR_ANNOTATION, SOURCE_ANNOTATION

PODS = "pods"  #: the resource name of the limit on the number of pods

_OS = "linux"
_OS_LABEL = "kubernetes.io/os"
_SYSTEM_CRITICAL_PRIORITY = 2_000_000_000

_NOTHING_TO_EVICT = (
    "Unexpected error while attempting to recover from admission failure: preemption: "
    "error finding a set of pods to preempt: no set of running pods found to reclaim resources: "
)
_NO_SCALARS: Mapping[str, int] = {}


class NodeAllocatable(NamedTuple):
    milli_cpu: int = 0
    memory: int = 0
    ephemeral_storage: int = 0
    pods: int = 0
    scalars: Mapping[str, int] = _NO_SCALARS  #: by resource; 0: known, but the host has none
    claim_rule: ClaimRule = ClaimRule.COUNTED

    def with_devices(self, devices: Mapping[str, int]) -> "NodeAllocatable":
        return self._replace(scalars={**self.scalars, **devices}) if devices else self


class UsedResources(NamedTuple):
    milli_cpu: int = 0
    memory: int = 0
    ephemeral_storage: int = 0
    pods: int = 0
    scalars: Mapping[str, int] = _NO_SCALARS  #: by resource, without zeros

    @classmethod
    def of(cls, pods: Collection[FitRequest]) -> "UsedResources":
        if not pods:
            return cls()
        milli_cpu, memory, ephemeral_storage, scalars = zip(*pods, strict=True)
        totals: dict[str, int] = {}
        for name, amount in chain.from_iterable([amounts.items() for amounts in scalars if amounts]):
            totals[name] = totals.get(name, 0) + amount
        amounts = {name: amount for name, amount in totals.items() if amount}
        return cls(sum(milli_cpu), sum(memory), sum(ephemeral_storage), len(pods), amounts or _NO_SCALARS)

    def plus(self, pod: FitRequest, *, by: int = 1) -> "UsedResources":
        scalars = self.scalars
        if pod.scalars:
            new_scalars = dict(scalars)
            for name, amount in pod.scalars.items():
                new_scalars[name] = new_scalars.get(name, 0) + by * amount
                if not new_scalars[name]:
                    del new_scalars[name]
            scalars = new_scalars
        return UsedResources(
            self.milli_cpu + by * pod.milli_cpu,
            self.memory + by * pod.memory,
            self.ephemeral_storage + by * pod.ephemeral_storage,
            self.pods + by,
            scalars,
        )


class InsufficientResource(NamedTuple):
    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def missing(self) -> int:
        return self.requested - (self.capacity - self.used)

    @property
    def reason(self) -> str:
        return f"{OUT_OF}{self.resource}"

    @property
    def message(self) -> str:
        numbers = f"requested: {self.requested}, used: {self.used}, capacity: {self.capacity}"
        return f"Node didn't have enough resource: {self.resource}, {numbers}"


class FitFailure(NamedTuple):
    """The reason why a host cannot run a pod: the kubelet's reason and message, and every insufficient resource."""

    reason: str
    message: str
    insufficient: tuple[InsufficientResource, ...] = ()


def check_fit(
    pod: Pod,
    *,
    usage: UsedResources,
    allocatable: NodeAllocatable,
    others: Iterable[Pod] = (),
    request: FitRequest | None = None,
) -> FitFailure | None:
    """Return why *pod* does not fit beside the *others* and their *usage*; ``None`` if it fits.

    *others* are iterated only if a critical pod does not fit. *request* is the pod's request if it is known already.
    """
    if pod.labels.get(_OS_LABEL, _OS) != _OS:
        message = f"Failed to admit pod as the `{_OS_LABEL}` label doesn't match node label"
        return FitFailure(POD_OS_SELECTOR, message)
    if pod.os and pod.os != _OS:
        return FitFailure(POD_OS, "Failed to admit pod as the OS field doesn't match node OS")
    request = request or demand.fit_request(pod)
    if request.scalars:
        request = effective_request(pod, allocatable, request=request)
    insufficient = insufficient_resources(request, usage=usage, allocatable=allocatable)
    if not insufficient:
        return None
    if is_critical(pod) and (
        missing_amounts := still_missing(insufficient, (other for other in others if may_preempt(pod, other)))
    ):
        resources = "".join(f"(res: {name}, q: {amount}), " for name, amount in missing_amounts.items())
        return FitFailure(UNEXPECTED_ADMISSION, f"{_NOTHING_TO_EVICT}[{resources}]", insufficient)
    return FitFailure(insufficient[0].reason, insufficient[0].message, insufficient)


def effective_request(pod: Pod, allocatable: NodeAllocatable, *, request: FitRequest | None = None) -> FitRequest:
    """Return the request of *pod* on this host; of extended resources unknown to the host, only overhead counts."""
    request = request or demand.fit_request(pod)
    rule = allocatable.claim_rule
    if rule is ClaimRule.UNKNOWN_IGNORED:
        return _only(request, allocatable.scalars)
    if rule is ClaimRule.ABSENT_IGNORED:
        return _only(request, [name for name, amount in allocatable.scalars.items() if amount > 0])
    if rule is ClaimRule.CLAIMED_IGNORED and (pod.claimed_requests or pod.class_resources):
        claimed_requests = demand.claimed_requests(pod, allocatable.scalars)
        request = demand.fit_request(pod.without_requests(claimed_requests)) if claimed_requests else request
    if request.scalars.keys() <= allocatable.scalars.keys():
        return request
    unknown_names = [name for name in request.scalars if name not in allocatable.scalars and names.is_extended(name)]
    scalars = dict(request.scalars)
    for name in unknown_names:
        del scalars[name]
        if name in pod.overhead:
            scalars[name] = max(0, pod.overhead[name].value())
    return request._replace(scalars=scalars)


def _only(request: FitRequest, names: Collection[str]) -> FitRequest:
    return request._replace(scalars={name: amount for name, amount in request.scalars.items() if name in names})


def insufficient_resources(
    request: FitRequest, *, usage: UsedResources, allocatable: NodeAllocatable
) -> tuple[InsufficientResource, ...]:
    """Return everything that does not fit, in the kubelet's order; scalars, which it visits at random, are sorted.

    A request for none of a resource fits even if the resource is overused.
    """
    comparisons = [
        (PODS, 1, usage.pods, allocatable.pods),
        (CPU, request.milli_cpu, usage.milli_cpu, allocatable.milli_cpu),
        (MEMORY, request.memory, usage.memory, allocatable.memory),
        (EPHEMERAL_STORAGE, request.ephemeral_storage, usage.ephemeral_storage, allocatable.ephemeral_storage),
    ]
    for name, amount in sorted(request.scalars.items()):
        comparisons.append((name, amount, usage.scalars.get(name, 0), allocatable.scalars.get(name, 0)))
    insufficient = []
    for name, amount, in_use, capacity in comparisons:
        if amount > capacity - in_use and amount > 0:
            insufficient.append(InsufficientResource(name, amount, in_use, capacity))
    return tuple(insufficient)


def is_critical(pod: Pod) -> bool:
    """Return whether the kubelet preempts pods for this one: static, mirror, or of system priority."""
    static = pod.annotations.get(SOURCE_ANNOTATION, "api") != "api"
    critical = pod.priority is not None and pod.priority >= _SYSTEM_CRITICAL_PRIORITY
    return static or critical or MIRROR_ANNOTATION in pod.annotations


def may_preempt(pod: Pod, other: Pod) -> bool:
    if not is_critical(other):
        return True
    return pod.priority is not None and other.priority is not None and pod.priority > other.priority


def still_missing(insufficient: Iterable[InsufficientResource], evicted_pods: Iterable[Pod]) -> dict[str, int]:
    """Return what would still be missing, by resource, after evicting these pods.

    The kubelet estimates what that frees, which can be less than the pods use.
    """
    missing_amounts = {short.resource: short.missing for short in insufficient}
    for pod in evicted_pods:
        if pod.has_pod_level_resources:
            amounts = demand.pod_level_amounts(pod.resources.requests)
        else:
            amounts = demand.requests(pod, pod_level=False, overhead=False)
        for name in missing_amounts:
            if name == PODS:
                missing_amounts[name] -= 1
            elif name in amounts and not amounts[name].is_zero:
                total = amounts[name] + pod.overhead.get(name, Quantity.ZERO)
                missing_amounts[name] -= total.milli() if name == CPU else total.value()
    return {name: amount for name, amount in missing_amounts.items() if amount > 0}
