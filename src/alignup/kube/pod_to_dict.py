"""Converts a :class:`Pod` into a Pod object: the inverse of ``kube.pod``."""

from collections.abc import Iterable, Mapping
from typing import Any

from alignup.align.workload import Amounts, Container, Pod, Resources


def pod_to_dict(pod: Pod) -> dict[str, Any]:
    """The Pod object that is read as *pod*, without empty fields."""
    metadata = _present(
        name=pod.name,
        namespace=pod.namespace,
        uid=pod.uid,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
    )
    return _present(apiVersion="v1", kind="Pod", metadata=metadata, spec=_spec(pod), status=_status(pod))


def amounts_to_dict(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _spec(pod: Pod) -> dict[str, Any]:
    return _present(
        initContainers=[_container(one) for one in pod.init],
        containers=[_container(one) for one in pod.containers],
        resources=_resources(pod.resources),
        overhead=amounts_to_dict(pod.overhead),
        resourceClaims=_named(pod.claims),
        priority=pod.priority,
        os=_present(name=pod.os),
    )


def _container(container: Container) -> dict[str, Any]:
    return _present(
        name=container.name,
        restartPolicy="Always" if container.restartable else "",
        resources=_resources(container.resources),
    )


def _resources(resources: Resources) -> dict[str, Any]:
    return _present(
        requests=amounts_to_dict(resources.requests),
        limits=amounts_to_dict(resources.limits),
        claims=_named(resources.claims),
    )


def _status(pod: Pod) -> dict[str, Any]:
    resize = [{"type": "PodResizePending", "reason": "Infeasible"}] if pod.resize_infeasible else []
    statuses = [
        _present(
            name=name,
            allocatedResources=amounts_to_dict(status.allocated),
            resources=_present(requests=amounts_to_dict(status.actual)),
        )
        for name, status in pod.statuses.items()
    ]
    return _present(qosClass=str(pod.recorded_qos or ""), conditions=resize, containerStatuses=statuses)


def _named(names: Iterable[str]) -> list[Mapping[str, str]]:
    return [{"name": name} for name in names]


def _present(**fields: object) -> dict[str, Any]:
    """The fields that are not empty; 0 is not."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
