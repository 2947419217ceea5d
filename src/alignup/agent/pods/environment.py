"""The environment of a container: texts in which ``$(NAME)`` stands for other variables, and facts of the pod.

``$(NAME)`` is replaced where NAME is known and stays as it is where not; ``$$`` is a dollar sign, so ``$$(NAME)`` is
``$(NAME)`` to whoever reads it. A variable knows those before it, and not what device plugins give; a command knows
all. What grows beyond anything that could be handed to a process is refused before it fills the memory.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from alignup.agent.pods.errors import PodStartError
from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity
from alignup.align.workload import Amounts, Container, Pod, names
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kube.podspec.types import ContainerSpec, EnvVar

MAX_BYTES = 6 << 20  #: bytes the kernel hands to a new process at most, whatever its stack

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]", re.DOTALL)
_DEFAULTED = (CPU, MEMORY, EPHEMERAL_STORAGE)  #: whoever has no limit of these has that of the pod, or of the host
_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What variables can tell of a pod and the host it is on."""

    pod: Pod
    host: str = ""  #: its name
    host_ips: tuple[str, ...] = ()
    pod_ips: tuple[str, ...] = ()
    service_account: str = ""
    allocatable: Amounts = field(default_factory=dict)  #: of the host, where a container has no limit


def expand(text: str, values: Mapping[str, str]) -> str:
    """*text* with every ``$(NAME)`` replaced that *values* knows; ``PodStartError`` when it grows too long."""
    size = len(text)

    def replaced(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        value = "$" if name is None else values.get(name, found[0])
        size += len(value) - len(found[0])
        if size > MAX_BYTES:
            raise _unfit("its environment or command grows without end: look at the $(…) in it")
        return value

    # Behind the last bracket there are no references, only dollar signs; they are not searched for a bracket each.
    closed = text.rfind(")") + 1
    return _REFERENCE.sub(replaced, text[:closed]) + text[closed:].replace("$$", "$")


def referenced_names(text: str) -> tuple[str, ...]:
    """The variables that *text* stands for."""
    return tuple(name for name in _REFERENCE.findall(text[: text.rfind(")") + 1]) if name)


def expand_all(texts: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Each of *texts* expanded, as the words of a command are."""
    words: list[str] = []
    size = 0
    for text in texts:
        words.append(expand(text, values))
        size += len(words[-1])
        if size > MAX_BYTES:
            raise _unfit("its command is longer than any process can have")
    return tuple(words)


def make_environment(
    container: ContainerSpec, facts: PodFacts, *, granted: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a container: what device plugins *granted*, then what its manifest says, which counts more.

    ``PodStartError`` when a variable cannot be had.
    """
    values: dict[str, str] = {}
    size = 0
    for variable in container.env:
        value = resolve_variable(variable, facts, container=container.name, known=values)
        size += len(variable.name) + len(value)
        if size > MAX_BYTES:
            raise _unfit("its environment is larger than any process can have")
        values[variable.name] = value
    return {**(granted or {}), **values}


def literal_values(container: ContainerSpec) -> dict[str, str]:
    """The variables as far as the manifest alone tells them, which is all that the commands of probes know."""
    return {variable.name: variable.value for variable in container.env}


def resolve_variable(variable: EnvVar, facts: PodFacts, *, container: str, known: Mapping[str, str]) -> str:
    """What a variable, or a file of a ``downwardAPI`` volume, is for *container*."""
    if variable.value:
        return expand(variable.value, known)
    if variable.field_path:
        return field_value(variable.field_path, facts)
    if variable.resource:
        return resource_value(variable, facts, container=container)
    return ""


def field_value(path: str, facts: PodFacts) -> str:
    """A field of the pod, such as ``metadata.name`` or ``metadata.labels['app']``."""
    pod = facts.pod
    maps = {"metadata.labels": pod.labels, "metadata.annotations": pod.annotations}
    if found := _SUBSCRIPT.fullmatch(path):
        return maps[found[1]].get(found[2], "")
    if path in maps:
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(maps[path].items()))
    texts = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": facts.host,
        "spec.serviceAccountName": facts.service_account,
        "status.hostIP": ",".join(facts.host_ips[:1]),
        "status.hostIPs": ",".join(facts.host_ips),
        "status.podIP": ",".join(facts.pod_ips[:1]),
        "status.podIPs": ",".join(facts.pod_ips),
    }
    if path not in texts:
        raise _unfit(f"unsupported fieldPath: {path}")
    return texts[path]


def resource_value(variable: EnvVar, facts: PodFacts, *, container: str) -> str:
    """A request or limit of a container in units of the divisor, rounded up."""
    owner = _container(facts.pod, variable.container_name or container)
    kind, _, name = variable.resource.partition(".")
    if kind not in {"requests", "limits"} or not (name in _DEFAULTED or names.is_hugepages(name)):
        raise _unfit(f"unsupported container resource : {variable.resource}")
    amounts = owner.resources.limits if kind == "limits" else owner.resources.requests
    amount = amounts.get(name, Quantity.ZERO)
    if kind == "limits" and amount.is_zero and name in _DEFAULTED:
        of_pod = facts.pod.resources.limits.get(name, Quantity.ZERO) if names.is_pod_level(name) else Quantity.ZERO
        amount = facts.allocatable.get(name, Quantity.ZERO) if of_pod.is_zero else of_pod
    divisor = _divisor(variable)
    if name == CPU:
        return str(-(-amount.milli() // divisor.milli()))
    return str(-(-amount.value() // divisor.value()))


def _divisor(variable: EnvVar) -> Quantity:
    try:
        divisor = Quantity.parse(variable.divisor)
    except QuantityError as error:
        raise _unfit(f"{variable.resource}: divisor {variable.divisor!r}: {error}") from error
    if divisor.sign < 0:
        raise _unfit(f"{variable.resource}: divisor {variable.divisor} is negative")
    return Quantity.of(1) if divisor.is_zero else divisor


def _container(pod: Pod, name: str) -> Container:
    for container in (*pod.containers, *pod.init):
        if container.name == name:
            return container
    raise _unfit(f"container {name} not found")


def _quoted(text: str) -> str:
    """A text in quotes, with all that cannot be printed escaped, as Go writes it."""
    return '"' + "".join(character if _plain(character) else _escaped(character) for character in text) + '"'


def _plain(character: str) -> bool:
    return character.isprintable() and character not in _ESCAPES


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    number = ord(character)
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _unfit(what: str) -> PodStartError:
    return PodStartError("CreateContainerConfigError", what)
