"""A configuration on a machine: what the kubelet's managers are told of it, and what they make of that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.cpus.provider import select_reserved_cpus as reserve_cpus
from alignup.align.errors import QuantityError, SettingsError
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates, FeatureStage, Policy
from alignup.align.workload.names import CPU
from alignup.doctor.lenient_config import LenientConfig
from alignup.kube import feature_gates
from alignup.kube.configuration import Configuration, NodeReservations

OPTION_GATES = {FeatureStage.ALPHA: "CPUManagerPolicyAlphaOptions", FeatureStage.BETA: "CPUManagerPolicyBetaOptions"}


@dataclass(frozen=True)
class ManagerInputs:
    """A configuration on a machine, and what the managers are told of it."""

    reading: LenientConfig
    machine: Machine
    told: NodeReservations

    @cached_property
    def configuration(self) -> Configuration:
        """As far as it could be read."""
        return self.reading.configuration or Configuration()

    @cached_property
    def view(self) -> KubeletView:
        """The machine as the kubelet numbers it."""
        return self.machine.kubelet_view()

    @cached_property
    def gates(self) -> FeatureGates:
        """Those that are on."""
        return feature_gates.resolve(self.configuration.feature_gates)

    @cached_property
    def policy(self) -> Policy | None:
        """The topology manager's; ``None`` where it is not known."""
        return (
            None
            if self.reading.has_dropped("topologyManagerPolicy")
            else Policy(self.configuration.topology_manager_policy)
        )

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        """What the CPU manager is told."""
        return CpuSettings(
            policy=self.configuration.cpu_manager_policy,
            options=self.configuration.cpu_manager_policy_options,
            reservation=self.told.reservation.get(CPU),
            explicit=self.told.reserved_system_cpus,
        )

    @property
    def knows_cpu_reservation(self) -> bool:
        """Whether all that is said about reserved CPUs could be read."""
        return not self.reading.has_dropped("reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]")

    @property
    def knows_memory_reservation(self) -> bool:
        """Whether all that is said about reserved memory of the host could be read."""
        return not self.reading.has_dropped(
            "systemReserved[memory]", "kubeReserved[memory]", "evictionHard[memory.available]"
        )

    def cpu_provider(self) -> CpuProvider | None:
        """The CPU manager as the kubelet has it, faults included; ``None`` where there is none."""
        lost = self.reading.has_dropped("cpuManagerPolicy", "cpuManagerPolicyOptions", "featureGates")
        if lost or self.policy is None or not self.knows_cpu_reservation or self.view.discovery_error:
            return None
        try:
            return CpuProvider.create(
                self.view, self.cpu_settings, topology=self.policy, gates=self.gates, kubelet_faults=True
            )
        except SettingsError:
            return None

    def corrected_cpu_provider(self) -> CpuProvider | None:
        """The CPU manager once options that cannot be are left out and their gates turned on; ``None``: not even then.

        So that one hears at once what else there is to say.
        """
        static = self.configuration.cpu_manager_policy == CpuPolicy.STATIC
        if not static or self.reading.has_dropped("cpuManagerPolicy") or not self.knows_cpu_reservation:
            return None
        if self.view.discovery_error:
            return None
        try:
            options = CpuOptions.parse(self.valid_options, gates=self.opened)
            count = self.cpu_settings.reserved_count()
            reserved = reserve_cpus(self.view, options, count=count, explicit=self.cpu_settings.explicit)
        except SettingsError:
            return None
        return CpuProvider(view=self.view, policy=CpuPolicy.STATIC, options=options, reserved=reserved)

    @cached_property
    def opened(self) -> FeatureGates:
        """The gates, with those on that options need."""
        return FeatureGates({**self.gates.changed, **dict.fromkeys(OPTION_GATES.values(), True)})

    @cached_property
    def valid_options(self) -> dict[str, str]:
        """The options of the CPU manager that would be right by themselves if their gates were on."""
        given = self.configuration.cpu_manager_policy_options
        return {
            name: value
            for name, value in given.items()
            if not error_message(partial(CpuOptions.parse, {name: value}, gates=self.opened))
        }

    def reserved_memory(self) -> Mapping[int, Mapping[str, int]] | None:
        """Node → type → bytes that the memory manager keeps back; ``None`` where it would not start."""
        lost = self.reading.has_dropped("memoryManagerPolicy", "reservedMemory", "featureGates")
        if lost or not self.knows_memory_reservation or self.configuration.memory_manager_policy != MemoryPolicy.STATIC:
            return None
        try:
            return reserved_memory.reserved_by_node(
                self.configuration.reserved_memory, self.told.reservation, nodes=self.view.nodes
            )
        except (SettingsError, QuantityError):
            return None

    def idle_memory(self) -> MemoryLedger | None:
        """The memory of the idle machine as the memory manager counts it; ``None`` where it would not start."""
        if self.configuration.memory_manager_policy == MemoryPolicy.NONE:
            return None if self.reading.has_dropped("memoryManagerPolicy") else MemoryLedger()
        kept = self.reserved_memory()
        if kept is None or any(node.id < 0 for node in self.view.nodes):
            return None
        return MemoryLedger.of_machine(self.view.nodes, kept)


def error_message(ask: Callable[[], object]) -> str:
    """What a manager says against something; empty when it does not."""
    try:
        ask()
    except (SettingsError, QuantityError) as refused:
        return str(refused)
    return ""
