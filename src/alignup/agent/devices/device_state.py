"""The devices of device plugins in a host's ledger."""

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass, replace

from alignup.align.decision import Decision
from alignup.align.fit import InsufficientResource
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.workload import Pod, demand, names


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    container: str
    resource: str
    ids: tuple[str, ...]


def without_resources(ledger: Ledger, resources: Collection[str]) -> Ledger:
    idle = ledger.devices
    known = replace(
        idle,
        inventories={name: own for name, own in idle.inventories.items() if name not in resources},
        free={name: own for name, own in idle.free.items() if name not in resources},
    )
    return replace(ledger, devices=known)


def persistent_facts(host: Host, resource: str) -> tuple[object, ...]:
    """Return what must survive a crash: whether a plugin serves the resource, and where the held devices are."""
    devices = host.ledger.devices
    inventory = devices.inventories.get(resource)
    if inventory is None:
        return (None,)
    held = (device for device in inventory.devices if device.id in devices.in_use.get(resource, ()))
    return inventory.registered, tuple((device.id, device.nodes) for device in held)


def device_requests(decision: Decision, pod: Pod, *, served: Collection[str]) -> tuple[RequestedDevices, ...]:
    """Return what plugins must allocate for an admitted pod; *served*: the resources of all plugins."""
    if not served or decision.kept or decision.after is None:
        return ()
    ledger = decision.after.devices
    return tuple(
        RequestedDevices(container.name, resource, ids)
        for container in pod.all_containers
        for resource, ids in sorted(ledger.holds(pod.uid, container.name).items())
        if resource in served
    )


def unknown_resources(host: Host, pod: Pod) -> Iterator[InsufficientResource]:
    """Yield requested resources that no plugin has registered; the kubelet would ignore them."""
    known = host.ledger.devices.handled
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name) and name not in known and amount.value() > 0:
            yield InsufficientResource(name, amount.value(), 0, 0)


def lacks_healthy_devices(host: Host, pod: Pod) -> bool:
    """Whether a pod waits for a plugin: it requests more devices than are healthy, free or not."""
    known = host.ledger.devices.inventories
    for name, amount in demand.limits(pod, overhead=False).items():
        if names.is_extended(name):
            healthy = known[name].healthy.bit_count() if name in known and known[name].registered else 0
            if amount.value() > healthy:
                return True
    return False


def with_announced_devices(host: Host) -> Host:
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
