"""Reads a Pod object into a :class:`Pod`, or lists everything wrong with it, field by field.

Only types and quantities are checked here, and only of fields that affect alignment; ``align.workload.validation``
decides what a well-formed pod may ask for.

Quantities may be numbers, and the spelling of a number shows in the quantity (``1e3`` prints as ``1e3``, ``1000`` as
``1k``), so :func:`read_pod_text` keeps the spelling of every number. A document decoded elsewhere is read as well.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, PodError, Problem
from alignup.align.workload import Container, ContainerStatus, Pod, QoS, Resources
from alignup.kube import documents
from alignup.kube.object_reader import ObjectReader
from alignup.kube.podspec import PodManifest

_RESTART_POLICIES = ("Always", "Never", "OnFailure")


def read_pod_text(text: str | bytes) -> Pod:
    """The pod in a YAML or JSON text; :class:`PodError` names every invalid field."""
    try:
        found = documents.read(text)
    except DocumentError as error:
        raise PodError([Problem("", str(error))]) from error
    if len(found) != 1:
        raise PodError([Problem("", f"expected one document, found {len(found) or 'none'}")])
    return read_pod(found[0].value)


def read_pod(document: Mapping[str, Any], *, keep: bool = False) -> Pod:
    """The pod in a decoded document; :class:`PodError` names every invalid field.

    With *keep* the pod carries its manifest, which running it requires.
    """
    top = ObjectReader.of(document)
    problems = top.diagnostics.problems
    kind, version = read_type(top)
    if not problems and (kind, version) != ("Pod", "v1"):
        wrong = "kind" if kind != "Pod" else "apiVersion"
        top.error(wrong, f"no kind {quote(kind)} is registered for version {quote(version)}")
    pod = _pod(top) if not problems else None
    if pod is None or problems:
        raise PodError(problems)
    return replace(pod, manifest=PodManifest.of(top.fields)) if keep else pod


def read_type(top: ObjectReader) -> tuple[str, str]:
    """The kind and apiVersion of an object; the first problem is recorded."""
    kind = version = ""
    if not top.diagnostics.problems:
        kind = top.required("kind")
    if not top.diagnostics.problems:
        version = top.required("apiVersion")
    return kind, version


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
        resize_infeasible=_resize_infeasible(status),
    )


def _containers(spec: ObjectReader, name: str) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=container.text("name"),
            resources=_resources(container),
            restartable=container.choice("restartPolicy", _RESTART_POLICIES) == "Always",
        )
        for container in spec.children(name)
    )


def _resources(owner: ObjectReader) -> Resources:
    resources = owner.child("resources")
    return Resources(
        requests=resources.quantities("requests"),
        limits=resources.quantities("limits"),
        claims=_names(resources, "claims"),
    )


def _statuses(status: ObjectReader) -> dict[str, ContainerStatus]:
    """The container statuses that mention resources, by container."""
    statuses = {}
    for container in (*status.children("initContainerStatuses"), *status.children("containerStatuses")):
        name = container.text("name")
        allocated = container.quantities("allocatedResources")
        actual = _resources(container).requests
        if allocated or actual:
            statuses[name] = ContainerStatus(allocated, actual)
    return statuses


def _resize_infeasible(status: ObjectReader) -> bool:
    """Whether the first ``PodResizePending`` condition says that the resize is infeasible."""
    for condition in status.children("conditions"):
        if condition.text("type") == "PodResizePending":
            return condition.text("reason") == "Infeasible"
    return False


def _names(owner: ObjectReader, name: str) -> tuple[str, ...]:
    return tuple(item.text("name") for item in owner.children(name))
