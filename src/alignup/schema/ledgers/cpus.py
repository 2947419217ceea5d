"""Restore the CPU ledger."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import ParseError
from alignup.schema.ledgers.documents import CpuResidue
from alignup.schema.ledgers.entries import HoldingConflict, PodEntry


def restore_cpus(
    entries: Sequence[PodEntry], residue: CpuResidue, *, idle: CpuLedger, conflicts: list[HoldingConflict]
) -> CpuLedger:
    """Return the ledger with the CPUs of *entries*; append what they can no longer hold to *conflicts*."""
    everything = bits.union(idle.node_cpus.values())
    held: dict[str, Mapping[str, CpuSet]] = {}
    pod_held: dict[str, CpuSet] = {}
    owned: list[tuple[PodEntry, CpuSet]] = []
    taken = 0
    for entry in entries:
        holdings = entry.document.cpus
        entry.check_containers(holdings.containers)
        own = {name: bits.parse(cpus) for name, cpus in holdings.containers.items()}
        parts = [(entry.owner(name), cpus) for name, cpus in own.items()]
        if own:
            held[entry.uid] = own
        if holdings.pod is not None:
            pod_held[entry.uid] = bits.parse(holdings.pod)
            parts.append((entry.owner(), pod_held[entry.uid]))
            if bits.union(own.values()) & ~pod_held[entry.uid]:
                raise ParseError(f"containers of {entry.owner()} hold CPUs that the pod does not")
        for owner, cpus in parts:
            found = (*_problems(cpus, owner, idle=idle), *_other_owners(cpus & taken, owner, owned))
            conflicts += [HoldingConflict(entry.uid, what) for what in found]
        owned.append((entry, bits.union(cpus for _, cpus in parts)))
        taken |= owned[-1][1]
    lost = bits.parse(residue.lost) & everything
    reusable = residue.reusable
    return replace(
        idle,
        shared=idle.shared & ~taken & ~lost,
        held=held,
        pod_held=pod_held,
        reusable=None if reusable is None else (reusable.pod, bits.parse(reusable.cpus) & everything),
        lost=lost,
    )


def _problems(cpus: CpuSet, owner: str, *, idle: CpuLedger) -> Iterator[str]:
    """Yield why a container cannot hold *cpus* on the idle machine."""
    gone = cpus & ~bits.union(idle.node_cpus.values())
    if gone:
        yield f"{_cpus(gone)} of {owner} no longer exist{'' if gone & gone - 1 else 's'} on this machine"
    reserved = cpus & idle.reserved
    if reserved:
        yield f"{_cpus(reserved)} of {owner} {_are(reserved)} now reserved for the system"
    rest = cpus & ~gone & ~reserved & ~idle.shared
    if rest:
        yield f"{_cpus(rest)} of {owner} cannot be kept: this host does not allocate exclusive CPUs now"


def _other_owners(cpus: CpuSet, owner: str, owned: Sequence[tuple[PodEntry, CpuSet]]) -> Iterator[str]:
    for other, own in owned:
        if cpus & own:
            yield f"{_cpus(cpus & own)} of {owner} {_are(cpus & own)} also held by {other.owner()}"


def _cpus(cpus: CpuSet) -> str:
    return f"CPU{'s' if cpus & cpus - 1 else ''} {bits.show(cpus)}"


def _are(cpus: CpuSet) -> str:
    return "are" if cpus & cpus - 1 else "is"
