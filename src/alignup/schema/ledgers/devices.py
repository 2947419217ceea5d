"""The book of devices put together again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from alignup.align.devices import DeviceLedger
from alignup.align.devices.ledger import DeviceIds, DeviceInventory, natural_sort_key
from alignup.align.machine import Device
from alignup.schema.ledgers.pieces import HoldingConflict, PodEntry, if_pod_exists
from alignup.schema.ledgers.values import fields, flag, members_or_none, texts


def read_devices(
    pieces: Sequence[PodEntry], crumbs: Mapping[str, Any], *, idle: DeviceLedger, misfits: list[HoldingConflict]
) -> DeviceLedger:
    """The book with what the *pieces* hold; what is held twice is added to *misfits*."""
    held: dict[str, Mapping[str, DeviceIds]] = {}
    owners: dict[tuple[str, str], PodEntry] = {}
    known: dict[str, dict[str, Device]] = {}
    for piece in pieces:
        said = piece.by_container(piece.holds("devices"))
        for container, resource, id_, place in _each(said):
            owner = owners.setdefault((resource, id_), piece)
            if owner is not piece:
                what = f"{resource} {id_} of {piece.owner(container)} is held by {owner.owner()} too"
                misfits.append(HoldingConflict(piece.uid, what))
            device = Device(resource, id_, nodes=members_or_none(place), healthy=False)
            known.setdefault(resource, {})[id_] = device
        if said:
            held[piece.uid] = {name: _held(own) for name, own in said.items()}
    inventories = {**_without_plugin(crumbs, known, idle=idle), **idle.inventories}
    again = if_pod_exists(crumbs["reusable"], pieces)
    in_use = {resource: frozenset(ids) for resource, ids in known.items()}
    return replace(
        idle,
        inventories=inventories,
        held=held,
        reusable=None if again is None else (again["pod"], _ids(again["devices"])),
        in_use=in_use,
        free={name: own.healthy & ~own.find(in_use.get(name, ())) for name, own in inventories.items()},
    )


def _each(said: Mapping[str, Any]) -> list[tuple[str, str, str, object]]:
    """Container, resource, id and place of every device."""
    return [
        (container, resource, id_, place)
        for container, own in said.items()
        for resource, devices in fields(own).items()
        for id_, place in fields(devices).items()
    ]


def _held(own: Mapping[str, Any]) -> DeviceIds:
    return {resource: tuple(sorted(ids, key=natural_sort_key)) for resource, ids in own.items()}


def _without_plugin(
    crumbs: Mapping[str, Any], known: Mapping[str, Mapping[str, Device]], *, idle: DeviceLedger
) -> dict[str, DeviceInventory]:
    """Resources whose plugin is not back: of them just the devices that are held are known, and none is healthy."""
    inventories = {}
    for resource, registered in fields(crumbs["resources"]).items():
        if resource not in idle.inventories:
            inventory = DeviceInventory.of(known.get(resource, {}).values(), machine=idle.nodes)
            inventories[resource] = replace(inventory, registered=flag(registered), remembered=True)
    return inventories


def _ids(document: object) -> dict[str, frozenset[str]]:
    return {resource: frozenset(texts(ids)) for resource, ids in fields(document).items()}
