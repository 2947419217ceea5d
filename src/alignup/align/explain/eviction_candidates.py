"""The running pods that hold something a rejected pod needs, and which of them are equivalent.

Two pods are equivalent when evicting either leaves the same host: the same memory on the same nodes, as many devices of
the same nodes, and CPUs of cores in the same places with the same other users. Where the whole host runs short, they
also use the same amount.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.explain.what_if import WhatIf
from alignup.align.fit import PODS
from alignup.align.host import Host
from alignup.align.ledger import AdmittedPod
from alignup.align.machine import KubeletView
from alignup.align.memory.ledger import Block, MemoryLedger
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
    host = what_if.host
    needed = _needed_resources(what_if)
    found = []
    for arrival, (uid, admitted) in enumerate(host.ledger.pods.items()):
        cores, nodes = _cores(host.view, host.ledger.cpus, uid) if needed[host.cpus.name] else ((), 0)
        blocks = tuple(sorted(_blocks(host.ledger.memory, uid))) if needed[host.memory.name] else ()
        devices = tuple(sorted(_devices(host.ledger.devices, uid, needed[host.devices.name])))
        nodes |= bits.union(block.nodes for block in blocks) | bits.union(device[1] for device in devices)
        holdings = (cores, blocks, devices, *_others(host, admitted))
        uses = {short.resource: _used_amount(admitted.usage, short.resource) for short in what_if.shortfalls}
        if any(holdings) or any(uses.values()):
            rank = (admitted.pod.priority or 0, _RANKS.index(admitted.pod.qos), -arrival)
            found.append((rank, EvictionCandidate(uid, (*holdings, *uses.items()), nodes, uses)))
    return [candidate for _, candidate in sorted(found, key=lambda ranked: ranked[0])]


def _needed_resources(what_if: WhatIf) -> dict[str, set[str]]:
    """Provider → the resources that the rejected pod requests from it."""
    pod, ledgers = what_if.pod, what_if.host.ledger.by_provider()
    return {
        provider.name: {
            resource
            for container in (*pod.all_containers, None)
            for resource in provider.needs(ledgers[provider.name], pod, container)
        }
        for provider in what_if.host.providers
    }


def _others(host: Host, admitted: AdmittedPod) -> Iterator[Hashable]:
    """What providers from outside allocated; they need not list requests, so everything may matter."""
    for provider in host.others:
        ledger, pod = host.ledger.others[provider.name], admitted.pod
        yield tuple(
            text for one in pod.all_containers for text in sorted(provider.describe(ledger, pod.uid, one.name).items())
        )


def _cores(view: KubeletView, ledger: CpuLedger, uid: str) -> tuple[Hashable, NodeSet]:
    """Each core the pod has CPUs of: where its CPUs are, and whether each is the pod's, shared or reserved."""
    own = ledger.owned(uid)
    cores: dict[int, list[tuple[int, ...]]] = {core: [] for core, cpus in view.core_cpus.items() if cpus & own}
    for cpu in view.cpus:
        if cpu.core in cores:
            state = [cpus >> cpu.id & 1 for cpus in (own, ledger.shared, ledger.reserved)]
            cores[cpu.core].append((cpu.node or 0, cpu.socket, cpu.cache or 0, *state))
    nodes = bits.of(node for node, cpus in view.node_cpus.items() if cpus & own)
    return tuple(sorted(tuple(sorted(places)) for places in cores.values())), nodes


def _blocks(ledger: MemoryLedger, uid: str) -> Iterator[Block]:
    if uid in ledger.pod_held:
        yield from ledger.pod_held[uid]
    else:
        for blocks in ledger.held.get(uid, {}).values():
            yield from blocks


def _devices(ledger: DeviceLedger, uid: str, resources: set[str]) -> Iterator[tuple[str, NodeSet, bool]]:
    """The resource, nodes and health of each device; one that is gone has no nodes."""
    for resource in resources:
        inventory = ledger.inventories.get(resource)
        for id_ in ledger.owned(uid, resource):
            place = inventory.indexes.get(id_) if inventory else None
            if inventory is None or place is None:
                yield resource, 0, False
            else:
                yield resource, inventory.devices[place].nodes or 0, inventory.devices[place].healthy


def _used_amount(usage: FitRequest, resource: str) -> int:
    plain = {PODS: 1, CPU: usage.milli_cpu, MEMORY: usage.memory, EPHEMERAL_STORAGE: usage.ephemeral_storage}
    return plain[resource] if resource in plain else usage.scalars.get(resource, 0)
