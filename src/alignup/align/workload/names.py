"""Names as Kubernetes spells them: DNS labels, qualified names, and what the name of a resource says about it.

A resource is known by its name alone. ``cpu`` and ``memory`` are native, ``hugepages-2Mi`` carries its page size,
``vendor.com/gpu`` is extended: counted in whole pieces and never overcommitted. Anything under ``kubernetes.io/`` is
native too, wherever in the name that stands.

A function ending in ``_faults`` says what is wrong with a name, one phrase each; an empty tuple means it is fine.
"""

import re
from functools import lru_cache

from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
HUGEPAGES = "hugepages-"  #: the page size follows

#: Objects counted by quotas: names that are standard, though no container can ask for them.
_COUNTED = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
_COMPUTE = (CPU, MEMORY, EPHEMERAL_STORAGE)
_STANDARD = (
    _COUNTED
    | {"storage", "requests.storage"}
    | {prefix + name for prefix in ("", "requests.", "limits.") for name in _COMPUTE}
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_LENGTH = 63
_SUBDOMAIN_LENGTH = 253

#: Pods repeat the same few names; strangers' names must not fill the memory.
_remembered = lru_cache(maxsize=4096)


def is_hugepages(name: str) -> bool:
    """Huge pages of some size, readable or not."""
    return name.startswith(HUGEPAGES)


def is_native(name: str) -> bool:
    """Kubernetes' own: no prefix at all, or one under ``kubernetes.io/``."""
    return "/" not in name or "kubernetes.io/" in name


@_remembered
def is_extended(name: str) -> bool:
    """A resource somebody added to the cluster, such as a device plugin's; quotas must be able to name it too."""
    return not is_native(name) and not name.startswith("requests.") and not qualified_faults(f"requests.{name}")


def is_overcommittable(name: str) -> bool:
    """Whether limits may exceed requests."""
    return is_native(name) and not is_hugepages(name)


def is_counted(name: str) -> bool:
    """Whether only whole amounts make sense."""
    return name in _COUNTED or is_extended(name)


@_remembered
def is_scalar(name: str) -> bool:
    """Whether the fit check counts it beside cpu, memory and ephemeral storage."""
    return is_extended(name) or "kubernetes.io/" in name or is_hugepages(name) or name.startswith("attachable-volumes-")


def is_pod_level(name: str) -> bool:
    """Whether the resources of the pod itself may name it."""
    return name in {CPU, MEMORY} or is_hugepages(name)


@_remembered
def page_size(name: str) -> int | None:
    """The bytes of one page of a huge-page resource; ``None`` when its name holds no usable size."""
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES))
    except QuantityError:
        return None
    if size.sign <= 0 or size.milli() % 1000:
        return None
    return size.value() or None


def label_faults(text: str) -> tuple[str, ...]:
    """What keeps *text* from being a DNS label, as container names and namespaces are."""
    faults = []
    if len(text) > _LABEL_LENGTH:
        faults.append(f"must be no more than {_LABEL_LENGTH} characters")
    if not _LABEL.fullmatch(text):
        faults.append("must be lower case letters, digits and '-', with a letter or digit at both ends")
    return tuple(faults)


def subdomain_faults(text: str) -> tuple[str, ...]:
    """What keeps *text* from being a DNS subdomain, as pod names are."""
    faults = []
    if len(text) > _SUBDOMAIN_LENGTH:
        faults.append(f"must be no more than {_SUBDOMAIN_LENGTH} characters")
    if not _SUBDOMAIN.fullmatch(text):
        faults.append(
            "must be lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part"
        )
    return tuple(faults)


def qualified_faults(text: str) -> tuple[str, ...]:
    """What keeps *text* from being a name with an optional DNS subdomain and ``/`` before it."""
    head, slash, tail = text.partition("/")
    if "/" in tail:
        return ("must be a name with at most one prefix and '/', such as example.com/name",)
    name = tail if slash else head
    faults = []
    if slash and not head:
        faults.append("prefix part must be non-empty")
    elif slash:
        faults += [f"prefix part {fault}" for fault in subdomain_faults(head)]
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > _LABEL_LENGTH:
        faults.append(f"name part must be no more than {_LABEL_LENGTH} characters")
    if not _NAME_PART.fullmatch(name):
        faults.append("name part must be letters, digits, '-', '_' and '.', with a letter or digit at both ends")
    return tuple(faults)


@_remembered
def container_resource_faults(name: str) -> tuple[str, ...]:
    """What keeps a container from asking for a resource of this name."""
    faults = _resource_faults(name)
    if "/" not in name:
        known = name in _COMPUTE or is_hugepages(name)
        return faults if known else (*faults, "must be a standard resource for containers")
    if is_native(name) or is_extended(name):
        return faults
    return (*faults, "doesn't follow extended resource name standard")


@_remembered
def pod_resource_faults(name: str) -> tuple[str, ...]:
    """What keeps the pod itself from asking for a resource of this name."""
    faults = _resource_faults(name)
    if faults or is_pod_level(name):
        return faults
    return ("must be cpu, memory or hugepages-<size>: a pod as a whole asks for nothing else",)


def _resource_faults(name: str) -> tuple[str, ...]:
    """What is wrong with the name of a resource wherever it is used."""
    faults = qualified_faults(name)
    if faults or "/" in name or name in _STANDARD or is_hugepages(name.removeprefix("requests.")):
        return faults
    return ("must be a standard resource type or fully qualified",)
