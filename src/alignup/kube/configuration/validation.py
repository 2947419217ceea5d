"""The kubelet's validation of a configuration, with its messages in its order.

Only fields that affect alignment are checked. CPU and memory manager policies, options, reservations and thresholds are
not part of validation: they fail later, where they are used.
"""

from collections.abc import Iterator

from alignup.align import bits
from alignup.align.bits import quote
from alignup.align.errors import ParseError, Problem
from alignup.align.memory import reserved_memory
from alignup.align.settings import Policy, Scope
from alignup.kube.configuration.model import Configuration

_NONE = "none"
_SYSTEM = ("system-reserved", "system-reserved-compressible")
_KUBE = ("kube-reserved", "kube-reserved-compressible")
_KNOWN = ("pods", *_SYSTEM, *_KUBE)
_OPTIONS = f"{', '.join(map(quote, _KNOWN))} or {quote(_NONE)}"
_ENFORCE = "enforceNodeAllocatable"
_ENFORCE_FLAG = f"{_ENFORCE} (--enforce-node-allocatable)"


def problems(configuration: Configuration) -> tuple[Problem, ...]:
    """All validation errors, without duplicates."""
    found = dict.fromkeys((*_fields(configuration), *_enforcement(configuration), *_reserved_cpus(configuration)))
    memory = reserved_memory.reservation_problems(configuration.reserved_memory)
    return (
        *(Problem(field, f"invalid configuration: {what}") for field, what in found),
        *(Problem("reservedMemory", what) for what in dict.fromkeys(memory)),
    )


def _fields(configuration: Configuration) -> Iterator[tuple[str, str]]:
    for field, flag, number in (
        ("maxPods", "--max-pods", configuration.max_pods),
        ("podsPerCore", "--pods-per-core", configuration.pods_per_core),
    ):
        if number < 0:
            yield field, f"{field} ({flag}) {number} must not be a negative number"
    policy, scope = configuration.topology_manager_policy, configuration.topology_manager_scope
    if policy not in set(Policy):
        what = f"(--topology-manager-policy) {quote(policy)} must be one of: [{' '.join(map(quote, Policy))}]"
        yield "topologyManagerPolicy", f"topologyManagerPolicy {what}"
    if scope not in set(Scope):
        what = f"(--topology-manager-scope) {quote(scope)} must be one of: {', or '.join(map(quote, Scope))}"
        yield "topologyManagerScope", f"topologyManagerScope {what}"


def _enforcement(configuration: Configuration) -> Iterator[tuple[str, str]]:
    chosen = configuration.enforce_node_allocatable
    for pair in (_SYSTEM, _KUBE):
        if set(pair) <= set(chosen):
            both = " and ".join(map(quote, pair))
            yield _ENFORCE, f"both {both} cannot be specified together in {_ENFORCE_FLAG}"
    for index, name in enumerate(chosen):
        if name in chosen[:index]:
            yield _ENFORCE, f"duplicated enforcements {quote(name)} in {_ENFORCE_FLAG}"
        elif name in _KNOWN:
            yield from _enforced(name, configuration)
        elif name != _NONE:
            yield _ENFORCE, f"option {quote(name)} specified for {_ENFORCE_FLAG}. Valid options are {_OPTIONS}"
        elif len(chosen) > 1:
            what = f"may not contain additional enforcements when {quote(_NONE)} is specified"
            yield _ENFORCE, f"{_ENFORCE_FLAG} {what}"


def _enforced(name: str, configuration: Configuration) -> Iterator[tuple[str, str]]:
    for names, field, flag, cgroup in (
        (_SYSTEM, "systemReservedCgroup", "--system-reserved-cgroup", configuration.system_reserved_cgroup),
        (_KUBE, "kubeReservedCgroup", "--kube-reserved-cgroup", configuration.kube_reserved_cgroup),
    ):
        if name in names and not cgroup:
            either = " or ".join(map(quote, names))
            yield field, f"{field} ({flag}) must be specified when {either} included in {_ENFORCE_FLAG}"
    if not configuration.cgroups_per_qos:
        what = f"(--cgroups-per-qos) must be set to true when {quote(name)} contained in {_ENFORCE_FLAG}"
        yield "cgroupsPerQOS", f"cgroupsPerQOS {what}"


def _reserved_cpus(configuration: Configuration) -> Iterator[tuple[str, str]]:
    field, cpus = "reservedSystemCPUs", configuration.reserved_system_cpus
    if not cpus:
        return
    if configuration.system_reserved_cgroup or configuration.kube_reserved_cgroup:
        cgroups = "systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
        yield field, f"can't use {field} (--reserved-cpus) with {cgroups}"
    try:
        bits.parse_spans(cpus)
    except ParseError as error:
        yield field, f"unable to parse {field} (--reserved-cpus) {cpus}, error: {error}"
