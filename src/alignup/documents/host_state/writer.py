"""HostStates from machines and ledgers, as observers write them."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.claims.ledger import MODEL, ClaimLedger
from alignup.align.claims.resource_claims import PCI_BUS_ID
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.ledger import Ledger
from alignup.align.locality import PciPath, normal_address
from alignup.align.machine import Device, Machine
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY
from alignup.documents.codec import show_or_none, to_builtins
from alignup.documents.host_state.schema import (
    MAX_LINKED_DEVICES,
    MAX_PCI_DEVICES,
    ClaimDeviceGroup,
    DeviceGroupDocument,
    DeviceLinksDocument,
    HeldResourcesDocument,
    HostLedgerDocument,
    HostStateDocument,
    PciGroupDocument,
)
from alignup.documents.ledgers import holdings, residue
from alignup.documents.machines import machine_to_document, show_path
from alignup.documents.steering import MARKER_RESOURCE, marker_number


def to_object(state: HostStateDocument) -> dict[str, Any]:
    """Return the fields of the object, without metadata, to be applied."""
    return {name: value for name, value in to_builtins(state).items() if name != "metadata"}


def format_time(seconds: float) -> str:
    """Return a time since the epoch as Kubernetes writes it."""
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"


def machine_document(machine: Machine) -> dict[str, Any]:
    """Return what decisions depend on; the report of cAdvisor only where it differs from the hardware."""
    small = replace(machine, devices=(), pci=(), gaps=(), links=(), stated_levels=())
    plain = replace(small, report=None)
    return machine_to_document(plain if plain.kubelet_view() == small.kubelet_view() else small)


def ledger_document(ledger: Ledger, machine: Machine | None = None) -> HostLedgerDocument:
    """Return what is held; and where on *machine* the devices are whose PCI addresses the ledger has."""
    residual = residue(ledger)
    claimed_devices = ledger.claims.devices if ledger.claims else ()
    offered_addresses = {
        device.address for inventory in ledger.devices.inventories.values() for device in inventory.devices
    }
    offered_addresses |= {normal_address(str(device.attributes.get(PCI_BUS_ID, ""))) for device in claimed_devices}
    addresses = (
        [address for address in machine.locality.pci if address in offered_addresses]
        if machine and any(offered_addresses)
        else []
    )
    empty = {
        name: inventory.registered for name, inventory in ledger.devices.inventories.items() if not inventory.devices
    }
    plugins = {name: False for name, inventory in ledger.devices.inventories.items() if not inventory.registered}
    return HostLedgerDocument(
        pods=[_held_resources(ledger, uid) for uid in ledger.pods],
        devices=list(_device_groups(ledger.devices)),
        resources={**empty, **plugins},
        claim_devices=list(_claim_device_groups(ledger.claims)) if ledger.claims else [],
        lost_cpus=residual.cpus.lost,
        group_memory=residual.memory.reserved,
        pci=list(_pci_groups(machine, addresses[:MAX_PCI_DEVICES])) if machine else [],
        links=_links(machine, addresses[:MAX_PCI_DEVICES]) if machine else [],
    )


def _held_resources(ledger: Ledger, uid: str) -> HeldResourcesDocument:
    cpus, memory, _ = holdings(ledger, uid)
    pod = ledger.pods[uid].pod
    return HeldResourcesDocument(
        uid=uid,
        namespace=pod.namespace,
        name=pod.name if pod.namespace else "",
        priority=pod.priority or 0,
        requests=_requests(ledger.pods[uid].usage),
        cpus=cpus,
        memory=memory,
        devices={
            container: {resource: list(ids) for resource, ids in resources.items()}
            for container, resources in ledger.devices.held.get(uid, {}).items()
        },
        claims={
            container: {claim: list(map(str, ids)) for claim, ids in claims.items()}
            for container, claims in (ledger.claims.held.get(uid, {}) if ledger.claims else {}).items()
        },
    )


def _requests(usage: FitRequest) -> dict[str, str]:
    amounts = {MEMORY: usage.memory, EPHEMERAL_STORAGE: usage.ephemeral_storage, **usage.scalars}
    cpu = {CPU: _show_milli_cpu(usage.milli_cpu)} if usage.milli_cpu else {}
    return cpu | {name: _show_amount(amount) for name, amount in amounts.items() if amount}


@lru_cache(maxsize=1024)  # the pods of a node have few different amounts
def _show_milli_cpu(amount: int) -> str:
    return str(Quantity(amount, -3))


@lru_cache(maxsize=1024)
def _show_amount(amount: int) -> str:
    return str(Quantity.of(amount, QuantityFormat.BINARY_SI))


def _device_groups(ledger: DeviceLedger) -> Iterator[DeviceGroupDocument]:
    for resource, inventory in sorted(ledger.inventories.items()):
        groups: dict[tuple[int | None, bool], list[Device]] = {}
        for device in inventory.devices:
            groups.setdefault((device.nodes, device.healthy), []).append(device)
        for (nodes, healthy), devices in groups.items():
            ids = [device.id for device in devices]
            group = DeviceGroupDocument(
                resource=resource,
                ids=ids,
                nodes=show_or_none(nodes),
                healthy=healthy,
                addresses=[device.address for device in devices]
                if any(device.address not in ("", normal_address(device.id)) for device in devices)
                else [],
            )
            markers = bits.show(_marker_numbers(nodes, ids)) if resource == MARKER_RESOURCE else ""
            yield group.replace(ids=[], markers=markers) if markers else group


def _pci_groups(machine: Machine, addresses: Collection[str]) -> Iterator[PciGroupDocument]:
    groups: dict[tuple[PciPath | None, int | None, int | None], list[str]] = {}
    for address in addresses:
        device = machine.locality.pci[address]
        groups.setdefault((device.path, device.kind, device.node), []).append(address)
    for (path, kind, node), members in groups.items():
        yield PciGroupDocument(
            addresses=members,
            path="" if path is None else show_path(path),
            class_code="" if kind is None else f"0x{kind:06x}",
            node=node,
        )


def _links(machine: Machine, addresses: Collection[str]) -> list[DeviceLinksDocument]:
    """Return the links between these devices; none if there are too many, since a part of them would be wrong."""
    address_set, links = set(addresses), []
    for link in machine.links:
        devices = [address for address in link.devices if address in address_set]
        if len(devices) > 1:
            links.append(DeviceLinksDocument(kind=link.kind, devices=devices, count=link.count))
    return links if sum(len(link.devices) for link in links) <= MAX_LINKED_DEVICES else []


def _marker_numbers(nodes: NodeSet | None, ids: list[str]) -> Bits:
    """Return the numbers of the markers of a NUMA node; none if another device is among them."""
    members = list(bits.members(nodes or 0))
    numbers = [marker_number(members[0], id_) for id_ in ids] if len(members) == 1 else []
    valid = [number for number in numbers if number is not None]
    return bits.of(valid) if len(valid) == len(ids) else 0


def _claim_device_groups(ledger: ClaimLedger) -> Iterator[ClaimDeviceGroup]:
    groups: dict[tuple[str, str, int | None, str], list[str]] = {}
    for device in ledger.devices:
        driver, pool, name = device.id
        groups.setdefault((driver, pool, device.nodes, str(device.attributes.get(MODEL, ""))), []).append(name)
    for (driver, pool, nodes, model), names in groups.items():
        yield ClaimDeviceGroup(driver=driver, pool=pool, devices=names, nodes=show_or_none(nodes), model=model)
