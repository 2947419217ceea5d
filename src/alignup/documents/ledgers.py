"""A ledger as JSON documents, one entry per pod and the residue, and how a ledger is restored from them.

An entry changes only when its own pod does, so each pod is stored once. The *residue* is everything else the ledger
records, such as what the last pod's init containers left to reuse.

A ledger is restored on the idle ledger of the host as it is now, which may have changed: CPUs are offline, NUMA nodes
are gone, more is reserved, device plugins have not registered yet. A pod keeps what it holds if the host still has it,
even if the pod would be placed elsewhere today. Otherwise one :class:`RestoreError` lists everything that is in the
way, with pod and container.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import or_
from types import MappingProxyType
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import Bits, CpuSet, NodeSet
from alignup.align.claims.resource_claims import DeviceId
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices.hints import DeviceInventory, natural_sort_key
from alignup.align.devices.ledger import DeviceIds, DeviceLedger
from alignup.align.errors import ParseError, RestoreError, StateError
from alignup.align.fit import UsedResources
from alignup.align.hint import Provider
from alignup.align.ledger import AdmittedPod, Ledger
from alignup.align.machine import Device
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger, NodeMemory, Sizes
from alignup.align.workload.demand import FitRequest
from alignup.documents.codec import Count, Document, LinuxList, build, parse_or_none, show_or_none
from alignup.documents.decisions import HintDocument
from alignup.documents.pod_documents import PodDocument, pod_document, read_pod

#: What pods can no longer hold, with the uid of the pod to release; it is empty if no single pod is the cause.
Conflicts = list[tuple[str, str]]
_MAX_SHOWN = 200  # characters of a list of CPUs or NUMA nodes
ReservedBytes = Mapping[int, Sizes]  #: NUMA node → type → bytes reserved there


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
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


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
    admitted_pod = ledger.pods[uid]
    cpus, memory, devices = holdings(ledger, uid)
    return PodEntryDocument(
        pod=pod_document(admitted_pod.pod),
        hints={container: HintDocument.of(hint) for container, hint in admitted_pod.hints.items()},
        uses=build(UsageDocument, admitted_pod.usage),
        cpus=cpus,
        memory=memory,
        devices=devices,
    )


def holdings(ledger: Ledger, uid: str) -> tuple[CpuHoldings, MemoryHoldings, DeviceHoldings]:
    cpus, memory = ledger.cpus, ledger.memory
    cpu_holdings, memory_holdings = _NO_CPUS, _NO_MEMORY
    if uid in cpus.held or uid in cpus.pod_held:
        containers = {name: bits.show(members) for name, members in cpus.held.get(uid, {}).items()}
        cpu_holdings = CpuHoldings(containers, show_or_none(cpus.pod_held.get(uid)))
    if (blocks := memory.held.get(uid)) is not None:
        memory_holdings = MemoryHoldings(
            {name: _block_documents(blocks_of_container) for name, blocks_of_container in blocks.items()}
        )
    if (pod_blocks := memory.pod_held.get(uid)) is not None:
        memory_holdings = memory_holdings.replace(pod=_block_documents(pod_blocks))
    devices = {
        container: {
            resource: {id_: device_nodes(ledger.devices, resource, id_) for id_ in ids}
            for resource, ids in ids_by_resource.items()
        }
        for container, ids_by_resource in ledger.devices.held.get(uid, {}).items()
    }
    return cpu_holdings, memory_holdings, devices


def _block_documents(blocks: Iterable[Block]) -> list[BlockDocument]:
    return [BlockDocument(bits.show(block.nodes), block.type, block.size) for block in blocks]


def device_nodes(ledger: DeviceLedger, resource: str, id_: str) -> str | None:
    """Return the NUMA nodes of a device; ``None`` if it has no topology or no longer exists."""
    inventory = ledger.inventories.get(resource)
    index = inventory.indexes.get(id_) if inventory else None
    return None if inventory is None or index is None else show_or_none(inventory.devices[index].nodes)


def check_holders(ledger: Ledger) -> None:
    """Raise ``StateError`` if a pod that is not in the ledger holds something: it would not be stored."""
    cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
    for holders in (cpus.held, cpus.pod_held, memory.held, memory.pod_held, devices.held):
        if unknown_uids := holders.keys() - ledger.pods.keys():
            raise StateError(f"pods {', '.join(sorted(unknown_uids))} hold resources but are not in the ledger")


def residue(ledger: Ledger, *, providers: Iterable[Provider[Any]] = ()) -> ResidueDocument:
    """Return what the ledger records besides the holdings of pods.

    *providers* are those of the host. ``StateError`` if one from outside this package cannot store its ledger.
    """
    cpus, memory, devices = ledger.cpus, ledger.memory, ledger.devices
    by_name = {provider.name: provider for provider in providers}
    if missing_names := [name for name in ledger.others if name not in by_name]:
        raise StateError(f"no provider can store the ledger of {', '.join(missing_names)}")
    reusable_cpus = cpus.reusable and ReusableCpus(cpus.reusable[0], bits.show(cpus.reusable[1]))
    reusable_devices = None
    if devices.reusable:
        uid, reusable = devices.reusable
        reusable_devices = ReusableDevices(uid, {resource: sorted(ids) for resource, ids in reusable.items()})
    resources = {name: inventory.registered for name, inventory in devices.inventories.items()}
    groups = [MemoryGroup(bits.show(nodes), dict(sizes)) for nodes, sizes in memory.reusable.items()]
    reserved_sizes = {
        id_: {type_: table.reserved for type_, table in node.tables.items() if table.reserved}
        for id_, node in memory.nodes.items()
        if node.cells & node.cells - 1
    }
    return ResidueDocument(
        cpus=CpuResidue(reusable_cpus, bits.show(cpus.lost)),
        memory=MemoryResidue(ReusableMemory(memory.last_pod, groups) if memory.last_pod else None, reserved_sizes),
        devices=DeviceResidue(reusable_devices, resources),
        providers={name: by_name[name].to_json(other) for name, other in ledger.others.items()},
    )


class PodEntry(NamedTuple):
    """One pod and everything it holds, as a ledger has it."""

    uid: str
    admitted: AdmittedPod
    cpus: Mapping[str, CpuSet] = _NOTHING  #: by container
    pod_cpus: CpuSet | None = None  #: of the pod as a whole; its containers share them
    owned: CpuSet = 0  #: all of them
    memory: Mapping[str, tuple[Block, ...]] | None = None  #: by container
    pod_memory: tuple[Block, ...] | None = None  #: of the pod as a whole
    charged: tuple[Block, ...] = ()  #: what it takes of the memory of NUMA nodes
    devices: Mapping[str, DeviceIds] = _NOTHING  #: by container
    device_nodes: Mapping[tuple[str, str], NodeSet] = _NOTHING  #: of devices that had a topology, by resource and id
    claims: Mapping[str, Mapping[str, tuple[DeviceId, ...]]] = _NOTHING  #: container → namespace/name → devices

    def owner(self, container: str | None = None) -> str:
        """Return the name of the pod, or the name of one of its containers, for messages."""
        pod = self.admitted.pod
        name = f"{pod.namespace}/{pod.name}"
        return name if container is None else f"{name} (container {container})"

    def owned_blocks(self) -> Iterator["OwnedBlock"]:
        """Yield the charged blocks with their owners."""
        blocks = {None: self.pod_memory} if self.pod_memory is not None else self.memory or {}
        return (OwnedBlock(self.uid, self.owner(name), block) for name, group in blocks.items() for block in group)


class OwnedBlock(NamedTuple):
    uid: str
    owner: str
    block: Block


def restore_ledger(
    pods: Iterable[PodEntryDocument], residue: ResidueDocument, *, idle: Ledger, providers: Iterable[Provider[Any]] = ()
) -> Ledger:
    """Return the ledger that holds *pods*; *providers* are the providers of the host.

    :class:`RestoreError` if pods can no longer hold what they held; another ``StateError`` if the documents contradict
    themselves.
    """
    return restore_entries(map(_read_entry, pods), residue, idle=idle, providers=providers)


def restore_entries(
    pods: Iterable[PodEntry], residue: ResidueDocument, *, idle: Ledger, providers: Iterable[Provider[Any]] = ()
) -> Ledger:
    """Return the ledger that holds *pods*, with these objects; see :func:`restore_ledger`."""
    if idle.pods:
        raise StateError("cannot restore a ledger on one that has pods")
    try:
        return _restore(tuple(pods), residue, idle, {provider.name: provider for provider in providers})
    except StateError:
        raise
    except ValueError as error:
        raise StateError(f"not a valid ledger: {error}") from error


def _restore(
    entries: Sequence[PodEntry], residue: ResidueDocument, idle: Ledger, providers: Mapping[str, Provider[Any]]
) -> Ledger:
    pods = {entry.uid: entry.admitted for entry in entries}
    if len(pods) < len(entries):
        ((uid, _),) = Counter(entry.uid for entry in entries).most_common(1)
        owners = [entry.owner() for entry in entries if entry.uid == uid]
        raise ParseError(f"{owners[0]} and {owners[1]} have the same uid")
    conflicts: Conflicts = []
    for name, part in (("cpus", residue.cpus), ("memory", residue.memory), ("devices", residue.devices)):
        if part.reusable and part.reusable.pod not in pods:  # it released everything
            residue = residue.replace(**{name: part.replace(reusable=None)})
    cpus = _restore_cpus(entries, residue.cpus, idle.cpus, conflicts)
    memory = _restore_memory(entries, residue.memory, idle.memory, conflicts)
    devices = _restore_devices(entries, residue.devices, idle.devices, conflicts)
    others = dict(idle.others)
    for name, document in residue.providers.items():
        if name not in providers or name not in others:
            conflicts.append(("", f"the ledger of {name} is stored, but this host has no such provider"))
        else:
            others[name] = providers[name].from_json(document)
    if conflicts:
        causes = dict.fromkeys(uid for uid, _ in conflicts if uid)
        raise RestoreError([problem for _, problem in conflicts], uids=tuple(causes))
    usage = UsedResources.of([admitted_pod.usage for admitted_pod in pods.values()])
    return Ledger(cpus=cpus, memory=memory, devices=devices, others=others, pods=pods, used=usage)


def _read_entry(document: PodEntryDocument) -> PodEntry:
    pod = read_pod(document.pod)
    if not pod.uid:
        raise ParseError(f"pod {pod.namespace}/{pod.name} has no uid")
    hints = {container: hint.hint() for container, hint in document.hints.items()}
    cpus, memory, devices = document.cpus, document.memory, document.devices
    nodes = [
        ((resource, id_), parse_or_none(device_ids))
        for resources in devices.values()
        for resource, ids in resources.items()
        for id_, device_ids in ids.items()
    ]
    entry = make_entry(AdmittedPod(pod, hints, build(FitRequest, document.uses)), cpus, memory, devices)
    if unknown_containers := {*cpus.containers, *(memory.containers or ()), *devices} - {
        container.name for container in pod.all_containers
    }:
        raise ParseError(f"{entry.owner()} has no container {', '.join(sorted(unknown_containers))}")
    return entry._replace(device_nodes={device: node_set for device, node_set in nodes if node_set is not None})


def make_entry(
    admitted_pod: AdmittedPod,
    cpus: CpuHoldings,
    memory: MemoryHoldings,
    devices: Mapping[str, Mapping[str, Iterable[str]]],
) -> PodEntry:
    """Return the entry of a pod; ``ParseError`` if it contradicts itself."""
    containers = {name: bits.parse(text) for name, text in cpus.containers.items()}
    blocks = None if memory.containers is None else {name: _blocks(group) for name, group in memory.containers.items()}
    pod_blocks = None if memory.pod is None else _blocks(memory.pod)
    charged_blocks = (pod_blocks,) if pod_blocks is not None else tuple((blocks or {}).values())
    entry = PodEntry(
        admitted_pod.pod.uid,
        admitted_pod,
        cpus=containers,
        pod_cpus=parse_or_none(cpus.pod),
        owned=bits.union((*containers.values(), bits.parse(cpus.pod or ""))),
        memory=blocks,
        pod_memory=pod_blocks,
        charged=charged_blocks[0] if len(charged_blocks) == 1 else tuple(chain.from_iterable(charged_blocks)),
        devices={
            container: {
                resource: tuple(sorted(set(ids), key=natural_sort_key)) for resource, ids in resources.items() if ids
            }
            for container, resources in devices.items()
        }
        or _NOTHING,
    )
    if entry.pod_cpus is not None and entry.owned != entry.pod_cpus:
        raise ParseError(f"containers of {entry.owner()} hold CPUs that the pod does not")
    return entry


def _restore_cpus(entries: Sequence[PodEntry], residue: CpuResidue, idle: CpuLedger, conflicts: Conflicts) -> CpuLedger:
    everything = bits.union(idle.node_cpus.values())
    pod_cpus = reduce(or_, [entry.owned for entry in entries], 0)
    if pod_cpus & ~(everything & idle.shared & ~idle.reserved) or are_held_twice(entries):
        conflicts += _cpu_conflicts(entries, idle, everything)
    lost_cpus = bits.parse(residue.lost) & everything
    reusable = residue.reusable
    return replace(
        idle,
        shared=idle.shared & ~pod_cpus & ~lost_cpus,
        held={entry.uid: entry.cpus for entry in entries if entry.cpus},
        pod_held={entry.uid: entry.pod_cpus for entry in entries if entry.pod_cpus is not None},
        reusable=None if reusable is None else (reusable.pod, bits.parse(reusable.cpus) & everything),
        lost=lost_cpus,
    )


def are_held_twice(entries: Collection[PodEntry]) -> bool:
    """Return whether two pods hold the same CPUs."""
    owned_sets = [entry.owned for entry in entries]
    return sum(map(int.bit_count, owned_sets)) > reduce(or_, owned_sets, 0).bit_count()


def _cpu_conflicts(entries: Iterable[PodEntry], idle: CpuLedger, everything: CpuSet) -> Iterator[tuple[str, str]]:
    earlier: list[PodEntry] = []
    earlier_cpus = 0
    for entry in entries:
        parts = [(entry.owner(name), cpus) for name, cpus in entry.cpus.items()]
        if entry.pod_cpus is not None:
            parts.append((entry.owner(), entry.pod_cpus))
        for owner, cpus in parts:
            others = earlier if cpus & earlier_cpus else ()
            yield from ((entry.uid, text) for text in _cpu_problems(cpus, owner, idle, everything, others))
        earlier.append(entry)
        earlier_cpus |= entry.owned


def _cpu_problems(
    cpus: CpuSet, owner: str, idle: CpuLedger, everything: CpuSet, others: Iterable[PodEntry]
) -> Iterator[str]:
    """Yield why *owner* cannot hold *cpus*; *others* are the pods before it."""
    gone_cpus, reserved_cpus = cpus & ~everything, cpus & idle.reserved
    not_exclusive = cpus & ~gone_cpus & ~reserved_cpus & ~idle.shared
    for affected_cpus, singular, plural, rest in (
        (gone_cpus, "no longer exists", "no longer exist", "on this machine"),
        (reserved_cpus, "is", "are", "now reserved for the system"),
        (not_exclusive, "cannot", "cannot", "be kept: this host does not allocate exclusive CPUs now"),
        *((cpus & other.owned, "is", "are", f"also held by {other.owner()}") for other in others),
    ):
        if affected_cpus:
            noun, verb = ("CPUs", plural) if affected_cpus & affected_cpus - 1 else ("CPU", singular)
            yield f"{noun} {_shortened(affected_cpus)} of {owner} {verb} {rest}"


def _shortened(members: Bits) -> str:
    """Return a list for a message; a stored ledger can name a million members."""
    text = bits.show(members)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _restore_memory(
    entries: Sequence[PodEntry], residue: MemoryResidue, idle: MemoryLedger, conflicts: Conflicts
) -> MemoryLedger:
    """Return the ledger with the memory of *entries*.

    How much a group of NUMA nodes has reserved follows from its blocks. How it is spread over the nodes of the group
    depends on which pods came and went before, so the residue records it, and it is kept as long as the nodes are large
    enough. A machine with slightly less memory after a reboot keeps all pods that still fit.
    """
    groups: dict[NodeSet, Counter[Block]] = {}
    for block, number in Counter(chain.from_iterable([entry.charged for entry in entries])).items():
        groups.setdefault(block.nodes, Counter())[block] = number
    problems = []
    if not all(_may_exist(group, {block.type for block in blocks}, idle) for group, blocks in groups.items()):
        problems = [
            (charge.uid, problem)
            for entry in entries
            for charge in entry.owned_blocks()
            for problem in _block_problems(charge, idle)
        ]
    conflicts += problems
    nodes = {} if problems else _charged_nodes(groups, residue.reserved, idle, entries, conflicts)
    reusable = residue.reusable
    return MemoryLedger(
        {**idle.nodes, **nodes},
        {entry.uid: entry.memory for entry in entries if entry.memory is not None},
        {entry.uid: entry.pod_memory for entry in entries if entry.pod_memory is not None},
        reusable.pod if reusable else "",
        {bits.parse(group.nodes): group.bytes for group in reusable.groups} if reusable else {},
    )


def _may_exist(group: NodeSet, types: Iterable[str], idle: MemoryLedger) -> bool:
    """Return whether no block of these types on *group* has a problem."""
    nodes = [idle.nodes.get(node) for node in bits.members(group)]
    return all(nodes) and all(any(node and type_ in node.tables for node in nodes) for type_ in types)


def _blocks(documents: Iterable[BlockDocument]) -> tuple[Block, ...]:
    return tuple(Block(bits.parse(document.nodes), document.type, document.bytes) for document in documents)


def _block_problems(charge: OwnedBlock, idle: MemoryLedger) -> Iterator[str]:
    """Yield why a block cannot exist on the idle machine; an empty block does not need memory of its type."""
    block, subject = charge.block, f"{charge.block.type} of {charge.owner}"
    if not idle.nodes:
        yield f"{subject} cannot be kept: this host does not allocate memory now"
        return
    gone_nodes = block.nodes & ~bits.of(idle.nodes)
    if gone_nodes:
        node, exist = ("nodes", "exist") if gone_nodes & gone_nodes - 1 else ("node", "exists")
        yield f"{subject} is on NUMA {node} {_shortened(gone_nodes)}, which no longer {exist} on this machine"
    elif block.size and not any(block.type in idle.nodes[node].tables for node in bits.members(block.nodes)):
        yield f"{subject} is on NUMA node {bits.show(block.nodes)}, which no longer has any"


def _charged_nodes(
    groups: Mapping[NodeSet, Counter[Block]],
    reserved_bytes: ReservedBytes,
    idle: MemoryLedger,
    entries: Sequence[PodEntry],
    conflicts: Conflicts,
) -> dict[int, NodeMemory]:
    nodes: dict[int, NodeMemory] = {}
    for group, blocks in groups.items():
        sizes: dict[str, int] = {}
        for (_, type_, size), number in blocks.items():
            sizes[type_] = sizes.get(type_, 0) + number * size
        conflicts += _shortages(group, sizes, entries, idle)
        reserved_by_node: ReservedBytes = {node: reserved_bytes.get(node, {}) for node in bits.members(group)}
        if not any(reserved_by_node.values()) or not _fits(reserved_by_node, sizes, idle):
            reserved_by_node = _reserve_in_order(reserved_by_node, sizes, idle)
        for node, reserved_here in reserved_by_node.items():
            if node in nodes:
                raise ParseError(
                    f"memory is held on NUMA nodes {bits.show(nodes[node].cells)} and on {bits.show(group)}, "
                    f"but node {node} can belong to one group only"
                )
            tables = idle.nodes[node].tables
            charged_tables = {
                type_: tables[type_].take(size) for type_, size in reserved_here.items() if type_ in tables
            }
            nodes[node] = NodeMemory(group, blocks.total(), {**tables, **charged_tables})
    return nodes


def _shortages(
    group: NodeSet, sizes: Sizes, entries: Sequence[PodEntry], idle: MemoryLedger
) -> Iterator[tuple[str, str]]:
    """Yield the newest blocks that exceed what *group* has."""
    for type_, size in sizes.items():
        available = idle.allocatable_on(group, type_)
        over = size - available
        charged_blocks = [block for entry in entries for block in entry.owned_blocks()] if over > 0 else []
        for uid, owner, block in reversed(charged_blocks):
            if over > 0 and (block.nodes, block.type) == (group, type_) and block.size:
                over -= block.size
                area = f"{type_} on NUMA node{'s' if group & group - 1 else ''} {bits.show(group)}"
                need = f"{block.size} bytes of {owner}: {size} bytes are held there, but only {available} exist"
                yield uid, f"{area} is too small for {need}"


def _fits(reserved_bytes: ReservedBytes, sizes: Sizes, idle: MemoryLedger) -> bool:
    """Return whether *reserved_bytes* adds up to *sizes* and no node has more than it can hold."""
    total: Counter[str] = Counter()
    for node, amounts in reserved_bytes.items():
        total.update(amounts)
        tables = idle.nodes[node].tables
        if any(size > tables.get(type_, EMPTY_TABLE).allocatable for type_, size in amounts.items()):
            return False
    return +total == +Counter(sizes)


def _reserve_in_order(nodes: Iterable[int], sizes: Sizes, idle: MemoryLedger) -> dict[int, dict[str, int]]:
    """Spread *sizes* over *nodes* as if they were idle: fill the lowest node first."""
    missing_sizes = dict(sizes)
    reserved_bytes: dict[int, dict[str, int]] = {}
    for node in nodes:
        tables = idle.nodes[node].tables
        reserved_bytes[node] = {
            type_: min(size, tables.get(type_, EMPTY_TABLE).allocatable) for type_, size in missing_sizes.items()
        }
        missing_sizes = {type_: size - reserved_bytes[node][type_] for type_, size in missing_sizes.items()}
    return reserved_bytes


def _restore_devices(
    entries: Sequence[PodEntry], residue: DeviceResidue, idle: DeviceLedger, conflicts: Conflicts
) -> DeviceLedger:
    """Return the ledger with the devices of *entries*.

    They do not have to exist: plugins register after the host starts. Until then their resource consists of the devices
    that pods hold, all unhealthy.
    """
    owners: dict[tuple[str, str], PodEntry] = {}
    in_use: dict[str, list[str]] = {}
    for entry in entries:
        for container, resources in entry.devices.items():
            for resource, ids in resources.items():
                in_use.setdefault(resource, []).extend(ids)
                for id_ in ids:
                    owner = owners.setdefault((resource, id_), entry)
                    if owner is not entry:
                        problem = f"{resource} {id_} of {entry.owner(container)} is also held by {owner.owner()}"
                        conflicts.append((entry.uid, problem))
    inventories = {}
    for resource, registered_ids in residue.resources.items():
        if resource not in idle.inventories:
            devices = [
                Device(resource, id_, nodes=owners[resource, id_].device_nodes.get((resource, id_)), healthy=False)
                for id_ in dict.fromkeys(in_use.get(resource, ()))
            ]
            inventory = DeviceInventory.of(devices, machine=idle.nodes, hints_all_nodes=idle.hints_all_nodes)
            inventories[resource] = replace(inventory, registered=registered_ids, remembered=True)
    inventories |= idle.inventories
    reusable_devices = None
    if residue.reusable is not None:
        reusable = {resource: frozenset(ids) for resource, ids in residue.reusable.devices.items()}
        reusable_devices = (residue.reusable.pod, reusable)
    return replace(
        idle,
        inventories=inventories,
        held={entry.uid: entry.devices for entry in entries if entry.devices},
        reusable=reusable_devices,
        in_use={resource: frozenset(ids) for resource, ids in in_use.items()},
        free={name: devices.healthy & ~devices.find(in_use.get(name, ())) for name, devices in inventories.items()},
    )
