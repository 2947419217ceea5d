"""Where a variable of the environment, or a file that tells of the pod, has its value from."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kube.podspec.object_reader import NO_API, ObjectReader
from alignup.kube.podspec.types import EnvVar

_NEEDS = {
    "configMapKeyRef": f"takes its value from a ConfigMap, and {NO_API}",
    "secretKeyRef": f"takes its value from a Secret, and {NO_API}",
    "fileKeyRef": "takes its value from a file of a volume, which is not read here",
    "configMapRef": f"takes variables from a ConfigMap, and {NO_API}",
    "secretRef": f"takes variables from a Secret, and {NO_API}",
}
_VALUES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")

_NAME = re.compile(r"[ -<>-~]+")
_SUBSCRIPT = re.compile(r"(.*)\['(.*)'\]", re.DOTALL)
_ANYWHERE = frozenset({"metadata.name", "metadata.namespace", "metadata.uid"})
_IN_FILES = _ANYWHERE | {"metadata.labels", "metadata.annotations"}
_OF_NODE = {"spec.nodeName", "spec.serviceAccountName"}
_IN_VARIABLES = _ANYWHERE | _OF_NODE | {"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
_OLD_NAMES = {"spec.host": "spec.nodeName"}

_RESOURCES = frozenset(
    f"{side}.{name}" for side in ("limits", "requests") for name in (names.CPU, names.MEMORY, names.EPHEMERAL_STORAGE)
)
_PAGES = tuple(f"{side}.{names.HUGEPAGES}" for side in ("limits", "requests"))
_CPU_DIVISORS = frozenset({"1m", "1"})
_SIZE_DIVISORS = frozenset(
    {"1", *(f"1{unit}" for unit in "kMGTPE"), *(f"1{unit}i" for unit in "KMGTPE")}
)  #: of everything that is counted in bytes


def read_env(container: ObjectReader, everyone: AbstractSet[str]) -> tuple[EnvVar, ...]:
    """The environment of *container*, in a pod that has the containers *everyone*."""
    for source in container.parts("envFrom"):
        _from_elsewhere(source)
    return tuple(_variables(container, everyone))


def read_env_source(part: ObjectReader, name: str, *, everyone: AbstractSet[str], file: bool = False) -> EnvVar | None:
    """What a ``fieldRef`` or ``resourceFieldRef`` of *part* says, for a variable or a *file*; ``None`` without one."""
    if part.has("fieldRef"):
        return EnvVar(name, field_path=_field_path(part.part("fieldRef"), _IN_FILES if file else _IN_VARIABLES))
    if part.has("resourceFieldRef"):
        return _resource(part.part("resourceFieldRef"), name, everyone=everyone, own=not file)
    return None


def _variables(container: ObjectReader, everyone: AbstractSet[str]) -> Iterator[EnvVar]:
    for part in container.parts("env"):
        name = part.required("name")
        if name and not _NAME.fullmatch(name):
            part.bad("name", f"Invalid value: {quote(name)}: must be printable ASCII characters without '='")
        if not part.has("valueFrom"):
            yield EnvVar(name, part.text("value"))
            continue
        source = part.part("valueFrom")
        found = [each for each in _VALUES if source.has(each)]
        if len(found) != 1:
            source.bad("", f"Invalid value: must have one of {', '.join(_VALUES)}, not {len(found) or 'none'}")
        elif part.text("value"):
            source.bad("", "Invalid value: may not be specified when `value` is not empty")
        elif found[0] in _NEEDS:
            _unavailable(source, found[0], "the variable is not set")
        elif variable := read_env_source(source, name, everyone=everyone):
            yield variable


def _from_elsewhere(source: ObjectReader) -> None:
    """Note what a list of variables from elsewhere would need."""
    found = [each for each in ("configMapRef", "secretRef") if source.has(each)]
    if len(found) != 1:
        source.bad("", f"Invalid value: must have one of configMapRef, secretRef, not {len(found) or 'none'}")
        return
    _unavailable(source, found[0], "no variables are set")


def _unavailable(source: ObjectReader, kind: str, without: str) -> None:
    """Refuse what cannot be had; if it is optional, tell what happens *without* it."""
    if source.part(kind).flag("optional"):
        source.warn(kind, f"{_NEEDS[kind]}: {without}")
    else:
        source.bad(kind, f"{_NEEDS[kind]}; write the value into the manifest, or set optional: true")


def _field_path(part: ObjectReader, known: AbstractSet[str]) -> str:
    """The field of a pod that is told."""
    if part.text("apiVersion", "v1") != "v1":
        part.bad("apiVersion", f'Unsupported value: {quote(part.text("apiVersion"))}: supported values: "v1"')
    path = part.required("fieldPath")
    path = _OLD_NAMES.get(path, path)
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript and subscript[1] in {"metadata.labels", "metadata.annotations"}:
        key = subscript[2] if subscript[1] == "metadata.labels" else subscript[2].lower()
        part.judge("fieldPath", path, names.qualified_faults(key))
    elif path and path not in known:
        supported = ", ".join(map(quote, sorted(known)))
        part.bad("fieldPath", f"Unsupported value: {quote(path)}: supported values: {supported}")
    return path


def _resource(part: ObjectReader, name: str, *, everyone: AbstractSet[str], own: bool) -> EnvVar:
    """An amount of a container; its *own* where none is named."""
    container = part.text("containerName") if own else part.required("containerName")
    if container and container not in everyone:
        part.bad("containerName", f"Not found: {quote(container)}: must be a container of this pod")
    resource = part.required("resource")
    if resource and resource not in _RESOURCES and not resource.startswith(_PAGES):
        supported = ", ".join(map(quote, sorted(_RESOURCES)))
        part.bad("resource", f"Unsupported value: {quote(resource)}: supported values: {supported}")
    divisor = part.amount("divisor")
    if divisor is None or divisor.is_zero:
        return EnvVar(name, resource=resource, container_name=container)
    fitting = _CPU_DIVISORS if resource.endswith(f".{names.CPU}") else _SIZE_DIVISORS
    if str(divisor) not in fitting:
        part.bad("divisor", f"Unsupported value: {quote(str(divisor))}: supported values: {', '.join(sorted(fitting))}")
    return EnvVar(name, resource=resource, container_name=container, divisor=str(divisor))
