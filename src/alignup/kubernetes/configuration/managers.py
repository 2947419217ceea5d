"""The meaning of a configuration on a machine: node allocatable, settings of the managers, and the node status.

Node allocatable is what the kubelet reserves for the system, for Kubernetes, and by its eviction thresholds. Sums are
computed as in the kubelet, for each resource of the machine. The kubelet learns about ephemeral storage only when its
container manager runs, so the CPU and memory managers get a reservation without it.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, quote
from alignup.align.cpus.options import CpuOptions, CpuPolicy, CpuSettings
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ConfigurationError, Problem, ProblemKind, QuantityError, SettingsError
from alignup.align.fit import PODS
from alignup.align.host import Settings
from alignup.align.machine import KubeletView, Machine, hugepages_resource
from alignup.align.memory import reserved_memory
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import FeatureGates, Policy, TopologySettings
from alignup.align.workload import Amounts, names
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kubernetes.configuration import feature_gates
from alignup.kubernetes.configuration.fields import Configuration, StartupStage, StringMap
from alignup.kubernetes.manifests.documents import to_float32

_T = TypeVar("_T")

_RESERVABLE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, "pid"})
_SIGNALS = frozenset(
    [f"{name}.available" for name in ("memory", "nodefs", "imagefs", "containerfs", "pid", "allocatableMemory")]
    + [f"{name}.inodesFree" for name in ("nodefs", "imagefs", "containerfs")]
)
#: Signals whose threshold is reserved → the resource.
RESERVED_SIGNALS = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}

_DIGITS = r"[0-9](?:_?[0-9])*+"
_HEX = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*+"
_DECIMAL_FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?", re.ASCII)
_HEX_FLOAT = re.compile(rf"[+-]?0[xX]_?(?:{_HEX}\.?(?:{_HEX})?|\.{_HEX})[pP][+-]?{_DIGITS}", re.ASCII)
_NAMED_FLOAT = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EvictionThreshold:
    """An amount, or a fraction of the capacity, below which pods are evicted."""

    signal: str
    quantity: Quantity | None = None
    percentage: float = 0.0  #: from 0 to 1, in 32 bits; used without a quantity

    def amount(self, capacity: int) -> Quantity:
        if self.quantity is not None:
            return self.quantity
        if math.isnan(self.percentage):  # converted to an integer as Go does on 64-bit processors
            return Quantity(-(1 << 63), format=QuantityFormat.BINARY_SI)
        return Quantity(int(float(capacity) * self.percentage), format=QuantityFormat.BINARY_SI)


@dataclass(frozen=True, slots=True)
class NodeReservations:
    system_reserved: Amounts
    kube_reserved: Amounts
    reserved_system_cpus: CpuSet
    thresholds: tuple[EvictionThreshold, ...]
    reservation: Amounts  #: the sums for the machine's resources except ephemeral storage, without zeros


@dataclass(frozen=True, slots=True)
class OverReservation:
    resource: str
    reservation: Quantity
    capacity: Quantity

    def __str__(self) -> str:
        return (
            f"Resource {quote(self.resource)} has a reservation of {_go_struct(self.reservation)} "
            f"but capacity of {_go_struct(self.capacity)}. Expected capacity >= reservation."
        )


@dataclass(frozen=True, slots=True)
class StartupResources:
    capacity: Amounts
    reservation: Amounts
    pods_limits: Amounts  #: of all pods together: capacity without reservations, but with eviction thresholds
    excess: tuple[OverReservation, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    capacity: Amounts
    allocatable: Amounts


def host_settings(configuration: Configuration, machine: Machine, *, limit_nodes: bool = True) -> Settings:
    """Return the settings of a host; :class:`ConfigurationError` of any stage up to topology_manager.

    ``Host`` or :func:`startup_errors` report the errors of the CPU and memory managers, and the errors of the topology
    manager that depend on the machine. Without *limit_nodes* the kubelet's limit on NUMA nodes does not apply.
    """
    reservations = compute_reservations(configuration, machine)
    gates = feature_gates.resolve(configuration.feature_gates, configuration.release)
    try:
        topology = _topology_settings(configuration, gates, limit_nodes=limit_nodes)
    except SettingsError as error:
        field = "topologyManagerPolicyOptions"
        raise _manager_error(error, field, StartupStage.TOPOLOGY_MANAGER, configuration) from None
    return Settings(
        topology=topology,
        cpus=cpu_settings(configuration, reservations),
        memory_policy=configuration.memory_manager_policy,
        reserved_memory=configuration.reserved_memory,
        reservation=reservations.reservation,
        gates=gates,
        release=configuration.release,
        max_pods=_max_pods(configuration, machine),
    )


def startup_errors(
    configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None
) -> tuple[ConfigurationError, ...]:
    """Return everything that keeps a kubelet from starting on *machine*, in the order of its startup.

    All managers are checked, even after an error; only an invalid reservation comes alone, since every manager needs
    the reservations. *ephemeral_storage* is in bytes, or ``None`` if it is unknown.
    """
    try:
        reservations = compute_reservations(configuration, machine)
    except ConfigurationError as error:
        return (error,)
    errors = tuple(_manager_errors(configuration, machine.kubelet_view(), reservations))
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
    pods = Quantity.of(_max_pods(configuration, machine))
    allocatable = subtract(resources.capacity, resources.reservation)
    for name, amount in resources.capacity.items():
        if names.is_hugepages(name):
            allocatable = subtract(allocatable, {MEMORY: amount})
    return NodeStatus(capacity={**resources.capacity, PODS: pods}, allocatable={**allocatable, PODS: pods})


def _max_pods(configuration: Configuration, machine: Machine) -> int:
    if not configuration.pods_per_core:
        return configuration.max_pods
    return min(configuration.pods_per_core * machine.kubelet_view().num_cpus, configuration.max_pods)


def compute_reservations(configuration: Configuration, machine: Machine) -> NodeReservations:
    """Return what is reserved; :class:`ConfigurationError` of the stages from reserved_cpus to eviction_hard."""
    cpus = _reserved_cpus(configuration, machine.kubelet_view()) if configuration.reserved_system_cpus else 0
    system, kube = dict(configuration.system_reserved), dict(configuration.kube_reserved)
    if cpus:
        kube.pop(CPU, None)
        system[CPU] = str(cpus.bit_count())
    kube_reserved = _parse_each(kube, _reserved, StartupStage.KUBE_RESERVED, configuration)
    system_reserved = _parse_each(system, _reserved, StartupStage.SYSTEM_RESERVED, configuration)
    hard = dict(sorted(configuration.eviction_hard.items()))
    thresholds_by_signal = _parse_each(hard, _threshold, StartupStage.EVICTION_HARD, configuration)
    thresholds = tuple(threshold for threshold in thresholds_by_signal.values() if threshold)
    whole = {CPU: None, MEMORY: None, **_capacity(machine)}
    with _adding(configuration):
        reservation = _reservation((system_reserved, kube_reserved), thresholds, whole)
    return NodeReservations(system_reserved, kube_reserved, cpus, thresholds, reservation)


def compute_node_allocatable(
    configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None
) -> StartupResources:
    """Return the resources of a node; :class:`ConfigurationError` for invalid reservations.

    *ephemeral_storage* is in bytes, or ``None`` if it is unknown.
    """
    reservations = compute_reservations(configuration, machine)
    whole = _capacity(machine)
    if ephemeral_storage is not None and configuration.local_storage_capacity_isolation:
        whole[EPHEMERAL_STORAGE] = Quantity.of(ephemeral_storage)
    with _adding(configuration, StartupStage.NODE_ALLOCATABLE):
        system, kube = reservations.system_reserved, reservations.kube_reserved
        reservation = _reservation((system, kube), reservations.thresholds, whole)
        limits = subtract(subtract(whole, system), kube)
    over = [name for name in reservation if reservation[name] > whole[name]]
    excess = tuple(OverReservation(name, reservation[name], whole[name]) for name in over)
    return StartupResources(whole, reservation, limits, excess)


def _manager_errors(
    configuration: Configuration, view: KubeletView, reservations: NodeReservations
) -> Iterator[ConfigurationError]:
    gates = feature_gates.resolve(configuration.feature_gates, configuration.release)
    reservation = reservations.reservation
    try:
        topology = _topology_settings(configuration, gates)
        topology.check_machine(nodes=len(view.nodes), distances=view.distances is not None)
    except SettingsError as error:
        yield _manager_error(error, "topologyManagerPolicyOptions", StartupStage.TOPOLOGY_MANAGER, configuration)
    cpus, policy = cpu_settings(configuration, reservations), Policy(configuration.topology_manager_policy)
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
        advice = _memory_advice(reservations, view) if static else None
        field = "reservedMemory" if static else "memoryManagerPolicy"
        yield _manager_error(error, field, StartupStage.MEMORY_MANAGER, configuration, advice)


def _cpu_field(settings: CpuSettings, view: KubeletView, topology: Policy, gates: FeatureGates) -> str:
    """Return the field that an error of the CPU manager is about: the field of its first check that fails."""
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
    nodes = []
    for entry in entries:
        limits = ", ".join(f"{name}: {amount}" for name, amount in entry.limits.items())
        nodes.append(f"{{numaNode: {entry.node}, limits: {{{limits}}}}}")
    return f"set reservedMemory: [{', '.join(nodes)}]"


def _topology_settings(
    configuration: Configuration, gates: FeatureGates, *, limit_nodes: bool = True
) -> TopologySettings:
    return TopologySettings.parse(
        configuration.topology_manager_policy,
        configuration.topology_manager_scope,
        options=configuration.topology_manager_policy_options,
        gates=gates,
        limit_nodes=limit_nodes,
    )


def cpu_settings(configuration: Configuration, reservations: NodeReservations) -> CpuSettings:
    return CpuSettings(
        policy=configuration.cpu_manager_policy,
        options=configuration.cpu_manager_policy_options,
        reservation=reservations.reservation.get(CPU),
        explicit=reservations.reserved_system_cpus,
    )


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


def _capacity(machine: Machine) -> dict[str, Quantity]:
    view = machine.kubelet_view()
    whole = {CPU: Quantity(1000 * view.num_cpus, -3)}
    sizes = [node.memory for node in view.nodes] if machine.memory is None else [machine.memory]
    if known_sizes := [size for size in sizes if size is not None]:
        whole[MEMORY] = Quantity.of(sum(known_sizes), QuantityFormat.BINARY_SI)
    pages: dict[int, int] = {}
    for pool in machine.hugepages or [pool for node in view.nodes for pool in node.hugepages]:
        pages[pool.size] = pages.get(pool.size, 0) + pool.bytes
    for size, total in pages.items():
        whole[hugepages_resource(size)] = Quantity.of(total, QuantityFormat.BINARY_SI)
    return whole


def subtract(amounts: Amounts, other_amounts: Amounts) -> dict[str, Quantity]:
    """Return *amounts* without *other_amounts*, but not below zero."""
    differences = {name: amount - other_amounts.get(name, Quantity.ZERO) for name, amount in amounts.items()}
    return {
        name: amount if amount.sign >= 0 else Quantity(0, format=amount.format) for name, amount in differences.items()
    }


def _reserved_cpus(configuration: Configuration, view: KubeletView) -> CpuSet:
    text = configuration.reserved_system_cpus
    message = f"reserved-cpus: {text} is not a subset of online-cpus: {bits.show(view.all_cpus)}"
    highest = bits.parse_spans(text)[-1][1]
    if view.discovery_error:
        message = f"unable to discover CPU topology info: {view.discovery_error}"
    elif highest < view.all_cpus.bit_length() and not bits.parse(text) & ~view.all_cpus:
        return bits.parse(text)
    problems = [Problem("reservedSystemCPUs", message)]
    raise ConfigurationError(problems, stage=StartupStage.RESERVED_CPUS, source=configuration.source)


def _parse_each(
    texts: StringMap, parse: Callable[[str, str], _T], stage: StartupStage, configuration: Configuration
) -> dict[str, _T]:
    """Parse the entries of a field; of several invalid ones the kubelet reports a random one."""
    field, prefix = {
        StartupStage.SYSTEM_RESERVED: ("systemReserved", "--system-reserved value failed to parse: "),
        StartupStage.KUBE_RESERVED: ("kubeReserved", "--kube-reserved value failed to parse: "),
        StartupStage.EVICTION_HARD: ("evictionHard", ""),
    }[stage]
    values, problems = {}, []
    for name, text in texts.items():
        try:
            values[name] = parse(name, text)
        except QuantityError as error:
            problems.append(Problem(f"{field}[{name}]", f"{prefix}{error.message}"))
    if problems:
        raise ConfigurationError(problems, stage=stage, source=configuration.source)
    return values


def _reserved(name: str, text: str) -> Quantity:
    if name not in _RESERVABLE:
        raise QuantityError(f"cannot reserve {quote(name)} resource")
    try:
        amount = Quantity.parse(text)
    except QuantityError as error:
        raise QuantityError(
            f"failed to parse quantity {quote(text)} for {quote(name)} resource: {error.message}"
        ) from None
    if amount.sign < 0:
        raise QuantityError(f"resource quantity for {quote(name)} cannot be negative: {text}")
    if name != CPU:
        return amount
    # The kubelet rounds millionths to thousandths.
    millionths = Quantity(amount.unscaled, amount.power + 3, dec=amount.dec).milli() + 500
    thousandths = abs(millionths) // 1000
    return Quantity(thousandths if millionths > 0 else -thousandths, -3, format=amount.format)


def _threshold(signal: str, text: str) -> EvictionThreshold | None:
    """Parse a threshold; ``None`` if *text* disables the threshold."""
    if signal not in _SIGNALS:
        raise QuantityError(f"unsupported eviction signal {signal}")
    if text in {"0%", "100%"}:
        return None
    if text.endswith("%"):
        percentage = to_float32(_parse_float(text.rstrip("%")) / 100)
        if percentage < 0:
            raise QuantityError(f"eviction percentage threshold {signal} must be >= 0%: {text}")
        if percentage > 1:
            raise QuantityError(f"eviction percentage threshold {signal} must be <= 100%: {text}")
        return EvictionThreshold(signal, percentage=percentage)
    quantity = Quantity.parse(text)
    if quantity.sign <= 0:
        raise QuantityError(f"eviction threshold {signal} must be positive: {quantity}")
    return EvictionThreshold(signal, quantity)


def _parse_float(text: str) -> float:
    """Parse a 32-bit float in any of Go's spellings."""
    if _DECIMAL_FLOAT.fullmatch(text) or _NAMED_FLOAT.fullmatch(text):
        number = float(text)
    elif _HEX_FLOAT.fullmatch(text):
        number = float.fromhex(text.replace("_", ""))
    else:
        raise QuantityError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")
    single = to_float32(number)
    if math.isinf(single) and not _NAMED_FLOAT.fullmatch(text):
        raise QuantityError(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return single


def _reservation(
    reservations: Iterable[Amounts], thresholds: Iterable[EvictionThreshold], whole: Mapping[str, Quantity | None]
) -> Amounts:
    """Return the sum for each resource in *whole*, without zeros."""
    free = {}
    for threshold in thresholds:
        if resource := RESERVED_SIGNALS.get(threshold.signal):
            free[resource] = threshold.amount((whole.get(resource) or Quantity.ZERO).value())
    every = (*reservations, free)
    sums = {name: sum((amounts.get(name, Quantity.ZERO) for amounts in every), Quantity.ZERO) for name in whole}
    return {name: total for name, total in sums.items() if not total.is_zero}


@contextmanager
def _adding(configuration: Configuration, stage: StartupStage = StartupStage.SYSTEM_RESERVED) -> Iterator[None]:
    """Reject quantities with exponents so far apart that adding them would keep a kubelet busy for hours."""
    try:
        yield
    except QuantityError as error:
        problems = [Problem("systemReserved", str(error), ProblemKind.OWN_LIMIT)]
        raise ConfigurationError(problems, stage=stage, source=configuration.source) from None


def _go_struct(amount: Quantity) -> str:
    """Return a quantity as Go prints the struct; addresses are masked."""
    if amount.dec:
        return f"{{{{0 0}} {{0xADDRESS}} {amount.text or ''} {amount.format}}}"
    return f"{{{{{amount.unscaled} {amount.power}}} {{<nil>}} {amount.text or ''} {amount.format}}}"
