"""Restore a ledger on the idle ledger of the host as it is now.

The host may have changed since: CPUs are offline, NUMA nodes are gone, more is reserved, device plugins have not
registered yet. A pod keeps what it holds if the host still has it, even if the pod would be placed elsewhere today.
Otherwise one :class:`RestoreError` lists everything that is in the way, with pod and container.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from alignup.align import bits
from alignup.align.bits import Bits, CpuSet, NodeSet
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
from alignup.documents.codec import build, parse_or_none
from alignup.documents.ledgers.documents import (
    CpuResidue,
    DeviceResidue,
    MemoryResidue,
    PodEntryDocument,
    ResidueDocument,
)
from alignup.documents.pods import read_pod

#: What pods can no longer hold, with the uid of the pod to release; it is empty if no single pod is the cause.
Conflicts = list[tuple[str, str]]
_MAX_SHOWN = 200  # characters of a list of CPUs or NUMA nodes
ReservedBytes = Mapping[int, Sizes]  #: NUMA node → type → bytes reserved there


@dataclass(frozen=True, slots=True)
class PodEntry:
    admitted: AdmittedPod
    document: PodEntryDocument

    @property
    def uid(self) -> str:
        return self.admitted.pod.uid

    def owner(self, container: str | None = None) -> str:
        """Return the name of the pod, or of one of its containers, for messages."""
        pod = self.admitted.pod
        name = f"{pod.namespace}/{pod.name}"
        return name if container is None else f"{name} (container {container})"


class ChargedBlock(NamedTuple):
    uid: str
    owner: str
    block: Block


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
        return _restore(pods, residue, idle, {one.name: one for one in providers})
    except StateError:
        raise
    except ValueError as error:
        raise StateError(f"not a valid ledger: {error}") from error


def _restore(
    pods: Iterable[PodEntryDocument], residue: ResidueDocument, idle: Ledger, providers: Mapping[str, Provider[Any]]
) -> Ledger:
    by_uid: dict[str, PodEntry] = {}
    used = UsedResources()
    for entry in map(_read_entry, pods):
        other = by_uid.setdefault(entry.uid, entry)
        if other is not entry:
            raise ParseError(f"{other.owner()} and {entry.owner()} have the same uid")
        used = used.plus(entry.admitted.usage)
    entries = tuple(by_uid.values())
    conflicts: Conflicts = []
    for name, part in (("cpus", residue.cpus), ("memory", residue.memory), ("devices", residue.devices)):
        if part.reusable and part.reusable.pod not in by_uid:  # it released everything
            residue = residue.replace(**{name: part.replace(reusable=None)})
    cpus = _restore_cpus(entries, residue.cpus, idle.cpus, conflicts)
    memory = _restore_memory(entries, residue.memory, idle.memory, conflicts)
    devices = _restore_devices(entries, residue.devices, idle.devices, conflicts)
    others = dict(idle.others)
    for name, stored in residue.providers.items():
        if name not in providers or name not in others:
            conflicts.append(("", f"the ledger of {name} is stored, but this host has no such provider"))
        else:
            others[name] = providers[name].from_json(stored)
    if conflicts:
        causes = dict.fromkeys(uid for uid, _ in conflicts if uid)
        raise RestoreError([what for _, what in conflicts], uids=tuple(causes))
    admitted = {uid: entry.admitted for uid, entry in by_uid.items()}
    return Ledger(cpus=cpus, memory=memory, devices=devices, others=others, pods=admitted, used=used)


def _read_entry(document: PodEntryDocument) -> PodEntry:
    pod = read_pod(document.pod)
    if not pod.uid:
        raise ParseError(f"pod {pod.namespace}/{pod.name} has no uid")
    hints = {container: hint.hint() for container, hint in document.hints.items()}
    entry = PodEntry(AdmittedPod(pod, hints, build(FitRequest, document.uses)), document)
    holders = {*document.cpus.containers, *(document.memory.containers or ()), *document.devices}
    if unknown := holders - {one.name for one in pod.all_containers}:
        raise ParseError(f"{entry.owner()} has no container {', '.join(sorted(unknown))}")
    return entry


def _restore_cpus(entries: Sequence[PodEntry], residue: CpuResidue, idle: CpuLedger, conflicts: Conflicts) -> CpuLedger:
    everything = bits.union(idle.node_cpus.values())
    held: dict[str, Mapping[str, CpuSet]] = {}
    pod_held: dict[str, CpuSet] = {}
    owned: list[tuple[PodEntry, CpuSet]] = []
    taken = 0
    for entry in entries:
        holdings = entry.document.cpus
        own = {name: bits.parse(cpus) for name, cpus in holdings.containers.items()}
        parts = [(entry.owner(name), cpus) for name, cpus in own.items()]
        if own:
            held[entry.uid] = own
        if holdings.pod is not None:
            pod_held[entry.uid] = bits.parse(holdings.pod)
            parts.append((entry.owner(), pod_held[entry.uid]))
            if bits.union(own.values()) & ~pod_held[entry.uid]:
                raise ParseError(f"containers of {entry.owner()} hold CPUs that the pod does not")
        for owner, cpus in parts:
            others = owned if cpus & taken else ()
            conflicts += [(entry.uid, what) for what in _cpu_problems(cpus, owner, idle, everything, others)]
        owned.append((entry, bits.union(cpus for _, cpus in parts)))
        taken |= owned[-1][1]
    lost = bits.parse(residue.lost) & everything
    reusable = residue.reusable
    return replace(
        idle,
        shared=idle.shared & ~taken & ~lost,
        held=held,
        pod_held=pod_held,
        reusable=None if reusable is None else (reusable.pod, bits.parse(reusable.cpus) & everything),
        lost=lost,
    )


def _cpu_problems(
    cpus: CpuSet, owner: str, idle: CpuLedger, everything: CpuSet, others: Iterable[tuple[PodEntry, CpuSet]]
) -> Iterator[str]:
    """Yield why *owner* cannot hold *cpus*; *others* are the pods before it, with their CPUs."""
    gone, reserved = cpus & ~everything, cpus & idle.reserved
    not_exclusive = cpus & ~gone & ~reserved & ~idle.shared
    for which, one, many, what in (
        (gone, "no longer exists", "no longer exist", "on this machine"),
        (reserved, "is", "are", "now reserved for the system"),
        (not_exclusive, "cannot", "cannot", "be kept: this host does not allocate exclusive CPUs now"),
        *((cpus & own, "is", "are", f"also held by {other.owner()}") for other, own in others),
    ):
        if which:
            noun, verb = ("CPUs", many) if which & which - 1 else ("CPU", one)
            yield f"{noun} {_shortened(which)} of {owner} {verb} {what}"


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
    held: dict[str, Mapping[str, tuple[Block, ...]]] = {}
    pod_held: dict[str, tuple[Block, ...]] = {}
    charged: list[ChargedBlock] = []
    for entry in entries:
        holdings = entry.document.memory
        own = {name: tuple(one.block() for one in blocks) for name, blocks in (holdings.containers or {}).items()}
        if holdings.containers is not None:
            held[entry.uid] = own
        if holdings.pod is not None:
            pod_held[entry.uid] = tuple(one.block() for one in holdings.pod)
            charged += [ChargedBlock(entry.uid, entry.owner(), block) for block in pod_held[entry.uid]]
        else:
            charged += [ChargedBlock(entry.uid, entry.owner(name), block) for name in own for block in own[name]]
    found = [(one.uid, what) for one in charged for what in _block_problems(one, idle)]
    conflicts += found
    nodes = {} if found else _charged_nodes(charged, residue.reserved, idle, conflicts)
    reusable = residue.reusable
    return MemoryLedger(
        {**idle.nodes, **nodes},
        held,
        pod_held,
        reusable.pod if reusable else "",
        {bits.parse(group.nodes): group.bytes for group in reusable.groups} if reusable else {},
    )


def _block_problems(one: ChargedBlock, idle: MemoryLedger) -> Iterator[str]:
    """Yield why a block cannot exist on the idle machine; an empty block does not need memory of its type."""
    block, what = one.block, f"{one.block.type} of {one.owner}"
    if not idle.nodes:
        yield f"{what} cannot be kept: this host does not allocate memory now"
        return
    gone = block.nodes & ~bits.of(idle.nodes)
    if gone:
        node, exist = ("nodes", "exist") if gone & gone - 1 else ("node", "exists")
        yield f"{what} is on NUMA {node} {_shortened(gone)}, which no longer {exist} on this machine"
    elif block.size and not any(block.type in idle.nodes[node].tables for node in bits.members(block.nodes)):
        yield f"{what} is on NUMA node {bits.show(block.nodes)}, which no longer has any"


def _charged_nodes(
    charged: Sequence[ChargedBlock], reserved: ReservedBytes, idle: MemoryLedger, conflicts: Conflicts
) -> dict[int, NodeMemory]:
    groups: dict[NodeSet, Counter[str]] = {}
    assignments: Counter[NodeSet] = Counter()
    for _, _, block in charged:
        groups.setdefault(block.nodes, Counter())[block.type] += block.size
        assignments[block.nodes] += 1
    nodes: dict[int, NodeMemory] = {}
    for group, sizes in groups.items():
        conflicts += _shortages(group, sizes, charged, idle)
        kept: ReservedBytes = {node: reserved.get(node, {}) for node in bits.members(group)}
        if not _fits(kept, sizes, idle):
            kept = _reserve_in_order(kept, sizes, idle)
        for node, own in kept.items():
            if node in nodes:
                raise ParseError(
                    f"memory is held on NUMA nodes {bits.show(nodes[node].cells)} and on {bits.show(group)}, "
                    f"but node {node} can belong to one group only"
                )
            tables = idle.nodes[node].tables
            changed = {
                type_: table._replace(reserved=table.reserved + own[type_], free=table.free - own[type_])
                for type_, table in tables.items()
                if type_ in own
            }
            nodes[node] = NodeMemory(group, assignments[group], {**tables, **changed})
    return nodes


def _shortages(
    group: NodeSet, sizes: Sizes, charged: Sequence[ChargedBlock], idle: MemoryLedger
) -> Iterator[tuple[str, str]]:
    """Yield the newest blocks that exceed what *group* has."""
    for type_, size in sizes.items():
        available = idle.allocatable_on(group, type_)
        over = size - available
        for one in reversed(charged):
            if over > 0 and (one.block.nodes, one.block.type) == (group, type_) and one.block.size:
                over -= one.block.size
                where = f"{type_} on NUMA node{'s' if group & group - 1 else ''} {bits.show(group)}"
                what = f"{one.block.size} bytes of {one.owner}: {size} bytes are held there, but only {available} exist"
                yield one.uid, f"{where} is too small for {what}"


def _fits(reserved: ReservedBytes, sizes: Sizes, idle: MemoryLedger) -> bool:
    """Return whether *reserved* adds up to *sizes* and no node has more than it can hold."""
    total: Counter[str] = Counter()
    for node, own in reserved.items():
        total.update(own)
        tables = idle.nodes[node].tables
        if any(size > tables.get(type_, EMPTY_TABLE).allocatable for type_, size in own.items()):
            return False
    return +total == +Counter(sizes)


def _reserve_in_order(nodes: Iterable[int], sizes: Sizes, idle: MemoryLedger) -> dict[int, dict[str, int]]:
    """Spread *sizes* over *nodes* as if they were idle: fill the lowest node first."""
    left = dict(sizes)
    reserved: dict[int, dict[str, int]] = {}
    for node in nodes:
        tables = idle.nodes[node].tables
        reserved[node] = {type_: min(size, tables.get(type_, EMPTY_TABLE).allocatable) for type_, size in left.items()}
        left = {type_: size - reserved[node][type_] for type_, size in left.items()}
    return reserved


def _restore_devices(
    entries: Sequence[PodEntry], residue: DeviceResidue, idle: DeviceLedger, conflicts: Conflicts
) -> DeviceLedger:
    """Return the ledger with the devices of *entries*.

    They do not have to exist: plugins register after the host starts. Until then their resource consists of the devices
    that pods hold, all unhealthy.
    """
    held: dict[str, Mapping[str, DeviceIds]] = {}
    owners: dict[tuple[str, str], PodEntry] = {}
    known: dict[str, dict[str, Device]] = {resource: {} for resource in residue.resources}
    for entry in entries:
        for container, own in entry.document.devices.items():
            for resource, devices in own.items():
                for id_, nodes in devices.items():
                    owner = owners.setdefault((resource, id_), entry)
                    if owner is not entry:
                        what = f"{resource} {id_} of {entry.owner(container)} is also held by {owner.owner()}"
                        conflicts.append((entry.uid, what))
                    device = Device(resource, id_, nodes=parse_or_none(nodes), healthy=False)
                    known.setdefault(resource, {})[id_] = device
        if entry.document.devices:
            held[entry.uid] = {
                container: {resource: tuple(sorted(ids, key=natural_sort_key)) for resource, ids in own.items() if ids}
                for container, own in entry.document.devices.items()
            }
    inventories = {}
    for resource, registered in residue.resources.items():
        if resource not in idle.inventories:
            inventory = DeviceInventory.of(known[resource].values(), machine=idle.nodes)
            inventories[resource] = replace(inventory, registered=registered, remembered=True)
    inventories |= idle.inventories
    reusable_devices = None
    if residue.reusable is not None:
        reusable = {resource: frozenset(ids) for resource, ids in residue.reusable.devices.items()}
        reusable_devices = (residue.reusable.pod, reusable)
    in_use = {resource: frozenset(devices) for resource, devices in known.items() if devices}
    return replace(
        idle,
        inventories=inventories,
        held=held,
        reusable=reusable_devices,
        in_use=in_use,
        free={name: own.healthy & ~own.find(in_use.get(name, ())) for name, own in inventories.items()},
    )
