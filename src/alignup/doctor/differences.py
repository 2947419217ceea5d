"""Where a state file contradicts the machine and the configuration, as sentences."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from alignup.align import bits
from alignup.align.bits import quote
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError
from alignup.align.explain.sentences import format_quantity
from alignup.align.settings import FeatureGates
from alignup.doctor.findings import format_cpus
from alignup.state.kubelet.checkpoint import PODS_GATE
from alignup.state.kubelet.memory_file import MemoryState

Contents = Mapping[str, Any]


def cpu_differences(contents: Contents, provider: CpuProvider, *, gates: FeatureGates) -> Iterator[str]:
    """Problems of the shared pool; ``repair`` checks the exclusive CPUs."""
    try:
        shared = bits.parse(contents["defaultCpuSet"])
    except ParseError as error:
        yield f"the list of shared CPUs {quote(contents['defaultCpuSet'])} is invalid ({error})"
        return
    if not shared and not contents["entries"]:
        return
    exclusive = bits.union((contents["podEntries"] or {}).values()) if gates.on(PODS_GATE) else 0
    for containers in (contents["entries"] or {}).values():
        for text in (containers or {}).values():
            with suppress(ParseError):
                exclusive |= bits.parse(text)
    strict = provider.options.strict_cpu_reservation
    if gone := shared & ~provider.view.all_cpus:
        yield f"{format_cpus(gone)} in the shared pool, but not on this machine, or offline"
    if strict and (clash := shared & provider.reserved):
        yield (
            f"{format_cpus(clash)} reserved, but in the shared pool: strict-cpu-reservation was off, or other CPUs "
            "were reserved, when the file was written"
        )
    if not strict and (missing := provider.reserved & ~shared & ~exclusive):
        yield (
            f"{format_cpus(missing)} reserved, but not in the shared pool: other CPUs were reserved when the file "
            "was written, or strict-cpu-reservation was on"
        )
    if both := shared & exclusive:
        yield f"{format_cpus(both)} in the shared pool and exclusive to a container"
    if unassigned := provider.view.all_cpus & ~provider.reserved & ~(shared | exclusive):
        yield f"{format_cpus(unassigned)} neither in the shared pool nor exclusive: new, formerly reserved, or lost"


def memory_differences(contents: Contents, repaired: MemoryState, *, dropped: bool) -> Iterator[str]:
    """Problems of the machine state, apart from allocations that had to be *dropped*."""
    stored: Mapping[int, Any] = contents["machineState"] or {}
    now = repaired.machine_state
    if not stored:
        yield "memory is allocated, but the file has no machine state"
        return
    if gone := sorted(stored.keys() - now.keys()):
        yield f"NUMA nodes {', '.join(map(str, gone))} no longer exist"
    if new := sorted(now.keys() - stored.keys()):
        yield f"NUMA nodes {', '.join(map(str, new))} are new"
    found = False
    for id_ in sorted(stored.keys() & now.keys()):
        tables = (stored[id_] or {}).get("memoryMap") or {}
        for difference in _table_differences(tables, now[id_].tables):
            found = True
            yield f"NUMA node {id_}: {difference}"
    if not (found or gone or new or dropped):
        yield "the allocations do not match the free memory in the file"


def _table_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for type_ in sorted(stored.keys() | now.keys()):
        before, table = stored.get(type_), now.get(type_)
        if before is None or table is None:
            yield f"{type_} is {'new' if before is None else 'gone'}"
            continue
        was = {name: format_quantity(before[name]) for name in before}
        total, reserved, left = (format_quantity(amount) for amount in table[:3])
        if was["total"] != total:
            yield f"{was['total']} of {type_} when the file was written, now {total}"
        if was["systemReserved"] != reserved:
            yield f"{was['systemReserved']} of {type_} was reserved when the file was written, now {reserved}"
        if (was["total"], was["systemReserved"]) == (total, reserved) and was["allocatable"] != left:
            yield f"{was['allocatable']} of {type_} was allocatable when the file was written, now {left}"
