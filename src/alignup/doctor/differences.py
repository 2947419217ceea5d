"""What in a state file does not go with the machine and the configuration as they are now, a line each."""

from collections.abc import Iterator, Mapping
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet, quote
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import FeatureGates
from alignup.doctor.findings import format_cpus
from alignup.state.kubelet import cpu_file
from alignup.state.kubelet.memory_file import MemoryState

Contents = Mapping[str, Any]


def cpu_differences(contents: Contents, provider: CpuProvider, *, gates: FeatureGates) -> Iterator[str]:
    """What is wrong with the shared CPUs of a file; what containers own is judged elsewhere."""
    try:
        shared = bits.parse(contents["defaultCpuSet"])
    except ParseError as error:
        yield f"the list of shared CPUs {quote(contents['defaultCpuSet'])} cannot be read ({error})"
        return
    owned = _owned(contents, gates)
    if not shared and not contents["entries"]:
        return
    strict = provider.options.strict_cpu_reservation
    everything = provider.view.all_cpus & ~(provider.reserved if strict else 0)
    if gone := shared & ~provider.view.all_cpus:
        yield f"{format_cpus(gone)} shared, but the machine has none of that number, or it is switched off"
    if strict and (clash := shared & provider.reserved):
        yield (
            f"{format_cpus(clash)} reserved, but among the shared ones: strict-cpu-reservation was off, or others "
            "were reserved, when the file was written"
        )
    if not strict and (missing := provider.reserved & ~shared & ~owned):
        yield (
            f"{format_cpus(missing)} reserved, but not among the shared ones: others were reserved when the file "
            "was written, or strict-cpu-reservation was on"
        )
    if both := shared & owned:
        yield f"{format_cpus(both)} shared and owned by a container at once"
    unreserved = everything & ~provider.reserved
    if nobodys := unreserved & ~(shared | owned):
        yield f"{format_cpus(nobodys)} neither shared nor owned: new, reserved before, or lost"


def _owned(contents: Contents, gates: FeatureGates) -> CpuSet:
    """All that containers and pods own, as far as it can be read."""
    owned = bits.union((contents["podEntries"] or {}).values()) if gates.on(cpu_file.PODS_GATE) else 0
    for own in (contents["entries"] or {}).values():
        for text in (own or {}).values():
            try:
                owned |= bits.parse(text)
            except ParseError:
                continue
    return owned


def memory_differences(contents: Contents, mended: MemoryState, *, lost: bool) -> Iterator[str]:
    """What of a file's machine state is not so, beside what nobody can hold any more."""
    stored: Mapping[int, Any] = contents["machineState"] or {}
    now = mended.machine_state
    if not stored:
        yield "memory is held, but there is nothing about the machine"
        return
    if gone := sorted(stored.keys() - now.keys()):
        yield f"NUMA nodes {', '.join(map(str, gone))} do not exist any more"
    if new := sorted(now.keys() - stored.keys()):
        yield f"NUMA nodes {', '.join(map(str, new))} are new"
    found = False
    for id_ in sorted(stored.keys() & now.keys()):
        tables = (stored[id_] or {}).get("memoryMap") or {}
        for difference in _table_differences(tables, now[id_].tables):
            found = True
            yield f"NUMA node {id_}: {difference}"
    if not (found or gone or new or lost):
        yield "what is held does not add up to what the file says is free"


def _table_differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for type_ in sorted(stored.keys() | now.keys()):
        before, table = stored.get(type_), now.get(type_)
        if before is None or table is None:
            yield f"{type_} is {'new' if before is None else 'not there any more'}"
            continue
        was = {name: Quantity.of(before[name], QuantityFormat.BINARY_SI).canonical() for name in before}
        total, reserved, left = (Quantity.of(amount, QuantityFormat.BINARY_SI).canonical() for amount in table[:3])
        if was["total"] != total:
            yield f"it had {was['total']} of {type_} when the file was written, now {total}"
        if was["systemReserved"] != reserved:
            yield f"{was['systemReserved']} of {type_} was reserved when the file was written, now {reserved}"
        if (was["total"], was["systemReserved"]) == (total, reserved) and was["allocatable"] != left:
            yield f"{was['allocatable']} of {type_} could be given out when the file was written, now {left}"
