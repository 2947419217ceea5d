"""The documents that a ledger consists of, and how a ledger becomes documents."""

from collections.abc import Iterable
from typing import Any

from alignup.align import bits
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.errors import StateError
from alignup.align.hint import Provider
from alignup.align.ledger import Ledger
from alignup.align.memory.ledger import Block
from alignup.documents.codec import Count, Document, LinuxList, build, show_or_none
from alignup.documents.decisions import HintDocument
from alignup.documents.pods import PodDocument, pod_document


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

    @classmethod
    def of(cls, block: Block) -> "BlockDocument":
        return cls(bits.show(block.nodes), block.type, block.size)

    def block(self) -> Block:
        return Block(bits.parse(self.nodes), self.type, self.bytes)


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
    admitted, cpus, memory = ledger.pods[uid], ledger.cpus, ledger.memory
    cpu_holdings, memory_holdings = _NO_CPUS, _NO_MEMORY
    if uid in cpus.held or uid in cpus.pod_held:
        containers = {name: bits.show(own) for name, own in cpus.held.get(uid, {}).items()}
        cpu_holdings = CpuHoldings(containers, show_or_none(cpus.pod_held.get(uid)))
    if (blocks := memory.held.get(uid)) is not None:
        memory_holdings = MemoryHoldings({name: list(map(BlockDocument.of, own)) for name, own in blocks.items()})
    if (pod_blocks := memory.pod_held.get(uid)) is not None:
        memory_holdings = memory_holdings.replace(pod=list(map(BlockDocument.of, pod_blocks)))
    return PodEntryDocument(
        pod=pod_document(admitted.pod),
        hints={container: HintDocument.of(hint) for container, hint in admitted.hints.items()},
        uses=build(UsageDocument, admitted.usage),
        cpus=cpu_holdings,
        memory=memory_holdings,
        devices={
            container: {
                resource: {id_: device_nodes(ledger.devices, resource, id_) for id_ in ids}
                for resource, ids in own.items()
            }
            for container, own in ledger.devices.held.get(uid, {}).items()
        },
    )


def device_nodes(ledger: DeviceLedger, resource: str, id_: str) -> str | None:
    """Return the NUMA nodes of a device; ``None`` if it has no topology or no longer exists."""
    inventory = ledger.inventories.get(resource)
    index = inventory.indexes.get(id_) if inventory else None
    return None if inventory is None or index is None else show_or_none(inventory.devices[index].nodes)


def check_holders(ledger: Ledger) -> None:
    """Raise ``StateError`` if a pod that is not in the ledger holds something: it would not be stored."""
    cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
    for held in (cpus.held, cpus.pod_held, memory.held, memory.pod_held, devices.held):
        if unknown := held.keys() - ledger.pods.keys():
            raise StateError(f"pods {', '.join(sorted(unknown))} hold resources but are not in the ledger")


def residue(ledger: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> ResidueDocument:
    """Return what the ledger records besides the holdings of pods.

    *providers* are those of the host. ``StateError`` if one from outside this package cannot store its ledger.
    """
    cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
    by_name = {one.name: one for one in providers}
    if missing := [name for name in ledger.others if name not in by_name]:
        raise StateError(f"no provider can store the ledger of {', '.join(missing)}")
    reusable_devices = None
    if devices.reusable:
        uid, reusable = devices.reusable
        reusable_devices = ReusableDevices(uid, {resource: sorted(ids) for resource, ids in reusable.items()})
    groups = [MemoryGroup(bits.show(nodes), dict(sizes)) for nodes, sizes in memory.reusable.items()]
    reserved = {
        id_: {type_: table.reserved for type_, table in node.tables.items() if table.reserved}
        for id_, node in memory.nodes.items()
        if node.cells & node.cells - 1
    }
    return ResidueDocument(
        cpus=CpuResidue(
            cpus.reusable and ReusableCpus(cpus.reusable[0], bits.show(cpus.reusable[1])), bits.show(cpus.lost)
        ),
        memory=MemoryResidue(ReusableMemory(memory.last_pod, groups) if memory.last_pod else None, reserved),
        devices=DeviceResidue(reusable_devices, {name: one.registered for name, one in devices.inventories.items()}),
        providers={name: by_name[name].to_json(own) for name, own in ledger.others.items()},
    )
