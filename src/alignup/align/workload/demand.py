"""The requests of a pod: totals for the fit check, and plain ints for the CPU, memory and device providers.

One rule applies throughout (:func:`aggregate`). Containers and sidecars run side by side, so their amounts add up.
Ordinary init containers run one after the other before that, each beside the sidecars started so far. The larger of the
two counts. Pod-level resources then replace the result, and overhead is added last. The providers use different parts
of this; each function says which.

``pod_level_managers`` is the feature gate PodLevelResourceManagers: with it, pod-level resources are allocated as a
whole, and only containers that are Guaranteed themselves get a separate share.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

from alignup.align.errors import ProviderError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, QoS, Resources, names
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

Amount = TypeVar("Amount", int, Quantity)


class FitRequest(NamedTuple):
    """A request as the fit check compares it: millicores, bytes and counts, none of them negative."""

    milli_cpu: int
    memory: int
    ephemeral_storage: int
    scalars: Mapping[str, int]


def aggregate(pod: Pod, amounts: Callable[[Container], Mapping[str, Amount]]) -> dict[str, Amount]:
    """Return the most that the containers of *pod* need at any time, for every resource that a container names."""
    if len(pod.containers) == 1 and not pod.init:
        return dict(amounts(pod.containers[0]))
    together: dict[str, Amount] = {}
    for container in pod.containers:
        _add(together, amounts(container))
    sidecars: dict[str, Amount] = {}
    amounts_at_start: dict[str, Amount] = {}
    for container in pod.init:
        requests = amounts(container)
        if container.restartable:
            _add(together, requests)
            _add(sidecars, requests)
            _raise_to(amounts_at_start, {name: sidecars[name] for name in requests})
        else:
            beside = {
                name: amount + sidecars[name] if name in sidecars else amount for name, amount in requests.items()
            }
            _raise_to(amounts_at_start, beside)
    _raise_to(together, amounts_at_start)
    return together


def requests(pod: Pod, *, pod_level: bool = True, overhead: bool = True) -> dict[str, Quantity]:
    """Return the total requests of *pod*, optionally without pod-level resources or overhead."""
    total = aggregate(pod, lambda container: container.resources.requests)
    if pod_level and pod.has_pod_level_resources:
        total |= pod_level_amounts(pod.resources.requests)
    if overhead:
        _add(total, pod.overhead)
    return total


def limits(pod: Pod, *, pod_level: bool = True, overhead: bool = True) -> dict[str, Quantity]:
    """Return the total limits of *pod*; overhead raises a limit but never creates one."""
    total = aggregate(pod, lambda container: container.resources.limits)
    if pod_level and pod.has_pod_level_resources:
        total |= pod_level_amounts(pod.resources.limits)
    if overhead and pod.overhead:
        limited_amounts = {name: amount for name, amount in total.items() if not amount.is_zero}
        _add(total, {name: amount for name, amount in pod.overhead.items() if name in limited_amounts})
    return total


def pod_level_amounts(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if names.is_pod_level(name)}


def fit_request(pod: Pod, total: Amounts | None = None) -> FitRequest:
    """Return what a host must have free for *pod*, or for *total*; resources unknown to the fit check are omitted."""
    if total is None:
        simple = len(pod.containers) == 1 and not (pod.init or pod.overhead or pod.has_pod_level_resources)
        total = pod.containers[0].resources.requests if simple else requests(pod)
    milli_cpu = memory = ephemeral_storage = 0
    scalars: dict[str, int] = {}
    for name, amount in total.items():
        if name == CPU:
            milli_cpu = max(0, amount.milli())
        elif name == MEMORY:
            memory = max(0, amount.value())
        elif name == EPHEMERAL_STORAGE:
            ephemeral_storage = max(0, amount.value())
        elif names.is_scalar(name):
            scalars[name] = max(0, amount.value())
    return FitRequest(milli_cpu, memory, ephemeral_storage, scalars)


def fit_used(pod: Pod) -> FitRequest:
    """Return what a running *pod* uses: the maximum of its requested, allocated and actual resources.

    A missing allocated amount is the requested one, a missing actual amount the allocated one. A pod whose resize is
    infeasible counts as requesting nothing.
    """
    if not pod.statuses and not pod.resize_infeasible:
        return fit_request(pod)
    missing_status = ContainerStatus()

    def requested(container: Container) -> Amounts:
        return {} if pod.resize_infeasible else container.resources.requests

    def allocated(container: Container) -> Amounts:
        return pod.statuses.get(container.name, missing_status).allocated or requested(container)

    def actual(container: Container) -> Amounts:
        return pod.statuses.get(container.name, missing_status).actual or allocated(container)

    total = aggregate(pod, requested)
    _raise_to(total, aggregate(pod, allocated))
    _raise_to(total, aggregate(pod, actual))
    total |= pod_level_amounts(pod.resources.requests)
    _add(total, pod.overhead)
    return fit_request(pod, total)


def exclusive_cpus(pod: Pod, container: Container | None, *, pod_level_managers: bool = False) -> int:
    """Return the exclusive CPUs of a container, or of a whole pod (``None``) without overhead and fractions."""
    if pod.qos is not QoS.GUARANTEED:
        return 0
    if container is not None and not pod.has_pod_level_resources:
        return container.resources.whole_cpus
    whole = pod_level_managers and pod.has_pod_level_resources
    if container is not None:
        return 0 if whole and container.resources.qos is not QoS.GUARANTEED else container.resources.whole_cpus
    if whole:
        return pod.resources.whole_cpus
    return aggregate(pod, lambda container: {CPU: container.resources.whole_cpus}).get(CPU, 0)


def memory(pod: Pod, container: Container | None, *, pod_level_managers: bool = False) -> Mapping[str, int]:
    """Return the requested bytes of memory and huge pages of a container, or of a whole pod (``None``).

    Like in the kubelet, those of a pod are without types that only init containers request.
    """
    if container is not None and not pod.has_pod_level_resources and (sizes := container.resources.memory) is not None:
        return sizes
    whole = pod_level_managers and pod.has_pod_level_resources
    if container is not None:
        return {} if whole and container.resources.qos is not QoS.GUARANTEED else _bytes(container.resources)
    if whole:
        return {name: size for name, size in _bytes(pod.resources).items() if size > 0}
    total = aggregate(pod, lambda container: _bytes(container.resources))
    requested_names = {name for container in pod.containers for name in container.resources.requests}
    return {name: size for name, size in total.items() if name in requested_names}


def devices(pod: Pod, container: Container | None, resources: Collection[str]) -> dict[str, int]:
    """Return the number of devices of each of *resources* in the limits of a container, or of a whole pod (``None``).

    Overhead does not count.
    """
    amounts = limits(pod, overhead=False) if container is None else container.resources.limits
    return {name: amount.value() for name, amount in amounts.items() if name in resources}


def without_claimed(pod: Pod, capacity: Mapping[str, int]) -> Pod:
    """Return *pod* without the extended resources that a ResourceClaim serves on a host with this *capacity*."""
    if not pod.class_resources and not pod.claimed_requests:
        return pod
    return pod.without_requests(claimed_requests(pod, capacity))


def claimed_requests(pod: Pod, capacity: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Return the (container, resource) requests that a ResourceClaim serves on a host with this *capacity*.

    The status of a bound pod has them. Before, the scheduler uses a claim for every resource of a DeviceClass that the
    host has not got from a device plugin.
    """
    if pod.claimed_requests:
        return pod.claimed_requests
    return tuple(
        [
            (container.name, name)
            for container in pod.all_containers
            for name in container.resources.requests
            if name in pod.class_resources and capacity.get(name, 0) <= 0
        ]
    )


def _bytes(resources: Resources) -> Mapping[str, int]:
    """Return the amounts the memory provider manages; it accepts only whole bytes."""
    sizes = resources.memory
    if sizes is None:
        raise ProviderError("[memorymanager] failed to represent quantity as int64")
    return sizes


def _add(total: dict[str, Amount], more: Mapping[str, Amount]) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _raise_to(total: dict[str, Amount], floor: Mapping[str, Amount]) -> None:
    for name, amount in floor.items():
        if name not in total or amount > total[name]:
            total[name] = amount
