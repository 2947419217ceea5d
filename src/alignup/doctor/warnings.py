"""Settings that a kubelet starts with but treats in a surprising way: ignored fields, traps, odd reservations."""

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
from alignup.kube.documents import to_yaml

_AVAILABLE = "memory.available"


def find_warnings(inputs: ManagerInputs) -> Iterator[Finding]:
    """Warnings and notes, only where they are certain."""
    yield from _missing_eviction_threshold(inputs)
    yield from _ignored_fields(inputs)
    yield from _ignored_cpu_counts(inputs)
    if inputs.policy is not None and not inputs.has_dropped("cpuManagerPolicy", "memoryManagerPolicy"):
        yield from _pointless_policies(inputs, inputs.policy)
        yield from _topology_options(inputs, inputs.policy)
    if provider := inputs.corrected_cpu_provider():
        yield from _partly_reserved_cores(inputs, provider)
        yield from _reserved_cpus(inputs, provider)
    # The kubelet does not notice when more is reserved on a node than it has.
    for excess in reserved_memory.excess_reservations(inputs.view.nodes, inputs.reserved_memory() or {}):
        summary = f"{excess}: the kubelet does not check this, and assumes almost 2⁶⁴ bytes there"
        advice, paste = "reserve memory on nodes that have enough", reserved_memory_yaml(inputs)
        yield warning(Area.MEMORY, summary, advice=advice, where="reservedMemory", paste=paste)


def _missing_eviction_threshold(inputs: ManagerInputs) -> Iterator[Finding]:
    """A given ``evictionHard`` replaces all defaults."""
    found = inputs.configuration
    if "evictionHard" in found.given and _AVAILABLE not in found.eviction_hard and inputs.knows_memory_reservation:
        default = DEFAULT_EVICTION_HARD[_AVAILABLE]
        paste = to_yaml({"evictionHard": {_AVAILABLE: default, **found.eviction_hard}})
        # It changes the total, so it would contradict a reservedMemory proposed in the same run.
        static = found.memory_manager_policy == MemoryPolicy.STATIC
        yield warning(
            Area.CONFIGURATION,
            f"{_AVAILABLE} is missing: the kubelet keeps no memory free, and the default of {default} does not apply",
            advice=f"add {_AVAILABLE} or set mergeDefaultEvictionSettings to true, and raise reservedMemory to match",
            where="evictionHard",
            paste="" if static else paste,
        )


def _ignored_fields(inputs: ManagerInputs) -> Iterator[Finding]:
    found, dropped = inputs.configuration, inputs.has_dropped
    if inputs.policy is Policy.NONE:
        if found.topology_manager_policy_options:
            yield _ignored(Area.TOPOLOGY, "topologyManagerPolicyOptions", "topologyManagerPolicy", "none")
        if found.topology_manager_scope == Scope.POD:
            yield _ignored(Area.TOPOLOGY, "topologyManagerScope", "topologyManagerPolicy", "none")
    no_memory_policy = found.memory_manager_policy == MemoryPolicy.NONE and not dropped("memoryManagerPolicy")
    if no_memory_policy and found.reserved_memory:
        yield _ignored(Area.MEMORY, "reservedMemory", "memoryManagerPolicy", "None")
    no_cpu_policy = found.cpu_manager_policy == CpuPolicy.NONE and not dropped("cpuManagerPolicy")
    if no_cpu_policy and inputs.reservations.reserved_system_cpus:
        summary = "cpuManagerPolicy none only counts these CPUs: containers run on them as on all others"
        advice = "set cpuManagerPolicy to static, and strict-cpu-reservation to keep all containers off them"
        yield warning(Area.CPUS, summary, advice=advice, where="reservedSystemCPUs")


def _ignored(area: Area, field: str, policy: str, name: str) -> Finding:
    advice = f"remove it, or choose another {policy}"
    return warning(area, f"ignored under {policy} {name}", advice=advice, where=field)


def _ignored_cpu_counts(inputs: ManagerInputs) -> Iterator[Finding]:
    """``reservedSystemCPUs`` replaces CPUs reserved by count."""
    found, count = inputs.configuration, inputs.reservations.reserved_system_cpus.bit_count()
    if not count:
        return
    for field, texts in (("systemReserved", found.system_reserved), ("kubeReserved", found.kube_reserved)):
        if CPU in texts and not (field == "systemReserved" and texts[CPU] == str(count)):
            summary = f"ignored because reservedSystemCPUs is set: {count} CPUs are reserved in total"
            yield warning(Area.CPUS, summary, advice=f"remove {field}.cpu", where=f"{field}[cpu]")


def _pointless_policies(inputs: ManagerInputs, policy: Policy) -> Iterator[Finding]:
    found, nodes = inputs.configuration, len(inputs.view.nodes)
    static_cpus = found.cpu_manager_policy == CpuPolicy.STATIC
    static_memory = found.memory_manager_policy == MemoryPolicy.STATIC
    if nodes == 1 and policy is not Policy.NONE:
        yield note(Area.TOPOLOGY, "the machine has one NUMA node: there is nothing to align")
    if nodes > 1 and policy is Policy.NONE and static_memory:
        summary = "memory is pinned, but not aligned with CPUs and devices: topologyManagerPolicy is none"
        advice = "set topologyManagerPolicy to best-effort, restricted or single-numa-node"
        yield warning(Area.MEMORY, summary, advice=advice, where="memoryManagerPolicy")
    if nodes > 1 and policy is Policy.NONE and static_cpus:
        summary = "exclusive CPUs are not aligned with devices: topologyManagerPolicy is none"
        yield note(Area.CPUS, summary, where="topologyManagerPolicy")
    if nodes > 1 and policy is not Policy.NONE and not static_cpus and not static_memory:
        summary = "only devices are aligned: the CPU and memory managers have policy none"
        yield note(Area.TOPOLOGY, summary, where="topologyManagerPolicy")


def _topology_options(inputs: ManagerInputs, policy: Policy) -> Iterator[Finding]:
    options, nodes = inputs.configuration.topology_manager_policy_options, len(inputs.view.nodes)
    closest = options.get("prefer-closest-numa-nodes", "false")
    if policy is Policy.SINGLE_NUMA_NODE and closest in {"1", "t", "T", "TRUE", "true", "True"}:
        summary = "no effect under single-numa-node, which always chooses one node"
        where = "topologyManagerPolicyOptions[prefer-closest-numa-nodes]"
        yield warning(Area.TOPOLOGY, summary, advice="remove it", where=where)
    allowed = options.get("max-allowable-numa-nodes", "")
    if policy is not Policy.NONE and nodes > KUBELET_MAX_NODES and allowed.isdecimal():
        yield warning(
            Area.TOPOLOGY,
            f"the machine has {nodes} NUMA nodes: up to {2**nodes - 1} hints per resource, and the kubelet tries every "
            "combination of them when it admits a pod, however long that takes",
            advice="request few aligned resources per pod, or configure the machine to expose fewer nodes",
            where="topologyManagerPolicyOptions[max-allowable-numa-nodes]",
        )


def _reserving_field(inputs: ManagerInputs) -> str:
    return "reservedSystemCPUs" if inputs.reservations.reserved_system_cpus else "systemReserved[cpu]"


def _partly_reserved_cores(inputs: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    if not provider.options.full_pcpus_only:
        return
    for core, cpus in inputs.view.core_cpus.items():
        rest = cpus & ~provider.reserved
        if rest and rest != cpus:
            cgroups = inputs.configuration.system_reserved_cgroup or inputs.configuration.kube_reserved_cgroup
            whole_cores = {"reservedSystemCPUs": bits.show(provider.reserved_cores)}
            yield warning(
                Area.CPUS,
                f"core {core} ({format_cpus(cpus)}) is partly reserved: full-pcpus-only does not count "
                f"{format_cpus(rest)} as free, yet a container may get it",
                advice="reserve whole cores",
                where=_reserving_field(inputs),
                paste="" if cgroups else to_yaml(whole_cores),
            )
            return


def _reserved_cpus(inputs: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    strict, where = provider.options.strict_cpu_reservation, _reserving_field(inputs)
    if not provider.allocatable:
        pool = ", and the shared pool is empty (strict-cpu-reservation)" if strict else ""
        summary = f"all CPUs are reserved: no container can get exclusive CPUs{pool}"
        yield warning(Area.CPUS, summary, advice="reserve fewer CPUs", where=where)
    elif strict:
        yield note(
            Area.CPUS,
            "once containers hold every CPU that is not reserved, the kubelet does not restart "
            '("default cpuset cannot be empty")',
            advice="keep a CPU shared; to recover, run alignup doctor --kubelet-dir DIR --write",
            where="cpuManagerPolicyOptions[strict-cpu-reservation]",
        )
    nodes = inputs.view.node_cpus
    reserving = [node for node, cpus in nodes.items() if cpus & provider.reserved]
    if len(nodes) > 1 and len(reserving) == 1 and provider.allocatable:
        node, cpus = reserving[0], nodes[reserving[0]]
        left = f"{(cpus & ~provider.reserved).bit_count()} of its {cpus.bit_count()}"
        summary = f"all reserved CPUs are on NUMA node {node}: {left} are left for exclusive use"
        yield note(Area.CPUS, summary, where=where)
    if inputs.reservations.reserved_system_cpus and not strict:
        summary = "containers without exclusive CPUs also run on the reserved CPUs"
        advice = 'set cpuManagerPolicyOptions strict-cpu-reservation to "true" to keep them off'
        yield note(Area.CPUS, summary, advice=advice, where=where)
