"""Reads a Pod object into a :class:`Pod`, or lists everything wrong with it, field by field; and writes one.

Only types and quantities are checked here, and only of fields that affect alignment; ``align.workload.validation``
decides what a well-formed pod may ask for. The spelling of a number shows in a quantity (``1e3`` prints as ``1e3``,
``1000`` as ``1k``), so :func:`read_pod_text` keeps it. A document decoded elsewhere is read as well.
"""

from collections.abc import Mapping
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, PodError
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, QoS, Resources
from alignup.align.workload.validation import RESTART_POLICIES
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.object_reader import ObjectReader


def read_pod_text(text: str | bytes) -> Pod:
    """Like :func:`read_pod`, for a YAML or JSON text; :class:`DocumentError` if it is not one document."""
    found = documents.read(text)
    if len(found) != 1:
        raise DocumentError(f"expected one document, not {len(found) or 'none'}", line=1)
    return read_pod(found[0].value)


def read_pod(document: Mapping[str, Any]) -> Pod:
    """The pod in a decoded document; :class:`PodError` names every invalid field."""
    top = ObjectReader.of(document)
    problems = top.diagnostics.problems
    kind, version = read_type(top)
    if not problems and (kind, version) != ("Pod", "v1"):
        wrong = "kind" if kind != "Pod" else "apiVersion"
        top.error(wrong, f"no kind {quote(kind)} is registered for version {quote(version)}")
    pod = _pod(top) if not problems else None
    if pod is None or problems:
        raise PodError(problems)
    return pod


def read_type(top: ObjectReader) -> tuple[str, str]:
    """The kind and apiVersion of an object; the first problem is recorded."""
    kind = "" if top.diagnostics.problems else top.required("kind")
    return kind, "" if top.diagnostics.problems else top.required("apiVersion")


def pod_to_dict(pod: Pod) -> dict[str, Any]:
    """The Pod object that is read as *pod*, without empty fields."""
    metadata = _present(
        name=pod.name, namespace=pod.namespace, uid=pod.uid, labels=dict(pod.labels), annotations=dict(pod.annotations)
    )
    spec = _present(
        initContainers=list(map(_container_to_dict, pod.init)),
        containers=list(map(_container_to_dict, pod.containers)),
        resources=_resources_to_dict(pod.resources),
        overhead=amounts_to_dict(pod.overhead),
        resourceClaims=[{"name": name} for name in pod.claims],
        priority=pod.priority,
        os=_present(name=pod.os),
    )
    statuses = [
        _present(
            name=name,
            allocatedResources=amounts_to_dict(status.allocated),
            resources=_present(requests=amounts_to_dict(status.actual)),
        )
        for name, status in pod.statuses.items()
    ]
    resize = [{"type": "PodResizePending", "reason": "Infeasible"}] if pod.resize_infeasible else []
    status = _present(qosClass=str(pod.recorded_qos or ""), conditions=resize, containerStatuses=statuses)
    return _present(apiVersion="v1", kind="Pod", metadata=metadata, spec=spec, status=status)


def amounts_to_dict(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _pod(top: ObjectReader) -> Pod:
    metadata, spec, status = top.child("metadata"), top.child("spec"), top.child("status")
    return Pod(
        name=metadata.text("name"),
        namespace=metadata.text("namespace"),
        uid=metadata.text("uid"),
        labels=metadata.string_map("labels"),
        annotations=metadata.string_map("annotations"),
        init=_containers(spec, "initContainers"),
        containers=_containers(spec, "containers"),
        resources=_resources(spec),
        overhead=spec.quantities("overhead"),
        claims=_names(spec, "resourceClaims"),
        priority=spec.integer("priority"),
        os=spec.child("os").text("name"),
        recorded_qos=QoS(qos) if (qos := status.choice("qosClass", QoS)) else None,
        statuses=_statuses(status),
        resize_infeasible=next(
            (
                condition.text("reason") == "Infeasible"
                for condition in status.children("conditions")
                if condition.text("type") == "PodResizePending"
            ),
            False,
        ),
    )


def _containers(spec: ObjectReader, name: str) -> tuple[Container, ...]:
    return tuple(map(_container, spec.children(name)))


def _container(container: ObjectReader) -> Container:
    policy = container.text("restartPolicy")
    known = policy in RESTART_POLICIES or container.fields.get("restartPolicy") is None
    return Container(
        name=container.text("name"),
        resources=_resources(container),
        restartable=policy == "Always",
        unknown_restart_policy=None if known else policy,
    )


def _resources(owner: ObjectReader) -> Resources:
    resources = owner.child("resources")
    return Resources(
        requests=resources.quantities("requests"),
        limits=resources.quantities("limits"),
        claims=_names(resources, "claims"),
    )


def _statuses(status: ObjectReader) -> dict[str, ContainerStatus]:
    statuses = {}
    for container in (*status.children("initContainerStatuses"), *status.children("containerStatuses")):
        name = container.text("name")
        allocated = container.quantities("allocatedResources")
        actual = _resources(container).requests
        if allocated or actual:
            statuses[name] = ContainerStatus(allocated, actual)
    return statuses


def _names(owner: ObjectReader, name: str) -> tuple[str, ...]:
    return tuple(item.text("name") for item in owner.children(name))


def _container_to_dict(container: Container) -> dict[str, Any]:
    policy = "Always" if container.restartable else container.unknown_restart_policy
    fields = _present(name=container.name, resources=_resources_to_dict(container.resources))
    return fields if policy is None else {**fields, "restartPolicy": policy}


def _resources_to_dict(resources: Resources) -> dict[str, Any]:
    return _present(
        requests=amounts_to_dict(resources.requests),
        limits=amounts_to_dict(resources.limits),
        claims=[{"name": name} for name in resources.claims],
    )


def _present(**fields: object) -> dict[str, Any]:
    """The fields that are not empty; 0 is not."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
