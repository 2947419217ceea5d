"""Reads environment variables, and the references to pod fields that ``downwardAPI`` files share with them."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from alignup.align.bits import quote
from alignup.align.workload import names
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.podspec.types import EnvVar

_UNSUPPORTED = {
    "configMapKeyRef": "the value of a ConfigMap is not available: there is no Kubernetes API",
    "secretKeyRef": "the value of a Secret is not available: there is no Kubernetes API",
    "fileKeyRef": "values from files of a volume are not supported",
    "configMapRef": "the variables of a ConfigMap are not available: there is no Kubernetes API",
    "secretRef": "the variables of a Secret are not available: there is no Kubernetes API",
}
_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_ENV_FROM_SOURCES = ("configMapRef", "secretRef")

_NAME = re.compile(r"[ -<>-~]+")
_SUBSCRIPT = re.compile(r"(.*)\['(.*)'\]", re.DOTALL)
_METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace", "metadata.uid"})
_FILE_FIELDS = _METADATA_FIELDS | {"metadata.labels", "metadata.annotations"}
_POD_FIELDS = "spec.nodeName spec.serviceAccountName status.hostIP status.hostIPs status.podIP status.podIPs"
_ENV_FIELDS = _METADATA_FIELDS | {*_POD_FIELDS.split()}
_OLD_NAMES = {"spec.host": "spec.nodeName"}

_RESOURCES = frozenset(
    f"{side}.{name}" for side in ("limits", "requests") for name in (names.CPU, names.MEMORY, names.EPHEMERAL_STORAGE)
)
_HUGEPAGES = tuple(f"{side}.{names.HUGEPAGES}" for side in ("limits", "requests"))
_CPU_DIVISORS = frozenset({"1m", "1"})
_BYTE_DIVISORS = frozenset({"1", *(f"1{unit}" for unit in "kMGTPE"), *(f"1{unit}i" for unit in "KMGTPE")})


def read_env(container: ObjectReader, containers: AbstractSet[str]) -> tuple[EnvVar, ...]:
    """The environment of *container*; *containers* are the names of all containers of the pod."""
    for source in container.children("envFrom"):
        if kind := _source_kind(source, _ENV_FROM_SOURCES):
            _unsupported(source, kind, "no variables are set")
    return tuple(_variables(container, containers))


def read_env_source(
    owner: ObjectReader, name: str, *, containers: AbstractSet[str], file: bool = False
) -> EnvVar | None:
    """The ``fieldRef`` or ``resourceFieldRef`` of a variable, or of a downward API *file*; ``None`` without one."""
    if owner.has("fieldRef"):
        return EnvVar(name, field_path=_field_path(owner.child("fieldRef"), _FILE_FIELDS if file else _ENV_FIELDS))
    if owner.has("resourceFieldRef"):
        return _resource(owner.child("resourceFieldRef"), name, containers=containers, name_required=file)
    return None


def _variables(container: ObjectReader, containers: AbstractSet[str]) -> Iterator[EnvVar]:
    for variable in container.children("env"):
        name = variable.required("name")
        if name and not _NAME.fullmatch(name):
            variable.invalid("name", name, "must consist of printable ASCII characters other than '='")
        if not variable.has("valueFrom"):
            yield EnvVar(name, variable.text("value"))
            continue
        source = variable.child("valueFrom")
        kind = _source_kind(source, _SOURCES)
        if kind and variable.text("value"):
            source.error("", "Invalid value: may not be specified when `value` is not empty")
        elif kind in _UNSUPPORTED:
            _unsupported(source, kind, "the variable is not set")
        elif kind and (read := read_env_source(source, name, containers=containers)):
            yield read


def _source_kind(source: ObjectReader, kinds: tuple[str, ...]) -> str:
    """Which of *kinds* is set; empty if not exactly one is."""
    found = [kind for kind in kinds if source.has(kind)]
    if len(found) == 1:
        return found[0]
    source.error("", f"Invalid value: must have one of {', '.join(kinds)}, not {len(found) or 'none'}")
    return ""


def _unsupported(source: ObjectReader, kind: str, effect: str) -> None:
    """Record an unavailable source: a warning with its *effect* if the source is optional, else a problem."""
    if source.child(kind).flag("optional"):
        source.warn(kind, f"{_UNSUPPORTED[kind]}; {effect}")
    else:
        source.error(kind, f"{_UNSUPPORTED[kind]}; put the value into the manifest, or set optional: true")


def _field_path(ref: ObjectReader, supported: AbstractSet[str]) -> str:
    if ref.text("apiVersion", "v1") != "v1":
        ref.unsupported("apiVersion", ref.text("apiVersion"), ["v1"])
    path = ref.required("fieldPath")
    path = _OLD_NAMES.get(path, path)
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript and subscript[1] in {"metadata.labels", "metadata.annotations"}:
        key = subscript[2] if subscript[1] == "metadata.labels" else subscript[2].lower()
        ref.faults("fieldPath", path, names.qualified_problems(key))
    elif path and path not in supported:
        ref.unsupported("fieldPath", path, sorted(supported))
    return path


def _resource(ref: ObjectReader, name: str, *, containers: AbstractSet[str], name_required: bool) -> EnvVar:
    container = ref.required("containerName") if name_required else ref.text("containerName")
    if container and container not in containers:
        ref.error("containerName", f"Not found: {quote(container)}: must be a container of this pod")
    resource = ref.required("resource")
    if resource and resource not in _RESOURCES and not resource.startswith(_HUGEPAGES):
        ref.unsupported("resource", resource, sorted(_RESOURCES))
    divisor = ref.quantity("divisor")
    if divisor is None or divisor.is_zero:
        return EnvVar(name, resource=resource, container_name=container)
    divisors = _CPU_DIVISORS if resource.endswith(f".{names.CPU}") else _BYTE_DIVISORS
    if str(divisor) not in divisors:
        supported = ", ".join(sorted(divisors))
        ref.error("divisor", f"Unsupported value: {quote(str(divisor))}: supported values: {supported}")
    return EnvVar(name, resource=resource, container_name=container, divisor=str(divisor))
