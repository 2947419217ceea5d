"""What the kubelet's managers get from a configuration on a machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
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
    config: LenientConfig
    machine: Machine
    reservations: NodeReservations

    @cached_property
    def configuration(self) -> Configuration:
        """Without the fields that could not be read."""
        return self.config.configuration or Configuration()

    @cached_property
    def view(self) -> KubeletView:
        return self.machine.kubelet_view()

    @cached_property
    def gates(self) -> FeatureGates:
        return feature_gates.resolve(self.configuration.feature_gates)

    @cached_property
    def policy(self) -> Policy | None:
        """The topology manager's policy; ``None`` if it could not be read."""
        if self.config.has_dropped("topologyManagerPolicy"):
            return None
        return Policy(self.configuration.topology_manager_policy)

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        return CpuSettings(
            policy=self.configuration.cpu_manager_policy,
            options=self.configuration.cpu_manager_policy_options,
            reservation=self.reservations.reservation.get(CPU),
            explicit=self.reservations.reserved_system_cpus,
        )

    @property
    def knows_cpus(self) -> bool:
        """Whether the machine's CPUs and every field that reserves some could be read."""
        dropped = self.config.has_dropped("reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]")
        return not dropped and not self.view.discovery_error

    @property
    def knows_memory_reservation(self) -> bool:
        """Whether every field that reserves memory of the whole host could be read."""
        return not self.config.has_dropped(
            "systemReserved[memory]", "kubeReserved[memory]", "evictionHard[memory.available]"
        )

    def cpu_provider(self) -> CpuProvider | None:
        """The CPU manager with the kubelet's faults; ``None`` if it does not start."""
        dropped = self.config.has_dropped("cpuManagerPolicy", "cpuManagerPolicyOptions", "featureGates")
        if dropped or self.policy is None or not self.knows_cpus:
            return None
        try:
            return CpuProvider.create(
                self.view, self.cpu_settings, topology=self.policy, gates=self.gates, kubelet_faults=True
            )
        except SettingsError:
            return None

    def corrected_cpu_provider(self) -> CpuProvider | None:
        """The CPU manager without invalid options and with the needed gates enabled, to find further problems.

        ``None`` if it would not start even then.
        """
        static = self.configuration.cpu_manager_policy == CpuPolicy.STATIC
        if not static or self.config.has_dropped("cpuManagerPolicy") or not self.knows_cpus:
            return None
        try:
            options = CpuOptions.parse(self.valid_options, gates=self.option_gates)
            count = self.cpu_settings.reserved_count()
            reserved = select_reserved_cpus(self.view, options, count=count, explicit=self.cpu_settings.explicit)
        except SettingsError:
            return None
        return CpuProvider(view=self.view, policy=CpuPolicy.STATIC, options=options, reserved=reserved)

    @cached_property
    def option_gates(self) -> FeatureGates:
        """The feature gates, with those enabled that options need."""
        return FeatureGates({**self.gates.changed, **dict.fromkeys(OPTION_GATES.values(), True)})

    @cached_property
    def valid_options(self) -> dict[str, str]:
        """The CPU manager's options that are valid on their own once their gates are enabled."""
        return {
            name: value
            for name, value in self.configuration.cpu_manager_policy_options.items()
            if not error_message(partial(CpuOptions.parse, {name: value}, gates=self.option_gates))
        }

    def reserved_memory(self) -> Mapping[int, Mapping[str, int]] | None:
        """Node → type → bytes that the memory manager reserves; ``None`` if it does not start."""
        dropped = self.config.has_dropped("memoryManagerPolicy", "reservedMemory", "featureGates")
        static = self.configuration.memory_manager_policy == MemoryPolicy.STATIC
        if dropped or not self.knows_memory_reservation or not static:
            return None
        try:
            return reserved_memory.reserved_by_node(
                self.configuration.reserved_memory, self.reservations.reservation, nodes=self.view.nodes
            )
        except (SettingsError, QuantityError):
            return None

    def idle_memory(self) -> MemoryLedger | None:
        """The memory manager's ledger on the idle machine; ``None`` if it does not start."""
        if self.configuration.memory_manager_policy == MemoryPolicy.NONE:
            return None if self.config.has_dropped("memoryManagerPolicy") else MemoryLedger()
        reserved = self.reserved_memory()
        if reserved is None or any(node.id < 0 for node in self.view.nodes):
            return None
        return MemoryLedger.of_machine(self.view.nodes, reserved)


def error_message(call: Callable[[], object]) -> str:
    """The error of a manager; empty if *call* succeeds."""
    try:
        call()
    except (SettingsError, QuantityError) as error:
        return str(error)
    return ""
