"""The shape of a pod: everything about it that a decision depends on.

Pods of one shape are admitted by the same hosts and get the same placements: names do not matter. Most pods of a
cluster belong to few shapes, since workload controllers create pods from templates.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from alignup.align import fit
from alignup.align.workload import Amounts, Pod, QoS, demand
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import DEVICES_ANNOTATION, is_extended
from alignup.align.workload.validation import MIRROR_ANNOTATION, SOURCE_ANNOTATION, apply_defaults
from alignup.placement.pod_demands import DEMAND_ANNOTATIONS, has_demands, needs_exact_host

#: The uid of the pod that stands for all pods of a shape; the API server gives out no such uid.
SHAPE_UID = "shape"

LARGE = 20  #: containers and init containers, above which a decision about a pod takes long

_LABELS = ("kubernetes.io/os",)
_ANNOTATIONS = (*sorted(DEMAND_ANNOTATIONS), SOURCE_ANNOTATION, MIRROR_ANNOTATION)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PodShape:
    """One shape; there is one object for each, compared by identity."""

    pod: Pod  #: a pod of this shape, with the uid ``SHAPE_UID``
    usage: FitRequest
    critical: bool  #: whether decisions also depend on which pods a host runs, since the kubelet may preempt them
    by_containers: "PodShape | None" = None  #: for kubelets that ignore its pod-level resources, if it has any
    demands: bool = False  #: whether it must not go to each host that admits it; see ``pod_demands``

    @property
    def by_host(self) -> bool:
        """Whether decisions depend on more than states of hosts tell: on which pods a host runs, or its PCI devices."""
        return self.critical or DEVICES_ANNOTATION in self.pod.annotations


def depends_on_host(pod: Pod) -> bool:
    """Return what ``PodShape.by_host`` is for the shape of *pod*."""
    return fit.is_critical(pod) or DEVICES_ANNOTATION in pod.annotations


def is_large(pod: Pod) -> bool:
    return len(pod.containers) + len(pod.init) > LARGE


def needs_alignment(pod: Pod) -> bool:
    """Return whether a kubelet can reject *pod* because of NUMA nodes, or the pod demands some.

    Kubelets align the CPUs and memory of Guaranteed pods, and the devices of all pods. Every other pod is admitted if
    the node as a whole has room, which schedulers check themselves.
    """
    pod = apply_defaults(pod)
    if pod.qos is QoS.GUARANTEED or needs_exact_host(pod):
        return True
    resources = (container.resources for container in pod.all_containers)
    return any(is_extended(name) for amounts in resources for name in (*amounts.requests, *amounts.limits))


def build_shape(pod: Pod) -> PodShape:
    critical = fit.is_critical(pod)
    labels = {name: pod.labels[name] for name in _LABELS if name in pod.labels}
    annotations = {name: pod.annotations[name] for name in _ANNOTATIONS if name in pod.annotations}
    shape_pod = replace(
        pod,
        name=SHAPE_UID,
        namespace="",
        uid=SHAPE_UID,
        labels=labels,
        annotations=annotations,
        priority=pod.priority if critical else None,
    )
    by_containers = build_shape(pod.without_pod_level_resources()) if pod.has_pod_level_resources else None
    return PodShape(shape_pod, demand.fit_used(shape_pod), critical, by_containers, has_demands(pod))


def shape_key(pod: Pod) -> Hashable:
    """Return a key that is equal for pods of the same shape."""
    return (
        tuple(
            [
                (
                    container.name,
                    container.restartable,
                    _amounts(container.resources.requests),
                    _amounts(container.resources.limits),
                )
                for container in pod.init
            ]
        ),
        tuple(
            [
                (container.name, _amounts(container.resources.requests), _amounts(container.resources.limits))
                for container in pod.containers
            ]
        ),
        _amounts(pod.resources.requests),
        _amounts(pod.resources.limits),
        _amounts(pod.overhead),
        pod.recorded_qos,
        pod.resize_infeasible,
        pod.claimed_requests,
        pod.class_resources,
        tuple(
            [
                (name, _amounts(status.allocated), _amounts(status.actual))
                for name, status in sorted(pod.statuses.items())
            ]
        ),
        pod.priority if fit.is_critical(pod) else None,
        pod.os,
        tuple([pod.labels.get(name) for name in _LABELS]),
        tuple([pod.annotations.get(name) for name in _ANNOTATIONS]),
    )


def _amounts(amounts: Amounts) -> Hashable:
    # Equal amounts can be stored in two ways, of which the memory manager accepts one; see Quantity.
    return tuple([(name, amount.unscaled, amount.power, amount.dec) for name, amount in amounts.items()])
