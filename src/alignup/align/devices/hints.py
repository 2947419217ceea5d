"""Hints for devices: the sets of NUMA nodes near which enough devices are free.

Devices without nodes count for no set, although they may be allocated in the end. Every set must touch all reusable
devices. Each group of them therefore weighs more than all free devices together, so one sum shows both whether all of
them are touched and whether enough devices are free. A set is preferred if it has as few nodes as the request needs
when all devices are healthy and free.
"""

from dataclasses import KW_ONLY, dataclass, field
from heapq import nlargest

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.devices import cover
from alignup.align.devices.cover import Weights
from alignup.align.devices.ledger import DeviceInventory, DeviceSet
from alignup.align.hint import AmountFamily, HintFamily, subsets


@dataclass(slots=True)
class CoverageFamily(HintFamily):
    """The sets of nodes that touch devices worth ``need``; a device on several nodes counts once."""

    weights: Weights
    need: int
    _: KW_ONLY
    nodes: NodeSet
    preferred_width: int
    source: str  #: the resource, for errors
    preferred_widths: Bits = field(init=False, compare=False)
    min_width: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.preferred_widths = 1 << self.preferred_width
        self.min_width = cover.fewest_nodes(self.weights, self.need, source=self.source) or 0

    def fits(self, nodes: NodeSet) -> bool:
        return nodes != 0 and not nodes & ~self.nodes and self._touched(nodes) >= self.need

    def prefers(self, nodes: NodeSet) -> bool:
        return nodes.bit_count() == self.preferred_width

    def completing_nodes(self, nodes: NodeSet) -> NodeSet:
        if nodes & ~self.nodes:
            return 0
        missing = self.need - self._touched(nodes)
        if missing <= 0:
            return self.nodes
        return bits.of(node for node, gain in self._gains(nodes).items() if gain >= missing)

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        every = subsets(self.nodes)
        touched = [0] * len(every)
        for mask, weight in self.weights.items():
            touched = [worth + weight if nodes & mask else worth for nodes, worth in zip(every, touched, strict=True)]
        need = self.need
        return tuple([nodes for nodes, worth in zip(every, touched, strict=True) if worth >= need])

    def may_complete(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        if nodes & ~self.nodes:
            return False
        gains = [gain for node, gain in self._gains(nodes).items() if among >> node & 1]
        return self._touched(nodes) + sum(nlargest(more, gains)) >= self.need

    def _touched(self, nodes: NodeSet) -> int:
        return sum([weight for mask, weight in self.weights.items() if mask & nodes])

    def _gains(self, nodes: NodeSet) -> dict[int, int]:
        """Return what each node adds to *nodes*; without nodes that add nothing."""
        gains: dict[int, int] = {}
        for mask, weight in self.weights.items():
            if not mask & nodes:
                for node in bits.members(mask):
                    gains[node] = gains.get(node, 0) + weight
        return gains


def device_family(
    inventory: DeviceInventory, available: DeviceSet, *, resource: str, need: int, reusable: DeviceSet = 0
) -> AmountFamily | CoverageFamily | None:
    """Return the sets of nodes near which *need* *available* or *reusable* devices are; ``None``: no set."""
    required = reusable & inventory.with_topology
    if inventory.on_single_nodes and not required:
        amounts = {node: (devices & available).bit_count() for node, devices in inventory.on.items()}
        alone = AmountFamily(amounts, need, preferred_width=inventory.min_width(need, resource=resource))
        return alone if alone.min_width else None
    wanted = need
    weights = inventory.count(available)
    if required:
        groups = inventory.count(required)
        if sum(groups.values()) < required.bit_count():
            return None  # one of them is on no node of the machine, so no set can touch it
        heavy = 1 + sum(weights.values())
        wanted = max(0, need - required.bit_count()) + heavy * len(groups)
        for mask in groups:
            weights[mask] = weights.get(mask, 0) + heavy
    width = inventory.min_width(need, resource=resource)
    family: AmountFamily | CoverageFamily
    if cover.are_single_nodes(weights):
        amounts = {node: weights.get(1 << node, 0) for node in inventory.on}
        family = AmountFamily(amounts, wanted, preferred_width=width)
    else:
        family = CoverageFamily(weights, wanted, nodes=inventory.nodes, preferred_width=width, source=resource)
    return family if family.min_width else None
