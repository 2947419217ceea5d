"""Environment variables of a container: ``$(NAME)`` references and fields of the downward API.

``$(NAME)`` is replaced if NAME is defined and left alone otherwise; ``$$`` is an escaped dollar sign. A variable can
refer to the variables before it, but not to those of device plugins; a command can refer to all of them. A result
larger than any process could be given is rejected before it fills the memory.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alignup.agent.pods.pod_state import PodStartError
from alignup.align.bits import quote
from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Pod, names
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kubernetes.podspec.types import ContainerSpec, EnvVar

MAX_BYTES = 6 << 20  #: the kernel's limit for the arguments and environment of a process, whatever its stack

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]", re.DOTALL)
_DEFAULTED = (CPU, MEMORY, EPHEMERAL_STORAGE)  #: without a limit, the pod's or the host's value applies


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What the downward API exposes about a pod and its host."""

    pod: Pod
    host_name: str = ""
    host_ips: tuple[str, ...] = ()
    pod_ips: tuple[str, ...] = ()
    service_account: str = ""
    allocatable: Amounts = field(default_factory=dict)  #: the host's, for containers without a limit


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace every ``$(NAME)`` in *text* that *values* defines; ``PodStartError`` if the result is too long."""
    size = len(text)

    def replacement(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        value = "$" if name is None else values.get(name, found[0])
        size += len(value) - len(found[0])
        if size > MAX_BYTES:
            raise PodStartError.config("the environment or command expands without end; check its $(…) references")
        return value

    # There is no reference after the last bracket; searching there would take quadratic time for many dollar signs.
    closed = text.rfind(")") + 1
    return _REFERENCE.sub(replacement, text[:closed]) + text[closed:].replace("$$", "$")


def referenced_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in _REFERENCE.findall(text[: text.rfind(")") + 1]) if name)


def expand_all(texts: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    words: list[str] = []
    size = 0
    for text in texts:
        words.append(expand(text, values))
        size += len(words[-1])
        if size > MAX_BYTES:
            raise PodStartError.config("the command is longer than the kernel allows")
    return tuple(words)


def make_environment(
    container: ContainerSpec, facts: PodFacts, *, plugin_envs: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a container; its manifest overrides the variables of device plugins."""
    values: dict[str, str] = {}
    size = 0
    for variable in container.env:
        value = resolve_variable(variable, facts, container=container.name, known=values)
        size += len(variable.name) + len(value)
        if size > MAX_BYTES:
            raise PodStartError.config("the environment is larger than the kernel allows")
        values[variable.name] = value
    return {**(plugin_envs or {}), **values}


def resolve_variable(variable: EnvVar, facts: PodFacts, *, container: str, known: Mapping[str, str]) -> str:
    """The value of a variable of *container*, or of a file in a ``downwardAPI`` volume."""
    if variable.value:
        return expand(variable.value, known)
    if variable.field_path:
        return field_value(variable.field_path, facts)
    if variable.resource:
        return resource_value(variable, facts, container=container)
    return ""


def field_value(path: str, facts: PodFacts) -> str:
    """The value of a fieldPath such as ``metadata.name`` or ``metadata.labels['app']``."""
    pod = facts.pod
    maps = {"metadata.labels": pod.labels, "metadata.annotations": pod.annotations}
    if found := _SUBSCRIPT.fullmatch(path):
        return maps[found[1]].get(found[2], "")
    if path in maps:
        return "\n".join(f"{key}={quote(value)}" for key, value in sorted(maps[path].items()))
    fields = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": facts.host_name,
        "spec.serviceAccountName": facts.service_account,
        "status.hostIP": ",".join(facts.host_ips[:1]),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": ",".join(facts.pod_ips[:1]),
        "status.podIPs": ",".join(facts.pod_ips),
    }
    if path not in fields:
        raise PodStartError.config(f"unsupported fieldPath: {path}")
    return fields[path]


def resource_value(variable: EnvVar, facts: PodFacts, *, container: str) -> str:
    """A request or limit of a container in units of the divisor, rounded up."""
    wanted = variable.container_name or container
    owner = next((one for one in (*facts.pod.containers, *facts.pod.init) if one.name == wanted), None)
    if owner is None:
        raise PodStartError.config(f"container {wanted} not found")
    kind, _, name = variable.resource.partition(".")
    if kind not in {"requests", "limits"} or not (name in _DEFAULTED or names.is_hugepages(name)):
        raise PodStartError.config(f"unsupported container resource : {variable.resource}")
    amounts = owner.resources.limits if kind == "limits" else owner.resources.requests
    amount = amounts.get(name, Quantity.ZERO)
    if kind == "limits" and amount.is_zero and name in _DEFAULTED:
        of_pod = facts.pod.resources.limits.get(name, Quantity.ZERO) if names.is_pod_level(name) else Quantity.ZERO
        amount = facts.allocatable.get(name, Quantity.ZERO) if of_pod.is_zero else of_pod
    try:
        divisor = Quantity.parse(variable.divisor)
    except QuantityError as error:
        raise PodStartError.config(f"{variable.resource}: divisor {variable.divisor!r}: {error}") from error
    if divisor.sign < 0:
        raise PodStartError.config(f"{variable.resource}: divisor {variable.divisor} is negative")
    if divisor.is_zero:
        divisor = Quantity.of(1)
    if name == CPU:
        return str(-(-amount.milli() // divisor.milli()))
    return str(-(-amount.value() // divisor.value()))
