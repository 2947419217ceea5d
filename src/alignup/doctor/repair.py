"""Build valid states from salvaged ones: a kubelet with this configuration starts on them on this machine.

A container keeps everything it holds or loses all of it. With fewer CPUs or less memory than it requests, the kubelet
would reject its pod at startup; with none, it allocates again. An allocation without a competitor is kept; of two that
conflict, the one of a running pod.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError
from alignup.align.explain.sentences import format_quantity
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.settings import FeatureGates
from alignup.doctor.findings import format_cpus
from alignup.kubernetes.kubelet_files import state_files
from alignup.kubernetes.kubelet_files.state_files import PODS_GATE, CpuState, DeviceEntry, DeviceState, MemoryState

Held = TypeVar("Held")
Contents = Mapping[str, Any]
PodNames = Mapping[str, str]  #: running pods: uid → namespace/name


def format_pod(uid: str, pods: PodNames) -> str:
    return f"pod {pods.get(uid, uid)}"


class DroppedEntry(NamedTuple):
    uid: str
    container: str  #: empty: the whole pod
    held: str
    reason: str
    blocks_start: bool = True  #: whether the kubelet does not start while it is in the file


_Conflict = tuple[str, bool]  #: why an allocation cannot be kept, and whether the kubelet does not start with it


@dataclass(slots=True)
class _Kept(Generic[Held]):
    format: Callable[[Held], str]
    try_hold: Callable[[str, Held], _Conflict | None]  #: for the pod with this uid
    never_released: str  #: why a pod-level allocation without containers is dropped
    held: dict[str, dict[str, Held]] = field(default_factory=dict)
    pods: set[str] = field(default_factory=set)  #: with a pod-level allocation
    dropped: list[DroppedEntry] = field(default_factory=list)

    def keep(self, uid: str, own: dict[str, Held], whole: Held | None) -> None:
        """Keep what fits; the pod-level allocation *whole* is kept or dropped with those of all containers."""
        if whole is None:
            for name, held in own.items():
                if conflict := self.try_hold(uid, held):
                    self.drop(uid, name, held, conflict)
                else:
                    self.held.setdefault(uid, {})[name] = held
            return
        conflict = self.try_hold(uid, whole) if own else (self.never_released, False)
        if conflict:
            self.drop(uid, "", whole, conflict)
        else:
            self.held[uid] = own
            self.pods.add(uid)

    def drop(self, uid: str, container: str, held: Held, conflict: _Conflict) -> None:
        self.dropped.append(DroppedEntry(uid, container, self.format(held), *conflict))


def _containers_by_pod(contents: Contents) -> dict[str, Mapping[str, Any]]:
    return {uid: own or {} for uid, own in (contents["entries"] or {}).items()}


def repair_cpus(
    contents: Contents, provider: CpuProvider, *, gates: FeatureGates, pods: PodNames | None = None
) -> tuple[CpuState, list[DroppedEntry]]:
    """The CPU manager's state as *provider* accepts it."""
    found, names = _containers_by_pod(contents), pods or {}
    if provider.policy is CpuPolicy.NONE:
        dropped = [
            DroppedEntry(uid, name, f"CPUs {text}", "policy none has no exclusive CPUs")
            for uid, own in found.items()
            for name, text in own.items()
        ]
        return CpuState(policy=CpuPolicy.NONE), dropped
    owners: dict[str, CpuSet] = {}

    def try_hold(uid: str, cpus: CpuSet) -> _Conflict | None:
        if gone := cpus & ~provider.view.all_cpus:
            return f"the machine has no {format_cpus(gone)}", True
        if reserved := cpus & provider.reserved:
            return f"{format_cpus(reserved)} must stay reserved", True
        for other, theirs in owners.items():
            if other != uid and cpus & theirs:
                return f"{format_pod(other, names)} holds {format_cpus(cpus & theirs)} too", False
        owners[uid] = owners.get(uid, 0) | cpus
        return None

    kept = _Kept(format_cpus, try_hold, "no container of the pod has any, so they would never be released")
    pod_wide: Mapping[str, CpuSet] = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    for uid in sorted({**found, **pod_wide}, key=lambda uid: uid not in names):
        own = {}
        for name, text in found.get(uid, {}).items():
            try:
                own[name] = bits.parse(text)
            except ParseError as error:
                reason = f"the list is invalid ({error})"
                kept.dropped.append(DroppedEntry(uid, name, f"CPUs {bits.quote(text)}", reason))
        kept.keep(uid, own, pod_wide[uid] | bits.union(own.values()) if uid in pod_wide else None)
    state = CpuState(
        policy=CpuPolicy.STATIC,
        default=_shared_cpus(kept, owners, provider),  # which may drop pods
        entries=kept.held,
        pod_entries={uid: cpus for uid, cpus in pod_wide.items() if uid in kept.pods},
        baselines=_baselines(contents, kept.held, provider.view.all_cpus)
        if gates.on(state_files.BASELINES_GATE)
        else {},
    )
    return state, kept.dropped


def _shared_cpus(kept: _Kept[CpuSet], owners: dict[str, CpuSet], provider: CpuProvider) -> CpuSet:
    """All other CPUs; drops pods until there are some."""
    all_cpus = provider.view.all_cpus
    if provider.options.strict_cpu_reservation:
        all_cpus &= ~provider.reserved
    while kept.held and not all_cpus & ~bits.union(owners.values()):
        uid = min(kept.held, key=lambda uid: (owners[uid].bit_count(), uid))
        reason = "the shared pool would be empty, and no kubelet starts on that; the pod gets the same CPUs again"
        kept.drop(uid, "", owners.pop(uid), (reason, True))
        kept.pods.discard(uid)
        del kept.held[uid]
    return all_cpus & ~bits.union(owners.values())


def _baselines(
    contents: Contents, held: Mapping[str, Mapping[str, CpuSet]], known: CpuSet
) -> dict[str, dict[str, CpuSet]]:
    """What containers held before a resize; what they hold now if that makes no sense."""
    before: Mapping[str, Any] = contents["baselines"] or {}
    found: dict[str, dict[str, CpuSet]] = {}
    for uid, own in held.items():
        for name, cpus in own.items():
            stored = (before.get(uid) or {}).get(name, 0)
            found.setdefault(uid, {})[name] = cpus if not stored or stored & ~known else stored
    return found


def repair_memory(
    contents: Contents, idle: MemoryLedger, *, policy: str, gates: FeatureGates, pods: PodNames | None = None
) -> tuple[MemoryState, list[DroppedEntry]]:
    """The memory manager's state that follows from *idle* and the allocations."""
    found = {uid: {name: _blocks(own[name]) for name in own} for uid, own in _containers_by_pod(contents).items()}
    stored = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    pod_wide = {uid: _blocks((one or {}).get("memoryBlocks")) for uid, one in stored.items()}
    if policy == MemoryPolicy.NONE:
        dropped = [
            DroppedEntry(uid, name, _format_blocks(blocks), "policy None pins no memory")
            for uid, own in found.items()
            for name, blocks in own.items()
        ]
        return MemoryState(policy=policy), dropped
    ledger = idle

    def try_hold(_uid: str, blocks: tuple[Block, ...]) -> _Conflict | None:
        nonlocal ledger
        after = ledger
        for block in blocks:
            if conflict := _memory_conflict(after, block):
                return conflict
            after = after.give("", "", blocks=(block,))
        ledger = after
        return None

    def priority(uid: str) -> tuple[bool, int]:
        """Running pods first, then wide node groups, which have to be allocated first."""
        blocks = [*pod_wide.get(uid, ()), *(block for own in found.get(uid, {}).values() for block in own)]
        return uid not in (pods or {}), -max((block.nodes.bit_count() for block in blocks), default=0)

    kept = _Kept(_format_blocks, try_hold, "no container of the pod has any, so it would never be released")
    for uid in sorted({**found, **pod_wide}, key=priority):
        kept.keep(uid, found.get(uid, {}), pod_wide.get(uid))
    pod_entries = {uid: blocks for uid, blocks in pod_wide.items() if uid in kept.pods}
    charged = [*pod_entries.values()]
    charged += [blocks for uid, own in kept.held.items() if uid not in kept.pods for blocks in own.values()]
    after = idle
    for block in sorted(chain.from_iterable(charged), key=lambda block: -block.nodes.bit_count()):
        after = after.give("", "", blocks=(block,))  # groups first, as the kubelet checks it
    state = MemoryState(policy=policy, machine_state=after.nodes, entries=kept.held, pod_entries=pod_entries)
    return state, kept.dropped


def _blocks(blocks: Iterable[Mapping[str, Any]] | None) -> tuple[Block, ...]:
    """The blocks of a file; impossible nodes become an empty set."""

    def nodes(ids: Sequence[int]) -> NodeSet:
        return bits.of(ids) if all(0 <= node < bits.MAX_MEMBER for node in ids) else 0

    return tuple(Block(nodes(one["numaAffinity"] or ()), one["type"], one["size"]) for one in blocks or ())


def _memory_conflict(ledger: MemoryLedger, block: Block) -> _Conflict | None:
    nodes = list(bits.members(block.nodes))
    if gone := [str(node) for node in nodes if node not in ledger.nodes]:
        return f"the machine has no NUMA node {', '.join(gone)}", True
    if not nodes:
        return "it is on no NUMA node", True
    if not any(block.type in ledger.nodes[node].tables for node in nodes):
        return f"{_format_nodes(block.nodes)} no longer has {block.type}", True
    if groups := {ledger.nodes[node].cells for node in nodes if ledger.nodes[node].assignments} - {block.nodes}:
        group = bits.show(groups.pop())
        return f"other pods hold NUMA nodes {group} as a group; a kubelet may or may not start on that", False
    room = ledger.free(block.nodes, block.type)
    if block.size > room:
        return f"only {format_quantity(room)} of {block.type} is left on {_format_nodes(block.nodes)}", True
    return None


def _format_blocks(blocks: tuple[Block, ...]) -> str:
    """``1Gi of memory on NUMA nodes 0-1``."""
    parts = [f"{format_quantity(block.size)} of {block.type} on {_format_nodes(block.nodes)}" for block in blocks]
    return " and ".join(parts) or "nothing"


def _format_nodes(nodes: NodeSet) -> str:
    return f"NUMA node{'s' * (nodes.bit_count() != 1)} {bits.show(nodes)}"


def repair_devices(state: DeviceState, *, pods: PodNames | None = None) -> tuple[DeviceState, list[DroppedEntry]]:
    """The device manager's state, without devices of two pods and incomplete entries."""
    names = pods or {}
    owners: dict[tuple[str, str], str] = {}
    valid: list[DeviceEntry] = []
    dropped = []
    for entry in sorted(state.entries, key=lambda entry: entry.uid not in names):
        ids = sorted(entry.nodes)
        others = {owners.get((entry.resource, id_), entry.uid) for id_ in ids} - {entry.uid}
        if others:
            reason = f"{format_pod(min(others), names)} holds it too"
        elif not entry.uid or not entry.container or not entry.resource or not ids:
            reason = "the entry lacks a pod, a container, a resource or devices"
        else:
            valid.append(entry)
            owners |= {(entry.resource, id_): entry.uid for id_ in ids}
            continue
        held = f"{entry.resource} {', '.join(ids)}"
        dropped.append(DroppedEntry(entry.uid, entry.container, held, reason, blocks_start=False))
    identities = {id(entry) for entry in valid}
    entries = tuple(entry for entry in state.entries if id(entry) in identities)
    return DeviceState(entries=entries, registered=state.registered), dropped
