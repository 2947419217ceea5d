"""Reads a pod in JSON quickly, for servers: decoding checks the types and creates nothing that a pod does not have.

:func:`read_json_pod` returns what :func:`alignup.kubernetes.manifests.pod.read_pod_text` returns, or ``None`` for a text that is
unusual in any way: that function reads it, and names what is wrong with it.
"""

import re
from typing import Literal

import msgspec

from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, Pod, Resources
from alignup.align.workload.validation import RESTART_POLICIES
from alignup.kubernetes.manifests.object_reader import UNESCAPED_SPACE

_NO_STATUS = (b"", b"null", b"{}")
_PRIORITY = re.compile(rb"null|-?[0-9]{1,9}")


class _Object(msgspec.Struct, rename="camel", gc=False):
    """A part of a pod; ``null`` counts as absent."""


class _Named(_Object):
    name: str | None = None


class _Resources(_Object):
    requests: dict[str, msgspec.Raw] | None = None
    limits: dict[str, msgspec.Raw] | None = None
    claims: list[_Named] | None = None


class _Container(_Object):
    name: str | None = None
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Metadata(_Object):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(_Object):
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: dict[str, msgspec.Raw] | None = None
    resource_claims: list[_Named] | None = None
    priority: msgspec.Raw = msgspec.Raw(b"null")
    os: _Named | None = None


class _Pod(_Object):
    api_version: Literal["v1"]
    kind: Literal["Pod"]
    metadata: _Metadata | None = None
    spec: _Spec | None = None
    status: msgspec.Raw = msgspec.Raw(b"")


_DECODER = msgspec.json.Decoder(_Pod)
_NO_METADATA, _NO_SPEC = _Metadata(), _Spec()


def read_json_pod(content: bytes) -> Pod | None:
    """Return the pod in *content*; ``None``: it is not plain JSON, or not valid."""
    try:
        content.decode()  # fields that are skipped must be text, too
        return _pod(_DECODER.decode(content))
    except (msgspec.DecodeError, QuantityError, UnicodeDecodeError, RecursionError):
        return None


def _pod(found: _Pod) -> Pod | None:
    metadata, spec = found.metadata or _NO_METADATA, found.spec or _NO_SPEC
    priority = bytes(spec.priority)
    if bytes(found.status) not in _NO_STATUS or not _PRIORITY.fullmatch(priority):
        return None
    return Pod(
        name=metadata.name or "",
        namespace=metadata.namespace or "",
        uid=metadata.uid or "",
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        init=_containers(spec.init_containers),
        containers=_containers(spec.containers),
        resources=_resources(spec.resources),
        overhead=_amounts(spec.overhead),
        claims=_names(spec.resource_claims),
        priority=None if priority == b"null" else int(priority),
        os=(spec.os and spec.os.name) or "",
    )


def _containers(found: list[_Container] | None) -> tuple[Container, ...]:
    if not found:
        return ()
    return tuple(
        [
            Container(
                one.name or "",
                _resources(one.resources),
                one.restart_policy == "Always",
                None if one.restart_policy is None or one.restart_policy in RESTART_POLICIES else one.restart_policy,
            )
            for one in found
        ]
    )


def _resources(found: _Resources | None) -> Resources:
    if found is None:
        return Resources()
    return Resources(_amounts(found.requests), _amounts(found.limits), _names(found.claims))


def _names(found: list[_Named] | None) -> tuple[str, ...]:
    return tuple([one.name or "" for one in found]) if found else ()


def _amounts(found: dict[str, msgspec.Raw] | None) -> Amounts:
    return {name: _quantity(bytes(amount).decode()) for name, amount in found.items()} if found else {}


def _quantity(text: str) -> Quantity:
    """Return the quantity of a JSON value: a number counts as it is spelled, and ``null`` is zero."""
    if text == "null":
        return Quantity.ZERO
    if text[0] == '"' and "\\" not in text:
        text = text[1:-1].strip(UNESCAPED_SPACE)
    return Quantity.parse(text)
