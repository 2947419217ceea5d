"""Who has what, in the terms PodResources tells it in; and the same read from a host's ledger."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from alignup.align.bits import CpuSet
from alignup.align.cpus.options import CpuPolicy
from alignup.align.devices import DeviceLedger
from alignup.align.host import Host
from alignup.align.machine import Device
from alignup.align.memory.ledger import Block
from alignup.align.providers import CpuHintProvider as CpuProvider
from alignup.align.providers import DeviceProvider, MemoryProvider
from alignup.align.workload import Container, Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAllocation:
    """What one container has to itself."""

    name: str
    devices: tuple[Device, ...] = ()
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAllocation:
    """What one pod has: its containers, and itself where it was given something in one piece."""

    name: str
    namespace: str
    containers: tuple[ContainerAllocation, ...]
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatableResources:
    """What could be given out in all, whether somebody has it or not."""

    devices: tuple[Device, ...] = ()  #: healthy ones
    cpus: CpuSet = 0
    memory: tuple[Block, ...] = ()


class PodResourcesSource(Protocol):
    """Whoever knows who has what."""

    def pods(self) -> Iterable[PodAllocation]:
        """The pods that are here."""
        ...

    def pod(self, namespace: str, name: str) -> PodAllocation | None:
        """One of them; ``None`` when there is none of that name."""
        ...

    def allocatable(self) -> AllocatableResources:
        """What could be given out."""
        ...


class HostPodResources:
    """The ledger of a host, as it is when somebody asks."""

    def __init__(self, host: Callable[[], Host]) -> None:
        self._host = host

    def pods(self) -> Iterator[PodAllocation]:
        """Every pod that was admitted."""
        host = self._host()
        return (_pod(host, resident.pod) for resident in host.ledger.pods.values())

    def pod(self, namespace: str, name: str) -> PodAllocation | None:
        """The pod of that name that was admitted."""
        host = self._host()
        for resident in host.ledger.pods.values():
            if (resident.pod.namespace, resident.pod.name) == (namespace, name):
                return _pod(host, resident.pod)
        return None

    def allocatable(self) -> AllocatableResources:
        """Healthy devices; the CPUs and the memory that are not reserved, if they are managed."""
        host = self._host()
        books = host.ledger.books
        managed = host.settings.cpus.policy == CpuPolicy.STATIC
        return AllocatableResources(
            devices=tuple(
                device
                for _, inventory in sorted(books[DeviceProvider.name].inventories.items())
                for device in inventory.devices
                if device.healthy
            ),
            cpus=host.view.all_cpus & ~books[CpuProvider.name].reserved if managed else 0,
            memory=books[MemoryProvider.name].allocatable(),
        )


def _pod(host: Host, pod: Pod) -> PodAllocation:
    """The containers that run as long as the pod does: sidecars, then the pod's own."""
    books = host.ledger.books
    lasting = (*(one for one in pod.init if one.restartable), *pod.containers)
    return PodAllocation(
        name=pod.name,
        namespace=pod.namespace,
        containers=tuple(_container(books, pod, one) for one in lasting),
        cpus=books[CpuProvider.name].pod_held.get(pod.uid, 0),
        memory=books[MemoryProvider.name].pod_held.get(pod.uid, ()),
    )


def _container(books: Mapping[str, Any], pod: Pod, container: Container) -> ContainerAllocation:
    return ContainerAllocation(
        name=container.name,
        devices=tuple(_held(books[DeviceProvider.name], pod.uid, container.name)),
        cpus=books[CpuProvider.name].holds(pod.uid, container.name) or 0,
        memory=books[MemoryProvider.name].blocks(pod.uid, container.name) or (),
    )


def _held(book: DeviceLedger, uid: str, container: str) -> Iterator[Device]:
    """The devices of a container, also those that are not listed any more, of which nobody knows where they are."""
    for resource, ids in book.holds(uid, container).items():
        inventory = book.inventories.get(resource)
        for id_ in ids:
            place = inventory.places.get(id_) if inventory else None
            if inventory is None or place is None:
                yield Device(resource, id_, None, healthy=False)
            else:
                yield inventory.devices[place]
