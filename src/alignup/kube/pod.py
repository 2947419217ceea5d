"""A Pod document becomes a :class:`Pod`, or a list of what is wrong with it, field by field.

Only the shape is judged here: kinds of values, and amounts that can be read. Fields that have no bearing on alignment
are not looked at. What a well-formed pod may and may not ask for is said by ``align.workload.validation``.

Amounts may be numbers, and how a number was written shows in the amount (``1e3`` prints as ``1e3``, ``1000`` as
``1k``), so :func:`read_pod_text` keeps the text of every number, in YAML the one JSON would have. A document decoded
elsewhere is taken too, with its numbers as they came out.

Whoever runs the pod needs more than is read here, so the manifest can be kept with it, as it came.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import DocumentError, PodError, Problem
from alignup.align.workload import Container, ContainerStatus, Pod, QoS, Resources
from alignup.kube import documents
from alignup.kube.fields import FieldReader
from alignup.kube.podspec import PodManifest
from alignup.kube.yaml_scalars import NumberLiteral

__all__ = ["NumberLiteral", "read_pod", "read_pod_text", "read_type"]

_RESTART_POLICIES = ("Always", "Never", "OnFailure")


def read_pod_text(text: str | bytes) -> Pod:
    """The pod a text, YAML or JSON, describes; :class:`PodError` names every field that cannot be read."""
    try:
        found = documents.read(text)
    except DocumentError as error:
        raise PodError([Problem("", str(error))]) from error
    if len(found) != 1:
        raise PodError([Problem("", f"expected one document, not {len(found) or 'none'}")])
    return read_pod(found[0].value)


def read_pod(document: Mapping[str, Any], *, keep: bool = False) -> Pod:
    """The pod a decoded document describes; :class:`PodError` names every field that cannot be read.

    With *keep* it has its manifest, for whoever runs it.
    """
    reader = FieldReader()
    top = reader.mapping(document, "")
    _expect_pod(reader, top)
    pod = _pod(reader, top) if not reader.problems else None
    if pod is None or reader.problems:
        raise PodError(reader.problems)
    return replace(pod, manifest=PodManifest.of(top)) if keep else pod


def read_type(reader: FieldReader, document: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and version an object says it is of; what is wrong with them is noted."""
    kind = version = ""
    if not reader.problems:
        kind = reader.required(document.get("kind"), "kind")
    if not reader.problems:
        version = reader.required(document.get("apiVersion"), "apiVersion")
    return kind, version


def _expect_pod(reader: FieldReader, document: Mapping[str, Any]) -> None:
    """Note anything that is not a Pod of version v1."""
    kind, version = read_type(reader, document)
    if not reader.problems and (kind, version) != ("Pod", "v1"):
        wrong = "kind" if kind != "Pod" else "apiVersion"
        what = f"no kind {quote(kind)} is registered for version {quote(version)}"
        reader.problems.append(Problem(wrong, what))


def _pod(reader: FieldReader, document: Mapping[str, Any]) -> Pod:
    metadata = reader.mapping(document.get("metadata"), "metadata")
    spec = reader.mapping(document.get("spec"), "spec")
    status = reader.mapping(document.get("status"), "status")
    return Pod(
        name=reader.text(metadata.get("name"), "metadata.name"),
        namespace=reader.text(metadata.get("namespace"), "metadata.namespace"),
        uid=reader.text(metadata.get("uid"), "metadata.uid"),
        labels=reader.texts(metadata.get("labels"), "metadata.labels"),
        annotations=reader.texts(metadata.get("annotations"), "metadata.annotations"),
        init=_containers(reader, spec.get("initContainers"), "spec.initContainers"),
        containers=_containers(reader, spec.get("containers"), "spec.containers"),
        resources=_resources(reader, spec.get("resources"), "spec.resources"),
        overhead=reader.amounts(spec.get("overhead"), "spec.overhead"),
        claims=_names(reader, spec.get("resourceClaims"), "spec.resourceClaims"),
        priority=reader.integer(spec.get("priority"), "spec.priority"),
        os=reader.text(reader.mapping(spec.get("os"), "spec.os").get("name"), "spec.os.name"),
        recorded_qos=reader.one_of(QoS, status.get("qosClass"), "status.qosClass"),
        statuses=_statuses(reader, status),
        resize_infeasible=_resize_infeasible(reader, status),
    )


def _containers(reader: FieldReader, value: object, where: str) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=reader.text(item.get("name"), f"{path}.name"),
            resources=_resources(reader, item.get("resources"), f"{path}.resources"),
            restartable=reader.one_of(_restart_policy, item.get("restartPolicy"), f"{path}.restartPolicy") == "Always",
        )
        for path, item in reader.items(value, where)
    )


def _resources(reader: FieldReader, value: object, where: str) -> Resources:
    found = reader.mapping(value, where)
    return Resources(
        requests=reader.amounts(found.get("requests"), f"{where}.requests"),
        limits=reader.amounts(found.get("limits"), f"{where}.limits"),
        claims=_names(reader, found.get("claims"), f"{where}.claims"),
    )


def _statuses(reader: FieldReader, status: Mapping[str, Any]) -> dict[str, ContainerStatus]:
    """The status of every container that has one which says something of resources."""
    statuses = {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for path, item in reader.items(status.get(kind), f"status.{kind}"):
            name = reader.text(item.get("name"), f"{path}.name")
            allocated = reader.amounts(item.get("allocatedResources"), f"{path}.allocatedResources")
            actual = _resources(reader, item.get("resources"), f"{path}.resources").requests
            if allocated or actual:
                statuses[name] = ContainerStatus(allocated, actual)
    return statuses


def _resize_infeasible(reader: FieldReader, status: Mapping[str, Any]) -> bool:
    """Whether a resize is pending and cannot be done; of several such conditions the first counts."""
    for path, item in reader.items(status.get("conditions"), "status.conditions"):
        if reader.text(item.get("type"), f"{path}.type") == "PodResizePending":
            return reader.text(item.get("reason"), f"{path}.reason") == "Infeasible"
    return False


def _names(reader: FieldReader, value: object, where: str) -> tuple[str, ...]:
    """The names of a list of named things."""
    return tuple(reader.text(item.get("name"), f"{path}.name") for path, item in reader.items(value, where))


def _restart_policy(text: str) -> str:
    if text not in _RESTART_POLICIES:
        supported = ", ".join(map(quote, _RESTART_POLICIES))
        raise ValueError(f"Unsupported value: {quote(text)}: supported values: {supported}")
    return text
