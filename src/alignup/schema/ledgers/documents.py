"""The documents that a ledger consists of, and how a ledger becomes documents."""
# ruff: noqa: RUF012 - msgspec copies mutable defaults

from collections.abc import Iterable
from typing import Any

from alignup.align import bits
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.errors import StateError
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.provider import Provider
from alignup.schema.codec import Count, Document, LinuxList, show_or_none
from alignup.schema.decisions import HintDocument
from alignup.schema.pods import PodDocument, pod_document


class UsageDocument(Document, frozen=True):
    """What a pod counts for in the fit check."""

    milli_cpu: Count
    memory: Count
    ephemeral_storage: Count
    scalars: dict[str, Count]


class BlockDocument(Document, frozen=True):
    nodes: LinuxList
    type: str
    bytes: Count


class CpuHoldings(Document, frozen=True, omit_defaults=True):
    containers: dict[str, LinuxList] = {}
    pod: LinuxList | None = None  #: CPUs of the pod as a whole; its containers share them


class MemoryHoldings(Document, frozen=True, omit_defaults=True):
    containers: dict[str, list[BlockDocument]] | None = None
    pod: list[BlockDocument] | None = None  #: memory of the pod as a whole; its containers share it


DeviceHoldings = dict[str, dict[str, dict[str, LinuxList | None]]]  #: container → resource → device id → NUMA nodes

_NO_CPUS, _NO_MEMORY = CpuHoldings(), MemoryHoldings()


class PodEntryDocument(Document, frozen=True, omit_defaults=True, kw_only=True):
    """One pod and everything it holds."""

    pod: PodDocument
    hints: dict[str, HintDocument] = {}
    uses: UsageDocument
    cpus: CpuHoldings = _NO_CPUS
    memory: MemoryHoldings = _NO_MEMORY
    devices: DeviceHoldings = {}


class ReusableCpus(Document, frozen=True):
    pod: str
    cpus: LinuxList


class CpuResidue(Document, frozen=True):
    reusable: ReusableCpus | None
    lost: LinuxList


class MemoryGroup(Document, frozen=True):
    nodes: LinuxList
    bytes: dict[str, Count]


class ReusableMemory(Document, frozen=True):
    pod: str
    groups: list[MemoryGroup]


class MemoryResidue(Document, frozen=True):
    reusable: ReusableMemory | None
    #: NUMA node → type → bytes reserved there, for nodes in a group: it depends on which pods came and went before
    reserved: dict[int, dict[str, Count]]


class ReusableDevices(Document, frozen=True):
    pod: str
    devices: dict[str, list[str]]


class DeviceResidue(Document, frozen=True):
    reusable: ReusableDevices | None
    #: resource → whether a plugin registered it; a pod that requests one must wait for the plugin, not run without
    resources: dict[str, bool]


class ResidueDocument(Document, frozen=True):
    cpus: CpuResidue
    memory: MemoryResidue
    devices: DeviceResidue
    providers: dict[str, Any]  #: the ledgers of providers from outside this package


def pod_entry(ledger: Ledger, uid: str) -> PodEntryDocument:
    """Return a pod's entry.

    It changes when one of its containers starts, and when a plugin reports other NUMA nodes for a device it holds.
    """
    admitted = ledger.pods[uid]
    uses = admitted.usage
    return PodEntryDocument(
        pod=pod_document(admitted.pod),
        hints={container: HintDocument.of(hint) for container, hint in admitted.hints.items()},
        uses=UsageDocument(uses.milli_cpu, uses.memory, uses.ephemeral_storage, dict(uses.scalars)),
        cpus=_cpu_holdings(ledger.cpus, uid),
        memory=_memory_holdings(ledger.memory, uid),
        devices=_device_holdings(ledger.devices, uid),
    )


def residue(ledger: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> ResidueDocument:
    """Return what the ledger records besides the holdings of pods.

    *providers* are those of the host. ``StateError`` if one from outside this package cannot store its ledger.
    """
    _check_owners(ledger)
    by_name = {one.name: one for one in providers}
    if missing := [name for name in ledger.others if name not in by_name]:
        raise StateError(f"no provider can store the ledger of {', '.join(missing)}")
    return ResidueDocument(
        cpus=_cpu_residue(ledger.cpus),
        memory=_memory_residue(ledger.memory),
        devices=_device_residue(ledger.devices),
        providers={name: by_name[name].to_json(own) for name, own in ledger.others.items()},
    )


def _check_owners(ledger: Ledger) -> None:
    """Raise if a pod holds something but is not in the ledger: the document would lose its holdings."""
    cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
    for held in (cpus.held, cpus.pod_held, memory.held, memory.pod_held, devices.held):
        if unknown := held.keys() - ledger.pods.keys():
            raise StateError(f"pods {', '.join(sorted(unknown))} hold resources but are not in the ledger")


def _cpu_holdings(ledger: CpuLedger, uid: str) -> CpuHoldings:
    if uid not in ledger.held and uid not in ledger.pod_held:
        return _NO_CPUS
    containers = {name: bits.show(cpus) for name, cpus in ledger.held.get(uid, {}).items()}
    return CpuHoldings(containers, show_or_none(ledger.pod_held.get(uid)))


def _memory_holdings(ledger: MemoryLedger, uid: str) -> MemoryHoldings:
    containers, pod = ledger.held.get(uid), ledger.pod_held.get(uid)
    if containers is None and pod is None:
        return _NO_MEMORY
    return MemoryHoldings(
        None if containers is None else {name: list(map(_block, blocks)) for name, blocks in containers.items()},
        None if pod is None else list(map(_block, pod)),
    )


def _block(block: Block) -> BlockDocument:
    return BlockDocument(bits.show(block.nodes), block.type, block.size)


def _device_holdings(ledger: DeviceLedger, uid: str) -> DeviceHoldings:
    return {
        container: {
            resource: {id_: _device_nodes(ledger, resource, id_) for id_ in ids} for resource, ids in own.items()
        }
        for container, own in ledger.held.get(uid, {}).items()
    }


def _device_nodes(ledger: DeviceLedger, resource: str, id_: str) -> str | None:
    """Return the NUMA nodes of a device; ``None`` if it has no topology or no longer exists."""
    inventory = ledger.inventories.get(resource)
    place = inventory.indexes.get(id_) if inventory else None
    return None if inventory is None or place is None else show_or_none(inventory.devices[place].nodes)


def _cpu_residue(ledger: CpuLedger) -> CpuResidue:
    reusable = ledger.reusable and ReusableCpus(ledger.reusable[0], bits.show(ledger.reusable[1]))
    return CpuResidue(reusable, bits.show(ledger.lost))


def _memory_residue(ledger: MemoryLedger) -> MemoryResidue:
    groups = [MemoryGroup(bits.show(nodes), dict(sizes)) for nodes, sizes in ledger.reusable.items()]
    return MemoryResidue(
        reusable=ReusableMemory(ledger.last_pod, groups) if ledger.last_pod else None,
        reserved={
            id_: {type_: table.reserved for type_, table in node.tables.items() if table.reserved}
            for id_, node in ledger.nodes.items()
            if node.cells & node.cells - 1
        },
    )


def _device_residue(ledger: DeviceLedger) -> DeviceResidue:
    reusable = None
    if ledger.reusable:
        uid, devices = ledger.reusable
        reusable = ReusableDevices(uid, {resource: sorted(ids) for resource, ids in devices.items()})
    return DeviceResidue(reusable, {name: one.registered for name, one in ledger.inventories.items()})
