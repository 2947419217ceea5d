"""The check of a kubelet's configuration on a machine, and what follows from it for the state files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem, ProblemKind
from alignup.align.machine import Device, Machine
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.reason_codes import IGNORED_SETTING, INVALID_CONFIGURATION, RESERVATION_EXCEEDS_MACHINE
from alignup.align.release import NEWEST, Release
from alignup.align.settings import FeatureGates
from alignup.doctor import manager_checks
from alignup.doctor.findings import Area, Finding, beyond_own_limit, error, warning
from alignup.doctor.machine_checks import check_machine
from alignup.doctor.manager_checks import ManagerInputs, read_inputs
from alignup.kubernetes import configuration
from alignup.kubernetes.configuration import StartupStage

_AREAS = {
    StartupStage.TOPOLOGY_MANAGER: Area.TOPOLOGY,
    StartupStage.CPU_MANAGER: Area.CPUS,
    StartupStage.MEMORY_MANAGER: Area.MEMORY,
    StartupStage.RESERVED_CPUS: Area.CPUS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """What state files are checked against; ``None`` where the configuration is invalid or does not say."""

    gates: FeatureGates
    cpu_policy: str | None = None
    memory_policy: str | None = None
    cpus: CpuProvider | None = None  #: with the kubelet's faults, because the kubelet's verdict counts
    memory: MemoryLedger | None = None  #: of the idle machine; empty under policy None
    pod_level: bool = False
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigurationCheck:
    findings: tuple[Finding, ...]
    manager_config: ManagerConfig


def check_configuration(  # noqa: PLR0913
    text: bytes,
    machine: Machine,
    *,
    name: str,
    release: Release = NEWEST,
    ephemeral_storage: int | None = None,
    origin: Callable[[str], str] = lambda _: "",
) -> ConfigurationCheck:
    """Find every problem of the configuration *text* on *machine*, not only the first that stops the kubelet.

    *ephemeral_storage* is in bytes; ``None`` skips its check. *origin* returns the file that sets a field, if one of
    several files does.
    """
    inputs, errors = read_inputs(text, machine, name=name, release=release)
    if inputs is None:
        return ConfigurationCheck(
            tuple(_startup_errors(errors, release)), ManagerConfig(gates=FeatureGates(release=release))
        )
    advice = "correct or remove it: the kubelet ignores it"
    findings = [
        *_startup_errors(errors, release),
        *(warning(Area.CONFIGURATION, text, IGNORED_SETTING, advice=advice) for text in inputs.configuration.warnings),
        *manager_checks.check_topology_manager(inputs),
        *manager_checks.check_cpu_manager(inputs),
        *manager_checks.check_memory_manager(inputs),
        *_over_reservations(inputs, ephemeral_storage),
        *manager_checks.check_nri_modes(inputs),
        *manager_checks.find_warnings(inputs),
        *check_machine(inputs),
    ]
    findings.sort(key=lambda finding: list(Area).index(finding.area))
    findings = [
        replace(finding, where=f"{finding.where} in {file}") if (file := origin(finding.where)) else finding
        for finding in findings
    ]
    has_dropped, settings = inputs.has_dropped, inputs.configuration
    manager_config = ManagerConfig(
        gates=inputs.gates,
        cpu_policy=None if has_dropped("cpuManagerPolicy") else settings.cpu_manager_policy,
        memory_policy=None if has_dropped("memoryManagerPolicy") else settings.memory_manager_policy,
        cpus=inputs.cpu_provider(),
        memory=inputs.idle_memory(),
        pod_level=inputs.gates.on("PodLevelResourceManagers") and inputs.gates.on("PodLevelResources"),
        devices=inputs.machine.devices,
    )
    return ConfigurationCheck(tuple(findings), manager_config)


def _startup_errors(errors: tuple[ConfigurationError, ...], release: Release) -> Iterator[Finding]:
    for failure in errors:
        stage = StartupStage(failure.stage)
        for problem in failure.problems:
            area = _AREAS.get(stage, Area.CONFIGURATION)
            if problem.kind is ProblemKind.OWN_LIMIT:
                yield beyond_own_limit(area, problem.message if problem.field else str(problem), where=problem.field)
                continue
            # How a file cannot be decoded is in our words; the kubelet quotes Go's decoders.
            loading = stage is StartupStage.LOAD
            stops = stage.failure
            yield error(
                area,
                f"{stops}: {problem.message if problem.field else problem}" if loading else stops,
                manager_checks.FAILING_MANAGERS.get(stage, INVALID_CONFIGURATION),
                kubelet_message="" if loading else problem.message,
                advice=_advice(problem, stage, release),
                where=problem.field,
            )


def _advice(problem: Problem, stage: StartupStage, release: Release) -> str:
    gate = problem.field.removeprefix("featureGates[").removesuffix("]")
    match stage:
        case StartupStage.LOAD if problem.kind is ProblemKind.NOT_A_STRING:
            return f'put the value in quotes: {problem.field.rpartition("[")[2].removesuffix("]")}: "…"'
        case StartupStage.LOAD if problem.field:
            return f"correct {problem.field}"
        case StartupStage.LOAD:
            return "provide a KubeletConfiguration of kubelet.config.k8s.io/v1beta1 in YAML or JSON"
        case StartupStage.DEFAULTING_PANIC if problem.kind is ProblemKind.UNKNOWN_GATE:
            return f"remove {gate}: Kubernetes {release} has no such feature gate"
        case StartupStage.DEFAULTING_PANIC if problem.kind is ProblemKind.LOCKED_GATE:
            return f"remove {gate}: it can no longer be changed"
        case StartupStage.DEFAULTING_PANIC:
            return f"disable {gate} too, or enable the gates it depends on"
        case StartupStage.RESERVED_CPUS:
            return "list only CPUs that this machine has and that are online"
        case StartupStage.KUBE_RESERVED | StartupStage.SYSTEM_RESERVED:
            return "reserve cpu, memory, ephemeral-storage or pid, in amounts such as 500m or 1Gi"
        case StartupStage.EVICTION_HARD:
            return "use an amount such as 100Mi, or a percentage from 0% to 100%, of a known eviction signal"
        case _:
            return f"correct {problem.field}"


def _over_reservations(inputs: ManagerInputs, ephemeral_storage: int | None) -> Iterator[Finding]:
    """Yield what exceeds the machine, which the kubelet notices only after everything has started."""
    try:
        allocatable = configuration.compute_node_allocatable(
            inputs.configuration, inputs.machine, ephemeral_storage=ephemeral_storage
        )
    except ConfigurationError as failure:
        yield from _startup_errors((failure,), inputs.gates.release)
        return
    areas = {"cpu": Area.CPUS, "memory": Area.MEMORY}
    for excess in allocatable.excess:
        yield error(
            areas.get(excess.resource, Area.CONFIGURATION),
            f"{StartupStage.NODE_ALLOCATABLE.failure}: {excess.reservation.canonical()} of "
            f"{excess.resource} is reserved, but the machine has {excess.capacity.canonical()}",
            RESERVATION_EXCEEDS_MACHINE,
            kubelet_message=f"invalid Node Allocatable configuration. {excess}",
            advice="reserve less: systemReserved, kubeReserved and evictionHard add up",
            where=f"systemReserved[{excess.resource}]",
        )
