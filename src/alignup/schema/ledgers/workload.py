"""A pod as a document, and back; what a field has by default is left out.

An amount is written as Kubernetes prints it, if that reads back as the very same. Some do not: ``1.5Gi`` is printed as
``1536Mi``, which the memory provider takes while it refuses the former. Those are written part by part.
"""

from collections.abc import Mapping
from typing import Any

from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, QoS, Resources
from alignup.schema.ledgers.values import fields, flag, items, number, text, texts


def written_pod(pod: Pod) -> dict[str, Any]:
    """The pod as plain JSON values."""
    document = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "init": [_container(one) for one in pod.init],
        "containers": [_container(one) for one in pod.containers],
        **_resources(pod.resources),
        "overhead": _amounts(pod.overhead),
        "podClaims": list(pod.claims),
        "qos": None if pod.recorded_qos is None else str(pod.recorded_qos),
        "statuses": {
            name: {"allocated": _amounts(status.allocated), "actual": _amounts(status.actual)}
            for name, status in pod.statuses.items()
        },
        "resizeInfeasible": pod.resize_infeasible,
        "priority": pod.priority,
        "os": pod.os,
        "labels": dict(pod.labels),
        "annotations": dict(pod.annotations),
    }
    kept = {"name", "namespace", "uid"}
    return {key: value for key, value in document.items() if key in kept or _said(value)}


def read_pod(document: object) -> Pod:
    """The pod a document describes; :class:`ParseError`, ``KeyError`` or ``ValueError`` when it describes none."""
    said = fields(document)
    qos, priority = said.get("qos"), said.get("priority")
    return Pod(
        name=text(said["name"]),
        namespace=text(said["namespace"]),
        uid=text(said["uid"]),
        init=tuple(map(_read_container, items(said.get("init", [])))),
        containers=tuple(map(_read_container, items(said.get("containers", [])))),
        resources=_read_resources(said),
        overhead=_read_amounts(said.get("overhead", {})),
        claims=texts(said.get("podClaims", [])),
        recorded_qos=None if qos is None else QoS(qos),
        statuses={name: _read_status(status) for name, status in fields(said.get("statuses", {})).items()},
        resize_infeasible=flag(said.get("resizeInfeasible", False)),
        priority=None if priority is None else number(priority),
        os=text(said.get("os", "")),
        labels=_read_texts(said.get("labels", {})),
        annotations=_read_texts(said.get("annotations", {})),
    )


def _said(value: object) -> bool:
    """Whether a value is worth a field; a priority of 0 is not the same as none."""
    return value is not None and value is not False and value not in ("", [], {})


def _container(container: Container) -> dict[str, Any]:
    document = {"name": container.name, **_resources(container.resources), "restartable": container.restartable}
    return {key: value for key, value in document.items() if key == "name" or _said(value)}


def _read_container(document: object) -> Container:
    said = fields(document)
    return Container(text(said["name"]), _read_resources(said), flag(said.get("restartable", False)))


def _resources(resources: Resources) -> dict[str, Any]:
    return {
        "requests": _amounts(resources.requests),
        "limits": _amounts(resources.limits),
        "claims": list(resources.claims),
    }


def _read_resources(said: Mapping[str, Any]) -> Resources:
    requests, limits = said.get("requests", {}), said.get("limits", {})
    return Resources(_read_amounts(requests), _read_amounts(limits), texts(said.get("claims", [])))


def _read_status(document: object) -> ContainerStatus:
    said = fields(document)
    return ContainerStatus(_read_amounts(said["allocated"]), _read_amounts(said["actual"]))


def _read_texts(document: object) -> dict[str, str]:
    return {key: text(value) for key, value in fields(document).items()}


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {name: _amount(amount) for name, amount in amounts.items()}


def _read_amounts(document: object) -> dict[str, Quantity]:
    return {name: _read_amount(amount) for name, amount in fields(document).items()}


def _amount(amount: Quantity) -> str | dict[str, Any]:
    # Beyond these the text may be of any length, and is none that reads back.
    short = -9 <= amount.power <= 18 and amount.unscaled.bit_length() <= 128
    if short and _parts(Quantity.parse(str(amount))) == _parts(amount):
        return str(amount)
    return {
        "unscaled": hex(amount.unscaled),  # decimal digits are limited in number
        "power": amount.power,
        "format": str(amount.format),
        "dec": amount.dec,
        "text": amount.text,
    }


def _parts(amount: Quantity) -> tuple[int, int, QuantityFormat, bool, str | None]:
    """All of an amount: two that are equal may differ in how they are held."""
    return amount.unscaled, amount.power, amount.format, amount.dec, amount.text


def _read_amount(document: object) -> Quantity:
    if isinstance(document, str):
        return Quantity.parse(document)
    said = fields(document)
    return Quantity(
        int(text(said["unscaled"]), 16),
        number(said["power"]),
        format=QuantityFormat(said["format"]),
        dec=flag(said["dec"]),
        text=None if said["text"] is None else text(said["text"]),
    )
