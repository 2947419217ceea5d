"""The placements of containers: where the resources of admitted containers really are.

A container is on one NUMA node if its exclusive CPUs, memory and devices are all there. The affinity that its providers
followed does not matter. Resources without a node (shared CPUs, unmanaged memory, devices without topology) do not
matter; a device on two nodes is on either. The same holds for a whole pod.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from alignup.align.bits import CpuSet, NodeSet
from alignup.align.decision import Decision, Placement
from alignup.align.devices.choices import DeviceChooser
from alignup.align.host import Host
from alignup.align.memory.ledger import Block
from alignup.align.workload import Pod


class ContainerPlacement(NamedTuple):
    container: str
    cpus: CpuSet  #: exclusive; empty: it runs on the shared CPU pool
    memory: tuple[Block, ...]
    devices: Mapping[str, tuple[str, ...]]  #: resource → ids
    sites: tuple[NodeSet, ...]  #: the nodes of every resource that has any, without duplicates

    @property
    def on_one(self) -> bool | None:
        return on_one_node(self.sites)

    @property
    def nodes(self) -> NodeSet:
        return common_nodes(self.sites)


def admit(host: Host, pod: Pod, chooser: DeviceChooser | None = None) -> Decision:
    """Decide on *pod*, and apply the decision; without *chooser*, it gets the lowest devices available."""
    decision = host.decide_with(pod, chooser) if chooser else host.decide_without_plugins(pod)
    if decision.admitted:
        host.apply(decision)
    else:
        host.leave_residue(decision)
    return decision


def container_placements(host: Host, placements: Iterable[Placement]) -> tuple[ContainerPlacement, ...]:
    """Return where the resources in the *placements* of an admission on *host* are."""
    results = []
    for placement in placements:
        blocks, sites = tuple([block for block in placement.memory if block.size]), placement.sites(host.ledger)
        results.append(ContainerPlacement(placement.container, placement.cpus or 0, blocks, placement.devices, sites))
    return tuple(results)


def on_one_node(sites: Iterable[NodeSet]) -> bool | None:
    """Return whether all *sites* have a node in common; ``None`` without sites."""
    common = -1
    for nodes in sites:
        common &= nodes
    return None if common == -1 else common != 0


def common_nodes(sites: Iterable[NodeSet]) -> NodeSet:
    """Return the nodes that all *sites* have in common; if none, the nodes of any site."""
    common, union = -1, 0
    for nodes in sites:
        common &= nodes
        union |= nodes
    return common & union or union
