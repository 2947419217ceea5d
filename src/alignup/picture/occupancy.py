"""Who holds what, as a picture tells it: a state for every CPU and device, and a short key for every pod with some.

Without a ledger nothing is held and nothing is free: the picture shows hardware.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.devices.ledger import natural_sort_key
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine, NumaNode
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger
from alignup.align.workload.names import HUGEPAGES, MEMORY
from alignup.picture.text_format import format_ids, format_size


class UseState(StrEnum):
    """What a CPU or device is doing."""

    PLAIN = "plain"  #: hardware, and nobody said who uses it
    FREE = "free"
    SHARED = "shared"  #: pods without CPUs of their own run here; it could still be given to one
    RESERVED = "reserved"  #: kept for the system
    HELD = "held"  #: one pod's own
    LOST = "lost"  #: neither shared nor anybody's, until the host starts again
    UNSEEN = "unseen"  #: the host does not know of it


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds something."""

    key: str  #: a letter or two, by which the picture calls it
    place: int  #: its turn among the tenants
    name: str
    cpus: CpuSet
    devices: tuple[tuple[str, tuple[str, ...]], ...]  #: resources, each with ids
    memory: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class UseInfo:
    """What something is doing, and for whom."""

    state: UseState
    tenant: Holder | None = None

    @property
    def mark(self) -> str:
        """The key of who holds it, or a small letter; what is free or plain has none."""
        if self.tenant:
            return self.tenant.key
        return {UseState.SHARED: "s", UseState.RESERVED: "r", UseState.LOST: "x", UseState.UNSEEN: "u"}.get(
            self.state, ""
        )

    @property
    def words(self) -> str:
        """In a few words."""
        return f"held by {self.tenant.name}" if self.tenant else str(self.state)


PLAIN, FREE = UseInfo(UseState.PLAIN), UseInfo(UseState.FREE)

_ORDER = (
    UseState.RESERVED,
    UseState.UNSEEN,
    UseState.LOST,
    UseState.HELD,
    UseState.SHARED,
    UseState.FREE,
    UseState.PLAIN,
)


def _rank(use: UseInfo) -> tuple[int, int]:
    return _ORDER.index(use.state), use.tenant.place if use.tenant else 0


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """Memory of one type on one node and how it is divided; parts add up to ``total``."""

    type: str  #: ``memory``, or a size of huge pages
    total: int
    parts: tuple[tuple[str, int], ...] = ()  #: what for → bytes, only where there are any
    page: int = 0  #: bytes of one huge page

    @property
    def name(self) -> str:
        """How much of what, in words."""
        return f"{self.total // self.page} of {format_size(self.page)}" if self.page else format_size(self.total)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Everything a ledger says about a machine."""

    known: bool = False  #: whether there is a ledger at all
    tenants: tuple[Holder, ...] = ()
    sharing: tuple[str, ...] = ()  #: names of the pods that run on the shared CPUs
    by_cpu: Mapping[int, UseInfo] = field(default_factory=dict)
    by_device: Mapping[tuple[str, str], UseInfo] = field(default_factory=dict)
    memory: MemoryLedger = field(default_factory=MemoryLedger)

    def of_cpu(self, cpu: int) -> UseInfo:
        """What a CPU is doing."""
        return self.by_cpu.get(cpu, UseInfo(UseState.UNSEEN)) if self.known else PLAIN

    def of_device(self, device: Device) -> UseInfo:
        """What a device is doing."""
        return self.by_device.get((device.resource, device.id), FREE) if self.known else PLAIN

    def split(self, cpus: Iterable[int]) -> dict[UseInfo, CpuSet]:
        """Use → the CPUs in it: reserved and unknown ones, then those held, then what is left."""
        found: dict[UseInfo, CpuSet] = {}
        for cpu in cpus:
            use = self.of_cpu(cpu)
            found[use] = found.get(use, 0) | 1 << cpu
        return dict(sorted(found.items(), key=lambda pair: _rank(pair[0])))

    def bars(self, node: NumaNode) -> tuple[MemoryBar, ...]:
        """The memory of *node*, type by type; sizes of which there is nothing are left out."""
        huge = sum(pages.bytes for pages in node.hugepages)
        bars = []
        if node.memory is not None:
            bars.append(MemoryBar(MEMORY, node.memory, self._parts(node.id, MEMORY, total=node.memory, huge=huge)))
        for pages in node.hugepages:
            if pages.count:
                parts = self._parts(node.id, pages.resource, total=pages.bytes)
                bars.append(MemoryBar(pages.resource, pages.bytes, parts, page=pages.size))
        return tuple(bars)

    def _parts(self, node: int, type_: str, *, total: int, huge: int = 0) -> tuple[tuple[str, int], ...]:
        held = self.memory.nodes.get(node)
        parts = {"in huge pages": huge}
        if held is not None:
            table = held.tables.get(type_, EMPTY_TABLE)
            parts |= {"reserved": table.system_reserved, "held": table.reserved, "free": table.free}
        divided, left = [], total
        for name, amount in parts.items():
            amount = min(amount, left)  # noqa: PLW2901 - a reservation larger than the node wraps around
            left -= amount
            if amount:
                divided.append((name, amount))
        return tuple(divided)


def read_occupancy(ledger: Ledger | None) -> Occupancy:
    """What *ledger* says; nothing without one."""
    if ledger is None:
        return Occupancy()
    cpus: CpuLedger = ledger.cpus
    devices: DeviceLedger = ledger.devices
    memory: MemoryLedger = ledger.memory
    tenants = tuple(_tenants(ledger, cpus, devices=devices, memory=memory))
    return Occupancy(
        known=True,
        tenants=tenants,
        sharing=tuple(_sharing(ledger, cpus)),
        by_cpu=_cpu_uses(cpus, tenants, shared=any(_sharing(ledger, cpus))),
        by_device={
            (resource, id_): UseInfo(UseState.HELD, tenant)
            for tenant in tenants
            for resource, ids in tenant.devices
            for id_ in ids
        },
        memory=memory,
    )


def format_block(block: Block) -> str:
    """``2 GiB memory on node 0``."""
    name = "memory" if block.type == MEMORY else f"huge pages of {block.type.removeprefix(HUGEPAGES)}"
    return f"{format_size(block.size)} {name} on {format_ids('node', bits.members(block.nodes))}"


def known_devices(machine: Machine, ledger: Ledger | None) -> tuple[Device, ...]:
    """The devices there are: as plugins announced them last, and such as are held but were not announced again."""
    known = {(device.resource, device.id): device for device in machine.devices}
    if ledger is None:
        return tuple(known.values())
    book: DeviceLedger = ledger.devices
    for resource, inventory in book.inventories.items():
        known = {key: device for key, device in known.items() if key[0] != resource}
        known |= {(resource, device.id): device for device in inventory.devices}
    for resource, ids in book.in_use.items():
        for id_ in sorted(ids):
            known.setdefault((resource, id_), Device(resource, id_, nodes=None, healthy=False))
    return tuple(known.values())


def _tenants(ledger: Ledger, cpus: CpuLedger, *, devices: DeviceLedger, memory: MemoryLedger) -> Iterator[Holder]:
    place = 0
    for uid in dict.fromkeys([*ledger.pods, *cpus.held, *cpus.pod_held, *devices.held, *memory.held, *memory.pod_held]):
        own = cpus.owned(uid)
        resources = sorted({resource for held in devices.held.get(uid, {}).values() for resource in held})
        ids = tuple(
            (resource, tuple(sorted(devices.owned(uid, resource), key=natural_sort_key))) for resource in resources
        )
        blocks = memory.pod_held.get(uid) or tuple(
            block for held in memory.held.get(uid, {}).values() for block in held if block.size
        )
        if own or ids or blocks:
            yield Holder(_key(place), place, _name(ledger, uid), cpus=own, devices=ids, memory=blocks)
            place += 1


def _name(ledger: Ledger, uid: str) -> str:
    """As people call it; a pod that nobody named goes by its uid."""
    resident = ledger.pods.get(uid)
    if resident is None or not resident.pod.namespace:
        return uid
    return f"{resident.pod.namespace}/{resident.pod.name}"


def _key(place: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    letters = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _sharing(ledger: Ledger, cpus: CpuLedger) -> Iterator[str]:
    """The pods with a container that has no CPUs of its own, nor any of its pod's."""
    for uid, resident in ledger.pods.items():
        own = cpus.held.get(uid, {})
        lasting = [one for one in resident.pod.init if one.restartable] + list(resident.pod.containers)
        if uid not in cpus.pod_held and any(one.name not in own for one in lasting):
            yield _name(ledger, uid)


def _cpu_uses(book: CpuLedger, tenants: Iterable[Holder], *, shared: bool) -> dict[int, UseInfo]:
    uses = dict.fromkeys(bits.members(book.lost), UseInfo(UseState.LOST))
    uses |= dict.fromkeys(bits.members(book.available), UseInfo(UseState.SHARED) if shared else FREE)
    uses |= dict.fromkeys(bits.members(book.reserved), UseInfo(UseState.RESERVED))
    for tenant in tenants:
        uses |= dict.fromkeys(bits.members(tenant.cpus), UseInfo(UseState.HELD, tenant))
    return uses
