"""Build valid states from salvaged ones: a kubelet with this configuration starts on them on this machine.

A container keeps everything it holds or loses all of it. With fewer CPUs or less memory than it requests, the kubelet
would reject its pod at startup; with none, it allocates again. An allocation without a competitor is kept; of two that
conflict, the one of a running pod.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from alignup.state.kubelet import cpu_file
from alignup.state.kubelet.checkpoint import PODS_GATE
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.memory_file import MemoryState

State = TypeVar("State")
Held = TypeVar("Held")
Contents = Mapping[str, Any]
PodNames = Mapping[str, str]  #: running pods: uid → namespace/name


def format_pod(uid: str, pods: PodNames) -> str:
    return f"pod {pods.get(uid, uid)}"


class DroppedEntry(NamedTuple):
    """An allocation that a repaired state no longer has."""

    uid: str
    container: str  #: empty: the whole pod
    held: str
    reason: str
    blocks_start: bool = True  #: whether the kubelet does not start while it is in the file


@dataclass(frozen=True, slots=True)
class Repaired(Generic[State]):
    state: State
    dropped: tuple[DroppedEntry, ...] = ()


class _Conflict(NamedTuple):
    """Why an allocation cannot be kept."""

    reason: str
    blocks_start: bool = True


@dataclass(slots=True)
class _Kept(Generic[Held]):
    """What is kept so far, and dropped."""

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
        conflict = self.try_hold(uid, whole) if own else _Conflict(self.never_released, blocks_start=False)
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
) -> Repaired[CpuState]:
    """The CPU manager's state as *provider* accepts it."""
    found, names = _containers_by_pod(contents), pods or {}
    if provider.policy is CpuPolicy.NONE:
        dropped = [
            DroppedEntry(uid, name, f"CPUs {text}", "policy none has no exclusive CPUs")
            for uid, own in found.items()
            for name, text in own.items()
        ]
        return Repaired(CpuState(policy=CpuPolicy.NONE), tuple(dropped))
    owners: dict[str, CpuSet] = {}

    def try_hold(uid: str, cpus: CpuSet) -> _Conflict | None:
        if gone := cpus & ~provider.view.all_cpus:
            return _Conflict(f"the machine has no {format_cpus(gone)}")
        if reserved := cpus & provider.reserved:
            return _Conflict(f"{format_cpus(reserved)} must stay reserved")
        for other, theirs in owners.items():
            if other != uid and cpus & theirs:
                both = format_cpus(cpus & theirs)
                return _Conflict(f"{format_pod(other, names)} holds {both} too", blocks_start=False)
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
    shared = _shared_cpus(kept, owners, provider)
    baselines = _baselines(contents, kept.held, provider.view.all_cpus) if gates.on(cpu_file.BASELINES_GATE) else {}
    state = CpuState(
        policy=CpuPolicy.STATIC,
        default=shared,
        entries=kept.held,
        pod_entries={uid: cpus for uid, cpus in pod_wide.items() if uid in kept.pods},
        baselines=baselines,
    )
    return Repaired(state, tuple(kept.dropped))


def _shared_cpus(kept: _Kept[CpuSet], owners: dict[str, CpuSet], provider: CpuProvider) -> CpuSet:
    """All other CPUs; drops pods until there are some."""
    all_cpus = provider.view.all_cpus
    if provider.options.strict_cpu_reservation:
        all_cpus &= ~provider.reserved
    while kept.held and not all_cpus & ~bits.union(owners.values()):
        uid = min(kept.held, key=lambda uid: (owners[uid].bit_count(), uid))
        reason = "the shared pool would be empty, and no kubelet starts on that; the pod gets the same CPUs again"
        kept.drop(uid, "", owners.pop(uid), _Conflict(reason))
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
) -> Repaired[MemoryState]:
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
        return Repaired(MemoryState(policy=policy), tuple(dropped))
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
    state = MemoryState(policy=policy, entries=kept.held, pod_entries=pod_entries)
    return Repaired(_with_machine_state(state, idle), tuple(kept.dropped))


def _blocks(blocks: Iterable[Mapping[str, Any]] | None) -> tuple[Block, ...]:
    """The blocks of a file; impossible nodes become an empty set."""
    read = []
    for one in blocks or ():
        nodes = one["numaAffinity"] or ()
        known = all(0 <= node < bits.MAX_MEMBER for node in nodes)
        read.append(Block(bits.of(nodes) if known else 0, one["type"], one["size"]))
    return tuple(read)


def _memory_conflict(ledger: MemoryLedger, block: Block) -> _Conflict | None:
    nodes = list(bits.members(block.nodes))
    if gone := [str(node) for node in nodes if node not in ledger.nodes]:
        return _Conflict(f"the machine has no NUMA node {', '.join(gone)}")
    if not nodes:
        return _Conflict("it is on no NUMA node")
    if not any(block.type in ledger.nodes[node].tables for node in nodes):
        return _Conflict(f"{_format_nodes(block.nodes)} no longer has {block.type}")
    groups = {ledger.nodes[node].cells for node in nodes if ledger.nodes[node].assignments} - {block.nodes}
    if groups:
        reason = (
            f"other pods hold NUMA nodes {bits.show(groups.pop())} as a group; a kubelet may or may not start on that"
        )
        return _Conflict(reason, blocks_start=False)
    room = ledger.free(block.nodes, block.type)
    if block.size > room:
        return _Conflict(f"only {format_quantity(room)} of {block.type} is left on {_format_nodes(block.nodes)}")
    return None


def _with_machine_state(state: MemoryState, idle: MemoryLedger) -> MemoryState:
    """The state with the machine state that its allocations add up to; groups first, as the kubelet checks it."""
    blocks = [block for own in state.pod_entries.values() for block in own]
    for uid, own in state.entries.items():
        if uid not in state.pod_entries:
            blocks += [block for held in own.values() for block in held]
    ledger = idle
    for block in sorted(blocks, key=lambda block: -block.nodes.bit_count()):
        ledger = ledger.give("", "", blocks=(block,))
    return replace(state, machine_state=ledger.nodes)


def _format_blocks(blocks: tuple[Block, ...]) -> str:
    """``1Gi of memory on NUMA nodes 0-1``."""
    parts = [f"{format_quantity(block.size)} of {block.type} on {_format_nodes(block.nodes)}" for block in blocks]
    return " and ".join(parts) or "nothing"


def _format_nodes(nodes: NodeSet) -> str:
    return f"NUMA node{'s' * (nodes.bit_count() != 1)} {bits.show(nodes)}"


def repair_devices(state: DeviceState, *, pods: PodNames | None = None) -> Repaired[DeviceState]:
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
    return Repaired(DeviceState(entries=entries, registered=state.registered), tuple(dropped))
