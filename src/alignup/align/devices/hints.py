"""The devices of a resource, and the hints for them: the sets of NUMA nodes near which enough devices are free.

Devices without nodes count for no set, although they may be allocated in the end. Every set must touch all reusable
devices. Each group of them therefore weighs more than all free devices together, so one sum shows both whether all of
them are touched and whether enough devices are free. A set is preferred if it has as few nodes as the request needs
when all devices are healthy and free.

Devices on the same nodes are one *set* of nodes with a weight. If every device has one node, the richest nodes are the
fewest. Otherwise this is the maximum coverage problem, hard in general, but not on real machines: their sets are nested
or disjoint (a device belongs to a node, a socket or the whole board), and then the greedy choice of the node that adds
most is exact. Other sets are searched, skipping each partial choice that the richest remaining nodes cannot complete.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from heapq import nlargest
from itertools import combinations
from typing import Self

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.errors import WorkLimitError
from alignup.align.hint import AmountFamily, HintFamily, subsets
from alignup.align.machine import Device

DeviceSet = Bits  #: a set of devices of one resource: bit *i* for the *i*-th device of its inventory
Weights = Mapping[NodeSet, int]  #: set of nodes → the worth of touching any of them

WORK_LIMIT = 2_000  #: steps of a search among overlapping sets; some tenths of a second on 64 nodes

#: A number, or a PCI address, which is hexadecimal: ``0000:1f:00.0``.
_NUMBER = re.compile(r"((?<![0-9a-f])[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-f])|[0-9]+)")
_PUNCTUATION = str.maketrans("", "", ":.")


@dataclass(frozen=True, slots=True)
class DeviceInventory:
    """The devices of one resource as its plugin last reported them, indexed once."""

    devices: tuple[Device, ...]  #: in natural order of their unique ids
    machine: NodeSet  #: the NUMA nodes of the machine
    hints_all_nodes: bool = False  #: whether hints name all nodes, not only nodes with devices
    preferred_allocation: bool = False  #: whether the plugin supports GetPreferredAllocation
    registered: bool = True  #: ``False``: the plugin is gone for so long that the resource is removed
    remembered: bool = False  #: after a restart, until the plugin is back: only the held devices are known
    indexes: Mapping[str, int] = field(init=False, compare=False)  #: id → index, in the order of ``devices``
    healthy: DeviceSet = field(init=False, compare=False)
    with_topology: DeviceSet = field(init=False, compare=False)  #: devices with topology, even without nodes
    placed: DeviceSet = field(init=False, compare=False)  #: devices on any node, including unknown nodes
    groups: Mapping[NodeSet, DeviceSet] = field(init=False, compare=False)  #: nodes → the devices on exactly these
    weights: Mapping[NodeSet, int] = field(init=False, compare=False)  #: nodes of the machine → the number on these
    nodes: NodeSet = field(init=False, compare=False)  #: the nodes for hints
    on: Mapping[int, DeviceSet] = field(init=False, compare=False)  #: each of ``nodes`` → the devices that touch it
    on_single_nodes: bool = field(init=False, compare=False)  #: whether no device is on several nodes of the machine
    min_widths: dict[int, int] = field(init=False, compare=False, repr=False)  #: known results of ``min_width``
    layout: Hashable = field(init=False, compare=False)  #: everything but the ids
    #: known results of ``only_on``
    restricted: "dict[NodeSet, DeviceInventory]" = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        groups: dict[NodeSet, DeviceSet] = {}
        healthy = with_topology = nodes = 0
        for index, device in enumerate(self.devices):
            if device.healthy:
                healthy |= 1 << index
            if device.nodes is not None:
                with_topology |= 1 << index
            if device.nodes:
                groups[device.nodes] = groups.get(device.nodes, 0) | 1 << index
                nodes |= device.nodes & self.machine
        hint_nodes = nodes if nodes and not self.hints_all_nodes else self.machine
        facts = {
            "indexes": {device.id: index for index, device in enumerate(self.devices)},
            "healthy": healthy,
            "with_topology": with_topology,
            "placed": bits.union(groups.values()),
            "groups": groups,
            "nodes": hint_nodes,
            "min_widths": {},
            "restricted": {},
            "on": {
                node: bits.union(devices for mask, devices in groups.items() if mask >> node & 1)
                for node in bits.members(hint_nodes)
            },
        }
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)
        object.__setattr__(self, "weights", self.count(-1))
        object.__setattr__(self, "on_single_nodes", are_single_nodes(self.weights))
        places = tuple([(device.nodes, device.healthy) for device in self.devices])
        object.__setattr__(self, "layout", (places, self.preferred_allocation, self.registered, self.remembered))

    @classmethod
    def of(
        cls,
        devices: Iterable[Device],
        *,
        machine: NodeSet,
        hints_all_nodes: bool = False,
        preferred_allocation: bool = False,
    ) -> Self:
        """Return an inventory of *devices*; of two with the same id, the later one counts."""
        devices_by_id = {device.id: device for device in devices}
        ordered_devices = tuple(devices_by_id[id_] for id_ in sorted(devices_by_id, key=natural_sort_key))
        return cls(ordered_devices, machine, hints_all_nodes, preferred_allocation)

    def min_width(self, count: int, *, resource: str) -> int:
        """Return the fewest nodes near *count* devices, if all are healthy and free; all nodes for too few devices.

        Pods request the same few numbers again and again, so results are kept.
        """
        width = self.min_widths.get(count)
        if width is None:
            width = fewest_nodes(self.weights, count, source=resource) or self.nodes.bit_count()
            self.min_widths[count] = width
        return width

    def only_on(self, nodes: NodeSet) -> "DeviceInventory":
        """Return the inventory while all devices elsewhere than on *nodes* are unhealthy."""
        inventory = self.restricted.get(nodes)
        if inventory is None:
            devices = [
                device if (device.nodes or 0) & nodes else replace(device, healthy=False) for device in self.devices
            ]
            inventory = self.restricted[nodes] = replace(self, devices=tuple(devices))
        return inventory

    def find(self, ids: Iterable[str]) -> DeviceSet:
        indexes = self.indexes
        devices = 0
        for id_ in ids:
            if id_ in indexes:
                devices |= 1 << indexes[id_]
        return devices

    def names(self, devices: DeviceSet) -> tuple[str, ...]:
        if devices and devices & devices - 1 == 0:  # one device, the usual case
            return (self.devices[devices.bit_length() - 1].id,)
        return tuple([self.devices[index].id for index in bits.members(devices)])

    def near(self, nodes: NodeSet) -> DeviceSet:
        if nodes and nodes & nodes - 1 == 0 and (node := nodes.bit_length() - 1) in self.on:  # the usual case
            return self.on[node]
        near = 0
        for mask, devices in self.groups.items():
            if mask & nodes:
                near |= devices
        return near

    def count(self, devices: DeviceSet) -> dict[NodeSet, int]:
        """Return nodes of the machine → how many of *devices* are on exactly these."""
        counts: dict[NodeSet, int] = {}
        for mask, group in self.groups.items():
            number = (group & devices).bit_count()
            nodes = mask & self.machine
            if number and nodes:
                counts[nodes] = counts.get(nodes, 0) + number
        return counts


@lru_cache(maxsize=4096)
def natural_sort_key(id_: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a sort key that compares numbers in ids as numbers: ``gpu-2`` comes before ``gpu-10``.

    PCI addresses are numbers, too: ``0000:02:00.0``, ``0000:1f:00.0`` and ``0000:a0:00.0`` are in this order.
    """
    # Texts and numbers take turns. Numbers compare by the number of digits first, so any length works.
    pieces: list[tuple[int, str]] = []
    for turn, piece in enumerate(_NUMBER.split(id_)):
        digits = piece.translate(_PUNCTUATION).lstrip("0") if turn % 2 else ""
        pieces.append((len(digits), digits) if turn % 2 else (0, piece))
    return tuple(pieces), id_


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
        self.min_width = fewest_nodes(self.weights, self.need, source=self.source) or 0

    def fits(self, nodes: NodeSet) -> bool:
        return nodes != 0 and not nodes & ~self.nodes and self._touched(nodes) >= self.need

    def prefers(self, nodes: NodeSet) -> bool:
        return nodes.bit_count() == self.preferred_width

    def completing_nodes(self, nodes: NodeSet) -> NodeSet:
        if nodes & ~self.nodes:
            return 0
        missing_count = self.need - self._touched(nodes)
        if missing_count <= 0:
            return self.nodes
        return bits.of(node for node, gain in self._gains(nodes).items() if gain >= missing_count)

    def fitting_sets(self) -> tuple[NodeSet, ...]:
        every = subsets(self.nodes)
        worths = [0] * len(every)
        for mask, weight in self.weights.items():
            worths = [worth + weight if nodes & mask else worth for nodes, worth in zip(every, worths, strict=True)]
        need = self.need
        return tuple([nodes for nodes, worth in zip(every, worths, strict=True) if worth >= need])

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
    required_devices = reusable & inventory.with_topology
    if inventory.on_single_nodes and not required_devices:
        amounts = {node: (devices & available).bit_count() for node, devices in inventory.on.items()}
        alone = AmountFamily(amounts, need, preferred_width=inventory.min_width(need, resource=resource))
        return alone if alone.min_width else None
    aim = need
    weights = inventory.count(available)
    if required_devices:
        groups = inventory.count(required_devices)
        if sum(groups.values()) < required_devices.bit_count():
            return None  # one of them is on no node of the machine, so no set can touch it
        heavy = 1 + sum(weights.values())
        aim = max(0, need - required_devices.bit_count()) + heavy * len(groups)
        for mask in groups:
            weights[mask] = weights.get(mask, 0) + heavy
    width = inventory.min_width(need, resource=resource)
    family: AmountFamily | CoverageFamily
    if are_single_nodes(weights):
        amounts = {node: weights.get(1 << node, 0) for node in inventory.on}
        family = AmountFamily(amounts, aim, preferred_width=width)
    else:
        family = CoverageFamily(weights, aim, nodes=inventory.nodes, preferred_width=width, source=resource)
    return family if family.min_width else None


def fewest_nodes(weights: Weights, need: int, *, source: str) -> int | None:
    """Return the smallest number of nodes, from 1, that touch sets worth *need*; ``None`` if all are not enough."""
    if need <= 0:
        return 1
    if need > sum(weights.values()):
        return None
    if are_single_nodes(weights):
        return _richest(weights.values(), need)
    units_by_node = _units(weights)
    at_least = _richest(map(int.bit_count, units_by_node.values()), need)
    if at_least == 1:
        return 1
    reached_units, at_most = 0, 0
    while reached_units.bit_count() < need:  # the greedy choice
        reached_units |= max(units_by_node.values(), key=lambda units: (units & ~reached_units).bit_count())
        at_most += 1
    if at_least == at_most or are_nested(weights):
        return at_most
    search = _Search(_undominated(units_by_node), _charges(weights), source)
    return next((count for count in range(at_least, at_most) if search.completes(search.choices, count, need)), at_most)


def are_single_nodes(masks: Collection[NodeSet]) -> bool:
    return not any(mask & mask - 1 for mask in masks)


def are_nested(masks: Collection[NodeSet]) -> bool:
    """Return whether any two sets are disjoint or one contains the other."""
    nodes = bits.of(node for mask in masks for node in bits.members(mask))
    if len(masks) > max(0, 2 * nodes.bit_count() - 1):
        return False  # too many different sets to be nested
    return all(mask & other in {0, mask, other} for mask, other in combinations(masks, 2))


def _richest(gains: Iterable[int], need: int) -> int:
    """Return how many *gains*, largest first, reach *need*; all gains together do."""
    ranked_gains = sorted(gains, reverse=True)
    count = 1
    total_gain = ranked_gains[0]
    while total_gain < need:
        total_gain += ranked_gains[count]
        count += 1
    return count


def _units(weights: Weights) -> dict[int, Bits]:
    """Return node → what it touches, as one bit per unit of weight."""
    units_by_node: dict[int, Bits] = {}
    start = 0
    for mask, weight in weights.items():
        units = (1 << weight) - 1 << start
        start += weight
        for node in bits.members(mask):
            units_by_node[node] = units_by_node.get(node, 0) | units
    return units_by_node


def _charges(weights: Weights) -> list[Bits]:
    """Return the units of the sets with at most one node, two nodes, … up to all: each gives a bound.

    Charged units count once for each node that touches them; all others count as touched by any choice.
    """
    charges = []
    for width in sorted({mask.bit_count() for mask in weights}):
        start = charged_units = 0
        for mask, weight in weights.items():
            if mask.bit_count() <= width:
                charged_units |= (1 << weight) - 1 << start
            start += weight
        charges.append(charged_units)
    return charges


def _undominated(units_by_node: Mapping[int, Bits]) -> list[Bits]:
    """Return what nodes touch, without nodes whose units another node touches too."""
    sets: list[Bits] = []
    for units in sorted(units_by_node.values(), key=int.bit_count, reverse=True):
        if all(units & ~other for other in sets):
            sets.append(units)
    return sets


class _Search:
    def __init__(self, choices: list[Bits], charged_masks: Sequence[Bits], source: str) -> None:
        self.choices = choices
        self.charged = charged_masks
        self.source = source
        self.steps = 0

    def completes(self, choices: list[Bits], count: int, missing_count: int) -> bool:
        """Return whether *count* of *choices*, which contain only untouched units, touch *missing_count* units."""
        self.steps += 1
        if self.steps > WORK_LIMIT:
            raise WorkLimitError(
                f"cannot decide within {WORK_LIMIT} steps how few NUMA nodes touch enough devices of {self.source}: "
                "its devices are on groups of nodes that overlap without being nested",
                sources=(self.source,),
            )
        gains = [units.bit_count() for units in choices]
        most = max(gains, default=0)
        if count == 1 or most >= missing_count:
            return most >= missing_count
        if self._at_most(choices, count) < missing_count:
            return False
        ranked_choices = sorted(zip(gains, choices, strict=True), reverse=True)
        position = 0
        while sum(gain for gain, _ in ranked_choices[position : position + count]) >= missing_count:
            gain, units = ranked_choices[position]
            position += 1
            rest = [fresh for _, other in ranked_choices[position:] if (fresh := other & ~units)]
            if self.completes(rest, count - 1, missing_count - gain):
                return True
        return False

    def _at_most(self, choices: list[Bits], count: int) -> int:
        """Return an upper bound for what *count* of *choices* touch: uncharged units, and charged ones of each."""
        everything = bits.union(choices)
        return min(
            (everything & ~charged_masks).bit_count()
            + sum(nlargest(count, [(units & charged_masks).bit_count() for units in choices]))
            for charged_masks in self.charged
        )
