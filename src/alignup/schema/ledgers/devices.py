"""Restore the device ledger."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from alignup.align.devices import DeviceLedger
from alignup.align.devices.ledger import DeviceIds, DeviceInventory, natural_sort_key
from alignup.align.machine import Device
from alignup.schema.codec import parse_or_none
from alignup.schema.ledgers.documents import DeviceHoldings, DeviceResidue
from alignup.schema.ledgers.entries import HoldingConflict, PodEntry


def restore_devices(
    entries: Sequence[PodEntry], residue: DeviceResidue, *, idle: DeviceLedger, conflicts: list[HoldingConflict]
) -> DeviceLedger:
    """Return the ledger with the devices of *entries*; append devices with two owners to *conflicts*."""
    held: dict[str, Mapping[str, DeviceIds]] = {}
    owners: dict[tuple[str, str], PodEntry] = {}
    known: dict[str, dict[str, Device]] = {}
    for entry in entries:
        holdings = entry.document.devices
        entry.check_containers(holdings)
        for container, device in _devices(holdings):
            owner = owners.setdefault((device.resource, device.id), entry)
            if owner is not entry:
                what = f"{device.resource} {device.id} of {entry.owner(container)} is also held by {owner.owner()}"
                conflicts.append(HoldingConflict(entry.uid, what))
            known.setdefault(device.resource, {})[device.id] = device
        if holdings:
            held[entry.uid] = {
                container: {resource: tuple(sorted(ids, key=natural_sort_key)) for resource, ids in own.items()}
                for container, own in holdings.items()
            }
    inventories = {**_inventories_without_plugin(residue, known, idle=idle), **idle.inventories}
    reusable = residue.reusable
    in_use = _id_sets(known)
    return replace(
        idle,
        inventories=inventories,
        held=held,
        reusable=None if reusable is None else (reusable.pod, _id_sets(reusable.devices)),
        in_use=in_use,
        free={name: own.healthy & ~own.find(in_use.get(name, ())) for name, own in inventories.items()},
    )


def _id_sets(devices: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {resource: frozenset(ids) for resource, ids in devices.items()}


def _devices(holdings: DeviceHoldings) -> Iterator[tuple[str, Device]]:
    """Yield each held device with its container."""
    for container, own in holdings.items():
        for resource, devices in own.items():
            for id_, nodes in devices.items():
                yield container, Device(resource, id_, nodes=parse_or_none(nodes), healthy=False)


def _inventories_without_plugin(
    residue: DeviceResidue, known: Mapping[str, Mapping[str, Device]], *, idle: DeviceLedger
) -> dict[str, DeviceInventory]:
    """Return the resources whose plugin has not registered yet: only the held devices, none of them healthy."""
    inventories = {}
    for resource, registered in residue.resources.items():
        if resource not in idle.inventories:
            inventory = DeviceInventory.of(known.get(resource, {}).values(), machine=idle.nodes)
            inventories[resource] = replace(inventory, registered=registered, remembered=True)
    return inventories
