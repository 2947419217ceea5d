"""The running pods that hold something a rejected pod needs, and which of them are equivalent.

Two pods are equivalent when evicting either leaves the same host: the same memory on the same nodes, as many devices of
the same nodes, and CPUs of cores in the same places with the same other users. Where the whole host runs short, they
also use the same amount.
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

_RANKS = (QoS.BEST_EFFORT, QoS.BURSTABLE, QoS.GUARANTEED)  #: least important first


@dataclass(frozen=True, slots=True, eq=False)
class EvictionCandidate:
    """A running pod that holds something the rejected pod needs."""

    uid: str
    holdings: Hashable  #: equal for equivalent pods
    nodes: NodeSet  #: where it holds them; 0 if unknown
    uses: Mapping[str, int]  #: of what the whole host lacks


def eviction_candidates(what_if: WhatIf) -> list[EvictionCandidate]:
    """The candidates, least important first by priority and QoS class, then newest first."""
    ledger = what_if.host.ledger
    ledgers = ledger.by_provider()
    wanted = {one.name: _needed_resources(one, what_if) for one in what_if.host.providers}
    found = []
    for arrival, (uid, admitted) in enumerate(ledger.pods.items()):
        holdings: list[Hashable] = []
        nodes = 0
        for one in what_if.host.providers:
            held, where = _holdings(what_if.host.view, one, ledgers[one.name], admitted, wanted[one.name])
            holdings.append(held)
            nodes |= where
        uses = {short.resource: _uses(admitted.usage, short.resource) for short in what_if.shortfalls}
        if any(holdings) or any(uses.values()):
            rank = (admitted.pod.priority or 0, _RANKS.index(admitted.pod.qos), -arrival)
            found.append((rank, EvictionCandidate(uid, (*holdings, *uses.items()), nodes, uses)))
    return [holder for _, holder in sorted(found, key=lambda one: one[0])]


def _needed_resources(provider: Provider[Any], what_if: WhatIf) -> set[str]:
    """The resources that the pod requests from a provider."""
    book = what_if.host.ledger.by_provider()[provider.name]
    pod = what_if.pod
    return {name for container in (*pod.all_containers, None) for name in provider.needs(book, pod, container)}


def _holdings(
    view: KubeletView, provider: Provider[Any], book: object, admitted: AdmittedPod, wanted: set[str]
) -> tuple[Hashable, NodeSet]:
    """What a pod holds of the *wanted* resources of one provider, and where."""
    uid = admitted.pod.uid
    if isinstance(book, CpuLedger):
        return _core_usage(view, book, uid) if wanted else ((), 0)
    if isinstance(book, MemoryLedger):
        blocks = tuple(sorted(_blocks(book, uid))) if wanted else ()
        return blocks, bits.union(block.nodes for block in blocks)
    if isinstance(book, DeviceLedger):
        places = tuple(sorted(_device_usage(book, uid, wanted)))
        return places, bits.union(nodes for _, nodes, _ in places)
    # A provider from outside need not list requests, so everything it allocated may matter.
    return tuple(
        given
        for container in admitted.pod.all_containers
        for given in sorted(provider.describe(book, uid, container.name).items())
    ), 0


def _core_usage(view: KubeletView, book: CpuLedger, uid: str) -> tuple[Hashable, NodeSet]:
    """Each core the pod has CPUs of: where its CPUs are, and whether each is the pod's, shared or reserved."""
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


def _device_usage(book: DeviceLedger, uid: str, wanted: set[str]) -> Iterator[tuple[str, NodeSet, bool]]:
    """The resource, nodes and health of each device; one that is gone has no nodes."""
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
