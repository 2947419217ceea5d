"""The ledger of claims: the devices in the ResourceSlices of one host, and which pods hold them.

No decision depends on it, since claims give no hints.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from alignup.align import bits
from alignup.align.claims.resource_claims import DeviceId, SliceDevice

MODEL = "model"  #: the only attribute of a device in the ledger, apart from its PCI address


@dataclass(frozen=True)
class ClaimLedger:
    devices: tuple[SliceDevice, ...] = ()  #: in slices of the host, with their NUMA nodes
    #: pod uid → container → namespace/name of a claim → its devices, which need not be in a slice of the host
    held: Mapping[str, Mapping[str, Mapping[str, tuple[DeviceId, ...]]]] = field(default_factory=dict)

    def claims_of(self, uid: str) -> dict[str, tuple[DeviceId, ...]]:
        """Return the claims of a pod with their devices; containers can use one claim together."""
        devices: dict[str, dict[DeviceId, None]] = {}
        for claims in self.held.get(uid, {}).values():
            for claim, ids in claims.items():
                devices.setdefault(claim, {}).update(dict.fromkeys(ids))
        return {claim: tuple(ids) for claim, ids in devices.items()}

    @cached_property
    def groups(self) -> Mapping[str, tuple[SliceDevice, ...]]:
        """All devices, held ones of unknown slices too, by driver and model, and by pool if a driver has several.

        The names are unlike those of extended resources: ``gpu.example.com (DRA, H100)``.
        """
        devices_by_id = {device.id: device for device in self.devices}
        for uid in self.held:
            for ids in self.claims_of(uid).values():
                for id_ in ids:
                    devices_by_id.setdefault(id_, SliceDevice(id_))
        pools: dict[str, set[str]] = {}
        for id_ in devices_by_id:
            pools.setdefault(id_.driver, set()).add(id_.pool)
        groups: dict[str, list[SliceDevice]] = {}
        for id_, device in devices_by_id.items():
            pool = f"pool {id_.pool}" if len(pools[id_.driver]) > 1 else ""
            details = ", ".join(filter(None, ("DRA", str(device.attributes.get(MODEL, "")), pool)))
            groups.setdefault(f"{id_.driver} ({details})", []).append(device)
        return {name: tuple(devices) for name, devices in sorted(groups.items())}

    def count_by_node(self, pods: Container[str]) -> dict[int, dict[str, tuple[int, int]]]:
        """Return for each NUMA node and group how many devices there are, and how many that none of *pods* holds."""
        in_use = {id_ for uid in self.held if uid in pods for ids in self.claims_of(uid).values() for id_ in ids}
        counts: dict[int, dict[str, tuple[int, int]]] = {}
        for name, devices in self.groups.items():
            for device in devices:
                for node in bits.members(device.nodes or 0):
                    count, free = counts.setdefault(node, {}).get(name, (0, 0))
                    counts[node][name] = count + 1, free + (device.id not in in_use)
        return counts
