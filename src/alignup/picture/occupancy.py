"""The occupancy of a machine: the state of every CPU and device, and a short key for every pod that holds some.

Without a ledger nothing is held and nothing is free: the picture shows hardware.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from alignup.align import bits
from alignup.align.bits import CpuSet
from alignup.align.devices.hints import natural_sort_key
from alignup.align.ledger import Ledger
from alignup.align.machine import Device, Machine, NumaNode
from alignup.align.memory.ledger import EMPTY_TABLE, Block, MemoryLedger
from alignup.align.workload.names import CPU, HUGEPAGES, MEMORY, is_hugepages
from alignup.picture.text_format import clean, format_ids, format_size, shorten

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class UseState(StrEnum):
    """The use of a CPU or device, in the order of lists."""

    RESERVED = "reserved"  #: for system daemons
    UNSEEN = "unseen"  #: unknown to the host
    LOST = "lost"  #: unassigned until the host restarts
    HELD = "held"  #: exclusive to one pod
    SHARED = "shared"  #: in the shared pool
    STRANDED = "stranded"  #: free, but no aligned container can get it
    FREE = "free"
    PLAIN = "plain"  #: hardware only: there is no ledger


_MAX_HOLDERS = 4  #: of one device that are named
_MAX_DEVICES = 16  #: the most devices of one resource in one place that are all listed
_MARKS = {
    UseState.SHARED: "s",
    UseState.RESERVED: "r",
    UseState.LOST: "x",
    UseState.UNSEEN: "u",
    UseState.STRANDED: "!",
}


@dataclass(frozen=True, slots=True)
class Holder:
    key: str  #: one or two letters
    index: int  #: index among the holders
    name: str
    cpus: CpuSet
    devices: tuple[tuple[str, tuple[str, ...]], ...]  #: resource, or group of devices of claims, and device ids
    memory: tuple[Block, ...]
    uid: str = ""  #: of the pod
    claims: tuple[str, ...] = ()  #: names of ResourceClaims, whose devices are among ``devices``


class UseInfo(NamedTuple):
    state: UseState
    holder: Holder | None = None
    others: tuple[Holder, ...] = ()  #: that share a claim with the first

    @property
    def mark(self) -> str:
        """The keys of the holders or a lower-case letter; empty if free or plain."""
        keys = [holder.key for holder in self._first_holders]
        return ",".join(keys + self._more) or _MARKS.get(self.state, "")

    @property
    def label(self) -> str:
        return self.mark if self.holder else str(self.state)

    @property
    def style(self) -> str:
        return f"holder{self.holder.index % 8}" if self.holder else str(self.state)

    @property
    def description(self) -> str:
        names = [holder.name for holder in self._first_holders]
        return f"held by {', '.join(names + self._more)}" if names else str(self.state)

    @property
    def _first_holders(self) -> list[Holder]:
        return [holder for holder in (self.holder, *self.others[: _MAX_HOLDERS - 1]) if holder]

    @property
    def _more(self) -> list[str]:
        more = len(self.others) + 1 - _MAX_HOLDERS
        return [f"+{more}"] if more > 0 else []


PLAIN, FREE = UseInfo(UseState.PLAIN), UseInfo(UseState.FREE)


class MemoryBar(NamedTuple):
    """The memory of one type on one node, divided by use; the parts add up to ``total``."""

    total: int
    parts: tuple[tuple[str, int], ...] = ()  #: use and bytes, without empty ones
    page: int = 0  #: huge page size in bytes; 0 for memory
    held: tuple[tuple["Holder | None", int], ...] = ()  #: the part that pods hold, by pod; ``None``: of several nodes

    @property
    def name(self) -> str:
        return f"{self.total // self.page} of {format_size(self.page)}" if self.page else format_size(self.total)


@dataclass(frozen=True, slots=True)
class Occupancy:
    known: bool = False  #: whether there is a ledger
    holders: tuple[Holder, ...] = ()
    sharing: tuple[str, ...] = ()  #: names of the pods in the shared pool
    by_cpu: Mapping[int, UseInfo] = field(default_factory=dict)
    by_device: Mapping[tuple[str, str], UseInfo] = field(default_factory=dict)
    memory: MemoryLedger = field(default_factory=MemoryLedger)

    @property
    def sharing_text(self) -> str:
        names = ", ".join(shorten(clean(name), 40) for name in self.sharing[:3])
        return f"shared by {names}" + (f" and {len(self.sharing) - 3} more" if len(self.sharing) > 3 else "")

    def of_cpu(self, cpu: int) -> UseInfo:
        return self.by_cpu.get(cpu, UseInfo(UseState.UNSEEN)) if self.known else PLAIN

    def of_device(self, device: Device) -> UseInfo:
        return self.by_device.get((device.resource, device.id), FREE) if self.known else PLAIN

    def listed(self, devices: Sequence[Device]) -> Sequence[Device]:
        """Return *devices*, or of many only the held and unhealthy ones."""
        notable = [device for device in devices if self.of_device(device).holder or not device.healthy]
        return devices if len(devices) <= _MAX_DEVICES else notable[:_MAX_DEVICES]

    def split(self, cpus: Iterable[int]) -> dict[UseInfo, CpuSet]:
        cpus_by_use: dict[UseInfo, CpuSet] = {}
        for cpu in cpus:
            use = self.of_cpu(cpu)
            cpus_by_use[use] = cpus_by_use.get(use, 0) | 1 << cpu
        order = list(UseState)
        uses = sorted(cpus_by_use, key=lambda use: (order.index(use.state), use.holder.index if use.holder else 0))
        return {use: cpus_by_use[use] for use in uses}

    def bars(self, node: NumaNode) -> tuple[MemoryBar, ...]:
        """Return the memory of *node* by type, without empty huge page sizes."""
        huge = sum(pages.bytes for pages in node.hugepages)
        bars = []
        if node.memory is not None:
            parts = self._parts(node.id, MEMORY, total=node.memory, huge=huge)
            bars.append(MemoryBar(node.memory, parts, held=tuple(self.held_memory(node.id, MEMORY))))
        for pages in node.hugepages:
            if pages.count:
                parts = self._parts(node.id, pages.resource, total=pages.bytes)
                by_holder = tuple(self.held_memory(node.id, pages.resource))
                bars.append(MemoryBar(pages.bytes, parts, page=pages.size, held=by_holder))
        return tuple(bars)

    def held_memory(self, node: int, type_: str) -> Iterator[tuple[Holder | None, int]]:
        """Yield the bytes of one type that each pod holds on *node*; ``None``: all pods on several nodes together."""
        tables = self.memory.nodes[node].tables if node in self.memory.nodes else {}
        remainder = tables.get(type_, EMPTY_TABLE).reserved
        for holder in self.holders:
            size = sum(block.size for block in holder.memory if block.type == type_ and block.nodes == 1 << node)
            if size:
                yield holder, size
                remainder -= size
        if remainder > 0:
            yield None, remainder

    def with_stranded(self, places: Collection[tuple[int, str]], machine: Machine) -> "Occupancy":
        """Return the occupancy with what is unused at *places*, NUMA nodes and resources, as stranded."""
        use, free_states = UseInfo(UseState.STRANDED), {UseState.FREE, UseState.SHARED}
        by_cpu = {
            cpu.id: use
            for cpu in machine.cpus
            if cpu.node is not None and (cpu.node, CPU) in places and self.of_cpu(cpu.id).state in free_states
        }
        by_device = {
            (device.resource, device.id): use
            for device in machine.devices
            if any((node, device.resource) in places for node in bits.members(device.nodes or 0))
            and self.of_device(device).state is UseState.FREE
        }
        return replace(self, by_cpu={**self.by_cpu, **by_cpu}, by_device={**self.by_device, **by_device})

    def _parts(self, node: int, type_: str, *, total: int, huge: int = 0) -> tuple[tuple[str, int], ...]:
        node_memory = self.memory.nodes.get(node)
        parts = {"in huge pages": huge}
        if node_memory is not None:
            table = node_memory.tables.get(type_, EMPTY_TABLE)
            parts |= {"reserved": table.system_reserved, "held": table.reserved, "free": table.free}
        amounts, remainder = [], total
        for name, amount in parts.items():
            amount = min(amount, remainder)  # noqa: PLW2901 - a reservation larger than the node wraps around
            remainder -= amount
            if amount:
                amounts.append((name, amount))
        return tuple(amounts)


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def read_occupancy(ledger: Ledger | None) -> Occupancy:
    if ledger is None:
        return Occupancy()
    cpus = ledger.cpus
    holders = tuple(_holders(ledger))
    sharing = []  # the pods with a container in the shared pool
    for uid, admitted_pod in ledger.pods.items():
        container_cpus = cpus.held.get(uid, {})
        containers = [container for container in admitted_pod.pod.init if container.restartable] + list(
            admitted_pod.pod.containers
        )
        if uid not in cpus.pod_held and any(container.name not in container_cpus for container in containers):
            sharing.append(ledger.pod_name(uid))
    by_cpu = dict.fromkeys(bits.members(cpus.lost), UseInfo(UseState.LOST))
    by_cpu |= dict.fromkeys(bits.members(cpus.available), UseInfo(UseState.SHARED) if sharing else FREE)
    by_cpu |= dict.fromkeys(bits.members(cpus.reserved), UseInfo(UseState.RESERVED))
    by_device: dict[tuple[str, str], UseInfo] = {}
    for holder in holders:
        use = UseInfo(UseState.HELD, holder)
        by_cpu |= dict.fromkeys(bits.members(holder.cpus), use)
        for key in [(resource, id_) for resource, ids in holder.devices for id_ in ids]:
            use_of_other = by_device.get(key)
            by_device[key] = use_of_other._replace(others=(*use_of_other.others, holder)) if use_of_other else use
    return Occupancy(True, holders, tuple(sharing), by_cpu, by_device, ledger.memory)  # noqa: FBT003 - there is a ledger


def format_amount(resource: str, number: int) -> str:
    return format_size(number) if resource == MEMORY or is_hugepages(resource) else str(number)


def format_block(block: Block) -> str:
    """Return a text such as ``2 GiB memory on node 0``."""
    name = "memory" if block.type == MEMORY else f"huge pages of {block.type.removeprefix(HUGEPAGES)}"
    return f"{format_size(block.size)} {name} on {format_ids('node', bits.members(block.nodes))}"


def known_devices(machine: Machine, ledger: Ledger | None) -> tuple[Device, ...]:
    """Return the devices as plugins last announced them, held devices that are gone, and devices of claims."""
    devices_by_key = {(device.resource, device.id): device for device in machine.devices}
    if ledger is None:
        return tuple(devices_by_key.values())
    devices = ledger.devices
    for resource, inventory in devices.inventories.items():
        devices_by_key = {key: device for key, device in devices_by_key.items() if key[0] != resource}
        devices_by_key |= {(resource, device.id): device for device in inventory.devices}
    for resource, ids in devices.in_use.items():
        for id_ in sorted(ids):
            devices_by_key.setdefault((resource, id_), Device(resource, id_, nodes=None, healthy=False))
    for name, of_claims in ledger.claims.groups.items() if ledger.claims else ():
        devices_by_key |= {
            (name, device.id.device): Device(name, device.id.device, device.nodes) for device in of_claims
        }
    return tuple(devices_by_key.values())


def _holders(ledger: Ledger) -> Iterator[Holder]:
    cpus, devices, memory = ledger.cpus, ledger.devices, ledger.memory
    index = 0
    groups = {device.id: name for name, of in ledger.claims.groups.items() for device in of} if ledger.claims else {}
    for uid in dict.fromkeys([*ledger.pods, *cpus.held, *cpus.pod_held, *devices.held, *memory.held, *memory.pod_held]):
        owned_cpus = cpus.owned(uid)
        resources = sorted({resource for by_resource in devices.held.get(uid, {}).values() for resource in by_resource})
        ids = tuple((name, tuple(sorted(devices.owned(uid, name), key=natural_sort_key))) for name in resources)
        claims = ledger.claims.claims_of(uid) if ledger.claims else {}
        by_group = group_by(
            dict.fromkeys(id_ for ids_of_claim in claims.values() for id_ in ids_of_claim), lambda id_: groups[id_]
        )
        ids += tuple((name, tuple(id_.device for id_ in members)) for name, members in sorted(by_group.items()))
        blocks = memory.pod_held.get(uid) or tuple(
            block for container_blocks in memory.held.get(uid, {}).values() for block in container_blocks if block.size
        )
        if owned_cpus or ids or blocks:
            key, rest = "", index + 1  # A, B, …, Z, AA, AB, …
            while rest:
                rest, letter = divmod(rest - 1, 26)
                key = chr(ord("A") + letter) + key
            name = ledger.pod_name(uid)
            yield Holder(
                key, index, name, cpus=owned_cpus, devices=ids, memory=blocks, uid=uid, claims=tuple(sorted(claims))
            )
            index += 1
