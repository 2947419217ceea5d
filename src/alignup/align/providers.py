"""CPUs, memory and devices as providers: their own rules behind the one face that admission knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from alignup.align import bits
from alignup.align.bits import NodeSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.cpus.provider import CpuProvider
from alignup.align.devices import DeviceLedger, PreferenceAnswers, PreferenceRequest
from alignup.align.devices import provider as devices
from alignup.align.errors import ProviderError
from alignup.align.hint import Hint, HintsByResource
from alignup.align.machine import Device, KubeletView
from alignup.align.memory import provider as memory
from alignup.align.memory.ledger import EMPTY_TABLE, MemoryLedger, Sizes
from alignup.align.memory.provider import MemoryPolicy, MemorySettings
from alignup.align.provider import Need, Provider
from alignup.align.workload import Container, Pod
from alignup.align.workload.demand import container_devices, pod_devices
from alignup.align.workload.names import CPU


class PreferencesNeededError(Exception):
    """Device plugins have to be asked before anything can be given; never leaves ``align``."""

    def __init__(self, asks: tuple[PreferenceRequest, ...]) -> None:
        super().__init__("device plugins have to be asked first")
        self.asks = asks


@dataclass(frozen=True)
class DeviceProvider(Provider[DeviceLedger]):
    """Devices of device plugins."""

    machine: NodeSet
    known: tuple[Device, ...] = ()  #: on the idle machine
    preferred_allocation: frozenset[str] = frozenset()  #: resources whose plugin wants to be asked
    answers: PreferenceAnswers = field(default_factory=dict)  #: what plugins said to the questions of this decision

    name = "device"

    def idle(self) -> DeviceLedger:
        """All devices free."""
        return DeviceLedger.of_devices(self.known, nodes=self.machine, preferred_allocation=self.preferred_allocation)

    def hints(self, book: DeviceLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """By resource, for every one that a device plugin announced."""
        return devices.pod_hints(book, pod) if container is None else devices.hints(book, pod, container=container)

    def allocate(self, book: DeviceLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> DeviceLedger:
        """Near the chosen nodes first. In one piece with its pod nothing is given, as in the kubelet."""
        if container is None:
            return book
        outcome = devices.allocate(book, pod, container=container, affinity=affinity.nodes, answers=self.answers)
        if outcome.asks:
            raise PreferencesNeededError(outcome.asks)
        return outcome.ledger

    def release(self, book: DeviceLedger, uid: str) -> DeviceLedger:
        """All devices of the pod."""
        return book.take_back(uid)

    def needs(self, book: DeviceLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """How many are asked for, and how many each node has."""
        wanted = pod_devices(pod, book.handled) if container is None else container_devices(container, book.handled)
        return {
            resource: Need(count, book.free_on(resource), in_all=book.free[resource].bit_count())
            if resource in book.inventories
            else Need(count, {})
            for resource, count in wanted.items()
        }

    def offered(self, book: DeviceLedger, uid: str) -> Mapping[str, int]:
        """The healthy devices; at least as many as are given out, for a pod that has some."""
        return book.allocatable(uid)

    def given(self, book: DeviceLedger, uid: str, container: str) -> Mapping[str, str]:
        """The ids, with commas."""
        return {resource: ",".join(ids) for resource, ids in book.holds(uid, container).items()}


@dataclass(frozen=True)
class CpuHintProvider(Provider[CpuLedger]):
    """Exclusive CPUs."""

    rules: CpuProvider

    name = "cpu"

    def idle(self) -> CpuLedger:
        """All CPUs shared."""
        return self.rules.start()

    def hints(self, book: CpuLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """Under the one resource there is."""
        if container is None:
            found = self.rules.pod_hints(book, pod)
        else:
            found = self.rules.hints(book, pod, container=container)
        return None if found is None else {CPU: found}

    def allocate(self, book: CpuLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> CpuLedger:
        """Of the chosen nodes first."""
        if container is None:
            return self.rules.allocate_pod(book, pod, affinity=affinity.nodes)[0]
        return self.rules.allocate(book, pod, container=container, affinity=affinity.nodes)[0]

    def release(self, book: CpuLedger, uid: str) -> CpuLedger:
        """All CPUs of the pod are shared again, and what its next container might have used again is forgotten."""
        book = self.rules.release(book, uid)
        return replace(book, reusable=None) if book.reusable and book.reusable[0] == uid else book

    def needs(self, book: CpuLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """How many are asked for, and how many each node has."""
        count = self.rules.exclusive_cpus(pod, container)
        return {CPU: Need(count, book.free)} if count else {}

    def given(self, book: CpuLedger, uid: str, container: str) -> Mapping[str, str]:
        """A Linux list; nothing for a container on the shared CPUs."""
        cpus = book.holds(uid, container)
        return {} if cpus is None else {CPU: bits.show(cpus)}


@dataclass(frozen=True)
class MemoryProvider(Provider[MemoryLedger]):
    """Memory and huge pages."""

    view: KubeletView
    settings: MemorySettings
    reserved: Mapping[int, Sizes] = field(default_factory=dict)  #: node → type → bytes kept back for the system

    name = "memory"

    def idle(self) -> MemoryLedger:
        """All free that is not kept back; empty when memory is not managed."""
        if self.settings.policy is MemoryPolicy.NONE:
            return MemoryLedger()
        return MemoryLedger.of_machine(self.view.nodes, self.reserved)

    def hints(self, book: MemoryLedger, pod: Pod, container: Container | None) -> HintsByResource:
        """Type by type."""
        if container is None:
            return memory.pod_hints(book, pod, settings=self.settings)
        return memory.container_hints(book, pod, container, settings=self.settings)

    def allocate(self, book: MemoryLedger, pod: Pod, container: Container | None, *, affinity: Hint) -> MemoryLedger:
        """On the chosen nodes, or on more if they do not suffice."""
        if container is None:
            return memory.allocate_pod(book, pod, affinity=affinity, settings=self.settings)
        return memory.allocate(book, pod, container, affinity=affinity, settings=self.settings)

    def started(self, book: MemoryLedger, pod: Pod, container: Container) -> MemoryLedger:
        """Init containers that are done give their memory back."""
        return memory.start_container(book, pod, container)

    def release(self, book: MemoryLedger, uid: str) -> MemoryLedger:
        """All blocks of the pod, and what its next container might have used again is forgotten."""
        for container in book.held.get(uid, {}):
            book = book.release(uid, container)
        return replace(book, last_pod="", reusable={}) if book.last_pod == uid else book

    def needs(self, book: MemoryLedger, pod: Pod, container: Container | None) -> Mapping[str, Need]:
        """Bytes asked for, and bytes each node has, type by type."""
        try:
            if container is None:
                sizes = memory.pod_need(pod, settings=self.settings)
            else:
                sizes = memory.container_need(pod, container, settings=self.settings)
        except ProviderError:  # said again, and heard, when it comes to allocating
            return {}
        return {
            type_: Need(size, {id_: node.tables.get(type_, EMPTY_TABLE).free for id_, node in book.nodes.items()})
            for type_, size in sizes.items()
        }

    def given(self, book: MemoryLedger, uid: str, container: str) -> Mapping[str, str]:
        """``nodes=bytes``, type by type."""
        return {block.type: f"{bits.show(block.nodes)}={block.size}" for block in book.blocks(uid, container) or ()}
