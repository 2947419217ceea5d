"""``kubelet_internal_checkpoint``: which container holds which devices, and which were healthy, in the kubelet's file.

A kubelet that cannot read it goes on without, and forgets who holds what; here it is a ``StateError`` that says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignup.align.bits import quote
from alignup.align.errors import StateError
from alignup.state.kubelet.checkpoint import CORRUPT
from alignup.state.kubelet.checksum import fnv1a
from alignup.state.kubelet.go_types import GoBytes, GoField, GoInteger, GoMap, GoSlice, GoString, GoStruct, decode

NAME = "kubelet_internal_checkpoint"
NO_NODE = -1  #: the key of devices without topology

_TEXT = GoString()
_IDS = GoSlice("[]string", _TEXT)
_ENTRY = GoStruct(
    "checkpoint.PodDevicesEntry",
    (
        GoField("PodUID", "PodUID", _TEXT),
        GoField("ContainerName", "ContainerName", _TEXT),
        GoField("ResourceName", "ResourceName", _TEXT),
        GoField("DeviceIDs", "DeviceIDs", GoMap("checkpoint.DevicesPerNUMA", GoInteger("int64", signed=True), _IDS)),
        GoField("AllocResp", "AllocResp", GoBytes()),
    ),
)
_DATA = GoStruct(
    "checkpoint.checkpointData",
    (
        GoField("PodDeviceEntries", "PodDeviceEntries", GoSlice("[]checkpoint.PodDevicesEntry", _ENTRY)),
        GoField("RegisteredDevices", "RegisteredDevices", GoMap("map[string][]string", _TEXT, _IDS)),
    ),
)
_FILE = GoStruct(
    "checkpoint.Data",
    (GoField("Data", "Data", _DATA), GoField("Checksum", "Checksum", GoInteger("checksum.Checksum"))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """The devices of one resource that one container holds."""

    uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]  #: NUMA node → ids; a device on two nodes stands under both
    response: bytes = b""  #: what the plugin said to give the container with them, in protobuf

    @property
    def nodes(self) -> dict[str, frozenset[int]]:
        """Each id → its NUMA nodes, none for a device without topology."""
        found: dict[str, frozenset[int]] = {}
        for node, ids in self.devices.items():
            for id_ in ids:
                found[id_] = found.get(id_, frozenset()) | ({node} - {NO_NODE})
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What a ``kubelet_internal_checkpoint`` says."""

    entries: tuple[DeviceEntry, ...] = ()
    #: resource → the ids that were healthy; ``None`` where the file has null in place of a list
    registered: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)


def parse(text: bytes, *, path: str) -> DeviceState:
    """What the file at *path* says; a ``StateError`` where a kubelet would go on without it."""
    contents, error = decode(_FILE, text)
    if error is None and contents["Checksum"] != fnv1a(_text(contents["Data"])):
        error = CORRUPT
    if error is not None:
        raise StateError(
            f"could not read the device manager checkpoint file {quote(path)}: {error}; "
            "a kubelet goes on without it and forgets which container holds which devices"
        )
    data = contents["Data"]
    return DeviceState(
        entries=tuple(map(_entry, data["PodDeviceEntries"] or ())),
        registered=data["RegisteredDevices"] or {},
    )


def dump(state: DeviceState) -> bytes:
    """The file that says *state*, byte for byte as the kubelet writes it."""
    data = _contents(state)
    return _FILE.write({"Data": data, "Checksum": fnv1a(_text(data))}).encode()


def checksum_text(state: DeviceState) -> str:
    """What the checksum of the file that says *state* is taken of."""
    return _text(_contents(state))


def _text(data: dict[str, Any]) -> str:
    return f"({_DATA.name}){_DATA.show(data)}"


def _contents(state: DeviceState) -> dict[str, Any]:
    """As a kubelet has it: without entries there is nil, not an empty list."""
    entries: tuple[dict[str, Any], ...] = tuple(
        {
            "PodUID": one.uid,
            "ContainerName": one.container,
            "ResourceName": one.resource,
            "DeviceIDs": one.devices,
            "AllocResp": one.response,
        }
        for one in state.entries
    )
    return {
        "PodDeviceEntries": entries or None,
        "RegisteredDevices": state.registered,
    }


def _entry(entry: dict[str, Any]) -> DeviceEntry:
    return DeviceEntry(
        uid=entry["PodUID"],
        container=entry["ContainerName"],
        resource=entry["ResourceName"],
        devices={node: ids or () for node, ids in (entry["DeviceIDs"] or {}).items()},
        response=entry["AllocResp"] or b"",
    )
