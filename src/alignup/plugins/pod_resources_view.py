"""What each pod holds, in the shape of PodResources, and the same read from a host's ledger."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.devices import DeviceLedger
from alignup.align.host import Host
from alignup.align.ledger import Ledger
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.workload import Container, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAllocation:
    """What one container holds exclusively."""

    name: str
    devices: tuple[Device, ...] = ()
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAllocation:
    """What one pod holds: its containers, and pod-level CPUs and memory."""

    name: str
    namespace: str
    containers: tuple[ContainerAllocation, ...]
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatableResources:
    """What pods can be given, whether it is free or not."""

    devices: tuple[Device, ...] = ()  #: healthy ones
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


class PodResourcesSource(Protocol):
    """What the PodResources endpoint serves."""

    def pods(self) -> Iterable[PodAllocation]: ...

    def pod(self, namespace: str, name: str) -> PodAllocation | None: ...

    def allocatable(self) -> AllocatableResources: ...


class HostPodResources:
    """The admitted pods of a host, read anew for each request."""

    def __init__(self, host: Callable[[], Host]) -> None:
        self._host = host

    def pods(self) -> Iterator[PodAllocation]:
        host = self._host()
        return (_pod(host, admitted.pod) for admitted in host.ledger.pods.values())

    def pod(self, namespace: str, name: str) -> PodAllocation | None:
        host = self._host()
        for admitted in host.ledger.pods.values():
            if (admitted.pod.namespace, admitted.pod.name) == (namespace, name):
                return _pod(host, admitted.pod)
        return None

    def allocatable(self) -> AllocatableResources:
        """Return healthy devices, and the CPUs and memory that are managed and not reserved."""
        host = self._host()
        ledger = host.ledger
        managed = host.settings.cpus.policy == CpuPolicy.STATIC
        return AllocatableResources(
            devices=tuple(
                device
                for _, inventory in sorted(ledger.devices.inventories.items())
                for device in inventory.devices
                if device.healthy
            ),
            cpus=host.view.all_cpus & ~ledger.cpus.reserved if managed else 0,
            memory=ledger.memory.allocatable(),
        )


def _pod(host: Host, pod: Pod) -> PodAllocation:
    """Return what the long-running containers hold: sidecars, then the regular ones."""
    ledger = host.ledger
    running = (*(one for one in pod.init if one.restartable), *pod.containers)
    return PodAllocation(
        name=pod.name,
        namespace=pod.namespace,
        containers=tuple(_container(ledger, pod, one) for one in running),
        cpus=ledger.cpus.pod_held.get(pod.uid, 0),
        memory=ledger.memory.pod_held.get(pod.uid, ()),
    )


def _container(ledger: Ledger, pod: Pod, container: Container) -> ContainerAllocation:
    return ContainerAllocation(
        name=container.name,
        devices=tuple(_devices(ledger.devices, pod.uid, container.name)),
        cpus=ledger.cpus.holds(pod.uid, container.name) or 0,
        memory=ledger.memory.blocks(pod.uid, container.name) or (),
    )


def _devices(ledger: DeviceLedger, uid: str, container: str) -> Iterator[Device]:
    """Yield the devices of a container; one that its plugin no longer lists has no topology."""
    for resource, ids in ledger.holds(uid, container).items():
        inventory = ledger.inventories.get(resource)
        for id_ in ids:
            place = inventory.places.get(id_) if inventory else None
            if inventory is None or place is None:
                yield Device(resource, id_, None, healthy=False)
            else:
                yield inventory.devices[place]
