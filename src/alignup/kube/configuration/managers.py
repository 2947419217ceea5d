"""What the kubelet's managers make of a configuration on a machine, and what the cluster is then told of the host."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from alignup.align.cpus.options import CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem, QuantityError, SettingsError
from alignup.align.fit import PODS
from alignup.align.host import Settings
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.memory.reserved_memory import ReservedMemory
from alignup.align.quantity import Quantity
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import names
from alignup.align.workload.names import CPU, MEMORY
from alignup.kube import feature_gates
from alignup.kube.configuration import node_allocatable
from alignup.kube.configuration.model import Configuration, StartupStage
from alignup.kube.configuration.node_allocatable import NodeReservations, NodeStatus

#: Which field a manager's sentence is about: that of the first word it holds.
_ABOUT: Mapping[StartupStage, tuple[tuple[str, str], ...]] = {
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
_MANAGERS = {
    StartupStage.TOPOLOGY_MANAGER: "topology",
    StartupStage.CPU_MANAGER: "cpu",
    StartupStage.MEMORY_MANAGER: "memory",
}


def host_settings(configuration: Configuration, machine: Machine, *, limit_nodes: bool = True) -> Settings:
    """All a host is told by *configuration*; a :class:`ConfigurationError` of any stage up to topology_manager.

    What the managers of CPUs and memory have against it, and the topology manager against the machine, is said by
    ``Host``, or by :func:`startup_errors`. Without *limit_nodes* the kubelet's limit on NUMA nodes does not apply.
    """
    told = node_allocatable.compute_reservations(configuration, machine)
    on = feature_gates.resolve(configuration.feature_gates)
    try:
        topology = _topology(configuration, on, limit_nodes=limit_nodes)
    except SettingsError as error:
        raise _refused(error, StartupStage.TOPOLOGY_MANAGER, configuration) from None
    return Settings(
        topology=topology,
        cpus=_cpus(configuration, told),
        memory_policy=configuration.memory_manager_policy,
        reserved_memory=configuration.reserved_memory,
        reservation=told.reservation,
        gates=on,
        max_pods=_pods(configuration, machine.kubelet_view()),
    )


def startup_errors(
    configuration: Configuration,
    machine: Machine,
    *,
    ephemeral_storage: int | None = None,
    limit_nodes: bool = True,
) -> tuple[ConfigurationError, ...]:
    """Everything that keeps a kubelet from starting on *machine*, in the order in which it would meet it.

    Each manager is asked, whatever the others say; a reservation that cannot be read comes alone, since without it
    there is nothing to ask. Ephemeral storage is in bytes, ``None`` when it is not known; *limit_nodes* is as for
    :func:`host_settings`.
    """
    try:
        told = node_allocatable.compute_reservations(configuration, machine)
    except ConfigurationError as error:
        return (error,)
    inquiry = _Inquiry(configuration, machine.kubelet_view(), told, limit_nodes=limit_nodes)
    return (*inquiry.complaints(), *_excess(configuration, machine, ephemeral_storage))


def node_status(configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None) -> NodeStatus:
    """What the cluster is told; a :class:`ConfigurationError` of the stages from reserved_cpus to eviction_hard."""
    begun = node_allocatable.compute_node_allocatable(configuration, machine, ephemeral_storage=ephemeral_storage)
    pods = Quantity.of(_pods(configuration, machine.kubelet_view()))
    left = node_allocatable.subtract(begun.capacity, begun.reservation)
    for name, amount in begun.capacity.items():
        if names.is_hugepages(name):
            left = node_allocatable.subtract(left, {MEMORY: amount})
    return NodeStatus(capacity={**begun.capacity, PODS: pods}, allocatable={**left, PODS: pods})


@dataclass(frozen=True, slots=True)
class _Inquiry:
    """Asks the managers, one by one."""

    configuration: Configuration
    view: KubeletView
    told: NodeReservations
    limit_nodes: bool

    def complaints(self) -> Iterator[ConfigurationError]:
        """What each of them says against the configuration."""
        questions: dict[StartupStage, Callable[[], object]] = {
            StartupStage.TOPOLOGY_MANAGER: self._topology,
            StartupStage.CPU_MANAGER: self._cpus,
            StartupStage.MEMORY_MANAGER: self._memory,
        }
        for stage, ask in questions.items():
            try:
                ask()
            except (SettingsError, QuantityError) as error:
                yield _refused(error, stage, self.configuration, advice=self._advice(stage))

    def _gates(self) -> FeatureGates:
        return feature_gates.resolve(self.configuration.feature_gates)

    def _topology(self) -> None:
        topology = _topology(self.configuration, self._gates(), limit_nodes=self.limit_nodes)
        topology.check_machine(nodes=len(self.view.nodes), distances=self.view.distances is not None)

    def _cpus(self) -> None:
        CpuProvider.create(
            self.view,
            _cpus(self.configuration, self.told),
            topology=Policy(self.configuration.topology_manager_policy),
            gates=self._gates(),
        )

    def _memory(self) -> None:
        if MemoryPolicy.parse(self.configuration.memory_manager_policy) is MemoryPolicy.STATIC:
            reserved_memory.reserved_by_node(
                self.configuration.reserved_memory, self.told.reservation, nodes=self.view.nodes
            )

    def _advice(self, stage: StartupStage) -> str | None:
        if stage is StartupStage.CPU_MANAGER and CPU not in self.told.reservation:
            return "reserve CPUs: systemReserved.cpu, kubeReserved.cpu or reservedSystemCPUs"
        if stage is not StartupStage.MEMORY_MANAGER or self.configuration.memory_manager_policy != MemoryPolicy.STATIC:
            return None
        try:
            entries = reserved_memory.propose_reserved_memory(self.told.reservation, self.view)
        except SettingsError:
            return "reserve memory: systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
        return f"this would agree: reservedMemory: [{', '.join(map(_written, entries))}]"


def _topology(configuration: Configuration, on: FeatureGates, *, limit_nodes: bool) -> TopologySettings:
    return TopologySettings.parse(
        configuration.topology_manager_policy,
        configuration.topology_manager_scope,
        options=configuration.topology_manager_policy_options,
        gates=on,
        limit_nodes=limit_nodes,
    )


def _cpus(configuration: Configuration, told: NodeReservations) -> CpuSettings:
    return CpuSettings(
        policy=configuration.cpu_manager_policy,
        options=configuration.cpu_manager_policy_options,
        reservation=told.reservation.get(CPU),
        explicit=told.reserved_system_cpus,
    )


def _written(entry: ReservedMemory) -> str:
    """An entry as it can stand in the file."""
    limits = ", ".join(f"{name}: {amount}" for name, amount in entry.limits.items())
    return f"{{numaNode: {entry.node}, limits: {{{limits}}}}}"


def _pods(configuration: Configuration, view: KubeletView) -> int:
    if not configuration.pods_per_core:
        return configuration.max_pods
    return min(configuration.pods_per_core * view.num_cpus, configuration.max_pods)


def _excess(
    configuration: Configuration, machine: Machine, ephemeral_storage: int | None
) -> Iterator[ConfigurationError]:
    begun = node_allocatable.compute_node_allocatable(configuration, machine, ephemeral_storage=ephemeral_storage)
    if begun.excess:
        problems = [
            Problem(
                f"systemReserved[{one.resource}]",
                f"{'' if number else 'invalid Node Allocatable configuration. '}{one}",
            )
            for number, one in enumerate(begun.excess)
        ]
        yield ConfigurationError(problems, stage=StartupStage.NODE_ALLOCATABLE, source=configuration.source)


def _refused(
    error: SettingsError | QuantityError,
    stage: StartupStage,
    configuration: Configuration,
    *,
    advice: str | None = None,
) -> ConfigurationError:
    field = next(field for word, field in _ABOUT[stage] if word in str(error))
    problem = Problem(field, str(error))
    refused = ConfigurationError([problem], stage=stage, source=configuration.source, advice=advice)
    refused.manager = _MANAGERS[stage]
    return refused
