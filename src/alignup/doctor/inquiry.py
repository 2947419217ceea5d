"""A configuration on a machine: what the kubelet's managers are told of it, and what they make of that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.cpus.provider import reserve as reserve_cpus
from alignup.align.errors import QuantityError, SettingsError
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserve
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates, Policy, Stage
from alignup.align.workload.names import CPU
from alignup.doctor.reading import Reading
from alignup.kube import gates
from alignup.kube.configuration import Configuration, Passed

OPTION_GATES = {Stage.ALPHA: "CPUManagerPolicyAlphaOptions", Stage.BETA: "CPUManagerPolicyBetaOptions"}


@dataclass(frozen=True)
class Inquiry:
    """A configuration on a machine, and what the managers are told of it."""

    reading: Reading
    machine: Machine
    told: Passed

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
        return gates.resolve(self.configuration.feature_gates)

    @cached_property
    def policy(self) -> Policy | None:
        """The topology manager's; ``None`` where it is not known."""
        return (
            None
            if self.reading.has_lost("topologyManagerPolicy")
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
    def reserves_cpus(self) -> bool:
        """Whether all that is said about reserved CPUs could be read."""
        return not self.reading.has_lost("reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]")

    @property
    def reserves_memory(self) -> bool:
        """Whether all that is said about reserved memory of the host could be read."""
        return not self.reading.has_lost(
            "systemReserved[memory]", "kubeReserved[memory]", "evictionHard[memory.available]"
        )

    def cpu_provider(self) -> CpuProvider | None:
        """The CPU manager as the kubelet has it, faults included; ``None`` where there is none."""
        lost = self.reading.has_lost("cpuManagerPolicy", "cpuManagerPolicyOptions", "featureGates")
        if lost or self.policy is None or not self.reserves_cpus or self.view.discovery_error:
            return None
        try:
            return CpuProvider.create(
                self.view, self.cpu_settings, topology=self.policy, gates=self.gates, kubelet_faults=True
            )
        except SettingsError:
            return None

    def hoped_for(self) -> CpuProvider | None:
        """The CPU manager once options that cannot be are left out and their gates turned on; ``None``: not even then.

        So that one hears at once what else there is to say.
        """
        static = self.configuration.cpu_manager_policy == CpuPolicy.STATIC
        if not static or self.reading.has_lost("cpuManagerPolicy") or not self.reserves_cpus:
            return None
        if self.view.discovery_error:
            return None
        try:
            options = CpuOptions.parse(self.right_options, gates=self.opened)
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
    def right_options(self) -> dict[str, str]:
        """The options of the CPU manager that would be right by themselves if their gates were on."""
        given = self.configuration.cpu_manager_policy_options
        return {
            name: value
            for name, value in given.items()
            if not refusal(partial(CpuOptions.parse, {name: value}, gates=self.opened))
        }

    def reserved_memory(self) -> Mapping[int, Mapping[str, int]] | None:
        """Node → type → bytes that the memory manager keeps back; ``None`` where it would not start."""
        lost = self.reading.has_lost("memoryManagerPolicy", "reservedMemory", "featureGates")
        if lost or not self.reserves_memory or self.configuration.memory_manager_policy != MemoryPolicy.STATIC:
            return None
        try:
            return reserve.reserved(self.configuration.reserved_memory, self.told.reservation, nodes=self.view.nodes)
        except (SettingsError, QuantityError):
            return None

    def idle_memory(self) -> MemoryLedger | None:
        """The memory of the idle machine as the memory manager counts it; ``None`` where it would not start."""
        if self.configuration.memory_manager_policy == MemoryPolicy.NONE:
            return None if self.reading.has_lost("memoryManagerPolicy") else MemoryLedger()
        kept = self.reserved_memory()
        if kept is None or any(node.id < 0 for node in self.view.nodes):
            return None
        return MemoryLedger.of_machine(self.view.nodes, kept)


def refusal(ask: Callable[[], object]) -> str:
    """What a manager says against something; empty when it does not."""
    try:
        ask()
    except (SettingsError, QuantityError) as refused:
        return str(refused)
    return ""
