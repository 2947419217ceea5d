"""A pod as a Pod document: what ``kube.pod`` reads, written the other way round."""

from collections.abc import Iterable, Mapping
from typing import Any

from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, Resources


def pod_to_dict(pod: Pod) -> dict[str, Any]:
    """The document that is read as *pod*; fields that say nothing are left out."""
    return _kept(
        apiVersion="v1",
        kind="Pod",
        metadata=_kept(
            name=pod.name,
            namespace=pod.namespace,
            uid=pod.uid,
            labels=dict(pod.labels),
            annotations=dict(pod.annotations),
        ),
        spec=_spec(pod),
        status=_status(pod),
    )


def amounts_to_dict(amounts: Amounts) -> dict[str, str]:
    """Amounts as Kubernetes writes them."""
    return {name: str(amount) for name, amount in amounts.items()}


def _spec(pod: Pod) -> dict[str, Any]:
    return _kept(
        initContainers=[_container(one) for one in pod.init],
        containers=[_container(one) for one in pod.containers],
        resources=_resources(pod.resources),
        overhead=amounts_to_dict(pod.overhead),
        resourceClaims=_named(pod.claims),
        priority=pod.priority,
        os=_kept(name=pod.os),
    )


def _container(container: Container) -> dict[str, Any]:
    return _kept(
        name=container.name,
        restartPolicy="Always" if container.restartable else "",
        resources=_resources(container.resources),
    )


def _resources(resources: Resources) -> dict[str, Any]:
    return _kept(
        requests=amounts_to_dict(resources.requests),
        limits=amounts_to_dict(resources.limits),
        claims=_named(resources.claims),
    )


def _status(pod: Pod) -> dict[str, Any]:
    resize = [{"type": "PodResizePending", "reason": "Infeasible"}] if pod.resize_infeasible else []
    return _kept(
        qosClass=str(pod.recorded_qos or ""),
        conditions=resize,
        containerStatuses=[_container_status(name, status) for name, status in pod.statuses.items()],
    )


def _container_status(name: str, status: ContainerStatus) -> dict[str, Any]:
    actual = _kept(requests=amounts_to_dict(status.actual))
    return _kept(name=name, allocatedResources=amounts_to_dict(status.allocated), resources=actual)


def _named(names: Iterable[str]) -> list[Mapping[str, str]]:
    return [{"name": name} for name in names]


def _kept(**fields: object) -> dict[str, Any]:
    """The fields that say something; 0 does."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
