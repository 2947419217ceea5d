"""Device counts by resource, as the kubelet reports them in a node's status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Capacity:
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]  #: healthy devices
    deleted: tuple[str, ...]  #: resources that this call removed


def capacity_of(owner: Any) -> Capacity:
    """Return current device counts of a manager or an endpoint store; removes resources whose grace period is over."""
    store = getattr(owner, "_store", owner)
    deleted = store.expire()
    entries = dict(sorted(store._entries.items()))  # noqa: SLF001 - the agent has no use for these counts
    listed = {
        name: entry.devices or () for name, entry in entries.items() if entry.expected or entry.devices is not None
    }
    return Capacity(
        capacity={name: len(devices) for name, devices in listed.items()},
        allocatable={name: sum(device.healthy for device in devices) for name, devices in listed.items()},
        deleted=deleted,
    )
