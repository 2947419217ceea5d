"""What a kubelet sets aside when it starts: for the system, for Kubernetes, and by its eviction thresholds.

Amounts are added up as the kubelet adds them, resource by resource of what the machine has. Ephemeral storage is known
to it only once its container manager runs: the managers of CPUs and memory are told a reservation without it.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import CpuSet, quote
from alignup.align.errors import ConfigurationError, Problem, QuantityError
from alignup.align.machine import KubeletView, Machine, hugepages_resource
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.kube.configuration.model import Configuration, StartupStage, StringMap

_PID = "pid"
_RESERVABLE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, _PID})
_SIGNALS = frozenset(
    {
        "memory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "containerfs.available",
        "containerfs.inodesFree",
        "pid.available",
        "allocatableMemory.available",
    }
)
#: Signals whose threshold is kept free, and of which resource.
_KEPT_FREE = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}

_DIGITS = r"[0-9](?:_?[0-9])*+"
_HEX = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*+"
_DECIMAL_FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?", re.ASCII)
_HEX_FLOAT = re.compile(rf"[+-]?0[xX]_?(?:{_HEX}\.?(?:{_HEX})?|\.{_HEX})[pP][+-]?{_DIGITS}", re.ASCII)
_NAMED_FLOAT = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EvictionThreshold:
    """Below how much of something pods are evicted: an amount, or a part of the whole between 0 and 1."""

    signal: str
    quantity: Quantity | None = None
    percentage: float = 0.0  #: of 32 bits; counts only where there is no quantity

    def amount(self, capacity: int) -> Quantity:
        """The amount, where the whole is *capacity*."""
        if self.quantity is not None:
            return self.quantity
        if math.isnan(self.percentage):  # what a 64-bit processor makes of it as a whole number
            return Quantity(-(1 << 63), format=QuantityFormat.BINARY_SI)
        return Quantity(int(float(capacity) * self.percentage), format=QuantityFormat.BINARY_SI)


@dataclass(frozen=True, slots=True)
class NodeReservations:
    """What the managers of CPUs and memory are told."""

    system_reserved: Amounts
    kube_reserved: Amounts
    reserved_system_cpus: CpuSet
    thresholds: tuple[EvictionThreshold, ...]
    reservation: Amounts  #: all of it together, of what the machine has but ephemeral storage; nothing that is zero


@dataclass(frozen=True, slots=True)
class OverReservation:
    """A resource of which more is reserved than there is."""

    resource: str
    reservation: Quantity
    capacity: Quantity

    def __str__(self) -> str:
        return (
            f"Resource {quote(self.resource)} has a reservation of {_inside(self.reservation)} "
            f"but capacity of {_inside(self.capacity)}. Expected capacity >= reservation."
        )


@dataclass(frozen=True, slots=True)
class StartupResources:
    """How the container manager reckons when it starts."""

    capacity: Amounts
    reservation: Amounts
    pods_limits: Amounts  #: what all pods together are limited to; thresholds are not taken off
    excess: tuple[OverReservation, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What the Node object in the cluster says of this host."""

    capacity: Amounts
    allocatable: Amounts


def compute_reservations(configuration: Configuration, machine: Machine) -> NodeReservations:
    """What is reserved; a :class:`ConfigurationError` of the stages from reserved_cpus to eviction_hard."""
    view = machine.kubelet_view()
    cpus = _reserved_cpus(configuration, view)
    system, kube = dict(configuration.system_reserved), dict(configuration.kube_reserved)
    if cpus:
        kube.pop(CPU, None)
        system[CPU] = str(cpus.bit_count())
    kube_reserved = _amounts(kube, stage=StartupStage.KUBE_RESERVED, configuration=configuration)
    system_reserved = _amounts(system, stage=StartupStage.SYSTEM_RESERVED, configuration=configuration)
    thresholds = _thresholds(configuration)
    whole = machine_capacity(machine, view)
    with _reckoning(configuration):
        reservation = _reservation((system_reserved, kube_reserved), thresholds, {CPU: None, MEMORY: None, **whole})
    return NodeReservations(
        system_reserved=system_reserved,
        kube_reserved=kube_reserved,
        reserved_system_cpus=cpus,
        thresholds=thresholds,
        reservation=reservation,
    )


def compute_node_allocatable(
    configuration: Configuration, machine: Machine, *, ephemeral_storage: int | None = None
) -> StartupResources:
    """How the container manager reckons, with that many bytes of ephemeral storage; ``None`` when they are not known.

    A :class:`ConfigurationError` where it would not come so far.
    """
    told = compute_reservations(configuration, machine)
    whole = machine_capacity(machine, machine.kubelet_view())
    if ephemeral_storage is not None and configuration.local_storage_capacity_isolation:
        whole[EPHEMERAL_STORAGE] = Quantity.of(ephemeral_storage)
    with _reckoning(configuration):
        reservation = _reservation((told.system_reserved, told.kube_reserved), told.thresholds, whole)
        limits = subtract(subtract(whole, told.system_reserved), told.kube_reserved)
    over = [name for name in reservation if reservation[name] > whole[name]]
    return StartupResources(
        whole, reservation, limits, tuple(OverReservation(name, reservation[name], whole[name]) for name in over)
    )


def machine_capacity(machine: Machine, view: KubeletView) -> dict[str, Quantity]:
    """What a machine has of each resource, as far as it says."""
    whole = {CPU: Quantity(1000 * view.num_cpus, -3)}
    memory = machine.memory
    if memory is None:
        known = [node.memory for node in view.nodes if node.memory is not None]
        memory = sum(known) if known else None
    if memory is not None:
        whole[MEMORY] = Quantity.of(memory, QuantityFormat.BINARY_SI)
    pages: dict[int, int] = {}
    for one in machine.hugepages or [pages for node in view.nodes for pages in node.hugepages]:
        pages[one.size] = pages.get(one.size, 0) + one.bytes
    for size, total in pages.items():
        whole[hugepages_resource(size)] = Quantity.of(total, QuantityFormat.BINARY_SI)
    return whole


def subtract(amounts: Amounts, taken: Amounts) -> dict[str, Quantity]:
    """What is left of *amounts*, if anything."""
    left = {name: amount - taken.get(name, Quantity.ZERO) for name, amount in amounts.items()}
    return {name: one if one.sign >= 0 else Quantity(0, format=one.format) for name, one in left.items()}


def _reserved_cpus(configuration: Configuration, view: KubeletView) -> CpuSet:
    text = configuration.reserved_system_cpus
    if not text:
        return 0
    what = view.discovery_error and f"unable to discover CPU topology info: {view.discovery_error}"
    highest = bits.parse_spans(text)[-1][1]
    if not what and highest < view.all_cpus.bit_length() and not bits.parse(text) & ~view.all_cpus:
        return bits.parse(text)
    what = what or f"reserved-cpus: {text} is not a subset of online-cpus: {bits.show(view.all_cpus)}"
    raise _refused([Problem("reservedSystemCPUs", what)], StartupStage.RESERVED_CPUS, configuration)


def _amounts(texts: StringMap, *, stage: StartupStage, configuration: Configuration) -> Amounts:
    """``systemReserved`` or ``kubeReserved``; of several wrong entries the kubelet names one at random."""
    field, flag = {
        StartupStage.SYSTEM_RESERVED: ("systemReserved", "--system-reserved"),
        StartupStage.KUBE_RESERVED: ("kubeReserved", "--kube-reserved"),
    }[stage]
    read, wrong = {}, []
    for name, text in texts.items():
        try:
            read[name] = _reserved(name, text)
        except QuantityError as error:
            wrong.append(Problem(f"{field}[{name}]", f"{flag} value failed to parse: {error}"))
    if wrong:
        raise _refused(wrong, stage, configuration)
    return read


def _reserved(name: str, text: str) -> Quantity:
    if name not in _RESERVABLE:
        raise QuantityError(f"cannot reserve {quote(name)} resource")
    try:
        amount = Quantity.parse(text)
    except QuantityError as error:
        raise QuantityError(f"failed to parse quantity {quote(text)} for {quote(name)} resource: {error}") from None
    if amount.sign < 0:
        raise QuantityError(f"resource quantity for {quote(name)} cannot be negative: {text}")
    if name != CPU:
        return amount
    # Thousandths of a thousand times as much are millionths, in which the kubelet rounds.
    millionths = Quantity(amount.unscaled, amount.power + 3, dec=amount.dec).milli() + 500
    thousandths = abs(millionths) // 1000
    return Quantity(thousandths if millionths > 0 else -thousandths, -3, format=amount.format)


def _thresholds(configuration: Configuration) -> tuple[EvictionThreshold, ...]:
    """The hard thresholds by signal; of several wrong ones the kubelet names one at random."""
    read, wrong = [], []
    for signal, text in sorted(configuration.eviction_hard.items()):
        try:
            threshold = _threshold(signal, text)
        except QuantityError as error:
            wrong.append(Problem(f"evictionHard[{signal}]", str(error)))
        else:
            read += [threshold] if threshold else []
    if wrong:
        raise _refused(wrong, StartupStage.EVICTION_HARD, configuration)
    return tuple(read)


def _threshold(signal: str, text: str) -> EvictionThreshold | None:
    """One threshold; ``None`` when the text switches it off."""
    if signal not in _SIGNALS:
        raise QuantityError(f"unsupported eviction signal {signal}")
    if text in {"0%", "100%"}:
        return None
    if text.endswith("%"):
        percentage = _single(_parse_float(text.rstrip("%")) / 100)
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
    """A number of 32 bits in any spelling Go has for one."""
    if _DECIMAL_FLOAT.fullmatch(text) or _NAMED_FLOAT.fullmatch(text):
        number = float(text)
    elif _HEX_FLOAT.fullmatch(text):
        number = float.fromhex(text.replace("_", ""))
    else:
        raise QuantityError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")
    try:
        single = _single(number)
    except OverflowError:
        single = math.inf
    if math.isinf(single) and not _NAMED_FLOAT.fullmatch(text):
        raise QuantityError(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return single


def _single(number: float) -> float:
    """*number* rounded to 32 bits."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _reservation(
    reserved: Iterable[Amounts], thresholds: Iterable[EvictionThreshold], whole: Mapping[str, Quantity | None]
) -> Amounts:
    """All that is set aside of each resource in *whole*; nothing that is zero."""
    free = {}
    for threshold in thresholds:
        if resource := _KEPT_FREE.get(threshold.signal):
            free[resource] = threshold.amount((whole.get(resource) or Quantity.ZERO).value())
    sums = {}
    for name in whole:
        total = Quantity.ZERO
        for amounts in (*reserved, free):
            total += amounts.get(name, Quantity.ZERO)
        if not total.is_zero:
            sums[name] = total
    return sums


@contextmanager
def _reckoning(configuration: Configuration) -> Iterator[None]:
    """Amounts too far apart to be added, with which a kubelet would be busy for hours, are refused."""
    try:
        yield
    except QuantityError as error:
        raise _refused([Problem("systemReserved", str(error))], StartupStage.SYSTEM_RESERVED, configuration) from None


def _inside(amount: Quantity) -> str:
    """A quantity as Go prints what is inside of one; where there is an address it says just that."""
    if amount.dec:
        return f"{{{{0 0}} {{0xADDRESS}} {amount.text or ''} {amount.format}}}"
    return f"{{{{{amount.unscaled} {amount.power}}} {{<nil>}} {amount.text or ''} {amount.format}}}"


def _refused(problems: Iterable[Problem], stage: StartupStage, configuration: Configuration) -> ConfigurationError:
    return ConfigurationError(tuple(problems), stage=stage, source=configuration.source)
