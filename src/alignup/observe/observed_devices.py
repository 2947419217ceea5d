"""The devices of a host: their topology and health from PodResources, and who holds them from the state file.

PodResources lists the healthy devices. The file has those that were healthy when it was written, maybe before the
kubelet was restarted. A device that only the file has cannot be allocated before its plugin registers again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from alignup.align import bits
from alignup.align.machine import Device
from alignup.kubernetes.kubelet_files.state_files import DeviceState
from alignup.observe.kubelet_sources import Sources

_Found = dict[tuple[str, str], Device]  #: by resource and id


@dataclass(frozen=True, slots=True)
class JoinedDevices:
    devices: tuple[Device, ...]
    state: DeviceState | None  #: with the devices that are healthy now
    notes: tuple[str, ...] = ()  #: where the sources disagree


def join_devices(sources: Sources) -> JoinedDevices:
    state, allocatable = sources.files.devices, sources.allocatable
    found: _Found = {
        (device.resource, device.id): replace(device, healthy=allocatable is None)
        for pod in sources.listed or ()
        for container in pod.containers.values()
        for device in container.devices
    }
    healthy: _Found = {(one.resource, one.id): one for one in (allocatable.devices if allocatable else ())}
    if state is None or allocatable is None:
        return JoinedDevices(tuple({**found, **healthy}.values()), state)
    for device in _held_devices(state):  # of containers that PodResources does not list, such as init containers
        found.setdefault((device.resource, device.id), device)
    ready: dict[str, list[str]] = {resource: [] for resource in state.registered}
    for resource, id_ in healthy:
        ready.setdefault(resource, []).append(id_)
    missing = {resource: sorted({*(ids or ())} - {*ready[resource]}) for resource, ids in state.registered.items()}
    for resource, ids in missing.items():
        for id_ in ids:
            found.setdefault((resource, id_), Device(resource, id_, None, healthy=False))
    registered = {resource: tuple(ids) for resource, ids in ready.items()}
    notes = tuple(_missing_device_note(resource, ids, ready[resource]) for resource, ids in missing.items() if ids)
    return JoinedDevices(tuple({**found, **healthy}.values()), replace(state, registered=registered), notes)


def _held_devices(state: DeviceState) -> Iterator[Device]:
    for entry in state.entries:
        for id_, nodes in entry.nodes.items():
            known = bits.of(node for node in nodes if 0 <= node < bits.MAX_MEMBER) or None
            yield Device(entry.resource, id_, known, healthy=False)


def _missing_device_note(resource: str, missing: list[str], ready: list[str]) -> str:
    if not ready:
        return f"the device plugin of {resource} has stopped, or has not registered with this kubelet yet"
    return f"devices {', '.join(missing)} of {resource} are registered, but PodResources does not list them"
