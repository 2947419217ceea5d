"""Devices that were chosen before a pod is decided on, which CPUs and memory are to follow.

A kubelet chooses devices of plugins, and a scheduler those of claims, before a container runtime is asked to run a pod.
So they are fixed: the only hints are sets of NUMA nodes that touch all of them, and nothing is left to allocate.

    host = Host(machine, settings, others=[FixedDeviceProvider(nodes)])
    host.ledger = with_fixed_devices(host.ledger, pod.uid, {"app": {"example.com/gpu": (device,)}})
    decision = host.decide(pod)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from alignup.align.bits import NodeSet
from alignup.align.devices.demanded_locality import check_demand, locality_demands
from alignup.align.devices.hints import DeviceInventory, device_family
from alignup.align.errors import StateError
from alignup.align.hint import AnyHints, Hint, Provider
from alignup.align.layered_map import with_item, without_item
from alignup.align.ledger import Ledger
from alignup.align.locality import Locality
from alignup.align.machine import Device
from alignup.align.workload import Container, Pod

ContainerDevices = Mapping[str, tuple[Device, ...]]  #: by resource, or by claim
PodDevices = Mapping[str, ContainerDevices]  #: by container
FixedDevices = Mapping[str, PodDevices]  #: by pod uid
CLAIM = "claim "  #: before namespace and name of a ResourceClaim, in place of a resource


def with_fixed_devices(ledger: Ledger, uid: str, devices: PodDevices) -> Ledger:
    """Return *ledger* with the devices that a pod has; its host needs a :class:`FixedDeviceProvider`."""
    name = FixedDeviceProvider.name
    return replace(ledger, others={**ledger.others, name: with_item(ledger.others[name], uid, devices)})


def unmet_demand(
    devices: FixedDevices, pod: Pod, locality: Locality, addresses: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return which demand of *pod* on the locality of its devices is not satisfied, and why; empty: none.

    *addresses* are PCI addresses of devices of claims, by id.
    """
    if not (demands := locality_demands(pod)):
        return ""

    claims = {f"{CLAIM}{pod.namespace}/{claim.claim}": claim.name for claim in pod.claims}

    def ids_of(uid: str, container: str) -> dict[str, list[str]]:
        ids_by_resource = devices.get(uid, {}).get(container, {})
        return {
            claims.get(name, name): [addresses.get(device.id, device.id) for device in of_name]
            for name, of_name in ids_by_resource.items()
        }

    others: dict[str, list[str]] = {}
    for uid, containers in devices.items():
        for container in containers if uid != pod.uid else ():
            for name, ids in ids_of(uid, container).items():
                others.setdefault(name, []).extend(ids)
    for demand in demands:
        for container in devices.get(pod.uid, {}):
            answer = check_demand(demand, locality, ids_of(pod.uid, container), others)
            if not answer.satisfied:
                return f"container {container}: the devices do not satisfy {demand}: {answer.reason}"
    return ""


@dataclass(frozen=True)
class FixedDeviceProvider(Provider[FixedDevices]):
    nodes: NodeSet  #: the NUMA nodes of the machine

    name = "fixed-device"

    def initial_ledger(self) -> FixedDevices:
        return {}

    def hints(self, ledger: FixedDevices, pod: Pod, container: Container | None) -> Mapping[str, AnyHints] | None:
        """Return hints by resource; devices near no NUMA node of the machine restrict nothing."""
        devices = ledger.get(pod.uid, {})
        names = devices if container is None else (container.name,)
        by_resource: dict[str, list[Device]] = {}
        for name in names:
            for resource, ids in devices.get(name, {}).items():
                near = [device for device in ids if (device.nodes or 0) & self.nodes]
                by_resource.setdefault(resource, []).extend(near)
        return {resource: self._family(resource, ids) for resource, ids in by_resource.items() if ids} or None

    def _family(self, resource: str, devices: list[Device]) -> AnyHints:
        inventory = DeviceInventory.of(devices, machine=self.nodes)  # a device that two containers use counts once
        return device_family(inventory, inventory.healthy, resource=resource, need=len(inventory.devices)) or ()

    def allocate(self, ledger: FixedDevices, pod: Pod, container: Container | None, *, affinity: Hint) -> FixedDevices:
        del pod, container, affinity
        return ledger

    def release(self, ledger: FixedDevices, uid: str) -> FixedDevices:
        return without_item(ledger, uid) if uid in ledger else ledger

    def describe(self, ledger: FixedDevices, uid: str, container: str) -> Mapping[str, str]:
        ids_by_resource = ledger.get(uid, {}).get(container, {})
        return {resource: ",".join(device.id for device in devices) for resource, devices in ids_by_resource.items()}

    def to_json(self, ledger: FixedDevices) -> object:
        return {
            uid: {
                container: {
                    resource: [[device.id, device.nodes] for device in devices]
                    for resource, devices in ids_by_resource.items()
                }
                for container, ids_by_resource in containers.items()
            }
            for uid, containers in ledger.items()
        }

    def from_json(self, document: object) -> FixedDevices:
        try:
            return {
                uid: {
                    container: {
                        resource: tuple(Device(resource, str(id_), nodes) for id_, nodes in devices)
                        for resource, devices in ids_by_resource.items()
                    }
                    for container, ids_by_resource in containers.items()
                }
                for uid, containers in document.items()  # type: ignore[attr-defined] # else an error that is caught
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise StateError(f"the stored devices of pods are invalid: {error}") from error
