"""What a kubelet starts with, but does not treat as one may think: fields it passes over, traps, odd reservations."""

from collections.abc import Iterator

from alignup.align import bits
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import KUBELET_MAX_NODES, Policy, Scope
from alignup.align.workload.names import CPU
from alignup.doctor.findings import Area, Finding, format_cpus, note, warning
from alignup.doctor.manager_inputs import ManagerInputs
from alignup.doctor.managers import reserved_memory_yaml
from alignup.kube.configuration.model import DEFAULT_EVICTION_HARD
from alignup.kube.yaml_output import to_yaml

_AVAILABLE = "memory.available"


def find_warnings(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Everything about *inquiry* that surprises people; only what is surely so."""
    yield from _eviction(inquiry)
    yield from _unread(inquiry)
    yield from _replaced(inquiry)
    yield from _topology(inquiry)
    provider = inquiry.corrected_cpu_provider()
    if provider:
        yield from _cores(inquiry, provider)
        yield from _left(inquiry, provider)
        yield from _one_sided(inquiry, provider)
        yield from _shared(inquiry, provider)
    yield from _wrapped(inquiry)


def _eviction(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Thresholds that are given replace all of the kubelet's own."""
    found = inquiry.configuration
    if "evictionHard" in found.given and _AVAILABLE not in found.eviction_hard and inquiry.knows_memory_reservation:
        usual = DEFAULT_EVICTION_HARD[_AVAILABLE]
        paste = to_yaml({"evictionHard": {_AVAILABLE: usual, **found.eviction_hard}})
        # With it another reservedMemory is right than the one that may be proposed beside it.
        static = found.memory_manager_policy == MemoryPolicy.STATIC
        yield warning(
            Area.CONFIGURATION,
            f"it is given without {_AVAILABLE}: no memory is kept free, and the usual {usual} does not apply",
            advice="add it, or set mergeDefaultEvictionSettings to true; reservedMemory has to grow by as much",
            where="evictionHard",
            paste="" if static else paste,
        )


def _unread(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Fields that a policy never looks at."""
    found, lost = inquiry.configuration, inquiry.reading.has_dropped
    if inquiry.policy is Policy.NONE:
        if found.topology_manager_policy_options:
            yield _passed_over(Area.TOPOLOGY, "topologyManagerPolicyOptions", "topologyManagerPolicy", "none")
        if found.topology_manager_scope == Scope.POD:
            yield _passed_over(Area.TOPOLOGY, "topologyManagerScope", "topologyManagerPolicy", "none")
    none = found.memory_manager_policy == MemoryPolicy.NONE and not lost("memoryManagerPolicy")
    if none and found.reserved_memory:
        yield _passed_over(Area.MEMORY, "reservedMemory", "memoryManagerPolicy", "None")
    if (
        found.cpu_manager_policy == CpuPolicy.NONE
        and inquiry.told.reserved_system_cpus
        and not lost("cpuManagerPolicy")
    ):
        yield warning(
            Area.CPUS,
            "under cpuManagerPolicy none they are only counted: containers run on them as on all others",
            advice="set cpuManagerPolicy to static, with strict-cpu-reservation to keep all containers off them",
            where="reservedSystemCPUs",
        )


def _passed_over(area: Area, field: str, policy: str, name: str) -> Finding:
    return warning(
        area,
        f"it is not looked at under {policy} {name}",
        advice=f"leave it out, or choose another {policy}",
        where=field,
    )


def _replaced(inquiry: ManagerInputs) -> Iterator[Finding]:
    """``reservedSystemCPUs`` takes the place of CPUs that are reserved by number."""
    found, count = inquiry.configuration, inquiry.told.reserved_system_cpus.bit_count()
    if not count:
        return
    for field, texts in (("systemReserved", found.system_reserved), ("kubeReserved", found.kube_reserved)):
        if CPU in texts and not (field == "systemReserved" and texts[CPU] == str(count)):
            yield warning(
                Area.CPUS,
                f"it is not looked at beside reservedSystemCPUs: {count} CPUs are reserved in all",
                advice=f"leave out {field}.cpu",
                where=f"{field}[cpu]",
            )


def _topology(inquiry: ManagerInputs) -> Iterator[Finding]:
    """Policies that go together without serving any purpose."""
    found, policy, nodes = inquiry.configuration, inquiry.policy, len(inquiry.view.nodes)
    if policy is None or inquiry.reading.has_dropped("cpuManagerPolicy", "memoryManagerPolicy"):
        return
    static = found.cpu_manager_policy == CpuPolicy.STATIC
    own_memory = found.memory_manager_policy == MemoryPolicy.STATIC
    if nodes == 1 and policy is not Policy.NONE:
        yield note(Area.TOPOLOGY, "the machine has one NUMA node, so there is nothing to align")
    if nodes > 1 and policy is Policy.NONE and own_memory:
        yield warning(
            Area.MEMORY,
            "memory is pinned, but not to where a container's CPUs and devices are: topologyManagerPolicy is none",
            advice="set topologyManagerPolicy to best-effort, restricted or single-numa-node",
            where="memoryManagerPolicy",
        )
    if nodes > 1 and policy is Policy.NONE and static:
        yield note(
            Area.CPUS,
            "containers own CPUs, which are not aligned with their devices: topologyManagerPolicy is none",
            where="topologyManagerPolicy",
        )
    if nodes > 1 and policy is not Policy.NONE and not static and not own_memory:
        yield note(
            Area.TOPOLOGY,
            "only devices are aligned: the CPU and the memory manager have no policy of their own",
            where="topologyManagerPolicy",
        )
    yield from _topology_options(inquiry)


def _topology_options(inquiry: ManagerInputs) -> Iterator[Finding]:
    options, nodes = inquiry.configuration.topology_manager_policy_options, len(inquiry.view.nodes)
    closest = options.get("prefer-closest-numa-nodes", "false")
    if inquiry.policy is Policy.SINGLE_NUMA_NODE and closest in {"1", "t", "T", "TRUE", "true", "True"}:
        yield warning(
            Area.TOPOLOGY,
            "it changes nothing under single-numa-node, where one node is chosen, never several",
            advice="leave it out",
            where="topologyManagerPolicyOptions[prefer-closest-numa-nodes]",
        )
    allowed = options.get("max-allowable-numa-nodes", "")
    if inquiry.policy not in {None, Policy.NONE} and nodes > KUBELET_MAX_NODES and allowed.isdecimal():
        yield warning(
            Area.TOPOLOGY,
            f"the machine has {nodes} NUMA nodes: up to {2**nodes - 1} hints a resource, of which every combination "
            "is tried when a pod is admitted, however long it takes",
            advice="let pods ask for few aligned resources, or have the machine present fewer nodes",
            where="topologyManagerPolicyOptions[max-allowable-numa-nodes]",
        )


def _reserving(inquiry: ManagerInputs) -> str:
    """The field that says which CPUs are reserved, or how many."""
    return "reservedSystemCPUs" if inquiry.told.reserved_system_cpus else "systemReserved[cpu]"


def _cores(inquiry: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    """Cores of which only a part is reserved."""
    if not provider.options.full_pcpus_only:
        return
    for core, cpus in inquiry.view.core_cpus.items():
        rest = cpus & ~provider.reserved
        if rest and rest != cpus:
            cgroups = inquiry.configuration.system_reserved_cgroup or inquiry.configuration.kube_reserved_cgroup
            whole = {"reservedSystemCPUs": bits.show(provider.reserved_cores)}
            yield warning(
                Area.CPUS,
                f"core {core} ({format_cpus(cpus)}) is reserved in part: full-pcpus-only does not count "
                f"{format_cpus(rest)} as free, yet a container may be given it",
                advice="reserve whole cores",
                where=_reserving(inquiry),
                paste="" if cgroups else to_yaml(whole),
            )
            return


def _left(inquiry: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    """Reservations that leave nothing, or let nothing be left."""
    strict = provider.options.strict_cpu_reservation
    if not provider.allocatable:
        rest = ", and none is left for the others to share (strict-cpu-reservation)" if strict else ""
        yield warning(
            Area.CPUS,
            f"all CPUs are reserved: no container can own any{rest}",
            advice="reserve fewer CPUs",
            where=_reserving(inquiry),
        )
    elif strict:
        yield note(
            Area.CPUS,
            "once containers own every CPU that is not reserved, the kubelet does not start "
            'again ("default cpuset cannot be empty")',
            advice="keep a CPU shared; if it has happened, alignup doctor --kubelet-dir DIR --write helps",
            where="cpuManagerPolicyOptions[strict-cpu-reservation]",
        )


def _one_sided(inquiry: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    """All reserved CPUs on one node."""
    nodes = inquiry.view.node_cpus
    touched = [node for node, cpus in nodes.items() if cpus & provider.reserved]
    if len(nodes) > 1 and len(touched) == 1 and provider.allocatable:
        node, cpus = touched[0], nodes[touched[0]]
        left = (cpus & ~provider.reserved).bit_count()
        yield note(
            Area.CPUS,
            f"all reserved CPUs are on NUMA node {node}: {left} of its {cpus.bit_count()} are left to be owned",
            where=_reserving(inquiry),
        )


def _shared(inquiry: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    """Reserved CPUs are shared unless one says otherwise."""
    if inquiry.told.reserved_system_cpus and not provider.options.strict_cpu_reservation:
        yield note(
            Area.CPUS,
            "containers that own no CPUs run on the reserved ones too",
            advice='cpuManagerPolicyOptions strict-cpu-reservation: "true" keeps them off',
            where=_reserving(inquiry),
        )


def _wrapped(inquiry: ManagerInputs) -> Iterator[Finding]:
    """More reserved on a node than it has, which the kubelet does not notice."""
    kept = inquiry.reserved_memory()
    for what in reserved_memory.excess_reservations(inquiry.view.nodes, kept or {}):
        yield warning(
            Area.MEMORY,
            f"{what}: the kubelet does not look, and believes to have almost 2⁶⁴ bytes there",
            advice="reserve it where there is memory",
            where="reservedMemory",
            paste=reserved_memory_yaml(inquiry),
        )
