"""The devices of a machine, from what is known about it and a kubelet's state file.

The file has the ids of all healthy devices, but the NUMA nodes only of devices that a container holds. Devices that are
known from the machine or declared provide the missing nodes: by id, or, if their ids are made up, by matching a device
of the file with a declared device on the same nodes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.devices import natural_sort_key
from alignup.align.machine import Device
from alignup.state.kubelet.device_file import DeviceState


@dataclass(frozen=True, slots=True)
class RestoredDevices:
    """The devices of one resource."""

    resource: str
    devices: Mapping[str, Device]  #: by id
    present: bool  #: whether the file or the machine lists the resource; if not, only held devices are known
    gaps: tuple[str, ...]  #: what is uncertain, one sentence each


def restore_devices(known: Iterable[Device], state: DeviceState) -> Iterator[RestoredDevices]:
    """Yield the devices of each resource that is *known* or in *state*, sorted by resource."""
    declared: dict[str, dict[str, Device]] = {}
    for device in known:
        declared.setdefault(device.resource, {})[device.id] = device
    held: dict[str, dict[str, NodeSet]] = {}
    for entry in state.entries:
        own = held.setdefault(entry.resource, {})
        for id_, nodes in entry.nodes.items():
            own[id_] = bits.of(node for node in nodes if 0 <= node < bits.MAX_MEMBER)
    for resource in sorted({*declared, *held, *state.registered}):
        healthy = frozenset(state.registered[resource] or ()) if resource in state.registered else None
        yield _match(resource, declared.get(resource, {}), held=held.get(resource, {}), healthy=healthy)


def _match(
    resource: str, declared: Mapping[str, Device], *, held: Mapping[str, NodeSet], healthy: Collection[str] | None
) -> RestoredDevices:
    """Match the devices of one resource; *healthy* is ``None`` if the file does not list the resource."""
    listed = [*sorted(held, key=natural_sort_key), *sorted({*(healthy or ())} - held.keys(), key=natural_sort_key)]
    spare = {id_: declared[id_] for id_ in sorted(declared.keys() - {*listed}, key=natural_sort_key)}
    devices, moved, added = {}, [], []
    for id_ in listed:
        found = declared.get(id_) or _take_spare(spare, held.get(id_))
        if found is None:
            added.append(id_)
            found = Device(resource, id_, held.get(id_) or None, healthy=False)
        elif id_ in held and held[id_] != (found.nodes or 0):
            moved.append(id_)
        devices[id_] = replace(found, id=id_, healthy=found.healthy if healthy is None else id_ in healthy)
    unhealthy = [id_ for id_, device in spare.items() if device.healthy and healthy is not None]
    for id_, device in spare.items():
        devices[id_] = replace(device, healthy=device.healthy and healthy is None)
    gaps = _gaps(
        resource,
        moved=moved,
        undeclared=[id_ for id_ in added if id_ in held and declared],
        unplaced=len([id_ for id_ in added if id_ not in held]),
        unhealthy=unhealthy,
    )
    return RestoredDevices(resource, devices, present=healthy is not None or bool(declared), gaps=tuple(gaps))


def _take_spare(spare: dict[str, Device], nodes: NodeSet | None) -> Device | None:
    """Remove and return a declared device on the same *nodes*, or any if they are unknown."""
    for id_, device in spare.items():
        if nodes is None or (device.nodes or 0) == nodes:
            return spare.pop(id_)
    return None


def _gaps(
    resource: str, *, moved: Collection[str], undeclared: Collection[str], unplaced: int, unhealthy: Collection[str]
) -> Iterator[str]:
    if moved:
        yield f"{_are(moved, resource)} declared on other NUMA nodes than in the state files; using the declared nodes"
    if undeclared:
        yield (
            f"{_are(undeclared, resource)} in the state files, but too few are declared on the same NUMA nodes; "
            "added there"
        )
    if unplaced:
        devices = "a free device" if unplaced == 1 else f"{unplaced} free devices"
        yield f"the state files do not contain the topology of {devices} of {resource}; give --devices {resource}=..."
    if unhealthy:
        yield f"{_are(unhealthy, resource)} declared but not healthy in the state files; treated as unhealthy"


def _are(ids: Collection[str], resource: str) -> str:
    return f"device{'s' if len(ids) > 1 else ''} {', '.join(ids)} of {resource} {'are' if len(ids) > 1 else 'is'}"
