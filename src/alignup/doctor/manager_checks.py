"""The kubelet's managers of topology, CPUs and memory: their inputs on a machine, what stops them, and what surprises.

A kubelet stops at the first error, and of several wrong options it reports a random one. Here each error is recorded,
the fields it concerns are dropped, and the rest is read again, so that all errors can be fixed at once. Each option is
checked on its own and then all valid ones together. Draw no conclusions from a dropped field.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from alignup.align import bits
from alignup.align.cpus.options import OPTION_STAGES, CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider, select_reserved_cpus
from alignup.align.errors import ConfigurationError, ProblemKind, QuantityError, SettingsError
from alignup.align.explain.sentences import format_quantity
from alignup.align.machine import KubeletView, Machine
from alignup.align.memory import reserved_memory
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.reason_codes import (
    ALL_CPUS_RESERVED,
    CPU_MANAGER_FAILS,
    EVICTION_THRESHOLD,
    FEATURE_GATE_DUE,
    IGNORED_SETTING,
    MANAGERS_NOT_ALIGNED,
    MANY_NUMA_NODES,
    MEMORY_MANAGER_FAILS,
    NOTHING_TO_ALIGN,
    PARTLY_RESERVED_CORE,
    RESERVATION_EXCEEDS_MACHINE,
    RESERVED_ARE_SHARED,
    RESERVED_ON_ONE_NODE,
    SHARED_POOL_MAY_BE_EMPTY,
    TOPOLOGY_MANAGER_FAILS,
)
from alignup.align.release import NEWEST, FeatureStage, Release
from alignup.align.settings import (
    KUBELET_MAX_NODES,
    TOPOLOGY_OPTIONS,
    FeatureGates,
    Policy,
    Scope,
    TopologyOptions,
    TopologySettings,
)
from alignup.align.workload.names import CPU, MEMORY
from alignup.doctor.findings import Area, Finding, beyond_own_limit, error, format_cpus, note, ok, warning
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import Configuration, NodeReservations, StartupStage, feature_gates
from alignup.kubernetes.configuration.fields import DEFAULT_EVICTION_HARD
from alignup.kubernetes.configuration.load import first_document, reserved_memory_document
from alignup.kubernetes.configuration.managers import RESERVED_SIGNALS, cpu_settings
from alignup.kubernetes.manifests.documents import to_yaml

OPTION_GATES = {FeatureStage.ALPHA: "CPUManagerPolicyAlphaOptions", FeatureStage.BETA: "CPUManagerPolicyBetaOptions"}
_GATE_KINDS = (ProblemKind.UNKNOWN_GATE, ProblemKind.LOCKED_GATE)
_TYPE_FIELDS = {"", "kind", "apiVersion"}  #: without these the type of the file is unknown


def read_inputs(
    text: bytes, machine: Machine, *, name: str, release: Release = NEWEST
) -> tuple["ManagerInputs | None", tuple[ConfigurationError, ...]]:
    """Return what can be read of *text*, ``None`` if nothing can, and everything that is wrong with it."""
    errors: list[ConfigurationError] = []
    dropped_fields: set[str] = set()
    if (settings := _read(text, name, release, errors, dropped_fields)) is None:
        return None, tuple(errors)
    while True:
        try:
            reservations = configuration.compute_reservations(settings, machine)
        except ConfigurationError as error:
            errors.append(error)
            fields = {problem.field for problem in error.problems}
            dropped_fields |= fields | ({"kubeReserved", "evictionHard"} if "systemReserved" in fields else set())
            settings = _without_reservations(settings, fields)
        else:
            return ManagerInputs(settings, machine, reservations, frozenset(dropped_fields)), tuple(errors)


def _read(
    text: bytes, name: str, release: Release, errors: list[ConfigurationError], dropped_fields: set[str]
) -> Configuration | None:
    """Read the configuration without unreadable fields, which are added to *errors* and *dropped_fields*."""
    try:
        document = first_document(text, name=name)
    except ConfigurationError as error:
        errors.append(error)
        return None
    while True:
        try:
            return configuration.read_document(document, name=name, release=release)
        except ConfigurationError as error:
            errors.append(error)
            single = all(problem.kind in _GATE_KINDS for problem in error.problems)
            if error.stage != StartupStage.DEFAULTING_PANIC:
                names = {problem.field.partition("[")[0].partition(".")[0] for problem in error.problems}
            else:  # of the feature gates only the named ones, where that is enough
                names = {problem.field for problem in error.problems} if single else {"featureGates"}
            names -= dropped_fields
            if not isinstance(document.value, Mapping) or not names or names & _TYPE_FIELDS:
                return None
        dropped_fields |= names
        fields = {key: value for key, value in document.value.items() if key not in dropped_fields}
        if isinstance(gates := fields.get("featureGates"), Mapping):
            fields["featureGates"] = {
                key: on for key, on in gates.items() if f"featureGates[{key}]" not in dropped_fields
            }
        document = replace(document, value=fields)


def _without_reservations(settings: Configuration, fields: set[str]) -> Configuration:
    unusable = "systemReserved" in fields  # the amounts cannot even be added up

    def usable(name: str, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in texts.items() if not unusable and f"{name}[{key}]" not in fields}

    return replace(
        settings,
        reserved_system_cpus="" if "reservedSystemCPUs" in fields else settings.reserved_system_cpus,
        kube_reserved=usable("kubeReserved", settings.kube_reserved),
        system_reserved=usable("systemReserved", settings.system_reserved),
        eviction_hard=usable("evictionHard", settings.eviction_hard),
    )


@dataclass(frozen=True)
class ManagerInputs:
    configuration: Configuration  #: without the fields that could not be read
    machine: Machine
    reservations: NodeReservations
    dropped: frozenset[str]  #: such as ``systemReserved`` or ``systemReserved[cpu]``

    def has_dropped(self, *fields: str) -> bool:
        """Return whether one of *fields*, or the map it is in, was dropped."""
        return any(name in self.dropped or name.partition("[")[0] in self.dropped for name in fields)

    @cached_property
    def view(self) -> KubeletView:
        return self.machine.kubelet_view()

    @cached_property
    def gates(self) -> FeatureGates:
        return feature_gates.resolve(self.configuration.feature_gates, self.configuration.release)

    @cached_property
    def policy(self) -> Policy | None:
        """Return the topology manager's policy; ``None`` if it could not be read."""
        has_dropped = self.has_dropped("topologyManagerPolicy")
        return None if has_dropped else Policy(self.configuration.topology_manager_policy)

    @cached_property
    def cpu_settings(self) -> CpuSettings:
        return cpu_settings(self.configuration, self.reservations)

    @property
    def knows_cpus(self) -> bool:
        """Return whether the machine's CPUs and every field that reserves some could be read."""
        has_dropped = self.has_dropped("reservedSystemCPUs", "systemReserved[cpu]", "kubeReserved[cpu]")
        return not has_dropped and not self.view.discovery_error

    @property
    def knows_memory_reservation(self) -> bool:
        """Return whether every field that reserves memory of the whole host could be read."""
        return not self.has_dropped("systemReserved[memory]", "kubeReserved[memory]", "evictionHard[memory.available]")

    def cpu_provider(self) -> CpuProvider | None:
        """Return the CPU manager with the kubelet's faults; ``None`` if it does not start."""
        has_dropped = self.has_dropped("cpuManagerPolicy", "cpuManagerPolicyOptions", "featureGates")
        if has_dropped or self.policy is None or not self.knows_cpus:
            return None
        try:
            return CpuProvider.create(
                self.view, self.cpu_settings, topology=self.policy, gates=self.gates, kubelet_faults=True
            )
        except SettingsError:
            return None

    def corrected_cpu_provider(self) -> CpuProvider | None:
        """Return the CPU manager without invalid options and with the needed gates enabled, to find further problems.

        ``None`` if it would not start even then.
        """
        static = self.configuration.cpu_manager_policy == CpuPolicy.STATIC and not self.has_dropped("cpuManagerPolicy")
        if not static or not self.knows_cpus:
            return None
        try:
            options = CpuOptions.parse(self.valid_options, gates=self.option_gates)
            count = self.cpu_settings.reserved_count(self.gates.release)
            reserved_cpus = select_reserved_cpus(
                self.view, options, count=count, explicit=self.cpu_settings.explicit, release=self.gates.release
            )
        except SettingsError:
            return None
        return CpuProvider(
            view=self.view,
            policy=CpuPolicy.STATIC,
            options=options,
            reserved=reserved_cpus,
            kubelet_release=self.gates.release,
        )

    @cached_property
    def option_gates(self) -> FeatureGates:
        gates = {**self.gates.changed, **dict.fromkeys(OPTION_GATES.values(), True)}
        return FeatureGates(gates, self.gates.release)

    @cached_property
    def valid_options(self) -> dict[str, str]:
        """Return the CPU manager's options that are valid on their own once their gates are enabled."""
        return {
            name: value
            for name, value in self.configuration.cpu_manager_policy_options.items()
            if not error_message(partial(CpuOptions.parse, {name: value}, gates=self.option_gates))
        }

    def reserved_memory(self) -> Mapping[int, Mapping[str, int]] | None:
        """Return node → type → bytes that the memory manager reserves; ``None`` if it does not start."""
        has_dropped = self.has_dropped("memoryManagerPolicy", "reservedMemory", "featureGates")
        static = self.configuration.memory_manager_policy == MemoryPolicy.STATIC
        if has_dropped or not self.knows_memory_reservation or not static:
            return None
        try:
            return reserved_memory.reserved_by_node(
                self.configuration.reserved_memory, self.reservations.reservation, nodes=self.view.nodes
            )
        except (SettingsError, QuantityError):
            return None

    def idle_memory(self) -> MemoryLedger | None:
        """Return the memory manager's ledger on the idle machine; ``None`` if it does not start."""
        if self.configuration.memory_manager_policy == MemoryPolicy.NONE:
            return None if self.has_dropped("memoryManagerPolicy") else MemoryLedger()
        sizes_by_node = self.reserved_memory()
        if sizes_by_node is None or any(node.id < 0 for node in self.view.nodes):
            return None
        return MemoryLedger.of_machine(self.view.nodes, sizes_by_node)


def error_message(call: Callable[[], object]) -> str:
    """Return the error of a manager; empty if *call* succeeds."""
    try:
        call()
    except (SettingsError, QuantityError) as error:
        return str(error)
    return ""


_STATIC_ERROR = "new static policy error: "
_AVAILABLE = "memory.available"


def reserved_memory_yaml(inputs: ManagerInputs) -> str:
    """Return a valid ``reservedMemory`` as YAML; empty if there is none."""
    try:
        entries = reserved_memory.propose_reserved_memory(inputs.reservations.reservation, inputs.view)
    except SettingsError:
        return ""
    return to_yaml({"reservedMemory": reserved_memory_document(entries)})


#: The code of a manager that keeps the kubelet from starting.
FAILING_MANAGERS = {
    StartupStage.TOPOLOGY_MANAGER: TOPOLOGY_MANAGER_FAILS,
    StartupStage.CPU_MANAGER: CPU_MANAGER_FAILS,
    StartupStage.MEMORY_MANAGER: MEMORY_MANAGER_FAILS,
}


def _stops(  # noqa: PLR0913 - the parts of a finding
    area: Area, stage: StartupStage, message: str, advice: str, *, where: str, paste: str = "", reason: str = ""
) -> Finding:
    summary = f"{stage.failure}{reason}"
    code = FAILING_MANAGERS[stage]
    return error(area, summary, code, kubelet_message=message, advice=advice, where=where, paste=paste)


_topology_error = partial(_stops, Area.TOPOLOGY, StartupStage.TOPOLOGY_MANAGER)
_cpu_error = partial(_stops, Area.CPUS, StartupStage.CPU_MANAGER)
_memory_error = partial(_stops, Area.MEMORY, StartupStage.MEMORY_MANAGER)


def check_topology_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    configuration = inputs.configuration
    if inputs.policy is None:
        return
    if inputs.policy is Policy.NONE:
        yield ok(Area.TOPOLOGY, "policy none: nothing is aligned")
        return
    options, errors, field = dict(configuration.topology_manager_policy_options), [], "topologyManagerPolicyOptions"
    for name, value in configuration.topology_manager_policy_options.items():
        if message := error_message(partial(TopologyOptions.parse, {name: value}, gates=inputs.gates)):
            del options[name]
            valid = (f"{name} ({option.values})" for name, option in TOPOLOGY_OPTIONS.items())
            advice = f"valid options are {' and '.join(valid)}"
            errors.append(_topology_error(message, advice, where=f"{field}[{name}]"))
    settings = TopologySettings(policy=inputs.policy, options=TopologyOptions.parse(options, gates=inputs.gates))
    nodes, has_distances = len(inputs.view.nodes), inputs.view.distances is not None
    if message := error_message(lambda: settings.check_machine(nodes=0, distances=has_distances)):
        reason = ": the machine does not report the distances between its NUMA nodes"
        advice, field_path = "remove prefer-closest-numa-nodes", f"{field}[prefer-closest-numa-nodes]"
        errors.append(_topology_error(message, advice, where=field_path, reason=reason))
    if message := error_message(lambda: settings.check_machine(nodes=nodes, distances=True)):
        reason = f": the machine has {nodes} NUMA nodes"
        advice = "raise the limit; admission then takes longer, since the kubelet tries every combination of nodes"
        more = {**configuration.topology_manager_policy_options, "max-allowable-numa-nodes": str(nodes)}
        field_path, paste = f"{field}[max-allowable-numa-nodes]", to_yaml({field: more})
        errors.append(_topology_error(message, advice, where=field_path, reason=reason, paste=paste))
    yield from errors
    if not errors:
        has_dropped = inputs.has_dropped("topologyManagerScope")
        scope = "" if has_dropped else f", scope {configuration.topology_manager_scope}"
        yield ok(Area.TOPOLOGY, f"starts with policy {inputs.policy}{scope}")


def check_cpu_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    if inputs.has_dropped("cpuManagerPolicy"):
        return
    settings = inputs.cpu_settings
    if settings.policy not in set(CpuPolicy):
        message = error_message(lambda: CpuPolicy(settings.policy))
        yield _cpu_error(message, "use none or static", where="cpuManagerPolicy")
        return
    if settings.policy == CpuPolicy.NONE:
        if message := error_message(settings.check_none):
            advice = "remove the options, or set cpuManagerPolicy to static"
            yield _cpu_error(message, advice, where="cpuManagerPolicyOptions")
        else:
            yield ok(Area.CPUS, "policy none: no container gets exclusive CPUs")
        return
    errors = [*_check_cpu_options(inputs), *_check_reserved_cpus(inputs)]
    yield from errors
    provider = inputs.cpu_provider()
    if provider and not errors:
        reserved_cpus, available = bits.show(provider.reserved), provider.allocatable.bit_count()
        yield ok(Area.CPUS, f"starts with policy static: CPUs {reserved_cpus} reserved, {available} for exclusive use")


def _check_cpu_options(inputs: ManagerInputs) -> Iterator[Finding]:
    """Check each option on its own, then the valid ones together, as if the gates they need were enabled."""
    for name, value in inputs.configuration.cpu_manager_policy_options.items():
        if message := error_message(partial(CpuOptions.parse, {name: value}, gates=inputs.gates)):
            stage, paste = inputs.gates.release.options.get(name) if name in OPTION_STAGES else None, ""
            advice = "use true or false, in quotes" if stage else f"valid options are {', '.join(OPTION_STAGES)}"
            if stage in OPTION_GATES and not inputs.gates.on(OPTION_GATES[stage]):
                advice = f"enable the feature gate {OPTION_GATES[stage]}"
                gates = {**inputs.configuration.feature_gates, OPTION_GATES[stage]: True}
                paste = to_yaml({"featureGates": gates})
            field_path = f"cpuManagerPolicyOptions[{name}]"
            yield _cpu_error(_STATIC_ERROR + message, advice, where=field_path, paste=paste)
    parse = partial(CpuOptions.parse, inputs.valid_options, gates=inputs.option_gates)
    if message := error_message(parse):
        yield _cpu_error(_STATIC_ERROR + message, "remove one of the two", where="cpuManagerPolicyOptions")
        return
    options, view = parse(), inputs.view
    for policy, sockets, advice in (
        (inputs.policy, 0, "remove align-by-socket, or set topologyManagerPolicy to restricted or best-effort"),
        (Policy.NONE, view.num_sockets, "remove align-by-socket: this machine has more sockets than NUMA nodes"),
    ):
        check = partial(options.check_machine, policy or Policy.NONE, sockets=sockets, nodes=view.num_nodes)
        if message := error_message(check):
            yield _cpu_error(_STATIC_ERROR + message, advice, where="cpuManagerPolicyOptions[align-by-socket]")


def _check_reserved_cpus(inputs: ManagerInputs) -> Iterator[Finding]:
    """Check that the static policy gets the reserved CPU that it needs."""
    settings, view = inputs.cpu_settings, inputs.view
    if view.discovery_error:
        yield _cpu_error(view.discovery_error, "use a machine description that lists its CPUs", where="")
        return
    if not inputs.knows_cpus:
        return
    if message := error_message(settings.reserved_count):
        cgroups = inputs.configuration.system_reserved_cgroup or inputs.configuration.kube_reserved_cgroup
        first_core = view.core_cpus[min(view.core_cpus)]
        by_count = {"systemReserved": {**inputs.configuration.system_reserved, CPU: str(first_core.bit_count())}}
        paste = by_count if cgroups else {"reservedSystemCPUs": bits.show(first_core)}
        advice = "reserve CPUs for system daemons, such as the first core"
        yield _cpu_error(message, advice, where="systemReserved[cpu]", paste=to_yaml(paste))
        return
    count = settings.reserved_count(inputs.gates.release)
    select = partial(select_reserved_cpus, view, CpuOptions(), count=count, explicit=settings.explicit)
    if message := error_message(select):
        advice = f"reserve at most the {view.num_cpus} CPUs of the machine"
        yield _cpu_error(_STATIC_ERROR + message, advice, where="systemReserved[cpu]")


def check_memory_manager(inputs: ManagerInputs) -> Iterator[Finding]:
    if inputs.has_dropped("memoryManagerPolicy"):
        return
    name = inputs.configuration.memory_manager_policy
    if message := error_message(lambda: MemoryPolicy(name)):
        yield _memory_error(message, "use None or Static", where="memoryManagerPolicy")
        return
    if name == MemoryPolicy.NONE:
        yield ok(Area.MEMORY, "policy None: memory is not pinned")
        return
    if not inputs.knows_memory_reservation:
        return
    proposal = reserved_memory_yaml(inputs)
    if inputs.has_dropped("reservedMemory"):
        if proposal:
            summary = "this reservedMemory would be valid in place of the rejected one"
            yield note(Area.MEMORY, summary, MEMORY_MANAGER_FAILS, where="reservedMemory", paste=proposal)
        return
    entries, total = inputs.configuration.reserved_memory, inputs.reservations.reservation
    try:
        reserved_memory.reserved_by_node(entries, total, nodes=inputs.view.nodes)
    except QuantityError as failure:  # amounts too far apart to be added
        yield beyond_own_limit(Area.MEMORY, str(failure), where="reservedMemory")
        return
    except SettingsError as failure:
        yield _memory_error(str(failure), _memory_advice(inputs, proposal), where="reservedMemory", paste=proposal)
        return
    if (sizes_by_node := inputs.reserved_memory()) is not None:
        shares = ", ".join(
            f"{format_quantity(sizes[MEMORY])} on NUMA node {node}"
            for node, sizes in sizes_by_node.items()
            if sizes.get(MEMORY)
        )
        yield ok(Area.MEMORY, f"starts with policy Static: {shares} reserved")


def _memory_advice(inputs: ManagerInputs, proposal: str) -> str:
    total = inputs.reservations.reservation
    if proposal:
        return (
            f"make reservedMemory add up to {total[MEMORY].canonical()}, the sum of systemReserved, kubeReserved "
            "and evictionHard"
        )
    if MEMORY not in total:
        return "reserve memory with systemReserved.memory, kubeReserved.memory or evictionHard[memory.available]"
    if not any(node.memory for node in inputs.view.nodes):
        return "use a machine description that includes the memory of its NUMA nodes"
    return error_message(partial(reserved_memory.propose_reserved_memory, total, inputs.view))


def check_nri_modes(inputs: ManagerInputs) -> Iterator[Finding]:
    """Say which modes of ``alignup nri`` can run beside the kubelet."""
    if inputs.has_dropped("cpuManagerPolicy", "memoryManagerPolicy"):
        return
    settings = inputs.configuration
    required_policies = {"cpuManagerPolicy": CpuPolicy.NONE, "memoryManagerPolicy": MemoryPolicy.NONE}
    policies = (settings.cpu_manager_policy, settings.memory_manager_policy)
    changes = [
        f"{field}: {none}"
        for (field, none), policy in zip(required_policies.items(), policies, strict=True)
        if policy != none
    ]
    text = f"; --mode decide needs {' and '.join(changes)}" if changes else " or --mode decide"
    yield ok(Area.NRI, f"alignup nri can run beside this kubelet with --mode assist{text}")


def find_warnings(inputs: ManagerInputs) -> Iterator[Finding]:
    """Yield warnings and notes, only where they are certain."""
    yield from _eviction_thresholds(inputs)
    yield from _ignored_fields(inputs)
    yield from _gates_that_are_due(inputs)
    if inputs.policy is not None and not inputs.has_dropped("cpuManagerPolicy", "memoryManagerPolicy"):
        yield from _pointless_policies(inputs, inputs.policy)
        yield from _topology_options(inputs, inputs.policy)
    if provider := inputs.corrected_cpu_provider():
        yield from _reserved_cpus(inputs, provider)
    # The kubelet does not notice when more is reserved on a node than it has.
    for excess in reserved_memory.excess_reservations(inputs.view.nodes, inputs.reserved_memory() or {}):
        summary = f"{excess}: the kubelet does not check this, and assumes almost 2⁶⁴ bytes there"
        advice, paste = "reserve memory on nodes that have enough", reserved_memory_yaml(inputs)
        yield warning(
            Area.MEMORY, summary, RESERVATION_EXCEEDS_MACHINE, advice=advice, where="reservedMemory", paste=paste
        )


def _gates_that_are_due(inputs: ManagerInputs) -> Iterator[Finding]:
    release = inputs.gates.release
    for problem in feature_gates.expected_problems(inputs.configuration.feature_gates, release):
        advice = f"remove it before the upgrade: a kubelet {release} may not start with it"
        yield warning(Area.CONFIGURATION, problem.message, FEATURE_GATE_DUE, advice=advice, where=problem.field)


def _eviction_thresholds(inputs: ManagerInputs) -> Iterator[Finding]:
    settings = inputs.configuration
    missing = "evictionHard" in settings.given and _AVAILABLE not in settings.eviction_hard
    if missing and inputs.knows_memory_reservation:  # a given evictionHard replaces all defaults
        default = DEFAULT_EVICTION_HARD[_AVAILABLE]
        paste = to_yaml({"evictionHard": {_AVAILABLE: default, **settings.eviction_hard}})
        # It changes the total, so it would contradict a reservedMemory proposed in the same run.
        static = settings.memory_manager_policy == MemoryPolicy.STATIC
        yield warning(
            Area.CONFIGURATION,
            f"{_AVAILABLE} is missing: the kubelet keeps no memory free, and the default of {default} does not apply",
            EVICTION_THRESHOLD,
            advice=f"add {_AVAILABLE} or set mergeDefaultEvictionSettings to true, and raise reservedMemory to match",
            where="evictionHard",
            paste="" if static else paste,
        )
    for threshold in inputs.reservations.thresholds:
        if math.isnan(threshold.percentage):  # the kubelet parses it as a float, which is neither below 0 nor above 1
            value = settings.eviction_hard[threshold.signal]
            resource = RESERVED_SIGNALS.get(threshold.signal)
            more = f", and rejects every pod that requests {resource}" if resource else ""
            yield warning(
                Area.CONFIGURATION,
                f"{value} is not a number: the kubelet accepts it, but never evicts a pod for this signal{more}",
                EVICTION_THRESHOLD,
                advice="use an amount such as 100Mi, or a percentage from 0% to 100%",
                where=f"evictionHard[{threshold.signal}]",
            )


def _ignored_fields(inputs: ManagerInputs) -> Iterator[Finding]:
    settings, has_dropped = inputs.configuration, inputs.has_dropped
    if inputs.policy is Policy.NONE:
        if settings.topology_manager_policy_options:
            yield _ignored(Area.TOPOLOGY, "topologyManagerPolicyOptions", "topologyManagerPolicy", "none")
        if settings.topology_manager_scope == Scope.POD:
            yield _ignored(Area.TOPOLOGY, "topologyManagerScope", "topologyManagerPolicy", "none")
    no_memory_policy = settings.memory_manager_policy == MemoryPolicy.NONE and not has_dropped("memoryManagerPolicy")
    if no_memory_policy and settings.reserved_memory:
        yield _ignored(Area.MEMORY, "reservedMemory", "memoryManagerPolicy", "None")
    no_cpu_policy = settings.cpu_manager_policy == CpuPolicy.NONE and not has_dropped("cpuManagerPolicy")
    if no_cpu_policy and inputs.reservations.reserved_system_cpus:
        summary = "cpuManagerPolicy none only counts these CPUs: containers run on them as on all others"
        advice = "set cpuManagerPolicy to static, and strict-cpu-reservation to keep all containers off them"
        yield warning(Area.CPUS, summary, IGNORED_SETTING, advice=advice, where="reservedSystemCPUs")
    if count := inputs.reservations.reserved_system_cpus.bit_count():  # they replace CPUs reserved by count
        for field, texts in (("systemReserved", settings.system_reserved), ("kubeReserved", settings.kube_reserved)):
            if CPU in texts and not (field == "systemReserved" and texts[CPU] == str(count)):
                summary = f"ignored because reservedSystemCPUs is set: {count} CPUs are reserved in total"
                yield warning(Area.CPUS, summary, IGNORED_SETTING, advice=f"remove {field}.cpu", where=f"{field}[cpu]")


def _ignored(area: Area, field: str, policy: str, name: str) -> Finding:
    advice = f"remove it, or choose another {policy}"
    return warning(area, f"ignored under {policy} {name}", IGNORED_SETTING, advice=advice, where=field)


def _pointless_policies(inputs: ManagerInputs, policy: Policy) -> Iterator[Finding]:
    settings, nodes = inputs.configuration, len(inputs.view.nodes)
    static_cpus = settings.cpu_manager_policy == CpuPolicy.STATIC
    static_memory = settings.memory_manager_policy == MemoryPolicy.STATIC
    if nodes == 1 and policy is not Policy.NONE:
        yield note(Area.TOPOLOGY, "the machine has one NUMA node: there is nothing to align", NOTHING_TO_ALIGN)
    if nodes > 1 and policy is Policy.NONE and static_memory:
        summary = "memory is pinned, but not aligned with CPUs and devices: topologyManagerPolicy is none"
        advice = "set topologyManagerPolicy to best-effort, restricted or single-numa-node"
        yield warning(Area.MEMORY, summary, MANAGERS_NOT_ALIGNED, advice=advice, where="memoryManagerPolicy")
    if nodes > 1 and policy is Policy.NONE and static_cpus:
        summary = "exclusive CPUs are not aligned with devices: topologyManagerPolicy is none"
        yield note(Area.CPUS, summary, MANAGERS_NOT_ALIGNED, where="topologyManagerPolicy")
    if nodes > 1 and policy is not Policy.NONE and not static_cpus and not static_memory:
        summary = "only devices are aligned: the CPU and memory managers have policy none"
        yield note(Area.TOPOLOGY, summary, MANAGERS_NOT_ALIGNED, where="topologyManagerPolicy")


def _topology_options(inputs: ManagerInputs, policy: Policy) -> Iterator[Finding]:
    options, nodes = inputs.configuration.topology_manager_policy_options, len(inputs.view.nodes)
    closest = options.get("prefer-closest-numa-nodes", "false")
    if policy is Policy.SINGLE_NUMA_NODE and closest in {"1", "t", "T", "TRUE", "true", "True"}:
        summary = "no effect under single-numa-node, which always chooses one node"
        field_path = "topologyManagerPolicyOptions[prefer-closest-numa-nodes]"
        yield warning(Area.TOPOLOGY, summary, IGNORED_SETTING, advice="remove it", where=field_path)
    allowed_count = options.get("max-allowable-numa-nodes", "")
    if policy is not Policy.NONE and nodes > KUBELET_MAX_NODES and allowed_count.isdecimal():
        yield warning(
            Area.TOPOLOGY,
            f"the machine has {nodes} NUMA nodes: up to {2**nodes - 1} hints per resource, and the kubelet tries every "
            "combination of them when it admits a pod, however long that takes",
            MANY_NUMA_NODES,
            advice="request few aligned resources per pod, or configure the machine to expose fewer nodes",
            where="topologyManagerPolicyOptions[max-allowable-numa-nodes]",
        )


def _reserved_cpus(inputs: ManagerInputs, provider: CpuProvider) -> Iterator[Finding]:
    strict = provider.options.strict_cpu_reservation
    field_path = "reservedSystemCPUs" if inputs.reservations.reserved_system_cpus else "systemReserved[cpu]"
    rest = {core: cpus & ~provider.reserved for core, cpus in inputs.view.core_cpus.items()}
    partial_cores = [core for core, cpus in inputs.view.core_cpus.items() if rest[core] not in (0, cpus)]
    if provider.options.full_pcpus_only and partial_cores:
        core = partial_cores[0]
        cgroups = inputs.configuration.system_reserved_cgroup or inputs.configuration.kube_reserved_cgroup
        whole_cores = {"reservedSystemCPUs": bits.show(provider.reserved_cores)}
        yield warning(
            Area.CPUS,
            f"core {core} ({format_cpus(inputs.view.core_cpus[core])}) is partly reserved: full-pcpus-only does not "
            f"count {format_cpus(rest[core])} as free, yet a container may get it",
            PARTLY_RESERVED_CORE,
            advice="reserve whole cores",
            where=field_path,
            paste="" if cgroups else to_yaml(whole_cores),
        )
    if not provider.allocatable:
        pool = ", and the shared pool is empty (strict-cpu-reservation)" if strict else ""
        summary = f"all CPUs are reserved: no container can get exclusive CPUs{pool}"
        yield warning(Area.CPUS, summary, ALL_CPUS_RESERVED, advice="reserve fewer CPUs", where=field_path)
    elif strict:
        yield note(
            Area.CPUS,
            "once containers hold every CPU that is not reserved, the kubelet does not restart "
            '("default cpuset cannot be empty")',
            SHARED_POOL_MAY_BE_EMPTY,
            advice="keep a CPU shared; to recover, repair the state files",
            where="cpuManagerPolicyOptions[strict-cpu-reservation]",
        )
    nodes = inputs.view.node_cpus
    nodes_with_reserved = [node for node, cpus in nodes.items() if cpus & provider.reserved]
    if len(nodes) > 1 and len(nodes_with_reserved) == 1 and provider.allocatable:
        node, cpus = nodes_with_reserved[0], nodes[nodes_with_reserved[0]]
        free_cpus = f"{(cpus & ~provider.reserved).bit_count()} of its {cpus.bit_count()}"
        summary = f"all reserved CPUs are on NUMA node {node}: {free_cpus} are left for exclusive use"
        yield note(Area.CPUS, summary, RESERVED_ON_ONE_NODE, where=field_path)
    if inputs.reservations.reserved_system_cpus and not strict:
        summary = "containers without exclusive CPUs also run on the reserved CPUs"
        advice = 'set cpuManagerPolicyOptions strict-cpu-reservation to "true" to keep them off'
        yield note(Area.CPUS, summary, RESERVED_ARE_SHARED, advice=advice, where=field_path)
