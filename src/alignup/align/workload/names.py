"""Names in Kubernetes: DNS labels, qualified names, and the properties of a resource by its name.

A resource is identified by its name alone. ``cpu`` and ``memory`` are native, ``hugepages-2Mi`` contains its page size,
``vendor.com/gpu`` is extended: a whole number that is never overcommitted. Every name that contains ``kubernetes.io/``
is native too.

A function ending in ``_problems`` returns what is wrong with a name, one phrase each.
"""

import re
from functools import lru_cache, partial

from alignup.align.errors import QuantityError
from alignup.align.quantity import Quantity

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
HUGEPAGES = "hugepages-"  #: the page size follows
#: With these annotations a pod can choose its own policy and scope, if the settings allow it.
POLICY_ANNOTATION, SCOPE_ANNOTATION = "topology.alignup.dev/policy", "topology.alignup.dev/scope"
CLAIMS_ANNOTATION = "topology.alignup.dev/claims"  #: whether CPUs must be beside the devices of claims
DEVICES_ANNOTATION = "topology.alignup.dev/devices"  #: how near the devices of a container must be to each other
NEVER_MOVE_ANNOTATION = "topology.alignup.dev/never-move"  #: of pods that no plan evicts, unless it is "false"
MARKER = "alignup.dev/numa"  #: the resource of devices that stand for NUMA nodes
NUMA_ANNOTATION = "topology.alignup.dev/numa"  #: which of the NUMA nodes a pod with a marker goes to

#: Objects counted by quotas: standard names that no container can request.
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

#: Before the name of a DeviceClass: every class can be requested as an extended resource with this prefix.
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_LENGTH = 63

_cached = lru_cache(maxsize=4096)  #: pods repeat the same few names


def is_hugepages(name: str) -> bool:
    """Return whether *name* is the name of huge pages of any size, even of a malformed size."""
    return name.startswith(HUGEPAGES)


def is_native(name: str) -> bool:
    """Return whether Kubernetes defines it: without a prefix, or with ``kubernetes.io/`` in its name."""
    return "/" not in name or "kubernetes.io/" in name


@_cached
def is_extended(name: str) -> bool:
    """Return whether it was added to the cluster, as by a device plugin; quotas must be able to name it too."""
    return not is_native(name) and not name.startswith("requests.") and not qualified_problems(f"requests.{name}")


@_cached
def is_overcommittable(name: str) -> bool:
    return is_native(name) and not is_hugepages(name)


@_cached
def is_counted(name: str) -> bool:
    """Return whether only whole amounts are valid."""
    return name in _COUNTED or is_extended(name)


@_cached
def is_scalar(name: str) -> bool:
    """Return whether the fit check counts it besides cpu, memory and ephemeral storage."""
    return is_extended(name) or "kubernetes.io/" in name or is_hugepages(name) or name.startswith("attachable-volumes-")


def is_device_class(name: str) -> bool:
    """Return whether *name* requests devices of a DeviceClass by its name."""
    return name.startswith(DEVICE_CLASS_PREFIX)


def is_pod_level(name: str) -> bool:
    return name in {CPU, MEMORY} or is_hugepages(name)


@_cached
def page_size(name: str) -> int | None:
    """Return the page size in bytes of a huge page resource; ``None`` if its name contains no valid size."""
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES))
    except QuantityError:
        return None
    if size.sign <= 0 or size.milli() % 1000:
        return None
    return size.value() or None


def _form_problems(text: str, *, pattern: re.Pattern[str], form: str, most: int) -> tuple[str, ...]:
    too_long = (f"must be no more than {most} characters",) if len(text) > most else ()
    return too_long if pattern.fullmatch(text) else (*too_long, f"must be {form}")


label_problems = partial(
    _form_problems,
    pattern=_LABEL,
    form="lower case letters, digits and '-', with a letter or digit at both ends",
    most=_LABEL_LENGTH,
)
subdomain_problems = partial(
    _form_problems,
    pattern=_SUBDOMAIN,
    form="lower case letters, digits, '-' and '.', with a letter or digit at both ends of each part",
    most=253,
)


def qualified_problems(text: str) -> tuple[str, ...]:
    """Return what is wrong with a name with an optional DNS subdomain and ``/`` before it."""
    head, slash, tail = text.partition("/")
    if "/" in tail:
        return ("must be a name with at most one prefix and '/', such as example.com/name",)
    name = tail if slash else head
    problems = []
    if slash and not head:
        problems.append("prefix part must be non-empty")
    elif slash:
        problems += [f"prefix part {problem}" for problem in subdomain_problems(head)]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > _LABEL_LENGTH:
        problems.append(f"name part must be no more than {_LABEL_LENGTH} characters")
    if not _NAME_PART.fullmatch(name):
        problems.append("name part must be letters, digits, '-', '_' and '.', with a letter or digit at both ends")
    return tuple(problems)


@_cached
def container_resource_problems(name: str) -> tuple[str, ...]:
    problems = _resource_problems(name)
    if "/" not in name:
        is_standard = name in _COMPUTE or is_hugepages(name)
        return problems if is_standard else (*problems, "must be a standard resource for containers")
    if is_native(name) or is_extended(name):
        return problems
    return (*problems, "doesn't follow extended resource name standard")


@_cached
def pod_resource_problems(name: str) -> tuple[str, ...]:
    problems = _resource_problems(name)
    if problems or is_pod_level(name):
        return problems
    return ("must be cpu, memory or hugepages-<size> in pod-level resources",)


def _resource_problems(name: str) -> tuple[str, ...]:
    problems = qualified_problems(name)
    if problems or "/" in name or name in _STANDARD or is_hugepages(name.removeprefix("requests.")):
        return problems
    return ("must be a standard resource type or fully qualified",)
