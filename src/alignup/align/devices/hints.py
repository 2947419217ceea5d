"""On which sets of NUMA nodes could a number of devices be had?

A set serves a request when enough free devices have a node in it. Devices without nodes count for no set, although
they may be given in the end. With one node a device the nodes just add up (:class:`~alignup.align.hint.AmountFamily`); a
device on several nodes counts once for a set, however many of them it holds (:class:`CoverageFamily`).

Devices that may be used again are insisted on: a set must touch every one of them. Each group of them therefore weighs
more than all free devices together, so that one sum tells both whether all are touched and whether enough are free.

A set is preferred when it has as few nodes as the request would take if no device were in use or ill.
"""

from heapq import nlargest

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.devices import cover
from alignup.align.devices.cover import Weights
from alignup.align.devices.ledger import DeviceInventory, DeviceSet
from alignup.align.hint import AmountFamily, HintFamily, subsets


class CoverageFamily(HintFamily):
    """The sets of nodes that touch devices worth ``need``; a device on several nodes is worth its weight once."""

    __slots__ = ("_need", "_weights", "narrowest", "nodes", "preferred_width", "preferred_widths")

    def __init__(self, weights: Weights, need: int, *, nodes: NodeSet, preferred_width: int, source: str) -> None:
        self._weights = tuple(weights.items())
        self._need = need
        self.nodes: NodeSet = nodes
        self.preferred_width = preferred_width
        self.preferred_widths: Bits = 1 << preferred_width
        self.narrowest: int = cover.fewest_nodes(weights, need, source=source) or 0

    def fits(self, nodes: NodeSet) -> bool:
        """Whether *nodes* touch enough."""
        return nodes != 0 and not nodes & ~self.nodes and self._touched(nodes) >= self._need

    def prefers(self, nodes: NodeSet) -> bool:
        """Whether *nodes* are as few as the idle machine allows."""
        return nodes.bit_count() == self.preferred_width

    def completing(self, nodes: NodeSet) -> NodeSet:
        """Each node which, added to *nodes*, makes them touch enough."""
        if nodes & ~self.nodes:
            return 0
        missing = self._need - self._touched(nodes)
        if missing <= 0:
            return self.nodes
        return bits.of(node for node, gain in self._gains(nodes).items() if gain >= missing)

    def masks(self) -> tuple[NodeSet, ...]:
        """Every set that fits, by number of nodes and then in rising order of ids."""
        every = subsets(self.nodes)
        touched = [0] * len(every)
        for mask, weight in self._weights:
            touched = [worth + weight if nodes & mask else worth for nodes, worth in zip(every, touched, strict=True)]
        need = self._need
        return tuple([nodes for nodes, worth in zip(every, touched, strict=True) if worth >= need])

    def within_reach(self, nodes: NodeSet, *, more: int, among: NodeSet) -> bool:
        """Whether the *more* nodes of *among* that add most, each for itself, would make *nodes* touch enough."""
        if nodes & ~self.nodes:
            return False
        gains = [gain for node, gain in self._gains(nodes).items() if among >> node & 1]
        return self._touched(nodes) + sum(nlargest(more, gains)) >= self._need

    def _touched(self, nodes: NodeSet) -> int:
        return sum([weight for mask, weight in self._weights if mask & nodes])

    def _gains(self, nodes: NodeSet) -> dict[int, int]:
        """What each node would add to *nodes*; nodes that would add nothing are left out."""
        gains: dict[int, int] = {}
        for mask, weight in self._weights:
            if not mask & nodes:
                for node in bits.members(mask):
                    gains[node] = gains.get(node, 0) + weight
        return gains


def device_family(
    inventory: DeviceInventory, available: DeviceSet, *, resource: str, need: int, reusable: DeviceSet = 0
) -> HintFamily | None:
    """The sets of nodes on which *need* of the *available* and *reusable* devices could be had; ``None``: nowhere.

    Raises ``WorkLimitError`` where devices sit on many overlapping groups of nodes.
    """
    nodes = inventory.nodes
    wanted = need
    weights = _weights(inventory, available)
    insisted = reusable & inventory.told
    if insisted:
        groups = _weights(inventory, insisted)
        if sum(groups.values()) < insisted.bit_count():
            return None  # one of them is on no node there is, so no set can touch it
        heavy = 1 + sum(weights.values())
        wanted = max(0, need - insisted.bit_count()) + heavy * len(groups)
        for mask in groups:
            weights[mask] = weights.get(mask, 0) + heavy
    width = _idle_width(inventory, need, resource=resource)
    found: AmountFamily | CoverageFamily
    if cover.are_single_nodes(weights):
        amounts = {node: weights.get(1 << node, 0) for node in bits.members(nodes)}
        found = AmountFamily(amounts, wanted, preferred_width=width)
    else:
        found = CoverageFamily(weights, wanted, nodes=nodes, preferred_width=width, source=resource)
    return found if found.narrowest else None


def _weights(inventory: DeviceInventory, devices: DeviceSet) -> dict[NodeSet, int]:
    """Nodes → how many of *devices* sit on just these, of the nodes there are."""
    weights: dict[NodeSet, int] = {}
    for mask, own in inventory.groups.items():
        count = (own & devices).bit_count()
        known = mask & inventory.machine
        if count and known:
            weights[known] = weights.get(known, 0) + count
    return weights


def _idle_width(inventory: DeviceInventory, need: int, *, resource: str) -> int:
    """The fewest nodes that touch *need* devices of any kind, in use or ill or neither; all nodes if none do."""
    everything = (1 << len(inventory.devices)) - 1
    return cover.fewest_nodes(_weights(inventory, everything), need, source=resource) or inventory.nodes.bit_count()
