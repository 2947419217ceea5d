"""A resize of a running pod (``kubectl edit --subresource resize``): what the kubelet does with new requests.

A resize that can never be done there is *infeasible*. One for which the host has not enough left now is *deferred*: the
kubelet tries it again later. Under the static policies of the CPU and the memory manager, a Guaranteed pod cannot be
resized, even if it has no exclusive CPUs.
"""

from enum import StrEnum
from typing import NamedTuple

from alignup.align.cpus.options import CpuPolicy
from alignup.align.fit import check_fit
from alignup.align.host import Host
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.reason_codes import DEFERRED, INFEASIBLE
from alignup.align.workload import Pod, QoS, demand
from alignup.align.workload.names import CPU, MEMORY

_POD_LEVEL_GATE = "InPlacePodLevelResourcesVerticalScaling"


class ResizeOutcome(StrEnum):
    DONE = "done"
    DEFERRED = "deferred"
    INFEASIBLE = "infeasible"


class ResizeVerdict(NamedTuple):
    outcome: ResizeOutcome
    message: str = ""  #: the kubelet's, or the API server's if it refuses the resize

    @property
    def code(self) -> str:
        """The kubelet's reason, for the condition of the pod; empty if the resize is done."""
        return {ResizeOutcome.DEFERRED: DEFERRED, ResizeOutcome.INFEASIBLE: INFEASIBLE}.get(self.outcome, "")

    def describe(self, pod: Pod) -> str:
        """Return a sentence such as ``The resize of pod default/web is deferred: …``."""
        detail = f": {self.message}" if self.message else ""
        return f"The resize of pod {pod.namespace}/{pod.name} is {self.outcome}{detail}"


def decide_resize(host: Host, running_pod: Pod, resized_pod: Pod) -> ResizeVerdict:
    """Return what the kubelet of *host* does when *running_pod*, one of its pods, is to become *resized_pod*."""
    gates = host.settings.gates
    if not gates.on("InPlacePodVerticalScaling"):
        return ResizeVerdict(ResizeOutcome.INFEASIBLE, "InPlacePodVerticalScaling is disabled")
    if running_pod.has_pod_level_resources or resized_pod.has_pod_level_resources:
        if not gates.on("PodLevelResources"):
            running_pod = running_pod.without_pod_level_resources()
            resized_pod = resized_pod.without_pod_level_resources()
        elif not gates.on(_POD_LEVEL_GATE):
            exists = _POD_LEVEL_GATE in gates.release.gates
            message = f"{_POD_LEVEL_GATE} is disabled" if exists else "pods with pod-level resources cannot be resized"
            return ResizeVerdict(ResizeOutcome.INFEASIBLE, message)
    if running_pod.qos is QoS.GUARANTEED and (message := _static_policy(host, running_pod, resized_pod)):
        return ResizeVerdict(ResizeOutcome.INFEASIBLE, message)
    allocatable = host.rules.allocatable
    if allocatable is None:
        return ResizeVerdict(ResizeOutcome.DONE)
    request = demand.fit_request(resized_pod)
    if host.settings.release.checks_capacity_of_resizes:
        for name, amount, capacity in (
            (MEMORY, request.memory, allocatable.memory),
            (CPU, request.milli_cpu, allocatable.milli_cpu),
        ):
            if amount > capacity:
                message = f"Node didn't have enough capacity: {name}, requested: {amount}, capacity: {capacity}"
                return ResizeVerdict(ResizeOutcome.INFEASIBLE, message)
    resident = host.ledger.pods.get(running_pod.uid)
    usage = host.ledger.used if resident is None else host.ledger.used.plus(resident.usage, by=-1)
    others = (admitted_pod.pod for uid, admitted_pod in host.ledger.pods.items() if uid != running_pod.uid)
    devices = host.ledger.devices.allocatable(running_pod.uid)
    failure = check_fit(resized_pod, usage=usage, allocatable=allocatable.with_devices(devices), others=others)
    return ResizeVerdict(ResizeOutcome.DEFERRED, failure.message) if failure else ResizeVerdict(ResizeOutcome.DONE)


def _static_policy(host: Host, running_pod: Pod, resized_pod: Pod) -> str:
    """Return the kubelet's message if a static policy forbids to resize a Guaranteed pod; empty if none does."""
    gates, by_resource = host.settings.gates, host.settings.release.resizes_by_resource
    for resource, static, manager, policy, gate in (
        (CPU, host.cpus.policy is CpuPolicy.STATIC, "CPU", "static", "InPlacePodVerticalScalingExclusiveCPUs"),
        (
            *(MEMORY, host.memory.settings.policy is MemoryPolicy.STATIC, "Memory", "Static"),
            # The first release with resizes has one gate for both.
            "InPlacePodVerticalScalingExclusiveMemory" if by_resource else "InPlacePodVerticalScalingExclusiveCPUs",
        ),
    ):
        if not static or gates.on(gate):
            continue
        if not by_resource:
            return f"Resize is infeasible for Guaranteed Pods alongside {manager} Manager static policy"
        if _is_changed(running_pod, resized_pod, resource):
            return f'Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy "{policy}"'
    return ""


def _is_changed(running_pod: Pod, resized_pod: Pod, resource: str) -> bool:
    """Return whether a container or sidecar requests another amount; ordinary init containers have ended."""
    old_requests = {
        container.name: container.resources.requests.get(resource) for container in running_pod.all_containers
    }
    return any(
        container.resources.requests.get(resource) != old_requests.get(container.name)
        for container in resized_pod.all_containers
        if not resized_pod.is_ordinary_init(container.name)
    )
