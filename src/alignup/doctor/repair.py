"""Sound states made of what was salvaged: a kubelet of this configuration starts on them on this machine.

What a container holds stays as it is, or is given up whole: with fewer CPUs or less memory than it asked for, its pod
would be refused when the kubelet starts and admits it again; with none it is given some anew. Who holds what nobody
else may hold keeps it; of two who claim the same, running pods come first.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.cpus.provider import CpuProvider
from alignup.align.errors import ParseError
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.memory.provider import MemoryPolicy
from alignup.align.quantity import Quantity, QuantityFormat
from alignup.align.settings import FeatureGates
from alignup.doctor.findings import format_cpus
from alignup.state.kubelet import cpu_file, memory_file
from alignup.state.kubelet.cpu_file import CpuState
from alignup.state.kubelet.device_file import DeviceEntry, DeviceState
from alignup.state.kubelet.memory_file import MemoryState

State = TypeVar("State")
Contents = Mapping[str, Any]
PodNames = Mapping[str, str]  #: the pods that run: uid → namespace and name


def format_pod(uid: str, pods: PodNames) -> str:
    """A pod by its name, where that is known."""
    return f"pod {pods.get(uid, uid)}"


class DroppedEntry(NamedTuple):
    """What somebody held and does not any more."""

    uid: str
    container: str  #: empty: the pod as a whole
    held: str
    why: str
    refused: bool = True  #: a kubelet would not start while it is held


@dataclass(frozen=True, slots=True)
class Repaired(Generic[State]):
    """A sound state, and what had to be given up for it."""

    state: State
    losses: tuple[DroppedEntry, ...] = ()


@dataclass(slots=True)
class _Kept:
    """What is kept so far, on its way to a state."""

    names: PodNames
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    wholes: dict[str, Any] = field(default_factory=dict)
    losses: list[DroppedEntry] = field(default_factory=list)

    def keep(self, uid: str, container: str, what: Any) -> None:  # noqa: ANN401 - CPUs or blocks
        self.held.setdefault(uid, {})[container] = what

    def lose(self, uid: str, container: str, held: str, why: str, *, refused: bool = True) -> None:
        self.losses.append(DroppedEntry(uid, container, held, why, refused))


def repair_cpus(
    contents: Contents, provider: CpuProvider, *, gates: FeatureGates, pods: PodNames | None = None
) -> Repaired[CpuState]:
    """The CPU manager's state as *provider* takes it."""
    if provider.policy is CpuPolicy.NONE:
        losses = [
            DroppedEntry(uid, name, f"CPUs {text}", "under policy none nobody owns CPUs")
            for uid, own in _pods(contents)
            for name, text in own.items()
        ]
        return Repaired(CpuState(policy=CpuPolicy.NONE), tuple(losses))
    kept = _Kept(pods or {})
    owners: dict[str, CpuSet] = {}
    wholes: Mapping[str, CpuSet] = contents["podEntries"] or {} if gates.on(cpu_file.PODS_GATE) else {}
    found = dict(_pods(contents))
    for uid in sorted({**found, **wholes}, key=lambda uid: uid not in kept.names):
        own = _read_lists(uid, found.get(uid, {}), kept)
        if uid in wholes:
            _keep_pod(uid, wholes[uid], own, owners=owners, provider=provider, kept=kept)
        else:
            for name, cpus in own.items():
                if why := _unsound(uid, cpus, owners=owners, provider=provider, pods=kept.names):
                    kept.lose(uid, name, format_cpus(cpus), why.text, refused=why.refused)
                else:
                    kept.keep(uid, name, cpus)
        owners[uid] = kept.wholes.get(uid, 0) | bits.union(kept.held.get(uid, {}).values())
    return Repaired(_cpu_state(contents, kept, owners, provider=provider, gates=gates), tuple(kept.losses))


class _Why(NamedTuple):
    """Why something cannot be kept, and whether a kubelet minds."""

    text: str
    refused: bool = True


def _pods(contents: Contents) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for uid, own in (contents["entries"] or {}).items():
        yield uid, own or {}


def _read_lists(uid: str, own: Mapping[str, str], kept: _Kept) -> dict[str, CpuSet]:
    """The CPUs of each container whose list can be read."""
    read = {}
    for name, text in own.items():
        try:
            read[name] = bits.parse(text)
        except ParseError as error:
            kept.lose(uid, name, f"CPUs {bits.quote(text)}", f"the list cannot be read ({error})")
    return read


def _keep_pod(  # noqa: PLR0913 - one step of mending
    uid: str, whole: CpuSet, own: dict[str, CpuSet], *, owners: Mapping[str, CpuSet], provider: CpuProvider, kept: _Kept
) -> None:
    """A pod that was given its CPUs in one piece keeps all of it or nothing."""
    everything = whole | bits.union(own.values())
    why = _unsound(uid, everything, owners=owners, provider=provider, pods=kept.names)
    if not own:
        why = _Why("none of its containers has any, so nobody would give them back", refused=False)
    if why:
        kept.lose(uid, "", format_cpus(everything), why.text, refused=why.refused)
        return
    kept.wholes[uid] = whole
    for name, cpus in own.items():
        kept.keep(uid, name, cpus)


def _unsound(
    uid: str, cpus: CpuSet, *, owners: Mapping[str, CpuSet], provider: CpuProvider, pods: PodNames
) -> _Why | None:
    """Why nobody may own *cpus*; ``None`` when somebody may."""
    if gone := cpus & ~provider.view.all_cpus:
        return _Why(f"the machine has no {format_cpus(gone)}")
    if reserved := cpus & provider.reserved:
        return _Why(f"{format_cpus(reserved)} must stay reserved")
    for other, theirs in owners.items():
        if other != uid and cpus & theirs:
            return _Why(f"{format_pod(other, pods)} owns {format_cpus(cpus & theirs)} as well", refused=False)
    return None


def _cpu_state(
    contents: Contents, kept: _Kept, owners: Mapping[str, CpuSet], *, provider: CpuProvider, gates: FeatureGates
) -> CpuState:
    """All other CPUs are shared; there have to be some."""
    everything = provider.view.all_cpus
    if provider.options.strict_cpu_reservation:
        everything &= ~provider.reserved
    owners = dict(owners)
    while kept.held and not everything & ~bits.union(owners.values()):
        uid = min(kept.held, key=lambda uid: (owners[uid].bit_count(), uid))
        why = "no CPU would be left to be shared, and no kubelet starts on that; it will be given the same again"
        kept.lose(uid, "", format_cpus(owners.pop(uid)), why)
        kept.wholes.pop(uid, None)
        del kept.held[uid]
    return CpuState(
        policy=CpuPolicy.STATIC,
        default=everything & ~bits.union(owners.values()),
        entries=kept.held,
        pod_entries=kept.wholes,
        baselines=_baselines(contents, kept.held, provider.view.all_cpus) if gates.on(cpu_file.BASELINES_GATE) else {},
    )


def _baselines(
    contents: Contents, held: Mapping[str, Mapping[str, CpuSet]], known: CpuSet
) -> dict[str, dict[str, CpuSet]]:
    """What containers owned before they were resized; what they own where that makes no sense."""
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
    """The memory manager's state as it follows from *idle* and what is held."""
    found = {uid: {name: _blocks(own[name]) for name in own} for uid, own in _pods(contents)}
    stored = contents["podEntries"] or {} if gates.on(memory_file.PODS_GATE) else {}
    wholes = {uid: _blocks((one or {}).get("memoryBlocks")) for uid, one in stored.items()}
    if policy == MemoryPolicy.NONE:
        losses = [
            DroppedEntry(uid, name, _shown(blocks), "under policy None nobody holds memory")
            for uid, own in found.items()
            for name, blocks in own.items()
        ]
        return Repaired(MemoryState(policy=policy), tuple(losses))
    kept = _Kept(pods or {})
    ledger = idle
    for uid in sorted({**found, **wholes}, key=lambda uid: (uid not in kept.names, -_width(found, wholes, uid))):
        ledger = _keep_blocks(uid, found.get(uid, {}), wholes.get(uid), ledger=ledger, kept=kept)
    state = MemoryState(policy=policy, entries=kept.held, pod_entries=kept.wholes)
    return Repaired(_charged(state, idle), tuple(kept.losses))


def _blocks(blocks: Iterable[Mapping[str, Any]] | None) -> tuple[Block, ...]:
    """Blocks as they are written; nodes that cannot be are a set of none."""
    read = []
    for one in blocks or ():
        nodes = one["numaAffinity"] or ()
        known = all(0 <= node < bits.MAX_MEMBER for node in nodes)
        read.append(Block(bits.of(nodes) if known else 0, one["type"], one["size"]))
    return tuple(read)


def _width(
    found: Mapping[str, Mapping[str, tuple[Block, ...]]], wholes: Mapping[str, tuple[Block, ...]], uid: str
) -> int:
    """The widest group of nodes a pod holds: a node can be split from its group, never the other way."""
    blocks = [*wholes.get(uid, ()), *(block for own in found.get(uid, {}).values() for block in own)]
    return max((block.nodes.bit_count() for block in blocks), default=0)


def _keep_blocks(
    uid: str,
    own: Mapping[str, tuple[Block, ...]],
    whole: tuple[Block, ...] | None,
    *,
    ledger: MemoryLedger,
    kept: _Kept,
) -> MemoryLedger:
    """What of a pod's memory can be kept, on top of what *ledger* has already."""
    if whole is not None:
        after, why = _held(ledger, whole)
        if not own:
            why = _Why("none of its containers has any, so nobody would give it back", refused=False)
        if why:
            kept.lose(uid, "", _shown(whole), why.text, refused=why.refused)
            return ledger
        kept.wholes[uid] = whole
        for name, blocks in own.items():
            kept.keep(uid, name, blocks)
        return after
    for name, blocks in own.items():
        after, why = _held(ledger, blocks)
        if why:
            kept.lose(uid, name, _shown(blocks), why.text, refused=why.refused)
        else:
            kept.keep(uid, name, blocks)
            ledger = after
    return ledger


def _held(ledger: MemoryLedger, blocks: Iterable[Block]) -> tuple[MemoryLedger, _Why | None]:
    """The ledger with *blocks* held as well; why not, where one of them cannot be."""
    for block in blocks:
        if why := _no_place(ledger, block):
            return ledger, why
        ledger = ledger.give("", "", blocks=(block,))
    return ledger, None


def _no_place(ledger: MemoryLedger, block: Block) -> _Why | None:
    nodes = list(bits.members(block.nodes))
    if gone := [str(node) for node in nodes if node not in ledger.nodes]:
        return _Why(f"the machine has no NUMA node {', '.join(gone)}")
    if not nodes:
        return _Why("it is on no NUMA node")
    if not any(block.type in ledger.nodes[node].tables for node in nodes):
        return _Why(f"there is no {block.type} on {_on(block.nodes)} any more")
    groups = {ledger.nodes[node].cells for node in nodes if ledger.nodes[node].assignments} - {block.nodes}
    if groups:
        other = bits.show(groups.pop())
        return _Why(
            f"others hold NUMA nodes {other} as a group; a kubelet starts on that, or not, as it happens", refused=False
        )
    room = ledger.free(block.nodes, block.type)
    if block.size > room:
        return _Why(f"only {_amount(room)} of {block.type} is left on {_on(block.nodes)}")
    return None


def _charged(state: MemoryState, idle: MemoryLedger) -> MemoryState:
    """The machine state that what is held adds up to, groups first, as it is checked."""
    blocks = [block for own in state.pod_entries.values() for block in own]
    for uid, own in state.entries.items():
        if uid not in state.pod_entries:
            blocks += [block for held in own.values() for block in held]
    ledger = idle
    for block in sorted(blocks, key=lambda block: -block.nodes.bit_count()):
        ledger = ledger.give("", "", blocks=(block,))
    return MemoryState(
        policy=state.policy,
        machine_state=ledger.nodes,
        entries=state.entries,
        pod_entries=state.pod_entries,
    )


def _shown(blocks: Iterable[Block]) -> str:
    """``1Gi of memory on NUMA nodes 0-1``."""
    parts = [f"{_amount(block.size)} of {block.type} on {_on(block.nodes)}" for block in blocks]
    return " and ".join(parts) or "nothing"


def _amount(size: int) -> str:
    return Quantity.of(size, QuantityFormat.BINARY_SI).canonical()


def _on(nodes: NodeSet) -> str:
    return f"NUMA node{'s' * (nodes.bit_count() != 1)} {bits.show(nodes)}"


def repair_devices(state: DeviceState, *, pods: PodNames | None = None) -> Repaired[DeviceState]:
    """The device manager's state, no device with two pods and no entry without an owner."""
    names = pods or {}
    owners: dict[tuple[str, str], str] = {}
    kept: list[DeviceEntry] = []
    losses = []
    for entry in sorted(state.entries, key=lambda entry: entry.uid not in names):
        ids = sorted(entry.nodes)
        others = {owners.get((entry.resource, id_), entry.uid) for id_ in ids} - {entry.uid}
        held = f"{entry.resource} {', '.join(ids)}"
        if others:
            losses.append(
                DroppedEntry(
                    entry.uid,
                    entry.container,
                    held,
                    f"{format_pod(min(others), names)} holds it as well",
                    refused=False,
                )
            )
        elif not entry.uid or not entry.container or not entry.resource or not ids:
            losses.append(
                DroppedEntry(entry.uid, entry.container, held, "it does not say whose it is, or what", refused=False)
            )
        else:
            kept.append(entry)
            owners |= {(entry.resource, id_): entry.uid for id_ in ids}
    in_place = {id(entry) for entry in kept}
    return Repaired(
        DeviceState(entries=tuple(one for one in state.entries if id(one) in in_place), registered=state.registered),
        tuple(losses),
    )
