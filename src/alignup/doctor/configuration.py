"""What is to be said about a kubelet's configuration on a machine, and what its state files will be judged by."""

from collections.abc import Iterator
from dataclasses import dataclass

from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem
from alignup.align.machine import Device, Machine
from alignup.align.memory.ledger import MemoryLedger
from alignup.align.settings import FeatureGates
from alignup.doctor import lenient_config, managers, warnings
from alignup.doctor.findings import Area, Finding, error, warning
from alignup.doctor.lenient_config import LenientConfig
from alignup.doctor.manager_inputs import ManagerInputs
from alignup.kube import configuration
from alignup.kube.configuration import StartupStage

_AREAS = {
    StartupStage.TOPOLOGY_MANAGER: Area.TOPOLOGY,
    StartupStage.CPU_MANAGER: Area.CPUS,
    StartupStage.MEMORY_MANAGER: Area.MEMORY,
    StartupStage.RESERVED_CPUS: Area.CPUS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """What state files are judged by; ``None`` where the configuration does not say, or the kubelet refuses it."""

    gates: FeatureGates
    cpu_policy: str | None = None
    memory_policy: str | None = None
    cpus: CpuProvider | None = None  #: with the kubelet's faults: it is the kubelet's verdict that counts
    memory: MemoryLedger | None = None  #: of the idle machine; empty under policy None
    pod_level: bool = False
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigurationCheck:
    """What was found, and what follows from it for the state files."""

    findings: tuple[Finding, ...]
    basis: ManagerConfig


def check_configuration(
    text: bytes, machine: Machine, *, name: str, ephemeral_storage: int | None = None
) -> ConfigurationCheck:
    """All that is to be said about the configuration *text* of a kubelet on *machine*.

    Not only the first thing that stops it: what can be looked at in spite of that is looked at too. Ephemeral storage
    is in bytes; where it is not known nothing is said about it.
    """
    found = lenient_config.read(text, name=name)
    if found.configuration is None:
        return ConfigurationCheck(tuple(_refused(found.errors)), ManagerConfig(gates=FeatureGates()))
    found, told = lenient_config.compute_reservations(found, machine)
    inquiry = ManagerInputs(found, machine, told)
    findings = [*_refused(found.errors), *_overlooked(found), *managers.check_managers(inquiry)]
    findings += [*_excess(inquiry, ephemeral_storage), *warnings.find_warnings(inquiry)]
    order = list(Area)
    return ConfigurationCheck(tuple(sorted(findings, key=lambda one: order.index(one.area))), _basis(inquiry))


def _basis(inquiry: ManagerInputs) -> ManagerConfig:
    lost, found = inquiry.reading.has_dropped, inquiry.configuration
    return ManagerConfig(
        gates=inquiry.gates,
        cpu_policy=None if lost("cpuManagerPolicy") else found.cpu_manager_policy,
        memory_policy=None if lost("memoryManagerPolicy") else found.memory_manager_policy,
        cpus=inquiry.cpu_provider(),
        memory=inquiry.idle_memory(),
        pod_level=inquiry.gates.on("PodLevelResourceManagers") and inquiry.gates.on("PodLevelResources"),
        devices=inquiry.machine.devices,
    )


def _overlooked(found: LenientConfig) -> Iterator[Finding]:
    for what in found.configuration.warnings if found.configuration else ():
        yield warning(Area.CONFIGURATION, what, advice="correct it, or leave it out: the kubelet goes on without it")


def _refused(errors: tuple[ConfigurationError, ...]) -> Iterator[Finding]:
    """The steps of the start before the managers are asked."""
    for refused in errors:
        stage = StartupStage(refused.stage)
        for problem in refused.problems:
            yield error(
                _AREAS.get(stage, Area.CONFIGURATION),
                f"the kubelet {'crashes' if stage is StartupStage.DEFAULTING_PANIC else 'stops'} at {stage}",
                said=problem.what,
                advice=_advice(problem, stage),
                where=problem.field,
            )


def _advice(problem: Problem, stage: StartupStage) -> str:
    gate = problem.field.removeprefix("featureGates[").removesuffix("]")
    match stage:
        case StartupStage.LOAD if problem.what.startswith("must be a string"):
            return f'put the value in quotes: {problem.field.rpartition("[")[2].removesuffix("]")}: "…"'
        case StartupStage.LOAD if problem.field:
            return f"correct {problem.field}"
        case StartupStage.LOAD:
            return "give a KubeletConfiguration of kubelet.config.k8s.io/v1beta1 in YAML or JSON"
        case StartupStage.DEFAULTING_PANIC if problem.what.startswith("unrecognized"):
            return f"leave out {gate}: Kubernetes 1.37 has no such feature gate"
        case StartupStage.DEFAULTING_PANIC if problem.what.startswith("cannot set"):
            return f"leave out {gate}: it cannot be changed any more"
        case StartupStage.DEFAULTING_PANIC:
            return f"turn {gate} off too, or turn on what it builds upon"
        case StartupStage.RESERVED_CPUS:
            return "name only CPUs that this machine has, and that are switched on"
        case StartupStage.KUBE_RESERVED | StartupStage.SYSTEM_RESERVED:
            return "reserve cpu, memory, ephemeral-storage or pid, in amounts such as 500m or 1Gi"
        case StartupStage.EVICTION_HARD:
            return "write an amount such as 100Mi, or a percentage from 0% to 100%, of a signal the kubelet knows"
        case _:
            return f"correct {problem.field}"


def _excess(inquiry: ManagerInputs, ephemeral_storage: int | None) -> Iterator[Finding]:
    """More reserved than there is: found out only once everything has started."""
    begun = configuration.compute_node_allocatable(
        inquiry.configuration, inquiry.machine, ephemeral_storage=ephemeral_storage
    )
    for one in begun.excess:
        yield error(
            Area.CPUS if one.resource == "cpu" else Area.MEMORY if one.resource == "memory" else Area.CONFIGURATION,
            f"the kubelet stops at {StartupStage.NODE_ALLOCATABLE}: {one.reservation.canonical()} of {one.resource} is "
            f"reserved, and there is {one.capacity.canonical()}",
            said=f"invalid Node Allocatable configuration. {one}",
            advice="reserve less: systemReserved, kubeReserved and evictionHard are added up",
            where=f"systemReserved[{one.resource}]",
        )
