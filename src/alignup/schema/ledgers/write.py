"""A ledger taken apart: a piece for each pod, and the crumbs."""

from collections.abc import Iterable
from typing import Any

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.errors import StateError
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.provider import Provider
from alignup.align.providers import CpuHintProvider, DeviceProvider, MemoryProvider
from alignup.schema.ledgers.values import show_or_none
from alignup.schema.ledgers.workload import written_pod

OURS = (
    DeviceProvider.name,
    CpuHintProvider.name,
    MemoryProvider.name,
)  #: the books written here; any other its provider has to keep


def to_document(ledger: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> dict[str, Any]:
    """The whole ledger of a host as plain JSON values; *providers* as for :func:`crumbs`."""
    return {
        "pods": [pod_document(ledger, uid) for uid in ledger.pods],
        "crumbs": crumbs(ledger, providers=providers),
    }


def pod_document(ledger: Ledger, uid: str) -> dict[str, Any]:
    """One pod and all it holds.

    It changes when one of its containers starts, and when a plugin says that devices it holds are elsewhere.
    """
    resident = ledger.pods[uid]
    uses = resident.uses
    document = {
        "pod": written_pod(resident.pod),
        "hints": {
            container: {"nodes": show_or_none(hint.nodes), "preferred": hint.preferred}
            for container, hint in resident.hints.items()
        },
        "uses": {
            "milliCpu": uses.milli_cpu,
            "memory": uses.memory,
            "ephemeralStorage": uses.ephemeral_storage,
            "scalars": dict(uses.scalars),
        },
        "cpus": _cpus(ledger.books[CpuHintProvider.name], uid),
        "memory": _memory(ledger.books[MemoryProvider.name], uid),
        "devices": _devices(ledger.books[DeviceProvider.name], uid),
    }
    return {key: value for key, value in document.items() if value}


def crumbs(ledger: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> dict[str, Any]:
    """What the books remember beside what pods hold, and all of the books of providers from outside.

    *providers* are those of the host. ``StateError`` when one from outside does not know how to keep its book.
    """
    cpus, memory, devices = (
        ledger.books[name] for name in (CpuHintProvider.name, MemoryProvider.name, DeviceProvider.name)
    )
    _check_owners(ledger)
    keepers = {one.name: one for one in providers}
    strange = [name for name in ledger.books if name not in OURS]
    if missing := [name for name in strange if name not in keepers]:
        raise StateError(f"nobody is there who could keep the books of {', '.join(missing)}")
    return {
        "cpus": _cpu_crumbs(cpus),
        "memory": _memory_crumbs(memory),
        "devices": _device_crumbs(devices),
        "others": {name: keepers[name].keep(ledger.books[name]) for name in strange},
    }


def _check_owners(ledger: Ledger) -> None:
    """Refuse a ledger with holdings of pods that are not there: they would be lost without a word."""
    cpus, memory, devices = (
        ledger.books[name] for name in (CpuHintProvider.name, MemoryProvider.name, DeviceProvider.name)
    )
    for held in (cpus.held, cpus.pod_held, memory.held, memory.pod_held, devices.held):
        if lost := held.keys() - ledger.pods.keys():
            raise StateError(f"pods {', '.join(sorted(lost))} hold something, but are not there")


def _cpus(book: CpuLedger, uid: str) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if uid in book.held:
        document["containers"] = {name: bits.show(cpus) for name, cpus in book.held[uid].items()}
    if uid in book.pod_held:
        document["pod"] = bits.show(book.pod_held[uid])
    return document


def _memory(book: MemoryLedger, uid: str) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if uid in book.held:
        document["containers"] = {name: list(map(_block, blocks)) for name, blocks in book.held[uid].items()}
    if uid in book.pod_held:
        document["pod"] = list(map(_block, book.pod_held[uid]))
    return document


def _block(block: Block) -> dict[str, Any]:
    return {"nodes": bits.show(block.nodes), "type": block.type, "bytes": block.size}


def _devices(book: DeviceLedger, uid: str) -> dict[str, Any]:
    """Container → resource → id → the nodes the device is on."""
    return {
        container: {resource: {id_: _place(book, resource, id_) for id_ in ids} for resource, ids in held.items()}
        for container, held in book.held.get(uid, {}).items()
    }


def _place(book: DeviceLedger, resource: str, id_: str) -> str | None:
    """The nodes of a device; ``None``: it has no topology, or is gone."""
    inventory = book.inventories.get(resource)
    place = inventory.places.get(id_) if inventory else None
    return None if inventory is None or place is None else show_or_none(inventory.devices[place].nodes)


def _cpu_crumbs(book: CpuLedger) -> dict[str, Any]:
    again = None
    if book.reusable:
        uid, cpus = book.reusable
        again = {"pod": uid, "cpus": bits.show(cpus)}
    return {"reusable": again, "lost": bits.show(book.lost)}


def _memory_crumbs(book: MemoryLedger) -> dict[str, Any]:
    """How blocks are spread over a group depends on which came and went before, so it is noted."""
    groups = [{"nodes": bits.show(nodes), "bytes": dict(sizes)} for nodes, sizes in book.reusable.items()]
    return {
        "reusable": {"pod": book.last_pod, "groups": groups} if book.last_pod else None,
        "spread": {
            str(id_): {type_: table.reserved for type_, table in node.tables.items() if table.reserved}
            for id_, node in book.nodes.items()
            if node.cells & node.cells - 1
        },
    }


def _device_crumbs(book: DeviceLedger) -> dict[str, Any]:
    """Resources are remembered by name: a pod that asks for one whose plugin is not back yet has to be refused."""
    again = None
    if book.reusable:
        uid, devices = book.reusable
        again = {"pod": uid, "devices": {resource: sorted(ids) for resource, ids in devices.items()}}
    return {
        "reusable": again,
        "resources": {name: inventory.registered for name, inventory in book.inventories.items()},
    }
