"""The book of CPUs put together again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alignup.align import bits
from alignup.align.bits import Cpus
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.errors import ParseError
from alignup.align.snapshot.pieces import Misfit, Piece, still_there
from alignup.align.snapshot.values import members


def read_cpus(
    pieces: Sequence[Piece], crumbs: Mapping[str, Any], *, idle: CpuLedger, misfits: list[Misfit]
) -> CpuLedger:
    """The book with what the *pieces* hold; what cannot be is added to *misfits*."""
    everything = bits.union(idle.node_cpus.values())
    held: dict[str, Mapping[str, Cpus]] = {}
    pod_held: dict[str, Cpus] = {}
    owned: list[tuple[Piece, Cpus]] = []
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
            misfits += [Misfit(piece.uid, what) for what in found]
        owned.append((piece, bits.union(cpus for _, cpus in parts)))
        taken |= owned[-1][1]
    lost = members(crumbs["lost"]) & everything
    again = still_there(crumbs["reusable"], pieces)
    return replace(
        idle,
        shared=idle.shared & ~taken & ~lost,
        held=held,
        pod_held=pod_held,
        reusable=None if again is None else (again["pod"], members(again["cpus"]) & everything),
        lost=lost,
    )


def _problems(cpus: Cpus, owner: str, *, idle: CpuLedger) -> Iterator[str]:
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


def _doubles(cpus: Cpus, owner: str, owned: Sequence[tuple[Piece, Cpus]]) -> Iterator[str]:
    """Who else owns these CPUs."""
    if cpus:
        for other, own in owned:
            if cpus & own:
                yield f"{_cpus(cpus & own)} of {owner} {_are(cpus & own)} held by {other.owner()} too"


def _cpus(cpus: Cpus) -> str:
    return f"CPU{'s' if cpus & cpus - 1 else ''} {bits.show(cpus)}"


def _are(cpus: Cpus) -> str:
    return "are" if cpus & cpus - 1 else "is"
