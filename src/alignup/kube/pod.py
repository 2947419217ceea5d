"""A Pod document becomes a :class:`Pod`, or a list of what is wrong with it, field by field.

Only the shape is judged here: kinds of values, and amounts that can be read. Fields that have no bearing on alignment
are not looked at. What a well-formed pod may and may not ask for is said by ``align.workload.rules``.

Amounts may be numbers, and how a number was written shows in the amount (``1e3`` prints as ``1e3``, ``1000`` as
``1k``), so :func:`read_pod_text` keeps the text of every number. A document decoded elsewhere is taken too, with its
numbers as they came out.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from alignup.align.bits import quote
from alignup.align.errors import PodError, Problem, QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, ContainerStatus, Pod, QoS, Resources

_Kind = TypeVar("_Kind")

#: White space that JSON can hold unescaped: Kubernetes trims an amount before it decodes escapes.
_BLANKS = " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PRINTABLE = 2_000  # bits; Python may refuse to print a longer int
_INT32 = range(-(1 << 31), 1 << 31)
_RESTART_POLICIES = ("Always", "Never", "OnFailure")


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


def read_pod_text(text: str) -> Pod:
    """The pod a JSON text describes; :class:`PodError` names every field that cannot be read."""
    try:
        document = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except (ValueError, RecursionError) as error:
        raise PodError([Problem("", f"not a JSON document: {error}")]) from error
    return read_pod(document)


def read_pod(document: Mapping[str, Any]) -> Pod:
    """The pod a decoded document describes; :class:`PodError` names every field that cannot be read."""
    reader = _Reader()
    top = reader.mapping(document, "")
    reader.expect_pod(top)
    pod = _pod(reader, top) if not reader.problems else None
    if pod is None or reader.problems:
        raise PodError(reader.problems)
    return pod


@dataclass
class _Reader:
    """Takes decoded values for what they should be; one that is not is noted, and read as if it were absent."""

    problems: list[Problem] = field(default_factory=list)

    def expect_pod(self, document: Mapping[str, Any]) -> None:
        """Note anything that is not a Pod of version v1."""
        version = self.text(document.get("apiVersion"), "apiVersion")
        kind = self.text(document.get("kind"), "kind")
        if self.problems:
            return
        if not kind:
            self.problems.append(Problem("kind", "Required value"))
        elif not version:
            self.problems.append(Problem("apiVersion", "Required value"))
        elif (kind, version) != ("Pod", "v1"):
            wrong = "kind" if kind != "Pod" else "apiVersion"
            what = f"no kind {quote(kind)} is registered for version {quote(version)}"
            self.problems.append(Problem(wrong, what))

    def mapping(self, value: object, where: str) -> Mapping[str, Any]:
        """An object; ``null`` is one without fields."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return self._wrong(value, where, "an object", {})
        if all(type(key) is str for key in value):
            return value
        self.problems.append(Problem(where, "must have strings as keys"))
        return {}

    def items(self, value: object, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The objects of a list, each with its path; ``null`` is the empty list."""
        if value is not None and not isinstance(value, list | tuple):
            value = self._wrong(value, where, "a list", ())
        for index, item in enumerate(value or ()):
            path = f"{where}[{index}]"
            yield path, self.mapping(item, path)

    def text(self, value: object, where: str) -> str:
        """A string; ``null`` is the empty one."""
        if value is None:
            return ""
        return value if type(value) is str else self._wrong(value, where, "a string", "")

    def texts(self, value: object, where: str) -> Mapping[str, str]:
        """An object whose values are strings."""
        found = self.mapping(value, where)
        return {key: self.text(item, f"{where}[{key}]") for key, item in found.items()}

    def integer(self, value: object, where: str) -> int | None:
        """A 32-bit integer; ``null`` is ``None``."""
        if value is None:
            return None
        text = _number_text(value)
        if text and len(text) <= 11 and text.removeprefix("-").isdecimal() and int(text) in _INT32:
            return int(text)
        return self._wrong(value, where, "a 32-bit integer", None)

    def amounts(self, value: object, where: str) -> Amounts:
        """An object whose values are quantities."""
        read = {}
        for name, item in self.mapping(value, where).items():
            try:
                read[name] = _quantity(item)
            except QuantityError as error:
                self.problems.append(Problem(f"{where}[{name}]", str(error)))
        return read

    def one_of(self, kinds: Callable[[str], _Kind], value: object, where: str) -> _Kind | None:
        """A string that is one of some; ``null`` and the empty string are none of them."""
        text = self.text(value, where)
        try:
            return kinds(text) if text else None
        except ValueError as error:
            self.problems.append(Problem(where, str(error)))
            return None

    def _wrong(self, value: object, where: str, wanted: str, instead: _Kind) -> _Kind:
        self.problems.append(Problem(where, f"must be {wanted}, not {_kind(value)}"))
        return instead


def _pod(reader: _Reader, document: Mapping[str, Any]) -> Pod:
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


def _containers(reader: _Reader, value: object, where: str) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=reader.text(item.get("name"), f"{path}.name"),
            resources=_resources(reader, item.get("resources"), f"{path}.resources"),
            restartable=reader.one_of(_restart_policy, item.get("restartPolicy"), f"{path}.restartPolicy") == "Always",
        )
        for path, item in reader.items(value, where)
    )


def _resources(reader: _Reader, value: object, where: str) -> Resources:
    found = reader.mapping(value, where)
    return Resources(
        requests=reader.amounts(found.get("requests"), f"{where}.requests"),
        limits=reader.amounts(found.get("limits"), f"{where}.limits"),
        claims=_names(reader, found.get("claims"), f"{where}.claims"),
    )


def _statuses(reader: _Reader, status: Mapping[str, Any]) -> dict[str, ContainerStatus]:
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


def _resize_infeasible(reader: _Reader, status: Mapping[str, Any]) -> bool:
    """Whether a resize is pending and cannot be done; of several such conditions the first counts."""
    for path, item in reader.items(status.get("conditions"), "status.conditions"):
        if reader.text(item.get("type"), f"{path}.type") == "PodResizePending":
            return reader.text(item.get("reason"), f"{path}.reason") == "Infeasible"
    return False


def _names(reader: _Reader, value: object, where: str) -> tuple[str, ...]:
    """The names of a list of named things."""
    return tuple(reader.text(item.get("name"), f"{path}.name") for path, item in reader.items(value, where))


def _restart_policy(text: str) -> str:
    if text not in _RESTART_POLICIES:
        supported = ", ".join(map(quote, _RESTART_POLICIES))
        raise ValueError(f"Unsupported value: {quote(text)}: supported values: {supported}")
    return text


def _quantity(value: object) -> Quantity:
    """An amount from a JSON value: ``null`` is zero, a string is trimmed, a number is its text."""
    if value is None:
        return Quantity.ZERO
    if type(value) is str:
        return Quantity.parse(value.strip(_BLANKS))
    return Quantity.parse(_number_text(value))


def _number_text(value: object) -> str:
    """How a number was written, or would be; the empty text for anything else."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= _PRINTABLE else ""
    return repr(value) if isinstance(value, float) else ""


def _kind(value: object) -> str:
    """What a decoded value is, in JSON's words."""
    match value:
        case bool():
            return "true or false"
        case Number() | int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return type(value).__name__
