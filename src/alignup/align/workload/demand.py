"""What a pod asks for: of the fit check in totals, of the CPU, memory and device providers in plain ints.

One rule runs through all of it (:func:`aggregate`). Containers run side by side, and sidecars beside them, so their
amounts add up; ordinary init containers run one after the other before that, each beside the sidecars already started.
What counts is the larger of the two. Resources of the pod as a whole then replace what its containers come to, and
overhead is added last. The providers heed different parts of this, and each function says which.

``pod_level_managers`` is the feature gate PodLevelResourceManagers: with it on, a pod with resources of its own is
given those as one piece, and only containers that are Guaranteed by themselves get a share of their own.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from alignup.align.errors import ProviderError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, QoS, Resources, names
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

Amount = TypeVar("Amount", int, Quantity)


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What the fit check compares with the free part of a host: thousandths of a CPU, bytes, pieces; never negative."""

    milli_cpu: int
    memory: int
    ephemeral_storage: int
    scalars: Mapping[str, int]


def aggregate(pod: Pod, amounts: Callable[[Container], Mapping[str, Amount]]) -> dict[str, Amount]:
    """The most that *pod*'s containers need at any one time; a resource appears if any of them names it."""
    together: dict[str, Amount] = {}
    for container in pod.containers:
        _add(together, amounts(container))
    sidecars: dict[str, Amount] = {}
    starting: dict[str, Amount] = {}
    for container in pod.init:
        own = amounts(container)
        if container.restartable:
            _add(together, own)
            _add(sidecars, own)
            _raise(starting, sidecars)
        else:
            beside = dict(own)
            _add(beside, sidecars)
            _raise(starting, beside)
    _raise(together, starting)
    return together


def requests(pod: Pod, *, pod_level: bool = True, overhead: bool = True) -> dict[str, Quantity]:
    """The requests *pod* comes to; optionally without its own resources, or without overhead."""
    total = aggregate(pod, _requests)
    if pod_level:
        total |= pod_level_amounts(pod.resources.requests)
    if overhead:
        _add(total, pod.overhead)
    return total


def limits(pod: Pod, *, pod_level: bool = True, overhead: bool = True) -> dict[str, Quantity]:
    """The limits *pod* comes to; overhead raises a limit but never makes one."""
    total = aggregate(pod, _limits)
    if pod_level:
        total |= pod_level_amounts(pod.resources.limits)
    if overhead:
        limited = {name: amount for name, amount in total.items() if not amount.is_zero}
        _add(total, {name: amount for name, amount in pod.overhead.items() if name in limited})
    return total


def pod_level_amounts(amounts: Amounts) -> Amounts:
    """The amounts a pod as a whole can speak for."""
    return {name: amount for name, amount in amounts.items() if names.is_pod_level(name)}


def fit_request(pod: Pod) -> FitRequest:
    """What a host must have free for *pod*: requests with everything; names the check does not know are left out."""
    return _fit_request(requests(pod))


def fit_used(pod: Pod) -> FitRequest:
    """What a running *pod* takes of its host: the most of what it asks for, was allocated and has in force.

    What a container's status does not say is taken from the step before: in force from allocated, allocated from asked
    for. A pod resized to what it can never have counts as asking for nothing.
    """
    if not pod.statuses and not pod.resize_infeasible:
        return fit_request(pod)
    unsaid = ContainerStatus()

    def asked(container: Container) -> Amounts:
        return {} if pod.resize_infeasible else container.resources.requests

    def allocated(container: Container) -> Amounts:
        return pod.statuses.get(container.name, unsaid).allocated or asked(container)

    def actual(container: Container) -> Amounts:
        return pod.statuses.get(container.name, unsaid).actual or allocated(container)

    total = aggregate(pod, asked)
    _raise(total, aggregate(pod, allocated))
    _raise(total, aggregate(pod, actual))
    total |= pod_level_amounts(pod.resources.requests)
    _add(total, pod.overhead)
    return _fit_request(total)


def _fit_request(total: Amounts) -> FitRequest:
    return FitRequest(
        milli_cpu=max(0, total[CPU].milli()) if CPU in total else 0,
        memory=_pieces(total, MEMORY),
        ephemeral_storage=_pieces(total, EPHEMERAL_STORAGE),
        scalars={name: _pieces(total, name) for name in total if names.is_scalar(name)},
    )


def container_cpus(pod: Pod, container: Container, *, pod_level_managers: bool = False) -> int:
    """The exclusive CPUs of one container; 0 when it shares the others' pool."""
    if pod.qos is not QoS.GUARANTEED:
        return 0
    if _as_one(pod, managed=pod_level_managers) and container.resources.qos is not QoS.GUARANTEED:
        return 0
    return container.resources.whole_cpus


def pod_cpus(pod: Pod, *, pod_level_managers: bool = False) -> int:
    """The exclusive CPUs of a whole pod: container by container, so a fraction counts nothing; never overhead."""
    if pod.qos is not QoS.GUARANTEED:
        return 0
    if _as_one(pod, managed=pod_level_managers):
        return pod.resources.whole_cpus
    return aggregate(pod, _whole_cpus).get(CPU, 0)


def container_memory(pod: Pod, container: Container, *, pod_level_managers: bool = False) -> Mapping[str, int]:
    """The bytes of memory and of each huge-page size one container requests, whatever its QoS class."""
    if _as_one(pod, managed=pod_level_managers) and container.resources.qos is not QoS.GUARANTEED:
        return {}
    return _bytes(container.resources)


def pod_memory(pod: Pod, *, pod_level_managers: bool = False) -> dict[str, int]:
    """The bytes of a whole pod; what only init containers and sidecars name is left out, as the kubelet does."""
    if _as_one(pod, managed=pod_level_managers):
        return {name: size for name, size in _bytes(pod.resources).items() if size > 0}
    total = aggregate(pod, _container_bytes)
    named = {name for container in pod.containers for name in container.resources.requests}
    return {name: size for name, size in total.items() if name in named}


def container_devices(container: Container, resources: Collection[str]) -> dict[str, int]:
    """How many devices of each of *resources* one container is limited to."""
    return {name: amount.value() for name, amount in container.resources.limits.items() if name in resources}


def pod_devices(pod: Pod, resources: Collection[str]) -> dict[str, int]:
    """How many devices of each of *resources* a whole pod is limited to; never overhead."""
    total = limits(pod, overhead=False)
    return {name: amount.value() for name, amount in total.items() if name in resources}


def _as_one(pod: Pod, *, managed: bool) -> bool:
    """Whether the pod's own resources are given out as one piece."""
    return managed and pod.has_pod_level_resources


def _requests(container: Container) -> Amounts:
    return container.resources.requests


def _limits(container: Container) -> Amounts:
    return container.resources.limits


def _whole_cpus(container: Container) -> dict[str, int]:
    return {CPU: container.resources.whole_cpus}


def _container_bytes(container: Container) -> Mapping[str, int]:
    return _bytes(container.resources)


def _bytes(resources: Resources) -> Mapping[str, int]:
    """The amounts the memory provider deals in; it takes only those written as whole bytes."""
    sizes = resources.memory
    if sizes is None:
        raise ProviderError("[memorymanager] failed to represent quantity as int64")
    return sizes


def _pieces(amounts: Amounts, name: str) -> int:
    return max(0, amounts[name].value()) if name in amounts else 0


def _add(total: dict[str, Amount], more: Mapping[str, Amount]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise(total: dict[str, Amount], floor: Mapping[str, Amount]) -> None:
    """Make *total* at least *floor*."""
    for name, amount in floor.items():
        if name not in total or amount > total[name]:
            total[name] = amount
