"""The meaning of a configuration on a machine: for the kubelet's managers and the node status."""

from collections.abc import Iterator, Mapping

from alignup.align.cpus.options import CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem, QuantityError, SettingsError
from alignup.align.fit import PODS
from alignup.align.host import Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.model import Configuration, StartupStage
from alignup.kubernetes.configuration.node_allocatable import (
    NodeReservations,
    NodeStatus,
    compute_node_allocatable,
    compute_reservations,
    subtract,
)

#: Manager, in the order of startup → words of its error message and the field they are about; the first match counts.
_FIELDS: Mapping[StartupStage, tuple[tuple[str, str], ...]] = {
    StartupStage.TOPOLOGY_MANAGER: (
        ("unknown policy", "topologyManagerPolicy"),
        ("unknown scope", "topologyManagerScope"),
        ("", "topologyManagerPolicyOptions"),
    ),
    StartupStage.CPU_MANAGER: (
        ("unknown policy", "cpuManagerPolicy"),
        ("[cpumanager]", "systemReserved[cpu]"),
        ("", "cpuManagerPolicyOptions"),
    ),
    StartupStage.MEMORY_MANAGER: (
        ("unknown policy", "memoryManagerPolicy"),
        ("is not available for platform", "memoryManagerPolicy"),
        ("", "reservedMemory"),
    ),
}


def host_settings(configuration: Configuration, machine: Machine, *, limit_nodes: bool = True) -> Settings:
    """The settings of a host; :class:`ConfigurationError` of any stage up to topology_manager.

    ``Host`` or :func:`startup_errors` report the errors of the CPU and memory managers, and those of the topology
    manager that depend on the machine. Without *limit_nodes* the kubelet's limit on NUMA nodes does not apply.
    """
    reservations = compute_reservations(configuration, machine)
    gates = feature_gates.resolve(configuration.feature_gates)
    try:
        topology = _topology_settings(configuration, gates, limit_nodes=limit_nodes)
    except SettingsError as error:
        raise _manager_error(error, StartupStage.TOPOLOGY_MANAGER, configuration) from None
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
    """Everything that keeps a kubelet from starting on *machine*, in the order of its startup.

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
    what = list(map(str, excess))
    what[0] = f"invalid Node Allocatable configuration. {what[0]}"
    problems = [Problem(f"systemReserved[{one.resource}]", text) for one, text in zip(excess, what, strict=True)]
    return (*errors, ConfigurationError(problems, stage=StartupStage.NODE_ALLOCATABLE, source=configuration.source))


def node_status(configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None) -> NodeStatus:
    """Capacity and allocatable as in the Node object; :class:`ConfigurationError` for invalid reservations."""
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
    for stage in _FIELDS:
        try:
            match stage:
                case StartupStage.TOPOLOGY_MANAGER:
                    topology = _topology_settings(configuration, gates, limit_nodes=limit_nodes)
                    topology.check_machine(nodes=len(view.nodes), distances=view.distances is not None)
                case StartupStage.CPU_MANAGER:
                    policy = Policy(configuration.topology_manager_policy)
                    CpuProvider.create(view, _cpu_settings(configuration, reservations), topology=policy, gates=gates)
                case _ if MemoryPolicy.parse(configuration.memory_manager_policy) is MemoryPolicy.STATIC:
                    reserved_memory.reserved_by_node(configuration.reserved_memory, reservation, nodes=view.nodes)
        except (SettingsError, QuantityError) as error:
            advice = _advice(stage, configuration, view, reservations)
            yield _manager_error(error, stage, configuration, advice)


def _advice(
    stage: StartupStage, configuration: Configuration, view: KubeletView, reservations: NodeReservations
) -> str | None:
    if stage is StartupStage.CPU_MANAGER and CPU not in reservations.reservation:
        return "reserve CPUs: systemReserved.cpu, kubeReserved.cpu or reservedSystemCPUs"
    if stage is not StartupStage.MEMORY_MANAGER or configuration.memory_manager_policy != MemoryPolicy.STATIC:
        return None
    try:
        entries = reserved_memory.propose_reserved_memory(reservations.reservation, view)
    except SettingsError:
        return "reserve memory: systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
    limits = [", ".join(f"{name}: {amount}" for name, amount in entry.limits.items()) for entry in entries]
    nodes = [f"{{numaNode: {entry.node}, limits: {{{own}}}}}" for entry, own in zip(entries, limits, strict=True)]
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
    error: SettingsError | QuantityError, stage: StartupStage, configuration: Configuration, advice: str | None = None
) -> ConfigurationError:
    field = next(field for words, field in _FIELDS[stage] if words in str(error))
    advice = None if "unknown policy" in str(error) else advice
    found = ConfigurationError([Problem(field, str(error))], stage=stage, source=configuration.source, advice=advice)
    found.manager = stage.removesuffix("_manager")
    return found
