"""The device ledger: the devices that plugins report, and which container holds which; every change returns a new one.

Held devices are stored by id, since devices come, fail and go while pods hold them. Free devices are stored as a set of
indexes into the inventory of their resource. A resource stays known while a pod holds any of it, even without plugin.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Self

from alignup.align import bits
from alignup.align.bits import Bits, NodeSet
from alignup.align.devices import cover
from alignup.align.errors import StateError
from alignup.align.layered_map import with_item, without_item
from alignup.align.machine import Device

DeviceSet = Bits  #: a set of devices of one resource: bit *i* for the *i*-th device of its inventory
DeviceIds = Mapping[str, tuple[str, ...]]  #: resource → ids, in natural order

_NUMBER = re.compile(r"([0-9]+)")
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceInventory:
    """The devices of one resource as its plugin last reported them, indexed once."""

    devices: tuple[Device, ...]  #: in natural order of their unique ids
    machine: NodeSet  #: the NUMA nodes of the machine
    preferred_allocation: bool = False  #: whether the plugin supports GetPreferredAllocation
    registered: bool = True  #: ``False``: the plugin is gone for so long that the resource is removed
    remembered: bool = False  #: after a restart, until the plugin is back: only the held devices are known
    indexes: Mapping[str, int] = field(init=False, compare=False)  #: id → index
    healthy: DeviceSet = field(init=False, compare=False)
    with_topology: DeviceSet = field(init=False, compare=False)  #: those with topology, even without nodes
    placed: DeviceSet = field(init=False, compare=False)  #: those on any node, including unknown nodes
    groups: Mapping[NodeSet, DeviceSet] = field(init=False, compare=False)  #: nodes → the devices on exactly these
    weights: Mapping[NodeSet, int] = field(init=False, compare=False)  #: nodes of the machine → the number on these
    nodes: NodeSet = field(init=False, compare=False)  #: the nodes for hints: nodes with devices, else all nodes
    on: Mapping[int, DeviceSet] = field(init=False, compare=False)  #: each of ``nodes`` → the devices that touch it
    on_single_nodes: bool = field(init=False, compare=False)  #: whether no device is on several nodes of the machine
    min_widths: dict[int, int] = field(init=False, compare=False, repr=False)  #: known results of ``min_width``
    layout: Hashable = field(init=False, compare=False)  #: everything but the ids

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
        facts = {
            "indexes": {device.id: index for index, device in enumerate(self.devices)},
            "healthy": healthy,
            "with_topology": with_topology,
            "placed": bits.union(groups.values()),
            "groups": groups,
            "nodes": nodes or self.machine,
            "min_widths": {},
            "on": {
                node: bits.union(devices for mask, devices in groups.items() if mask >> node & 1)
                for node in bits.members(nodes or self.machine)
            },
        }
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)
        object.__setattr__(self, "weights", self.count(-1))
        object.__setattr__(self, "on_single_nodes", cover.are_single_nodes(self.weights))
        places = tuple([(device.nodes, device.healthy) for device in self.devices])
        object.__setattr__(self, "layout", (places, self.preferred_allocation, self.registered, self.remembered))

    @classmethod
    def of(cls, devices: Iterable[Device], *, machine: NodeSet, preferred_allocation: bool = False) -> Self:
        """Return an inventory of *devices*; of two with the same id, the later one counts."""
        known = {device.id: device for device in devices}
        ordered = tuple(known[id_] for id_ in sorted(known, key=natural_sort_key))
        return cls(ordered, machine, preferred_allocation=preferred_allocation)

    def min_width(self, count: int, *, resource: str) -> int:
        """Return the fewest nodes near *count* devices, if all are healthy and free; all nodes for too few devices.

        Pods request the same few numbers again and again, so results are kept.
        """
        width = self.min_widths.get(count)
        if width is None:
            width = cover.fewest_nodes(self.weights, count, source=resource) or self.nodes.bit_count()
            self.min_widths[count] = width
        return width

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
            known = mask & self.machine
            if number and known:
                counts[known] = counts.get(known, 0) + number
        return counts


@dataclass(frozen=True, kw_only=True)
class DeviceLedger:
    """The devices of a machine and their holders: a device belongs to containers of one pod, perhaps several."""

    PROVIDER: ClassVar = "device"

    nodes: NodeSet  #: the NUMA nodes of the machine
    inventories: Mapping[str, DeviceInventory] = field(default_factory=dict)  #: by resource
    held: Mapping[str, Mapping[str, DeviceIds]] = field(default_factory=dict)  #: pod uid → container → what it holds
    #: the last pod handled, and the devices of its init containers that its next container may reuse
    reusable: tuple[str, Mapping[str, frozenset[str]]] | None = None
    in_use: Mapping[str, frozenset[str]] = field(default_factory=dict)  #: resource → all held ids; no empty sets
    free: Mapping[str, DeviceSet] = field(default_factory=dict)  #: resource → the healthy devices without a holder

    @classmethod
    def of_devices(
        cls, devices: Iterable[Device], *, nodes: NodeSet, preferred_allocation: Collection[str] = ()
    ) -> "DeviceLedger":
        """Return the ledger of an idle machine; *preferred_allocation* are the resources whose plugin supports it."""
        by_resource: dict[str, list[Device]] = {}
        for device in devices:
            by_resource.setdefault(device.resource, []).append(device)
        ledger = cls(nodes=nodes)
        for resource, inventory_devices in by_resource.items():
            ledger = ledger.announce(resource, inventory_devices, preferred_allocation=resource in preferred_allocation)
        return ledger

    @cached_property
    def handled(self) -> set[str]:
        """The managed resources: those with a plugin, or with a pod that still holds some."""
        return {name for name, inventory in self.inventories.items() if inventory.registered}.union(self.in_use)

    def alignment_key(self) -> Hashable:
        """Return a key that is equal for ledgers of one machine that place new pods alike, apart from device ids."""
        resources = sorted({*self.inventories, *self.in_use})
        return tuple(
            [
                (name, inventory and inventory.layout, self.free.get(name), len(self.in_use.get(name, ())))
                for name, inventory in ((name, self.inventories.get(name)) for name in resources)
            ]
        )

    def holds(self, uid: str, container: str) -> DeviceIds:
        return self.held.get(uid, {}).get(container, {})

    def owned(self, uid: str, resource: str) -> frozenset[str]:
        return frozenset().union(
            *(container_devices.get(resource, ()) for container_devices in self.held.get(uid, {}).values())
        )

    def reusable_by(self, uid: str) -> Mapping[str, frozenset[str]]:
        return self.reusable[1] if self.reusable and self.reusable[0] == uid else {}

    def free_on(self, resource: str) -> Mapping[int, int]:
        """Return NUMA node → the number of free devices of *resource* that touch it, for all nodes of hints."""
        free = self.free[resource]
        return {node: (devices & free).bit_count() for node, devices in self.inventories[resource].on.items()}

    def allocatable(self, uid: str = "") -> dict[str, int]:
        """Return the number of healthy devices by resource, for the fit check of a pod."""
        counts = {
            name: inventory.healthy.bit_count() for name, inventory in self.inventories.items() if inventory.registered
        }
        if uid in self.held:  # a device that failed while the pod ran must not reject it
            for resource, ids in self.in_use.items():
                if len(ids) > counts.get(resource, 0):
                    counts[resource] = len(ids)
        return counts

    def announce(self, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> Self:
        return self._with_inventory(
            resource, DeviceInventory.of(devices, machine=self.nodes, preferred_allocation=preferred_allocation)
        )

    def stop(self, resource: str) -> Self:
        """Mark all devices as unhealthy, because the plugin is gone."""
        known = self.inventories[resource]
        ill = tuple(replace(device, healthy=False) for device in known.devices)
        stopped = DeviceInventory(ill, self.nodes, registered=known.registered, remembered=known.remembered)
        return self._with_inventory(resource, stopped)

    def give_up(self, resource: str) -> Self:
        """Manage the resource only as long as a pod holds some of it, because the plugin did not come back."""
        stopped = self.stop(resource).inventories[resource]
        return self._with_inventory(resource, replace(stopped, registered=False))

    def give(self, uid: str, container: str, *, devices: Mapping[str, Collection[str]]) -> Self:
        """Give *devices* to a container without any of their resources; ``StateError`` if another pod holds one."""
        if not any(devices.values()):
            return self
        before = self.holds(uid, container)
        container_devices = dict(before)
        in_use, free = dict(self.in_use), dict(self.free)
        for resource, ids in devices.items():
            if not ids:
                continue
            known = in_use.get(resource, frozenset())
            foreign = known.intersection(ids)
            if foreign and (foreign := foreign - self.owned(uid, resource)):
                raise StateError(f"{resource} {', '.join(sorted(foreign, key=natural_sort_key))}: held by another pod")
            if resource in before:
                raise StateError(f"{resource}: pod {uid} container {container} already holds some")
            in_use[resource] = known.union(ids)
            if resource in free:
                free[resource] &= ~self.inventories[resource].find(ids)
            container_devices[resource] = tuple(sorted(ids, key=natural_sort_key) if len(ids) > 1 else ids)
        containers = {**self.held.get(uid, {}), container: container_devices}
        return type(self)(
            nodes=self.nodes,
            inventories=self.inventories,
            held=with_item(self.held, uid, containers),
            reusable=self.reusable,
            in_use=in_use,
            free=free,
        )

    def take_back(self, uid: str) -> Self:
        """Release all devices of a pod; it can reuse nothing any more."""
        if uid not in self.held:
            return self if not self.reusable_by(uid) else replace(self, reusable=None)
        in_use, free = dict(self.in_use), dict(self.free)
        for container_devices in self.held[uid].values():
            for resource, ids in container_devices.items():
                rest = in_use.get(resource, _NOTHING).difference(ids)
                if rest:
                    in_use[resource] = rest
                else:
                    in_use.pop(resource, None)
                if resource in free:
                    inventory = self.inventories[resource]
                    free[resource] |= inventory.find(ids) & inventory.healthy
        reusable = None if self.reusable and self.reusable[0] == uid else self.reusable
        return replace(self, held=without_item(self.held, uid), reusable=reusable, in_use=in_use, free=free)

    def with_reusable(self, uid: str, devices: Mapping[str, frozenset[str]]) -> Self:
        """Let the next container of the pod reuse *devices*; other pods can reuse nothing any more."""
        reusable = (uid, devices) if devices else None
        return self if self.reusable == reusable else replace(self, reusable=reusable)

    def _with_inventory(self, resource: str, inventory: DeviceInventory) -> Self:
        free = inventory.healthy & ~inventory.find(self.in_use.get(resource, ()))
        return replace(self, inventories={**self.inventories, resource: inventory}, free={**self.free, resource: free})


@lru_cache(maxsize=4096)
def natural_sort_key(id_: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a sort key that compares numbers in ids as numbers: ``gpu-2`` comes before ``gpu-10``."""
    # Texts and numbers take turns. Numbers compare by the number of digits first, so any length works.
    pieces: list[tuple[int, str]] = []
    for turn, piece in enumerate(_NUMBER.split(id_)):
        digits = piece.lstrip("0")
        pieces.append((len(digits), digits) if turn % 2 else (0, piece))
    return tuple(pieces), id_
