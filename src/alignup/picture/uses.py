"""Who holds what, as a picture tells it: a state for every CPU and device, and a short key for every pod with some.

Without a ledger nothing is held and nothing is free: the picture shows hardware.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from alignup.align import bits
from alignup.align.bits import Cpus
from alignup.align.cpus.ledger import CpuLedger
from alignup.align.devices import DeviceLedger
from alignup.align.devices.ledger import natural
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine, NumaNode
from alignup.align.memory.ledger import NOTHING, Block, MemoryLedger
from alignup.align.workload.names import HUGEPAGES, MEMORY
from alignup.picture.words import numbered, size


class State(StrEnum):
    """What a CPU or device is doing."""

    PLAIN = "plain"  #: hardware, and nobody said who uses it
    FREE = "free"
    SHARED = "shared"  #: pods without CPUs of their own run here; it could still be given to one
    RESERVED = "reserved"  #: kept for the system
    HELD = "held"  #: one pod's own
    LOST = "lost"  #: neither shared nor anybody's, until the host starts again
    UNSEEN = "unseen"  #: the host does not know of it


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that holds something."""

    key: str  #: a letter or two, by which the picture calls it
    place: int  #: its turn among the tenants
    name: str
    cpus: Cpus
    devices: tuple[tuple[str, tuple[str, ...]], ...]  #: resources, each with ids
    memory: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """What something is doing, and for whom."""

    state: State
    tenant: Tenant | None = None

    @property
    def mark(self) -> str:
        """The key of who holds it, or a small letter; what is free or plain has none."""
        if self.tenant:
            return self.tenant.key
        return {State.SHARED: "s", State.RESERVED: "r", State.LOST: "x", State.UNSEEN: "u"}.get(self.state, "")

    @property
    def words(self) -> str:
        """In a few words."""
        return f"held by {self.tenant.name}" if self.tenant else str(self.state)


PLAIN, FREE = Use(State.PLAIN), Use(State.FREE)

_ORDER = (State.RESERVED, State.UNSEEN, State.LOST, State.HELD, State.SHARED, State.FREE, State.PLAIN)


def _rank(use: Use) -> tuple[int, int]:
    return _ORDER.index(use.state), use.tenant.place if use.tenant else 0


@dataclass(frozen=True, slots=True)
class Bar:
    """Memory of one type on one node and how it is divided; parts add up to ``total``."""

    type: str  #: ``memory``, or a size of huge pages
    total: int
    parts: tuple[tuple[str, int], ...] = ()  #: what for → bytes, only where there are any
    page: int = 0  #: bytes of one huge page

    @property
    def name(self) -> str:
        """How much of what, in words."""
        return f"{self.total // self.page} of {size(self.page)}" if self.page else size(self.total)


@dataclass(frozen=True, slots=True)
class Uses:
    """Everything a ledger says about a machine."""

    known: bool = False  #: whether there is a ledger at all
    tenants: tuple[Tenant, ...] = ()
    sharing: tuple[str, ...] = ()  #: names of the pods that run on the shared CPUs
    by_cpu: Mapping[int, Use] = field(default_factory=dict)
    by_device: Mapping[tuple[str, str], Use] = field(default_factory=dict)
    memory: MemoryLedger = field(default_factory=MemoryLedger)

    def of_cpu(self, cpu: int) -> Use:
        """What a CPU is doing."""
        return self.by_cpu.get(cpu, Use(State.UNSEEN)) if self.known else PLAIN

    def of_device(self, device: Device) -> Use:
        """What a device is doing."""
        return self.by_device.get((device.resource, device.id), FREE) if self.known else PLAIN

    def split(self, cpus: Iterable[int]) -> dict[Use, Cpus]:
        """Use → the CPUs in it: reserved and unknown ones, then those held, then what is left."""
        found: dict[Use, Cpus] = {}
        for cpu in cpus:
            use = self.of_cpu(cpu)
            found[use] = found.get(use, 0) | 1 << cpu
        return dict(sorted(found.items(), key=lambda pair: _rank(pair[0])))

    def bars(self, node: NumaNode) -> tuple[Bar, ...]:
        """The memory of *node*, type by type; sizes of which there is nothing are left out."""
        huge = sum(pages.bytes for pages in node.hugepages)
        bars = []
        if node.memory is not None:
            bars.append(Bar(MEMORY, node.memory, self._parts(node.id, MEMORY, total=node.memory, huge=huge)))
        for pages in node.hugepages:
            if pages.count:
                parts = self._parts(node.id, pages.resource, total=pages.bytes)
                bars.append(Bar(pages.resource, pages.bytes, parts, page=pages.size))
        return tuple(bars)

    def _parts(self, node: int, type_: str, *, total: int, huge: int = 0) -> tuple[tuple[str, int], ...]:
        held = self.memory.nodes.get(node)
        parts = {"in huge pages": huge}
        if held is not None:
            table = held.tables.get(type_, NOTHING)
            parts |= {"reserved": table.system_reserved, "held": table.reserved, "free": table.free}
        divided, left = [], total
        for name, amount in parts.items():
            amount = min(amount, left)  # noqa: PLW2901 - a reservation larger than the node wraps around
            left -= amount
            if amount:
                divided.append((name, amount))
        return tuple(divided)


def uses_of(ledger: Ledger | None) -> Uses:
    """What *ledger* says; nothing without one."""
    if ledger is None:
        return Uses()
    cpus: CpuLedger = ledger.books["cpu"]
    devices: DeviceLedger = ledger.books["device"]
    memory: MemoryLedger = ledger.books["memory"]
    tenants = tuple(_tenants(ledger, cpus, devices=devices, memory=memory))
    return Uses(
        known=True,
        tenants=tenants,
        sharing=tuple(_sharing(ledger, cpus)),
        by_cpu=_cpu_uses(cpus, tenants, shared=any(_sharing(ledger, cpus))),
        by_device={
            (resource, id_): Use(State.HELD, tenant)
            for tenant in tenants
            for resource, ids in tenant.devices
            for id_ in ids
        },
        memory=memory,
    )


def block_in_words(block: Block) -> str:
    """``2 GiB memory on node 0``."""
    name = "memory" if block.type == MEMORY else f"huge pages of {block.type.removeprefix(HUGEPAGES)}"
    return f"{size(block.size)} {name} on {numbered('node', bits.members(block.nodes))}"


def devices_of(machine: Machine, ledger: Ledger | None) -> tuple[Device, ...]:
    """The devices there are: as plugins announced them last, and such as are held but were not announced again."""
    known = {(device.resource, device.id): device for device in machine.devices}
    if ledger is None:
        return tuple(known.values())
    book: DeviceLedger = ledger.books["device"]
    for resource, inventory in book.inventories.items():
        known = {key: device for key, device in known.items() if key[0] != resource}
        known |= {(resource, device.id): device for device in inventory.devices}
    for resource, ids in book.in_use.items():
        for id_ in sorted(ids):
            known.setdefault((resource, id_), Device(resource, id_, nodes=None, healthy=False))
    return tuple(known.values())


def _tenants(ledger: Ledger, cpus: CpuLedger, *, devices: DeviceLedger, memory: MemoryLedger) -> Iterator[Tenant]:
    place = 0
    for uid in dict.fromkeys([*ledger.pods, *cpus.held, *cpus.pod_held, *devices.held, *memory.held, *memory.pod_held]):
        own = cpus.owned(uid)
        resources = sorted({resource for held in devices.held.get(uid, {}).values() for resource in held})
        ids = tuple((resource, tuple(sorted(devices.owned(uid, resource), key=natural))) for resource in resources)
        blocks = memory.pod_held.get(uid) or tuple(
            block for held in memory.held.get(uid, {}).values() for block in held if block.size
        )
        if own or ids or blocks:
            yield Tenant(_key(place), place, _name(ledger, uid), cpus=own, devices=ids, memory=blocks)
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


def _cpu_uses(book: CpuLedger, tenants: Iterable[Tenant], *, shared: bool) -> dict[int, Use]:
    uses = dict.fromkeys(bits.members(book.lost), Use(State.LOST))
    uses |= dict.fromkeys(bits.members(book.available), Use(State.SHARED) if shared else FREE)
    uses |= dict.fromkeys(bits.members(book.reserved), Use(State.RESERVED))
    for tenant in tenants:
        uses |= dict.fromkeys(bits.members(tenant.cpus), Use(State.HELD, tenant))
    return uses
