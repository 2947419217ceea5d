"""``kubelet_internal_checkpoint``: the devices of each container, and the healthy devices.

A kubelet that cannot read the file continues without it and forgets all holdings; here that is a ``StateError``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import StateError
from alignup.kubernetes.kubelet_files.checkpoint import CORRUPT, fnv1a
from alignup.kubernetes.kubelet_files.go_types import GoBytes, GoInteger, GoMap, GoSlice, GoString, GoStruct, decode

NAME = "kubelet_internal_checkpoint"
NO_NODE = -1  #: the key of devices without topology

_TEXT = GoString()
_IDS = GoSlice("[]string", _TEXT)
_ENTRY = GoStruct.of(
    "checkpoint.PodDevicesEntry",
    PodUID=_TEXT,
    ContainerName=_TEXT,
    ResourceName=_TEXT,
    DeviceIDs=GoMap("checkpoint.DevicesPerNUMA", GoInteger("int64", signed=True), _IDS),
    AllocResp=GoBytes(),
)
_DATA = GoStruct.of(
    "checkpoint.checkpointData",
    PodDeviceEntries=GoSlice("[]checkpoint.PodDevicesEntry", _ENTRY),
    RegisteredDevices=GoMap("map[string][]string", _TEXT, _IDS),
)
_FILE = GoStruct.of("checkpoint.Data", Data=_DATA, Checksum=GoInteger("checksum.Checksum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """The devices of one resource that one container holds."""

    uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]  #: NUMA node → ids; a device on two nodes is listed under both
    response: bytes = b""  #: the plugin's ``ContainerAllocateResponse``

    @property
    def nodes(self) -> dict[str, frozenset[int]]:
        """Each id → its NUMA nodes; empty for a device without topology."""
        found: dict[str, frozenset[int]] = {}
        for node, ids in self.devices.items():
            for id_ in ids:
                found[id_] = found.get(id_, frozenset()) | ({node} - {NO_NODE})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    entries: tuple[DeviceEntry, ...] = ()
    #: resource → ids of healthy devices; ``None`` if the file has null instead of a list
    registered: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)


def parse(text: bytes, *, path: str) -> DeviceState:
    """Decode the file at *path*; ``StateError`` if a kubelet would continue without it."""
    file, error = decode(_FILE, text)
    data = file["Data"]
    if error is None and file["Checksum"] != fnv1a(checksum_text(data)):
        error = CORRUPT
    if error is not None:
        raise StateError(
            f"could not read the device manager checkpoint file {quote(path)}: {error}; "
            "a kubelet continues without it and forgets which container holds which devices"
        )
    entries = tuple(
        DeviceEntry(
            uid=entry["PodUID"],
            container=entry["ContainerName"],
            resource=entry["ResourceName"],
            devices={node: ids or () for node, ids in (entry["DeviceIDs"] or {}).items()},
            response=entry["AllocResp"] or b"",
        )
        for entry in data["PodDeviceEntries"] or ()
    )
    return DeviceState(entries=entries, registered=data["RegisteredDevices"] or {})


def dump(state: DeviceState) -> bytes:
    data = contents(state)
    return _FILE.write({"Data": data, "Checksum": fnv1a(checksum_text(data))}).encode()


def checksum_text(data: dict[str, Any]) -> str:
    return f"({_DATA.name}){_DATA.dump(data)}"


def contents(state: DeviceState) -> dict[str, Any]:
    """Return the contents as a kubelet has them: no entries are nil, not an empty list."""
    keys = [one.key for one in _ENTRY.fields]
    entries = tuple(
        dict(zip(keys, (one.uid, one.container, one.resource, one.devices, one.response), strict=True))
        for one in state.entries
    )
    return {"PodDeviceEntries": entries or None, "RegisteredDevices": state.registered}
