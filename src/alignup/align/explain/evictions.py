"""The smallest set of running pods whose eviction admits the pod.

Sets of one pod are tried first, then two, then three; sets whose pods share a node come first. Of equivalent pods only
one is tried. If no set works, the equivalent ones are tried too, up to a limit: which of two similar CPUs or devices is
free may still matter to the later containers of a pod.

Two pods are equivalent when evicting either leaves the same host: the same memory on the same nodes, as many devices of
the same nodes, and CPUs of cores in the same places with the same other users. Where the whole host runs short, they
also use the same amount.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, islice

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices.ledger import DeviceLedger
from alignup.align.explain.changes import Eviction, Proposal, SearchTimeoutError, WhatIf
from alignup.align.fit import PODS
from alignup.align.machine import KubeletView
from alignup.align.workload import QoS
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

MAX_EVICTED = 3  #: pods in one set
MAX_EQUIVALENT = 2000  #: sets of one size that contain equivalent pods
_MAX_ALTERNATIVES = 8  #: for each pod
_RANKS = (QoS.BEST_EFFORT, QoS.BURSTABLE, QoS.GUARANTEED)  #: least important first


@dataclass(frozen=True, slots=True, eq=False)
class EvictionCandidate:
    """A running pod that holds something the rejected pod needs."""

    uid: str
    holdings: Hashable  #: equal for equivalent pods
    nodes: NodeSet  #: where it holds them; 0 if unknown
    uses: Mapping[str, int]  #: of what the whole host lacks


Group = Sequence[EvictionCandidate]  #: equivalent pods


def smallest_eviction(what_if: WhatIf) -> Iterator[Proposal]:
    """Yield a smallest set of at most three pods without which the pod is admitted, if there is one."""
    candidates = eviction_candidates(what_if)
    if not candidates:
        return
    by_holdings: dict[Hashable, list[EvictionCandidate]] = {}
    for candidate in candidates:
        by_holdings.setdefault(candidate.holdings, []).append(candidate)
    groups = list(by_holdings.values())
    # If evicting all is not enough, fewer hardly ever are: admission is nearly monotone.
    all_suffice = _propose_without(what_if, candidates) is not None
    for size in range(1, min(MAX_EVICTED, len(candidates)) + 1):
        if not _may_suffice(what_if, candidates, size):
            continue
        sets = _sets(what_if, groups, size)
        try:
            tried = sets if all_suffice else islice(sets, MAX_EQUIVALENT)
            smallest = next((proposal for chosen in tried if (proposal := _propose_without(what_if, chosen))), None)
        except SearchTimeoutError:
            what_if.note_unsearched(f"Time ran out before all evictions of {size} pods were tried.")
            return
        if smallest:
            yield _with_alternatives(what_if, smallest, groups)
            return
        if not all_suffice and next(sets, None):
            sentence = "The pod is rejected even without all running pods, so not all evictions were tried."
            what_if.note_unsearched(sentence)
            return
    if len(candidates) > MAX_EVICTED and all_suffice:
        what_if.note_unsearched(f"Evictions of more than {MAX_EVICTED} pods were not tried.")


def _sets(what_if: WhatIf, groups: Sequence[Group], size: int) -> Iterator[tuple[EvictionCandidate, ...]]:
    nodes = bits.union(group[0].nodes for group in groups)
    by_node = [[group for group in groups if group[0].nodes >> node & 1] for node in bits.members(nodes)]
    tried: set[frozenset[EvictionCandidate]] = set()
    for some in (*by_node, groups) if size > 1 else (groups,):
        # Sets that differ in what their pods hold, with the first pods of each group.
        for kinds in map(Counter, combinations_with_replacement(range(len(some)), size)):
            chosen = tuple(holder for kind, count in kinds.items() for holder in some[kind][:count])
            if len(chosen) == size and frozenset(chosen) not in tried:
                tried.add(frozenset(chosen))
                yield chosen
    candidates = [holder for group in groups for holder in group]
    if len(candidates) == len(groups):
        return
    rest = (chosen for chosen in combinations(candidates, size) if frozenset(chosen) not in tried)
    yield from islice(rest, MAX_EQUIVALENT)
    if next(rest, None):
        what_if.note_unsearched(f"Not all evictions of {size} equivalent pods were tried.")


def _may_suffice(what_if: WhatIf, chosen: Sequence[EvictionCandidate], size: int) -> bool:
    """Return whether the *size* largest users of *chosen* use as much as the whole host lacks."""
    for short in what_if.shortfalls:
        most = sum(sorted((holder.uses[short.resource] for holder in chosen), reverse=True)[:size])
        # For devices only a decision is conclusive.
        if most < short.missing and short.resource not in what_if.offered:
            return False
    return True


def _propose_without(what_if: WhatIf, chosen: Sequence[EvictionCandidate]) -> Proposal | None:
    what_if.check_time()
    if not _may_suffice(what_if, chosen, len(chosen)):
        return None
    return what_if.propose(Eviction(tuple(candidate.uid for candidate in chosen)))


def _with_alternatives(what_if: WhatIf, proposal: Proposal, groups: Sequence[Group]) -> Proposal:
    """Return *proposal* with the pods that could be evicted instead; each was tried."""
    (change,) = proposal.changes
    evicted = change.pods if isinstance(change, Eviction) else ()
    equivalents = {holder.uid: [other.uid for other in group] for group in groups for holder in group}
    alternatives = tuple(
        tuple(
            other
            for other in [uid for uid in equivalents[gone] if uid not in evicted][:_MAX_ALTERNATIVES]
            if _suffices(what_if, Eviction(tuple(other if uid == gone else uid for uid in evicted)))
        )
        for gone in evicted
    )
    return Proposal((Eviction(evicted, alternatives),), proposal.decision)


def _suffices(what_if: WhatIf, change: Eviction) -> bool:
    try:
        return what_if.propose(change) is not None
    except SearchTimeoutError:
        return False


def eviction_candidates(what_if: WhatIf) -> list[EvictionCandidate]:
    """Return the candidates, least important first by priority and QoS class, then newest first."""
    host = what_if.host
    ledgers = host.ledger.by_provider()
    needed = {
        provider.name: {
            resource
            for container in (*what_if.pod.all_containers, None)
            for resource in provider.needs(ledgers[provider.name], what_if.pod, container)
        }
        for provider in host.providers
    }
    candidates = []
    for arrival, (uid, admitted) in enumerate(host.ledger.pods.items()):
        cores, nodes = _cores(host.view, host.ledger.cpus, uid) if needed[host.cpus.name] else ((), 0)
        memory = host.ledger.memory
        held = [memory.pod_held[uid]] if uid in memory.pod_held else memory.held.get(uid, {}).values()
        blocks = (
            tuple(sorted(block for container_blocks in held for block in container_blocks))
            if needed[host.memory.name]
            else ()
        )
        devices = tuple(sorted(_devices(host.ledger.devices, uid, needed[host.devices.name])))
        nodes |= bits.union(block.nodes for block in blocks) | bits.union(device[1] for device in devices)
        # Providers from outside need not list requests, so everything they allocated may matter.
        others = tuple(
            (provider.name, *item)
            for provider in host.others
            for container in admitted.pod.all_containers
            for item in sorted(provider.describe(host.ledger.others[provider.name], uid, container.name).items())
        )
        holdings = (cores, blocks, devices, others)
        usage = admitted.usage
        amounts = {PODS: 1, CPU: usage.milli_cpu, MEMORY: usage.memory, EPHEMERAL_STORAGE: usage.ephemeral_storage}
        amounts |= usage.scalars
        uses = {short.resource: amounts.get(short.resource, 0) for short in what_if.shortfalls}
        if any(holdings) or any(uses.values()):
            rank = (admitted.pod.priority or 0, _RANKS.index(admitted.pod.qos), -arrival)
            candidates.append((rank, EvictionCandidate(uid, (*holdings, *uses.items()), nodes, uses)))
    return [candidate for _, candidate in sorted(candidates, key=lambda ranked: ranked[0])]


def _cores(view: KubeletView, ledger: CpuLedger, uid: str) -> tuple[Hashable, NodeSet]:
    """Return each core the pod has CPUs of: where its CPUs are, and whether each is the pod's, shared or reserved."""
    owned = ledger.owned(uid)
    cores: dict[int, list[tuple[int, ...]]] = {core: [] for core, cpus in view.core_cpus.items() if cpus & owned}
    for cpu in view.cpus:
        if cpu.core in cores:
            state = [cpus >> cpu.id & 1 for cpus in (owned, ledger.shared, ledger.reserved)]
            cores[cpu.core].append((cpu.node or 0, cpu.socket, cpu.cache or 0, *state))
    nodes = bits.of(node for node, cpus in view.node_cpus.items() if cpus & owned)
    return tuple(sorted(tuple(sorted(places)) for places in cores.values())), nodes


def _devices(ledger: DeviceLedger, uid: str, resources: set[str]) -> Iterator[tuple[str, NodeSet, bool]]:
    """Yield the resource, nodes and health of each device; one that is gone has no nodes."""
    for resource in resources:
        inventory = ledger.inventories.get(resource)
        known = {device.id: device for device in inventory.devices} if inventory else {}
        for id_ in ledger.owned(uid, resource):
            device = known.get(id_)
            yield (resource, device.nodes or 0, device.healthy) if device else (resource, 0, False)
