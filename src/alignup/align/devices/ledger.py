"""The device ledger: the devices that plugins report, and which container holds which; every change returns a new one.

Held devices are stored by id, since devices come, fail and go while pods hold them. Free devices are stored as a set of
indexes into the inventory of their resource. A resource stays known while a pod holds any of it, even without plugin.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

from alignup.align.bits import NodeSet
from alignup.align.devices.hints import DeviceInventory, DeviceSet, natural_sort_key
from alignup.align.errors import StateError
from alignup.align.layered_map import with_item, without_item
from alignup.align.machine import Device

DeviceIds = Mapping[str, tuple[str, ...]]  #: resource → ids, in natural order

_NOTHING: frozenset[str] = frozenset()
_NO_DEVICES: DeviceIds = {}


@dataclass(frozen=True, kw_only=True)
class DeviceLedger:
    """The devices of a machine and their holders: a device belongs to containers of one pod, perhaps several."""

    PROVIDER: ClassVar = "device"

    nodes: NodeSet  #: the NUMA nodes of the machine
    hints_all_nodes: bool = False  #: whether hints name all nodes, not only nodes with devices of the resource
    inventories: Mapping[str, DeviceInventory] = field(default_factory=dict)  #: by resource
    held: Mapping[str, Mapping[str, DeviceIds]] = field(default_factory=dict)  #: pod uid → container → what it holds
    #: the last pod handled, and the devices of its init containers that its next container may reuse
    reusable: tuple[str, Mapping[str, frozenset[str]]] | None = None
    in_use: Mapping[str, frozenset[str]] = field(default_factory=dict)  #: resource → all held ids; no empty sets
    free: Mapping[str, DeviceSet] = field(default_factory=dict)  #: resource → the healthy devices without a holder

    @classmethod
    def of_devices(
        cls,
        devices: Iterable[Device],
        *,
        nodes: NodeSet,
        preferred_allocation: Collection[str] = (),
        hints_all_nodes: bool = False,
    ) -> "DeviceLedger":
        """Return the ledger of an idle machine; *preferred_allocation* are the resources whose plugin supports it."""
        by_resource: dict[str, list[Device]] = {}
        for device in devices:
            by_resource.setdefault(device.resource, []).append(device)
        ledger = cls(nodes=nodes, hints_all_nodes=hints_all_nodes)
        for resource, inventory_devices in by_resource.items():
            ledger = ledger.announce(resource, inventory_devices, preferred_allocation=resource in preferred_allocation)
        return ledger

    @cached_property
    def handled(self) -> set[str]:
        """The managed resources: resources with a plugin, or with a pod that still holds some of them."""
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
        return self.held.get(uid, {}).get(container, _NO_DEVICES)

    def owned(self, uid: str, resource: str) -> frozenset[str]:
        return frozenset().union(
            *(container_devices.get(resource, ()) for container_devices in self.held.get(uid, {}).values())
        )

    def held_by_others(self, uid: str) -> dict[str, list[str]]:
        """Return the devices that other pods hold, by resource."""
        devices: dict[str, list[str]] = {}
        for other, containers in self.held.items():
            for container_devices in containers.values() if other != uid else ():
                for resource, ids in container_devices.items():
                    devices.setdefault(resource, []).extend(ids)
        return devices

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
        inventory = DeviceInventory.of(
            devices,
            machine=self.nodes,
            hints_all_nodes=self.hints_all_nodes,
            preferred_allocation=preferred_allocation,
        )
        return self.with_inventory(resource, inventory)

    def stop(self, resource: str) -> Self:
        """Mark all devices as unhealthy, because the plugin is gone."""
        inventory = self.inventories[resource]
        ill = tuple(replace(device, healthy=False) for device in inventory.devices)
        stopped_inventory = replace(inventory, devices=ill, preferred_allocation=False)
        return self.with_inventory(resource, stopped_inventory)

    def give_up(self, resource: str) -> Self:
        """Manage the resource only as long as a pod holds some of it, because the plugin did not come back."""
        inventory = self.stop(resource).inventories[resource]
        return self.with_inventory(resource, replace(inventory, registered=False))

    def give(self, uid: str, container: str, *, devices: Mapping[str, Collection[str]]) -> Self:
        """Give *devices* to a container without any of their resources; ``StateError`` if another pod holds one."""
        if not any(devices.values()):
            return self
        earlier = self.holds(uid, container)
        container_devices = dict(earlier)
        in_use, free = dict(self.in_use), dict(self.free)
        for resource, ids in devices.items():
            if not ids:
                continue
            held_ids = in_use.get(resource, frozenset())
            foreign = held_ids.intersection(ids)
            if foreign and (foreign := foreign.difference(self.reusable_by(uid).get(resource, ()))):
                foreign -= self.owned(uid, resource)
            if foreign:
                raise StateError(f"{resource} {', '.join(sorted(foreign, key=natural_sort_key))}: held by another pod")
            if resource in earlier:
                raise StateError(f"{resource}: pod {uid} container {container} already holds some")
            in_use[resource] = held_ids.union(ids)
            if resource in free:
                free[resource] &= ~self.inventories[resource].find(ids)
            container_devices[resource] = tuple(sorted(ids, key=natural_sort_key) if len(ids) > 1 else ids)
        containers = with_item(self.held.get(uid, {}), container, container_devices)
        return type(self)(
            nodes=self.nodes,
            hints_all_nodes=self.hints_all_nodes,
            inventories=self.inventories,
            held=with_item(self.held, uid, containers),
            reusable=self.reusable,
            in_use=in_use,
            free=free,
        )

    def take_back(self, uid: str) -> Self:
        """Release all devices of a pod; it can reuse nothing any more."""
        reusable = None if self.reusable and self.reusable[0] == uid else self.reusable
        if uid not in self.held:
            return self if reusable is self.reusable else replace(self, reusable=None)
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
        return type(self)(
            nodes=self.nodes,
            hints_all_nodes=self.hints_all_nodes,
            inventories=self.inventories,
            held=without_item(self.held, uid),
            reusable=reusable,
            in_use=in_use,
            free=free,
        )

    def with_reusable(self, uid: str, devices: Mapping[str, frozenset[str]]) -> Self:
        """Let the next container of the pod reuse *devices*; other pods can reuse nothing any more."""
        reusable = (uid, devices) if devices else None
        return self if self.reusable == reusable else replace(self, reusable=reusable)

    def with_inventory(self, resource: str, inventory: DeviceInventory) -> Self:
        free = inventory.healthy & ~inventory.find(self.in_use.get(resource, ()))
        return replace(self, inventories={**self.inventories, resource: inventory}, free={**self.free, resource: free})
