"""What the kubelet's managers get from a configuration on a machine.

A kubelet stops at the first error. Here each error is recorded, the fields it concerns are dropped, and the rest is
read again, so that all errors can be fixed at once. Draw no conclusions from a dropped field.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
from alignup.align.errors import ConfigurationError, DocumentError, ProblemKind, QuantityError, SettingsError
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates, FeatureStage, Policy
from alignup.align.workload.names import CPU
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import Configuration, NodeReservations, StartupStage, feature_gates
from alignup.kubernetes.manifests import documents
from alignup.kubernetes.manifests.documents import ParsedDocument

OPTION_GATES = {FeatureStage.ALPHA: "CPUManagerPolicyAlphaOptions", FeatureStage.BETA: "CPUManagerPolicyBetaOptions"}
_GATE_KINDS = (ProblemKind.UNKNOWN_GATE, ProblemKind.LOCKED_GATE)
_TYPE_FIELDS = {"", "kind", "apiVersion"}  #: without these the type of the file is unknown


def read_inputs(
    text: bytes, machine: Machine, *, name: str
) -> tuple["ManagerInputs | None", tuple[ConfigurationError, ...]]:
    """Everything that is wrong with *text*, and the rest of it; ``None`` if not even the rest can be read."""
    errors: list[ConfigurationError] = []
    dropped: set[str] = set()
    if (found := _read(text, name, errors, dropped)) is None:
        return None, tuple(errors)
    while True:
        try:
            reservations = configuration.compute_reservations(found, machine)
        except ConfigurationError as error:
            errors.append(error)
            concerned = {problem.field for problem in error.problems}
            dropped |= concerned | ({"kubeReserved", "evictionHard"} if "systemReserved" in concerned else set())
            found = _without_reservations(found, concerned)
        else:
            return ManagerInputs(found, machine, reservations, frozenset(dropped)), tuple(errors)


def _read(text: bytes, name: str, errors: list[ConfigurationError], dropped: set[str]) -> Configuration | None:
    """The configuration without the fields that cannot be read, which are added to *errors* and *dropped*."""
    document, rest = None, text
    while True:
        try:
            found = configuration.read(rest, name=name)
        except ConfigurationError as error:
            document = document or _first_document(text)
            errors.append(error)
            single = all(problem.kind in _GATE_KINDS for problem in error.problems)
            if error.stage != StartupStage.DEFAULTING_PANIC:
                concerned = {problem.field.partition("[")[0].partition(".")[0] for problem in error.problems}
            else:  # of the feature gates only the named ones, where that is enough
                concerned = {problem.field for problem in error.problems} if single else {"featureGates"}
            concerned -= dropped
            if document is None or not concerned or concerned & _TYPE_FIELDS:
                return None
            dropped |= concerned
            kept = {str(key): value for key, value in document.value.items() if key not in dropped}
            if isinstance(gates := kept.get("featureGates"), Mapping):
                named = {str(key): on for key, on in gates.items() if f"featureGates[{key}]" not in dropped}
                kept["featureGates"] = named
            rest = documents.to_json(kept).encode()
        else:
            # The duplicate keys are gone once the document is written again.
            duplicates = [f"line {one.line}: {one}" for one in document.repeated] if document else []
            return replace(found, warnings=(*found.warnings, *duplicates))


def _first_document(text: bytes) -> ParsedDocument | None:
    """The document the kubelet reads; ``None`` if it is not an object."""
    try:
        found = documents.read(text)
    except DocumentError:
        return None
    return found[0] if found and found[0].number == 1 and isinstance(found[0].value, Mapping) else None


def _without_reservations(found: Configuration, fields: set[str]) -> Configuration:
    unusable = "systemReserved" in fields  # the amounts cannot even be added up

    def usable(name: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in texts.items() if not unusable and f"{name}[{key}]" not in fields}

    return replace(
        found,
        reserved_system_cpus="" if "reservedSystemCPUs" in fields else found.reserved_system_cpus,
        kube_reserved=usable("kubeReserved", found.kube_reserved),
        system_reserved=usable("systemReserved", found.system_reserved),
        eviction_hard=usable("evictionHard", found.eviction_hard),
    )


@dataclass(frozen=True)
class ManagerInputs:
    configuration: Configuration  #: without the fields that could not be read
    machine: Machine
    reservations: NodeReservations
    dropped: frozenset[str]  #: such as ``systemReserved`` or ``systemReserved[cpu]``

    def has_dropped(self, *fields: str) -> bool:
        """Whether one of *fields*, or the map it is in, was dropped."""
        return any(name in self.dropped or name.partition("[")[0] in self.dropped for name in fields)

    @cached_property
    def view(self) -> KubeletView:
        return self.machine.kubelet_view()

    @cached_property
    def gates(self) -> FeatureGates:
        return feature_gates.resolve(self.configuration.feature_gates)

    @cached_property
    def policy(self) -> Policy | None:
        """The topology manager's policy; ``None`` if it could not be read."""
        dropped = self.has_dropped("topologyManagerPolicy")
        return None if dropped else Policy(self.configuration.topology_manager_policy)

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
        dropped = self.has_dropped("reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]")
        return not dropped and not self.view.discovery_error

    @property
    def knows_memory_reservation(self) -> bool:
        """Whether every field that reserves memory of the whole host could be read."""
        return not self.has_dropped("systemReserved[memory]", "kubeReserved[memory]", "evictionHard[memory.available]")

    def cpu_provider(self) -> CpuProvider | None:
        """The CPU manager with the kubelet's faults; ``None`` if it does not start."""
        dropped = self.has_dropped("cpuManagerPolicy", "cpuManagerPolicyOptions", "featureGates")
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
        static = self.configuration.cpu_manager_policy == CpuPolicy.STATIC and not self.has_dropped("cpuManagerPolicy")
        if not static or not self.knows_cpus:
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
        dropped = self.has_dropped("memoryManagerPolicy", "reservedMemory", "featureGates")
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
            return None if self.has_dropped("memoryManagerPolicy") else MemoryLedger()
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
