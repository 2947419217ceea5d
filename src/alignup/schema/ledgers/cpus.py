"""The book of CPUs put together again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import ParseError
from alignup.schema.ledgers.pieces import HoldingConflict, PodEntry, if_pod_exists
from alignup.schema.ledgers.values import members


def read_cpus(
    pieces: Sequence[PodEntry], crumbs: Mapping[str, Any], *, idle: CpuLedger, misfits: list[HoldingConflict]
) -> CpuLedger:
    """The book with what the *pieces* hold; what cannot be is added to *misfits*."""
    everything = bits.union(idle.node_cpus.values())
    held: dict[str, Mapping[str, CpuSet]] = {}
    pod_held: dict[str, CpuSet] = {}
    owned: list[tuple[PodEntry, CpuSet]] = []
    taken = 0
    for piece in pieces:
        said = piece.holds("cpus")
        own = {name: members(cpus) for name, cpus in piece.by_container(said.get("containers", {})).items()}
        parts = [(piece.owner(name), cpus) for name, cpus in own.items()]
        if own:
            held[piece.uid] = own
        if "pod" in said:
            pod_held[piece.uid] = members(said["pod"])
            parts.append((piece.owner(), pod_held[piece.uid]))
            if bits.union(own.values()) & ~pod_held[piece.uid]:
                raise ParseError(f"containers of {piece.owner()} have CPUs that are not among those of the pod")
        for owner, cpus in parts:
            found = (*_problems(cpus, owner, idle=idle), *_doubles(cpus & taken, owner, owned))
            misfits += [HoldingConflict(piece.uid, what) for what in found]
        owned.append((piece, bits.union(cpus for _, cpus in parts)))
        taken |= owned[-1][1]
    lost = members(crumbs["lost"]) & everything
    again = if_pod_exists(crumbs["reusable"], pieces)
    return replace(
        idle,
        shared=idle.shared & ~taken & ~lost,
        held=held,
        pod_held=pod_held,
        reusable=None if again is None else (again["pod"], members(again["cpus"]) & everything),
        lost=lost,
    )


def _problems(cpus: CpuSet, owner: str, *, idle: CpuLedger) -> Iterator[str]:
    """Why a container cannot own these CPUs on the idle machine."""
    gone = cpus & ~bits.union(idle.node_cpus.values())
    if gone:
        exist = "do not exist" if gone & gone - 1 else "does not exist"
        yield f"{_cpus(gone)} of {owner} {exist} on this machine any more"
    reserved = cpus & idle.reserved
    if reserved:
        yield f"{_cpus(reserved)} of {owner} {_are(reserved)} reserved for the system now"
    rest = cpus & ~gone & ~reserved & ~idle.shared
    if rest:
        yield f"{_cpus(rest)} of {owner} {_are(rest)} not to be had: no CPUs are given out now"


def _doubles(cpus: CpuSet, owner: str, owned: Sequence[tuple[PodEntry, CpuSet]]) -> Iterator[str]:
    """Who else owns these CPUs."""
    if cpus:
        for other, own in owned:
            if cpus & own:
                yield f"{_cpus(cpus & own)} of {owner} {_are(cpus & own)} held by {other.owner()} too"


def _cpus(cpus: CpuSet) -> str:
    return f"CPU{'s' if cpus & cpus - 1 else ''} {bits.show(cpus)}"


def _are(cpus: CpuSet) -> str:
    return "are" if cpus & cpus - 1 else "is"
