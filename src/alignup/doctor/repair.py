"""Build valid states from salvaged ones: a kubelet with this configuration starts on them on this machine.

A container keeps everything it holds or loses all of it. With fewer CPUs or less memory than it requests, the kubelet
would reject its pod at startup; with none, it allocates again. An allocation without a competitor is kept; of two that
conflict, the one of a running pod.
"""

from collections.abc import Iterable, Iterator, Mapping
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
    """A valid state, and what was dropped from it."""

    state: State
    dropped: tuple[DroppedEntry, ...] = ()


class _Conflict(NamedTuple):
    """Why an allocation cannot be kept."""

    reason: str
    blocks_start: bool = True


@dataclass(slots=True)
class _Kept:
    """What is kept so far."""

    names: PodNames
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    pod_wide: dict[str, Any] = field(default_factory=dict)
    dropped: list[DroppedEntry] = field(default_factory=list)

    def keep(self, uid: str, container: str, what: Any) -> None:  # noqa: ANN401 - CPUs or blocks
        self.held.setdefault(uid, {})[container] = what

    def drop(self, uid: str, container: str, held: str, conflict: _Conflict) -> None:
        self.dropped.append(DroppedEntry(uid, container, held, *conflict))


def repair_cpus(
    contents: Contents, provider: CpuProvider, *, gates: FeatureGates, pods: PodNames | None = None
) -> Repaired[CpuState]:
    """The CPU manager's state as *provider* accepts it."""
    if provider.policy is CpuPolicy.NONE:
        dropped = [
            DroppedEntry(uid, name, f"CPUs {text}", "policy none has no exclusive CPUs")
            for uid, own in _containers_by_pod(contents)
            for name, text in own.items()
        ]
        return Repaired(CpuState(policy=CpuPolicy.NONE), tuple(dropped))
    kept = _Kept(pods or {})
    owners: dict[str, CpuSet] = {}
    pod_wide: Mapping[str, CpuSet] = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    found = dict(_containers_by_pod(contents))
    for uid in sorted({**found, **pod_wide}, key=lambda uid: uid not in kept.names):
        own = _parse_lists(uid, found.get(uid, {}), kept)
        if uid in pod_wide:
            _keep_pod(uid, pod_wide[uid], own, owners=owners, provider=provider, kept=kept)
        else:
            for name, cpus in own.items():
                if conflict := _find_conflict(uid, cpus, owners=owners, provider=provider, pods=kept.names):
                    kept.drop(uid, name, format_cpus(cpus), conflict)
                else:
                    kept.keep(uid, name, cpus)
        owners[uid] = kept.pod_wide.get(uid, 0) | bits.union(kept.held.get(uid, {}).values())
    return Repaired(_cpu_state(contents, kept, owners, provider=provider, gates=gates), tuple(kept.dropped))


def _containers_by_pod(contents: Contents) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for uid, own in (contents["entries"] or {}).items():
        yield uid, own or {}


def _parse_lists(uid: str, own: Mapping[str, str], kept: _Kept) -> dict[str, CpuSet]:
    """The CPUs of each container whose list is valid."""
    read = {}
    for name, text in own.items():
        try:
            read[name] = bits.parse(text)
        except ParseError as error:
            kept.drop(uid, name, f"CPUs {bits.quote(text)}", _Conflict(f"the list is invalid ({error})"))
    return read


def _keep_pod(  # noqa: PLR0913 - one step of repair_cpus
    uid: str, whole: CpuSet, own: dict[str, CpuSet], *, owners: Mapping[str, CpuSet], provider: CpuProvider, kept: _Kept
) -> None:
    """A pod-level allocation is kept or dropped as a whole."""
    all_cpus = whole | bits.union(own.values())
    conflict = _find_conflict(uid, all_cpus, owners=owners, provider=provider, pods=kept.names)
    if not own:
        conflict = _Conflict("no container of the pod has any, so they would never be released", blocks_start=False)
    if conflict:
        kept.drop(uid, "", format_cpus(all_cpus), conflict)
        return
    kept.pod_wide[uid] = whole
    for name, cpus in own.items():
        kept.keep(uid, name, cpus)


def _find_conflict(
    uid: str, cpus: CpuSet, *, owners: Mapping[str, CpuSet], provider: CpuProvider, pods: PodNames
) -> _Conflict | None:
    """Why a pod may not hold *cpus*; ``None`` if it may."""
    if gone := cpus & ~provider.view.all_cpus:
        return _Conflict(f"the machine has no {format_cpus(gone)}")
    if reserved := cpus & provider.reserved:
        return _Conflict(f"{format_cpus(reserved)} must stay reserved")
    for other, theirs in owners.items():
        if other != uid and cpus & theirs:
            return _Conflict(f"{format_pod(other, pods)} holds {format_cpus(cpus & theirs)} too", blocks_start=False)
    return None


def _cpu_state(
    contents: Contents, kept: _Kept, owners: Mapping[str, CpuSet], *, provider: CpuProvider, gates: FeatureGates
) -> CpuState:
    """All other CPUs are shared; the pool may not be empty."""
    all_cpus = provider.view.all_cpus
    if provider.options.strict_cpu_reservation:
        all_cpus &= ~provider.reserved
    owners = dict(owners)
    while kept.held and not all_cpus & ~bits.union(owners.values()):
        uid = min(kept.held, key=lambda uid: (owners[uid].bit_count(), uid))
        reason = "the shared pool would be empty, and no kubelet starts on that; the pod gets the same CPUs again"
        kept.drop(uid, "", format_cpus(owners.pop(uid)), _Conflict(reason))
        kept.pod_wide.pop(uid, None)
        del kept.held[uid]
    return CpuState(
        policy=CpuPolicy.STATIC,
        default=all_cpus & ~bits.union(owners.values()),
        entries=kept.held,
        pod_entries=kept.pod_wide,
        baselines=_baselines(contents, kept.held, provider.view.all_cpus) if gates.on(cpu_file.BASELINES_GATE) else {},
    )


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
    found = {uid: {name: _blocks(own[name]) for name in own} for uid, own in _containers_by_pod(contents)}
    stored = contents["podEntries"] or {} if gates.on(PODS_GATE) else {}
    pod_wide = {uid: _blocks((one or {}).get("memoryBlocks")) for uid, one in stored.items()}
    if policy == MemoryPolicy.NONE:
        dropped = [
            DroppedEntry(uid, name, _format_blocks(blocks), "policy None pins no memory")
            for uid, own in found.items()
            for name, blocks in own.items()
        ]
        return Repaired(MemoryState(policy=policy), tuple(dropped))
    kept = _Kept(pods or {})
    ledger = idle
    for uid in sorted(
        {**found, **pod_wide}, key=lambda uid: (uid not in kept.names, -_widest_group(found, pod_wide, uid))
    ):
        ledger = _keep_blocks(uid, found.get(uid, {}), pod_wide.get(uid), ledger=ledger, kept=kept)
    state = MemoryState(policy=policy, entries=kept.held, pod_entries=kept.pod_wide)
    return Repaired(_with_machine_state(state, idle), tuple(kept.dropped))


def _blocks(blocks: Iterable[Mapping[str, Any]] | None) -> tuple[Block, ...]:
    """The blocks of a file; impossible nodes become an empty set."""
    read = []
    for one in blocks or ():
        nodes = one["numaAffinity"] or ()
        known = all(0 <= node < bits.MAX_MEMBER for node in nodes)
        read.append(Block(bits.of(nodes) if known else 0, one["type"], one["size"]))
    return tuple(read)


def _widest_group(
    found: Mapping[str, Mapping[str, tuple[Block, ...]]], pod_wide: Mapping[str, tuple[Block, ...]], uid: str
) -> int:
    """The size of the widest node group a pod holds; wide groups have to be allocated first."""
    blocks = [*pod_wide.get(uid, ()), *(block for own in found.get(uid, {}).values() for block in own)]
    return max((block.nodes.bit_count() for block in blocks), default=0)


def _keep_blocks(
    uid: str,
    own: Mapping[str, tuple[Block, ...]],
    whole: tuple[Block, ...] | None,
    *,
    ledger: MemoryLedger,
    kept: _Kept,
) -> MemoryLedger:
    """The ledger with the pod's memory that can be kept."""
    if whole is not None:
        after, conflict = _hold(ledger, whole)
        if not own:
            conflict = _Conflict("no container of the pod has any, so it would never be released", blocks_start=False)
        if conflict:
            kept.drop(uid, "", _format_blocks(whole), conflict)
            return ledger
        kept.pod_wide[uid] = whole
        for name, blocks in own.items():
            kept.keep(uid, name, blocks)
        return after
    for name, blocks in own.items():
        after, conflict = _hold(ledger, blocks)
        if conflict:
            kept.drop(uid, name, _format_blocks(blocks), conflict)
        else:
            kept.keep(uid, name, blocks)
            ledger = after
    return ledger


def _hold(ledger: MemoryLedger, blocks: Iterable[Block]) -> tuple[MemoryLedger, _Conflict | None]:
    """The ledger with *blocks*, or why one of them does not fit."""
    for block in blocks:
        if conflict := _memory_conflict(ledger, block):
            return ledger, conflict
        ledger = ledger.give("", "", blocks=(block,))
    return ledger, None


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
        other = bits.show(groups.pop())
        return _Conflict(
            f"other pods hold NUMA nodes {other} as a group; a kubelet may or may not start on that", blocks_start=False
        )
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


def _format_blocks(blocks: Iterable[Block]) -> str:
    """``1Gi of memory on NUMA nodes 0-1``."""
    parts = [f"{format_quantity(block.size)} of {block.type} on {_format_nodes(block.nodes)}" for block in blocks]
    return " and ".join(parts) or "nothing"


def _format_nodes(nodes: NodeSet) -> str:
    return f"NUMA node{'s' * (nodes.bit_count() != 1)} {bits.show(nodes)}"


def repair_devices(state: DeviceState, *, pods: PodNames | None = None) -> Repaired[DeviceState]:
    """The device manager's state, without devices of two pods and incomplete entries."""
    kept = _Kept(pods or {})
    owners: dict[tuple[str, str], str] = {}
    valid: list[DeviceEntry] = []
    for entry in sorted(state.entries, key=lambda entry: entry.uid not in kept.names):
        ids = sorted(entry.nodes)
        others = {owners.get((entry.resource, id_), entry.uid) for id_ in ids} - {entry.uid}
        if others:
            reason = f"{format_pod(min(others), kept.names)} holds it too"
        elif not entry.uid or not entry.container or not entry.resource or not ids:
            reason = "the entry lacks a pod, a container, a resource or devices"
        else:
            valid.append(entry)
            owners |= {(entry.resource, id_): entry.uid for id_ in ids}
            continue
        held = f"{entry.resource} {', '.join(ids)}"
        kept.drop(entry.uid, entry.container, held, _Conflict(reason, blocks_start=False))
    identities = {id(entry) for entry in valid}
    entries = tuple(entry for entry in state.entries if id(entry) in identities)
    return Repaired(DeviceState(entries=entries, registered=state.registered), tuple(kept.dropped))
