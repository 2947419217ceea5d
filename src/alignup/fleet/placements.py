"""Where a pod's resources really are, whatever its providers were asked to follow.

A container is on one node when its own CPUs, its memory and its devices can all be found there. What has no place (the
shared CPUs, memory nobody manages, a device that does not tell its nodes) stands in nobody's way; a device on two nodes
is on either. The same goes for a pod, taken together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from alignup.align import bits
from alignup.align.bits import CpuSet, NodeSet
from alignup.align.devices import DeviceLedger
from alignup.align.host import Host
from alignup.align.memory.ledger import Block
from alignup.align.workload import Pod


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """What one container was given, and where that is."""

    container: str
    cpus: CpuSet  #: its own; empty: it runs on the shared ones
    memory: tuple[Block, ...]
    devices: Mapping[str, tuple[str, ...]]  #: resource → ids
    sites: tuple[NodeSet, ...]  #: for every thing that has a place, the nodes it is on; each once

    @property
    def on_one(self) -> bool | None:
        """Whether all of it is on one node; ``None``: nothing of it has a place."""
        return on_one_node(self.sites)

    @property
    def nodes(self) -> NodeSet:
        """The nodes all of it is on, or where there are none, those it is spread over."""
        return common_nodes(self.sites)


def container_placements(host: Host, pod: Pod) -> tuple[ContainerPlacement, ...]:
    """What each container of *pod*, which is there, was given."""
    cpus, memory, devices = host.ledger.cpus, host.ledger.memory, host.ledger.devices
    found = []
    for container in pod.all_containers:
        own = cpus.holds(pod.uid, container.name) or 0
        blocks = tuple([block for block in memory.blocks(pod.uid, container.name) or () if block.size])
        held = devices.holds(pod.uid, container.name)
        sites = {1 << node for node, all_ in cpus.node_cpus.items() if own & all_} if own else set()
        sites.update([1 << node for block in blocks for node in bits.members(block.nodes)])
        if held:
            sites.update(_device_sites(devices, held))
        found.append(ContainerPlacement(container.name, own, blocks, held, tuple(sorted(sites))))
    return tuple(found)


def on_one_node(sites: Iterable[NodeSet]) -> bool | None:
    """Whether there is a node that is in every one of *sites*; ``None``: there are none."""
    common = -1
    for nodes in sites:
        common &= nodes
    return None if common == -1 else common != 0


def common_nodes(sites: Iterable[NodeSet]) -> NodeSet:
    """The nodes in every one of *sites*, or where there is none, those in any."""
    common, any_ = -1, 0
    for nodes in sites:
        common &= nodes
        any_ |= nodes
    return common & any_ or any_


def _device_sites(ledger: DeviceLedger, held: Mapping[str, tuple[str, ...]]) -> Iterator[NodeSet]:
    for resource, ids in held.items():
        inventory = ledger.inventories[resource]
        for id_ in ids:
            nodes = (inventory.devices[inventory.places[id_]].nodes or 0) & ledger.nodes
            if nodes:
                yield nodes
