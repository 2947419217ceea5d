"""Memory kept back for the system, NUMA node by NUMA node (``reservedMemory``).

The kubelet is told twice how much to keep back: for the whole host (kube-reserved, system-reserved and the hard
eviction threshold together, the *reservation*), and again node by node. It does not start unless both agree to the
byte; ``reserved_by_node`` says so in its words, and ``propose_reserved_memory`` writes the second from the first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.errors import SettingsError
from alignup.align.machine import KubeletView, NumaNode
from alignup.align.memory.ledger import Sizes, page_type
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload import Amounts, names
from alignup.align.workload.names import MEMORY

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    """One entry of ``reservedMemory``: what is kept back on one NUMA node."""

    node: int
    limits: Amounts


def reservation_problems(entries: Iterable[ReservedMemory]) -> tuple[str, ...]:
    """What the kubelet's validation of its configuration finds wrong with *entries*."""
    return tuple(_faults(entries))


def reserved_by_node(
    entries: Sequence[ReservedMemory], reservation: Amounts, *, nodes: Sequence[NumaNode]
) -> dict[int, dict[str, int]]:
    """Node → type → bytes kept back by *entries*, or a :class:`SettingsError` where the kubelet would not start.

    Of several entries for one node and type all are added up, but the last one counts.
    """
    known = {node.id for node in nodes}
    for entry in entries:
        if entry.node not in known:
            raise SettingsError(
                f"the reserved memory configuration references a NUMA node {entry.node} "
                "that does not exist on this machine"
            )
    _check_totals(entries, reservation)
    kept: dict[int, dict[str, int]] = {node: {} for node in sorted(known)}
    for entry in entries:
        for type_, amount in entry.limits.items():
            size = amount.as_int64()
            if size is None:
                raise SettingsError("could not covert a variable of type Quantity to int64")
            kept[entry.node][type_] = size
    if not sum(sizes.get(MEMORY, 0) for sizes in kept.values()):
        raise SettingsError("[memorymanager] you should specify the system reserved memory")
    return kept


def excess_reservations(nodes: Iterable[NumaNode], kept: Mapping[int, Sizes]) -> tuple[str, ...]:
    """One sentence for each node and type of which more is *kept* back than there is.

    The kubelet does not look; it then believes to have almost 2⁶⁴ bytes there.
    """
    found = []
    for node in nodes:
        room = _room(node)
        for type_, size in sorted(kept.get(node.id, {}).items()):
            if type_ in room and size > room[type_]:
                found.append(
                    f"{_shown(size)} of {type_} is reserved on NUMA node {node.id}, which has {_shown(room[type_])}"
                )
    return tuple(found)


def propose_reserved_memory(reservation: Amounts, view: KubeletView) -> tuple[ReservedMemory, ...]:
    """Entries that keep back just *reservation*, spread in proportion to what each node has.

    Memory is taken where CPUs are, since the system's own processes run there; nodes without CPUs (HBM, CXL, memory of
    GPUs) are touched only when the others are too small. Shares are whole MiB or whole huge pages as far as the
    reservation is. A :class:`SettingsError` says what makes it impossible.
    """
    shares: dict[int, dict[str, Quantity]] = {node.id: {} for node in view.nodes}
    for type_, size in sorted(_wanted(reservation).items()):
        room = {node.id: _room(node).get(type_, 0) for node in view.nodes}
        if size > sum(room.values()):
            raise SettingsError(
                f"{_shown(size)} of {type_} cannot be reserved: the NUMA nodes have {_shown(sum(room.values()))}"
            )
        near = {node: bytes_ for node, bytes_ in room.items() if node in view.node_cpus}
        if type_ == MEMORY and size <= sum(near.values()):
            room = near
        unit = _MIB if type_ == MEMORY else names.page_size(type_) or 1
        for node, share in _spread(size, room, unit=unit).items():
            shares[node][type_] = Quantity(share, format=QuantityFormat.BINARY_SI)
    return tuple(ReservedMemory(node, limits) for node, limits in shares.items() if limits)


def _faults(entries: Iterable[ReservedMemory]) -> Iterator[str]:
    seen: Counter[tuple[int, str]] = Counter()
    for entry in entries:
        for type_, amount in sorted(entry.limits.items()):
            where = f"for NUMA node {entry.node}"
            seen[entry.node, type_] += 1
            if type_ != MEMORY and not names.is_hugepages(type_):
                yield (
                    f"invalid configuration: the limit type {quote(type_)} {where} is not supported, "
                    "only [memory hugepages-<HugePageSize>] is accepted"
                )
            if amount.is_zero:
                yield f"invalid configuration: reserved memory may not be zero {where} and resource {quote(type_)}"
            if seen[entry.node, type_] > 1:
                yield (
                    f"invalid configuration: the reserved memory has a duplicate value {where} "
                    f"and resource {quote(type_)}"
                )


def _check_totals(entries: Sequence[ReservedMemory], reservation: Amounts) -> None:
    """Refuse entries that do not add up to the reservation, type by type."""
    totals: dict[str, Quantity] = {}
    for entry in entries:
        for type_, amount in entry.limits.items():
            # The later amount comes first: a sum is printed in the notation of the first that is not zero.
            totals[type_] = amount + totals.get(type_, Quantity.ZERO)
    types = {*totals, *(type_ for type_ in reservation if type_ == MEMORY or names.is_hugepages(type_))}
    for type_ in sorted(types):
        total, wanted = totals.get(type_, Quantity.ZERO), reservation.get(type_, Quantity.ZERO)
        if total != wanted:
            raise SettingsError(
                f"the total amount {quote(str(total))} of type {quote(type_)} is not equal to the value "
                f"{quote(str(wanted))} determined by Node Allocatable feature"
            )


def _wanted(reservation: Amounts) -> dict[str, int]:
    """The bytes of each type that entries must add up to."""
    sizes = {}
    for type_, amount in reservation.items():
        if (type_ == MEMORY or names.is_hugepages(type_)) and not amount.is_zero:
            size = amount.as_int64()
            if size is None or size < 0:
                raise SettingsError(f"{amount} of {type_} cannot be reserved: it is no whole number of bytes")
            sizes[type_] = size
    if MEMORY not in sizes:
        raise SettingsError("[memorymanager] you should specify the system reserved memory")
    return sizes


def _room(node: NumaNode) -> dict[str, int]:
    """The bytes of each type a node has; huge pages are not memory."""
    room = {page_type(pages.size): pages.bytes for pages in node.hugepages}
    room[MEMORY] = (node.memory or 0) - sum(room.values())
    return room


def _spread(size: int, room: Mapping[int, int], *, unit: int) -> dict[int, int]:
    """*size* dealt out in proportion to *room*, in whole units but for a remainder; nothing is left out."""
    total = sum(room.values())
    shares = {node: size * bytes_ // total // unit * unit for node, bytes_ in room.items()}
    left = size - sum(shares.values())
    for node, bytes_ in room.items():
        more = min(left, bytes_ - shares[node])
        shares[node] += more
        left -= more
    return {node: share for node, share in shares.items() if share}


def _shown(size: int) -> str:
    return Quantity(size, format=QuantityFormat.BINARY_SI).canonical()
