"""Restore a ledger on the idle ledger of the host as it is now.

The host may have changed since: CPUs are offline, NUMA nodes are gone, more is reserved, device plugins have not
registered yet. A pod keeps what it holds if the host still has it, even if the pod would be placed elsewhere today.
Otherwise one :class:`RestoreError` lists everything that is in the way, with pod and container.

Devices do not have to exist: plugins register after the host starts. Until then their resource consists of the devices
that pods hold, all unhealthy.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from msgspec import structs

from alignup.align.errors import ParseError, RestoreError, StateError
from alignup.align.fit import UsedResources
from alignup.align.ledger import Ledger
from alignup.align.provider import Provider
from alignup.schema.ledgers.cpus import restore_cpus
from alignup.schema.ledgers.devices import restore_devices
from alignup.schema.ledgers.documents import (
    CpuResidue,
    DeviceResidue,
    MemoryResidue,
    PodEntryDocument,
    ResidueDocument,
)
from alignup.schema.ledgers.entries import HoldingConflict, PodEntry, read_pod_entry
from alignup.schema.ledgers.memory import restore_memory

T = TypeVar("T", CpuResidue, MemoryResidue, DeviceResidue)


def restore_ledger(
    pods: Iterable[PodEntryDocument],
    residue: ResidueDocument,
    *,
    idle: Ledger,
    providers: Iterable[Provider[Any]] = (),
) -> Ledger:
    """Return the ledger that holds *pods*; *providers* are those of the host.

    :class:`RestoreError` if pods can no longer hold what they held; another ``StateError`` if the documents contradict
    themselves.
    """
    if idle.pods:
        raise StateError("cannot restore a ledger on one that has pods")
    try:
        entries = _entries(pods)
        ledger = _ledgers(entries, residue, idle, {one.name: one for one in providers})
    except ValueError as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"not a valid ledger: {error}") from error
    used = UsedResources()
    for entry in entries:
        used = used.plus(entry.admitted.usage)
    return replace(ledger, pods={entry.uid: entry.admitted for entry in entries}, used=used)


def _entries(pods: Iterable[PodEntryDocument]) -> tuple[PodEntry, ...]:
    entries: dict[str, PodEntry] = {}
    for entry in map(read_pod_entry, pods):
        other = entries.setdefault(entry.uid, entry)
        if other is not entry:
            raise ParseError(f"{other.owner()} and {entry.owner()} have the same uid")
    return tuple(entries.values())


def _ledgers(
    entries: Sequence[PodEntry], residue: ResidueDocument, idle: Ledger, providers: Mapping[str, Provider[Any]]
) -> Ledger:
    """The ledger with all stored allocations, without its pods."""
    conflicts: list[HoldingConflict] = []
    others = dict(idle.others)
    uids = {entry.uid for entry in entries}
    ledger = replace(
        idle,
        cpus=restore_cpus(entries, _without_absent(residue.cpus, uids), idle=idle.cpus, conflicts=conflicts),
        memory=restore_memory(entries, _without_absent(residue.memory, uids), idle=idle.memory, conflicts=conflicts),
        devices=restore_devices(
            entries, _without_absent(residue.devices, uids), idle=idle.devices, conflicts=conflicts
        ),
    )
    for name, stored in residue.providers.items():
        if name not in providers or name not in others:
            conflicts.append(HoldingConflict("", f"the ledger of {name} is stored, but this host has no such provider"))
        else:
            others[name] = providers[name].from_json(stored)
    if conflicts:
        causes = dict.fromkeys(one.uid for one in conflicts if one.uid)
        raise RestoreError([one.what for one in conflicts], uids=tuple(causes))
    return replace(ledger, others=others)


def _without_absent(residue: T, uids: Collection[str]) -> T:
    """Return *residue* without what an absent pod left to reuse: it released everything."""
    reusable = residue.reusable
    return structs.replace(residue, reusable=None) if reusable and reusable.pod not in uids else residue
