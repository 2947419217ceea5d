"""The meaning of a configuration on a machine: for the kubelet's managers and the node status."""

from collections.abc import Iterator

from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem, ProblemKind, QuantityError, SettingsError
from alignup.align.fit import PODS
from alignup.align.host import Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, Scope, TopologySettings
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.fields import Configuration, StartupStage
from alignup.kubernetes.configuration.node_allocatable import (
    NodeReservations,
    NodeStatus,
    compute_node_allocatable,
    compute_reservations,
    subtract,
)


def host_settings(configuration: Configuration, machine: Machine, *, limit_nodes: bool = True) -> Settings:
    """Return the settings of a host; :class:`ConfigurationError` of any stage up to topology_manager.

    ``Host`` or :func:`startup_errors` report the errors of the CPU and memory managers, and those of the topology
    manager that depend on the machine. Without *limit_nodes* the kubelet's limit on NUMA nodes does not apply.
    """
    reservations = compute_reservations(configuration, machine)
    gates = feature_gates.resolve(configuration.feature_gates)
    try:
        topology = _topology_settings(configuration, gates, limit_nodes=limit_nodes)
    except SettingsError as error:
        field = _topology_field(configuration)
        raise _manager_error(error, field, StartupStage.TOPOLOGY_MANAGER, configuration) from None
    return Settings(
        topology=topology,
        cpus=_cpu_settings(configuration, reservations),
        memory_policy=configuration.memory_manager_policy,
        reserved_memory=configuration.reserved_memory,
        reservation=reservations.reservation,
        gates=gates,
        max_pods=_max_pods(configuration, machine.kubelet_view()),
    )


def startup_errors(
    configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None, limit_nodes: bool = True
) -> tuple[ConfigurationError, ...]:
    """Return everything that keeps a kubelet from starting on *machine*, in the order of its startup.

    All managers are checked, even after an error; only an invalid reservation comes alone, since every manager needs
    the reservations. *ephemeral_storage* is in bytes, or ``None`` if it is unknown.
    """
    try:
        reservations = compute_reservations(configuration, machine)
    except ConfigurationError as error:
        return (error,)
    errors = tuple(_manager_errors(configuration, machine.kubelet_view(), reservations, limit_nodes=limit_nodes))
    try:
        excess = compute_node_allocatable(configuration, machine, ephemeral_storage=ephemeral_storage).excess
    except ConfigurationError as error:
        return (*errors, error)
    if not excess:
        return errors
    prefixes = ("invalid Node Allocatable configuration. ", *[""] * len(excess))
    problems = [
        Problem(f"systemReserved[{over.resource}]", f"{prefix}{over}")
        for prefix, over in zip(prefixes, excess, strict=False)
    ]
    return (*errors, ConfigurationError(problems, stage=StartupStage.NODE_ALLOCATABLE, source=configuration.source))


def node_status(configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None) -> NodeStatus:
    """Return capacity and allocatable as in the Node object; :class:`ConfigurationError` for invalid reservations."""
    resources = compute_node_allocatable(configuration, machine, ephemeral_storage=ephemeral_storage)
    pods = Quantity.of(_max_pods(configuration, machine.kubelet_view()))
    left = subtract(resources.capacity, resources.reservation)
    for name, amount in resources.capacity.items():
        if names.is_hugepages(name):
            left = subtract(left, {MEMORY: amount})
    return NodeStatus(capacity={**resources.capacity, PODS: pods}, allocatable={**left, PODS: pods})


def _manager_errors(
    configuration: Configuration, view: KubeletView, reservations: NodeReservations, *, limit_nodes: bool
) -> Iterator[ConfigurationError]:
    gates, reservation = feature_gates.resolve(configuration.feature_gates), reservations.reservation
    try:
        topology = _topology_settings(configuration, gates, limit_nodes=limit_nodes)
        topology.check_machine(nodes=len(view.nodes), distances=view.distances is not None)
    except SettingsError as error:
        yield _manager_error(error, _topology_field(configuration), StartupStage.TOPOLOGY_MANAGER, configuration)
    cpus, policy = _cpu_settings(configuration, reservations), Policy(configuration.topology_manager_policy)
    try:
        CpuProvider.create(view, cpus, topology=policy, gates=gates)
    except (SettingsError, QuantityError) as error:
        field, advice = _cpu_field(cpus, view, policy, gates), None
        if CPU not in reservation and field != "cpuManagerPolicy":
            advice = "reserve CPUs: systemReserved.cpu, kubeReserved.cpu or reservedSystemCPUs"
        yield _manager_error(error, field, StartupStage.CPU_MANAGER, configuration, advice)
    static = configuration.memory_manager_policy == MemoryPolicy.STATIC
    try:
        if MemoryPolicy(configuration.memory_manager_policy) is MemoryPolicy.STATIC:
            reserved_memory.reserved_by_node(configuration.reserved_memory, reservation, nodes=view.nodes)
    except (SettingsError, QuantityError) as error:
        field, advice = "reservedMemory" if static else "memoryManagerPolicy", None
        if static:
            advice = _memory_advice(reservations, view)
        yield _manager_error(error, field, StartupStage.MEMORY_MANAGER, configuration, advice)


def _topology_field(configuration: Configuration) -> str:
    """Return the field that an error of the topology manager is about."""
    if configuration.topology_manager_policy not in set(Policy):
        return "topologyManagerPolicy"
    return (
        "topologyManagerPolicyOptions" if configuration.topology_manager_scope in set(Scope) else "topologyManagerScope"
    )


def _cpu_field(settings: CpuSettings, view: KubeletView, topology: Policy, gates: FeatureGates) -> str:
    """Return the field that an error of the CPU manager is about: that of its first check that fails."""
    if settings.policy not in set(CpuPolicy):
        return "cpuManagerPolicy"
    if settings.policy == CpuPolicy.NONE:
        return "cpuManagerPolicyOptions"
    if settings.reservation is None or settings.reservation.is_zero:
        return "systemReserved[cpu]"
    try:
        options = CpuOptions.parse(settings.options, gates=gates)
        options.check_machine(topology, sockets=view.num_sockets, nodes=view.num_nodes)
    except SettingsError:
        return "cpuManagerPolicyOptions"
    return "systemReserved[cpu]"


def _memory_advice(reservations: NodeReservations, view: KubeletView) -> str:
    try:
        entries = reserved_memory.propose_reserved_memory(reservations.reservation, view)
    except SettingsError:
        return "reserve memory: systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
    listed = [", ".join(f"{name}: {amount}" for name, amount in entry.limits.items()) for entry in entries]
    nodes = [f"{{numaNode: {entry.node}, limits: {{{limits}}}}}" for entry, limits in zip(entries, listed, strict=True)]
    return f"set reservedMemory: [{', '.join(nodes)}]"


def _topology_settings(configuration: Configuration, gates: FeatureGates, *, limit_nodes: bool) -> TopologySettings:
    return TopologySettings.parse(
        configuration.topology_manager_policy,
        configuration.topology_manager_scope,
        options=configuration.topology_manager_policy_options,
        gates=gates,
        limit_nodes=limit_nodes,
    )


def _cpu_settings(configuration: Configuration, reservations: NodeReservations) -> CpuSettings:
    return CpuSettings(
        policy=configuration.cpu_manager_policy,
        options=configuration.cpu_manager_policy_options,
        reservation=reservations.reservation.get(CPU),
        explicit=reservations.reserved_system_cpus,
    )


def _max_pods(configuration: Configuration, view: KubeletView) -> int:
    if not configuration.pods_per_core:
        return configuration.max_pods
    return min(configuration.pods_per_core * view.num_cpus, configuration.max_pods)


def _manager_error(
    error: SettingsError | QuantityError,
    field: str,
    stage: StartupStage,
    configuration: Configuration,
    advice: str | None = None,
) -> ConfigurationError:
    kind = ProblemKind.OWN_LIMIT if isinstance(error, QuantityError) else ProblemKind.OTHER  # amounts far apart
    problems = [Problem(field, str(error), kind)]
    rejection = ConfigurationError(problems, stage=stage, source=configuration.source, advice=advice)
    rejection.manager = stage.removesuffix("_manager")
    return rejection
