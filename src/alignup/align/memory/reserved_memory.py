"""Memory reserved for the system on each NUMA node (``reservedMemory``).

A KubeletConfiguration contains this reservation twice: for the whole host (kube-reserved, system-reserved and the hard
eviction threshold together, here the *reservation*), and per NUMA node. The kubelet starts only if both are equal to
the byte. ``reserved_by_node`` checks that, and ``propose_reserved_memory`` derives the second from the first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from alignup.align.bits import quote
from alignup.align.errors import SettingsError
from alignup.align.machine import KubeletView, NumaNode, hugepages_resource
from alignup.align.memory.ledger import Sizes
from alignup.align.quantity import Quantity, QuantityFormat, read_amounts
from alignup.align.workload import Amounts, names
from alignup.align.workload.names import MEMORY

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    node: int
    limits: Amounts

    def __post_init__(self) -> None:
        read_amounts(self, "limits")


def reservation_problems(entries: Iterable[ReservedMemory]) -> Iterator[str]:
    """Yield the errors of the kubelet's validation of its configuration."""
    numbers: Counter[tuple[int, str]] = Counter()
    for entry in entries:
        for type_, amount in sorted(entry.limits.items()):
            subject = f"for NUMA node {entry.node}"
            numbers[entry.node, type_] += 1
            if not _is_memory(type_):
                yield (
                    f"invalid configuration: the limit type {quote(type_)} {subject} is not supported, "
                    "only [memory hugepages-<HugePageSize>] is accepted"
                )
            if amount.is_zero:
                yield f"invalid configuration: reserved memory may not be zero {subject} and resource {quote(type_)}"
            if numbers[entry.node, type_] > 1:
                yield (
                    f"invalid configuration: the reserved memory has a duplicate value {subject} "
                    f"and resource {quote(type_)}"
                )


def reserved_by_node(
    entries: Sequence[ReservedMemory], reservation: Amounts, *, nodes: Sequence[NumaNode]
) -> dict[int, dict[str, int]]:
    """Return node → type → bytes, the last entry counts; ``SettingsError`` if the kubelet would not start."""
    node_ids = {node.id for node in nodes}
    if unknown_nodes := [entry.node for entry in entries if entry.node not in node_ids]:
        raise SettingsError(
            f"the reserved memory configuration references a NUMA node {unknown_nodes[0]} "
            "that does not exist on this machine"
        )
    totals: dict[str, Quantity] = {}
    for entry in entries:
        for type_, amount in entry.limits.items():
            # The later amount comes first: a sum is printed in the format of its first non-zero term.
            totals[type_] = amount + totals.get(type_, Quantity.ZERO)
    for type_ in sorted({*totals, *filter(_is_memory, reservation)}):
        total, needed_size = totals.get(type_, Quantity.ZERO), reservation.get(type_, Quantity.ZERO)
        if total != needed_size:
            raise SettingsError(
                f"the total amount {quote(str(total))} of type {quote(type_)} is not equal to the value "
                f"{quote(str(needed_size))} determined by Node Allocatable feature"
            )
    sizes_by_node: dict[int, dict[str, int]] = {node: {} for node in sorted(node_ids)}
    for entry in entries:
        for type_, amount in entry.limits.items():
            size = amount.as_int64()
            if size is None:
                raise SettingsError("could not covert a variable of type Quantity to int64")
            sizes_by_node[entry.node][type_] = size
    if not sum(sizes.get(MEMORY, 0) for sizes in sizes_by_node.values()):
        raise SettingsError("[memorymanager] you should specify the system reserved memory")
    return sizes_by_node


def excess_reservations(nodes: Iterable[NumaNode], sizes: Mapping[int, Sizes]) -> tuple[str, ...]:
    """Return one sentence for each node and type with larger *sizes* than it has, which the kubelet does not check."""
    sentences = []
    for node in nodes:
        capacity = _capacity(node)
        for type_, size in sorted(sizes.get(node.id, {}).items()):
            if type_ in capacity and size > capacity[type_]:
                has = _format(capacity[type_])
                sentences.append(f"{_format(size)} of {type_} is reserved on NUMA node {node.id}, which has {has}")
    return tuple(sentences)


def propose_reserved_memory(reservation: Amounts, view: KubeletView) -> tuple[ReservedMemory, ...]:
    """Return entries that reserve exactly *reservation*, in proportion to the memory of each node.

    Memory is taken from nodes with CPUs, where the system's processes run; nodes without CPUs (HBM, CXL, memory of
    GPUs) are used only if the others are too small. Shares are whole MiB or whole huge pages if the reservation is.
    Raises :class:`SettingsError` if it is impossible.
    """
    shares: dict[int, dict[str, Quantity]] = {node.id: {} for node in view.nodes}
    for type_, size in sorted(_wanted(reservation).items()):
        capacity = {node.id: _capacity(node).get(type_, 0) for node in view.nodes}
        if size > sum(capacity.values()):
            raise SettingsError(
                f"{_format(size)} of {type_} cannot be reserved: the NUMA nodes have {_format(sum(capacity.values()))}"
            )
        near = {node: bytes_ for node, bytes_ in capacity.items() if node in view.node_cpus}
        if type_ == MEMORY and size <= sum(near.values()):
            capacity = near
        unit = _MIB if type_ == MEMORY else names.page_size(type_) or 1
        for node, share in _spread(size, capacity, unit=unit).items():
            shares[node][type_] = Quantity(share, format=QuantityFormat.BINARY_SI)
    return tuple(ReservedMemory(node, limits) for node, limits in shares.items() if limits)


def _wanted(reservation: Amounts) -> dict[str, int]:
    sizes = {}
    for type_, amount in reservation.items():
        if _is_memory(type_) and not amount.is_zero:
            size = amount.as_int64()
            if size is None or size < 0:
                raise SettingsError(f"{amount} of {type_} cannot be reserved: it is not a whole number of bytes")
            sizes[type_] = size
    if MEMORY not in sizes:
        raise SettingsError("[memorymanager] you should specify the system reserved memory")
    return sizes


def _is_memory(type_: str) -> bool:
    return type_ == MEMORY or names.is_hugepages(type_)


def _capacity(node: NumaNode) -> dict[str, int]:
    """Return the bytes of each type on a node; memory excludes huge pages."""
    capacity = {hugepages_resource(pages.size): pages.bytes for pages in node.hugepages}
    capacity[MEMORY] = (node.memory or 0) - sum(capacity.values())
    return capacity


def _spread(size: int, capacity: Mapping[int, int], *, unit: int) -> dict[int, int]:
    """Divide *size* in proportion to *capacity*, in whole units except for a remainder."""
    total = sum(capacity.values())
    shares = {node: size * bytes_ // total // unit * unit for node, bytes_ in capacity.items()}
    rest = size - sum(shares.values())
    for node, bytes_ in capacity.items():
        more = min(rest, bytes_ - shares[node])
        shares[node] += more
        rest -= more
    return {node: share for node, share in shares.items() if share}


def _format(size: int) -> str:
    return Quantity(size, format=QuantityFormat.BINARY_SI).canonical()
