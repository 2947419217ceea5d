"""Devices of device plugins in the books of a host: they are announced, fall silent, and are given up.

A host is changed here as ``Host.announce`` changes it: by another ledger in the place of the one it had.
"""

from collections.abc import Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace

from alignup.align.decision import Decision
from alignup.align.devices import DeviceLedger
from alignup.align.fit import InsufficientResource
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device
from alignup.align.workload import Pod, demand, names


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    """Devices that a plugin has to prepare for a container."""

    container: str
    resource: str
    ids: tuple[str, ...]


def set_devices(host: Host, resource: str, devices: Iterable[Device], *, preferred_allocation: bool = False) -> None:
    """A plugin says which devices there are, in place of all it said before, and whether it wants to be asked."""
    _write(host, host.ledger.devices.announce(resource, devices, preferred_allocation=preferred_allocation))


def mark_stopped(host: Host, resource: str) -> None:
    """The plugin is gone: none of its devices is healthy until it comes back."""
    if resource in host.ledger.devices.inventories:
        _write(host, host.ledger.devices.stop(resource))


def remove_resource(host: Host, resource: str) -> None:
    """The plugin did not come back in time."""
    if resource in host.ledger.devices.inventories:
        _write(host, host.ledger.devices.give_up(resource))


def without_resources(ledger: Ledger, resources: Collection[str]) -> Ledger:
    """An idle ledger that has never heard of *resources*."""
    idle = ledger.devices
    known = replace(
        idle,
        inventories={name: own for name, own in idle.inventories.items() if name not in resources},
        free={name: own for name, own in idle.free.items() if name not in resources},
    )
    return replace(ledger, devices=known)


def persistent_facts(host: Host, resource: str) -> tuple[object, ...]:
    """What has to survive of a resource: that it is served, and where the devices are that pods hold."""
    devices = host.ledger.devices
    inventory = devices.inventories.get(resource)
    if inventory is None:
        return (None,)
    held = (device for device in inventory.devices if device.id in devices.in_use.get(resource, ()))
    return inventory.registered, tuple((device.id, device.nodes) for device in held)


def device_requests(decision: Decision, pod: Pod, *, served: Collection[str]) -> tuple[RequestedDevices, ...]:
    """What plugins have to prepare for an admitted pod; *served* are the resources that have one."""
    if not served or decision.kept or decision.after is None:
        return ()
    given = decision.after.devices
    return tuple(
        RequestedDevices(container.name, resource, ids)
        for container in pod.all_containers
        for resource, ids in sorted(given.holds(pod.uid, container.name).items())
        if resource in served
    )


def unknown_resources(host: Host, pod: Pod) -> Iterator[InsufficientResource]:
    """What a pod asks for and nobody has announced; the kubelet would have it run without."""
    known = host.ledger.devices.handled
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name) and name not in known and amount.value() > 0:
            yield InsufficientResource(name, amount.value(), 0, 0)


def lacks_healthy_devices(host: Host, pod: Pod) -> bool:
    """Whether a pod waits for a plugin: it needs more devices than there are healthy ones, whoever holds them."""
    known = host.ledger.devices.inventories
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name):
            healthy = known[name].healthy.bit_count() if name in known and known[name].registered else 0
            if amount.value() > healthy:
                return True
    return False


def with_announced_devices(host: Host) -> Host:
    """The same host, whose machine has the devices that plugins have announced."""
    announced = tuple(
        device
        for _, inventory in sorted(host.ledger.devices.inventories.items())
        if inventory.registered
        for device in inventory.devices
    )
    if set(announced) == set(host.machine.devices):
        return host
    other = copy(host)
    other.machine = replace(host.machine, devices=announced)
    return other


def _write(host: Host, devices: DeviceLedger) -> None:
    host.ledger = replace(host.ledger, devices=devices)
