"""Which running pods hold something that a refused pod asks for, and which of them hold the same.

Two pods hold the same when taking either away leaves a host that looks the same: the same memory on the same nodes, as
many devices of the same nodes, CPUs of cores in the same places that are otherwise used alike. And where the host as a
whole is short of something, they use as much of it.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.explain.what_if import WhatIf
from alignup.align.fit import PODS
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import KubeletView
from alignup.align.memory.ledger import Block, MemoryLedger
from alignup.align.provider import Provider
from alignup.align.workload import QoS
from alignup.align.workload.demand import FitRequest
from alignup.align.workload.names import CPU, EPHEMERAL_STORAGE, MEMORY

_RANKS = (QoS.BEST_EFFORT, QoS.BURSTABLE, QoS.GUARANTEED)  #: the least important first


@dataclass(frozen=True, slots=True, eq=False)
class EvictionCandidate:
    """A running pod that holds something of what is wanted."""

    uid: str
    holdings: Hashable  #: equal for pods that hold the same
    nodes: NodeSet  #: where it holds it; empty where that is not known
    uses: Mapping[str, int]  #: of what the host as a whole is short of


def eviction_candidates(trials: WhatIf) -> list[EvictionCandidate]:
    """All that could make room by leaving: the least important first, by priority and QoS class, then the newest."""
    ledger = trials.host.ledger
    wanted = {one.name: _wanted(one, trials) for one in trials.host.providers}
    found = []
    for arrival, (uid, resident) in enumerate(ledger.pods.items()):
        holdings: list[Hashable] = []
        nodes = 0
        for one in trials.host.providers:
            held, where = _holdings(trials.host.view, one, ledger.books[one.name], resident, wanted[one.name])
            holdings.append(held)
            nodes |= where
        uses = {short.resource: _uses(resident.uses, short.resource) for short in trials.misfits}
        if any(holdings) or any(uses.values()):
            rank = (resident.pod.priority or 0, _RANKS.index(resident.pod.qos), -arrival)
            found.append((rank, EvictionCandidate(uid, (*holdings, *uses.items()), nodes, uses)))
    return [holder for _, holder in sorted(found, key=lambda one: one[0])]


def _wanted(provider: Provider[Any], trials: WhatIf) -> set[str]:
    """The resources the pod asks a provider for."""
    book = trials.host.ledger.books[provider.name]
    pod = trials.pod
    return {name for container in (*pod.everyone, None) for name in provider.needs(book, pod, container)}


def _holdings(
    view: KubeletView, provider: Provider[Any], book: object, resident: AdmittedPod, wanted: set[str]
) -> tuple[Hashable, NodeSet]:
    """What a pod holds of what is *wanted* of one provider, and where."""
    uid = resident.pod.uid
    if isinstance(book, CpuLedger):
        return _cores(view, book, uid) if wanted else ((), 0)
    if isinstance(book, MemoryLedger):
        blocks = tuple(sorted(_blocks(book, uid))) if wanted else ()
        return blocks, bits.union(block.nodes for block in blocks)
    if isinstance(book, DeviceLedger):
        places = tuple(sorted(_places(book, uid, wanted)))
        return places, bits.union(nodes for _, nodes, _ in places)
    # Somebody from outside need not say what it was asked for, so whatever it gave may matter.
    return tuple(
        given
        for container in resident.pod.everyone
        for given in sorted(provider.given(book, uid, container.name).items())
    ), 0


def _cores(view: KubeletView, book: CpuLedger, uid: str) -> tuple[Hashable, NodeSet]:
    """The cores a pod owns CPUs of: where each CPU is, and whether it is the pod's, free, reserved or another's."""
    own = book.owned(uid)
    cores: dict[int, list[tuple[int, ...]]] = {core: [] for core, cpus in view.core_cpus.items() if cpus & own}
    for cpu in view.cpus:
        if cpu.core in cores:
            state = [cpus >> cpu.id & 1 for cpus in (own, book.shared, book.reserved)]
            cores[cpu.core].append((cpu.node or 0, cpu.socket, cpu.cache or 0, *state))
    nodes = bits.of(node for node, cpus in view.node_cpus.items() if cpus & own)
    return tuple(sorted(tuple(sorted(places)) for places in cores.values())), nodes


def _blocks(book: MemoryLedger, uid: str) -> Iterator[Block]:
    if uid in book.pod_held:
        yield from book.pod_held[uid]
    else:
        for blocks in book.held.get(uid, {}).values():
            yield from blocks


def _places(book: DeviceLedger, uid: str, wanted: set[str]) -> Iterator[tuple[str, NodeSet, bool]]:
    """For each device its resource, its nodes, and whether it is healthy; one that is gone is nowhere."""
    for resource in wanted:
        inventory = book.inventories.get(resource)
        for id_ in book.owned(uid, resource):
            place = inventory.places.get(id_) if inventory else None
            if inventory is None or place is None:
                yield resource, 0, False
            else:
                yield resource, inventory.devices[place].nodes or 0, inventory.devices[place].healthy


def _uses(uses: FitRequest, resource: str) -> int:
    plain = {PODS: 1, CPU: uses.milli_cpu, MEMORY: uses.memory, EPHEMERAL_STORAGE: uses.ephemeral_storage}
    return plain[resource] if resource in plain else uses.scalars.get(resource, 0)
