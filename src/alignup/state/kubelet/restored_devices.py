"""Which devices a machine has, from what is known of it and what a kubelet's state file says.

The file has the ids of all healthy devices, but where a device is only while somebody holds it. What is known of the
machine, or declared, fills that in: by id, or, where its ids are made up, by taking a declared device on the same NUMA
nodes for one the file has.
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
    present: bool  #: whether the file or the machine has it; if not, only what is held is left of it
    gaps: tuple[str, ...]  #: what is not certain, one sentence each


def restore_devices(known: Iterable[Device], state: DeviceState) -> Iterator[RestoredDevices]:
    """The devices of every resource that is *known* or in *state*, by its name."""
    declared: dict[str, dict[str, Device]] = {}
    for device in known:
        declared.setdefault(device.resource, {})[device.id] = device
    places = _places(state)
    for resource in sorted({*declared, *places, *state.registered}):
        healthy = None
        if resource in state.registered:
            healthy = frozenset(state.registered[resource] or ())
        yield _match(resource, declared.get(resource, {}), places=places.get(resource, {}), healthy=healthy)


def _places(state: DeviceState) -> dict[str, dict[str, NodeSet]]:
    """Resource → id → the nodes of each device that is held."""
    places: dict[str, dict[str, NodeSet]] = {}
    for entry in state.entries:
        own = places.setdefault(entry.resource, {})
        for id_, nodes in entry.nodes.items():
            own[id_] = bits.of(node for node in nodes if 0 <= node < bits.MAX_MEMBER)
    return places


def _match(
    resource: str, declared: Mapping[str, Device], *, places: Mapping[str, NodeSet], healthy: Collection[str] | None
) -> RestoredDevices:
    """One resource: *places* are the nodes of what is held; *healthy* is ``None`` when the file does not list it."""
    listed = [*sorted(places, key=natural_sort_key), *sorted({*(healthy or ())} - places.keys(), key=natural_sort_key)]
    spare = {id_: declared[id_] for id_ in sorted(declared.keys() - {*listed}, key=natural_sort_key)}
    devices, moved, added = {}, [], []
    for id_ in listed:
        found = declared.get(id_) or _taken(spare, places.get(id_))
        if found is None:
            added.append(id_)
            found = Device(resource, id_, places.get(id_) or None, healthy=False)
        elif id_ in places and places[id_] != (found.nodes or 0):
            moved.append(id_)
        devices[id_] = replace(found, id=id_, healthy=found.healthy if healthy is None else id_ in healthy)
    ill = [id_ for id_, device in spare.items() if device.healthy and healthy is not None]
    for id_, device in spare.items():
        devices[id_] = replace(device, healthy=device.healthy and healthy is None)
    gaps = _gaps(
        resource,
        moved=moved,
        crowded=[id_ for id_ in added if id_ in places and declared],
        unplaced=len([id_ for id_ in added if id_ not in places]),
        ill=ill,
    )
    return RestoredDevices(resource, devices, present=healthy is not None or bool(declared), gaps=tuple(gaps))


def _taken(spare: dict[str, Device], nodes: NodeSet | None) -> Device | None:
    """A declared device taken for one the file has: on the same nodes, or any when its *nodes* are not known."""
    for id_, device in spare.items():
        if nodes is None or (device.nodes or 0) == nodes:
            return spare.pop(id_)
    return None


def _gaps(
    resource: str, *, moved: Collection[str], crowded: Collection[str], unplaced: int, ill: Collection[str]
) -> Iterator[str]:
    if moved:
        yield f"{_they_are(moved, resource)} on other NUMA nodes in the state files than declared; taken as declared"
    if crowded:
        yield (
            f"{_they_are(crowded, resource)} in the state files, but there are not as many declared on the same NUMA "
            "nodes; added there"
        )
    if unplaced:
        those = "a free device" if unplaced == 1 else f"{unplaced} free devices"
        yield f"the topology of {those} of {resource} is not in the state files; give --devices {resource}=..."
    if ill:
        yield (
            f"{_they_are(ill, resource)} declared, but not among the healthy ones in the state files; "
            "taken as not healthy"
        )


def _they_are(ids: Collection[str], resource: str) -> str:
    return f"device{'s' if len(ids) > 1 else ''} {', '.join(ids)} of {resource} {'are' if len(ids) > 1 else 'is'}"
